//! The state that the log's handles and its drain job share.
//!
//! The append lock protects [`Tail`]. Everything else in [`Shared`] is atomic or has a lock of its
//! own. An append takes such a lock only if the ring is full.

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering};
use terrapin_base::{Budget, Condition, Env, Error, ErrorKind, Lsn, Result, Signal, mutant};
use terrapin_disk::{LogRing, RingReader, RingSpace, RingWriter};

use super::recent::Recent;
use crate::format::{BLOCK_BYTES, LifeId};
use crate::metrics::Counters;
use crate::options::LogOptions;
use crate::publish::Publisher;
use crate::segments::{CurrentSegment, Segments};

/// A record that is in the log. The caller must publish it with `Log::publish`.
#[derive(Debug)]
#[must_use = "a record that is never published stops every later one"]
pub struct Appended {
    /// LSN at which the record starts; also its version number.
    pub lsn: Lsn,
    /// LSN at which the record ends. A sync that reaches it covers the record.
    pub end: Lsn,
    /// Number of users' records before this one in this life. `None` for a closing record, which
    /// needs no publication.
    pub(super) number: Option<u64>,
}

/// The outcome of an append.
pub enum Append {
    /// The record is in the ring and survives the death of the process. Publish it.
    Done(Appended),
    /// The ring has no room, and nothing was appended. Wait for the condition without holding a
    /// lock, then try again. While the condition exists, the record's bytes count in
    /// `Log::ring_fill`.
    Full(Condition),
}

/// An LSN that separates the records of two memtables. `Log::boundary` makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The boundary: every earlier record starts below this LSN, every later record at or above it.
    pub lsn: Lsn,
    /// All records below the boundary are published once [`visible`](super::Log::visible) reaches
    /// this LSN.
    pub publish_to: Lsn,
}

/// The log's tail, which the append lock protects.
pub(crate) struct Tail {
    /// The ring's writer; none once the ring was released.
    pub(super) writer: Option<RingWriter>,
    /// LSN of the next record.
    pub(crate) lsn: u64,
    /// End of the last record that is not a filler or mark.
    pub(crate) real_end: u64,
    /// End of the last record that is to be published.
    pub(super) publish_end: u64,
    /// The freed bound that appends read last.
    pub(super) freed_seen: u64,
    /// The append that reaches this LSN wakes the drain.
    pub(crate) wake_at: u64,
    /// End of the closing record; no record is appended after it.
    pub(crate) close_end: Option<u64>,
    pub(super) records: u64,
    pub(super) appended_bytes: u64,
    pub(super) overhead_bytes: u64,
    /// What the latest records touched, while a watch exists.
    pub(super) recent: Recent,
    /// The budget that pays for watches.
    pub(super) budget: Option<Arc<Budget>>,
}

/// The log's end, on cache lines of its own. Each append moves these lines between processors, and
/// no other field should move with them.
#[repr(align(128))]
pub(super) struct End {
    /// The append lock. Nothing else is locked while it is held.
    pub(super) lock: Mutex<Tail>,
    /// A copy of `Tail::lsn` for readers without the lock.
    pub(super) lsn: AtomicU64,
    /// Whether appends say what they touch (`Recent::is_raised`). A hint: an append that reads an
    /// old value counts as touching everything.
    pub(super) watched: AtomicBool,
}

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) options: LogOptions,
    pub(crate) life_id: LifeId,
    pub(super) simulated: bool,
    pub(super) ring_bytes: u64,

    pub(super) end: End,
    /// For each full block of the ring, the LSN of the last record that starts in the block. The
    /// drain finds the bound of whole records with it.
    pub(super) starts: Box<[AtomicU64]>,

    pub(super) publisher: Publisher,
    pub(super) visible_changed: Arc<Signal>,
    /// A writer sleeps until other writers have published.
    pub(super) left_asleep: AtomicBool,

    pub(crate) space: RingSpace,
    pub(crate) synced: AtomicU64,
    pub(crate) sync_wanted: AtomicU64,
    pub(crate) room_wanted: AtomicBool,
    /// Bytes of records that wait for room.
    pub(super) waiting: AtomicU64,
    pub(crate) woken: AtomicBool,
    pub(crate) drain_wanted: Arc<Signal>,
    /// Notified when the drain frees ring space or syncs, and when a shortage, a failure or the end
    /// comes.
    pub(crate) progress: Arc<Signal>,
    /// Notified when a wait for a sync may end. `progress` also reports each write to a segment, so
    /// it would wake these threads too often.
    pub(crate) synced_changed: Arc<Signal>,

    /// The error of the last search for a segment file, until a search succeeds.
    pub(super) shortage: Mutex<Option<Error>>,
    pub(super) shortages: AtomicU64,
    pub(super) failed: AtomicBool,
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) failure_changed: Arc<Signal>,
    /// Called before each sync of a segment.
    pub(crate) before_sync: OnceLock<BeforeSync>,
    pub(crate) stopped: AtomicBool,
    pub(super) closed: AtomicBool,

    pub(crate) segments: Segments,
    pub(crate) counters: Counters,
    /// The parts of the drain job, until `drain_job` takes them.
    pub(super) drain: Mutex<Option<(RingReader, CurrentSegment)>>,
}

/// The parts of a new life of the log.
pub(crate) struct Beginning {
    pub(crate) options: LogOptions,
    pub(crate) incarnation: u32,
    pub(crate) ring: LogRing,
    pub(crate) segments: Segments,
    /// The first segment that the life writes.
    pub(crate) current: CurrentSegment,
}

/// Whether a close skips the sync of the log's end. Only a mutant does.
pub(super) fn is_close_unsynced() -> bool {
    mutant::active("close-without-log-sync")
}

/// What the drain calls before each sync of a segment.
pub(crate) type BeforeSync = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl Shared {
    /// The state of a life that has no record yet.
    pub(super) fn new(env: &Env, beginning: Beginning) -> Shared {
        let Beginning {
            options,
            incarnation,
            ring,
            segments,
            current,
        } = beginning;
        let start = current.start;
        let ring_bytes = ring.bytes();
        let (writer, reader, space): (RingWriter, RingReader, RingSpace) = ring.split(start);
        let tail = Tail {
            writer: Some(writer),
            lsn: start,
            real_end: start,
            publish_end: start,
            freed_seen: start,
            wake_at: 0,
            close_end: None,
            records: 0,
            appended_bytes: 0,
            overhead_bytes: 0,
            recent: Recent::new(),
            budget: None,
        };
        let blocks = ring_bytes / BLOCK_BYTES;
        Shared {
            env: env.clone(),
            options,
            life_id: LifeId {
                branch: options.branch,
                incarnation,
            },
            simulated: env.is_simulated(),
            ring_bytes,
            end: End {
                lock: Mutex::new(tail),
                lsn: AtomicU64::new(start),
                watched: AtomicBool::new(false),
            },
            starts: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            publisher: Publisher::new(start),
            visible_changed: Signal::new(),
            left_asleep: AtomicBool::new(false),
            space,
            synced: AtomicU64::new(start),
            sync_wanted: AtomicU64::new(0),
            room_wanted: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            woken: AtomicBool::new(false),
            drain_wanted: Signal::new(),
            progress: Signal::new(),
            synced_changed: Signal::new(),
            shortage: Mutex::new(None),
            shortages: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            failure_changed: Signal::new(),
            before_sync: OnceLock::new(),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            segments,
            counters: Counters::default(),
            drain: Mutex::new(Some((reader, current))),
        }
    }

    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn wake_drain(&self) {
        self.woken.store(true, Ordering::Release);
        self.drain_wanted.notify();
    }

    /// Whether the drain must sync once more after the last append. It requests a sync if records
    /// are unsynced, because the process may live on for long.
    pub(crate) fn wants_last_sync(&self) -> bool {
        let end = self.lock().real_end;
        let wanted = end > self.synced() && !is_close_unsynced();
        if wanted {
            self.sync_wanted.fetch_max(end, Ordering::AcqRel);
        }
        wanted
    }

    pub(super) fn is_over(&self) -> bool {
        self.failed.load(Ordering::Acquire) || self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn check_alive(&self) -> Result<()> {
        if self.failed.load(Ordering::Acquire)
            && let Some(error) = self.failure.lock().clone()
        {
            return Err(error);
        }
        if self.stopped.load(Ordering::Acquire) {
            Err(closed())
        } else {
            Ok(())
        }
    }

    pub(crate) fn poison(&self, cause: Error) {
        {
            let mut failure = self.failure.lock();
            if failure.is_some() {
                return;
            }
            tracing::error!(%cause, "the log failed; nothing durable is written any more");
            let error = match cause.kind() {
                ErrorKind::Poisoned => cause,
                _ => Error::new(
                    ErrorKind::Poisoned,
                    "the log could not be written or synced; nothing durable is written until the database is opened again",
                )
                .with("cause", cause),
            };
            *failure = Some(error);
            self.failed.store(true, Ordering::Release);
        }
        self.failure_changed.notify();
        self.tell_all();
        self.wake_drain();
    }

    /// Wakes all threads that wait for the drain or for a sync.
    pub(crate) fn tell_all(&self) {
        self.progress.notify();
        self.synced_changed.notify();
    }

    /// Records why no file for a segment was available; `None` ends the shortage.
    pub(crate) fn set_shortage(&self, error: Option<Error>) {
        let short = error.is_some();
        if let Some(error) = &error {
            tracing::warn!(%error, "no space for the log's next segment");
        }
        *self.shortage.lock() = error;
        if short {
            self.shortages.fetch_add(1, Ordering::AcqRel);
            self.tell_all();
        }
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log was closed")
}
