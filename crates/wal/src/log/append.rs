//! The log's tail: appends of users' records and of the log's own.
//!
//! A thread holds the append lock for tens of nanoseconds only. So threads try the lock and spin,
//! and never queue. After a while they nap, because the holder must have lost its processor
//! ([`Backoff`]).

use terrapin_base::sync::{Arc, AtomicU64, Backoff, MutexGuard, Ordering};
use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, mutant};

use super::recent::Touch;
use super::shared::{Append, Appended, Shared, Tail, closed};
use crate::format::{
    BLOCK_BYTES, Draft, DraftBuffer, FILLER_BYTES_MAX, KIND_CLOSE, KIND_FILLER, KIND_MARK,
    MARK_BYTES, RECORD_HEADER_BYTES, block_down, encode_mark, filler_bytes,
};
use crate::options::{APPEND_RESERVE_BYTES, SYNC_RESERVE_BYTES};

const ZEROS: [u8; FILLER_BYTES_MAX as usize] = [0; FILLER_BYTES_MAX as usize];

/// A record that waits for room in the ring. Its bytes count in [`super::Log::ring_fill`] until the
/// caller retries or gives up. Without this count, writers of short records would always find room,
/// and take what a long record waits for.
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
    /// Takes the append lock.
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

    /// Appends a record if `admit` says so, which looks at the tail under the append lock. Returns
    /// `None` if it does not; then nothing was appended.
    #[inline]
    pub(super) fn append(
        self: &Arc<Self>,
        kind: u8,
        payload: &[&[u8]],
        touches: &[Touch],
        admit: impl FnOnce(&mut Tail) -> bool,
        install: impl FnOnce(Lsn),
    ) -> Result<Option<Append>> {
        let bytes = payload
            .iter()
            .fold(0u64, |sum, piece| sum.saturating_add(piece.len() as u64));
        let total = bytes.saturating_add(RECORD_HEADER_BYTES);
        if total > self.ring_bytes / 4 {
            return Err(too_large(bytes, self.ring_bytes));
        }
        self.check_alive()?;
        let length = total as u32 - RECORD_HEADER_BYTES as u32; // `total` is at most 2^28
        let mut buffer = DraftBuffer::new();
        let mut draft = self.life_id.draft(kind, length, payload, &mut buffer);

        let mut tail = self.lock();
        if tail.writer.is_none() {
            return Err(closed());
        }
        if let Some(end) = tail.close_end {
            if kind != KIND_CLOSE {
                return Err(closed());
            }
            let end = Lsn(end);
            return Ok(Some(Append::Done(Appended {
                lsn: end,
                end,
                number: None,
            })));
        }
        let end = tail.lsn + total;
        if end + APPEND_RESERVE_BYTES > tail.freed_seen + self.ring_bytes {
            tail.freed_seen = self.space.freed();
            if end + APPEND_RESERVE_BYTES > tail.freed_seen + self.ring_bytes {
                drop(tail);
                return self.full(total).map(Some);
            }
        }
        if !admit(&mut tail) {
            return Ok(None);
        }
        let lsn = self.write_record(&mut tail, &mut draft);
        tail.real_end = end;
        let number = (kind != KIND_CLOSE).then_some(tail.records);
        if kind == KIND_CLOSE {
            tail.close_end = Some(end);
        } else {
            tail.publish_end = end;
            tail.records += 1;
            tail.appended_bytes += total;
            if tail.recent.is_raised() {
                tail.recent
                    .add(Lsn(lsn), touches, &self.end.watched, &self.env);
            }
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
        Ok(Some(Append::Done(Appended {
            lsn: Lsn(lsn),
            end: Lsn(end),
            number,
        })))
    }

    /// Writes a record at the tail and returns its LSN. The ring must have room for the record.
    #[inline(always)] // each append
    fn write_record(&self, tail: &mut Tail, draft: &mut Draft<'_>) -> u64 {
        let lsn = tail.lsn;
        // Appends return early without a writer. The drain's fillers and marks precede the release.
        let Some(writer) = &mut tail.writer else {
            return lsn;
        };
        draft.write(lsn, |at, bytes| writer.write(at, bytes));
        let end = lsn + draft.record_bytes();
        if end >= block_down(lsn) + BLOCK_BYTES {
            // No later record starts in this block. Store this before `publish`: a reader that sees
            // the bytes then sees the start too.
            self.start_of_block(lsn).store(lsn, Ordering::Relaxed);
        }
        writer.publish(end);
        tail.lsn = end;
        self.end.lsn.store(end, Ordering::Release);
        lsn
    }

    /// Writes a record of the log's own at the tail. The ring must have room for it.
    fn write_own_record(&self, tail: &mut Tail, kind: u8, payload: &[u8]) {
        let mut buffer = DraftBuffer::new();
        let pieces = [payload];
        let mut draft = self
            .life_id
            .draft(kind, payload.len() as u32, &pieces, &mut buffer);
        self.write_record(tail, &mut draft);
    }

    fn start_of_block(&self, lsn: u64) -> &AtomicU64 {
        // The ring's size is a power of two.
        &self.starts[((lsn & (self.ring_bytes - 1)) / BLOCK_BYTES) as usize]
    }

    /// LSN of the last record that starts in the block at `block` and not below `floor`.
    pub(crate) fn last_start(&self, block: u64, floor: u64) -> Option<u64> {
        let start = self.start_of_block(block).load(Ordering::Relaxed);
        (start >= block.max(floor) && start < block + BLOCK_BYTES).then_some(start)
    }

    /// The outcome of an append that found no room for `total` bytes: a condition to wait for, or
    /// the error of the last failed search for space.
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

    /// Writes a filler up to the next block's start; returns the tail. Appends leave room for it
    /// ([`APPEND_RESERVE_BYTES`]).
    pub(crate) fn pad(&self, tail: &mut Tail) -> u64 {
        let bytes = filler_bytes(tail.lsn);
        if bytes > 0 {
            let length = (bytes - RECORD_HEADER_BYTES) as usize;
            self.write_own_record(tail, KIND_FILLER, &ZEROS[..length]);
            tail.overhead_bytes += bytes;
        }
        tail.lsn
    }

    /// Writes a mark at the next block's start: everything below `synced` is on stable storage.
    /// Without room for the next sync's filler behind it, this writes nothing, and the next sync
    /// tries again.
    pub(crate) fn mark(&self, tail: &mut Tail, synced: u64) {
        let end = tail.lsn + filler_bytes(tail.lsn) + MARK_BYTES;
        if mutant::active("log-without-marks")
            || end + SYNC_RESERVE_BYTES > self.space.freed() + self.ring_bytes
        {
            return;
        }
        self.pad(tail);
        self.write_own_record(tail, KIND_MARK, &encode_mark(synced));
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
