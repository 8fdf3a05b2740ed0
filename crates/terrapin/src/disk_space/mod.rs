//! What the database occupies on disk, what gives it back, and what a low or full disk changes.

pub mod reclaim;
pub mod room;
pub mod usage;
