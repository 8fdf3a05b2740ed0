//! Jobs that keep house: free space goes back to the file system, caches shrink when the budget
//! does, and memory that waits for memtables goes to reads when none are merged; and whoever asked
//! is told at once when the log fails.

use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, Job, Result, Step};

use crate::engine::core::Core;

/// A rest after housekeeping failed, in nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// For each nanosecond in which space was given back, so many follow without: reads of the data
/// file wait meanwhile. Where nobody reads only merges do, and the sooner it is done the less the
/// next merge has taken on top.
const REST_SHARE: u64 = 32;

/// When no checkpoint was committed for so long, nothing is kept for the next one, in nanoseconds.
const QUIET_NS: u64 = 2_000_000_000;

/// After so many looks of the balance between the caches without a checkpoint, nothing that caches
/// want is kept for the next memtable.
const QUIET_LOOKS: u32 = 8;

/// Gives back what nobody needs.
pub(crate) struct Reclaim {
    core: Arc<Core>,
    /// Checkpoints when last looked at.
    checkpoints: u64,
    /// Looks of [`crate::memory::cache_split`] since the last checkpoint.
    looks: u32,
    /// When it counts as quiet; none once it did.
    quiet_at: Option<u64>,
    /// No space is given back before.
    resting_until: u64,
    /// Gets and ranges when some was last.
    reads: u64,
}

impl Reclaim {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Reclaim::new(core))
    }

    fn new(core: &Arc<Core>) -> Self {
        Reclaim {
            core: core.clone(),
            checkpoints: core.counters.checkpoints.get(),
            looks: 0,
            quiet_at: None,
            resting_until: 0,
            reads: 0,
        }
    }

    /// For some looks everybody read and no memtable was merged: what the last memtables left for
    /// the next goes to the caches, as far as those want it.
    fn release_pool(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks == QUIET_LOOKS {
            self.core.release_pool();
        }
    }

    /// Notices checkpoints, and their absence.
    fn listen(&mut self, now_ns: u64) {
        let core = &self.core;
        let checkpoints = core.counters.checkpoints.get();
        if self.checkpoints != checkpoints {
            self.checkpoints = checkpoints;
            self.looks = 0;
            self.quiet_at = Some(now_ns.saturating_add(QUIET_NS));
        }
        if self.quiet_at.is_some_and(|at| now_ns >= at) {
            if core.schedule.running().is_some() {
                self.quiet_at = Some(now_ns.saturating_add(QUIET_NS));
            } else {
                self.quiet_at = None;
                core.store.begin_reclaim();
                if let Some(Err(error)) = core.log.as_ref().map(|log| log.rest()) {
                    core.health.report(&error);
                }
            }
        }
    }

    /// One piece of space, if it is time for it; whether there may be more to do at once.
    fn give_back(&mut self, now_ns: u64) -> Result<bool> {
        let core = &self.core;
        if now_ns < self.resting_until {
            // What reads do not wait for goes on: blocks of pages that are gone would take the
            // memory of others meanwhile.
            return Ok(core.store.purge_step());
        }
        let before = core.store.reclaimed_bytes();
        let more = core.store.reclaim_step()?;
        if core.store.reclaimed_bytes() != before {
            let ended_ns = core.env.now_ns();
            let took = ended_ns.saturating_sub(now_ns);
            let reads = core.counters.gets.get() + core.counters.scans.get();
            if std::mem::replace(&mut self.reads, reads) != reads {
                self.resting_until = ended_ns.saturating_add(took.saturating_mul(REST_SHARE));
            }
        }
        Ok(more)
    }

    /// What to wait for when there is nothing to do.
    fn rest(&self) -> Step {
        let core = self.core.clone();
        let (checkpoints, resting) = (self.checkpoints, self.resting_until > core.env.now_ns());
        let signal = core.store.reclaim_signal().clone();
        let condition = Condition::new(&signal, move || {
            core.schedule.is_stopping()
                || core.store.purge_needed()
                || !resting && core.store.reclaim_needed()
                || core.counters.checkpoints.get() != checkpoints
                || core.records.over_target()
                || core.settings.record_cache && core.cache_split.is_due()
        });
        let resting_until = resting.then_some(self.resting_until);
        let until = [self.quiet_at, resting_until].into_iter().flatten().min();
        Step::Pending(match until {
            Some(until_ns) => condition.until(until_ns),
            None => condition,
        })
    }
}

impl Job for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        let now_ns = core.env.now_ns();
        self.listen(now_ns);
        if core.split_caches() {
            self.release_pool();
            return Step::Again;
        }
        if core.records.shrink_step() {
            return Step::Again;
        }
        match self.give_back(now_ns) {
            Ok(true) => Step::Again,
            Ok(false) => self.rest(),
            Err(error) if error.kind() == ErrorKind::Poisoned => self.rest(),
            Err(error) => {
                core.health.report(&error);
                let schedule = core.schedule.clone();
                let stopped =
                    Condition::new(core.store.reclaim_signal(), move || schedule.is_stopping());
                Step::Pending(stopped.until(now_ns.saturating_add(REST_NS)))
            }
        }
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

/// Waits for the log to fail, and tells.
pub(crate) struct Watch {
    core: Arc<Core>,
}

impl Watch {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Watch { core: core.clone() })
    }

    fn failure(core: &Core) -> Option<Error> {
        core.log.as_ref().and_then(|log| log.failed())
    }
}

impl Job for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn step(&mut self) -> Step {
        if self.core.schedule.is_stopping() {
            return Step::Done;
        }
        if let Some(error) = Self::failure(&self.core) {
            self.core.health.log_failed(&error);
            self.core.schedule.failed(&error);
            // Writers that wait for a merge look again, and learn of it.
            self.core.schedule.released();
            return Step::Done;
        }
        let Some(log) = &self.core.log else {
            return Step::Done;
        };
        let core = self.core.clone();
        Step::Pending(Condition::new(log.failure_signal(), move || {
            core.schedule.is_stopping() || Self::failure(&core).is_some()
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Purpose;

    use super::*;
    use crate::Options;

    /// Giving space back has reads wait, and so rests; the cache kept blocks of pages that were
    /// gone for as long, in the place of others.
    #[test]
    fn blocks_of_pages_that_are_gone_leave_the_cache_while_no_space_is_given_back() {
        let (database, sim) = Options::new().memory(8 << 20).open_simulated();
        let keyspace = database.default_keyspace();
        let core = &database.owner.core;
        let overwrite = |value: u8| {
            for number in 0..2000_u32 {
                keyspace.put(number.to_be_bytes(), [value; 500]).unwrap();
            }
            database.checkpoint().unwrap();
        };
        overwrite(0);
        let snapshot = database.snapshot().unwrap();
        overwrite(1);
        assert_eq!(snapshot.iter(&keyspace).count(), 2000);
        sim.settle();
        sim.set_breathing(false);
        drop(snapshot);
        core.store.begin_reclaim();
        assert!(core.store.purge_needed());
        let mut reclaim = Reclaim {
            resting_until: u64::MAX,
            ..Reclaim::new(core)
        };
        let before = core.budget.used(Purpose::Blocks);
        let given_back = core.store.reclaimed_bytes();
        while reclaim.give_back(core.env.now_ns()).unwrap() {}
        assert!(!core.store.purge_needed());
        let after = core.budget.used(Purpose::Blocks);
        assert!(after < before, "{after} of {before} bytes");
        assert_eq!(core.store.reclaimed_bytes(), given_back);
        database.close().unwrap();
    }
}
