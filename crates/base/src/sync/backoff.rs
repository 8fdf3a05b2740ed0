//! How to wait for another thread that is about to finish something that takes nanoseconds.
//!
//! It spins, for as long as such a thing takes while its thread runs. When it takes longer the
//! other thread has lost its processor, and one that spins only keeps it from getting another: so
//! this one sleeps for a moment, again and again. Yielding is no way to do that: Linux takes a
//! whole slice from who yields, each time, and does not let it run again, whatever it does by then,
//! before threads of lower priority had what that is worth to them (measured: writers that had
//! yielded for each other while merges ran were later off the processor for 37 and 90 ms at once).

use super::{nap, spin_loop};

/// Rounds of spinning before the first nap: a few microseconds. Each round is a point of its own
/// for a model checker, so few there.
const SPINS: u32 = if cfg!(terrapin_shuttle) { 4 } else { 256 };

/// See the head of this file.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    /// One round of waiting, after which to look again.
    #[inline]
    pub fn pause(&mut self) {
        if self.spin() {
            return;
        }
        nap();
    }

    /// One round of spinning; false without it once that has gone on for too long to be worth it:
    /// for who has something better to sleep on.
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
    fn spinning_ends_and_pausing_goes_on() {
        let mut backoff = Backoff::default();
        let spins = std::iter::from_fn(|| backoff.spin().then_some(()));
        assert_eq!(spins.count(), SPINS as usize);
        backoff.pause();
        assert!(!backoff.spin());
    }
}
