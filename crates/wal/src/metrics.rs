//! The log's counters, and the disk space of its files.

use terrapin_base::sync::AtomicU64;
use terrapin_base::{ErrorKind, Result};
use terrapin_disk::{Disk, OpenOptions};

use crate::format::{RING_NAME, RING_NEW_NAME, segment_number, spare_number};

/// Disk space of the log's files in bytes, as the file system reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSpace {
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes of segments, including the current one.
    pub segment_bytes: u64,
    /// Bytes of spares: files that wait to become segments.
    pub spare_bytes: u64,
}

impl LogSpace {
    /// Measures the log in a directory, open or not. Asks the file system about each log file.
    /// Errors: the I/O errors of listing, opening and measuring files.
    pub fn of(disk: &dyn Disk) -> Result<LogSpace> {
        let mut space = LogSpace::default();
        for name in disk.list()? {
            let bytes = if name == RING_NAME || name == RING_NEW_NAME {
                &mut space.ring_bytes
            } else if segment_number(&name).is_some() {
                &mut space.segment_bytes
            } else if spare_number(&name).is_some() {
                &mut space.spare_bytes
            } else {
                continue;
            };
            let asked = disk.open(&name, OpenOptions::default());
            match asked.and_then(|file| file.allocated_bytes()) {
                Ok(occupied) => *bytes += occupied,
                // A file may get another name between listing and asking.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(space)
    }

    /// Sum of the ring, the segments and the spares, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ring_bytes + self.segment_bytes + self.spare_bytes
    }
}

/// Counters of one life of the log, which begins with a creation or a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogMetrics {
    /// Records that users appended.
    pub records: u64,
    /// Bytes of those records, headers included.
    pub appended_bytes: u64,
    /// Bytes of fillers and marks.
    pub overhead_bytes: u64,
    /// Nanoseconds for which appends noted what their records touch, for conditional writes.
    pub watched_ns: u64,
    /// Appends that found the ring full.
    pub full: u64,
    /// Bytes written to segments.
    pub drained_bytes: u64,
    /// Writes to segments.
    pub drain_writes: u64,
    /// Bytes of zeros written to segments ahead of records, so that syncs find blocks that were
    /// written before.
    pub ahead_bytes: u64,
    /// Syncs of segments that made records durable.
    pub syncs: u64,
    /// Nanoseconds spent in these syncs.
    pub sync_ns: u64,
    /// Duration of the longest such sync in nanoseconds.
    pub sync_ns_max: u64,
    /// Segments taken into use.
    pub segments: u64,
    /// Failed attempts to obtain a file for the next segment.
    pub shortages: u64,
    /// Bytes in the ring that are not yet on the disk.
    pub ring_used_bytes: u64,
    /// Bytes from the oldest kept record to the tail.
    pub kept_bytes: u64,
    /// Segments that the log keeps, including the current one.
    pub kept_segments: u64,
    /// Bytes of segments and spares, without the ring.
    pub disk_bytes: u64,
}

/// Counters that the drain and the appends update.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) drained_bytes: AtomicU64,
    pub(crate) drain_writes: AtomicU64,
    pub(crate) ahead_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) sync_ns: AtomicU64,
    pub(crate) sync_ns_max: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) full: AtomicU64,
}
