//! The format of the log's bytes: segment headers, record headers and the log's own records.
//!
//! No other file of this crate encodes or decodes bytes. `docs/FORMAT.md` describes the same format
//! in tables. `tests/golden.rs` checks a whole small log with a decoder of its own, which follows
//! that page.
//!
//! The log is one stream of bytes, and an LSN is an offset in the stream. Records follow each other
//! without padding or alignment. A record's CRC32C covers its payload, branch, incarnation, length,
//! kind and LSN, in this order. So an append can sum all but the last eight bytes before it takes
//! the append lock.

use terrapin_base::checksum::{crc32c, crc32c_append};
use terrapin_base::codec::Reader;
use terrapin_base::{Error, ErrorKind, Result, mutant};

/// The unit in which the log is written. Drain writes, synced ends and segment bounds are multiples
/// of it.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes of a record's header: CRC (4), payload length (4), kind (1).
pub const RECORD_HEADER_BYTES: u64 = 9;
/// Smallest kind for users' records. Smaller kinds belong to the log itself.
pub const RECORD_KIND_USER_MIN: u8 = 16;
/// A filler: fills the stream up to a block's start. Its payload is zeros and has no meaning.
pub(crate) const KIND_FILLER: u8 = 1;
/// A mark: says how far the log was known to be synced. It is the first record of a block.
pub(crate) const KIND_MARK: u8 = 2;
/// A closing record: ends a life that was closed cleanly.
pub(crate) const KIND_CLOSE: u8 = 3;
/// Longest payload in bytes that recovery accepts: a quarter of the largest ring.
pub(crate) const PAYLOAD_BYTES_LIMIT: u64 = RING_BYTES_LIMIT / 4;
/// Largest ring in bytes that the options accept.
pub(crate) const RING_BYTES_LIMIT: u64 = 1 << 30;
/// Bytes of a whole mark record.
pub(crate) const MARK_BYTES: u64 = RECORD_HEADER_BYTES + 8;
/// Most bytes of one filler, header included. A gap smaller than a header is filled through the
/// next block.
pub(crate) const FILLER_BYTES_MAX: u64 = BLOCK_BYTES + RECORD_HEADER_BYTES - 1;

/// Version of the log's format that this build writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"TERRALOG";
/// Bytes of a segment header that carry content; the rest of its block is zeros.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 88;

const _: () = assert!(SEGMENT_HEADER_BYTES == 8 + 4 + 4 + 8 * 8 + 4 + 4);
const _: () = assert!((SEGMENT_HEADER_BYTES as u64) <= BLOCK_BYTES);
const _: () = assert!(RECORD_HEADER_BYTES == 4 + 4 + 1);
const _: () = assert!(PAYLOAD_BYTES_LIMIT < u32::MAX as u64);
const _: () = assert!(RECORD_KIND_USER_MIN > KIND_CLOSE);

/// The identity of one life of one log. Its records' CRCs cover it. So bytes of another life, or of
/// another copy of the database, fail their CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeId {
    /// The branch. It is random, so it also identifies the database.
    pub(crate) branch: u64,
    pub(crate) incarnation: u32,
}

impl LifeId {
    /// The part of a record's CRC that does not depend on its LSN: all the expensive work.
    pub(crate) fn begin(&self, kind: u8, length: u32, payload: &[&[u8]]) -> u32 {
        let mut crc = 0;
        for piece in payload
            .iter()
            .filter(|_| !mutant::active("record-checksum-without-payload"))
        {
            crc = crc32c_append(crc, piece);
        }
        crc32c_append(crc, &self.identity(kind, length))
    }

    /// The bytes that the CRC covers between payload and LSN.
    #[inline]
    fn identity(&self, kind: u8, length: u32) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..8].copy_from_slice(&self.branch.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        bytes[16] = kind;
        bytes
    }

    /// The whole CRC, once the LSN is known.
    #[inline]
    pub(crate) fn finish(begun: u32, lsn: u64) -> u32 {
        /// The checksum is fastest on aligned words.
        #[repr(align(8))]
        struct Aligned([u8; 8]);
        crc32c_append(begun, &Aligned(lsn.to_le_bytes()).0)
    }

    /// Prepares a record as far as possible without its LSN. `length` is the payload's length in
    /// bytes; `buffer` holds a small record.
    // Always inlined: a separate call costs 3 % of an append.
    #[inline(always)]
    pub(crate) fn draft<'a>(
        &self,
        kind: u8,
        length: u32,
        payload: &'a [&'a [u8]],
        buffer: &'a mut DraftBuffer,
    ) -> Draft<'a> {
        if length as usize > SMALL_PAYLOAD_BYTES {
            let crc = self.begin(kind, length, payload);
            return Draft {
                header: RecordHeader { crc, length, kind },
                payload,
                whole: None,
            };
        }
        let end = DraftBuffer::PAYLOAD + length as usize;
        let mut at = DraftBuffer::PAYLOAD;
        for piece in payload {
            buffer.0[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        buffer.0[end..end + IDENTITY_BYTES].copy_from_slice(&self.identity(kind, length));
        let summed = if mutant::active("record-checksum-without-payload") {
            end
        } else {
            DraftBuffer::PAYLOAD
        };
        let crc = crc32c(&buffer.0[summed..end + IDENTITY_BYTES]);
        let header = RecordHeader { crc, length, kind };
        buffer.0[DraftBuffer::RECORD..DraftBuffer::PAYLOAD].copy_from_slice(&header.encode());
        Draft {
            header,
            payload,
            whole: Some(&mut buffer.0[DraftBuffer::RECORD..end]),
        }
    }

    /// Whether a valid record of this life is at `lsn`.
    pub(crate) fn holds(&self, header: &RecordHeader, payload: &[u8], lsn: u64) -> bool {
        header.crc == Self::finish(self.begin(header.kind, header.length, &[payload]), lsn)
    }

    /// A whole record in one piece.
    pub(crate) fn record(&self, kind: u8, payload: &[u8], lsn: u64) -> Vec<u8> {
        let length = payload.len() as u32;
        let crc = Self::finish(self.begin(kind, length, &[payload]), lsn);
        let mut out = RecordHeader { crc, length, kind }.encode().to_vec();
        out.extend_from_slice(payload);
        out
    }
}

/// Longest payload in bytes of a small record. A small record is assembled before it is summed and
/// copied, because calls cost more than its bytes.
pub(crate) const SMALL_PAYLOAD_BYTES: usize = 480;
/// Bytes that a CRC covers between payload and LSN: branch, incarnation, length and kind.
const IDENTITY_BYTES: usize = 17;

/// The buffer in which a small record is assembled. The payload is aligned to a word of the
/// checksum.
#[repr(align(8))]
pub(crate) struct DraftBuffer([u8; DraftBuffer::PAYLOAD + SMALL_PAYLOAD_BYTES + IDENTITY_BYTES]);

impl DraftBuffer {
    const PAYLOAD: usize = 16;
    const RECORD: usize = Self::PAYLOAD - RECORD_HEADER_BYTES as usize;

    /// An empty buffer.
    #[inline]
    pub(crate) fn new() -> Self {
        DraftBuffer([0; Self::PAYLOAD + SMALL_PAYLOAD_BYTES + IDENTITY_BYTES])
    }
}

/// A record that lacks only its LSN.
pub(crate) struct Draft<'a> {
    /// The header; its CRC does not cover the LSN yet.
    header: RecordHeader,
    payload: &'a [&'a [u8]],
    /// The whole bytes of a small record.
    whole: Option<&'a mut [u8]>,
}

impl Draft<'_> {
    /// Bytes of the whole record.
    #[inline]
    pub(crate) fn record_bytes(&self) -> u64 {
        self.header.record_bytes()
    }

    /// Passes the bytes of the record at `lsn` to `write`, each piece with its LSN.
    #[inline]
    pub(crate) fn write(&mut self, lsn: u64, mut write: impl FnMut(u64, &[u8])) {
        let crc = LifeId::finish(self.header.crc, lsn);
        if let Some(whole) = &mut self.whole {
            whole[..4].copy_from_slice(&crc.to_le_bytes());
            return write(lsn, whole);
        }
        write(lsn, &RecordHeader { crc, ..self.header }.encode());
        let mut at = lsn + RECORD_HEADER_BYTES;
        for piece in self.payload {
            write(at, piece);
            at += piece.len() as u64;
        }
    }
}

/// A record's header, which precedes the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) crc: u32,
    pub(crate) length: u32,
    pub(crate) kind: u8,
}

impl RecordHeader {
    #[inline]
    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        let mut out = [0; RECORD_HEADER_BYTES as usize];
        out[..4].copy_from_slice(&self.crc.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8] = self.kind;
        out
    }

    /// Decodes a header. `None` if no record can begin so: too few bytes, kind 0 (unwritten bytes
    /// are zeros), or a length beyond every ring.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = Self::decode_any(bytes).ok()?;
        let possible = header.kind != 0 && u64::from(header.length) <= PAYLOAD_BYTES_LIMIT;
        possible.then_some(header)
    }

    fn decode_any(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("log record", bytes);
        Ok(RecordHeader {
            crc: reader.u32()?,
            length: reader.u32()?,
            kind: reader.u8()?,
        })
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES + u64::from(self.length)
    }
}

/// The payload of a mark: everything below this LSN was on stable storage when the mark was
/// written.
pub(crate) fn encode_mark(synced: u64) -> [u8; 8] {
    synced.to_le_bytes()
}

/// The synced LSN in the mark at `lsn`; `None` if `bytes`, those of a block's start, are no mark.
pub(crate) fn decode_mark(life_id: &LifeId, lsn: u64, bytes: &[u8]) -> Option<u64> {
    let header = RecordHeader::decode(bytes)?;
    let payload = bytes.get(RECORD_HEADER_BYTES as usize..MARK_BYTES as usize)?;
    if header.kind != KIND_MARK || header.length != 8 || !life_id.holds(&header, payload, lsn) {
        return None;
    }
    // A mark cannot report bytes behind itself.
    Reader::new("log mark", payload)
        .u64()
        .ok()
        .filter(|&synced| synced <= lsn)
}

/// The synced LSN in a mark at a block's start in the ring. A block of the ring tells only the
/// remainder of its LSN. The rest follows from the mark: a mark is less than a ring behind the LSN
/// that it reports, because everything below that LSN had left the ring.
pub(crate) fn decode_mark_in_ring(
    life_id: &LifeId,
    ring_bytes: u64,
    offset: u64,
    bytes: &[u8],
) -> Option<u64> {
    let said = bytes.get(RECORD_HEADER_BYTES as usize..)?;
    let synced = Reader::new("log mark", said).u64().ok()?;
    // The ring's size is a power of two.
    let behind = offset.wrapping_sub(synced) & (ring_bytes - 1);
    decode_mark(life_id, synced.checked_add(behind)?, bytes)
}

/// The content of a segment's first block. The stream's bytes `[start, start + capacity)` follow
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) database_id: u64,
    /// The segment's number, which is also in its file's name.
    pub(crate) number: u64,
    pub(crate) incarnation: u32,
    /// LSN of the first byte behind this block.
    pub(crate) start: u64,
    /// LSN at which the stream before this segment ends. In the first segment of a life, it is the
    /// end that recovery accepted. In other segments it is `start`: bytes of earlier segments from
    /// there on do not count.
    pub(crate) previous_end: u64,
    /// Every record below this LSN was synced before this segment got its name. In the first
    /// segment of a life, it is `previous_end`. In a segment that a recovery filled, it is the end
    /// of the copy. In others, it is the start of the record that reaches across `start`, or
    /// `start` itself.
    pub(crate) whole_below: u64,
    /// LSN of the first record that begins in this segment. If one record covers the whole segment,
    /// it is the first record behind the segment.
    pub(crate) first: u64,
    /// Bytes of stream that the segment holds: a multiple of a block.
    pub(crate) capacity: u64,
    /// The branch of the life.
    pub(crate) branch: u64,
    /// In the first segment of a life, the lower half of the branch of the life before
    /// ([`branch_link`]). In other segments, that of the life's own branch.
    pub(crate) previous_branch: u32,
}

/// The part of a branch that the header of the next life's first segment holds.
pub(crate) fn branch_link(branch: u64) -> u32 {
    branch as u32
}

impl SegmentHeader {
    /// Encodes the whole first block.
    pub(crate) fn encode(&self, block: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&FORMAT_VERSION.to_le_bytes());
        put(&self.incarnation.to_le_bytes());
        for field in [
            self.database_id,
            self.number,
            self.start,
            self.previous_end,
            self.whole_below,
            self.first,
            self.capacity,
            self.branch,
        ] {
            put(&field.to_le_bytes());
        }
        put(&self.previous_branch.to_le_bytes());
        let crc = crc32c(&block[..SEGMENT_HEADER_BYTES - 4]);
        block[SEGMENT_HEADER_BYTES - 4..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        block[SEGMENT_HEADER_BYTES..].fill(0);
    }

    /// Decodes a header and checks all that can be checked without the neighbouring segments.
    /// [`ErrorKind::NewerFormat`] and [`ErrorKind::Unsupported`] (an older format) name both
    /// versions.
    pub(crate) fn decode(block: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("log segment header", block);
        if reader.bytes(8)? != MAGIC {
            return Err(reader.corrupt("the file is not a log segment"));
        }
        // Check the CRC before the version: a damaged header must not pass for a newer format.
        let summed = &block[..block.len().min(SEGMENT_HEADER_BYTES - 4)];
        let checksum = &block[summed.len()..];
        if Reader::new("log segment header", checksum).u32()? != crc32c(summed)
            && !mutant::active("segment-header-without-checksum")
        {
            return Err(reader.corrupt("the header of a log segment does not match its checksum"));
        }
        let version = reader.u32()?;
        if version > FORMAT_VERSION {
            return Err(
                Error::new(ErrorKind::NewerFormat, "a newer Terrapin wrote this log")
                    .with("its version", version)
                    .with("newest version known here", FORMAT_VERSION),
            );
        }
        if (1..FORMAT_VERSION).contains(&version) {
            let message = "an older version of Terrapin wrote this log, in a format that this version does not read: export the database with that version, and import it with this one";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with("its version", version)
                .with("version read here", FORMAT_VERSION));
        }
        let incarnation = reader.u32()?;
        let header = SegmentHeader {
            incarnation,
            database_id: reader.u64()?,
            number: reader.u64()?,
            start: reader.u64()?,
            previous_end: reader.u64()?,
            whole_below: reader.u64()?,
            first: reader.u64()?,
            capacity: reader.u64()?,
            branch: reader.u64()?,
            previous_branch: reader.u32()?,
        };
        let aligned = [header.start, header.capacity]
            .iter()
            .all(|v| v.is_multiple_of(BLOCK_BYTES));
        let ordered = header.previous_end <= header.start
            && header.start - header.previous_end < BLOCK_BYTES
            && header.first >= header.start
            // The record that reaches into the segment is at most this long.
            && header.first - header.start <= RECORD_HEADER_BYTES + PAYLOAD_BYTES_LIMIT;
        let bounded = version == FORMAT_VERSION
            && header.start >= BLOCK_BYTES
            && header.capacity >= BLOCK_BYTES
            && header
                .start
                .checked_add(header.capacity)
                .is_some_and(|end| end <= LSN_LIMIT && header.whole_below <= end)
            && header.first <= LSN_LIMIT;
        if aligned && ordered && bounded {
            Ok(header)
        } else {
            Err(reader.corrupt("a log segment's header contradicts itself"))
        }
    }
}

/// Bound of all LSNs: two exbibytes of log, far below the point where sums of offsets overflow.
pub(crate) const LSN_LIMIT: u64 = 1 << 61;

/// The number of the next segment. No real log reaches the highest number, but a damaged header may
/// name it.
pub(crate) fn next_number(number: u64) -> Result<u64> {
    let next = number.checked_add(1);
    next.ok_or_else(|| {
        Error::corrupt("no segment number is left behind the last log segment")
            .with("file", segment_name(number))
    })
}

/// `lsn` rounded up to a block.
pub(crate) fn block_up(lsn: u64) -> u64 {
    lsn.next_multiple_of(BLOCK_BYTES)
}

/// `lsn` rounded down to a block.
pub(crate) fn block_down(lsn: u64) -> u64 {
    lsn - lsn % BLOCK_BYTES
}

/// Bytes of the filler from `lsn` to a block's start, header included; 0 at a block's start.
pub(crate) fn filler_bytes(lsn: u64) -> u64 {
    match block_up(lsn) - lsn {
        0 => 0,
        gap if gap < RECORD_HEADER_BYTES => gap + BLOCK_BYTES,
        gap => gap,
    }
}

/// Name of the ring file.
pub(crate) const RING_NAME: &str = "ring";
/// Name of a new ring before it replaces the old one.
pub(crate) const RING_NEW_NAME: &str = "ring-new";

/// File name of a segment.
pub(crate) fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

/// File name of a spare: an allocated file that waits to become a segment. Its content has no
/// meaning.
pub(crate) fn spare_name(number: u64) -> String {
    format!("spare-{number:016x}")
}

/// The number in a segment's file name.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    number_behind("log-", name)
}

/// The number in a spare's file name.
pub(crate) fn spare_number(name: &str) -> Option<u64> {
    number_behind("spare-", name)
}

/// Whether a file of that name belongs to a log.
#[must_use]
pub fn is_log_file(name: &str) -> bool {
    name == RING_NAME
        || name == RING_NEW_NAME
        || segment_number(name).is_some()
        || spare_number(name).is_some()
}

fn number_behind(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    let plain = digits.len() == 16
        && digits
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if plain {
        u64::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
