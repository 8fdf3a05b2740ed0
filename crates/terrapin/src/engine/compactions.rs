//! What ranges paid for compactions, and what is being compacted. Data only:
//! `checkpoint::compaction` decides.

use terrapin_base::KeyspaceId;
use terrapin_base::sync::{AtomicU64, Mutex, Ordering};

/// Ranges visit at least this many runs between two looks at what they paid.
pub(crate) const LOOK_RUNS: u64 = 64;
/// A stretch is this many times L.
pub(crate) const STRETCH_GROUPS: u64 = 16;

/// What ranges over a keyspace went by since it was compacted.
#[derive(Default)]
pub(crate) struct Visits {
    /// Runs that they visited.
    pub runs: AtomicU64,
    /// Deletes that they went over in the tree, since any of it was compacted.
    pub passed: AtomicU64,
}

impl Visits {
    /// Some of the tree was compacted: what there was to go over may be gone.
    pub fn forget_passed(&self) {
        self.passed.store(0, Ordering::Relaxed);
    }
}

/// Keys from one to another, or to the end.
pub(crate) type KeySpan = (Box<[u8]>, Option<Box<[u8]>>);

/// What is being compacted, and what all ranges visited.
pub(crate) struct Compactions {
    /// Runs that ranges of all keyspaces visited.
    pub runs: AtomicU64,
    /// Runs at which to look at what was paid.
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

/// A keyspace that is being compacted, and between which keys there is more to do.
#[derive(Clone, Debug)]
pub(crate) struct Stretches {
    pub keyspace: KeyspaceId,
    pub span: KeySpan,
}

impl Compactions {
    /// The keyspace to compact, if one is.
    pub fn asked(&self) -> Option<Stretches> {
        self.asked.lock().clone()
    }

    /// Whether there is one.
    pub fn is_any_asked(&self) -> bool {
        self.asked.lock().is_some()
    }

    /// Asks for a compaction; whether no other is under way or asked for. Waits for nobody.
    pub fn ask(&self, stretches: Stretches) -> bool {
        match self.asked.try_lock() {
            Some(mut asked) if asked.is_none() => {
                *asked = Some(stretches);
                true
            }
            _ => false,
        }
    }

    /// There is more to do from there on, or nothing.
    pub fn went_on(&self, next: Option<Stretches>) {
        *self.asked.lock() = next;
    }

    /// Whether ranges visited enough to look at what they paid.
    pub fn is_look_due(&self) -> bool {
        self.runs.load(Ordering::Relaxed) >= self.next_look.load(Ordering::Relaxed)
    }
}
