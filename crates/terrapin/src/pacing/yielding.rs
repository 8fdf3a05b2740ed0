//! [`Turns`]: the writers that sleep and should be awake by now, so that another writer yields its
//! processor.
//!
//! A writer that sleeps for its pace wakes up behind the thread that computes on its processor.
//! While merges take the other processors, that thread is another writer. The system lets it
//! compute until it sleeps itself, or for milliseconds. A writer that sleeps therefore announces
//! its return. A writer that computes checks whether another one is overdue, and then naps
//! (decision 0011). The atomics are relaxed: a wrong guess costs a nap.

use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::{STRIPES, stripe};

/// A writer that is later than this is assumed to wait for a processor.
const OVERDUE_NS: u64 = 20_000;

/// The expected return of sleeping writers, each in the stripe of its thread. 0 if none sleeps.
/// Threads that share a stripe hide each other.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Turns([AtomicU64; STRIPES]);

/// Marks a writer as sleeping until dropped.
pub(crate) struct Asleep<'a>(&'a AtomicU64);

impl Turns {
    /// Notes that the calling thread goes to sleep and should be awake at `at_ns`.
    pub fn sleep_until(&self, at_ns: u64) -> Asleep<'_> {
        let back_ns = &self.0[stripe()];
        back_ns.store(at_ns.max(1), Ordering::Relaxed);
        Asleep(back_ns)
    }

    /// Whether some thread should have been awake for a while. Each sleep is reported once: if one
    /// nap does not help, more naps will not.
    #[inline]
    pub fn is_any_overdue(&self, now_ns: impl FnOnce() -> u64) -> bool {
        self.0
            .iter()
            .any(|back_ns| back_ns.load(Ordering::Relaxed) != 0)
            && self.take_overdue(now_ns())
    }

    fn take_overdue(&self, now_ns: u64) -> bool {
        let mut overdue = false;
        for back_ns in &self.0 {
            let at_ns = back_ns.load(Ordering::Relaxed);
            if at_ns != 0 && at_ns.saturating_add(OVERDUE_NS) < now_ns {
                // The thread may have begun another sleep meanwhile. That sleep is then forgotten.
                back_ns.store(0, Ordering::Relaxed);
                overdue = true;
            }
        }
        overdue
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_counts_as_overdue_once_and_only_after_a_delay() {
        let turns = Turns::default();
        assert!(!turns.is_any_overdue(|| u64::MAX));
        let asleep = turns.sleep_until(1_000_000);
        assert!(!turns.is_any_overdue(|| 1_000_000));
        assert!(!turns.is_any_overdue(|| 1_000_000 + OVERDUE_NS));
        assert!(turns.is_any_overdue(|| 1_000_001 + OVERDUE_NS));
        assert!(!turns.is_any_overdue(|| u64::MAX), "reported before");
        drop(asleep);
        drop(turns.sleep_until(1_000_000));
        assert!(!turns.is_any_overdue(|| u64::MAX), "awake again");
    }

    #[test]
    fn each_thread_is_reported() {
        let turns = Turns::default();
        let _late = turns.sleep_until(9_000_000);
        std::thread::scope(|scope| {
            let early = scope.spawn(|| std::mem::forget(turns.sleep_until(1_000)));
            early.join().unwrap();
        });
        assert!(turns.is_any_overdue(|| 1_000_000));
        assert!(turns.is_any_overdue(|| 10_000_000));
    }
}
