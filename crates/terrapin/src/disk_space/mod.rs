//! What the database occupies on disk, how it gives space back, and what it does on a low or full
//! disk.
//!
//! | file | owns |
//! | --- | --- |
//! | `usage` | what each byte on disk is for |
//! | `measure` | the room on the disk, and what memtables need of it |
//! | `room` | looks at the room; what each change of state does |
//! | `reclaim` | the job that returns free space and spare memory |
//!
//! The states themselves are in [`crate::planning::disk_state`].

mod measure;
pub mod reclaim;
pub mod room;
pub mod usage;
