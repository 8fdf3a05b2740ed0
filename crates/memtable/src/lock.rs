//! A node's version lock: writers exclude each other and make readers look again; readers write
//! nothing.
//!
//! It is the seqlock of optimistic lock coupling (Leis et al., "The ART of Practical
//! Synchronization", 2016, §3): one word of {version, obsolete, locked}. A reader takes the version
//! while unlocked, reads, and asks whether the version still stands; every field so read is an
//! atomic, so that a read that loses the race is merely discarded.
//!
//! Ordering. A writer's lock (`try_lock`: CAS, then a release fence) precedes its relaxed stores to
//! the node. A reader that saw one of those stores meets that fence with the acquire fence in
//! `still`, hence sees the lock word changed and discards. A writer's `unlock` is a release store
//! which the next `read` acquires.
//!
//! An obsolete node has been replaced by a larger copy. It stays as it was when it was replaced,
//! for ever: readers that are still inside may go on (see `memtable`), writers must start again.

use terrapin_base::sync::{AtomicU64, Backoff, Ordering, atomic::fence};

const LOCKED: u64 = 1;
const OBSOLETE: u64 = 2;
const STEP: u64 = 4;

/// What a reader saw of a lock, to be validated with [`VersionLock::still`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u64);

impl Version {
    /// Whether the node had been replaced.
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

    /// The version, once no writer is inside. Waits for a writer, which holds the lock for tens of
    /// nanoseconds and never waits for anything itself.
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

    /// Whether everything read since `version` was taken is one consistent state.
    #[inline]
    pub(crate) fn still(&self, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version.0
    }

    /// Locks if nothing changed since `version` was taken and the node is live. Never waits.
    #[inline]
    pub(crate) fn try_lock(&self, version: Version) -> Option<Held<'_>> {
        if version.obsolete() {
            return None;
        }
        let locked = version.0 | LOCKED;
        self.0
            .compare_exchange(version.0, locked, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        fence(Ordering::Release);
        Some(Held {
            lock: self,
            next: version.0 + STEP,
        })
    }
}

/// A locked node; unlocked on drop under a new version.
pub(crate) struct Held<'a> {
    lock: &'a VersionLock,
    next: u64,
}

impl Held<'_> {
    /// Unlocks as if nothing had happened, which must be so.
    pub(crate) fn cancel(mut self) {
        self.next -= STEP;
    }

    /// Unlocks for good: the node has been replaced.
    pub(crate) fn retire(mut self) {
        self.next |= OBSOLETE;
    }
}

impl Drop for Held<'_> {
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
        let held = lock.try_lock(seen).expect("nobody else");
        assert!(!lock.still(seen), "a writer is inside");
        assert!(lock.try_lock(seen).is_none());
        held.cancel();
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
