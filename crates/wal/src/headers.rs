//! Reads the headers of the log's segments and checks that they belong to this database.

use std::collections::{BTreeSet, VecDeque};

use terrapin_base::sync::Arc;
use terrapin_base::{Error, ErrorKind, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, OpenOptions};

use crate::format::{BLOCK_BYTES, SegmentHeader, segment_name};
use crate::options::LogOptions;

/// Reads the headers of the segments up to the highest number, down to the first gap in the
/// numbers. Returns them oldest first, with the lengths of their files.
pub(crate) fn read_headers(
    disk: &Arc<dyn Disk>,
    numbers: &[u64],
    database_id: u64,
) -> Result<(Vec<SegmentHeader>, Vec<u64>)> {
    let numbers: BTreeSet<u64> = numbers.iter().copied().collect();
    let Some(&highest) = numbers.last() else {
        return Err(
            Error::new(ErrorKind::NotFound, "there is no log").with("directory", disk.describe())
        );
    };
    let (mut headers, mut lengths) = (VecDeque::new(), VecDeque::new());
    for (&number, expected) in numbers.iter().rev().zip((0..=highest).rev()) {
        // Segments below a gap were given up, because names go away oldest first. The caller checks
        // that the log still begins early enough.
        if number != expected {
            break;
        }
        let (header, bytes) = read_header(disk, number, database_id)?;
        headers.push_front(header);
        lengths.push_front(bytes);
    }
    Ok((headers.into(), lengths.into()))
}

/// Refuses a log whose newest segment belongs to another copy of the database. Older segments are
/// checked against the newest one.
pub(crate) fn check_branch(headers: &[SegmentHeader], options: &LogOptions) -> Result<()> {
    match headers.last() {
        Some(newest)
            if !options.known_branches.contains(&newest.branch)
                && !mutant::active("newest-log-branch-unchecked") =>
        {
            let error = "a log segment belongs to another copy of this database than the data file";
            Err(Error::corrupt(error).with("file", segment_name(newest.number)))
        }
        _ => Ok(()),
    }
}

fn read_header(
    disk: &Arc<dyn Disk>,
    number: u64,
    database_id: u64,
) -> Result<(SegmentHeader, u64)> {
    let name = segment_name(number);
    let file = disk.open(
        &name,
        OpenOptions {
            direct: true,
            ..OpenOptions::default()
        },
    )?;
    let bytes = file.bytes()?;
    let in_file = |error: Error| error.with("file", &name).with("offset", 0);
    if bytes < BLOCK_BYTES {
        return Err(in_file(
            Error::corrupt("a log segment is too short for its header").with("bytes", bytes),
        ));
    }
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize);
    file.read_at(&mut block, 0)?;
    let header = SegmentHeader::decode(&block).map_err(in_file)?;
    if header.database_id != database_id {
        return Err(in_file(Error::corrupt(
            "a log segment belongs to another database",
        )));
    }
    if header.number != number {
        return Err(in_file(
            Error::corrupt("a log segment has the name of another segment")
                .with("number", header.number),
        ));
    }
    Ok((header, bytes))
}
