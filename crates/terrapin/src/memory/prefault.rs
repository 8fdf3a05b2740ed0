//! The job that has memtable memory ready before writers need it.
//!
//! A fresh chunk takes the system a tenth of a millisecond, and five where a hypervisor backs it on
//! first use. So the pool keeps what the last memtable left, and this job takes chunks from the
//! system ahead of writers, at least one (decision 0011). After a slow chunk the job rests: it
//! would keep the processor from a writer until the next tick of the clock, chunk after chunk,
//! while writers that touch each page themselves lose microseconds.
//!
//! The rate at which chunks are taken says how many the job keeps ready ([`AHEAD_NS`]), and how
//! many the pool keeps ([`KEEP_NS`]), between the bounds of the plan ([`crate::memory::plan`]).
//! Slow writers thus leave the memory to caches. With fast writers the next memtable would take it
//! back from the caches at once.

use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, Step};
use terrapin_memtable::Pool;

use crate::engine::core::Core;

/// The job keeps as many chunks ready as writers take in this time.
const AHEAD_NS: u64 = 50_000_000;
/// The pool keeps as many chunks as writers take in this time.
const KEEP_NS: u64 = 1_000_000_000;
/// After this time, fast writers are forgotten.
const FORGET_NS: u64 = 8_000_000_000;
/// A chunk that takes longer is one that a hypervisor backs as it is touched.
const SLOW_NS: u64 = 1_000_000;
/// The job leaves writers alone for this long after such a chunk.
const REST_NS: u64 = 500_000_000;

/// Fills the pool of memtable memory, a chunk a step.
pub(crate) struct Prefault {
    core: Arc<Core>,
    demand: Demand,
    /// Until this time, writers take fresh memory themselves.
    rests_until_ns: u64,
}

/// How fast chunks are taken.
struct Demand {
    /// Chunks that were taken until the last look, and its time.
    taken: u64,
    looked_ns: u64,
    /// Nanoseconds between two chunks. A shorter interval counts at once, a longer one half.
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

    /// Takes the number of chunks taken until now. Returns whether there were new ones.
    fn look(&mut self, taken: u64, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        let Some(latest_ns) = passed_ns.checked_div(taken - self.taken) else {
            return false;
        };
        (self.taken, self.looked_ns) = (taken, now_ns);
        self.interval_ns = self.interval_ns.midpoint(latest_ns).min(latest_ns).max(1);
        // A writer that pauses for a moment is not slow.
        let forgotten = u128::from(self.kept) * u128::from(passed_ns.min(FORGET_NS));
        let forgotten = forgotten.div_ceil(u128::from(FORGET_NS)) as u64;
        self.kept = (KEEP_NS / self.interval_ns).max(self.kept - forgotten);
        true
    }

    /// Chunks to have ready: at least one, once a chunk was taken.
    fn ahead(&self) -> usize {
        let ahead = (AHEAD_NS / self.interval_ns).max(u64::from(self.taken > 0));
        usize::try_from(ahead).unwrap_or(usize::MAX)
    }
}

impl Prefault {
    /// The job of a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Prefault {
            core: core.clone(),
            demand: Demand::new(core.pool.taken(), core.env.now_ns()),
            rests_until_ns: 0,
        })
    }

    /// Takes a chunk from the system, unless the pool has enough chunks and all are huge pages, or
    /// the job rests. Returns whether it took one.
    fn take_chunk(&mut self) -> bool {
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

impl Job for Prefault {
    fn name(&self) -> &'static str {
        "prefault"
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
            let plan = core.plan_now();
            let spared_bytes = plan.memtables_spared_bytes;
            let floor_bytes = spared_bytes
                .saturating_sub(core.in_memtables())
                .max(plan.pool_floor_bytes);
            let ceiling_bytes = plan.pool_ceiling_bytes.max(floor_bytes);
            let bytes = self.demand.kept.saturating_mul(Pool::CHUNK_BYTES);
            core.pool
                .set_bytes_max(bytes.clamp(floor_bytes, ceiling_bytes));
            // Memtables grow. Perhaps they may grow further now, or less far.
            core.look_at_users();
        }
        if self.take_chunk() {
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

    /// All of its memory came from the system, a huge page at a time, in puts for which all other
    /// writers waited.
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
    fn chunks_ready_and_kept_follow_the_rate_of_writers_and_survive_a_pause() {
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
