//! An embedded, durable, larger-than-memory key-value store with a dial between reading and writing.
//!
//! ```
//! # fn main() -> terrapin::Result<()> {
//! # let directory = std::env::temp_dir().join(format!("terrapin-doc-lib-{}", std::process::id()));
//! let database = terrapin::Database::open(&directory)?;
//! let animals = database.keyspace("animals")?;
//! animals.put("turtle", "slow")?;
//! assert_eq!(animals.get("turtle")?.as_deref(), Some(&b"slow"[..]));
//! let first = animals.prefix("t").next().transpose()?;
//! assert!(first.is_some());
//! database.close()?;
//! # let _ = std::fs::remove_dir_all(directory);
//! # Ok(()) }
//! ```
//!
//! A [`Database`] is a directory; a [`Keyspace`] is a named, ordered map in it. Writes go to a log, which survives `kill -9`
//! without a system call per write (see [`Durability`]), and to a window in memory; when the window holds χ batch units
//! ([`CheckpointDistance`]) it is merged into a Bε+-tree on disk. Reads look at two windows at most and then at the tree. One number
//! bounds all memory ([`Options::memory`]), and both it and χ can be moved while the store runs.
//!
//! To change how a write goes, look in `write` and `pressure`; what a read sees, `core` (`observe`), `state`, `read`, `iter`, `view`; when
//! windows are cut, `cut`; how they reach the disk, `checkpoint`; opening and replay, `open` and `recovery`; bytes, the `format` modules.
#![forbid(unsafe_code)]

mod balance;
mod batch;
mod catalog;
mod checkpoint;
mod chunk;
mod compaction;
mod core;
mod cut;
mod database;
mod fit;
mod forecast;
mod gate;
mod health;
mod iter;
mod keyspace;
mod metrics;
mod open;
mod options;
mod owner;
mod pressure;
mod read;
mod reclaim;
mod record;
mod recovery;
mod replacing;
mod room;
mod schema;
mod snapshot;
mod space;
mod state;
mod stock;
mod swap;
mod turns;
mod uses;
pub mod verify;
mod view;
mod warm;
mod write;

pub use batch::Batch;
pub use database::{Database, DatabaseStat, KeyspaceInfo, KeyspaceStat};
pub use iter::Range;
pub use keyspace::Keyspace;
pub use metrics::{
    CacheCounts, DeviceReads, Latency, MemoryUse, Metrics, WriteWaits, WrittenBytes,
};
pub use options::{
    CheckpointDistance, Compression, Durability, KeyspaceOptions, MEMORY_BYTES_DEFAULT,
    MEMORY_BYTES_MIN, Options,
};
pub use record::format::KEYSPACE_NAME_BYTES_MAX;
pub use snapshot::Snapshot;
pub use space::SpaceUse;
pub use terrapin_base::{
    Error, ErrorKind, KEY_BYTES_MAX, KeyspaceId, Lsn, Result, Slice, VALUE_BYTES_MAX,
};
pub use terrapin_structure::{PageParts, StructureStats};
pub use terrapin_wal::LogSpace;
