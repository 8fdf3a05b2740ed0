//! Waiting for another thread that needs only nanoseconds.
//!
//! The waiting thread spins first. If the wait takes long, the other thread has lost its processor,
//! and spinning only keeps that processor busy. So the waiting thread then sleeps repeatedly for a
//! moment.
//!
//! It does not yield. On Linux each yield costs the thread a whole slice, and threads of lower
//! priority run first. Measured: writers that yielded for each other during merges later lost the
//! processor for 37 and 90 ms at once.

use super::{nap, spin_loop};

/// Number of spins before the first sleep: a few microseconds. Each spin is a scheduling point of
/// the model checker, so its build has few.
const SPINS: u32 = if cfg!(terrapin_shuttle) { 4 } else { 256 };

/// The state of one wait: spins first, then short sleeps.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    /// Waits for a moment. The caller tests its condition again afterwards.
    #[inline]
    pub fn pause(&mut self) {
        if self.spin() {
            return;
        }
        nap();
    }

    /// Spins for a moment. Returns `false`, without a spin, after a few microseconds of spins. Then
    /// the caller sleeps in its own way.
    #[inline]
    pub fn spin(&mut self) -> bool {
        if self.0 == SPINS {
            return false;
        }
        self.0 += 1;
        spin_loop();
        true
    }
}

#[cfg(all(test, not(terrapin_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn spinning_ends_and_pausing_continues() {
        let mut backoff = Backoff::default();
        let spins = std::iter::from_fn(|| backoff.spin().then_some(()));
        assert_eq!(spins.count(), SPINS as usize);
        backoff.pause();
        assert!(!backoff.spin());
    }
}
