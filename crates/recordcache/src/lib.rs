//! A cache of records (TreeLine §3.1, §4.2): hot records are kept as records, since the hottest
//! third of a store's records draws far more reads than the hottest third of its blocks does.
//!
//! What it holds is what the tree holds (never what a memtable does, which readers ask first), and
//! lookups take no lock: records lie in strips of atomic words (`strips.rs`), found by a table
//! of atomic words (`table.rs`), and a reader that was overtaken by a writer notices it and misses.
//! A miss costs a read of the tree, never a wrong answer.
//!
//! **Coherence.** The cache has an *epoch*. A reader takes it before it looks which memtables there
//! are ([`RecordCache::epoch`]), and both its lookup and its fill count only if the epoch is still
//! that one. Before a sealed memtable's records can be anything but in the memtable or in the tree
//! below it, [`RecordCache::begin_sweep`] raises the epoch, and [`RecordCache::sweep`] is told each
//! of the memtable's keys: so a fill that read the tree below an older memtable comes too late, and
//! later readers find such a key in the memtable first. No memtable says what a clear does: from
//! then on the keyspace's records go by another number ([`Collection`]), and those of before are
//! found only by readers of states of before, until their turn to leave comes.
//!
//! **Replacement.** TreeLine has a CLOCK with priorities over fixed slots. Here records are of any
//! size, so they are appended to strips, and the oldest strip is taken again as a whole: what
//! was used since is kept, with a use less (a CLOCK whose hand moves a strip at a time, three
//! uses being the most that count). Nothing is ever allocated for a record.
//!
//! **Memory** is charged by whole strips, plus the tables. What the cache may hold is a share
//! ([`RecordCache::set_share`]) of what memtables, merges, log and metadata leave of the budget, so
//! it moves as they do; the owner calls [`RecordCache::shrink_step`] while it holds too much.
#![forbid(unsafe_code)]

mod cache;
mod record;
mod shard;
mod strips;
mod table;

pub use cache::{Counts, Epoch, RecordCache};
pub use record::Collection;
pub use shard::SealedRecord;
