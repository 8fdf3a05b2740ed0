//! [`CacheSplit`]: the division of memory between cached records and cached blocks, by what the
//! oldest quarter of each cache saves.
//!
//! A *rescue* is the first use of a record or block in the oldest quarter of its cache. That use
//! would have been a miss if the cache were a quarter smaller. At each look, memory moves one step
//! to the cache with more rescues per byte (decision 0009).
//!
//! - A record's rescue saves a read only if its block is not cached. Rescues of records therefore
//!   count by the share of block lookups that miss. They count a little less, since every record
//!   costs a fill.
//! - Hot records that are spread over many blocks move memory to the records. Requests without
//!   favourites, ranges, and records that are hot together move it to the blocks.
//! - The interval between looks is a number of misses, not a time. The misses between two looks are
//!   enough to fill the memory that one step frees.
//!
//! A warm-up sets the share itself and holds it while it runs ([`CacheSplit::hold`]).
//!
//! Invariant: the records' share stays between 50 ‰ and 850 ‰, or what a warm-up set above that.

use terrapin_base::STRIPES;
use terrapin_base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use crate::metrics::Counter;
use crate::planning::workload::{GETS_A_RANGE, ReadKind};

/// The records' share at the open, in thousandths.
pub(crate) const FIRST_PERMILLE: u64 = 600;
const LEAST_PERMILLE: u64 = 50;
/// The records' share at most, unless a warm-up set it to more.
const MOST_PERMILLE: u64 = 850;
const STEP_PERMILLE: u64 = 25;
/// Steps at once where one side saves more than twice as much.
const STRIDE_STEPS: u64 = 3;
/// Steps at once if one side saves more than sixteen times as much and most reads are ranges. With
/// gets, users may just have turned to other records. Then old blocks are more useful than old
/// records for a while.
const LEAP_STEPS: u64 = 12;
/// Misses between two looks, at least.
const MISSES_MIN: u64 = 1024;
/// Each time that threads of one stripe have missed this often, they ask whether a look is due.
const MISSES_ASKED: u64 = MISSES_MIN / STRIPES as u64;
/// A miss brings in a block of about this size.
const BYTES_A_MISS: u64 = 4096;
/// With fewer rescues, the split does not change.
const RESCUES_MIN: u64 = 64;
/// The worth of a read that a record saves, relative to a read that a block saves. A record that a
/// get brings in costs several misses of the processor's cache. A block costs nothing beside its
/// read. If a byte saves as much on both sides, blocks get the memory.
const RECORD_WORTH: (u128, u128) = (3, 4);

/// When to look at the split, and what was seen at the last look.
#[derive(Default)]
pub(crate) struct CacheSplit {
    misses: Counter,
    /// Misses at the next look.
    next_look: AtomicU64,
    /// The caches' savings at the last look that moved or confirmed the split.
    last: Mutex<Saved>,
    held: AtomicBool,
}

/// What the caches have saved since the database was opened.
#[derive(Clone, Copy, Default)]
pub(crate) struct Saved {
    /// Rescues of records.
    pub records: u64,
    /// Rescues of blocks.
    pub blocks: u64,
    /// Lookups of blocks.
    pub block_lookups: u64,
    /// Lookups of blocks that found none.
    pub block_misses: u64,
}

/// The sizes of the caches, and the kind of reads.
#[derive(Clone, Copy)]
pub(crate) struct Caches {
    /// The records' share, in thousandths.
    pub records_permille: u64,
    pub record_bytes: u64,
    /// Bytes that the records may take.
    pub record_target_bytes: u64,
    pub block_bytes: u64,
    /// The most frequent kind of reads.
    pub reads: ReadKind,
}

impl CacheSplit {
    /// A get found no cached record. Returns whether [`CacheSplit::is_due`] may have become true.
    #[inline]
    pub fn missed(&self) -> bool {
        self.count(1)
    }

    /// A range began. Returns what [`CacheSplit::missed`] does.
    pub fn ranged(&self) -> bool {
        self.count(GETS_A_RANGE)
    }

    #[inline]
    fn count(&self, misses: u64) -> bool {
        let before = self.misses.add_to_own(misses);
        before / MISSES_ASKED != (before + misses) / MISSES_ASKED && self.is_due()
    }

    /// Holds the share, or releases it.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether [`CacheSplit::look`] is due.
    pub fn is_due(&self) -> bool {
        self.misses.get() >= self.next_look.load(Ordering::Relaxed)
    }

    /// Compares what the caches saved. Returns the records' new share in thousandths, or none while
    /// the share is held. `room_bytes` is the memory of both caches.
    pub fn look(&self, saved: Saved, caches: Caches, room_bytes: u64) -> Option<u64> {
        let permille = self.last.lock().next_permille(saved, caches);
        let step_bytes = room_bytes / 1000 * STEP_PERMILLE;
        let pause = MISSES_MIN.max(2 * step_bytes / BYTES_A_MISS);
        let next_look = self.misses.get().saturating_add(pause);
        self.next_look.store(next_look, Ordering::Relaxed);
        (!self.held.load(Ordering::Relaxed)).then_some(permille)
    }
}

impl Saved {
    /// The records' next share, after the savings since `self`, which becomes `now`.
    fn next_permille(&mut self, now: Saved, caches: Caches) -> u64 {
        let records = now.records.saturating_sub(self.records);
        let blocks = now.blocks.saturating_sub(self.blocks);
        if records + blocks < RESCUES_MIN {
            return caches.records_permille;
        }
        let lookups = now.block_lookups.saturating_sub(self.block_lookups);
        let misses = now.block_misses.saturating_sub(self.block_misses);
        // Without any lookup, all lookups count as misses.
        let (misses, lookups) = (misses.min(lookups) + 1, lookups + 1);
        *self = now;
        // Rescues per byte, both multiplied by the product of the bytes.
        let (worth, of) = RECORD_WORTH;
        let records = u128::from(records) * u128::from(caches.block_bytes.max(1)) / of
            * worth
            * u128::from(misses)
            / u128::from(lookups);
        let blocks = u128::from(blocks) * u128::from(caches.record_bytes.max(1));
        let (more, less) = (records.max(blocks), records.min(blocks));
        let steps = if more > 16 * less && caches.reads == ReadKind::Ranges {
            LEAP_STEPS
        } else if more > 2 * less {
            STRIDE_STEPS
        } else if more > less + less / 8 {
            1
        } else {
            0
        };
        let step = steps * STEP_PERMILLE;
        let next = if blocks > records {
            caches.records_permille.saturating_sub(step)
        } else if caches.record_bytes < caches.record_target_bytes / 8 * 7 {
            // The records have not filled their share yet.
            caches.records_permille
        } else {
            caches.records_permille + step
        };
        next.clamp(LEAST_PERMILLE, MOST_PERMILLE.max(caches.records_permille))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches(records_permille: u64, record_target_bytes: u64) -> Caches {
        Caches {
            records_permille,
            record_bytes: records_permille,
            record_target_bytes,
            block_bytes: 1000 - records_permille,
            reads: ReadKind::Gets,
        }
    }

    fn saved(records: u64, blocks: u64) -> Saved {
        Saved {
            records,
            blocks,
            ..Saved::default()
        }
    }

    /// The share after a hundred looks. `records` and `blocks` return the rescues between two looks
    /// for a cache of a given size in bytes.
    fn settled(records: impl Fn(u64) -> u64, blocks: impl Fn(u64) -> u64, first: u64) -> u64 {
        let (mut last, mut now, mut permille) = (Saved::default(), Saved::default(), first);
        for _ in 0..100 {
            now.records += records(permille);
            now.blocks += blocks(1000 - permille);
            permille = last.next_permille(now, caches(permille, permille));
        }
        permille
    }

    #[test]
    fn memory_goes_where_a_byte_saves_more() {
        for first in [LEAST_PERMILLE, FIRST_PERMILLE, MOST_PERMILLE] {
            assert_eq!(settled(|r| 3 * r, |b| b, first), MOST_PERMILLE);
            assert_eq!(settled(|r| r, |b| 3 * b, first), LEAST_PERMILLE);
            // Rescues per byte fall as a cache grows: 60,000 / bytes² against 30,000 / bytes².
            let share = settled(|r| 60_000_000 / r, |b| 30_000_000 / b, first);
            assert!((540..=640).contains(&share), "{share}");
        }
    }

    #[test]
    fn records_whose_blocks_are_cached_save_nothing() {
        let next = |block_misses| {
            let now = Saved {
                block_lookups: 1000,
                block_misses,
                ..saved(600, 400)
            };
            Saved::default().next_permille(now, caches(500, 500))
        };
        let why = "three quarters of 600 are not far above 400";
        assert_eq!(next(1000), 500, "{why}");
        assert_eq!(next(500), 475);
        assert_eq!(next(100), 425);
    }

    #[test]
    fn few_rescues_change_nothing() {
        let mut last = Saved::default();
        let gets = caches(600, 600);
        assert_eq!(last.next_permille(saved(0, RESCUES_MIN - 1), gets), 600);
        let ranges = Caches {
            reads: ReadKind::Ranges,
            ..gets
        };
        let from_start = |saved, caches| Saved::default().next_permille(saved, caches);
        assert_eq!(from_start(saved(0, RESCUES_MIN), ranges), 300, "a leap");
        assert_eq!(from_start(saved(14, 100), ranges), 525, "fourteen times");
        assert_eq!(
            last.next_permille(saved(0, RESCUES_MIN), gets),
            525,
            "a sum"
        );
        // Equal savings per byte on both sides, weighed by their worth.
        assert_eq!(last.next_permille(saved(800, RESCUES_MIN + 400), gets), 600);
        let filling = caches(600, 1200);
        assert_eq!(last.next_permille(saved(10_000, 500), filling), 600);
    }

    #[test]
    fn a_held_share_stays_while_looks_continue() {
        let split = CacheSplit::default();
        assert!(split.is_due());
        split.hold(true);
        assert_eq!(split.look(saved(0, 1000), caches(600, 600), 0), None);
        assert!(!split.is_due(), "not before {MISSES_MIN} misses");
        split.misses.add(MISSES_MIN);
        assert!(split.is_due());
        split.hold(false);
        let next = split.look(saved(0, 2000), caches(600, 600), 0);
        assert_eq!(next, Some(525));
    }
}
