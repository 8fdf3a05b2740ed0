//! How the memory for reads is shared between cached records and cached blocks: by what the oldest
//! quarter of each saves. A record or block that lies there and is used for the first time would be
//! gone already, were its cache a quarter smaller (a *rescue*); memory goes to the cache whose
//! oldest quarter has more rescues a byte, a step at a time. A record's rescue saves a read only
//! where its block is not cached, so as few of them count as lookups of blocks are in vain; and a
//! little less, since records cost a fill each.
//!
//! Hot records that are spread over many blocks bring the records much; requests that know no
//! favourites, scans, and records that are hot together bring the blocks more. Nothing is tried out
//! and no clock is looked at: looks are counted in misses, so many that what a step makes room for
//! can come in between.

use terrapin_base::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use terrapin_base::{Purpose, STRIPES};

use crate::engine::core::Core;
use crate::metrics::Counter;

/// The records' share to begin with, in thousandths.
pub(crate) const FIRST_PERMILLE: u64 = 600;
const LEAST_PERMILLE: u64 = 50;
/// And at most, unless it was set to more: see [`crate::memory::warm_up`].
const MOST_PERMILLE: u64 = 850;
const STEP_PERMILLE: u64 = 25;
/// Where one side saves more than twice as much, steps are so many times as long.
const STRIDE: u64 = 3;
/// And where it saves more than sixteen times as much and mostly ranges are asked for, so many
/// times. With gets it may be that what is read has just become something else, and then old blocks
/// are of more use than old records for a while.
const LEAP: u64 = 12;
/// Misses between two looks, at least.
const MISSES_MIN: u64 = 1024;
/// Whenever so many have come from threads of one stripe it is asked whether a look is due.
const MISSES_ASKED: u64 = MISSES_MIN / STRIPES as u64;
/// A miss brings in a block of so many bytes.
const BYTES_A_MISS: u64 = 4096;
/// A range counts as so many misses: it reads several blocks.
pub(crate) const RANGE_MISSES: u64 = 4;
/// Fewer rescues say nothing.
const RESCUES_MIN: u64 = 64;
/// What a read saved by a record is worth of one saved by a block: each record that a get brings in
/// costs several cache misses, a block nothing beside its read. Where a byte saves as much on both
/// sides, with requests that know no favourites, blocks have the memory.
const RECORD_WORTH: (u128, u128) = (3, 4);

/// The share, and what was seen when it was looked at last.
#[derive(Default)]
pub(crate) struct Balance {
    misses: Counter,
    /// Misses at which to look again.
    next_look: AtomicU64,
    last: Mutex<Last>,
    held: AtomicBool,
}

/// What had been counted at the last look, and of rescues at the last that told something.
#[derive(Default)]
struct Last {
    misses: u64,
    ranges: u64,
    rescues: Rescues,
}

#[derive(Clone, Copy, Default)]
struct Rescues {
    records: u64,
    blocks: u64,
    /// Lookups of blocks, and those of them that were in vain.
    lookups: u64,
    in_vain: u64,
}

/// What the caches hold.
#[derive(Clone, Copy)]
struct Held {
    share: u64,
    record_bytes: u64,
    /// What the records may come to.
    record_target: u64,
    block_bytes: u64,
    /// Mostly ranges were asked for since the last look.
    ranged: bool,
}

impl Balance {
    /// A get missed the records. `true` when [`Balance::is_due`] may have become so.
    #[inline]
    pub fn missed(&self) -> bool {
        self.count(1)
    }

    /// A range began; as [`Balance::missed`].
    pub fn ranged(&self) -> bool {
        self.count(RANGE_MISSES)
    }

    #[inline]
    fn count(&self, misses: u64) -> bool {
        let before = self.misses.add_to_own(misses);
        before / MISSES_ASKED != (before + misses) / MISSES_ASKED && self.is_due()
    }

    /// From here on the share stays as it is, or follows what is seen again.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether [`Balance::step`] has something to do.
    pub fn is_due(&self) -> bool {
        self.misses.get() >= self.next_look.load(Ordering::Relaxed)
    }

    /// Looks at what was saved, if it is time to; whether it was.
    pub fn step(&self, core: &Core) -> bool {
        if !core.settings.record_cache || !self.is_due() {
            return false;
        }
        let (misses, ranges) = (self.misses.get(), core.counters.scans.get());
        let mut last = self.last.lock();
        let ranged = RANGE_MISSES * ranges.saturating_sub(last.ranges);
        let held = Held {
            share: core.records.share(),
            record_bytes: core.records.bytes(),
            record_target: core.records.target(),
            block_bytes: core.budget.used(Purpose::Blocks),
            ranged: 2 * ranged > misses.saturating_sub(last.misses),
        };
        let store = core.store.metrics();
        let now = Rescues {
            records: core.records.rescues(),
            blocks: store.block_rescues,
            lookups: store.hits.blocks + store.misses.blocks,
            in_vain: store.misses.blocks,
        };
        (last.misses, last.ranges) = (misses, ranges);
        let share = last.rescues.look(now, held);
        if !self.held.load(Ordering::Relaxed) {
            core.records.set_share(share);
        }
        let step_bytes = core.budget.room_for_data() / 1000 * STEP_PERMILLE;
        let pause = MISSES_MIN.max(2 * step_bytes / BYTES_A_MISS);
        self.next_look.store(misses + pause, Ordering::Relaxed);
        true
    }
}

impl Rescues {
    /// The share from here on.
    fn look(&mut self, now: Rescues, held: Held) -> u64 {
        let records = now.records.saturating_sub(self.records);
        let blocks = now.blocks.saturating_sub(self.blocks);
        if records + blocks < RESCUES_MIN {
            return held.share;
        }
        let lookups = now.lookups.saturating_sub(self.lookups);
        let in_vain = now.in_vain.saturating_sub(self.in_vain).min(lookups);
        // All of them where no block was asked for.
        let (in_vain, lookups) = (in_vain + 1, lookups + 1);
        *self = now;
        // Rescues a byte, both times the product of the bytes; of records those whose block is not
        // cached, by what they are worth.
        let (worth, of) = RECORD_WORTH;
        let records = u128::from(records) * u128::from(held.block_bytes.max(1)) / of
            * worth
            * u128::from(in_vain)
            / u128::from(lookups);
        let blocks = u128::from(blocks) * u128::from(held.record_bytes.max(1));
        let (more, less) = (records.max(blocks), records.min(blocks));
        let step = if more > 16 * less && held.ranged {
            LEAP * STEP_PERMILLE
        } else if more > 2 * less {
            STRIDE * STEP_PERMILLE
        } else if more > less + less / 8 {
            STEP_PERMILLE
        } else {
            0
        };
        let next = if blocks > records {
            held.share.saturating_sub(step)
        } else if held.record_bytes < held.record_target / 8 * 7 {
            // What they may have already is still coming in.
            held.share
        } else {
            held.share + step
        };
        next.clamp(LEAST_PERMILLE, MOST_PERMILLE.max(held.share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the share comes to when a thousand bytes of memory bring rescues as `records` and
    /// `blocks` say of their own bytes.
    fn settled(records: impl Fn(u64) -> u64, blocks: impl Fn(u64) -> u64, first: u64) -> u64 {
        let (mut last, mut now, mut share) = (Rescues::default(), Rescues::default(), first);
        for _ in 0..100 {
            let (record_bytes, block_bytes) = (share, 1000 - share);
            now.records += records(record_bytes);
            now.blocks += blocks(block_bytes);
            let held = Held {
                share,
                record_bytes,
                record_target: record_bytes,
                block_bytes,
                ranged: false,
            };
            share = last.look(now, held);
        }
        share
    }

    #[test]
    fn memory_goes_where_a_byte_saves_more() {
        for first in [LEAST_PERMILLE, FIRST_PERMILLE, MOST_PERMILLE] {
            // Every byte of records saves 3, of blocks 1: whatever there is, and the other way
            // round.
            assert_eq!(settled(|r| 3 * r, |b| b, first), MOST_PERMILLE);
            assert_eq!(settled(|r| r, |b| 3 * b, first), LEAST_PERMILLE);
            // Rescues a byte fall as a cache grows: 60,000 / bytes² against 30,000 / bytes².
            let share = settled(|r| 60_000_000 / r, |b| 30_000_000 / b, first);
            assert!((540..=640).contains(&share), "{share}");
        }
    }

    #[test]
    fn records_whose_blocks_are_cached_save_nothing() {
        let look = |in_vain| {
            let now = Rescues {
                records: 600,
                blocks: 400,
                lookups: 1000,
                in_vain,
            };
            let held = Held {
                share: 500,
                record_bytes: 500,
                record_target: 500,
                block_bytes: 500,
                ranged: false,
            };
            Rescues::default().look(now, held)
        };
        assert_eq!(
            look(1000),
            500,
            "three quarters of 600 are not far above 400"
        );
        assert_eq!(look(500), 475);
        assert_eq!(look(100), 425);
    }

    #[test]
    fn what_says_little_changes_nothing() {
        let mut last = Rescues::default();
        let held = Held {
            share: 600,
            record_bytes: 600,
            record_target: 600,
            block_bytes: 400,
            ranged: false,
        };
        let look = |last: &mut Rescues, records, blocks, held| {
            last.look(
                Rescues {
                    records,
                    blocks,
                    ..Rescues::default()
                },
                held,
            )
        };
        assert_eq!(look(&mut last, 0, RESCUES_MIN - 1, held), 600);
        let ranged = Held {
            ranged: true,
            ..held
        };
        let fresh = Rescues::default;
        assert_eq!(look(&mut fresh(), 0, RESCUES_MIN, ranged), 300, "a leap");
        assert_eq!(
            look(&mut fresh(), 14, 100, ranged),
            525,
            "fourteen times as much"
        );
        assert_eq!(look(&mut last, 0, RESCUES_MIN, held), 525, "they add up");
        // As much a byte on both sides, for what it is worth.
        assert_eq!(look(&mut last, 800, RESCUES_MIN + 400, held), 600);
        let filling = Held {
            record_target: 1200,
            ..held
        };
        assert_eq!(look(&mut last, 10_000, 500, filling), 600);
    }
}
