//! The job that has memtable memory ready before writers need it. Fresh memory takes the system a
//! tenth of a millisecond a chunk, and five where a hypervisor backs it on first use; so fast
//! writers get back what the last memtable left, and what they will want next is taken from the
//! system ahead of them, one chunk at least. But not where it takes so long: the job would keep the
//! processor from a writer until the next tick of the clock, chunk after chunk, where writers that
//! touch each page themselves lose microseconds.
//!
//! How much of either goes by the rate at which chunks are taken now: what is taken in [`AHEAD_NS`]
//! is stocked, and the pool keeps what is taken in [`KEEP_NS`], between an eighth of the budget and
//! what the memtables of a load take. Slow writers thus leave the memory to caches; with fast ones
//! the next memtable would take it from the caches at once. Where everything that is read is cached
//! beside the memtables, caches do not want it: the pool keeps all.

use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, Step};
use terrapin_memtable::Pool;

use crate::engine::core::{Core, POOL_SHARE};

/// How far ahead, in nanoseconds.
const AHEAD_NS: u64 = 50_000_000;
/// What the pool keeps lasts for so long.
const KEEP_NS: u64 = 1_000_000_000;
/// How long fast writers are remembered.
const FORGET_NS: u64 = 8_000_000_000;
/// A chunk that takes longer is one that a hypervisor backs as it is touched.
const SLOW_NS: u64 = 1_000_000;
/// So long the job leaves writers alone after such a chunk.
const REST_NS: u64 = 500_000_000;

/// Stocks the pool of memtable memory, a chunk a step.
pub(crate) struct Stock {
    core: Arc<Core>,
    demand: Demand,
    /// Until then writers take what they want themselves.
    rests_until_ns: u64,
}

/// How fast chunks are taken.
struct Demand {
    /// Chunks taken when last looked at, and when that was.
    taken: u64,
    looked_ns: u64,
    /// Nanoseconds between two chunks taken: faster is believed at once, slower by and by.
    interval_ns: u64,
    /// Chunks that the pool may keep.
    kept: u64,
}

impl Demand {
    fn new(taken: u64, now_ns: u64) -> Self {
        Demand {
            taken,
            looked_ns: now_ns,
            interval_ns: u64::MAX / 2,
            kept: 0,
        }
    }

    /// So many were taken by now; whether that is news.
    fn look(&mut self, taken: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        let Some(latest_ns) = passed_ns.checked_div(taken - self.taken) else {
            return false;
        };
        (self.taken, self.looked_ns) = (taken, now_ns);
        self.interval_ns = self.interval_ns.midpoint(latest_ns).min(latest_ns).max(1);
        // A writer that pauses for a moment is no slow one.
        let forgotten = u128::from(self.kept) * u128::from(passed_ns.min(FORGET_NS));
        let forgotten = forgotten.div_ceil(u128::from(FORGET_NS)) as u64;
        self.kept = (KEEP_NS / self.interval_ns).max(self.kept - forgotten);
        true
    }

    /// Chunks to have ready, once any was taken.
    fn ahead(&self) -> usize {
        let ahead = (AHEAD_NS / self.interval_ns).max(u64::from(self.taken > 0));
        usize::try_from(ahead).unwrap_or(usize::MAX)
    }
}

impl Stock {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Stock {
            core: core.clone(),
            demand: Demand::new(core.pool.taken(), core.env.now_ns()),
            rests_until_ns: 0,
        })
    }

    /// Takes a chunk from the system, unless there are enough and all of them are huge pages, or
    /// the last one took too long; whether it did.
    fn stock(&mut self) -> bool {
        let since = self.core.env.now_ns();
        if since < self.rests_until_ns {
            return false;
        }
        let pool = &self.core.pool;
        let stocked = pool.stock(self.demand.ahead()) || pool.enlarge_one();
        let now = self.core.env.now_ns();
        if now.saturating_sub(since) > SLOW_NS {
            self.rests_until_ns = now.saturating_add(REST_NS);
        }
        stocked
    }
}

impl Job for Stock {
    fn name(&self) -> &'static str {
        "stock"
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn on_thread(&mut self) {
        terrapin_disk::let_wakers_in();
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        core.pool.trim();
        if self.demand.look(core.pool.taken(), core.env.now_ns()) {
            let least = core.left_for_memtables_only(&core.state.load());
            let least = least.max(core.budget.limit() / POOL_SHARE);
            // What a load's memtable leaves, whole: more was never taken together, since the next
            // memtable is as good as full by then.
            let most = core.arenas_of_load().max(least);
            let bytes = self.demand.kept.saturating_mul(Pool::CHUNK_BYTES);
            core.pool.set_bytes_max(bytes.clamp(least, most));
            // Memtables grow: perhaps they may grow further, or had better not.
            core.look_at_operations();
        }
        if self.stock() {
            return Step::Again;
        }
        let (signal, taken) = (core.pool.change_signal().clone(), self.demand.taken);
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping() || core.pool.taken() != taken || core.pool.has_surplus()
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    /// It had all its memory from the system, a huge page at a time, in puts that all others waited
    /// for.
    #[test]
    fn the_first_memtable_of_an_opened_database_takes_its_memory_from_the_pool() {
        let (database, _sim) = Options::new().memory(64 << 20).open_simulated();
        let keyspace = database.default_keyspace();
        for number in 0..6u64 << 10 {
            keyspace.put(number.to_be_bytes(), [0; 1 << 10]).unwrap();
        }
        assert!(database.owner.core.pool.taken() > 0);
    }

    #[test]
    fn what_is_stocked_and_kept_follows_the_rate_and_survives_a_pause() {
        const MS: u64 = 1_000_000;
        let mut demand = Demand::new(5, 0);
        assert!(!demand.look(5, MS));
        assert_eq!((demand.ahead(), demand.kept), (1, 0));
        assert!(demand.look(15, 20 * MS), "2 ms a chunk, at once");
        assert_eq!((demand.ahead(), demand.kept), (25, 500));
        assert!(demand.look(16, 220 * MS), "a pause");
        assert_eq!((demand.ahead(), demand.kept), (1, 487));
        assert!(demand.look(26, 240 * MS));
        assert_eq!((demand.ahead(), demand.kept), (25, 500));
        for i in 1..400 {
            demand.look(26 + i, 240 * MS + i * 1000 * MS);
        }
        assert_eq!((demand.ahead(), demand.kept), (1, 1), "slow for long");
        assert!(demand.look(500, 500_000 * MS));
        demand.look(600, 500_000 * MS);
        assert_eq!(demand.ahead(), AHEAD_NS as usize, "no time passed");
    }
}
