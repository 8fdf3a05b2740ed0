//! Checkpoints merge sealed memtables into their trees and make the new roots durable (D2).
//!
//! One coordinator job ([`job`]) runs one checkpoint ([`outcome`]) at a time:
//!
//! - It freezes the database at an LSN and waits until every record below it is in its memtable.
//! - It merges the sealed memtables, with as many workers ([`merges`]) as there are background
//!   threads. A merge reads a memtable through [`input`].
//! - It writes the catalog and commits ([`commit`], which follows D2).
//!
//! The rest of the engine sees requests and progress in [`crate::engine::schedule`].

pub(crate) mod commit;
mod commit_mutants;
pub(crate) mod compaction;
mod drain;
pub(crate) mod fold;
mod gather;
mod held;
pub(crate) mod input;
pub(crate) mod job;
pub(crate) mod merges;
mod outcome;
mod portion;
mod rest;
mod run_writer;
mod spill;

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result};

use crate::engine::core::Core;
use crate::engine::health::closed;
use crate::engine::schedule::TIGHT_CHECKPOINTS_MAX;

impl Core {
    /// Checkpoints everything that was published before the call, waits for it, and returns freed
    /// space to the file system. Fails with the error of a checkpoint that fails meanwhile. The
    /// coordinator then retries in the background.
    pub fn checkpoint(&self) -> Result<()> {
        self.health.check_open()?;
        let log = self.log()?;
        self.checkpoint_through(log.end())?;
        self.give_space_back();
        Ok(())
    }

    /// Returns free space to the file system, except the reserve. A failure does not affect what is
    /// durable, so it becomes a background error.
    pub fn give_space_back(&self) {
        if let Err(error) = self.try_to_give_space_back()
            && error.kind() != ErrorKind::Closed
        {
            self.health.report(&error);
        }
    }

    fn try_to_give_space_back(&self) -> Result<()> {
        self.store.begin_reclaim();
        while self.store.reclaim_step()? {}
        self.log()?.rest()
    }

    /// The error for a caller that stops waiting for a checkpoint on a full disk.
    pub fn too_tight(&self, through: Lsn) -> Error {
        let left = through.0.saturating_sub(self.schedule.durable_through().0);
        let what = self.what_is_full();
        let error = Error::new(
            ErrorKind::NoSpace,
            format!("{what}: not all that memory holds could be merged in a bounded number of checkpoints; the rest is in the log, and merging goes on in the background"),
        )
        .with("bytes of log not merged", left)
        .with("checkpoints", TIGHT_CHECKPOINTS_MAX);
        match self.health.background_error() {
            Some(cause) => error.with("last background error", cause),
            None => error,
        }
    }

    /// Waits until every record below an LSN is in durable trees. A checkpoint that began after the
    /// call and fails ends the wait with its error. So does a close, which ends the jobs. On a full
    /// disk, [`TIGHT_CHECKPOINTS_MAX`] checkpoints end the wait, too.
    pub fn checkpoint_through(&self, through: Lsn) -> Result<()> {
        let mut failures = self.schedule.failures();
        if let Some(error) = self.log.as_ref().and_then(|log| log.failed()) {
            return Err(error);
        }
        let begun = self.schedule.tight_checkpoints();
        let times = self.schedule.ask_again(through);
        loop {
            let schedule = self.schedule.clone();
            self.env
                .wait(&Condition::new(self.schedule.progress(), move || {
                    schedule.durable_through() >= through
                        || schedule.failures() != failures
                        || schedule.is_stopping()
                        || schedule.is_too_tight(begun)
                }))?;
            let failed = self.schedule.failures();
            // The error is read before the progress. A checkpoint that commits stores its progress
            // first and then clears the error.
            let why = self.schedule.last_error();
            let is_mine = self.schedule.failed_times() >= times;
            if self.schedule.durable_through() >= through {
                return Ok(());
            }
            match why {
                Some(error) if failed != failures && is_mine => return Err(error),
                // A close waits here, too, so a close that has begun ends no wait.
                _ if self.schedule.is_stopping() => return Err(closed()),
                _ if self.schedule.is_too_tight(begun) => return Err(self.too_tight(through)),
                // Either the next checkpoint committed, but not as far as asked, or a checkpoint
                // failed that began before this request.
                _ => failures = failed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::engine::schedule::Schedule;
    use terrapin_base::{Env, Job, Step};
    use terrapin_disk::SimDisk;

    /// A checkpoint fails, and another commits too little, before the waiting caller looks.
    struct FailsAndCommits(Arc<Schedule>);

    impl Job for FailsAndCommits {
        fn name(&self) -> &'static str {
            "fails-and-commits"
        }

        fn step(&mut self) -> Step {
            self.0.failed(&Error::internal("a checkpoint"));
            self.0.committed(Lsn(0));
            Step::Done
        }
    }

    #[test]
    fn a_close_keeps_waiting_if_the_checkpoint_after_a_failed_one_commits() {
        let mut failed = 0;
        for seed in 0..20 {
            let (env, sim) = Env::simulated(seed);
            let disk = SimDisk::new(seed);
            let database = Options::new().memory(8 << 20);
            let database = database.open_on(env.clone(), disk.handle()).unwrap();
            sim.settle();
            let keyspace = database.default_keyspace();
            keyspace.put("a", "b").unwrap();
            let core = database.core();
            env.spawn(Box::new(FailsAndCommits(core.schedule.clone())))
                .unwrap();
            database.close().unwrap();
            failed += core.schedule.failures();
        }
        assert!(failed > 10, "{failed} of 20");
    }
}
