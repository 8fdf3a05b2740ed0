//! [`Forecast`]: the time until a keyspace's sealed memtable is gone. The pace of writers follows
//! from it.
//!
//! A checkpoint has three stretches for a keyspace: *ahead* of its merge (the memtable is walked
//! over, other keyspaces are merged first), the *merge*, and *behind* it (catalog, syncs,
//! superblocks). The merge's progress says what is left of it. Of the other two, the last
//! checkpoint's time is expected. Until a checkpoint has shown what is behind a merge, a part of
//! the merge is expected. Relaxed atomics: a wrong guess costs a wait.

use terrapin_base::sync::{AtomicU64, Ordering};

const AHEAD: u64 = 1;
const MERGE: u64 = 2;
const BEHIND: u64 = 3;

/// Until a checkpoint has shown the time behind a merge, this part (1/n) of the merge is expected.
const BEHIND_PART: u64 = 8;

/// The stretches of one keyspace's checkpoints.
#[derive(Default)]
pub(crate) struct Forecast {
    /// The stretch that the sealed memtable is in; 0 while there is none.
    stretch: AtomicU64,
    /// When that stretch began.
    since_ns: AtomicU64,
    /// The merge's progress, and the total that it expects, in bytes.
    done: AtomicU64,
    total: AtomicU64,
    /// Nanoseconds that merges take per KiB of progress. 0 until one has run.
    ns_per_kib: AtomicU64,
    /// How long the last stretches ahead of a merge, in it, and behind it took.
    ahead_ns: AtomicU64,
    merge_ns: AtomicU64,
    behind_ns: AtomicU64,
}

impl Forecast {
    /// Notes that a memtable was sealed, or that its checkpoint failed and the next one begins.
    pub fn sealed(&self, now_ns: u64) {
        self.enter(AHEAD, now_ns);
    }

    /// Notes that the merge begins.
    pub fn merges(&self, now_ns: u64) {
        if self.stretch.load(Ordering::Relaxed) == AHEAD {
            self.ahead_ns
                .store(self.elapsed_ns(now_ns), Ordering::Relaxed);
        }
        self.enter(MERGE, now_ns);
    }

    /// Notes the merge's progress: bytes done, and the expected total.
    pub fn progress(&self, (done, total): (u64, u64), now_ns: u64) {
        self.total.store(total, Ordering::Relaxed);
        let last = self.done.swap(done.min(total), Ordering::Relaxed);
        // Until a thirty-second part is done, the last merge's speed counts.
        if done > total / 32 && done > last {
            let took = u128::from(self.elapsed_ns(now_ns));
            let per_kib = u64::try_from(took * 1024 / u128::from(done)).unwrap_or(u64::MAX);
            self.ns_per_kib.store(per_kib.max(1), Ordering::Relaxed);
        }
    }

    /// Notes that the merge is over.
    pub fn merged(&self, now_ns: u64) {
        if self.stretch.load(Ordering::Relaxed) == MERGE {
            self.merge_ns
                .store(self.elapsed_ns(now_ns), Ordering::Relaxed);
            self.enter(BEHIND, now_ns);
        }
    }

    /// Notes that the memtable is gone.
    pub fn released(&self, now_ns: u64) {
        if self.stretch.load(Ordering::Relaxed) == BEHIND {
            self.behind_ns
                .store(self.elapsed_ns(now_ns), Ordering::Relaxed);
        }
        self.enter(0, now_ns);
    }

    /// Nanoseconds until the sealed memtable is gone, as an estimate. 0 if none is sealed, or until
    /// a merge has run.
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        let get = |what: &AtomicU64| what.load(Ordering::Relaxed);
        // If a stretch takes longer than the last one, a further quarter is expected.
        let rest = |usual: u64| usual.saturating_sub(self.elapsed_ns(now_ns)).max(usual / 4);
        let behind = |merge_ns: u64| match get(&self.behind_ns) {
            0 => merge_ns / BEHIND_PART,
            known => known,
        };
        match get(&self.stretch) {
            AHEAD => {
                let merge_ns = get(&self.merge_ns);
                rest(get(&self.ahead_ns)) + merge_ns + behind(merge_ns)
            }
            MERGE => {
                let left = get(&self.total).saturating_sub(get(&self.done));
                let merge_ns = u128::from(left) * u128::from(get(&self.ns_per_kib)) / 1024;
                u64::try_from(merge_ns)
                    .unwrap_or(u64::MAX)
                    .saturating_add(behind(self.elapsed_ns(now_ns)))
            }
            BEHIND => rest(behind(get(&self.merge_ns))),
            _ => 0,
        }
    }

    /// The part of `bytes` that is still to be merged.
    pub fn left_of(&self, bytes: u64) -> u64 {
        match self.stretch.load(Ordering::Relaxed) {
            AHEAD => bytes,
            MERGE => {
                let total = self.total.load(Ordering::Relaxed).max(1);
                let left = total.saturating_sub(self.done.load(Ordering::Relaxed));
                (u128::from(bytes) * u128::from(left) / u128::from(total)) as u64
            }
            _ => 0,
        }
    }

    fn enter(&self, stretch: u64, now_ns: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.since_ns.store(now_ns, Ordering::Relaxed);
        self.stretch.store(stretch, Ordering::Relaxed);
    }

    fn elapsed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_checkpoint_and_the_progress_of_the_merge_make_the_forecast() {
        let forecast = Forecast::default();
        assert_eq!(forecast.left_ns(0), 0);
        forecast.sealed(1000);
        assert_eq!((forecast.left_ns(1000), forecast.left_of(50)), (0, 50));
        forecast.merges(1400);
        forecast.progress((0, 4096), 1400);
        forecast.progress((2048, 4096), 2400);
        let known = (forecast.left_ns(2400), forecast.left_of(50));
        assert_eq!(known, (1000 + 1000 / BEHIND_PART, 25));
        forecast.progress((4096, 4096), 3400);
        forecast.merged(3400);
        let known = (forecast.left_ns(3400), forecast.left_of(50));
        assert_eq!(known, (2000 / BEHIND_PART, 0));
        forecast.released(3600);
        assert_eq!(forecast.left_ns(3600), 0);

        forecast.sealed(5000);
        assert_eq!(forecast.left_ns(5100), 300 + 2000 + 200);
        assert_eq!(forecast.left_ns(9000), 100 + 2000 + 200, "overdue");
        forecast.merges(5400);
        forecast.progress((0, 8192), 5400);
        assert_eq!(forecast.left_ns(5400), 4000 + 200);
        forecast.merged(9400);
        assert_eq!(forecast.left_ns(9450), 150);
        assert_eq!(forecast.left_ns(10_000), 50, "overdue");
    }

    #[test]
    fn a_failed_checkpoint_restarts_the_forecast() {
        let forecast = Forecast::default();
        forecast.sealed(0);
        forecast.merges(100);
        forecast.progress((1024, 2048), 200);
        forecast.sealed(300);
        assert_eq!(forecast.left_of(10), 10);
        forecast.merges(500);
        forecast.progress((0, 2048), 500);
        assert_eq!(forecast.left_of(10), 10);
        assert_eq!(forecast.left_ns(500), 200);
    }
}
