//! How the memory for reads is shared between cached records and cached blocks: by what each saves, which is found by trying. Every
//! so many misses the share of the records is moved a step, and if reads of the device per operation got more, the next
//! steps go the other way. Hot records that are spread over many blocks want much, and records that are hot together want little.
//!
//! Ranges never ask cached records, so what they want need not be tried: while hardly anything but ranges is read, the records give up half as
//! many bytes as ranges had to read, and when gets come back, the share is what it was. Both follow what is read, not the
//! clock: a large cache of hot records outlasts a burst of ranges, a small one makes room within a moment.

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};

use crate::core::Core;

/// The records' share to begin with, in thousandths.
pub(crate) const FIRST_PERMILLE: u64 = 600;
const LEAST_PERMILLE: u64 = 50;
const MOST_PERMILLE: u64 = 850;
const STEP_PERMILLE: u64 = 50;
/// Misses of half a trial: at least so many, and one for so many bytes of records, so that what a step makes room for is filled in the first half.
const MISSES_MIN: u64 = 2048;
const BYTES_A_MISS: u64 = 1024;
/// What is read is looked at when so many misses have come.
const LOOKED_AT: u64 = 1024;
/// A range counts as so many misses: it reads several blocks.
const RANGE_MISSES: u64 = 4;
/// Fewer than one get among so many reads do not count.
const READS_A_GET: u64 = 8;

/// The share, and the trial under way.
#[derive(Default)]
pub(crate) struct Balance {
    misses: AtomicU64,
    /// Misses at which to look again.
    next_look: AtomicU64,
    looks: Mutex<Looks>,
}

/// What was seen so far.
#[derive(Default)]
struct Looks {
    last: Figures,
    /// The share before ranges took from it.
    before_ranges: Option<u64>,
    /// Misses at which the half under way ends.
    half_ends: u64,
    trial: Trial,
}

#[derive(Default)]
struct Trial {
    /// At the begin of the second half; none in the first.
    measured_from: Option<Figures>,
    /// Device reads in a million operations, in the last trial.
    last_cost: Option<u64>,
    downwards: bool,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    reads: u64,
    range_bytes: u64,
    gets: u64,
    ranges: u64,
}

impl Figures {
    /// What came after others.
    fn since(&self, from: &Figures) -> Figures {
        Figures {
            reads: self.reads.saturating_sub(from.reads),
            range_bytes: self.range_bytes.saturating_sub(from.range_bytes),
            gets: self.gets.saturating_sub(from.gets),
            ranges: self.ranges.saturating_sub(from.ranges),
        }
    }

    fn operations(&self) -> u64 {
        self.gets + self.ranges
    }
}

/// What the records hold, and of how much.
#[derive(Clone, Copy)]
struct Held {
    share: u64,
    target_bytes: u64,
    /// Bytes of a thousandth.
    permille_bytes: u64,
}

/// What [`Balance::step`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// It was not time to look.
    NotYet,
    /// It was.
    Now,
    /// It was, and half a trial is over.
    HalfOver,
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
        let before = self.misses.fetch_add(misses, Ordering::Relaxed);
        before / LOOKED_AT != (before + misses) / LOOKED_AT && self.is_due()
    }

    /// Whether [`Balance::step`] has something to do.
    pub fn is_due(&self) -> bool {
        self.misses.load(Ordering::Relaxed) >= self.next_look.load(Ordering::Relaxed)
    }

    /// Looks at what was read, if it is time to.
    pub fn step(&self, core: &Core) -> Looked {
        if !core.settings.record_cache || !self.is_due() {
            return Looked::NotYet;
        }
        let read = core.store.metrics().read;
        let now = Figures {
            reads: read.get_reads + read.scan_reads + read.meta_reads,
            range_bytes: read.scan_bytes,
            gets: core.counters.gets.get(),
            ranges: core.counters.scans.get(),
        };
        let held = Held {
            share: core.records.share(),
            target_bytes: core.records.target(),
            permille_bytes: core.budget.room_beside_writes() / 1000,
        };
        let misses = self.misses.load(Ordering::Relaxed);
        let (share, half_over) = self.looks.lock().look(now, misses, held);
        core.records.set_share(share);
        self.next_look.store(misses + LOOKED_AT, Ordering::Relaxed);
        match half_over {
            true => Looked::HalfOver,
            false => Looked::Now,
        }
    }
}

impl Looks {
    /// The share from here on, and whether half a trial is over.
    fn look(&mut self, now: Figures, misses: u64, held: Held) -> (u64, bool) {
        let since = now.since(&self.last);
        self.last = now;
        let half_over = misses >= self.half_ends;
        if half_over {
            self.half_ends = misses + MISSES_MIN.max(held.target_bytes / BYTES_A_MISS);
        }
        let share = if since.gets < since.operations() / READS_A_GET {
            self.before_ranges.get_or_insert(held.share);
            self.trial.measured_from = None;
            let wanted = since.range_bytes / 2 / held.permille_bytes.max(1);
            let left = held.share.saturating_sub(wanted.min(held.share / 2));
            left.max(LEAST_PERMILLE)
        } else {
            let share = self.before_ranges.take().unwrap_or(held.share);
            match half_over {
                true => self.trial.half_over(now, share),
                false => share,
            }
        };
        (share, half_over)
    }
}

impl Trial {
    /// The share from here on.
    fn half_over(&mut self, now: Figures, share: u64) -> u64 {
        let Some(from) = self.measured_from.take() else {
            self.measured_from = Some(now);
            return share;
        };
        let since = now.since(&from);
        let cost = since.reads.saturating_mul(1_000_000) / since.operations().max(1);
        if self.last_cost.is_some_and(|last| cost > last) {
            self.downwards = !self.downwards;
        }
        self.last_cost = Some(cost);
        let next = if self.downwards {
            share.saturating_sub(STEP_PERMILLE)
        } else {
            share + STEP_PERMILLE
        };
        if !(LEAST_PERMILLE..=MOST_PERMILLE).contains(&next) {
            self.downwards = !self.downwards;
        }
        next.clamp(LEAST_PERMILLE, MOST_PERMILLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trials in which a million operations read what `cost` says of the share; the shares of the last twenty.
    fn shares(cost: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut trial, mut share) = (Trial::default(), FIRST_PERMILLE);
        let mut now = Figures::default();
        let mut shares = Vec::new();
        for _ in 0..60 {
            share = trial.half_over(now, share);
            now.reads += cost(share);
            now.gets += 1_000_000;
            share = trial.half_over(now, share);
            shares.push(share);
        }
        shares.split_off(40)
    }

    #[test]
    fn the_share_stays_about_where_reads_are_fewest() {
        for best in [50, 300, 600, 850] {
            let shares = shares(|share| 1000 + share.abs_diff(best));
            let near = shares.iter().all(|share| share.abs_diff(best) <= 100);
            assert!(near, "{best}: {shares:?}");
        }
    }

    #[test]
    fn it_turns_at_both_ends() {
        for shares in [shares(|share| share), shares(|share| 1000 - share)] {
            let within = |s: &u64| (LEAST_PERMILLE..=MOST_PERMILLE).contains(s);
            assert!(shares.iter().all(within), "{shares:?}");
            assert!(shares.windows(2).any(|pair| pair[0] != pair[1]));
        }
    }

    /// Looks, each after so many gets and ranges which read so many bytes each; the shares.
    fn looked(looks: &mut Looks, now: &mut Figures, share: u64, after: (u64, u64, u64)) -> u64 {
        now.gets += after.0;
        now.ranges += after.1;
        now.range_bytes += after.1 * after.2;
        let held = Held {
            share,
            target_bytes: share << 20,
            permille_bytes: 1 << 20,
        };
        looks.look(*now, now.operations(), held).0
    }

    #[test]
    fn ranges_alone_take_half_of_what_they_read_and_gets_have_it_back() {
        let (mut looks, mut now) = (Looks::default(), Figures::default());
        let mut share = looked(&mut looks, &mut now, FIRST_PERMILLE, (1, 0, 0));
        assert_eq!(share, FIRST_PERMILLE);
        share = looked(&mut looks, &mut now, share, (1, 256, 0));
        assert_eq!(share, FIRST_PERMILLE, "they were served by the cache");
        share = looked(&mut looks, &mut now, share, (1, 256, 256 << 10));
        assert_eq!(share, FIRST_PERMILLE - 32);
        share = looked(&mut looks, &mut now, share, (1, 256, 1 << 30));
        assert_eq!(share, (FIRST_PERMILLE - 32) / 2, "half of it at most");
        for _ in 0..10 {
            share = looked(&mut looks, &mut now, share, (1, 256, 1 << 30));
        }
        assert_eq!(share, LEAST_PERMILLE);
        share = looked(&mut looks, &mut now, share, (200, 56, 1 << 20));
        assert_eq!(share, FIRST_PERMILLE);
        share = looked(&mut looks, &mut now, share, (200, 56, 1 << 20));
        assert_eq!(share, FIRST_PERMILLE, "a trial takes longer");
    }
}
