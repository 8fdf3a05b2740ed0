//! The log's handle: appends, publication, boundaries, requests for syncs.
//!
//! A record passes three states:
//!
//! - *appended*: the record is in the ring, which survives the process;
//! - *published*: its writer has said that the record's effect is visible;
//! - *synced*: the record is on stable storage.
//!
//! Published records are a prefix of the appended ones, and so are synced records. Publication and
//! syncs do not wait for each other.
//!
//! An append sums its payload first. Then it takes the append lock and copies the record into the
//! ring. Between the reservation of an LSN and the complete record there is no system call, no
//! allocation and no step that can fail. A boundary also takes the append lock, while its caller
//! acts at that LSN.

mod append;
mod recent;
mod shared;

use recent::Room;
pub use recent::{Copied, From, Reach, TOUCH_HEAD_BYTES, Touch, Touched};
use shared::is_close_unsynced;
pub use shared::{Append, Appended, Boundary};
pub(crate) use shared::{Beginning, Shared};

#[cfg(doc)]
use terrapin_base::ErrorKind;
use terrapin_base::sync::{Arc, AtomicU64, Backoff, Ordering};
use terrapin_base::{Budget, Condition, Env, Error, Incarnation, Job, Lsn, Result, Signal, mutant};

use crate::drain::{self, Drain};
use crate::format::{KIND_CLOSE, LifeId, RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN};
use crate::metrics::LogMetrics;
use crate::options::APPEND_RESERVE_BYTES;
use crate::publish::Publisher;
use crate::segments::{SPARES_AT_REST, SPARES_MAX, SPARES_MIN, TrimError};

/// A handle of the log; clones share the log. [`Log::close`] or [`Log::stop`] ends the log.
/// Dropping the last handle does not.
#[derive(Clone)]
pub struct Log(pub(crate) Arc<Shared>);

impl Log {
    /// Starts a life of the log that has no record yet.
    pub(crate) fn start(env: &Env, beginning: Beginning) -> Log {
        Log(Arc::new(Shared::new(env, beginning)))
    }

    /// Appends a record; its payload is `payload` joined. Once this returns, the record survives
    /// the death of the process. Other readers see it once it is published. The caller must publish
    /// it soon and must not wait for anything before that.
    ///
    /// Each of these errors appends nothing:
    ///
    /// - [`ErrorKind::TooLarge`]: the payload exceeds [`Log::record_bytes_max`];
    /// - [`ErrorKind::InvalidArgument`]: the kind belongs to the log itself;
    /// - [`ErrorKind::Poisoned`]: the log has failed;
    /// - [`ErrorKind::Closed`]: the log was closed or stopped;
    /// - [`ErrorKind::NoSpace`], or another error of the system: the ring is full and no segment
    ///   file is available. The next append tries again.
    pub fn try_append(&self, kind: u8, payload: &[&[u8]]) -> Result<Append> {
        check_kind(kind)?;
        self.append_touching(kind, payload, &[])
    }

    /// Like [`Log::try_append`]. The record touches these keys and no others; up to 64 touches are
    /// kept apart. No touches mean that the record may touch everything.
    pub fn try_append_touching(
        &self,
        kind: u8,
        payload: &[&[u8]],
        touches: &[Touch],
    ) -> Result<Append> {
        check_kind(kind)?;
        self.append_touching(kind, payload, touches)
    }

    #[inline]
    fn append_touching(&self, kind: u8, payload: &[&[u8]], touches: &[Touch]) -> Result<Append> {
        let shared = &self.0;
        let appended = shared.append(kind, payload, touches, |_| true, |_| ())?;
        appended.ok_or_else(|| Error::internal("the log did not admit a record"))
    }

    /// Appends a record if no record from `from` on touches anything that `hits` recognises.
    /// `hits` runs under the append lock, for at most 64 entries. It must be short and must not
    /// call the log.
    ///
    /// `holds` runs under the lock first, with the same rules. It tells whether what no record
    /// touches is as it was.
    ///
    /// Returns `None` if `holds` says no, if an entry hits, if there are too many entries to test
    /// under the lock, or if some are missing. [`Log::touched_since`] then tells which.
    ///
    /// Errors are those of [`Log::try_append`].
    pub fn try_append_unless(
        &self,
        (kind, payload): (u8, &[&[u8]]),
        touches: &[Touch],
        from: From,
        hits: impl FnMut(&Touched) -> bool,
        holds: impl FnOnce() -> bool,
    ) -> Result<Option<Append>> {
        check_kind(kind)?;
        let touches = match mutant::active("conditional-append-touches-nothing") {
            true => &[Touch::NONE],
            false => touches,
        };
        let may = |tail: &mut shared::Tail| {
            tail.recent.renew();
            holds() && tail.recent.are_clear(from, hits)
        };
        self.0.append(kind, payload, touches, may, |_| ())
    }

    /// Watches what records touch until the watch is dropped.
    ///
    /// ```text
    /// let watch = log.watch();
    /// // read at a bound B >= watch.since()
    /// log.touched_since(From::Lsn(B), &mut entries)     // test these without a lock
    /// log.try_append_unless(record, touches, place, …)  // the last few under the append lock
    /// ```
    ///
    /// The first watch takes a 64th of the memory budget, but 48 to 768 KiB ([`Log::charge_to`]).
    #[must_use]
    pub fn watch(&self) -> Watch {
        let now = self.0.env.now_ns();
        let mut tail = self.0.lock();
        let mut spare = None;
        if !tail.recent.has_room() && tail.writer.is_some() {
            let budget = tail.budget.clone();
            drop(tail);
            let room = Room::new(budget.as_ref());
            tail = self.0.lock();
            spare = match tail.writer.is_some() {
                true => tail.recent.give_room(room),
                false => Some(room),
            };
        }
        let publish_end = Lsn(match mutant::active("watch-begins-at-the-tail") {
            true => tail.lsn,
            false => tail.publish_end,
        });
        tail.recent.watch(publish_end, &self.0.end.watched, now);
        let since = tail.recent.raised_at();
        drop(tail);
        drop(spare);
        Watch {
            log: self.clone(),
            since,
        }
    }

    /// Has the drain call `hook` before each sync of a segment: it makes durable what records name
    /// in other files. What the sync will cover is in the log before the call. An error of the
    /// hook is a failed sync. Only the first hook counts.
    pub fn before_sync(&self, hook: impl Fn() -> Result<()> + Send + Sync + 'static) {
        let _ = self.0.before_sync.set(Box::new(hook));
    }

    /// Charges the memory of watches to a budget, from the next watch on.
    pub fn charge_to(&self, budget: &Arc<Budget>) {
        self.0.lock().budget = Some(budget.clone());
    }

    /// Waits until every record that is in the log now is published. Spins, then sleeps, as
    /// [`Log::publish`] does. The caller must have published its own records.
    pub fn wait_until_published(&self) {
        let end = self.0.lock().publish_end;
        if self.0.publisher.visible() < end {
            self.wait_for_others(move |publisher| publisher.visible() >= end);
        }
    }

    /// Has the log keep what the next records touch, as many as it has memory for (16,384 at most).
    /// Each conditional append renews this. A reader's bound must not be below the end of the last
    /// record in the log now ([`Log::wait_until_published`]), or the append is refused.
    #[inline]
    pub fn watch_a_while(&self) {
        if !self.is_watched() {
            drop(self.watch());
        }
    }

    /// Whether a watch exists. A writer then names what its records touch. The answer may be old.
    #[must_use]
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.0.end.watched.load(Ordering::Relaxed)
    }

    /// Appends what the records from `from` on touched to `out`, some hundreds of entries at most.
    pub fn touched_since(&self, from: From, out: &mut Vec<Touched>) -> Copied {
        // No allocation under the append lock.
        out.reserve(recent::COPIED_MAX as usize);
        self.0.lock().recent.copy(from, out)
    }

    /// Appends a record that is itself a boundary. `install` runs with the record's LSN under the
    /// append lock, once the record is certain to be in the log. Every earlier record starts below
    /// that LSN, every later one above it. If nothing is appended, `install` does not run. Errors
    /// are those of [`Log::try_append`].
    pub fn try_append_with(
        &self,
        kind: u8,
        payload: &[&[u8]],
        install: impl FnOnce(Lsn),
    ) -> Result<Append> {
        check_kind(kind)?;
        let appended = self.0.append(kind, payload, &[], |_| true, install)?;
        appended.ok_or_else(|| Error::internal("the log did not admit a record"))
    }

    /// Bytes of log that a segment holds in this life:
    /// [`LogOptions::segment_bytes`](crate::LogOptions), or fewer if the disk was too full at the
    /// open.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.0.segments.capacity()
    }

    /// Number of spares: files that wait to become segments. Without a spare, a full disk stops the
    /// drain at the end of the current segment.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.0.segments.spare_count()
    }

    /// Sets whether disk space is scarce. If it is, a trim returns most files to the file system,
    /// and this call removes all spares but two. A spare that cannot be removed stays until the
    /// next open.
    pub fn set_space_is_scarce(&self, scarce: bool) {
        let segments = &self.0.segments;
        segments.set_spares_max(if scarce { SPARES_MIN } else { SPARES_MAX });
        if scarce && let Err(error) = segments.drop_spares(SPARES_MIN) {
            tracing::debug!(%error, "a spare of the log cannot be removed");
        }
    }

    /// Removes all spares but one, for a log that expects few writes for a while. Errors: those of
    /// removing a file.
    pub fn rest(&self) -> Result<()> {
        self.0.segments.drop_spares(SPARES_AT_REST)
    }

    /// Whether a record of `bytes` bytes would use file space that a checkpoint needs to sync the
    /// log. Once that space is used on a full disk, the log cannot be synced. Then no checkpoint
    /// can commit, and none can trim the log.
    #[must_use]
    pub fn files_are_short(&self, bytes: u64) -> bool {
        let segments = &self.0.segments;
        let margin = 2 * APPEND_RESERVE_BYTES + segments.capacity() / 8;
        segments.room_end() < self.tail().0.saturating_add(bytes + margin)
    }

    /// Longest payload of a record in bytes: a quarter of the ring less the header.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.0.ring_bytes / 4 - RECORD_HEADER_BYTES
    }

    /// Makes an appended record visible after all earlier ones. Spins, then sleeps, until the
    /// earlier records are published.
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

    /// Waits until other writers have published. A writer may lose its processor between its append
    /// and its publication. Later writers that spin would keep it from getting another processor,
    /// so they sleep.
    #[cold]
    fn wait_for_others(&self, done: impl Fn(&Publisher) -> bool + Send + Sync + 'static) {
        // A simulation runs one thread, so no other thread could publish the earlier record.
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
        // This wait has no deadline, and fails in simulations only.
        let _ = self.0.env.wait(&condition);
        self.0.left_asleep.store(false, Ordering::Relaxed);
    }

    /// Whether a writer has fallen asleep until others publish; reports each sleep once. A thread
    /// with nothing left to publish should then yield: the sleeping writer may want its processor.
    #[must_use]
    #[inline]
    pub fn left_asleep(&self) -> bool {
        let asleep = &self.0.left_asleep;
        asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed)
    }

    /// Every record that starts below this LSN is published.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        Lsn(self.0.publisher.visible())
    }

    /// Runs `install` with the LSN of a new boundary, under the append lock. Every earlier record
    /// starts below the boundary, every later record at or above it. `install` must be short and
    /// must not call the log. Boundaries never decrease.
    ///
    /// The boundary is the end of the last record that is no filler or mark. A sync up to the tail
    /// would cover those too, and add another mark.
    pub fn boundary<R>(&self, install: impl FnOnce(Lsn) -> R) -> (R, Boundary) {
        let tail = self.0.lock();
        // Only records of the close's own sync follow a closing record. Recovery finds the log's
        // end before them.
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

    /// A condition that holds once every record below the boundary is published.
    #[must_use]
    pub fn boundary_condition(&self, boundary: &Boundary) -> Condition {
        let (log, boundary) = (self.clone(), *boundary);
        Condition::new(&self.0.visible_changed, move || {
            log.boundary_published(&boundary)
        })
    }

    /// A lower bound of the next record's LSN.
    #[must_use]
    pub fn tail(&self) -> Lsn {
        Lsn(self.0.end.lsn.load(Ordering::Acquire))
    }

    /// End of the last record that is no filler or mark. All users' records end at or below this
    /// LSN. A sync up to [`Log::tail`] instead would cover the last sync's mark and leave another
    /// mark.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.0.lock().real_end)
    }

    /// Every byte of the log below this LSN is on stable storage.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.0.synced())
    }

    /// Requests a sync up to `upto`, or up to the tail if that is lower. For jobs, which never
    /// wait.
    ///
    /// The condition holds once [`Log::synced`] has reached that LSN. It also holds when the log
    /// has failed ([`Log::failed`]) or ended, and when no file for a new segment was available
    /// ([`Log::shortage`]).
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

    /// The ring's fill and its size, both in bytes. The fill counts bytes that are not yet in
    /// segments and records that wait for room, so it may exceed the size. Writers that hold back
    /// by this figure leave room for a long record.
    #[inline]
    #[must_use]
    pub fn ring_fill(&self) -> (u64, u64) {
        let freed = self.0.space.freed();
        let used = self.0.end.lsn.load(Ordering::Acquire).saturating_sub(freed);
        let waiting = self.0.waiting.load(Ordering::Relaxed);
        (used + waiting, self.0.ring_bytes)
    }

    /// Every record below this LSN is in segments, and its room in the ring is free.
    #[must_use]
    pub fn drained(&self) -> Lsn {
        Lsn(self.0.space.freed())
    }

    /// A condition that holds once [`Log::ring_fill`] is at most `used` bytes, or the log has ended
    /// or failed.
    #[must_use]
    pub fn drained_to(&self, used: u64) -> Condition {
        let log = self.clone();
        Condition::new(&self.0.progress, move || {
            log.ring_fill().0 <= used || log.0.is_over()
        })
    }

    /// Waits until everything below `upto`, or below the tail if that is lower, is on stable
    /// storage. After an error the outcome is unknown. After [`ErrorKind::NoSpace`] the log tries
    /// again once it finds space.
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

    /// The job that drains the ring into segments and syncs them. It must run from the first append
    /// on. A log has one such job: a second call returns a job that ends at once.
    #[must_use]
    pub fn drain_job(&self) -> Box<dyn Job> {
        match self.0.drain.lock().take() {
            Some((reader, current)) => Box::new(Drain::new(self.0.clone(), reader, current)),
            None => Box::new(drain::Over),
        }
    }

    /// Trims the log: gives up whole segments that hold nothing at or above `below`. The caller
    /// must obey invariant D3, which bounds `below`. Then prepares a spare if there is none. Blocks
    /// on the disk.
    ///
    /// Errors: those of renaming, removing and syncing. If a name may be gone but not durably, the
    /// log is poisoned.
    pub fn trim(&self, below: Lsn) -> Result<()> {
        self.0.check_alive()?;
        let outcome = match self.0.segments.trim(below) {
            Ok(()) => Ok(()),
            Err(TrimError::Undone(error)) => Err(error),
            // It is unknown which names are durable. A file may be written again only once its old
            // name is durably gone (D3).
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

    /// Keeps all segments until the guard is dropped, for a copy of the log. A trim meanwhile gives
    /// nothing up; the next trim behind the drop does.
    #[must_use]
    pub fn hold_trims(&self) -> HeldTrims {
        self.0.segments.hold_trims();
        HeldTrims(self.clone())
    }

    /// Bytes from the oldest kept record to the tail: the most that a recovery has to read.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.tail().0.saturating_sub(self.0.segments.oldest())
    }

    /// LSN of the oldest kept record.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        Lsn(self.0.segments.oldest())
    }

    /// The identity of this life of the log.
    #[must_use]
    pub fn life_id(&self) -> LifeId {
        self.0.life_id
    }

    /// The number of this life of the log.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.0.life_id.incarnation)
    }

    /// The error that ended all writing, of kind [`ErrorKind::Poisoned`]; `None` while the log
    /// works.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        if self.0.failed.load(Ordering::Acquire) {
            self.0.failure.lock().clone()
        } else {
            None
        }
    }

    /// Whether the log has ended: it was closed, was stopped, or has failed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_over()
    }

    /// Why no file for a segment is available at present. Appends continue until the ring is full.
    #[must_use]
    pub fn shortage(&self) -> Option<Error> {
        self.0.shortage.lock().clone()
    }

    /// Ends all writing in this life, because it is unknown whether required bytes are durable. The
    /// first error stays; later calls change nothing.
    pub fn poison(&self, error: Error) {
        self.0.poison(error);
    }

    /// The signal that is notified when the log is poisoned.
    #[must_use]
    pub fn failure_signal(&self) -> &Arc<Signal> {
        &self.0.failure_changed
    }

    /// Closes the log: appends a closing record, drains and syncs everything, and ends the drain
    /// job. The next open then needs no ring. A call after a success does nothing.
    ///
    /// Errors: those of [`Log::sync`]. After [`ErrorKind::NoSpace`] the caller may try again. Once
    /// the closing record is in the ring, the log refuses other records.
    pub fn close(&self) -> Result<()> {
        if self.0.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let end = loop {
            match self.append_touching(KIND_CLOSE, &[], &[])? {
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

    /// Ends appends and the drain job without a closing record. The job syncs the rest first,
    /// unless that fails. A later open finds all appended records in the segments and the ring.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.wake_drain();
        self.0.tell_all();
    }

    /// Releases the ring's memory and the lock of its file, while handles of the log live on. Their
    /// appends return [`ErrorKind::Closed`]. Call it after [`Log::stop`], once the drain job has
    /// ended: the job holds the lock too. Returns how many bytes of [`Log::memory_bytes`] it
    /// released.
    pub fn release(&self) -> u64 {
        drop(self.0.drain.lock().take());
        let mut tail = self.0.lock();
        let writer = tail.writer.take();
        let room = tail
            .recent
            .take_room(&self.0.end.watched, self.0.env.now_ns());
        drop(tail);
        drop(room);
        writer.map_or(0, |_| self.0.ring_bytes)
    }

    /// Bytes of memory that the log holds until its ring is released, without that of watches.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.0.ring_bytes + self.0.starts.len() as u64 * 8
    }

    /// Counters of this life, and the log's size.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        let now = self.0.env.now_ns();
        let (records, appended_bytes, overhead_bytes, watched_ns, lsn) = {
            let tail = self.0.lock();
            (
                tail.records,
                tail.appended_bytes,
                tail.overhead_bytes,
                tail.recent.raised_ns(now),
                tail.lsn,
            )
        };
        let counters = &self.0.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogMetrics {
            records,
            appended_bytes,
            overhead_bytes,
            watched_ns,
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

/// Refuses the kinds of the log's own records.
fn check_kind(kind: u8) -> Result<()> {
    match kind < RECORD_KIND_USER_MIN {
        true => Err(
            Error::invalid("this record kind is reserved for the log itself").with("kind", kind),
        ),
        false => Ok(()),
    }
}

/// While it exists, the log keeps all its segments ([`Log::hold_trims`]).
pub struct HeldTrims(Log);

impl Drop for HeldTrims {
    fn drop(&mut self) {
        self.0.0.segments.let_trims_go();
    }
}

/// While it exists, the log keeps what each record touched.
pub struct Watch {
    log: Log,
    since: Lsn,
}

impl Watch {
    /// What records at or above this LSN touched is kept. A reader's bound must not be below it:
    /// wait until [`Log::visible`] has reached it.
    #[must_use]
    pub fn since(&self) -> Lsn {
        self.since
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.log.0.lock().recent.unwatch();
    }
}
