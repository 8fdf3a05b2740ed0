//! The pace of a keyspace's writers while its sealed memtable is being merged: a virtual clock.
//!
//! Every byte written moves the clock on by (time until the sealed memtable is gone) / (room that
//! the active memtable still has). A writer that finds the clock ahead of the real one waits for
//! the difference. So the active memtable is full just when the merge ends.
//!
//! - Bytes are charged in pieces, for each thread separately: most writes touch only one counter of
//!   their own thread.
//! - A wait takes at least [`WAIT_NS_MIN`], so that it is worth a sleep. Shorter waits add up.
//! - The system wakes sleepers late. The mean lateness is subtracted from each requested sleep. The
//!   rest of the lateness is credited to the writes that follow.
//!
//! Races on the relaxed atomics cost a wait that is a little too long or too short.

use terrapin_base::sync::{AtomicU64, Ordering};

use crate::metrics::Counter;

/// A shorter wait is left to add up.
pub(crate) const WAIT_NS_MIN: u64 = 75_000;
/// One wait takes at most this long. Then the pace is computed anew.
pub(crate) const WAIT_NS_MAX: u64 = 5_000_000;
/// How far the virtual clock may be behind the real one: what a writer loses while it waits for a
/// processor that others may keep.
const CREDIT_NS: u64 = 5_000_000;
/// Sleepers are never expected to wake later than this.
const LATE_NS_MAX: u64 = 60_000;
const _: () = assert!(LATE_NS_MAX < WAIT_NS_MIN);
/// Bytes of a piece, unless a 64th of the memtable is less.
const PIECE_BYTES: u64 = 2 << 10;

/// The virtual clock of one keyspace.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes written.
    bytes: Counter,
    clock_ns: AtomicU64,
    /// A moving average of the lateness of wake-ups, in nanoseconds.
    late_ns: AtomicU64,
}

/// Bytes of a piece, for a memtable with this limit.
#[inline]
pub(crate) fn piece_bytes(memtable_bytes: u64) -> u64 {
    PIECE_BYTES.min(memtable_bytes / 64).max(1)
}

impl Pace {
    /// Counts bytes. Returns the number of pieces that they complete.
    #[inline]
    pub fn pieces(&self, bytes: u64, piece: u64) -> u64 {
        let before = self.bytes.add_to_own(bytes);
        (before + bytes) / piece - before / piece
    }

    /// Moves the clock on. Returns the end of a wait if the clock is so far ahead that a wait is
    /// worthwhile.
    pub fn charge(&self, cost_ns: u64, now_ns: u64) -> Option<u64> {
        let cost_ns = cost_ns.min(WAIT_NS_MAX);
        let next = |clock: u64| {
            clock.clamp(now_ns.saturating_sub(CREDIT_NS), now_ns + WAIT_NS_MAX) + cost_ns
        };
        let clock = self
            .clock_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |clock| {
                Some(next(clock))
            })
            .map_or(now_ns, next);
        let late_ns = self.late_ns();
        (clock > now_ns + WAIT_NS_MIN).then(|| clock.min(now_ns + WAIT_NS_MAX) - late_ns)
    }

    /// The mean lateness of wake-ups, in nanoseconds.
    pub fn late_ns(&self) -> u64 {
        self.late_ns.load(Ordering::Relaxed)
    }

    /// Notes that a wait ended later than asked for.
    pub fn late(&self, late_ns: u64) {
        let before = self.late_ns.load(Ordering::Relaxed);
        let after = before - before / 16 + late_ns.min(LATE_NS_MAX) / 16;
        self.late_ns.store(after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_the_clock_once_it_is_far_enough_ahead() {
        const NOW: u64 = 1_000_000_000;
        let pace = Pace::default();
        assert_eq!(
            pace.charge(1000, NOW),
            None,
            "credit of a writer that rested"
        );
        pace.clock_ns.store(NOW, Ordering::Relaxed);
        assert_eq!(pace.charge(WAIT_NS_MIN, NOW), None, "too short for a sleep");
        assert_eq!(pace.charge(1, NOW), Some(NOW + WAIT_NS_MIN + 1));
        assert_eq!(pace.charge(u64::MAX, NOW), Some(NOW + WAIT_NS_MAX));
        for _ in 0..100 {
            pace.late(1_000_000_000);
        }
        let late_ns = pace.late_ns();
        assert!(
            (LATE_NS_MAX / 2..=LATE_NS_MAX).contains(&late_ns),
            "{late_ns}"
        );
        assert_eq!(pace.charge(0, NOW), Some(NOW + WAIT_NS_MAX - late_ns));
    }

    #[test]
    fn bytes_complete_pieces_and_small_memtables_have_small_ones() {
        let pace = Pace::default();
        let piece = piece_bytes(1 << 30);
        assert_eq!(pace.pieces(piece - 1, piece), 0);
        assert_eq!(pace.pieces(1, piece), 1);
        assert_eq!(pace.pieces(5 * piece, piece), 5);
        assert_eq!((piece_bytes(64 << 10), piece_bytes(0)), (1 << 10, 1));
    }
}
