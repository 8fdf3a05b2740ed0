//! Jobs that keep house: free space goes back to the file system, caches shrink when the budget does, and memory that waits
//! for windows goes to reads when none are merged; and whoever asked is told at once when the log fails.

use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, Job, Step};

use crate::balance::Looked;
use crate::core::Core;

/// A rest after housekeeping failed, in nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// Gives back what nobody needs.
pub(crate) struct Reclaim {
    core: Arc<Core>,
    /// Checkpoints when half a trial of [`crate::balance`] was over last.
    checkpoints: u64,
}

impl Reclaim {
    /// For a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Reclaim {
            core: core.clone(),
            checkpoints: 0,
        })
    }

    /// Half a trial long everybody read and no window was merged: what the last windows left for the next goes to the caches.
    fn release_pool(&mut self) {
        let before = std::mem::replace(&mut self.checkpoints, self.core.counters.checkpoints.get());
        if before == self.checkpoints {
            self.core.pool.release();
        }
    }
}

impl Job for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn step(&mut self) -> Step {
        let core = &self.core;
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        match core.balance.step(core) {
            Looked::NotYet => {}
            Looked::Now => return Step::Again,
            Looked::HalfOver => {
                self.release_pool();
                return Step::Again;
            }
        }
        if core.records.shrink_step() {
            return Step::Again;
        }
        match core.store.reclaim_step() {
            Ok(true) => return Step::Again,
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::Poisoned => {}
            Err(error) => {
                core.health.report(&error);
                let schedule = core.schedule.clone();
                let stopped =
                    Condition::new(core.store.reclaim_signal(), move || schedule.is_stopping());
                return Step::Pending(stopped.until(core.env.now_ns() + REST_NS));
            }
        }
        let core = core.clone();
        let signal = core.store.reclaim_signal().clone();
        Step::Pending(Condition::new(&signal, move || {
            core.schedule.is_stopping()
                || core.store.reclaim_needed()
                || core.records.over_target()
                || core.settings.record_cache && core.balance.is_due()
        }))
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
            self.core.health.report(&error);
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
}
