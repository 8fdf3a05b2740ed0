//! The version lock of a node. Writers exclude each other and make readers retry. Readers write
//! nothing.
//!
//! It is the seqlock of optimistic lock coupling (Leis et al., "The ART of Practical
//! Synchronization", 2016, §3): one word of {version, obsolete, locked}. A reader takes the version
//! while the node is unlocked, reads, and then checks whether the version is unchanged. All fields
//! that it reads are atomics, so a read that loses the race is discarded without harm.
//!
//! Ordering: `try_lock` is a CAS followed by a release fence, and precedes the writer's relaxed
//! stores to the node. If a reader saw one of those stores, the acquire fence in `still`
//! synchronises with that fence. So the reader sees that the lock word has changed, and discards
//! what it read. A writer unlocks with a release store, which the next `read` acquires.
//!
//! An obsolete node has been replaced by a larger copy. It never changes again. Readers that are
//! inside may go on (see `memtable`); writers must restart.

use terrapin_base::sync::{AtomicU64, Backoff, Ordering, atomic::fence};

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const STEP: u64 = 4;

/// The state of a lock that a reader saw. [`VersionLock::still`] validates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u64);

impl Version {
    /// Whether the node was replaced before this version was read.
    pub(crate) fn obsolete(self) -> bool {
        self.0 & OBSOLETE != 0
    }
}

/// The lock word.
#[derive(Debug)]
pub(crate) struct VersionLock(AtomicU64);

impl VersionLock {
    pub(crate) fn new() -> Self {
        VersionLock(AtomicU64::new(0))
    }

    /// The version, once no writer is inside. It may wait for a writer, which holds the lock for
    /// tens of nanoseconds and never waits itself.
    #[inline]
    pub(crate) fn read(&self) -> Version {
        let word = self.0.load(Ordering::Acquire);
        if word & LOCKED == 0 {
            Version(word)
        } else {
            self.read_slowly()
        }
    }

    #[cold]
    fn read_slowly(&self) -> Version {
        let mut backoff = Backoff::default();
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word & LOCKED == 0 {
                return Version(word);
            }
            backoff.pause();
        }
    }

    /// Whether everything that was read since `version` was taken is one consistent state.
    #[inline]
    pub(crate) fn still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version.0
    }

    /// Locks the node if it is live and nothing has changed since `version` was taken. Never waits.
    #[inline]
    pub(crate) fn try_lock(&self, version: Version) -> Option<NodeGuard<'_>> {
        if version.obsolete() {
            return None;
        }
        let locked = version.0 | LOCKED;
        self.0
            .compare_exchange(version.0, locked, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        fence(Ordering::Release);
        Some(NodeGuard {
            lock: self,
            next: version.0 + STEP,
        })
    }
}

/// A locked node. Drop unlocks it under a new version.
pub(crate) struct NodeGuard<'a> {
    lock: &'a VersionLock,
    next: u64,
}

impl NodeGuard<'_> {
    /// Unlocks under the old version. The caller must not have changed the node.
    pub(crate) fn cancel(mut self) {
        self.next -= STEP;
    }

    /// Unlocks and marks the node as replaced.
    pub(crate) fn retire(mut self) {
        self.next |= OBSOLETE;
    }
}

impl Drop for NodeGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_discards_what_was_read_and_a_cancelled_lock_does_not() {
        let lock = VersionLock::new();
        let seen = lock.read();
        assert!(lock.still(seen));
        let guard = lock.try_lock(seen).expect("nobody else");
        assert!(!lock.still(seen), "a writer is inside");
        assert!(lock.try_lock(seen).is_none());
        guard.cancel();
        assert!(lock.still(seen));
        drop(lock.try_lock(seen));
        assert!(!lock.still(seen));
        assert!(lock.try_lock(seen).is_none(), "the version moved on");
    }

    #[test]
    fn a_retired_node_can_be_read_but_never_locked_again() {
        let lock = VersionLock::new();
        lock.try_lock(lock.read()).expect("nobody else").retire();
        let seen = lock.read();
        assert!(seen.obsolete() && lock.still(seen));
        assert!(lock.try_lock(seen).is_none());
    }
}
