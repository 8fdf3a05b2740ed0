//! The log's handle: appending (in `append`), publishing, boundaries, requests for syncs.
//!
//! An append sums its payload first, then takes the append lock, which is held for the copy into
//! the ring and nothing else (a boundary holds it for what its caller does at that LSN): no call of
//! the system, no allocation and nothing that can fail lies between the reservation of an LSN and
//! the record's being complete. What is in the ring survives the process. A record is *appended*
//! when it is in the ring, *published* when its writer says that whatever it stands for can be
//! seen, *synced* when it is on stable storage; each is a prefix of the one before, but publishing
//! and syncing do not wait for each other.

mod append;
mod shared;

use shared::is_close_unsynced;
pub use shared::{Append, Appended, Boundary};
pub(crate) use shared::{Beginning, Shared};

#[cfg(doc)]
use terrapin_base::ErrorKind;
use terrapin_base::sync::{Arc, AtomicU64, Backoff, Ordering};
use terrapin_base::{Condition, Env, Error, Incarnation, Job, Lsn, Result, Signal, mutant};

use crate::drain::{self, Drain};
use crate::format::{KIND_CLOSE, RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN};
use crate::metrics::LogMetrics;
use crate::options::APPEND_RESERVE_BYTES;
use crate::publish::Publisher;
use crate::segments::{SPARES_AT_REST, SPARES_MAX, SPARES_MIN, TrimError};

/// The log: a handle that clones share. Ends with [`Log::close`] or [`Log::stop`], not with its
/// last clone.
#[derive(Clone)]
pub struct Log(pub(crate) Arc<Shared>);

impl Log {
    /// Starts a life of the log, without a record.
    pub(crate) fn start(env: &Env, beginning: Beginning) -> Log {
        Log(Arc::new(Shared::new(env, beginning)))
    }

    /// Appends a record whose payload is the pieces joined. It survives the process's death once
    /// this returned, and others see it once it is published; the caller must publish it soon and
    /// must not wait for anything before.
    ///
    /// Errors, each with nothing appended: [`ErrorKind::TooLarge`] beyond
    /// [`Log::record_bytes_max`], [`ErrorKind::InvalidArgument`] for the log's own kinds,
    /// [`ErrorKind::Poisoned`] after a failure, [`ErrorKind::Closed`] after the end,
    /// [`ErrorKind::NoSpace`] (or what the system said) when the ring is full and no segment can be
    /// had; the next append tries that again.
    pub fn try_append(&self, kind: u8, payload: &[&[u8]]) -> Result<Append> {
        if kind < RECORD_KIND_USER_MIN {
            return Err(Error::invalid("a record kind of the log itself").with("kind", kind));
        }
        self.0.append(kind, payload, |_| ())
    }

    /// As [`Log::try_append`], and [`Log::boundary`] at the record itself: `install` runs with the
    /// record's LSN under the append lock, once the record is sure to be in the log; every other
    /// record starts below that LSN and was appended before, or above it and later. `install` is
    /// not run when nothing is appended.
    pub fn try_append_with(
        &self,
        kind: u8,
        payload: &[&[u8]],
        install: impl FnOnce(Lsn),
    ) -> Result<Append> {
        if kind < RECORD_KIND_USER_MIN {
            return Err(Error::invalid("a record kind of the log itself").with("kind", kind));
        }
        self.0.append(kind, payload, install)
    }

    /// Bytes of log that a segment holds in this life: as many as were asked for, or fewer where
    /// the disk was too full for that.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.0.segments.capacity()
    }

    /// Files that wait to become segments. With none of them and a full disk, the log ends with its
    /// current segment.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.0.segments.spare_count()
    }

    /// Says whether space is scarce: then a trim gives most files back to the file system, and what
    /// waits to become segments goes at once, all but two files. A file that cannot be removed
    /// stays until the next open.
    pub fn set_space_is_scarce(&self, scarce: bool) {
        let segments = &self.0.segments;
        segments.set_spares_max(if scarce { SPARES_MIN } else { SPARES_MAX });
        if scarce && let Err(error) = segments.drop_spares(SPARES_MIN) {
            tracing::debug!(%error, "a spare of the log cannot be removed");
        }
    }

    /// Gives back what waits to become segments, all but one file: for a log that is not going to
    /// be written much for a while.
    pub fn rest(&self) -> Result<()> {
        self.0.segments.drop_spares(SPARES_AT_REST)
    }

    /// Whether a record of so many bytes would take of the files that are there what a checkpoint
    /// needs to sync the log. On a full disk a log without that room can be synced no further, so
    /// that no checkpoint can be committed, and none can trim it.
    #[must_use]
    pub fn files_are_short(&self, bytes: u64) -> bool {
        let segments = &self.0.segments;
        let margin = 2 * APPEND_RESERVE_BYTES + segments.capacity() / 8;
        segments.room_end() < self.tail().0.saturating_add(bytes + margin)
    }

    /// Longest payload in bytes.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.0.ring_bytes / 4 - RECORD_HEADER_BYTES
    }

    /// Makes an appended record visible, after every earlier one: spins, then sleeps, until those
    /// are published.
    pub fn publish(&self, appended: &Appended) {
        let shared = &*self.0;
        let Some(number) = appended.number else {
            return;
        };
        if !shared.publisher.has_slot(number) {
            self.wait_for_others(move |publisher| publisher.has_slot(number));
        }
        let end = appended.end.0;
        if shared.publisher.finish(number, end) {
            shared.visible_changed.notify();
        }
        if shared.publisher.visible() < end {
            self.wait_for_others(move |publisher| publisher.visible() >= end);
        }
    }

    /// Waits for what other writers are about to do. A writer that has lost its processor between
    /// its append and its publication holds up all that come after it; were they to spin, they
    /// would keep it from getting another.
    #[cold]
    fn wait_for_others(&self, done: impl Fn(&Publisher) -> bool + Send + Sync + 'static) {
        // One thread does everything in a simulation, so nobody could publish the earlier record
        // any more.
        assert!(
            !self.0.simulated,
            "an earlier record was appended and not published"
        );
        let mut backoff = Backoff::default();
        while backoff.spin() {
            if done(&self.0.publisher) {
                return;
            }
        }
        let shared = self.0.clone();
        let condition = Condition::new(&self.0.visible_changed, move || done(&shared.publisher));
        self.0.left_asleep.store(true, Ordering::Relaxed);
        // It has no deadline, and fails in simulations only: it ends when the condition holds.
        let _ = self.0.env.wait(&condition);
        self.0.left_asleep.store(false, Ordering::Relaxed);
    }

    /// Whether a writer fell asleep until others have published; told once. Who has nothing left to
    /// publish may be all that it still waits for, on the processor that it wants.
    #[must_use]
    #[inline]
    pub fn left_asleep(&self) -> bool {
        let asleep = &self.0.left_asleep;
        asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed)
    }

    /// Every record that starts below is published.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        Lsn(self.0.publisher.visible())
    }

    /// Runs `install` with the LSN of a new boundary, under the append lock. Every earlier record
    /// starts below the boundary, every later record at or above it. The boundary is the end of the
    /// last record that is no filler or mark: syncing through those would only add another mark.
    /// Boundaries never decrease. `install` must be short and must not call the log.
    pub fn boundary<R>(&self, install: impl FnOnce(Lsn) -> R) -> (R, Boundary) {
        let tail = self.0.lock();
        // Behind a closing record stands only what its sync added, and a recovery finds the log's
        // end before that.
        let lsn = Lsn(match mutant::active("seal-after-close-behind-sync") {
            true => tail.lsn,
            false => tail.real_end,
        });
        let result = install(lsn);
        (
            result,
            Boundary {
                lsn,
                publish_to: Lsn(tail.publish_end),
            },
        )
    }

    /// Whether every record below the boundary is published.
    #[must_use]
    pub fn boundary_published(&self, boundary: &Boundary) -> bool {
        self.visible() >= boundary.publish_to
    }

    /// Holds when every record below the boundary is published.
    #[must_use]
    pub fn boundary_condition(&self, boundary: &Boundary) -> Condition {
        let (log, boundary) = (self.clone(), *boundary);
        Condition::new(&self.0.visible_changed, move || {
            log.boundary_published(&boundary)
        })
    }

    /// Lower bound of the next record's LSN.
    #[must_use]
    pub fn tail(&self) -> Lsn {
        Lsn(self.0.end.lsn.load(Ordering::Acquire))
    }

    /// Where the last record ends that is not one of a sync's: below it lies all that was appended.
    /// A sync through the tail instead finds the mark of the sync before, and leaves another.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.0.lock().real_end)
    }

    /// Every byte of the log below is on stable storage.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.0.synced())
    }

    /// Asks for a sync up to there (the tail at most). The condition holds when [`Log::synced`] has
    /// reached it, and also when that failed ([`Log::failed`]), when a new segment was needed and
    /// could not be had ([`Log::shortage`]), or when the log has ended. For jobs, which never wait.
    pub fn request_sync(&self, upto: Lsn) -> Condition {
        let upto = upto.0.min(self.0.end.lsn.load(Ordering::Acquire));
        let shortages = self.0.shortages.load(Ordering::Acquire);
        if upto > self.0.synced() {
            self.0.sync_wanted.fetch_max(upto, Ordering::AcqRel);
            self.0.wake_drain();
        }
        let shared = self.0.clone();
        Condition::new(&self.0.synced_changed, move || {
            shared.synced() >= upto
                || shared.is_over()
                || shared.shortages.load(Ordering::Acquire) != shortages
        })
    }

    /// How full the ring is: bytes that the drain has not written to segments yet, and those of
    /// records that wait for room, of how many. Together they may be more than the ring. Who holds
    /// back by it leaves room to a long record.
    #[inline]
    #[must_use]
    pub fn ring_fill(&self) -> (u64, u64) {
        let freed = self.0.space.freed();
        let used = self.0.end.lsn.load(Ordering::Acquire).saturating_sub(freed);
        let waiting = self.0.waiting.load(Ordering::Relaxed);
        (used + waiting, self.0.ring_bytes)
    }

    /// How far the ring is drained: what lies below is in segments, and its room in the ring is
    /// free.
    #[must_use]
    pub fn drained(&self) -> Lsn {
        Lsn(self.0.space.freed())
    }

    /// Holds when [`Log::ring_fill`] is so many bytes at most, and when the log has ended or
    /// failed.
    #[must_use]
    pub fn drained_to(&self, used: u64) -> Condition {
        let log = self.clone();
        Condition::new(&self.0.progress, move || {
            log.ring_fill().0 <= used || log.0.is_over()
        })
    }

    /// Waits until everything below `upto` (the tail at most) is on stable storage. An error means
    /// that the outcome is unknown; after [`ErrorKind::NoSpace`] it is tried again when space is
    /// found.
    pub fn sync(&self, upto: Lsn) -> Result<()> {
        let upto = upto.min(self.tail());
        loop {
            let condition = self.request_sync(upto);
            if self.synced() >= upto {
                return Ok(());
            }
            self.0.env.wait(&condition)?;
            if self.synced() >= upto {
                return Ok(());
            }
            self.0.check_alive()?;
            if let Some(error) = self.shortage() {
                return Err(error);
            }
        }
    }

    /// The job that drains the ring to the segments and syncs them; the log needs it to run from
    /// the first append on. There is one: a second call returns a job that is over at once.
    #[must_use]
    pub fn drain_job(&self) -> Box<dyn Job> {
        match self.0.drain.lock().take() {
            Some((reader, current)) => Box::new(Drain::new(self.0.clone(), reader, current)),
            None => Box::new(drain::Over),
        }
    }

    /// Gives up whole segments that hold nothing at or above `below` (D3 says how far the caller
    /// may go), and prepares a spare if there is none. Blocks on the disk.
    pub fn trim(&self, below: Lsn) -> Result<()> {
        self.0.check_alive()?;
        let outcome = match self.0.segments.trim(below) {
            Ok(()) => Ok(()),
            Err(TrimError::Undone(error)) => Err(error),
            // Which names are durable is unknown now, and a file may only be written again without
            // its old one (D3).
            Err(TrimError::Unknown(error)) => {
                self.poison(error.clone());
                Err(error)
            }
        };
        if outcome.is_ok()
            && let Err(error) = self.0.segments.prepare()
        {
            tracing::debug!(%error, "no spare for the log after a trim");
        }
        if self.shortage().is_some() {
            self.0.wake_drain();
        }
        outcome
    }

    /// Bytes from the oldest record that is kept to the tail: what a recovery might have to read.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.tail().0.saturating_sub(self.0.segments.oldest())
    }

    /// LSN of the oldest record that is kept.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        Lsn(self.0.segments.oldest())
    }

    /// This life of the log.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.0.life_id.incarnation)
    }

    /// Why nothing durable is written any more, if that is so: [`ErrorKind::Poisoned`].
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        if self.0.failed.load(Ordering::Acquire) {
            self.0.failure.lock().clone()
        } else {
            None
        }
    }

    /// Whether nothing is synced any more: the log was closed or stopped, or has failed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_over()
    }

    /// Why no segment can be had at the moment; appends go on until the ring is full.
    #[must_use]
    pub fn shortage(&self) -> Option<Error> {
        self.0.shortage.lock().clone()
    }

    /// Ends all writing in this life: the log cannot know whether required bytes are durable. The
    /// first error stays; later calls change nothing.
    pub fn poison(&self, error: Error) {
        self.0.poison(error);
    }

    /// Notified when the log is poisoned.
    #[must_use]
    pub fn failure_signal(&self) -> &Arc<Signal> {
        &self.0.failure_changed
    }

    /// Ends the log in order: a closing record, everything drained and synced, the drain job over.
    /// The next open needs no ring. Once it has succeeded, again is nothing. After
    /// [`ErrorKind::NoSpace`] it may be tried again; records are refused once the closing one is in
    /// the ring.
    pub fn close(&self) -> Result<()> {
        if self.0.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let end = loop {
            match self.0.append(KIND_CLOSE, &[], |_| ())? {
                Append::Done(close) => break close.end,
                Append::Full(condition) => drop(self.0.env.wait(&condition)?),
            }
        };
        if !is_close_unsynced() {
            self.sync(end)?;
        }
        self.0.closed.store(true, Ordering::Release);
        self.stop();
        Ok(())
    }

    /// Ends appends and the drain job, which syncs what was not yet, unless that fails. Nothing
    /// that was appended is lost to a later open by that: it is in the segments and in the ring.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.wake_drain();
        self.0.tell_all();
    }

    /// Lets the ring go, with its memory and its file's lock, though handles on the log live on:
    /// their appends get [`ErrorKind::Closed`]. Call it after [`Log::stop`], once the drain job is
    /// over: the lock goes with the later of the two. How many bytes of [`Log::memory_bytes`] went.
    pub fn release(&self) -> u64 {
        drop(self.0.drain.lock().take());
        let writer = self.0.lock().writer.take();
        writer.map_or(0, |_| self.0.ring_bytes)
    }

    /// Bytes of memory that the log holds, until its ring is released.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.0.ring_bytes + self.0.starts.len() as u64 * 8
    }

    /// What the log has done in this life, and how large it is.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let (records, appended_bytes, overhead_bytes, lsn) = {
            let tail = self.0.lock();
            (
                tail.records,
                tail.appended_bytes,
                tail.overhead_bytes,
                tail.lsn,
            )
        };
        let counters = &self.0.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogMetrics {
            records,
            appended_bytes,
            overhead_bytes,
            full: get(&counters.full),
            drained_bytes: get(&counters.drained_bytes),
            drain_writes: get(&counters.drain_writes),
            ahead_bytes: get(&counters.ahead_bytes),
            syncs: get(&counters.syncs),
            sync_ns: get(&counters.sync_ns),
            sync_ns_max: get(&counters.sync_ns_max),
            segments: get(&counters.segments),
            shortages: get(&self.0.shortages),
            ring_used_bytes: lsn - self.0.space.freed().min(lsn),
            kept_bytes: self.kept_bytes(),
            kept_segments: self.0.segments.count(),
            disk_bytes: self.0.segments.disk_bytes(),
        }
    }
}
