//! Making a log in an empty directory.
//!
//! A creation names the first segment last, so a directory without a segment holds no log. A
//! killed creation leaves a ring, spares, or a first segment without a record. The next creation
//! replaces them.

use std::collections::VecDeque;

use terrapin_base::sync::Arc;
use terrapin_base::{Env, Error, ErrorKind, Lsn, Result};
use terrapin_disk::{Disk, OpenOptions};

use crate::format::{
    BLOCK_BYTES, SegmentHeader, branch_link, segment_name, segment_number, spare_name, spare_number,
};
use crate::log::{Beginning, Log};
use crate::options::LogOptions;
use crate::recovery::Recovery;
use crate::ring::make_ring;
use crate::segments::Segments;

impl Log {
    /// Makes a log in an empty directory. Its incarnation is 1, and its first LSN is one block
    /// (4096). The log and its names are durable on return. Replaces what a killed creation left.
    ///
    /// Errors: [`ErrorKind::AlreadyExists`] if the directory holds a log with records; invalid
    /// options; the I/O errors of making files.
    pub fn create(env: &Env, disk: &Arc<dyn Disk>, options: LogOptions) -> Result<Log> {
        let options = options.check()?;
        remove_half_made(env, disk, options)?;
        // Make the ring first. A segment without a ring is damage; a ring without a segment is a
        // killed creation.
        let ring = make_ring(disk, options.ring_bytes)?;
        let segments = Segments::new(disk.clone(), options.segment_bytes, VecDeque::new());
        let header = SegmentHeader {
            database_id: options.database_id,
            number: 1,
            incarnation: 1,
            start: BLOCK_BYTES,
            previous_end: BLOCK_BYTES,
            whole_below: BLOCK_BYTES,
            first: BLOCK_BYTES,
            capacity: segments.capacity(),
            branch: options.branch,
            previous_branch: branch_link(options.branch),
        };
        let spare = segments.obtain()?;
        let current = segments.install(&spare, &header)?;
        let beginning = Beginning {
            options,
            incarnation: 1,
            ring,
            segments,
            current,
        };
        Ok(Log::start(env, beginning))
    }

    /// Checks that [`Log::create`] may make a log here. Writes nothing. Errors:
    /// [`ErrorKind::AlreadyExists`] if the directory holds a log with records.
    pub fn check_absent(env: &Env, disk: &Arc<dyn Disk>, options: LogOptions) -> Result<()> {
        half_made(env, disk, options.check()?).map(drop)
    }
}

/// Removes what a killed creation left: a first segment without any record, a ring, spares.
fn remove_half_made(env: &Env, disk: &Arc<dyn Disk>, options: LogOptions) -> Result<()> {
    if half_made(env, disk, options)? {
        disk.remove(&segment_name(1))?;
        disk.sync_directory()?;
    }
    for number in disk.list()?.iter().filter_map(|n| spare_number(n)) {
        disk.remove(&spare_name(number))?;
    }
    Ok(())
}

/// Whether a killed creation left a first segment. A log with records is
/// [`ErrorKind::AlreadyExists`]. Writes nothing.
fn half_made(env: &Env, disk: &Arc<dyn Disk>, options: LogOptions) -> Result<bool> {
    let names = disk.list()?;
    let numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
    if numbers.is_empty() {
        return Ok(false);
    }
    let there = || {
        Error::new(
            ErrorKind::AlreadyExists,
            "the directory already holds a log",
        )
        .with("directory", disk.describe())
    };
    if numbers != [1] {
        return Err(there());
    }
    let header_of = |number| -> Result<SegmentHeader> {
        let file = disk.open(&segment_name(number), OpenOptions::default())?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.read_at(&mut block, 0)?;
        SegmentHeader::decode(&block)
    };
    let header = header_of(1).map_err(|_| there())?;
    let options = LogOptions {
        database_id: header.database_id,
        known_branches: [header.branch; 2],
        ..options
    };
    match Recovery::scan(env, disk, options, Lsn(BLOCK_BYTES)) {
        Ok(found) if found.end() == Lsn(BLOCK_BYTES) => Ok(true),
        _ => Err(there()),
    }
}
