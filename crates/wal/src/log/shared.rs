//! The state that the log's handles and its drain job share.
//!
//! [`Tail`] is what the append lock protects. Everything else in [`Shared`] is atomic, or has a
//! lock of its own that no append takes unless the ring is full.

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use terrapin_base::{Condition, Env, Error, ErrorKind, Lsn, Result, Signal, mutant};
use terrapin_disk::{LogRing, RingReader, RingSpace, RingWriter};

use crate::format::{BLOCK_BYTES, LifeId};
use crate::metrics::Counters;
use crate::options::LogOptions;
use crate::publish::Publisher;
use crate::segments::{CurrentSegment, Segments};

/// A record in the log, which is to be published.
#[derive(Debug)]
#[must_use = "a record that is never published stops every later one"]
pub struct Appended {
    /// Where it starts: its version number.
    pub lsn: Lsn,
    /// Where it ends: what a sync must reach.
    pub end: Lsn,
    /// How many records of this life were appended before it; none for what needs no publication.
    pub(super) number: Option<u64>,
}

/// The outcome of an append.
pub enum Append {
    /// The record survives the process's death from now on; publish it.
    Done(Appended),
    /// No room in the ring. Nothing was taken: wait for the condition, holding nothing, and try
    /// again. While there is the condition, the record's bytes count in `Log::ring_fill`.
    Full(Condition),
}

/// An LSN that separates the records of two memtables. `Log::boundary` makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Every record below was appended before the boundary, every later one starts here or above.
    pub lsn: Lsn,
    /// All records below the boundary are published once [`visible`](super::Log::visible) reaches
    /// this.
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
    /// What the drain had freed when last looked at.
    pub(super) freed_seen: u64,
    /// The drain wants to be woken by the append that reaches this.
    pub(crate) wake_at: u64,
    /// End of the closing record, after which nothing is appended.
    pub(crate) close_end: Option<u64>,
    pub(super) records: u64,
    pub(super) appended_bytes: u64,
    pub(super) overhead_bytes: u64,
}

/// The log's end, on cache lines of its own: writers take them from each other with each record,
/// and should take nothing else with them.
#[repr(align(128))]
pub(super) struct End {
    /// The append lock. Nothing else is locked while it is held.
    pub(super) lock: Mutex<Tail>,
    /// `Tail::lsn`, for who does not need the lock.
    pub(super) lsn: AtomicU64,
}

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) options: LogOptions,
    pub(crate) life_id: LifeId,
    pub(super) simulated: bool,
    pub(super) ring_bytes: u64,

    pub(super) end: End,
    /// For each block of the ring that records have filled, the LSN of the last one that starts in
    /// it: the drain frees whole records by it.
    pub(super) starts: Box<[AtomicU64]>,

    pub(super) publisher: Publisher,
    pub(super) visible_changed: Arc<Signal>,
    /// A writer sleeps until others have published.
    pub(super) left_asleep: AtomicBool,

    pub(crate) space: RingSpace,
    pub(crate) synced: AtomicU64,
    pub(crate) sync_wanted: AtomicU64,
    pub(crate) room_wanted: AtomicBool,
    /// Bytes of records that wait for room.
    pub(super) waiting: AtomicU64,
    pub(crate) woken: AtomicBool,
    pub(crate) drain_wanted: Arc<Signal>,
    /// Ring space, syncs, shortages, failure and end.
    pub(crate) progress: Arc<Signal>,
    /// Told of what ends a wait for a sync: apart from `progress`, which is told of every write to
    /// a segment, in the midst of a sync, too.
    pub(crate) synced_changed: Arc<Signal>,

    /// Why there is no segment to write to, while there is none.
    pub(super) shortage: Mutex<Option<Error>>,
    pub(super) shortages: AtomicU64,
    pub(super) failed: AtomicBool,
    pub(super) failure: Mutex<Option<Error>>,
    pub(super) failure_changed: Arc<Signal>,
    pub(crate) stopped: AtomicBool,
    pub(super) closed: AtomicBool,

    pub(crate) segments: Segments,
    pub(crate) counters: Counters,
    /// What the drain job starts with, until it does.
    pub(super) drain: Mutex<Option<(RingReader, CurrentSegment)>>,
}

/// What a new life of the log begins with.
pub(crate) struct Beginning {
    pub(crate) options: LogOptions,
    pub(crate) incarnation: u32,
    pub(crate) ring: LogRing,
    pub(crate) segments: Segments,
    /// The segment to write to.
    pub(crate) current: CurrentSegment,
}

/// Whether a close leaves the log's end without a sync: never, but in a mutant.
pub(super) fn is_close_unsynced() -> bool {
    mutant::active("close-without-log-sync")
}

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

    /// Once nobody appends any more: whether there are records that the interval's end would have
    /// synced. The process may live on for long.
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

    /// Makes all threads that wait for the drain or for a sync test their conditions again.
    pub(crate) fn tell_all(&self) {
        self.progress.notify();
        self.synced_changed.notify();
    }

    /// No segment can be had; `None` when one was.
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
