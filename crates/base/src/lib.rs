//! Terrapin's ground floor (layer 0): words that every other crate speaks.
//!
//! Ids as newtypes, one [`Error`] with a kind and context, ref-counted [`Slice`]s, bounds-checked
//! byte [`codec`]s, the memory [`Budget`], and the [`Env`] through which time, randomness and
//! background work reach the engine, so that a test can own all three (DESIGN §3).
#![forbid(unsafe_code)]

mod budget;
pub mod checksum;
pub mod codec;
mod env;
mod error;
mod ids;
mod message;
pub mod mutant;
mod slice;
mod stripe;
pub mod sync;

pub use budget::{Budget, Charge, Purpose};
pub use env::{Condition, Env, Job, JobHandle, Signal, Sim, Step, Wait, is_job_giving_way};
pub use error::{Error, ErrorKind, Result};
pub use ids::{Generation, Incarnation, KeyspaceId, Lsn, PageId};
pub use message::Message;
pub use slice::Slice;
pub use stripe::{STRIPES, Share, Shares, stripe};

/// Longest key in bytes; a longer one is refused with [`ErrorKind::TooLarge`].
pub const KEY_BYTES_MAX: usize = 65_535;
/// Longest value in bytes; a longer one is refused with [`ErrorKind::TooLarge`].
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// What direct I/O wants of memory, whatever the device.
pub const MEMORY_ALIGNMENT: usize = 4096;
/// The file system's unit of allocation that extents are rounded to.
pub const EXTENT_ALIGNMENT: u64 = 4096;
