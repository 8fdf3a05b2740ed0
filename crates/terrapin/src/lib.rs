//! An embedded, ordered, durable key-value store for data larger than memory.
//!
//! ```
//! # fn main() -> terrapin::Result<()> {
//! # fn is_shared<T: Send + Sync + Clone>() {}
//! # (is_shared::<terrapin::Database>(), is_shared::<terrapin::Keyspace>(), is_shared::<terrapin::Snapshot>());
//! # let directory = std::env::temp_dir().join(format!("terrapin-doc-lib-{}", std::process::id()));
//! let database = terrapin::Database::open(&directory)?;
//! let animals = database.keyspace("animals")?;
//! animals.put("turtle", "slow")?;
//! assert_eq!(animals.get("turtle")?.unwrap(), "slow");
//! for record in animals.prefix("t") {
//!     let (animal, pace) = record?;
//!     println!("the {animal:?} is {pace:?}");
//! }
//! database.close()?;
//! # let _ = std::fs::remove_dir_all(directory);
//! # Ok(()) }
//! ```
//!
//! # What there is
//!
//! - A [`Database`] is a directory. [`Database::open`] opens or makes one; [`Options`] says how.
//! - A [`Keyspace`] is a named, ordered map in it, from byte strings to byte strings. Reads:
//!   [`Keyspace::get`], [`Keyspace::multi_get`], [`Keyspace::range`], [`Keyspace::prefix`]; how
//!   much a range holds: [`Keyspace::approximate`]. Writes: [`Keyspace::put`],
//!   [`Keyspace::delete`], [`Keyspace::clear`]. Writes that depend on what is there:
//!   [`Keyspace::insert_if_absent`], [`Keyspace::compare_and_swap`], [`Keyspace::update`],
//!   [`Keyspace::take`], [`Keyspace::pop_first`]. Messages that the tree combines later:
//!   [`Keyspace::merge`], [`Keyspace::delete_range`]. Values that expire:
//!   [`Keyspace::put_with_ttl`]. Values up to 1 GiB, streamed: [`Keyspace::writer`],
//!   [`Keyspace::reader`]. Records in key order, straight into the tree: [`Keyspace::ingest`].
//! - [`KeyspaceOptions`] choose how a keyspace lies on disk: its [`StructureKind`], compression,
//!   values outside of the tree, a merge operator, a time to live.
//! - A [`Batch`] is written whole or not at all, across keyspaces ([`Database::write`]). It may
//!   have conditions ([`Batch::require`]).
//! - A [`Transaction`] reads and writes at one moment, or not at all ([`Database::transact`]).
//! - A [`Snapshot`] is the whole database as of one moment ([`Database::snapshot`]).
//! - [`Database::backup`] copies what changed since the last backup, beside writers.
//!   [`Options::open_reader`] reads in another process, beside the one that writes. [`salvage`]
//!   takes out what a damaged database still holds.
//! - [`Metrics`] are figures for programs, [`Database::stat`] figures for people, [`verify`] a
//!   check of every byte.
//!
//! `crates/terrapin/examples` has a secondary index, pages of a prefix, and a queue of work.
//!
//! # A tour
//!
//! Open a directory, take a keyspace, put and get. Keys and values are bytes; anything that is
//! `AsRef<[u8]>` will do.
//!
//! ```
//! # fn main() -> terrapin::Result<()> {
//! # let directory = std::env::temp_dir().join(format!("terrapin-doc-tour-{}", std::process::id()));
//! use terrapin::{Durability, ErrorKind, IntegerKey, Options};
//!
//! let database = Options::new()
//!     .memory(64 << 20) // bytes; all that the database keeps in memory
//!     .open(&directory)?;
//! let scores = database.keyspace("scores")?;
//! scores.put("ann", "12")?;
//! if let Some(score) = scores.get("ann")? {
//!     assert_eq!(score, "12");
//! }
//! scores.delete("ann")?;
//!
//! // Ranges are in key order, from both ends. Integers want an encoding that keeps their order.
//! let by_time = database.keyspace("by time")?;
//! for time in [30_u64, 10, 20] {
//!     by_time.put(time.to_key(), "an event")?;
//! }
//! let mut times = Vec::new();
//! for record in by_time.range(15_u64.to_key()..).rev() {
//!     let (time, _event) = record?;
//!     times.push(u64::from_key(&time)?);
//! }
//! assert_eq!(times, [30, 20]);
//!
//! // A batch is written whole or not at all, across keyspaces.
//! let mut batch = database.batch();
//! batch.put(&scores, "bob", "7");
//! batch.delete(&by_time, 10_u64.to_key());
//! database.write_with(&batch, Durability::Sync)?; // on stable storage before it returns
//!
//! // A snapshot keeps showing its moment.
//! let snapshot = database.snapshot()?;
//! scores.put("bob", "8")?;
//! assert_eq!(snapshot.get(&scores, "bob")?.unwrap(), "7");
//! drop(snapshot);
//!
//! // Errors have a kind to decide by, and a text to log.
//! match database.open_keyspace("missing") {
//!     Err(error) if error.kind() == ErrorKind::KeyspaceNotFound => println!("{error}"),
//!     other => drop(other?),
//! }
//!
//! database.close()?; // the next open replays nothing
//! # let _ = std::fs::remove_dir_all(directory);
//! # Ok(()) }
//! ```
//!
//! # How it works
//!
//! A write goes to a log, which survives `kill -9` without a system call for each write (see
//! [`Durability`]), and to a *memtable* in memory. When the memtable holds χ units
//! ([`CheckpointDistance`]) it is merged in the background into a Bε-tree on disk. A read looks at
//! two memtables at most, then at the tree. A larger χ writes less to the disk; a smaller one
//! leaves more memory for reads. One number bounds all memory ([`Options::memory`]). Both can be
//! changed while the database is open.
//!
//! # Isolation
//!
//! Every get, put, delete and batch is atomic, and what a write that returned has done is seen by
//! every later read in any thread. A [`Keyspace::multi_get`], a range and a snapshot each see one
//! moment; two gets may not. Two threads that each get a value and put one that depends on it can
//! undo each other's: do both in a transaction ([`Database::transact`]) or in a conditional write.
//! Transactions are serializable, also beside writes outside of transactions ([`Isolation`]).
//!
//! # Threads
//!
//! [`Database`], [`Keyspace`] and [`Snapshot`] are `Send + Sync + Clone`; a clone costs a reference
//! count. Every call blocks its thread until it is done: reads may wait for the device, writes for
//! merges that lag behind, [`Durability::Sync`] for the sync. There is no async API; from async
//! code, call on threads that may block. Background work runs on threads of the database's own.
//!
//! # Errors
//!
//! An [`Error`] has an [`ErrorKind`] to decide by, and says where and with what figures it
//! happened. Damage and I/O errors are errors of the call that met them, never "not found".
//! [`Database::background_error`], [`Database::on_background_error`] and events of the crate
//! `tracing` report what fails in the background.
//!
//! # Logging
//!
//! The library emits events through the crate `tracing`; install a subscriber to see them. They are
//! few enough to leave on in production.
//!
//! | level | event | fields |
//! | --- | --- | --- |
//! | info | opened the database | `directory`, `keyspaces`, `records` (replayed), `read_only`, `duration_ms` |
//! | info | replaying the log; replayed the log | `bytes`, `records`, `duration_ms` |
//! | info | checkpoint: merged memtables into their trees | `generation`, `keyspaces`, `bytes`, `duration_ms` |
//! | info | a write stall began; a write stall ended | `cause`, `keyspace`, `duration_ms` |
//! | info | closed the database | `directory`, `duration_ms` |
//! | warn | the disk is full or nearly full, and what that means for writes | |
//! | error | background work failed | `error` |
//!
//! The events of an open lie in a span `open` with the field `directory`.
//!
//! # Features
//!
//! `zstd`: blocks compressed by Zstandard; needs a C compiler. LZ4 needs no feature
//! ([`Compression`]). `serde`: [`Metrics`] and what it holds implement `serde::Serialize`.
//!
//! Beyond the API: `docs/DURABILITY.md` lists what survives each failure, and
//! `docs/ARCHITECTURE.md` is the map of the code.
#![forbid(unsafe_code)]

mod api;
pub mod backup;
mod checkpoint;
mod disk_space;
mod engine;
mod figures;
mod keyspaces;
mod log_record;
mod memory;
mod metrics;
mod open;
mod pacing;
mod planning;
mod read;
mod run;
pub mod salvage;
#[cfg(any(test, terrapin_mutants))]
#[doc(hidden)]
pub mod testing;
mod transaction;
mod types;
mod write;

pub use api::batch::Batch;
pub use api::database::{Database, KeyspaceInfo};
pub use api::expiry::Lifetime;
pub use api::ingest::Ingest;
pub use api::keyspace::Keyspace;
pub use api::large::{ValueReader, ValueWriter};
pub use api::snapshot::Snapshot;
pub use api::streamed::{Streamed, StreamedRecord, StreamedValue};
pub use api::transaction::Transaction;
pub use api::unordered::{Position, Unordered};
pub use disk_space::usage::SpaceUse;
pub use figures::stat::{DatabaseStat, KeyspaceStat};
pub use log_record::format::KEYSPACE_NAME_BYTES_MAX;
pub use metrics::{
    Bucket, CacheCounts, DeviceReads, KeyspaceMetrics, Latency, MemoryUse, Metrics, WriteWaits,
    WrittenBytes,
};
pub use open::verify;
pub use read::estimate::Estimate;
pub use read::iter::keys_values::{Keys, Values};
pub use read::iter::{Range, RecordAndDeadline};
pub use read::sorted::Sorted;
pub use terrapin_base::{
    AddI64, Append, BitOr, CheckedAddI64, Error, ErrorKind, KEY_BYTES_MAX, KeyspaceId,
    LARGE_VALUE_BYTES_MAX, Lsn, Max, MergeOperator, Min, Outcome, Result, SaturatingAddI64, Slice,
    VALUE_BYTES_MAX, built_in_operator,
};
#[doc(hidden)]
pub use terrapin_structure::StructureId;
pub use terrapin_structure::{Figure, PageParts, StructureStats};
pub use terrapin_wal::LogSpace;
pub use transaction::Savepoint;
pub use transaction::range::TransactionRange;
pub use types::closed::Closed;
pub use types::condition::{Conflict, ConflictCause, Requirement, Version};
pub use types::integer_key::IntegerKey;
#[doc(hidden)]
pub use types::key_form::KeyHash;
pub use types::key_range::{KeyRange, prefix_range};
pub use types::options::{
    CheckpointDistance, Compression, Durability, KeyspaceOptions, MEMORY_BYTES_DEFAULT,
    MEMORY_BYTES_MIN, OperatorName, Options, SpaceAmplification,
};
pub use types::structure_kind::StructureKind;
#[doc(hidden)]
pub use types::structures::{StructureMaker, StructureParts};
pub use types::transaction::{CommitLsn, Isolation, TransactionOptions};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
