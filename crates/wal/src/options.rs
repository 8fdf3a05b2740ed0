//! How a log is kept: what its user decides, and within which bounds.

use terrapin_base::{Error, Result};

use crate::format::{BLOCK_BYTES, FILLER_BYTES_MAX, MARK_BYTES, RING_BYTES_LIMIT};

/// Bytes of the ring that a sync's filler may take.
pub(crate) const SYNC_RESERVE_BYTES: u64 = 2 * BLOCK_BYTES;
/// Bytes of the ring that appends leave free: for the filler of the sync under way, and for the
/// mark behind it.
pub(crate) const APPEND_RESERVE_BYTES: u64 = 2 * SYNC_RESERVE_BYTES;
const _: () = assert!(FILLER_BYTES_MAX <= SYNC_RESERVE_BYTES);
const _: () = assert!(FILLER_BYTES_MAX + MARK_BYTES <= SYNC_RESERVE_BYTES);

/// Smallest ring: a quarter for one record, and what fillers and a record that is half drained may
/// hold, must leave room for another.
pub(crate) const RING_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(RING_BYTES_MIN / 2 + APPEND_RESERVE_BYTES + BLOCK_BYTES <= RING_BYTES_MIN);

/// Smallest segment.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4 * BLOCK_BYTES;

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of the ring in shared memory: a power of two from 64 KiB to 1 GiB. A record is at most
    /// a quarter of it.
    pub ring_bytes: u64,
    /// Bytes of log that a segment holds; rounded up to 4 KiB, at least 16 KiB. A life that begins
    /// on a disk too full for that goes on in segments as large as the files that it has.
    pub segment_bytes: u64,
    /// What a power cut may cost at most, in nanoseconds: how long a record waits for a sync that
    /// nobody asks for.
    pub sync_interval_ns: u64,
    /// The database that the log belongs to; bytes of another's log never count.
    pub database_id: u64,
    /// The branch of the life that begins: a random number. Copies of a database that go on
    /// separately have different ones.
    pub branch: u64,
    /// The newest life that is found has one of these branches; a log of another copy of the
    /// database has neither.
    pub known_branches: [u64; 2],
}

impl LogOptions {
    /// Rings of 16 MiB, segments of 64 MiB, a sync every 100 ms; all lives of one branch, for a log
    /// that is never copied.
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
