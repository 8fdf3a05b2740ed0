//! How long one call waits in all, and what no later call waits for again (decision 0038).
//!
//! A write may wait several times: for the log's files on a full disk, for a merge or memory in
//! each keyspace of a batch, for room in the log's ring. [`Patience`] is one deadline for all of
//! these. A write that waited for the whole limit leaves a [`Mark`]. Until what it waited for makes
//! progress, later writes that would wait for the same thing fail at once. So a caller with
//! many writes waits for [`Options::stall_limit`](crate::Options::stall_limit) once, not once for
//! each write.

use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::Env;

/// What one call has waited so far.
#[derive(Default)]
pub(crate) struct Patience {
    /// When it first had to wait; none while it did not.
    since_ns: Option<u64>,
}

impl Patience {
    /// When the call first had to wait, which is now if it did not before.
    pub fn since_ns(&mut self, env: &Env) -> u64 {
        *self.since_ns.get_or_insert_with(|| env.now_ns())
    }

    /// Until when it may wait, if no call waits longer than `limit_ns`.
    pub fn until_ns(&mut self, env: &Env, limit_ns: u64) -> u64 {
        self.since_ns(env).saturating_add(limit_ns)
    }
}

/// That a write waited in vain, and how far what it waited for had come then.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    /// A write has waited as long as it may; `progress` is a number that changes when there may be
    /// room.
    pub fn leave(&self, progress: u64) {
        self.0.store(progress.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether one did, and there was no progress since.
    pub fn holds(&self, progress: u64) -> bool {
        self.0.load(Ordering::Relaxed) == progress.wrapping_add(1)
    }
}

/// Marks of what a database's writes wait for; a keyspace's memtable has its own
/// ([`crate::engine::state::KeyspaceShared`]).
#[derive(Default)]
pub(crate) struct Marks {
    /// Memtable memory. Progress is [`crate::engine::schedule::Schedule::seals`]: a memtable that
    /// is sealed may be merged soon.
    pub memory: Mark,
    /// Room in the log's ring, or in its files. Progress is how far the ring is drained.
    pub log: Mark,
    /// A checkpoint that trims the log of a full disk. Progress is how far checkpoints are durable.
    pub trim: Mark,
}
