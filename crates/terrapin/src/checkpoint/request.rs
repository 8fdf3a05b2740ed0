//! Calls that ask for checkpoints and wait for them: `checkpoint`, `flush`, and the close.

use terrapin_base::sync::Ordering;
use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result};

use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::health::closed;
use crate::engine::schedule::TIGHT_CHECKPOINTS_MAX;

/// Makes every record that was published before the call durable: syncs the log, and checkpoints
/// the keyspaces with writes that the log does not hold.
pub(crate) fn flush(core: &Core) -> Result<()> {
    core.health.check_open()?;
    let log = core.log()?;
    // Also where all is synced: later checkpoints fail.
    if let Some(error) = log.failed() {
        return Err(error);
    }
    let through = log.end();
    log.sync(through)?;
    checkpoint_unlogged(core, through)
}

/// Checkpoints everything that was published before the call, waits for it, and returns freed
/// space to the file system. Fails with the error of a checkpoint that fails meanwhile. The
/// coordinator then retries in the background.
pub(crate) fn checkpoint(core: &Core) -> Result<()> {
    core.health.check_open()?;
    let log = core.log()?;
    checkpoint_through(core, log.end())?;
    give_space_back(core);
    Ok(())
}

/// Returns free space to the file system, except the reserve. A failure does not affect what is
/// durable, so it becomes a background error.
pub(crate) fn give_space_back(core: &Core) {
    if let Err(error) = try_to_give_space_back(core)
        && error.kind() != ErrorKind::Closed
    {
        core.health.report(&error);
    }
}

fn try_to_give_space_back(core: &Core) -> Result<()> {
    core.store.begin_reclaim();
    while core.store.reclaim_step()? {}
    core.log()?.rest()
}

/// The error for a caller that stops waiting for a checkpoint on a full disk.
fn too_tight(core: &Core, through: Lsn) -> Error {
    let left = through.0.saturating_sub(core.schedule.durable_through().0);
    let what = room::what_is_full(core);
    let error = Error::new(
        ErrorKind::NoSpace,
        format!("{what}: not all that memory holds could be merged in a bounded number of checkpoints; the rest is in the log, and merging goes on in the background"),
    )
    .with("bytes of log not merged", left)
    .with("checkpoints", TIGHT_CHECKPOINTS_MAX);
    match core.health.background_error() {
        Some(cause) => error.with("last background error", cause),
        None => error,
    }
}

/// Waits until every record below an LSN is in durable trees. A checkpoint that began after the
/// call and fails ends the wait with its error. So does a close, which ends the jobs. On a full
/// disk, [`TIGHT_CHECKPOINTS_MAX`] checkpoints end the wait, too.
pub(crate) fn checkpoint_through(core: &Core, through: Lsn) -> Result<()> {
    let mut failures = core.schedule.failures();
    if let Some(error) = core.log.as_ref().and_then(|log| log.failed()) {
        return Err(error);
    }
    let begun = core.schedule.tight_checkpoints();
    let times = core.schedule.ask_again(through);
    loop {
        let schedule = core.schedule.clone();
        core.env
            .wait(&Condition::new(core.schedule.progress(), move || {
                schedule.durable_through() >= through
                    || schedule.failures() != failures
                    || schedule.is_stopping()
                    || schedule.is_too_tight(begun)
            }))?;
        let failed = core.schedule.failures();
        // The error is read before the progress. A checkpoint that commits stores its progress
        // first and then clears the error.
        let why = core.schedule.last_error();
        let is_mine = core.schedule.failed_times() >= times;
        if core.schedule.durable_through() >= through {
            return Ok(());
        }
        match why {
            Some(error) if failed != failures && is_mine => return Err(error),
            // A close waits here, too, so a close that has begun ends no wait.
            _ if core.schedule.is_stopping() => return Err(closed()),
            _ if core.schedule.is_too_tight(begun) => return Err(too_tight(core, through)),
            // Either the next checkpoint committed, but not as far as asked, or a checkpoint
            // failed that began before this request.
            _ => failures = failed,
        }
    }
}

/// Checkpoints the keyspaces with writes below `through` that the log does not hold.
fn checkpoint_unlogged(core: &Core, through: Lsn) -> Result<()> {
    let mut failures = core.schedule.failures();
    let mut failure = None;
    let begun = core.schedule.tight_checkpoints();
    loop {
        let releases = core.schedule.releases();
        {
            let mut install = core.install.lock();
            core.seal(&mut install, |k| {
                k.active.start < through && k.active.unlogged.load(Ordering::Acquire)
            });
        }
        let state = core.state.load();
        let waits = core.written.noted_of(&state).iter().any(|k| {
            k.memtables()
                .any(|w| w.start < through && w.unlogged.load(Ordering::Acquire))
        });
        drop(state);
        if !waits {
            return Ok(());
        }
        // A checkpoint that failed may have merged these memtables, and left out others.
        if let Some(error) = failure.take() {
            return Err(error);
        }
        // Read after `failures`, as in `recovery::make_room`.
        if let Some(error) = core.log()?.failed() {
            return Err(error);
        }
        if core.schedule.is_too_tight(begun) {
            return Err(too_tight(core, through));
        }
        let schedule = core.schedule.clone();
        core.env
            .wait(&Condition::new(core.schedule.progress(), move || {
                schedule.releases() != releases
                    || schedule.failures() != failures
                    || schedule.is_too_tight(begun)
            }))?;
        core.health.check_open()?;
        let failed = core.schedule.failures();
        if failed != failures {
            // None if the next checkpoint committed.
            failure = core.schedule.last_error();
        }
        failures = failed;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrapin_base::{Env, Job, Step};
    use terrapin_disk::SimDisk;

    use super::*;
    use crate::engine::schedule::Schedule;
    use crate::{Durability, Options};

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

    /// Once a memtable is sealed, a checkpoint fails and another commits, before a waiting caller
    /// looks.
    struct Between(Arc<Core>);

    impl Job for Between {
        fn name(&self) -> &'static str {
            "between"
        }

        fn step(&mut self) -> Step {
            let begun = |core: &Core| {
                core.schedule.sealed_count() > 0 || core.counters.checkpoints.get() > 0
            };
            let schedule = &self.0.schedule;
            if !begun(&self.0) {
                let core = self.0.clone();
                return Step::Pending(Condition::new(schedule.work(), move || begun(&core)));
            }
            schedule.failed(&Error::internal("on purpose"));
            schedule.committed(Lsn(0));
            Step::Done
        }
    }

    /// The flush stopped waiting after such a failure and looped without end.
    #[test]
    fn a_flush_keeps_waiting_after_a_failure_that_a_later_checkpoint_mends() {
        for seed in 0..10 {
            let (env, sim) = Env::simulated(seed);
            let options = Options::new()
                .memory(2 << 20)
                .ring_bytes(64 << 10)
                .log_segment_bytes(64 << 10)
                .log_bytes_max(512 << 10)
                .block_bytes(512);
            let disk = SimDisk::new(seed);
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            sim.set_breathing(false);
            let job = env
                .spawn(Box::new(Between(database.core().clone())))
                .unwrap();
            let keyspace = database.default_keyspace();
            keyspace.put_with("a", "1", Durability::None).unwrap();
            database.flush().unwrap();
            job.join().unwrap();
            database.close().unwrap();
        }
    }

    /// The flush waited without end if the checkpoint that noticed the failure had already ended.
    #[test]
    fn a_flush_learns_at_once_of_a_log_that_failed() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = Options::small().open_on(env, disk.handle()).unwrap();
        sim.set_breathing(false);
        let keyspace = database.default_keyspace();
        keyspace.put_with("a", "1", Durability::None).unwrap();
        let core = database.core();
        let log = core.log().unwrap();
        log.poison(Error::internal("on purpose"));
        core.schedule.ask(log.end());
        sim.settle();
        assert!(core.schedule.failures() > 0);
        let error = checkpoint_unlogged(core, log.end()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        let error = database.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert!(database.close().is_err());
    }
}
