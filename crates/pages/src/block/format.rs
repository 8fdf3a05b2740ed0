//! The numbers of the block format, the header, and the extension of a record: its bytes between
//! key and value.

use terrapin_base::checksum::{crc32c, crc32c_append};
use terrapin_base::codec::Reader;
use terrapin_base::expiry::{DEADLINE_BYTES, deadline_bytes};
use terrapin_base::{Error, KEY_BYTES_MAX, Message, PageId, Result, STACK_BYTES_MAX, expiry};

use super::record::{Record, RecordKind};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 20;
/// Largest target of a block in bytes: record starts are 16 bits.
pub const TARGET_BYTES_MAX: usize = 64 << 10;
/// Smallest unit in bytes. Groups and their parts are multiples of the unit. Devices require 512;
/// tests use less.
pub const UNIT_BYTES_MIN: usize = 128;
/// Largest unit.
pub const UNIT_BYTES_MAX: usize = 4096;

/// Whether a unit in bytes is possible: a power of two within the limits.
#[must_use]
pub fn is_unit(bytes: u32) -> bool {
    bytes.is_power_of_two() && (UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&(bytes as usize))
}

/// Part number of a group's index, for [`part_seed`].
pub const PART_INDEX: u32 = u32::MAX;
/// Part number of a group's footer.
pub const PART_FOOTER: u32 = u32::MAX - 1;
/// Part number of a group's first filter partition; the others follow. Blocks have the numbers
/// below.
pub const PART_FILTER: u32 = 1 << 31;
/// Part number of a maplet's first partition; the others follow.
pub const PART_MAPLET: u32 = 1 << 31 | 1 << 30;

/// First byte after the checksum: identifies a block and its format.
pub(super) const BLOCK_MAGIC: u8 = 0xb1;
/// Most bytes of a tag: a varint of the longest key's length and two bits.
const TAG_BYTES_MAX: usize = 3;
/// Most bytes of a payload: a full target, or one record of the longest key and stack of operands
/// with its tag and its extension.
pub(super) const PAYLOAD_BYTES_MAX: usize =
    KEY_BYTES_MAX + STACK_BYTES_MAX + TAG_BYTES_MAX + EXTENSION_BYTES_MAX;
/// LZ4's number as a compression.
pub(super) const LZ4: u8 = 1;
/// Most bytes that one byte of LZ4's block format expands to.
const LZ4_RATIO_MAX: u64 = 255;
/// Bytes of a record's start in the array.
pub(super) const START_BYTES: usize = 2;
/// Bits of a tag below the suffix length.
pub(super) const KIND_BITS: u32 = 2;
/// Kind of a record that is a [`Message::Put`] without a deadline.
pub(super) const KIND_PUT: u8 = 0;
/// Kind of a record that is a [`Message::Delete`].
pub(super) const KIND_DELETE: u8 = 1;
/// Kind of a record that has an extension between its key and its value. The fourth kind is
/// reserved: a reader refuses it.
pub(super) const KIND_EXTENDED: u8 = 2;

/// The bit of an extension's first byte that says that a deadline follows. The others are the kind.
const HAS_DEADLINE: u8 = 0x80;
/// Most bytes of an extension.
pub(super) const EXTENSION_BYTES_MAX: usize = 1 + DEADLINE_BYTES;
/// Bytes of the extension of a message. A deadline counts as a part of the value.
pub(super) const MESSAGE_EXTENSION_BYTES: usize = 1;

const _: () = assert!(PAYLOAD_BYTES_MAX >= TARGET_BYTES_MAX);
const _: () = assert!(TARGET_BYTES_MAX <= 1 << 16, "records start within 16 bits");
const _: () = assert!(KEY_BYTES_MAX << KIND_BITS < 1 << (7 * TAG_BYTES_MAX));

/// Bytes of the block that starts these bytes, without padding. `None` if no block can. Its content
/// is not checked.
pub(crate) fn stored_block_bytes(bytes: &[u8]) -> Option<usize> {
    if bytes.get(4) != Some(&BLOCK_MAGIC) {
        return None;
    }
    let header = Header::decode(bytes).ok()?;
    Some(BLOCK_HEADER_BYTES + header.stored_bytes as usize)
}

/// The start value of the CRC32C of a part: made from the page id and the part's number.
#[must_use]
pub fn part_seed(id: PageId, part: u32) -> u32 {
    crc32c_append(crc32c(&id.0.to_le_bytes()), &part.to_le_bytes())
}

/// The kind of the record that holds a message.
#[inline]
pub(super) fn kind_of(message: Message<'_>) -> u8 {
    match message {
        Message::Put(_) => KIND_PUT,
        Message::Delete => KIND_DELETE,
        Message::Merge(_) | Message::Stack(_) | Message::Separated(_) | Message::Expiring(_) => {
            KIND_EXTENDED
        }
    }
}

const MERGE: u8 = 1;
const SEPARATED: u8 = 2;
const BASE_WITH_OPERANDS: u8 = 4;
/// The first byte of the extension of a put with a deadline.
const EXPIRING_PUT: u8 = HAS_DEADLINE;

/// The number of a kind in an extension. `None` for deletes, which have no extension.
fn extended_number(kind: RecordKind) -> Option<u8> {
    match kind {
        RecordKind::Put => Some(0),
        RecordKind::Merge => Some(MERGE),
        RecordKind::Separated => Some(SEPARATED),
        RecordKind::Large => Some(3),
        RecordKind::BaseWithOperands => Some(BASE_WITH_OPERANDS),
        RecordKind::Delete => None,
    }
}

/// An extension: the bytes of an extended record between its key and its value.
pub(super) struct Extension {
    bytes: [u8; EXTENSION_BYTES_MAX],
    count: usize,
}

impl Extension {
    /// The extension of a record; empty for a plain put and a delete. Panics if
    /// [`Record::is_possible`] is false.
    pub(super) fn of(record: Record<'_>) -> Self {
        assert!(record.is_possible(), "impossible record: {record:?}");
        let mut extension = Extension {
            bytes: [0; EXTENSION_BYTES_MAX],
            count: 0,
        };
        let Some(number) = extended_number(record.kind).filter(|_| !record.is_plain()) else {
            return extension;
        };
        extension.bytes[0] = number;
        extension.count = 1;
        if let Some(deadline) = record.deadline_ms {
            extension.bytes[0] |= HAS_DEADLINE;
            extension.bytes[1..].copy_from_slice(&deadline_bytes(deadline));
            extension.count = EXTENSION_BYTES_MAX;
        }
        extension
    }

    /// The kind in the record's tag.
    pub(super) fn tag_kind(&self, kind: RecordKind) -> u8 {
        match kind {
            _ if self.count > 0 => KIND_EXTENDED,
            RecordKind::Delete => KIND_DELETE,
            _ => KIND_PUT,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The message of an extended record, from the bytes behind its key, which
/// [`Record::decode_extended`] proved. `None` if this version does not execute the record.
pub(super) fn extended_message(behind_key: &[u8]) -> Option<Message<'_>> {
    let (first, value) = behind_key.split_first()?;
    match *first {
        EXPIRING_PUT => Some(Message::Expiring(value)),
        MERGE => Some(Message::Merge(value)),
        SEPARATED => Some(Message::Separated(value)),
        BASE_WITH_OPERANDS => Some(Message::Stack(value)),
        _ => None,
    }
}

impl<'a> Record<'a> {
    /// Decodes an extended record from the bytes behind its key.
    pub(super) fn decode_extended(behind_key: &'a [u8]) -> Result<Record<'a>> {
        let mut reader = Reader::new("extended record", behind_key);
        let first = reader.u8()?;
        let number = first & !HAS_DEADLINE;
        let kind = RecordKind::ALL
            .into_iter()
            .find(|&kind| extended_number(kind) == Some(number))
            .ok_or_else(|| reader.corrupt("unknown record kind").with("kind", number))?;
        let mut deadline_ms = None;
        if first & HAS_DEADLINE != 0 {
            deadline_ms = Some(expiry::split(reader.bytes(DEADLINE_BYTES)?)?.0);
        }
        let record = Record {
            kind,
            deadline_ms,
            value: reader.bytes(reader.remaining())?,
        };
        if record.is_plain() || !record.is_possible() {
            return Err(Error::corrupt("impossible extended record").with("kind", kind.name()));
        }
        Ok(record)
    }
}

/// The checksum of a block: over all its bytes on disk, padding included, except the checksum.
pub(super) fn checksum(block: &[u8], id: PageId, number: u32) -> u32 {
    crc32c_append(part_seed(id, number), &block[4..])
}

/// The fields behind the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) compression: u8,
    pub(super) prefix_bytes: u16,
    pub(super) count: u16,
    /// Bytes of the payload when not compressed.
    pub(super) payload_bytes: u32,
    /// Bytes of the payload as it is stored.
    pub(super) stored_bytes: u32,
}

impl Header {
    /// The header with a checksum of zero.
    pub(super) fn encode(self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut out = [0; BLOCK_HEADER_BYTES];
        out[4] = BLOCK_MAGIC;
        out[5] = self.compression;
        out[6..8].copy_from_slice(&self.prefix_bytes.to_le_bytes());
        out[8..10].copy_from_slice(&self.count.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out
    }

    /// The header of a block, its fields checked against each other and against the block's size on
    /// disk.
    pub(super) fn decode(block: &[u8]) -> Result<Header> {
        let mut reader = Reader::new("block header", block);
        reader.u32()?;
        if reader.u8()? != BLOCK_MAGIC {
            return Err(reader.corrupt("not a block"));
        }
        let compression = reader.u8()?;
        let prefix_bytes = reader.u16()?;
        let count = reader.u16()?;
        if reader.u16()? != 0 {
            return Err(reader.corrupt("reserved bytes are not zero"));
        }
        let header = Header {
            compression,
            prefix_bytes,
            count,
            payload_bytes: reader.u32()?,
            stored_bytes: reader.u32()?,
        };
        if header.payload_bytes as usize > PAYLOAD_BYTES_MAX
            || header.stored_bytes as usize > reader.remaining()
        {
            return Err(reader.corrupt("lengths out of bounds"));
        }
        if header.count == 0 {
            return Err(reader.corrupt("no records"));
        }
        // The header claims a payload length before the bytes prove it. Refuse lengths that the
        // stored bytes cannot expand to.
        let several = header.count > 1;
        let inflated = compression == LZ4
            && u64::from(header.payload_bytes) > LZ4_RATIO_MAX * u64::from(header.stored_bytes);
        if several && header.payload_bytes as usize > TARGET_BYTES_MAX || inflated {
            return Err(reader.corrupt("a payload that no block has"));
        }
        Ok(header)
    }
}
