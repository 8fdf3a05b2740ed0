//! What ranges paid towards compactions, and the keyspace that is being compacted. This file holds
//! data only. `checkpoint::compaction` decides.

use terrapin_base::KeyspaceId;
use terrapin_base::sync::{AtomicU64, Mutex, Ordering};

/// Ranges visit at least this many runs between two checks of what they paid.
pub(crate) const LOOK_RUNS: u64 = 64;
/// Length of a stretch, in units of L.
pub(crate) const STRETCH_GROUPS: u64 = 16;

/// What ranges over a keyspace visited since its last compaction.
#[derive(Default)]
pub(crate) struct Visits {
    /// Runs that the ranges visited.
    pub runs: AtomicU64,
    /// Deletes in the tree that ranges passed since any part of the tree was compacted.
    pub passed: AtomicU64,
    /// Reads of separated values that ranges would not have needed had the values been in order,
    /// since an ordering was last asked for.
    pub scattered: AtomicU64,
}

impl Visits {
    /// Forgets the reads of scattered values: an ordering is under way.
    pub fn forget_scattered(&self) {
        self.scattered.store(0, Ordering::Relaxed);
    }

    /// Forgets the passed deletes: a compaction may have removed the deletes that ranges counted.
    pub fn forget_passed(&self) {
        self.passed.store(0, Ordering::Relaxed);
    }
}

/// A lower bound of keys, and an exclusive upper bound. Without an upper bound, the span has no
/// end.
pub(crate) type KeySpan = (Box<[u8]>, Option<Box<[u8]>>);

/// The compaction under way, and the runs that all ranges visited.
pub(crate) struct Compactions {
    /// Runs that ranges of all keyspaces visited.
    pub runs: AtomicU64,
    /// The value of `runs` at which the next check of payments is due.
    pub next_look: AtomicU64,
    asked: Mutex<Option<Stretches>>,
}

impl Default for Compactions {
    fn default() -> Self {
        Compactions {
            runs: AtomicU64::new(0),
            next_look: AtomicU64::new(LOOK_RUNS),
            asked: Mutex::default(),
        }
    }
}

/// A keyspace that is being compacted, and the span of keys that is still to do.
#[derive(Clone, Debug)]
pub(crate) struct Stretches {
    pub keyspace: KeyspaceId,
    pub span: KeySpan,
    pub work: Work,
}

/// What a compaction does to its stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Merges buffers into leaves.
    Buffers,
    /// Merges buffers into leaves, and rewrites leaves whose expired share is at least this number
    /// of thousandths.
    Expired(u64),
    /// Collects garbage of separated values. The span has no meaning.
    Garbage,
    /// Brings separated values back into the order of keys.
    Order,
}

impl Compactions {
    /// The compaction that was asked for or is under way, if any.
    pub fn asked(&self) -> Option<Stretches> {
        self.asked.lock().clone()
    }

    /// Whether a compaction was asked for or is under way.
    pub fn is_any_asked(&self) -> bool {
        self.asked.lock().is_some()
    }

    /// Asks for a compaction. Returns false if another one is under way or the lock is taken. Never
    /// waits.
    pub fn ask(&self, stretches: Stretches) -> bool {
        match self.asked.try_lock() {
            Some(mut asked) if asked.is_none() => {
                *asked = Some(stretches);
                true
            }
            _ => false,
        }
    }

    /// Stores what is still to do after a stretch: the rest of the span, or nothing.
    pub fn went_on(&self, next: Option<Stretches>) {
        *self.asked.lock() = next;
    }

    /// Whether ranges visited enough runs for the next check of payments.
    pub fn is_look_due(&self) -> bool {
        self.runs.load(Ordering::Relaxed) >= self.next_look.load(Ordering::Relaxed)
    }
}
