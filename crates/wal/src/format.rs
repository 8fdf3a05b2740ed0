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

/// The unit in which the log is written: drained chunks, synced ends and segment bounds are
/// multiples of it.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Bytes before a record's payload: CRC (4), payload length (4), kind (1).
pub const RECORD_HEADER_BYTES: u64 = 9;
/// Smallest kind that users of the log may give their records; the kinds below are the log's own.
pub const RECORD_KIND_USER_MIN: u8 = 16;
/// Fills the stream up to a block's start; its payload is zeros and means nothing.
pub(crate) const KIND_FILLER: u8 = 1;
/// Says how far the log was known to be synced; stands first in a block.
pub(crate) const KIND_MARK: u8 = 2;
/// Ends a life that was closed in order.
pub(crate) const KIND_CLOSE: u8 = 3;
/// Longest payload that recovery believes in: a quarter of the largest ring.
pub(crate) const PAYLOAD_BYTES_LIMIT: u64 = RING_BYTES_LIMIT / 4;
/// Largest ring that options may ask for.
pub(crate) const RING_BYTES_LIMIT: u64 = 1 << 30;
/// Bytes of a whole mark record.
pub(crate) const MARK_BYTES: u64 = RECORD_HEADER_BYTES + 8;
/// Most bytes that one filler takes, header included: a gap smaller than a header is filled through
/// the next block.
pub(crate) const FILLER_BYTES_MAX: u64 = BLOCK_BYTES + RECORD_HEADER_BYTES - 1;

/// Version of the log's format that this build writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"TERRALOG";
/// Bytes of a segment header that mean something; the rest of its block is zeros.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 88;

const _: () = assert!(SEGMENT_HEADER_BYTES == 8 + 4 + 4 + 8 * 8 + 4 + 4);
const _: () = assert!((SEGMENT_HEADER_BYTES as u64) <= BLOCK_BYTES);
const _: () = assert!(RECORD_HEADER_BYTES == 4 + 4 + 1);
const _: () = assert!(PAYLOAD_BYTES_LIMIT < u32::MAX as u64);
const _: () = assert!(RECORD_KIND_USER_MIN > KIND_CLOSE);

/// Where a record may count: in one life of one log. Bytes of another life, or of another copy of
/// the database, fail their CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeId {
    /// Random, and so it stands for the database, too.
    pub(crate) branch: u64,
    pub(crate) incarnation: u32,
}

impl LifeId {
    /// The part of a record's CRC that does not depend on its LSN: everything that is dear.
    pub(crate) fn begin(&self, kind: u8, length: u32, payload: &[&[u8]]) -> u32 {
        let mut crc = 0;
        for piece in payload
            .iter()
            .filter(|_| !mutant::active("record-checksum-without-payload"))
        {
            crc = crc32c_append(crc, piece);
        }
        crc32c_append(crc, &self.place(kind, length))
    }

    /// What the CRC covers between payload and LSN.
    #[inline]
    fn place(&self, kind: u8, length: u32) -> [u8; PLACE_BYTES] {
        let mut place = [0; PLACE_BYTES];
        place[..8].copy_from_slice(&self.branch.to_le_bytes());
        place[8..12].copy_from_slice(&self.incarnation.to_le_bytes());
        place[12..16].copy_from_slice(&length.to_le_bytes());
        place[16] = kind;
        place
    }

    /// The whole CRC, once the LSN is known.
    #[inline]
    pub(crate) fn finish(begun: u32, lsn: u64) -> u32 {
        /// The checksum is quickest from a multiple of its word.
        #[repr(align(8))]
        struct Aligned([u8; 8]);
        crc32c_append(begun, &Aligned(lsn.to_le_bytes()).0)
    }

    /// A record with everything done that can be without its LSN. `length` is the payload's.
    // Always: a call of its own is 3 % of an append.
    #[inline(always)]
    pub(crate) fn draft<'a>(
        &self,
        kind: u8,
        length: u32,
        payload: &'a [&'a [u8]],
        room: &'a mut Room,
    ) -> Draft<'a> {
        if length as usize > SMALL_PAYLOAD_BYTES {
            let crc = self.begin(kind, length, payload);
            return Draft {
                header: RecordHeader { crc, length, kind },
                payload,
                whole: None,
            };
        }
        let end = Room::PAYLOAD + length as usize;
        let mut at = Room::PAYLOAD;
        for piece in payload {
            room.0[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        room.0[end..end + PLACE_BYTES].copy_from_slice(&self.place(kind, length));
        let summed = if mutant::active("record-checksum-without-payload") {
            end
        } else {
            Room::PAYLOAD
        };
        let crc = crc32c(&room.0[summed..end + PLACE_BYTES]);
        let header = RecordHeader { crc, length, kind };
        room.0[Room::RECORD..Room::PAYLOAD].copy_from_slice(&header.encode());
        Draft {
            header,
            payload,
            whole: Some(&mut room.0[Room::RECORD..end]),
        }
    }

    /// Whether a record of this life stands at `lsn`.
    pub(crate) fn holds(&self, header: &RecordHeader, payload: &[u8], lsn: u64) -> bool {
        header.crc == Self::finish(self.begin(header.kind, header.length, &[payload]), lsn)
    }

    /// A whole record in one piece, for the log's own small ones.
    #[cfg(test)]
    pub(crate) fn record(&self, kind: u8, payload: &[u8], lsn: u64) -> Vec<u8> {
        let length = payload.len() as u32;
        let crc = Self::finish(self.begin(kind, length, &[payload]), lsn);
        let mut out = RecordHeader { crc, length, kind }.encode().to_vec();
        out.extend_from_slice(payload);
        out
    }
}

/// Longest payload of a record that is put together before it is summed and copied: calls cost more
/// than its bytes do.
pub(crate) const SMALL_PAYLOAD_BYTES: usize = 480;
/// Bytes that a CRC covers between payload and LSN: branch, incarnation, length and kind.
const PLACE_BYTES: usize = 17;

/// Where a small record is put together. Its payload begins at a multiple of the checksum's word.
#[repr(align(8))]
pub(crate) struct Room([u8; Room::PAYLOAD + SMALL_PAYLOAD_BYTES + PLACE_BYTES]);

impl Room {
    const PAYLOAD: usize = 16;
    const RECORD: usize = Self::PAYLOAD - RECORD_HEADER_BYTES as usize;

    /// Nothing yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Room([0; Self::PAYLOAD + SMALL_PAYLOAD_BYTES + PLACE_BYTES])
    }
}

/// A record that waits for its LSN.
pub(crate) struct Draft<'a> {
    /// Its CRC lacks the LSN.
    header: RecordHeader,
    payload: &'a [&'a [u8]],
    /// All of a small record.
    whole: Option<&'a mut [u8]>,
}

impl Draft<'_> {
    /// Bytes of the whole record.
    #[inline]
    pub(crate) fn record_bytes(&self) -> u64 {
        self.header.record_bytes()
    }

    /// Hands out the record as it stands at `lsn`, each piece with where it goes.
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

/// What stands before a payload.
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

    /// `None` for what no record begins with: too few bytes, kind 0 (unwritten bytes are zeros), a
    /// length beyond every ring.
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

/// Payload of a mark: everything below this LSN was on stable storage when the mark was written.
pub(crate) fn encode_mark(synced: u64) -> [u8; 8] {
    synced.to_le_bytes()
}

/// What the mark says that stands at `lsn`, if `bytes` (of a block's start) are one.
pub(crate) fn decode_mark(life_id: &LifeId, lsn: u64, bytes: &[u8]) -> Option<u64> {
    let header = RecordHeader::decode(bytes)?;
    let payload = bytes.get(RECORD_HEADER_BYTES as usize..MARK_BYTES as usize)?;
    if header.kind != KIND_MARK || header.length != 8 || !life_id.holds(&header, payload, lsn) {
        return None;
    }
    // A mark cannot know of what comes after it.
    Reader::new("log mark", payload)
        .u64()
        .ok()
        .filter(|&synced| synced <= lsn)
}

/// As [`decode_mark`], for a block of the ring, of which only the remainder of its LSN is known. A
/// mark stands less than a ring behind what it says was synced: all below that had left the ring.
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

/// What stands in the first block of a segment. The stream's bytes `[start, start + capacity)`
/// follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) database_id: u64,
    /// The segment's number, which its file's name says too.
    pub(crate) number: u64,
    pub(crate) incarnation: u32,
    /// LSN of the first byte behind this block.
    pub(crate) start: u64,
    /// Where the stream before ends: `start` within a life (what earlier segments hold from there
    /// on does not count); in the first segment of a life, the end that recovery accepted.
    pub(crate) previous_end: u64,
    /// Every record below this LSN was synced before this segment got its name: the start of the
    /// record that reaches across `start`, or `start` itself; in the first segment of a life,
    /// `previous_end`; in one that a recovery filled, where it ends.
    pub(crate) whole_below: u64,
    /// LSN of the first record that begins in this segment or, when a record covers it wholly,
    /// behind it.
    pub(crate) first: u64,
    /// Bytes of stream that the segment holds: a multiple of a block.
    pub(crate) capacity: u64,
    /// The branch of the life.
    pub(crate) branch: u64,
    /// The branch of the life before, its lower half ([`branch_link`]), in a life's first segment;
    /// in the others the life's own.
    pub(crate) previous_branch: u32,
}

/// What a segment's header says of the branch before.
pub(crate) fn branch_link(branch: u64) -> u32 {
    branch as u32
}

impl SegmentHeader {
    /// The whole first block.
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

    /// Checks everything that can be checked without the segment's neighbours.
    /// [`ErrorKind::NewerFormat`] and [`ErrorKind::Unsupported`] (an older format) name both
    /// versions.
    pub(crate) fn decode(block: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("log segment header", block);
        if reader.bytes(8)? != MAGIC {
            return Err(reader.corrupt("not a log segment"));
        }
        // Before the version: a damaged one is none of a newer format.
        let sealed = &block[..block.len().min(SEGMENT_HEADER_BYTES - 4)];
        let checksum = &block[sealed.len()..];
        if Reader::new("log segment header", checksum).u32()? != crc32c(sealed)
            && !mutant::active("segment-header-without-checksum")
        {
            return Err(reader.corrupt("checksum of a log segment's header"));
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
            // A record that begins before the segment reaches no farther.
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

/// No LSN reaches this: two exbibytes of log, far from where sums of offsets could wrap.
pub(crate) const LSN_LIMIT: u64 = 1 << 61;

/// The number of the segment behind one. No log is ever that long, but a header may say anything.
pub(crate) fn next_number(number: u64) -> Result<u64> {
    let next = number.checked_add(1);
    next.ok_or_else(|| {
        Error::corrupt("log segments are numbered to the end").with("file", segment_name(number))
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

/// Bytes of the filler that takes the stream from `lsn` to a block's start, header included; 0 at a
/// block's start.
pub(crate) fn filler_bytes(lsn: u64) -> u64 {
    match block_up(lsn) - lsn {
        0 => 0,
        gap if gap < RECORD_HEADER_BYTES => gap + BLOCK_BYTES,
        gap => gap,
    }
}

/// Name of the ring file.
pub(crate) const RING_NAME: &str = "ring";
/// Name of a ring that is being made to take the old one's place.
pub(crate) const RING_NEW_NAME: &str = "ring-new";

/// File name of a segment.
pub(crate) fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

/// File name of an allocated file that waits to become a segment; its content means nothing.
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

/// Whether a file of that name is one of a log's.
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
mod tests {
    use super::*;

    const LIFE: LifeId = LifeId {
        branch: 0xd1,
        incarnation: 3,
    };

    #[test]
    fn a_record_counts_only_where_it_was_written() {
        let bytes = LIFE.record(16, b"payload", 5000);
        let header = RecordHeader::decode(&bytes).unwrap();
        let payload = &bytes[RECORD_HEADER_BYTES as usize..];
        assert_eq!(header.record_bytes(), bytes.len() as u64);
        assert!(LIFE.holds(&header, payload, 5000));
        assert!(!LIFE.holds(&header, payload, 5001));
        assert!(!LIFE.holds(&header, b"paYload", 5000));
        assert!(
            !LifeId {
                incarnation: 4,
                ..LIFE
            }
            .holds(&header, payload, 5000)
        );
        assert!(!LifeId { branch: 0, ..LIFE }.holds(&header, payload, 5000));
        assert!(!LIFE.holds(&RecordHeader { kind: 17, ..header }, payload, 5000));
        assert!(RecordHeader::decode(&[0; 9]).is_none());
        assert!(RecordHeader::decode(&[9; 8]).is_none());
    }

    #[test]
    fn a_checksum_over_pieces_is_the_one_over_the_whole() {
        assert_eq!(
            LIFE.begin(16, 6, &[b"ab", b"", b"cdef"]),
            LIFE.begin(16, 6, &[b"abcdef"])
        );
    }

    #[test]
    fn a_draft_of_any_length_becomes_the_record() {
        let bytes: Vec<u8> = (0..SMALL_PAYLOAD_BYTES + 3).map(|i| i as u8).collect();
        for length in (0..20).chain(SMALL_PAYLOAD_BYTES - 2..=bytes.len()) {
            let payload = &bytes[..length];
            let (head, rest) = payload.split_at(length / 3);
            let pieces = [head, &[], rest];
            let mut room = Room::new();
            let mut draft = LIFE.draft(16, length as u32, &pieces, &mut room);
            let bytes = draft.record_bytes();
            for lsn in [5000, 70_001] {
                let mut written = Vec::new();
                draft.write(lsn, |at, piece| {
                    assert_eq!(at, lsn + written.len() as u64);
                    written.extend_from_slice(piece);
                });
                assert_eq!(written.len() as u64, bytes);
                assert_eq!(written, LIFE.record(16, payload, lsn), "{length}");
            }
        }
    }

    #[test]
    fn fillers_end_at_a_block_and_are_never_smaller_than_a_header() {
        for lsn in 4096..3 * 4096 {
            let bytes = filler_bytes(lsn);
            assert!((lsn + bytes).is_multiple_of(BLOCK_BYTES));
            assert!(bytes == 0 || (RECORD_HEADER_BYTES..=FILLER_BYTES_MAX).contains(&bytes));
            assert_eq!(bytes == 0, lsn.is_multiple_of(BLOCK_BYTES));
        }
    }

    #[test]
    fn marks_are_found_and_cannot_speak_of_the_future() {
        let mark = LIFE.record(KIND_MARK, &encode_mark(4096), 8192);
        assert_eq!(mark.len() as u64, MARK_BYTES);
        assert_eq!(decode_mark(&LIFE, 8192, &mark), Some(4096));
        assert_eq!(decode_mark(&LIFE, 12288, &mark), None);
        let lie = LIFE.record(KIND_MARK, &encode_mark(8193), 8192);
        assert_eq!(decode_mark(&LIFE, 8192, &lie), None);
    }

    #[test]
    fn a_mark_in_the_ring_is_found_however_often_the_ring_went_round() {
        let ring = 64 << 10;
        for round in [0, 1, 2, 1000, (LSN_LIMIT / ring) - 2] {
            for behind in [0, 4096, ring - 4096] {
                let synced = round * ring + 8192;
                let lsn = synced + behind;
                let mark = LIFE.record(KIND_MARK, &encode_mark(synced), lsn);
                let found = |offset| decode_mark_in_ring(&LIFE, ring, offset, &mark);
                assert_eq!(found(lsn % ring), Some(synced));
                assert_eq!(found((lsn + 4096) % ring), None);
            }
        }
        assert_eq!(decode_mark_in_ring(&LIFE, ring, 0, &[0xff; 17]), None);
        assert_eq!(decode_mark_in_ring(&LIFE, ring, 0, &[0; 3]), None);
    }

    fn header() -> SegmentHeader {
        SegmentHeader {
            database_id: 0xd1,
            number: 7,
            incarnation: 3,
            start: 40960,
            previous_end: 40960,
            whole_below: 40000,
            first: 41000,
            capacity: 65536,
            branch: 0xb1b2_b3b4_b5b6_b7b8,
            previous_branch: 0xc1c2_c3c4,
        }
    }

    #[test]
    fn a_segment_header_round_trips_and_no_flipped_bit_passes() {
        let mut block = [0xff; BLOCK_BYTES as usize];
        header().encode(&mut block);
        assert_eq!(SegmentHeader::decode(&block).unwrap(), header());
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(SegmentHeader::decode(&block[..80]).is_err());
        let contradictions = [
            SegmentHeader {
                start: 40961,
                ..header()
            },
            SegmentHeader {
                capacity: 0,
                ..header()
            },
            SegmentHeader {
                capacity: u64::MAX - 4095,
                ..header()
            },
            SegmentHeader {
                previous_end: 50000,
                ..header()
            },
            SegmentHeader {
                previous_end: 0,
                ..header()
            },
            SegmentHeader {
                whole_below: 40960 + 65536 + 1,
                ..header()
            },
            SegmentHeader {
                first: 1,
                ..header()
            },
        ];
        for bad in contradictions {
            bad.encode(&mut block);
            assert!(SegmentHeader::decode(&block).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn another_format_is_told_apart_from_damage() {
        let mut block = [0; BLOCK_BYTES as usize];
        header().encode(&mut block);
        let kind = |block: &[u8]| SegmentHeader::decode(block).unwrap_err().kind();
        for bit in 0..32 {
            let mut damaged = block;
            damaged[8 + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(kind(&damaged), ErrorKind::Corrupt);
        }
        let sealed = SEGMENT_HEADER_BYTES - 4;
        let versions = [
            (FORMAT_VERSION + 1, ErrorKind::NewerFormat),
            (FORMAT_VERSION - 1, ErrorKind::Unsupported),
            (0, ErrorKind::Corrupt),
        ];
        for (version, expected) in versions {
            block[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&block[..sealed]);
            block[sealed..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(kind(&block), expected);
        }
    }

    #[test]
    fn names_are_read_strictly() {
        assert_eq!(segment_number(&segment_name(0xab)), Some(0xab));
        assert_eq!(spare_number(&spare_name(u64::MAX)), Some(u64::MAX));
        for name in [
            "log-1",
            "log-00000000000000AB",
            "log-+000000000000001",
            "ring",
            "spare-0000000000000001",
        ] {
            assert_eq!(segment_number(name), None, "{name}");
        }
    }
}
