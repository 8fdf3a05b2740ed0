//! How the memory for reads is shared between cached records and cached blocks: by what each saves, which is found by trying. Every
//! so many misses the share of the records is moved a step, and if reads of the device per operation got more, the next
//! steps go the other way. Hot records that are spread over many blocks want much; scans, and records that are hot together, want little.

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
/// Misses are looked at when so many have come, a power of two.
const LOOKED_AT: u64 = 1024;

/// The share, and the trial under way.
#[derive(Default)]
pub(crate) struct Balance {
    misses: AtomicU64,
    /// Misses at which the half under way ends.
    half_ends: AtomicU64,
    trial: Mutex<Trial>,
}

#[derive(Default)]
struct Trial {
    /// At the begin of the second half; none in the first.
    measured_from: Option<Figures>,
    /// Device reads in a million operations, in the last trial.
    last_cost: Option<u64>,
    downwards: bool,
}

#[derive(Clone, Copy)]
struct Figures {
    reads: u64,
    operations: u64,
}

impl Balance {
    /// A get missed the records, or a scan began. `true` when [`Balance::is_due`] may have become so.
    #[inline]
    pub fn missed(&self) -> bool {
        let before = self.misses.fetch_add(1, Ordering::Relaxed);
        before & (LOOKED_AT - 1) == LOOKED_AT - 1 && self.is_due()
    }

    /// Whether [`Balance::step`] has something to do.
    pub fn is_due(&self) -> bool {
        self.misses.load(Ordering::Relaxed) >= self.half_ends.load(Ordering::Relaxed)
    }

    /// Ends half a trial, if it is over; whether it did.
    pub fn step(&self, core: &Core) -> bool {
        if !core.settings.record_cache || !self.is_due() {
            return false;
        }
        let reads = core.store.metrics().read;
        let now = Figures {
            reads: reads.get_reads + reads.scan_reads + reads.meta_reads,
            operations: core.counters.gets.get() + core.counters.scans.get(),
        };
        let share = self.trial.lock().half_over(now, core.records.share());
        core.records.set_share(share);
        let half = MISSES_MIN.max(core.records.target() / BYTES_A_MISS);
        let ends = self.misses.load(Ordering::Relaxed) + half;
        self.half_ends.store(ends, Ordering::Relaxed);
        true
    }
}

impl Trial {
    /// The share from here on.
    fn half_over(&mut self, now: Figures, share: u64) -> u64 {
        let Some(from) = self.measured_from.take() else {
            self.measured_from = Some(now);
            return share;
        };
        let operations = now.operations.saturating_sub(from.operations).max(1);
        let cost = now
            .reads
            .saturating_sub(from.reads)
            .saturating_mul(1_000_000)
            / operations;
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
        let mut now = Figures {
            reads: 0,
            operations: 0,
        };
        let mut shares = Vec::new();
        for _ in 0..60 {
            share = trial.half_over(now, share);
            now.reads += cost(share);
            now.operations += 1_000_000;
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
}
