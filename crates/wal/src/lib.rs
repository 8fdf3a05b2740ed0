//! Terrapin's write-ahead log (layer 2): append, group commit, segments, recovery, replay (DESIGN
//! §4).
//!
//! Appends go into a ring of memory that is shared with the kernel, so that they survive the
//! process without a system call; the drain job moves them on into segments and syncs those. Where
//! what is told:
//!
//! | to change | look in |
//! | --- | --- |
//! | bytes on the disk | `format.rs`, `docs/FORMAT.md` |
//! | appending | `log/append.rs` |
//! | publishing, cutting, asking for syncs | `log/mod.rs` |
//! | writing and syncing segments | `drain.rs` |
//! | names, spares, trimming | `segments.rs` |
//! | making a log | `create.rs` |
//! | what the handles and the drain share | `log/shared.rs` |
//! | what recovery accepts, and a life's beginning | `recovery.rs`, with `chain.rs` (segments to lives), `stream.rs` (bytes to records), `copy.rs` (ring to segments) |
#![forbid(unsafe_code)]

mod chain;
mod copy;
mod create;
mod drain;
mod format;
mod log;
mod metrics;
mod options;
mod publish;
mod recovery;
mod replay;
mod segments;
mod stream;

pub use format::{RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN, is_log_file};
pub use log::{Append, Appended, Boundary, Log};
pub use metrics::{LogMetrics, LogSpace};
pub use options::LogOptions;
pub use recovery::Recovery;
pub use replay::{Record, Replay};
