//! The base layer (layer 0): types that every other crate uses.
//!
//! It owns the ids, one [`Error`] with a kind and context, ref-counted [`Slice`]s, byte [`codec`]s
//! with bounds checks, the [`Message`] and the memory [`Budget`]. The [`Env`] provides time,
//! randomness and background work, so that a test can control all three.
#![forbid(unsafe_code)]

mod budget;
pub mod checksum;
pub mod codec;
mod env;
mod error;
pub mod expiry;
mod ids;
mod message;
pub mod mutant;
mod operator;
mod slice;
mod stripe;
pub mod sync;

pub use budget::{Budget, Charge, Purpose};
pub use env::{Condition, Env, Job, JobHandle, Signal, Sim, Step, Wait, is_job_giving_way};
pub use error::{Error, ErrorKind, Result};
pub use ids::{Generation, Incarnation, KeyspaceId, Lsn, PageId};
pub use message::{LARGE_BIRTHS, Message, MessageKind, handle_deadline_ms, handle_value_bytes};
pub use operator::{
    AddI64, Append, BitOr, CheckedAddI64, Fold, Max, MergeOperator, Min, Operator, Outcome,
    STACK_BYTES_MAX, SaturatingAddI64, Stack, StackBase, built_in_operator,
};
pub use slice::Slice;
pub use stripe::{STRIPES, Share, Shares, stripe};

/// Longest key in bytes. A longer one is refused with [`ErrorKind::TooLarge`].
pub const KEY_BYTES_MAX: usize = 65_535;
/// Longest value in bytes that records of logs, memtables and trees hold. A longer one is a large
/// value, in a page of its own.
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// Longest large value in bytes. A longer one is refused with [`ErrorKind::TooLarge`].
pub const LARGE_VALUE_BYTES_MAX: u64 = 1 << 30;
/// Alignment of memory in bytes that direct I/O needs on any device.
pub const MEMORY_ALIGNMENT: usize = 4096;
/// Alignment of extents in bytes: the file system's unit of allocation.
pub const EXTENT_ALIGNMENT: u64 = 4096;
