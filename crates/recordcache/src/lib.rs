//! A cache of records (TreeLine §3.1, §4.2). The hottest third of a store's records gets far more
//! reads than its hottest third of blocks. So hot records are cached as records.
//!
//! The cache holds records of the trees, never of memtables, which readers search first. Lookups
//! take no lock. Records are in *strips* of atomic words (`strips.rs`), and a table of atomic words
//! finds them (`table.rs`). A reader that a writer overtakes notices it and misses. A miss costs a
//! read of the tree, and is never a wrong answer.
//!
//! **Coherence.** The cache has an *epoch*.
//!
//! - A reader takes the epoch before it loads the state with the memtables
//!   ([`RecordCache::epoch`]). Its lookup and its fill count only if the epoch has not changed.
//! - [`RecordCache::begin_sweep`] raises the epoch before the records of a sealed memtable become
//!   visible anywhere but in the memtable or in the tree below it. [`RecordCache::sweep`] then gets
//!   each key of the memtable.
//! - So a fill that read the tree below an older memtable is refused, and later readers find the
//!   key in the memtable first.
//! - A clear of a keyspace has no memtable. It gives the keyspace's records a new number
//!   ([`Collection`]). Only readers of older states find the old records, until these are evicted.
//!
//! **Replacement.** TreeLine uses a CLOCK with priorities over slots of a fixed size. Here records
//! have any size: they are appended to strips, and the oldest strip is evicted as a whole. Records
//! that were used since are kept, with one use less. That is a CLOCK with a hand that moves by one
//! strip, and at most three uses count. Nothing is allocated for a record.
//!
//! **Memory.** The budget is charged for whole strips and for the tables. The cache may hold a
//! share ([`RecordCache::set_share`]) of what memtables, merges, log and metadata leave of the
//! budget. So the limit moves with them. The owner calls [`RecordCache::shrink_step`] while the
//! cache exceeds it.
#![forbid(unsafe_code)]

mod cache;
mod record;
mod shard;
mod strips;
mod table;

pub use cache::{Counts, Epoch, RecordCache};
pub use record::Collection;
pub use shard::SealedRecord;
