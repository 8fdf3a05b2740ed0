//! Whose turn it is among writers that share processors. A writer that sleeps for its pace wakes up
//! behind whoever computes on its processor: with merges on the others that is another writer, and
//! the system lets it compute until it sleeps itself, or for milliseconds. So who sleeps says when
//! it will be back, and who computes looks whether somebody should have been long ago, and then
//! gives its processor away. A guess from relaxed atomics: a wrong one costs a nap.

use terrapin_base::sync::{AtomicU64, Ordering};

use terrapin_base::{STRIPES, stripe};

/// Later than expected by so much, a writer is taken for one that wants a processor and has none.
const OVERDUE_NS: u64 = 20_000;

/// When writers that sleep are expected back, each in its thread's place; 0 where nobody sleeps.
/// Threads that share a place hide each other.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Turns([AtomicU64; STRIPES]);

/// A writer that sleeps, until this is dropped.
pub(crate) struct Asleep<'a>(&'a AtomicU64);

impl Turns {
    /// The calling thread is going to sleep, and should be awake again at that time.
    pub fn sleep_until(&self, at_ns: u64) -> Asleep<'_> {
        let place = &self.0[stripe()];
        place.store(at_ns.max(1), Ordering::Relaxed);
        Asleep(place)
    }

    /// Whether some thread should have been awake a while ago. Says so once of each sleep, since
    /// one nap is what helps, if that does.
    #[inline]
    pub fn is_somebody_overdue(&self, now_ns: impl FnOnce() -> u64) -> bool {
        self.0
            .iter()
            .any(|place| place.load(Ordering::Relaxed) != 0)
            && self.take_overdue(now_ns())
    }

    fn take_overdue(&self, now_ns: u64) -> bool {
        let mut overdue = false;
        for place in &self.0 {
            let at_ns = place.load(Ordering::Relaxed);
            if at_ns != 0 && at_ns.saturating_add(OVERDUE_NS) < now_ns {
                // It may have begun another sleep meanwhile, of which nobody is told then.
                place.store(0, Ordering::Relaxed);
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
    fn a_sleeper_is_overdue_once_and_a_while_after_it_should_be_awake() {
        let turns = Turns::default();
        assert!(!turns.is_somebody_overdue(|| u64::MAX));
        let asleep = turns.sleep_until(1_000_000);
        assert!(!turns.is_somebody_overdue(|| 1_000_000));
        assert!(!turns.is_somebody_overdue(|| 1_000_000 + OVERDUE_NS));
        assert!(turns.is_somebody_overdue(|| 1_000_001 + OVERDUE_NS));
        assert!(!turns.is_somebody_overdue(|| u64::MAX), "told before");
        drop(asleep);
        drop(turns.sleep_until(1_000_000));
        assert!(!turns.is_somebody_overdue(|| u64::MAX), "awake again");
    }

    #[test]
    fn each_thread_is_waited_for() {
        let turns = Turns::default();
        let _late = turns.sleep_until(9_000_000);
        std::thread::scope(|scope| {
            let early = scope.spawn(|| std::mem::forget(turns.sleep_until(1_000)));
            early.join().unwrap();
        });
        assert!(turns.is_somebody_overdue(|| 1_000_000));
        assert!(turns.is_somebody_overdue(|| 10_000_000));
    }
}
