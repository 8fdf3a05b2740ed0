//! Every number of the block format, and the header's bytes.

use terrapin_base::checksum::{crc32c, crc32c_append};
use terrapin_base::codec::Reader;
use terrapin_base::{KEY_BYTES_MAX, Message, PageId, Result, VALUE_BYTES_MAX};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 20;
/// Largest target of a block in bytes: record starts are 16 bits.
pub const TARGET_BYTES_MAX: usize = 64 << 10;
/// Smallest unit, which a group and its parts are multiples of. Devices ask for 512; tests ask for
/// less.
pub const UNIT_BYTES_MIN: usize = 128;
/// Largest unit.
pub const UNIT_BYTES_MAX: usize = 4096;

/// Part number of a group's index, for [`part_seed`].
pub const PART_INDEX: u32 = u32::MAX;
/// Part number of a group's footer.
pub const PART_FOOTER: u32 = u32::MAX - 1;
/// Part number of a group's first filter partition; the others follow. Blocks have the numbers
/// below.
pub const PART_FILTER: u32 = 1 << 31;

/// First byte after the checksum: says that this is a block, and in which format.
pub(super) const BLOCK_MAGIC: u8 = 0xb1;
/// Most bytes of a payload: a full target, or one record of the longest key and value with its tag.
pub(super) const PAYLOAD_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + 8;
/// LZ4's number as a compression.
pub(super) const LZ4: u8 = 1;
/// What LZ4's block format makes of a byte at most.
const LZ4_RATIO_MAX: u64 = 255;
/// Bytes of a record's start in the array.
pub(super) const START_BYTES: usize = 2;
/// Bits of a tag below the suffix length.
pub(super) const KIND_BITS: u32 = 2;
/// Kind of a record that holds a [`Message::Put`].
pub(super) const KIND_PUT: u8 = 0;
/// Kind of a record that holds a [`Message::Delete`]. Two of four kinds are free; a reader refuses
/// a block with a kind that it does not know.
pub(super) const KIND_DELETE: u8 = 1;

const _: () = assert!(PAYLOAD_BYTES_MAX >= TARGET_BYTES_MAX);
const _: () = assert!(TARGET_BYTES_MAX <= 1 << 16, "records start within 16 bits");

/// What the CRC32C of a part of a page starts from: whose part it is, and which.
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
    }
}

/// The checksum of a block: over all its bytes on disk, padding included, but the checksum itself.
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
        // A block says how much memory it takes before its bytes can prove it: it must be able to
        // come to that.
        let several = header.count > 1;
        let inflated = compression == LZ4
            && u64::from(header.payload_bytes) > LZ4_RATIO_MAX * u64::from(header.stored_bytes);
        if several && header.payload_bytes as usize > TARGET_BYTES_MAX || inflated {
            return Err(reader.corrupt("a payload that no block has"));
        }
        Ok(header)
    }
}
