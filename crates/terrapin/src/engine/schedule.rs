//! [`Schedule`]: the requests to jobs and the progress of jobs. This file holds data only. The
//! jobs, and the threads that wait for them, decide.

use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Error, Lsn, Signal};

use crate::engine::running_merge::RunningMerge;
use crate::planning::disk_state::DiskState;

/// The most checkpoints from the reserve that a waiting checkpoint, flush or close accepts without
/// a memtable leaving memory (decision 0038). Such a checkpoint writes no more than there is room
/// for, and syncs four times, so this limit bounds the work. Records that are not merged by then
/// are in the log.
pub(crate) const TIGHT_CHECKPOINTS_MAX: u64 = 64;

/// A request: how far to checkpoint, and how often a caller asked. A later request is greater.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub through: Lsn,
    times: u64,
}

/// Requests to jobs and the progress of jobs. Everything that a job or a writer waits for changes
/// before its signal is sent.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Signals that a job may have work.
    work: Arc<Signal>,
    /// Signals that a checkpoint committed or failed.
    progress: Arc<Signal>,
    /// Set when jobs must end.
    stopping: AtomicBool,
    /// Records below this LSN are to be checkpointed.
    asked_through: AtomicU64,
    /// Number of requests by callers that wait, and of trees that were let go.
    asked_times: AtomicU64,
    /// Number of trees that clears and drops let go, and the number of those whose pages a
    /// checkpoint has freed.
    trees_let_go: AtomicU64,
    trees_given_up: AtomicU64,
    /// Records below this LSN are in trees that both superblocks reach. This is the smallest
    /// applied LSN of the catalog and its keyspaces.
    durable_through: AtomicU64,
    /// Number of sealed memtables in the state.
    sealed: AtomicUsize,
    /// Number of times that a memtable was sealed or left the state.
    seals: AtomicU64,
    /// Number of sealed memtables whose merge failed and rests, and the bytes of memtable memory of
    /// their keyspaces.
    aside: AtomicUsize,
    aside_bytes: AtomicU64,
    /// Number of checkpoints tried from the reserve, committed or not, and that number when a
    /// memtable last left the state.
    tight_checkpoints: AtomicU64,
    tight_checkpoints_at_release: AtomicU64,
    /// Number of committed checkpoints.
    releases: AtomicU64,
    /// Number of failed checkpoints.
    failures: AtomicU64,
    /// Number of requests when the last failed checkpoint began.
    failed_times: AtomicU64,
    /// The error of the last failed checkpoint.
    last_error: Mutex<Option<Error>>,
    /// The merge under way, for workers to help with.
    running: Mutex<Option<Arc<RunningMerge>>>,
    /// Set when the log exceeds its limit: the memtables that keep its oldest files are to be
    /// checkpointed.
    log_is_long: AtomicBool,
    /// Set when ranges have paid for the seal of a memtable, and by range deletes. The coordinator
    /// then looks for memtables that are due.
    seal_is_asked: AtomicBool,
    /// Whether the disk has room for writes, as the number of a [`DiskState`].
    disk: AtomicU32,
}

impl Schedule {
    /// The merge under way.
    pub fn running(&self) -> Option<Arc<RunningMerge>> {
        self.running.lock().clone()
    }

    /// Offers a merge to the workers. None withdraws the offer.
    pub fn offer(&self, running: Option<Arc<RunningMerge>>) {
        let last = std::mem::replace(&mut *self.running.lock(), running);
        drop(last);
        self.work.notify();
    }

    /// Notes that the log exceeds its limit.
    pub fn shorten_log(&self) {
        if !self.log_is_long.swap(true, Ordering::AcqRel) {
            self.work.notify();
        }
    }

    /// Whether the log exceeds its limit.
    pub fn log_is_long(&self) -> bool {
        self.log_is_long.load(Ordering::Acquire)
    }

    /// Notes that a checkpoint is shortening the log.
    pub fn log_is_being_shortened(&self) {
        self.log_is_long.store(false, Ordering::Release);
    }

    /// Asks the coordinator to seal the memtables that are due.
    #[cold]
    pub fn ask_for_seal(&self) {
        if !self.seal_is_asked.swap(true, Ordering::AcqRel) {
            self.work.notify();
        }
    }

    /// Whether a seal was asked for and no job has taken up the request. Always false on a full
    /// disk, where deletes gather in their memtables (`checkpoint::gather`).
    pub fn is_seal_asked(&self) -> bool {
        self.seal_is_asked.load(Ordering::Acquire) && !self.disk_is_full()
    }

    /// Takes up the request for a seal. Returns whether there was one.
    pub fn take_up_seal(&self) -> bool {
        self.is_seal_asked() && self.seal_is_asked.swap(false, Ordering::AcqRel)
    }

    /// The signal for jobs that wait for work.
    pub fn work(&self) -> &Arc<Signal> {
        &self.work
    }

    /// The signal that the end of each checkpoint sends.
    pub fn progress(&self) -> &Arc<Signal> {
        &self.progress
    }

    /// Whether jobs must end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes jobs end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.work.notify();
        self.progress.notify();
    }

    /// Notes that `count` memtables were sealed.
    pub fn sealed(&self, count: usize) {
        self.sealed.fetch_add(count, Ordering::AcqRel);
        self.seals.fetch_add(count as u64, Ordering::AcqRel);
        self.work.notify();
    }

    /// Notes that `count` sealed memtables left the state, merged or cleared.
    pub fn unsealed(&self, count: usize) {
        self.sealed.fetch_sub(count, Ordering::AcqRel);
        self.seals.fetch_add(count as u64, Ordering::AcqRel);
        if count > 0 {
            let checkpoints = self.tight_checkpoints.load(Ordering::Acquire);
            self.tight_checkpoints_at_release
                .fetch_max(checkpoints, Ordering::AcqRel);
        }
    }

    /// Notes that a checkpoint from the reserve was tried.
    pub fn tried_tight_checkpoint(&self) {
        self.tight_checkpoints.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// The number of checkpoints tried from the reserve so far. A caller that begins to wait stores
    /// it for [`Schedule::tight_checkpoints_since`].
    pub fn tight_checkpoints(&self) -> u64 {
        self.tight_checkpoints.load(Ordering::Acquire)
    }

    /// Number of checkpoints tried from the reserve since `begun`, and since a memtable last left
    /// the state.
    pub fn tight_checkpoints_since(&self, begun: u64) -> u64 {
        let from = self.tight_checkpoints_at_release.load(Ordering::Acquire);
        self.tight_checkpoints().saturating_sub(begun.max(from))
    }

    /// Whether a wait that began at `begun` must end: too many checkpoints from the reserve freed
    /// no memtable.
    pub fn is_too_tight(&self, begun: u64) -> bool {
        self.tight_checkpoints_since(begun) >= TIGHT_CHECKPOINTS_MAX
    }

    /// A number that grows by one for each memtable that is sealed and for each sealed one that
    /// goes.
    pub fn seals(&self) -> u64 {
        self.seals.load(Ordering::Acquire)
    }

    /// Number of memtables that wait for a merge or are being merged.
    #[inline]
    pub fn sealed_count(&self) -> usize {
        self.sealed.load(Ordering::Acquire)
    }

    /// Sets how many sealed memtables rest after a failed merge. Writers that wait for memory use
    /// this: such memtables free none of the bytes of their keyspaces.
    pub fn set_aside(&self, count: usize, bytes: u64) {
        self.aside_bytes.store(bytes, Ordering::Release);
        if self.aside.swap(count, Ordering::AcqRel) != count {
            self.progress.notify();
        }
    }

    /// Number of sealed memtables that rest after a failed merge.
    #[inline]
    pub fn aside_count(&self) -> usize {
        self.aside.load(Ordering::Acquire)
    }

    /// Bytes of memtable memory of the keyspaces whose merge failed and rests.
    #[inline]
    pub fn aside_bytes(&self) -> u64 {
        self.aside_bytes.load(Ordering::Acquire)
    }

    /// Number of sealed memtables whose merge will soon free memory.
    #[inline]
    pub fn releasing_count(&self) -> usize {
        self.sealed_count().saturating_sub(self.aside_count())
    }

    /// Asks for a checkpoint of everything below an LSN.
    pub fn ask(&self, through: Lsn) {
        self.asked_through.fetch_max(through.0, Ordering::AcqRel);
        self.work.notify();
    }

    /// Asks for a checkpoint on behalf of a caller that waits for it. This ends a rest, even if an
    /// earlier request reached as far. Returns the number of requests so far.
    pub fn ask_again(&self, through: Lsn) -> u64 {
        let times = self.asked_times.fetch_add(1, Ordering::AcqRel) + 1;
        self.ask(through);
        times
    }

    /// Notes that a clear or a drop let a tree go. The next checkpoint frees the tree's pages. That
    /// makes room, so this call ends a rest.
    pub fn let_tree_go(&self) {
        self.trees_let_go.fetch_add(1, Ordering::AcqRel);
        self.end_rest();
    }

    /// Ends the rest after a failed checkpoint: a retry may succeed now.
    pub fn end_rest(&self) {
        self.asked_times.fetch_add(1, Ordering::AcqRel);
        self.work.notify();
    }

    /// Number of trees let go so far. A state that is loaded afterwards has none of them.
    pub fn trees_let_go(&self) -> u64 {
        self.trees_let_go.load(Ordering::Acquire)
    }

    /// Whether the next checkpoint has pages of such trees to free.
    pub fn has_trees_to_give_up(&self) -> bool {
        self.trees_let_go() > self.trees_given_up.load(Ordering::Acquire)
    }

    /// Notes that a checkpoint freed the pages of the first `count` such trees.
    pub fn gave_trees_up(&self, count: u64) {
        self.trees_given_up.fetch_max(count, Ordering::AcqRel);
    }

    /// The requests so far.
    pub fn asked(&self) -> Asked {
        Asked {
            through: self.asked_through(),
            times: self.asked_times.load(Ordering::Acquire),
        }
    }

    /// The LSN below which records are to be checkpointed.
    pub fn asked_through(&self) -> Lsn {
        Lsn(self.asked_through.load(Ordering::Acquire))
    }

    /// The LSN below which every record is in durable trees.
    pub fn durable_through(&self) -> Lsn {
        Lsn(self.durable_through.load(Ordering::Acquire))
    }

    /// A number that changes whenever memtables may have left the state.
    pub fn releases(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Number of failed checkpoints.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Notes that a checkpoint committed.
    pub fn committed(&self, durable_through: Lsn) {
        self.durable_through
            .fetch_max(durable_through.0, Ordering::AcqRel);
        *self.last_error.lock() = None;
        self.released();
    }

    /// Notes that memtables left the state.
    pub fn released(&self) {
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
        self.work.notify();
    }

    /// Notes that checkpoints fail from now on. Every caller that waits for a checkpoint gets this
    /// error.
    pub fn failed(&self, error: &Error) {
        self.count_failure(error, u64::MAX);
    }

    /// Notes that a checkpoint failed which began with the requests `asked`. Callers that asked
    /// later wait for the next checkpoint.
    pub fn checkpoint_failed(&self, error: &Error, asked: Asked) {
        self.count_failure(error, asked.times);
    }

    fn count_failure(&self, error: &Error, times: u64) {
        *self.last_error.lock() = Some(error.clone());
        self.failed_times.fetch_max(times, Ordering::AcqRel);
        self.failures.fetch_add(1, Ordering::AcqRel);
        self.progress.notify();
    }

    /// Number of requests when the last failed checkpoint began.
    pub fn failed_times(&self) -> u64 {
        self.failed_times.load(Ordering::Acquire)
    }

    /// The error of the last checkpoint. None if that checkpoint succeeded.
    pub fn last_error(&self) -> Option<Error> {
        self.last_error.lock().clone()
    }

    /// How much room the disk has for writes.
    pub fn disk(&self) -> DiskState {
        DiskState::of_number(self.disk.load(Ordering::Acquire))
    }

    /// Whether the disk is full: the engine accepts only writes that free space.
    #[inline]
    pub fn disk_is_full(&self) -> bool {
        self.disk.load(Ordering::Acquire) == DiskState::Full as u32
    }

    /// Changes the disk's state, unless it is no longer `from`: another thread found a refused
    /// allocation, or looked too. Returns whether the state changed.
    pub fn change_disk(&self, from: DiskState, to: DiskState) -> bool {
        let changed = self
            .disk
            .compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if changed {
            self.disk_changed(from, to);
        }
        changed
    }

    /// Notes that an allocation was refused: the disk is full, whatever its state was.
    pub fn fill_disk(&self) {
        let from = self.disk.swap(DiskState::Full as u32, Ordering::AcqRel);
        self.disk_changed(DiskState::of_number(from), DiskState::Full);
    }

    /// Sends the signals if the disk became full or is no longer full. Without a change it sends
    /// none. A caller that counts failing checkpoints would otherwise never stop.
    fn disk_changed(&self, from: DiskState, to: DiskState) {
        if (from == DiskState::Full) != (to == DiskState::Full) {
            self.released();
        }
    }
}
