//! Checkpoints: sealed memtables are merged into the trees below them, and the new roots become
//! durable (D2).
//!
//! One coordinator job ([`job`]) runs one checkpoint ([`outcome`]) at a time. A checkpoint freezes
//! the database at an LSN, waits until every record below it is in its memtable, merges the sealed
//! memtables ([`merges`], with as many workers as there are background threads; [`input`] is how a
//! merge sees a memtable), writes the catalog, and commits ([`commit`], which reads like D2).
//! [`Schedule`] is what the rest of the engine sees of it: what is asked for, and how far it is.

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
mod spill;

use std::sync::Arc;
use terrapin_base::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, Signal};

use crate::engine::core::Core;
use crate::engine::health::closed;
use merges::RunningMerge;

/// Checkpoints from the reserve that a checkpoint, a flush, or a close waits for without a
/// memtable's having gone (decision 0038). A checkpoint writes no more than there is room for, and
/// syncs four times, so that this is a bound of work. What is not merged then is in the log.
const TIGHT_ROUNDS_MAX: u64 = 64;

/// What was asked for: to be more is to reach further, or to be asked for more often.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub through: Lsn,
    times: u64,
}

/// What jobs are asked for, and how far they are. Everything a job or a writer waits for changes
/// before its signal is told.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Told when there may be work for a job.
    work: Arc<Signal>,
    /// Told when a checkpoint committed or failed.
    progress: Arc<Signal>,
    /// Jobs end.
    stopping: AtomicBool,
    /// Everything below is to be checkpointed.
    asked_through: AtomicU64,
    /// How often somebody asked who waits for it, or let a tree go.
    asked_times: AtomicU64,
    /// How many trees clears and drops have let go, and how many of these checkpoints have given up
    /// the pages of.
    trees_let_go: AtomicU64,
    trees_given_up: AtomicU64,
    /// Everything below is in trees that both superblocks reach: the smallest applied LSN of the
    /// catalog and its keyspaces.
    durable_through: AtomicU64,
    /// Memtables sealed and not yet gone from the state.
    sealed: AtomicUsize,
    /// How often one was sealed or went.
    seals: AtomicU64,
    /// How many of them could not be merged, and are not being tried again; and the bytes of
    /// memtable memory that their keyspaces hold.
    aside: AtomicUsize,
    aside_bytes: AtomicU64,
    /// Checkpoints that were tried from the reserve, committed or not; and as many when a memtable
    /// last went.
    tight_checkpoints: AtomicU64,
    tight_checkpoints_at_release: AtomicU64,
    /// Checkpoints committed.
    releases: AtomicU64,
    /// Checkpoints failed.
    failures: AtomicU64,
    /// How often somebody had asked when the last of them began.
    failed_times: AtomicU64,
    /// What the last failed checkpoint said.
    last_error: Mutex<Option<Error>>,
    /// The merge under way, for workers to help with.
    running: Mutex<Option<Arc<RunningMerge>>>,
    /// The log has grown past its limit: what holds it up is to be checkpointed.
    log_is_long: AtomicBool,
    /// Ranges have paid for a memtable's being sealed: the coordinator is to look which are due.
    seal_is_asked: AtomicBool,
    /// The disk is nearly full: memtables are small.
    space_is_scarce: AtomicBool,
    /// The disk is full: puts are refused, memtables are large again, and seal once deletes have
    /// come together ([`gather`]; D10).
    space_is_short: AtomicBool,
}

impl Schedule {
    /// The merge under way.
    pub fn running(&self) -> Option<Arc<RunningMerge>> {
        self.running.lock().clone()
    }

    /// Offers a merge to the workers, or takes the offer back.
    pub fn offer(&self, running: Option<Arc<RunningMerge>>) {
        let last = std::mem::replace(&mut *self.running.lock(), running);
        drop(last);
        self.work.notify();
    }

    /// The log is longer than it may be.
    pub fn shorten_log(&self) {
        if !self.log_is_long.swap(true, Ordering::AcqRel) {
            self.work.notify();
        }
    }

    /// Whether the log is longer than it may be.
    pub fn log_is_long(&self) -> bool {
        self.log_is_long.load(Ordering::Acquire)
    }

    /// A checkpoint takes care of the log's length.
    pub fn log_is_being_shortened(&self) {
        self.log_is_long.store(false, Ordering::Release);
    }

    /// Asks for the memtables that are due to be sealed.
    #[cold]
    pub fn ask_for_seal(&self) {
        if !self.seal_is_asked.swap(true, Ordering::AcqRel) {
            self.work.notify();
        }
    }

    /// Whether somebody asked for that and nobody took it up. Not while the disk is full: deletes
    /// come together then ([`gather`]).
    pub fn is_seal_asked(&self) -> bool {
        self.seal_is_asked.load(Ordering::Acquire) && !self.space_is_short()
    }

    /// Takes that up; whether there was something to take up.
    fn take_up_seal(&self) -> bool {
        self.is_seal_asked() && self.seal_is_asked.swap(false, Ordering::AcqRel)
    }

    /// The signal that jobs wait on.
    pub fn work(&self) -> &Arc<Signal> {
        &self.work
    }

    /// The signal of checkpoints that end.
    pub fn progress(&self) -> &Arc<Signal> {
        &self.progress
    }

    /// Whether jobs are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Tells jobs to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.work.notify();
        self.progress.notify();
    }

    /// So many memtables were sealed.
    pub fn sealed(&self, count: usize) {
        self.sealed.fetch_add(count, Ordering::AcqRel);
        self.seals.fetch_add(count as u64, Ordering::AcqRel);
        self.work.notify();
    }

    /// So many sealed memtables are gone from the state, merged or cleared.
    pub fn unsealed(&self, count: usize) {
        self.sealed.fetch_sub(count, Ordering::AcqRel);
        self.seals.fetch_add(count as u64, Ordering::AcqRel);
        if count > 0 {
            let checkpoints = self.tight_checkpoints.load(Ordering::Acquire);
            self.tight_checkpoints_at_release
                .fetch_max(checkpoints, Ordering::AcqRel);
        }
    }

    /// A checkpoint from the reserve was tried.
    pub fn tried_tight_checkpoint(&self) {
        self.tight_checkpoints.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// What begins to wait for a checkpoint now has seen so many checkpoints from the reserve: for
    /// [`Schedule::tight_checkpoints_since`].
    pub fn tight_checkpoints(&self) -> u64 {
        self.tight_checkpoints.load(Ordering::Acquire)
    }

    /// How many were tried since that count, and since a memtable last went.
    pub fn tight_checkpoints_since(&self, begun: u64) -> u64 {
        let from = self.tight_checkpoints_at_release.load(Ordering::Acquire);
        self.tight_checkpoints().saturating_sub(begun.max(from))
    }

    /// Whether a wait that began at that count is over: too many checkpoints from the reserve have
    /// let no memtable go.
    pub fn is_too_tight(&self, begun: u64) -> bool {
        self.tight_checkpoints_since(begun) >= TIGHT_ROUNDS_MAX
    }

    /// Changes with every memtable that is sealed, and every sealed one that goes, by one for each.
    pub fn seals(&self) -> u64 {
        self.seals.load(Ordering::Acquire)
    }

    /// Memtables that wait for a merge or are being merged.
    #[inline]
    pub fn sealed_count(&self) -> usize {
        self.sealed.load(Ordering::Acquire)
    }

    /// So many of them could not be merged, and rest until they are tried again. Who waits for
    /// memory learns of it: they free none of the bytes that their keyspaces hold.
    pub fn set_aside(&self, count: usize, bytes: u64) {
        self.aside_bytes.store(bytes, Ordering::Release);
        if self.aside.swap(count, Ordering::AcqRel) != count {
            self.progress.notify();
        }
    }

    /// Sealed memtables that could not be merged, and rest.
    #[inline]
    pub fn aside_count(&self) -> usize {
        self.aside.load(Ordering::Acquire)
    }

    /// Bytes of memtable memory of their keyspaces.
    #[inline]
    pub fn aside_bytes(&self) -> u64 {
        self.aside_bytes.load(Ordering::Acquire)
    }

    /// Sealed memtables of which a merge is about to free memory.
    #[inline]
    pub fn releasing_count(&self) -> usize {
        self.sealed_count().saturating_sub(self.aside_count())
    }

    /// Asks for everything below to be checkpointed.
    pub fn ask(&self, through: Lsn) {
        self.asked_through.fetch_max(through.0, Ordering::AcqRel);
        self.work.notify();
    }

    /// The same of somebody who waits for it: that ends a rest even if so much was asked for
    /// before. How often somebody has asked now.
    fn ask_again(&self, through: Lsn) -> u64 {
        let times = self.asked_times.fetch_add(1, Ordering::AcqRel) + 1;
        self.ask(through);
        times
    }

    /// A clear or a drop let a tree go: the next checkpoint gives its pages up. That makes room, so
    /// it ends a rest.
    pub fn let_tree_go(&self) {
        self.trees_let_go.fetch_add(1, Ordering::AcqRel);
        self.end_rest();
    }

    /// Ends a rest after a failed checkpoint: there is reason to try again at once.
    pub fn end_rest(&self) {
        self.asked_times.fetch_add(1, Ordering::AcqRel);
        self.work.notify();
    }

    /// How many were let go. A state that is loaded afterwards has none of them.
    pub fn trees_let_go(&self) -> u64 {
        self.trees_let_go.load(Ordering::Acquire)
    }

    /// Whether a checkpoint has pages of such trees to give up.
    pub fn has_trees_to_give_up(&self) -> bool {
        self.trees_let_go() > self.trees_given_up.load(Ordering::Acquire)
    }

    /// A checkpoint has given up those of so many.
    pub fn gave_trees_up(&self, count: u64) {
        self.trees_given_up.fetch_max(count, Ordering::AcqRel);
    }

    /// What was asked for, and how often.
    pub fn asked(&self) -> Asked {
        Asked {
            through: self.asked_through(),
            times: self.asked_times.load(Ordering::Acquire),
        }
    }

    /// What was asked for.
    pub fn asked_through(&self) -> Lsn {
        Lsn(self.asked_through.load(Ordering::Acquire))
    }

    /// Everything below is in durable trees.
    pub fn durable_through(&self) -> Lsn {
        Lsn(self.durable_through.load(Ordering::Acquire))
    }

    /// Changes whenever memtables may have gone from the state.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// How many checkpoints failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// A checkpoint committed.
    pub fn committed(&self, durable_through: Lsn) {
        self.durable_through
            .fetch_max(durable_through.0, Ordering::AcqRel);
        *self.last_error.lock() = None;
        self.released();
    }

    /// Memtables are gone from the state.
    pub fn released(&self) {
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
        self.work.notify();
    }

    /// Checkpoints fail from now on: whoever waits for one gets this.
    pub fn failed(&self, error: &Error) {
        self.count_failure(error, u64::MAX);
    }

    /// A checkpoint failed that began when so much was asked for. Who asked since waits for the
    /// next.
    pub fn checkpoint_failed(&self, error: &Error, asked: Asked) {
        self.count_failure(error, asked.times);
    }

    fn count_failure(&self, error: &Error, times: u64) {
        *self.last_error.lock() = Some(error.clone());
        self.failed_times.fetch_max(times, Ordering::AcqRel);
        self.failures.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// Why the last checkpoint failed; none if it did not.
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    /// Whether the disk is nearly full; also where it is full.
    pub fn space_is_scarce(&self) -> bool {
        self.space_is_scarce.load(Ordering::Acquire)
    }

    /// Sets that.
    pub fn set_space_is_scarce(&self, scarce: bool) {
        self.space_is_scarce.store(scarce, Ordering::Release);
    }

    /// Whether the disk is full.
    #[inline]
    pub fn space_is_short(&self) -> bool {
        self.space_is_short.load(Ordering::Acquire)
    }

    /// Sets whether the disk is full; waiters look again where that is news. What failing
    /// checkpoints find again is none, or who counts them would do so for ever.
    pub fn set_space_is_short(&self, short: bool) {
        if self.space_is_short.swap(short, Ordering::AcqRel) != short {
            self.released();
        }
    }
}

impl Core {
    /// Checkpoints everything that was published before the call, waits for it, and gives the space
    /// that it freed back. The error of a checkpoint that fails meanwhile; the coordinator goes on
    /// trying.
    pub fn checkpoint(&self) -> Result<()> {
        self.health.check_open()?;
        let log = self.log()?;
        self.checkpoint_through(log.end())?;
        self.give_space_back();
        Ok(())
    }

    /// Gives free space back to the file system, all but the reserve. What is durable is so whether
    /// or not that succeeds: an error is a background error.
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

    /// Why nobody waits on for a checkpoint on a full disk.
    pub fn too_tight(&self, through: Lsn) -> Error {
        let left = through.0.saturating_sub(self.schedule.durable_through().0);
        let what = self.what_is_full();
        let error = Error::new(
            ErrorKind::NoSpace,
            format!("{what}: not all that memory holds could be merged in a bounded number of checkpoints; the rest is in the log, and merging goes on in the background"),
        )
        .with("bytes of log not merged", left)
        .with("checkpoints", TIGHT_ROUNDS_MAX);
        match self.health.background_error() {
            Some(cause) => error.with("last background error", cause),
            None => error,
        }
    }

    /// Waits until everything below an LSN is in durable trees. A checkpoint that began since and
    /// fails ends the wait with its error; so does the end of the jobs, which is a close; and on a
    /// full disk so do [`TIGHT_ROUNDS_MAX`] checkpoints.
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
            // Why it failed is read before how far checkpoints came: one that commits takes it away
            // after it said how far.
            let why = self.schedule.last_error();
            let is_mine = self.schedule.failed_times.load(Ordering::Acquire) >= times;
            if self.schedule.durable_through() >= through {
                return Ok(());
            }
            match why {
                Some(error) if failed != failures && is_mine => return Err(error),
                // A close waits here, too: that the database is being closed ends nobody's wait.
                _ if self.schedule.is_stopping() => return Err(closed()),
                _ if self.schedule.is_too_tight(begun) => return Err(self.too_tight(through)),
                // The next checkpoint committed, but not as far, or one failed that began before
                // this asked.
                _ => failures = failed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use terrapin_base::{Env, Job, Step};
    use terrapin_disk::SimDisk;

    /// A checkpoint that fails, and another that commits too little, before anyone looks.
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
    fn a_close_waits_on_when_a_checkpoint_failed_and_the_next_one_did_not() {
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
