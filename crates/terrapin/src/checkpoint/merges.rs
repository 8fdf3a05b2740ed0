//! The workers that step a merge beside the coordinator.

use std::sync::Arc;

use terrapin_base::{Condition, Error, Job, Step};

use crate::engine::core::Core;

/// A job that helps the coordinator to merge.
pub(crate) struct Worker {
    core: Arc<Core>,
}

impl Worker {
    /// Builds a worker for a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Worker { core: core.clone() })
    }
}

impl Job for Worker {
    fn name(&self) -> &'static str {
        "merge"
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn on_thread(&mut self) {
        terrapin_disk::let_wakers_in();
    }

    fn step(&mut self) -> Step {
        let schedule = &self.core.schedule;
        if schedule.is_stopping() {
            return Step::Done;
        }
        if let Some(running) = schedule.running().filter(|r| !r.is_over()) {
            return match running.step(&self.core.env, schedule.work()) {
                Step::Done => Step::Again,
                step => step,
            };
        }
        let schedule = schedule.clone();
        let work = schedule.work().clone();
        Step::Pending(Condition::new(&work, move || {
            schedule.is_stopping() || schedule.running().is_some_and(|r| !r.is_over())
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}
