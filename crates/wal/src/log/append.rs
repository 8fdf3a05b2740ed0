//! The log's end: how records come to it, its users' and its own.
//!
//! The append lock is a mutex that is only ever tried, since it is held for tens of nanoseconds:
//! who fails spins, and naps once its holder must have lost its processor ([`Backoff`]).

use terrapin_base::sync::{Arc, AtomicU64, Backoff, MutexGuard, Ordering};
use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, mutant};

use super::shared::{Append, Appended, Shared, Tail, closed};
use crate::format::{
    BLOCK_BYTES, Draft, FILLER_BYTES_MAX, KIND_CLOSE, KIND_FILLER, KIND_MARK, MARK_BYTES,
    RECORD_HEADER_BYTES, Room, block_down, encode_mark, filler_bytes,
};
use crate::options::{APPEND_RESERVE_BYTES, SYNC_RESERVE_BYTES};

const ZEROS: [u8; FILLER_BYTES_MAX as usize] = [0; FILLER_BYTES_MAX as usize];

/// A record that waits for room in the ring. Its bytes count in [`super::Log::ring_fill`] until it
/// was tried again or given up: writers of short records, who find room all the time, would take
/// that of a long one bit by bit.
struct WaitingRecord {
    log: Arc<Shared>,
    bytes: u64,
}

impl WaitingRecord {
    fn new(log: &Arc<Shared>, bytes: u64) -> Self {
        log.waiting.fetch_add(bytes, Ordering::Relaxed);
        WaitingRecord {
            log: log.clone(),
            bytes,
        }
    }

    fn finds_room(&self) -> bool {
        let log = &self.log;
        let needed = log.end.lsn.load(Ordering::Acquire) + self.bytes + APPEND_RESERVE_BYTES;
        needed <= log.space.freed() + log.ring_bytes
    }
}

impl Drop for WaitingRecord {
    fn drop(&mut self) {
        self.log.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Shared {
    /// The append lock.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tail> {
        if let Some(guard) = self.end.lock.try_lock() {
            return guard;
        }
        self.lock_slowly()
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, Tail> {
        let mut backoff = Backoff::default();
        loop {
            backoff.pause();
            if let Some(guard) = self.end.lock.try_lock() {
                return guard;
            }
        }
    }

    #[inline]
    pub(super) fn append(
        self: &Arc<Self>,
        kind: u8,
        payload: &[&[u8]],
        install: impl FnOnce(Lsn),
    ) -> Result<Append> {
        let bytes = payload
            .iter()
            .fold(0u64, |sum, piece| sum.saturating_add(piece.len() as u64));
        let total = bytes.saturating_add(RECORD_HEADER_BYTES);
        if total > self.ring_bytes / 4 {
            return Err(too_large(bytes, self.ring_bytes));
        }
        self.check_alive()?;
        let length = total as u32 - RECORD_HEADER_BYTES as u32; // `total` is at most 2^28
        let mut room = Room::new();
        let mut draft = self.life_id.draft(kind, length, payload, &mut room);

        let mut tail = self.lock();
        if tail.writer.is_none() {
            return Err(closed());
        }
        if let Some(end) = tail.close_end {
            if kind != KIND_CLOSE {
                return Err(closed());
            }
            let end = Lsn(end);
            return Ok(Append::Done(Appended {
                lsn: end,
                end,
                number: None,
            }));
        }
        let end = tail.lsn + total;
        if end + APPEND_RESERVE_BYTES > tail.freed_seen + self.ring_bytes {
            tail.freed_seen = self.space.freed();
            if end + APPEND_RESERVE_BYTES > tail.freed_seen + self.ring_bytes {
                drop(tail);
                return self.full(total);
            }
        }
        let lsn = self.place(&mut tail, &mut draft);
        tail.real_end = end;
        let number = (kind != KIND_CLOSE).then_some(tail.records);
        if kind == KIND_CLOSE {
            tail.close_end = Some(end);
        } else {
            tail.publish_end = end;
            tail.records += 1;
            tail.appended_bytes += total;
        }
        install(Lsn(lsn));
        let wakes = end >= tail.wake_at;
        if wakes {
            tail.wake_at = u64::MAX;
        }
        drop(tail);
        if wakes {
            self.wake_drain();
        }
        Ok(Append::Done(Appended {
            lsn: Lsn(lsn),
            end: Lsn(end),
            number,
        }))
    }

    /// Puts a record at the tail, for which there is room.
    #[inline]
    fn place(&self, tail: &mut Tail, draft: &mut Draft<'_>) -> u64 {
        let lsn = tail.lsn;
        // Appends have tested it, and the drain's fillers and marks come before the end.
        let Some(writer) = &mut tail.writer else {
            return lsn;
        };
        draft.write(lsn, |at, bytes| writer.write(at, bytes));
        let end = lsn + draft.record_bytes();
        if end >= block_down(lsn) + BLOCK_BYTES {
            // No other starts in its block. Before the publication, so that who sees the bytes sees
            // this too.
            self.start_of_block(lsn).store(lsn, Ordering::Relaxed);
        }
        writer.publish(end);
        tail.lsn = end;
        self.end.lsn.store(end, Ordering::Release);
        lsn
    }

    /// As [`Shared::place`], for a record of the log's own.
    fn place_own(&self, tail: &mut Tail, kind: u8, payload: &[u8]) {
        let mut room = Room::new();
        let pieces = [payload];
        let mut draft = self
            .life_id
            .draft(kind, payload.len() as u32, &pieces, &mut room);
        self.place(tail, &mut draft);
    }

    fn start_of_block(&self, lsn: u64) -> &AtomicU64 {
        // The ring's size is a power of two.
        &self.starts[((lsn & (self.ring_bytes - 1)) / BLOCK_BYTES) as usize]
    }

    /// The last record that starts in the block at `block` and not below `floor`.
    pub(crate) fn last_start(&self, block: u64, floor: u64) -> Option<u64> {
        let start = self.start_of_block(block).load(Ordering::Relaxed);
        (start >= block.max(floor) && start < block + BLOCK_BYTES).then_some(start)
    }

    /// No room for `total` bytes: nothing was taken.
    fn full(self: &Arc<Self>, total: u64) -> Result<Append> {
        self.counters.full.fetch_add(1, Ordering::Relaxed);
        let shortages = self.shortages.load(Ordering::Acquire);
        let shortage = self.shortage.lock().clone();
        self.room_wanted.store(true, Ordering::Release);
        self.wake_drain();
        if let Some(error) = shortage {
            return Err(error);
        }
        let waiting = WaitingRecord::new(self, total);
        Ok(Append::Full(Condition::new(&self.progress, move || {
            waiting.finds_room()
                || waiting.log.is_over()
                || waiting.log.shortages.load(Ordering::Acquire) != shortages
        })))
    }

    /// Fills the stream up to a block's start; returns the tail. Appends have left room for it.
    pub(crate) fn pad(&self, tail: &mut Tail) -> u64 {
        let bytes = filler_bytes(tail.lsn);
        if bytes > 0 {
            let length = (bytes - RECORD_HEADER_BYTES) as usize;
            self.place_own(tail, KIND_FILLER, &ZEROS[..length]);
            tail.overhead_bytes += bytes;
        }
        tail.lsn
    }

    /// Puts a mark at the next block's start, if that leaves room for the next sync's filler; the
    /// one after it tries again.
    pub(crate) fn mark(&self, tail: &mut Tail, synced: u64) {
        let end = tail.lsn + filler_bytes(tail.lsn) + MARK_BYTES;
        if mutant::active("log-without-marks")
            || end + SYNC_RESERVE_BYTES > self.space.freed() + self.ring_bytes
        {
            return;
        }
        self.pad(tail);
        self.place_own(tail, KIND_MARK, &encode_mark(synced));
        tail.overhead_bytes += MARK_BYTES;
    }
}

#[cold]
fn too_large(bytes: u64, ring_bytes: u64) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "a write is larger than a quarter of the log's ring: open with a larger ring (Options::ring_bytes)",
    )
    .with("bytes", bytes)
    .with("limit", ring_bytes / 4 - RECORD_HEADER_BYTES)
}
