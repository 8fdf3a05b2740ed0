//! Repairs the checksums of changed logs: segment headers, and the records from a segment's first
//! one on, into the ring. It is written from docs/FORMAT.md alone.

use std::collections::BTreeMap;

use terrapin_base::checksum::{crc32c, crc32c_append};

use super::archive::File;
use super::repair::{u32_at, u64_at};

const BLOCK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 88;
const RECORD_HEADER_BYTES: u64 = 9;
/// The most records repaired in one segment: more than fit.
const RECORDS_MAX: usize = 1 << 16;

/// The fields of a segment's header.
#[derive(Clone, Copy)]
struct Segment {
    file: usize,
    number: u64,
    incarnation: u32,
    branch: u64,
    start: u64,
    first: u64,
    capacity: u64,
}

/// The identity of a log.
#[derive(Clone, Copy)]
pub struct Known {
    /// The database.
    pub database: u64,
    /// The newest life's branch.
    pub branch: u64,
    /// Where the log begins.
    pub oldest: u64,
}

impl Known {
    /// By a segment's header.
    pub fn of(header: &[u8]) -> Option<Known> {
        Some(Known {
            database: u64_at(header, 16)?,
            branch: u64_at(header, 72)?,
            oldest: u64_at(header, 56)?,
        })
    }
}

/// A record's payload, wherever the log has it.
#[derive(Clone, Debug)]
pub struct Payload {
    /// The record's kind.
    pub kind: u8,
    /// The copies, in segments and in the ring. Each is in pieces: file, offset and length.
    copies: Vec<Vec<(usize, usize, usize)>>,
}

impl Payload {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self, files: &[File]) -> Vec<u8> {
        let pieces = self.copies.first().into_iter().flatten();
        let piece =
            |&(file, at, bytes): &(usize, usize, usize)| &files[file].content[at..at + bytes];
        pieces.flat_map(piece).copied().collect()
    }

    /// Puts bytes over those of each copy, cut to its length.
    pub fn replace(&self, files: &mut [File], bytes: &[u8]) {
        for copy in &self.copies {
            let mut rest = bytes;
            for &(file, at, room) in copy {
                let (now, later) = rest.split_at(room.min(rest.len()));
                files[file].content[at..at + now.len()].copy_from_slice(now);
                rest = later;
            }
        }
    }
}

/// The payloads of a log's records, oldest first.
#[must_use]
pub fn payloads(files: &[File]) -> Vec<Payload> {
    let mut found = BTreeMap::new();
    walk(&mut files.to_vec(), &mut found);
    found.into_values().collect()
}

/// Repairs the segments and the ring among the files.
pub fn log(files: &mut [File]) -> Option<Known> {
    walk(files, &mut BTreeMap::new())
}

/// [`log`], which notes payloads by the LSN of their records.
fn walk(files: &mut [File], found: &mut BTreeMap<u64, Payload>) -> Option<Known> {
    let mut segments = Vec::new();
    let mut database = None;
    for (at, file) in files.iter_mut().enumerate() {
        if !file.is_segment() || file.content.len() < BLOCK_BYTES {
            continue;
        }
        let behind = (file.content.len() - BLOCK_BYTES) as u64;
        let head = &mut file.content[..HEADER_BYTES];
        let crc = crc32c(&head[..HEADER_BYTES - 4]);
        head[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        let field = |at| u64_at(head, at);
        let segment = || {
            Some(Segment {
                file: at,
                number: field(24)?,
                incarnation: u32_at(head, 12)?,
                branch: field(72)?,
                start: field(32)?,
                first: field(56)?,
                capacity: field(64)?.min(behind),
            })
        };
        if let Some(segment) = segment() {
            database.get_or_insert(field(16)?);
            segments.push(segment);
        }
    }
    segments.sort_by_key(|segment| segment.number);
    let database = database?;
    let oldest = segments.first()?.first;
    let newest = *segments.last()?;
    let last = newest.incarnation;
    let ring = files.iter().position(|file| file.name() == "ring");
    let mut stream = Stream {
        files,
        segments: &segments,
        ring,
        in_ring: false,
        incarnation: 0,
        branch: 0,
        found,
    };
    for segment in &segments {
        stream.incarnation = segment.incarnation;
        stream.branch = segment.branch;
        stream.in_ring = false;
        let reached = stream.records(segment.first);
        if segment.incarnation == last && stream.ring.is_some() {
            stream.in_ring = true;
            stream.records(reached);
        }
    }
    Some(Known {
        database,
        branch: newest.branch,
        oldest,
    })
}

/// The log's bytes by LSN: the segments of one life, or the ring.
struct Stream<'a> {
    files: &'a mut [File],
    segments: &'a [Segment],
    ring: Option<usize>,
    in_ring: bool,
    incarnation: u32,
    branch: u64,
    /// Payloads so far.
    found: &'a mut BTreeMap<u64, Payload>,
}

impl Stream<'_> {
    /// The pieces of some bytes from an LSN on.
    fn pieces(&self, mut lsn: u64, mut count: usize) -> Option<Vec<(usize, usize, usize)>> {
        let mut pieces = Vec::new();
        while count > 0 {
            let (file, at, left) = self.place(lsn)?;
            let bytes = left.min(count);
            pieces.push((file, at, bytes));
            lsn = lsn.checked_add(bytes as u64)?;
            count -= bytes;
        }
        Some(pieces)
    }

    /// The place of the bytes from an LSN on: file, offset, and length without a gap.
    fn place(&self, lsn: u64) -> Option<(usize, usize, usize)> {
        if self.in_ring {
            let ring = self.ring?;
            let bytes = self.files[ring].content.len();
            let at = usize::try_from(lsn.checked_rem(bytes as u64)?).ok()?;
            return Some((ring, at, bytes - at));
        }
        let (segment, behind) = self.segments.iter().find_map(|segment| {
            let behind = lsn.checked_sub(segment.start)?;
            (segment.incarnation == self.incarnation && behind < segment.capacity)
                .then_some((segment, behind))
        })?;
        let left = usize::try_from(segment.capacity - behind).ok()?;
        let at = BLOCK_BYTES + usize::try_from(behind).ok()?;
        Some((segment.file, at, left))
    }

    fn bytes(&self, mut lsn: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            let (file, at, left) = self.place(lsn)?;
            let left = left.min(count - bytes.len());
            bytes.extend_from_slice(self.files[file].content.get(at..at + left)?);
            lsn = lsn.checked_add(left as u64)?;
        }
        Some(bytes)
    }

    /// Repairs records from an LSN on. Returns the first LSN that cannot be a record.
    fn records(&mut self, mut lsn: u64) -> u64 {
        for _ in 0..RECORDS_MAX {
            let Some(next) = self.record(lsn) else {
                break;
            };
            lsn = next;
        }
        lsn
    }

    fn record(&mut self, lsn: u64) -> Option<u64> {
        let header = self.bytes(lsn, RECORD_HEADER_BYTES as usize)?;
        let length = u32_at(&header, 4)?;
        let kind = header[8];
        if kind == 0 || length > 1 << 17 {
            return None;
        }
        let payload = self.bytes(lsn.checked_add(RECORD_HEADER_BYTES)?, length as usize)?;
        let mut crc = crc32c(&payload);
        crc = crc32c_append(crc, &self.branch.to_le_bytes());
        crc = crc32c_append(crc, &self.incarnation.to_le_bytes());
        crc = crc32c_append(crc, &length.to_le_bytes());
        crc = crc32c_append(crc, &[kind]);
        crc = crc32c_append(crc, &lsn.to_le_bytes());
        for (at, value) in (lsn..).zip(crc.to_le_bytes()) {
            let (file, at, _) = self.place(at)?;
            *self.files[file].content.get_mut(at)? = value;
        }
        let copy = self.pieces(lsn + RECORD_HEADER_BYTES, length as usize)?;
        let none = Payload {
            kind,
            copies: Vec::new(),
        };
        self.found.entry(lsn).or_insert(none).copies.push(copy);
        Some(lsn + RECORD_HEADER_BYTES + u64::from(length))
    }
}

#[cfg(test)]
mod tests {
    use super::super::template;
    use super::*;

    #[test]
    fn a_sound_log_stays_and_zeroed_checksums_are_repaired() {
        for name in ["closed", "killed"] {
            let sound = template::files(name);
            let mut repaired = sound.clone();
            log(&mut repaired).expect("a log");
            assert!(repaired == sound, "{name}: a sound log was changed");
            let mut damaged = sound.clone();
            for file in damaged.iter_mut().filter(|file| file.is_segment()) {
                file.content[84..88].fill(0);
            }
            assert!(damaged != sound);
            log(&mut damaged).expect("a log");
            assert!(damaged == sound, "{name}: a header was not repaired");
        }
    }
}
