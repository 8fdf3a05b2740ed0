//! Terrapin's write-ahead log: append, group commit, segments, recovery, replay.
//!
//! Appends write into a ring in memory that the process shares with the kernel. So a record
//! survives the process without a system call. The drain job moves records from the ring into
//! segments and syncs the segments.
//!
//! | to change | look in |
//! | --- | --- |
//! | bytes on the disk | `format.rs`, `docs/FORMAT.md` |
//! | creating a log | `create.rs` |
//! | appending | `log/append.rs` |
//! | what the latest records touched, for conditional writes | `log/recent.rs` |
//! | publishing, boundaries, requests for syncs | `log/mod.rs`, `publish.rs` |
//! | state that handles and the drain share | `log/shared.rs` |
//! | writing and syncing segments | `drain.rs` |
//! | names, spares, trimming | `segments.rs` |
//! | what recovery accepts, and how a life begins | `recovery.rs` |
//! | reading segment headers | `headers.rs` |
//! | making and opening the ring file | `ring.rs` |
//! | joining segments into lives | `chain.rs` |
//! | reading bytes as records | `stream.rs` |
//! | copying the ring into segments | `copy.rs` |
//! | copying the log for a backup | `closed_copy.rs` |
#![forbid(unsafe_code)]

mod chain;
mod closed_copy;
mod copy;
mod create;
mod drain;
mod format;
mod headers;
mod log;
mod metrics;
mod options;
mod publish;
mod recovery;
mod replay;
mod ring;
mod segments;
mod stream;

pub use format::{LifeId, RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN, is_log_file};
pub use log::{
    Append, Appended, Boundary, Copied, From, HeldTrims, Log, Reach, TOUCH_HEAD_BYTES, Touch,
    Touched, Watch,
};
pub use metrics::{LogMetrics, LogSpace};
pub use options::LogOptions;
pub use recovery::Recovery;
pub use replay::{Record, Replay};
