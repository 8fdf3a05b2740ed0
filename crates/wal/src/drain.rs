//! The drain: the one job that moves the ring's bytes into segments and makes them durable.
//!
//! It writes whole blocks of records only, each once: a sync first fills the stream up to a block's
//! start, so what is synced is never written again. (Where a file is new, small syncs have zeros
//! written ahead of the records, over which these go.) What a sync has to reach is fixed when it
//! begins, or a busy writer would starve it. Ring space is given back when the write, which goes
//! straight from the ring, has returned, but only by whole records: while a record is partly in a
//! segment, its copy in the ring is still whole, and recovery reads each record from one place.
//!
//! A segment is synced to its end before the next one gets its name, so a sync never leaves a gap
//! behind it, and what a checkpoint asks to be synced is synced with everything before it (D2).
//! What fails here poisons the log, except the search for space, which is a shortage that ends by
//! itself when space is found, and zeros ahead.
//!
//! When the log is stopped without a close, what was not synced yet is, as far as there is space:
//! the interval is a promise, and the process may live on.
//!
//! A sync of records leaves a mark in the ring, which says how far it reached. The next sync makes
//! that mark durable. If no record follows, the drain syncs once more, soon after: otherwise a
//! power cut, which takes the ring, would leave the last burst before an idle time without a mark,
//! and damage in it would look like a torn tail (decision 0030). This sync covers no record and
//! leaves no mark, so an idle log rests after it.

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

/// Largest write.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// How far zeros are written ahead at most.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// A sync of more bytes than this has none written ahead.
const AHEAD_SYNC_BYTES_MAX: u64 = AHEAD_BYTES_MAX as u64 / 4;
/// What is written ahead.
static ZEROS: Zeros = Zeros([0; AHEAD_BYTES_MAX]);

/// Aligned for direct I/O.
#[repr(align(4096))]
struct Zeros([u8; AHEAD_BYTES_MAX]);

/// Shortest time between two searches for space that nobody asked for.
const SHORTAGE_RETRY_NS: u64 = 10_000_000;
/// Longest time from a sync that no record follows to the sync of its mark.
const MARK_WAIT_NS_MAX: u64 = 1_000_000_000;

/// A sync that is under way.
#[derive(Clone, Copy)]
struct Sync {
    /// What it will have reached.
    reach: u64,
    begun_ns: u64,
    /// Somebody waits for it.
    asked: bool,
    /// It covers records, so that it leaves a mark.
    of_records: bool,
}

/// The bound of whole records at or below `Drain::drained`.
#[derive(Clone, Copy)]
struct WholeBound {
    /// Every record below lies wholly below `drained`.
    whole_below: u64,
    /// Where the record that reaches across `drained` ends; `drained` if there is none.
    next: u64,
}

/// The drain job.
pub(crate) struct Drain {
    log: Arc<Shared>,
    reader: RingReader,
    current: CurrentSegment,
    /// Everything below is in segments: a block's start.
    drained: u64,
    bound: WholeBound,
    /// Everything below is to be drained: a block's start.
    target: u64,
    sync: Option<Sync>,
    /// Bytes of small syncs that somebody waited for.
    small_sync_bytes: u64,
    /// When the next sync begins without being asked for.
    deadline_ns: Option<u64>,
    /// When the last sync's mark is to be synced, if no record comes before: none when that mark is
    /// durable.
    mark_due_ns: Option<u64>,
    /// A segment was taken into use and no spare was prepared yet.
    lacks_spare: bool,
    /// When that is tried again at the earliest.
    spare_retry_ns: u64,
}

/// What the second caller of `drain_job` gets.
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
            // There is no space for the next segment, and nobody will make any.
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

    /// One write, one sync, or one change of segments; otherwise what to wait for.
    fn advance(&mut self) -> Result<Step> {
        if self.sync.is_none() {
            // First, or writers who sync without a pause would never leave time for it.
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

    /// Sees to it that a spare waits for the next change of segments.
    fn prepare_spare(&mut self) {
        match self.log.segments.prepare() {
            Ok(()) => self.lacks_spare = false,
            Err(error) => {
                tracing::debug!(%error, "no spare for the log yet");
                // After a sync, that is: an idle log asks no more.
                self.spare_retry_ns = self.retry_ns();
            }
        }
    }

    /// Once nobody appends any more: whether the mark of the last sync is to be synced now. A log
    /// that was closed needs no mark.
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
            // A mark takes no file that records may need. (The header of a file that is taken into
            // use says what the mark says.)
            let padded = tail.lsn + filler_bytes(tail.lsn);
            let fits = has_file || padded <= self.current_end();
            let of_mark = mark_is_due && fits && tail.lsn > self.drained;
            // Without records, either a change of segments has synced them meanwhile, or the mark
            // of the last sync is due.
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

    /// The last record that starts below `drained` tells the bound. It is whole in the ring, since
    /// nothing of it was freed.
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
        // The record that starts at `floor` is found at the latest; were it not, nothing would be
        // freed and nothing lost.
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
                // Before anyone learns of the sync, so that a lone writer's next record follows the
                // mark in the same block.
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

    /// Who waits for the sync of a block that was never written waits for the file system's
    /// journal, too, which notes that it has content now. So a small sync has zeros written behind
    /// it, and those after it find blocks that were written: as many as small syncs have taken so
    /// far.
    fn write_ahead(&mut self) {
        let bytes = self.drained.saturating_sub(self.log.synced());
        if bytes > AHEAD_SYNC_BYTES_MAX {
            return;
        }
        self.small_sync_bytes += bytes;
        // Where a file system writes to another place each time, it takes space.
        if self.drained < self.current.written_to || self.log.segments.space_is_scarce() {
            return;
        }
        let room = self.current_end() - self.drained;
        let bytes = self.small_sync_bytes.min(ZEROS.0.len() as u64).min(room);
        if let Err(error) = self.current.write(&ZEROS.0[..bytes as usize], self.drained) {
            // It is for speed only; what fails for records, too, will tell.
            tracing::debug!(%error, "nothing is written ahead in this segment of the log");
            self.current.written_to = u64::MAX;
            return;
        }
        self.current.written_to = self.drained + bytes;
        let ahead = &self.log.counters.ahead_bytes;
        ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    fn sync_current(&mut self) -> Result<()> {
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

    /// The segment is full: syncs it to its end first, then takes the next into use. Who waits for
    /// a sync learns of it when the next segment's header says so on stable storage, or a mark in
    /// the ring: damage to what they were told is durable never looks like a torn tail then
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

    /// Everything that was drained is on stable storage, and the log says so.
    fn full_is_synced(&self) {
        self.log.synced.store(self.drained, Ordering::Release);
        self.log.tell_all();
    }

    /// Nothing is under way: a target, or what to wait for.
    fn choose_target(&mut self) -> ControlFlow<Condition> {
        let quarter = self.log.space.bytes() / 4;
        let room_wanted = self.log.room_wanted.swap(false, Ordering::AcqRel);
        let mut tail = self.log.lock();
        let whole = block_down(tail.lsn);
        // Fillers and marks alone neither start a drain nor a clock, or an idle store would sync
        // for ever.
        let unsynced = tail.real_end > self.log.synced();
        if whole >= self.drained + quarter || (room_wanted && whole > self.drained) {
            drop(tail);
            // The clock runs whether or not the drain ever catches up with the writers.
            if unsynced {
                self.wind_clock();
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
            // The sync of these records makes the mark durable, too.
            self.mark_due_ns = None;
            Some(self.wind_clock())
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

    /// Starts the interval's clock, unless it runs; when it is over.
    fn wind_clock(&mut self) -> u64 {
        let log = &self.log;
        let interval_ns = log.options.sync_interval_ns;
        *self
            .deadline_ns
            .get_or_insert_with(|| log.env.now_ns().saturating_add(interval_ns))
    }

    /// When space is searched for again that was not found now.
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
