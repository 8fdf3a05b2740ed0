//! [`Patience`] and [`Mark`]: the longest total wait of one call, and the waits that later calls
//! skip (decision 0038).
//!
//! A write may wait several times: for the log's files on a full disk, for a merge or memory in
//! each keyspace of a batch, for room in the log's ring. [`Patience`] is one deadline for all these
//! waits. A write that waited for the whole limit leaves a [`Mark`]. Later writes that would wait
//! for the same thing then fail at once, until that thing makes progress. A caller with many writes
//! therefore waits for [`Options::stall_limit`](crate::Options::stall_limit) once, and not for each
//! write.

use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::Env;

/// The waiting time of one call so far.
#[derive(Default)]
pub(crate) struct Patience {
    /// Time of the call's first wait. None before it waits.
    since_ns: Option<u64>,
}

impl Patience {
    /// Time of the call's first wait: now, unless it waited before.
    pub fn since_ns(&mut self, env: &Env) -> u64 {
        *self.since_ns.get_or_insert_with(|| env.now_ns())
    }

    /// The deadline of the call, if no call waits longer than `limit_ns`.
    pub fn until_ns(&mut self, env: &Env, limit_ns: u64) -> u64 {
        self.since_ns(env).saturating_add(limit_ns)
    }
}

/// Says that a write waited in vain, with the progress at that time.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    /// Notes that a write waited as long as it may. `progress` is a number that changes when there
    /// may be room.
    pub fn leave(&self, progress: u64) {
        self.0.store(progress.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether a write waited in vain, and there was no progress since.
    pub fn holds(&self, progress: u64) -> bool {
        self.0.load(Ordering::Relaxed) == progress.wrapping_add(1)
    }
}

/// The marks for what a database's writes wait for. The mark for a keyspace's memtable is in
/// [`crate::engine::state::KeyspaceShared`].
#[derive(Default)]
pub(crate) struct Marks {
    /// Memtable memory. Progress is [`crate::engine::schedule::Schedule::seals`]: a memtable that
    /// is sealed may be merged soon.
    pub memory: Mark,
    /// Room in the log's ring, or in its files. Progress is how far the ring is drained.
    pub log: Mark,
    /// A checkpoint that trims the log of a full disk. Progress is how far checkpoints are durable.
    pub trim: Mark,
    /// A checkpoint that shortens what the next open would replay. Progress is as for `trim`.
    pub replay: Mark,
}
