//! The options of a log, and the bounds that they must respect.

use terrapin_base::{Error, Result};

use crate::format::{BLOCK_BYTES, FILLER_BYTES_MAX, MARK_BYTES, RING_BYTES_LIMIT};

/// Bytes of the ring that the filler of one sync may take.
pub(crate) const SYNC_RESERVE_BYTES: u64 = 2 * BLOCK_BYTES;
/// Bytes of the ring that appends leave free, for the current sync's filler and for the mark that
/// follows it.
pub(crate) const APPEND_RESERVE_BYTES: u64 = 2 * SYNC_RESERVE_BYTES;
const _: () = assert!(FILLER_BYTES_MAX <= SYNC_RESERVE_BYTES);
const _: () = assert!(FILLER_BYTES_MAX + MARK_BYTES <= SYNC_RESERVE_BYTES);

/// Smallest ring in bytes. A half-drained record and the reserve for fillers must leave room for
/// another record of a quarter of the ring.
pub(crate) const RING_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(RING_BYTES_MIN / 2 + APPEND_RESERVE_BYTES + BLOCK_BYTES <= RING_BYTES_MIN);

/// Smallest segment in bytes of log.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4 * BLOCK_BYTES;

/// Options of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of the ring in shared memory: a power of two from 64 KiB to 1 GiB. A record is at most
    /// a quarter of it.
    pub ring_bytes: u64,
    /// Bytes of log that a segment holds; rounded up to 4 KiB, at least 16 KiB. If the disk is too
    /// full, a new life uses smaller segments, as large as the existing files.
    pub segment_bytes: u64,
    /// Longest time in nanoseconds that a record waits for a sync if no caller requests one. A
    /// power cut loses at most the records of this interval.
    pub sync_interval_ns: u64,
    /// Identity of the database that owns the log. Recovery refuses another database's segments.
    pub database_id: u64,
    /// Branch of the new life: a random number. Copies of a database that continue separately have
    /// different branches.
    pub branch: u64,
    /// Branches that recovery accepts for the newest life. The log of another copy of the database
    /// has neither branch.
    pub known_branches: [u64; 2],
}

impl LogOptions {
    /// Default options: a ring of 16 MiB, segments of 64 MiB, a sync every 100 ms. All lives have
    /// one branch, which suits a log that is never copied.
    #[must_use]
    pub fn new(database_id: u64) -> Self {
        LogOptions {
            ring_bytes: 16 << 20,
            segment_bytes: 64 << 20,
            sync_interval_ns: 100_000_000,
            database_id,
            branch: database_id,
            known_branches: [database_id; 2],
        }
    }

    pub(crate) fn check(mut self) -> Result<Self> {
        if !self.ring_bytes.is_power_of_two()
            || !(RING_BYTES_MIN..=RING_BYTES_LIMIT).contains(&self.ring_bytes)
        {
            return Err(Error::invalid(
                "the log's ring must be a power of two from 64 KiB to 1 GiB",
            )
            .with("ring_bytes", self.ring_bytes));
        }
        if !(SEGMENT_BYTES_MIN..=1 << 40).contains(&self.segment_bytes) {
            return Err(Error::invalid("a log segment must be from 16 KiB to 1 TiB")
                .with("segment_bytes", self.segment_bytes));
        }
        self.segment_bytes = self.segment_bytes.next_multiple_of(BLOCK_BYTES);
        Ok(self)
    }
}
