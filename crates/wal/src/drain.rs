//! The drain: the one job that moves the ring's bytes into segments and syncs the segments.
//!
//! **Writing.** The drain writes whole blocks, and each block of records once. A sync first fills
//! the stream up to a block's start, so no later write touches a synced block. In a new file, a
//! small sync also writes zeros ahead; later records overwrite them. The target of a sync is fixed
//! when the sync begins. Otherwise a busy writer would keep it from ending.
//!
//! **Freeing.** The drain writes straight from the ring and frees ring space once the write has
//! returned. It frees whole records only. So a record that is partly in a segment is still whole in
//! the ring, and recovery reads each record from one place.
//!
//! **Order.** The drain syncs a segment to its end before the next one gets its name. So a sync
//! leaves no gap behind it, and a checkpoint's sync covers everything before it (D2).
//!
//! **Other files.** Records may name values in other files. Before each sync of a segment, the
//! drain calls the hook of [`Log::before_sync`](crate::Log::before_sync), which syncs those. What
//! the sync covers was fixed, or drained, before.
//!
//! **Failures.** A failed write or sync poisons the log. A failed search for space is a shortage,
//! which ends once space is found. A failed write of zeros ahead changes nothing but speed.
//!
//! **Stop.** After a stop without a close, the drain syncs the rest as far as there is space. The
//! process may live on, and the sync interval still holds.
//!
//! **Marks.** A sync of records leaves a mark in the ring that says how far it reached. The next
//! sync makes that mark durable. If no record follows, the drain syncs once more soon after.
//! Otherwise a power cut, which takes the ring, would leave the last burst without a mark. Damage
//! in that burst would then look like a torn tail (decision 0030). This extra sync covers no record
//! and leaves no mark, so an idle log rests after it.

use std::ops::ControlFlow;

use terrapin_base::sync::{Arc, Ordering};
use terrapin_base::{Condition, Error, Job, Result, Step, mutant};
use terrapin_disk::RingReader;

use crate::format::{
    BLOCK_BYTES, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, block_down, branch_link,
    filler_bytes, next_number,
};
use crate::log::Shared;
use crate::segments::CurrentSegment;

/// Largest write in bytes.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of zeros that are written ahead of the records.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// A sync of more bytes than this writes no zeros ahead.
const AHEAD_SYNC_BYTES_MAX: u64 = AHEAD_BYTES_MAX as u64 / 4;
/// The bytes that are written ahead.
static ZEROS: Zeros = Zeros([0; AHEAD_BYTES_MAX]);

/// A block of zeros, aligned for direct I/O.
#[repr(align(4096))]
struct Zeros([u8; AHEAD_BYTES_MAX]);

/// Shortest time between two searches for space that no append requested.
const SHORTAGE_RETRY_NS: u64 = 10_000_000;
/// Longest time from a sync that no record follows to the sync of its mark.
const MARK_WAIT_NS_MAX: u64 = 1_000_000_000;

/// The sync that is under way.
#[derive(Clone, Copy)]
struct Sync {
    /// LSN that the sync will have reached.
    reach: u64,
    begun_ns: u64,
    /// A caller waits for it.
    asked: bool,
    /// It covers records, so it leaves a mark.
    of_records: bool,
}

/// The bound of whole records at or below `Drain::drained`.
#[derive(Clone, Copy)]
struct WholeBound {
    /// Every record below this LSN ends at or below `drained`.
    whole_below: u64,
    /// End of the record that reaches across `drained`; `drained` if there is none.
    next: u64,
}

/// The drain job.
pub(crate) struct Drain {
    log: Arc<Shared>,
    reader: RingReader,
    current: CurrentSegment,
    /// Everything below this LSN, a block's start, is in segments.
    drained: u64,
    bound: WholeBound,
    /// Everything below this LSN, a block's start, is to be drained.
    target: u64,
    sync: Option<Sync>,
    /// Bytes that small syncs with waiting callers have covered so far.
    small_sync_bytes: u64,
    /// When the next sync begins without a request.
    deadline_ns: Option<u64>,
    /// When the last sync's mark must be synced if no record comes before. `None` once the mark is
    /// durable.
    mark_due_ns: Option<u64>,
    /// A segment was taken into use, and no spare has been prepared since.
    lacks_spare: bool,
    /// The earliest time of the next attempt to prepare a spare.
    spare_retry_ns: u64,
}

/// The job that a second call of `drain_job` returns; it ends at once.
pub(crate) struct Over;

impl Job for Over {
    fn name(&self) -> &'static str {
        "log-drain"
    }

    fn step(&mut self) -> Step {
        Step::Done
    }
}

impl Job for Drain {
    fn name(&self) -> &'static str {
        "log-drain"
    }

    fn step(&mut self) -> Step {
        self.log.woken.store(false, Ordering::SeqCst);
        let is_last = self.log.stopped.load(Ordering::Acquire);
        if self.log.has_failed()
            || is_last && !self.log.wants_last_sync() && !self.wants_last_mark()
        {
            return Step::Done;
        }
        match self.advance() {
            // Without space for the next segment, a stopped log cannot sync any further.
            Ok(Step::Pending(_)) if is_last => Step::Done,
            Ok(step) => step,
            Err(error) => {
                self.log.poison(error);
                Step::Done
            }
        }
    }

    fn panicked(&mut self, error: Error) {
        self.log.poison(error);
    }
}

impl Drain {
    pub(crate) fn new(log: Arc<Shared>, reader: RingReader, current: CurrentSegment) -> Self {
        let start = current.start;
        Drain {
            log,
            reader,
            current,
            drained: start,
            bound: WholeBound {
                whole_below: start,
                next: start,
            },
            target: start,
            sync: None,
            small_sync_bytes: 0,
            deadline_ns: None,
            mark_due_ns: None,
            lacks_spare: true,
            spare_retry_ns: 0,
        }
    }

    /// Does one write, one sync or one change of segments. If nothing is to be done, returns the
    /// condition to wait for.
    fn advance(&mut self) -> Result<Step> {
        if self.sync.is_none() {
            // Prepare the spare first: writers that sync without a pause would leave no time for
            // it.
            let is_quiet = self.lacks_spare && self.drained == self.target;
            if is_quiet && self.log.env.now_ns() >= self.spare_retry_ns {
                self.prepare_spare();
                return Ok(Step::Again);
            }
            if self.sync_is_due() {
                self.begin_sync();
            }
        }
        if self.drained < self.target {
            if self.drained == self.current_end() {
                return self.change_segment();
            }
            self.write_piece()?;
            return Ok(Step::Again);
        }
        if let Some(sync) = self.sync {
            self.end_sync(sync)?;
            return Ok(Step::Again);
        }
        Ok(match self.choose_target() {
            ControlFlow::Continue(()) => Step::Again,
            ControlFlow::Break(condition) => Step::Pending(condition),
        })
    }

    /// Prepares a spare for the next change of segments.
    fn prepare_spare(&mut self) {
        match self.log.segments.prepare() {
            Ok(()) => self.lacks_spare = false,
            Err(error) => {
                tracing::debug!(%error, "no spare for the log yet");
                // The next attempt follows a sync, so an idle log makes none.
                self.spare_retry_ns = self.retry_ns();
            }
        }
    }

    /// Whether a stopped log must sync the mark of its last sync now. A closed log needs no mark.
    fn wants_last_mark(&mut self) -> bool {
        if self.mark_due_ns.is_some() {
            let closed = self.log.lock().close_end.is_some();
            self.mark_due_ns = (!closed).then_some(0);
        }
        self.mark_due_ns.is_some() || self.sync.is_some()
    }

    fn current_end(&self) -> u64 {
        self.current.start + self.log.segments.capacity()
    }

    fn sync_is_due(&self) -> bool {
        let log = &self.log;
        let now_ns = log.env.now_ns();
        let is_past = |time: Option<u64>| time.is_some_and(|time| now_ns >= time);
        log.sync_wanted.load(Ordering::Acquire) > log.synced()
            || is_past(self.deadline_ns)
            || is_past(self.mark_due_ns)
    }

    fn begin_sync(&mut self) {
        self.deadline_ns = None;
        let begun_ns = self.log.env.now_ns();
        let synced = self.log.synced();
        let mark_is_due = self.mark_due_ns.take_if(|due| begun_ns >= *due).is_some();
        let segments = &self.log.segments;
        let has_file = segments.spare_count() > 0 && !segments.space_is_scarce();
        let (reach, asked, of_records) = {
            let mut tail = self.log.lock();
            let asked = self.log.sync_wanted.load(Ordering::Acquire) > synced;
            let of_records = asked || tail.real_end > synced;
            // The sync of a mark takes no file that records may need. It needs none at a change of
            // segments: the next segment's header says what the mark says.
            let padded = tail.lsn + filler_bytes(tail.lsn);
            let fits = has_file || padded <= self.current_end();
            let of_mark = mark_is_due && fits && tail.lsn > self.drained;
            // Without records, either a change of segments has synced them since, or the last
            // sync's mark is due.
            if !of_records && !of_mark {
                return;
            }
            (self.log.pad(&mut tail), asked, of_records)
        };
        self.mark_due_ns = None;
        self.target = reach;
        self.sync = Some(Sync {
            reach,
            begun_ns,
            asked,
            of_records,
        });
    }

    fn write_piece(&mut self) -> Result<()> {
        let most = (self.target - self.drained)
            .min(self.current_end() - self.drained)
            .min(WRITE_BYTES_MAX)
            .min(self.log.space.bytes() / 4);
        let bytes = self.reader.lend(self.drained, most as usize);
        let count = bytes.len() as u64;
        self.current.write(bytes, self.drained)?;
        self.drained += count;
        self.bound = self.find_bound();
        self.reader
            .free(match mutant::active("ring-freed-by-bytes") {
                true => self.drained,
                false => self.bound.whole_below,
            });
        let counters = &self.log.counters;
        counters.drained_bytes.fetch_add(count, Ordering::Relaxed);
        counters.drain_writes.fetch_add(1, Ordering::Relaxed);
        self.log.progress.notify();
        Ok(())
    }

    /// Finds the bound from the last record that starts below `drained`. That record is whole in
    /// the ring, because none of its bytes were freed.
    fn find_bound(&mut self) -> WholeBound {
        let floor = self.bound.whole_below;
        let mut block = self.drained;
        while block > block_down(floor) {
            block -= BLOCK_BYTES;
            if let Some(start) = self.log.last_start(block, floor) {
                let mut header = [0; RECORD_HEADER_BYTES as usize];
                self.reader.read(start, &mut header);
                let Some(header) = RecordHeader::decode(&header) else {
                    break;
                };
                let end = start + header.record_bytes();
                return match end <= self.drained {
                    true => WholeBound {
                        whole_below: self.drained,
                        next: self.drained,
                    },
                    false => WholeBound {
                        whole_below: start,
                        next: end,
                    },
                };
            }
        }
        // The loop finds the record at `floor` at the latest. If it did not, nothing would be freed
        // and nothing lost.
        debug_assert!(false, "no record starts in what was drained");
        self.bound
    }

    fn end_sync(&mut self, sync: Sync) -> Result<()> {
        let reached = sync.reach;
        if self.log.synced() < reached {
            if sync.asked {
                self.write_ahead();
            }
            self.sync_current()?;
        }
        let real_is_left = {
            let mut tail = self.log.lock();
            if sync.of_records {
                // Write the mark before callers learn of the sync. Then a lone writer's next record
                // follows the mark in the same block.
                self.log.mark(&mut tail, reached);
            }
            tail.real_end > reached
        };
        self.sync = None;
        if sync.of_records && !mutant::active("last-mark-not-durable") {
            let wait_ns = self.log.options.sync_interval_ns.min(MARK_WAIT_NS_MAX);
            self.mark_due_ns = Some(self.log.env.now_ns().saturating_add(wait_ns));
        }
        if real_is_left {
            let interval_ns = self.log.options.sync_interval_ns;
            self.deadline_ns = Some(sync.begun_ns.saturating_add(interval_ns));
        }
        self.log.synced.store(reached, Ordering::Release);
        self.log.tell_all();
        Ok(())
    }

    /// Writes zeros behind a small sync, so that the next small syncs find blocks that were written
    /// before. The sync of a block that was never written also waits for the file system's journal,
    /// which records that the block now has content. The zeros cover as many bytes as small syncs
    /// have taken so far.
    fn write_ahead(&mut self) {
        let bytes = self.drained.saturating_sub(self.log.synced());
        if bytes > AHEAD_SYNC_BYTES_MAX {
            return;
        }
        self.small_sync_bytes += bytes;
        // On a file system that writes each time to a new place, zeros take space.
        if self.drained < self.current.written_to || self.log.segments.space_is_scarce() {
            return;
        }
        let room = self.current_end() - self.drained;
        let bytes = self.small_sync_bytes.min(ZEROS.0.len() as u64).min(room);
        if let Err(error) = self.current.write(&ZEROS.0[..bytes as usize], self.drained) {
            // Zeros serve speed only. A fault that concerns records shows again when records are
            // written.
            tracing::debug!(%error, "nothing is written ahead in this segment of the log");
            self.current.written_to = u64::MAX;
            return;
        }
        self.current.written_to = self.drained + bytes;
        let ahead = &self.log.counters.ahead_bytes;
        ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    fn sync_current(&mut self) -> Result<()> {
        // Records up to the target may name what lies in other files.
        if let Some(before_sync) = self.log.before_sync.get() {
            before_sync()?;
        }
        let began = self.log.env.now_ns();
        let synced = match mutant::active("log-segments-unsynced") {
            true => Ok(()),
            false => self.current.file.sync(),
        };
        let synced = match synced {
            Err(_) if mutant::active("log-sync-retried") => self.current.file.sync(),
            synced => synced,
        };
        synced.map_err(|error| self.current.name_in(error))?;
        let took = self.log.env.now_ns().saturating_sub(began);
        let counters = &self.log.counters;
        counters.syncs.fetch_add(1, Ordering::Relaxed);
        counters.sync_ns.fetch_add(took, Ordering::Relaxed);
        counters.sync_ns_max.fetch_max(took, Ordering::Relaxed);
        Ok(())
    }

    /// Changes segments: syncs the full one to its end, then takes the next into use.
    ///
    /// Callers learn of this sync only once the next header, or a mark in the ring, says how far it
    /// reached. So damage to bytes that a caller believes durable never looks like a torn tail
    /// (decision 0030).
    fn change_segment(&mut self) -> Result<Step> {
        let is_news = self.log.synced() < self.drained;
        if is_news {
            self.sync_current()?;
        }
        let spare = match self.log.segments.obtain() {
            Ok(spare) => spare,
            Err(error) => {
                if is_news {
                    self.log.mark(&mut self.log.lock(), self.bound.whole_below);
                    self.full_is_synced();
                }
                self.log.set_shortage(Some(error));
                self.log.lock().wake_at = u64::MAX;
                return Ok(Step::Pending(self.woken().until(self.retry_ns())));
            }
        };
        let header = SegmentHeader {
            database_id: self.log.options.database_id,
            number: next_number(self.current.number)?,
            incarnation: self.log.life_id.incarnation,
            start: self.drained,
            previous_end: self.drained,
            whole_below: self.bound.whole_below,
            first: self.bound.next,
            capacity: self.log.segments.capacity(),
            branch: self.log.life_id.branch,
            previous_branch: branch_link(self.log.life_id.branch),
        };
        self.current = self.log.segments.install(&spare, &header)?;
        if is_news {
            self.full_is_synced();
        }
        self.lacks_spare = true;
        self.spare_retry_ns = 0;
        self.log.set_shortage(None);
        self.log.counters.segments.fetch_add(1, Ordering::Relaxed);
        Ok(Step::Again)
    }

    /// Reports that everything drained is on stable storage.
    fn full_is_synced(&self) {
        self.log.synced.store(self.drained, Ordering::Release);
        self.log.tell_all();
    }

    /// Chooses the next target when nothing is under way; otherwise returns what to wait for.
    fn choose_target(&mut self) -> ControlFlow<Condition> {
        let quarter = self.log.space.bytes() / 4;
        let room_wanted = self.log.room_wanted.swap(false, Ordering::AcqRel);
        let mut tail = self.log.lock();
        let whole = block_down(tail.lsn);
        // Fillers and marks alone start neither a drain nor the clock. Otherwise an idle store
        // would sync again and again.
        let unsynced = tail.real_end > self.log.synced();
        if whole >= self.drained + quarter || (room_wanted && whole > self.drained) {
            drop(tail);
            // The clock runs even while the drain never catches up with the writers.
            if unsynced {
                self.start_clock();
            }
            self.target = whole;
            if mutant::active("ring-freed-before-drain") {
                self.reader.free(whole);
            }
            return ControlFlow::Continue(());
        }
        let deadline = if unsynced {
            tail.wake_at = self.drained + quarter + BLOCK_BYTES;
            drop(tail);
            // The sync of these records also makes the mark durable.
            self.mark_due_ns = None;
            Some(self.start_clock())
        } else {
            tail.wake_at = 0;
            drop(tail);
            self.deadline_ns = None;
            self.mark_due_ns
        };
        ControlFlow::Break(match deadline {
            Some(deadline) => self.woken().until(deadline),
            None => self.woken(),
        })
    }

    /// Starts the interval's clock unless it runs; returns when it ends.
    fn start_clock(&mut self) -> u64 {
        let log = &self.log;
        let interval_ns = log.options.sync_interval_ns;
        *self
            .deadline_ns
            .get_or_insert_with(|| log.env.now_ns().saturating_add(interval_ns))
    }

    /// The time of the next search for space after a search that failed.
    fn retry_ns(&self) -> u64 {
        let pause_ns = self.log.options.sync_interval_ns.max(SHORTAGE_RETRY_NS);
        self.log.env.now_ns().saturating_add(pause_ns)
    }

    fn woken(&self) -> Condition {
        let log = self.log.clone();
        Condition::new(&self.log.drain_wanted, move || {
            log.woken.load(Ordering::SeqCst)
        })
    }
}
