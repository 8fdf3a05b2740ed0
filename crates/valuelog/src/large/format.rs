//! The bytes of a large page behind its value.
//!
//! ```text
//! at          bytes
//! 0           n     the value, in pieces of 1 MiB
//! n           k     the key
//! n + k       4 p   CRC32C of each piece, from its seed {page id, number of the piece}
//!                   zeros
//! end - 64    64    footer: magic, page id; page offset, page bytes, n: u64 each; k: u32;
//!                   CRC32C of key and checksums, from its seed {page id, 0x4000_0003}: u32;
//!                   zeros; CRC32C
//! ```
//!
//! A page is a whole number of extents. Key and length follow from the handle's record, so a reader
//! knows where each part is before it reads anything.

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::Reader;
use terrapin_base::{
    EXTENT_ALIGNMENT, Error, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MAX, PageId, Result,
};
use terrapin_pages::block::part_seed;
use terrapin_pages::{FooterFrame, PageUse};

/// Bytes of a piece: what a read checks at least.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Bytes of a footer.
const FOOTER_BYTES: usize = 64;
/// Part number of a large page's footer. Pieces have their own numbers.
const PART_LARGE_FOOTER: u32 = 0x4000_0002;
/// Part number of the key and the checksums.
const PART_LARGE_TAIL: u32 = 0x4000_0003;
const FRAME: FooterFrame<FOOTER_BYTES> = FooterFrame {
    name: "large page footer",
    magic: *b"TPLARGE1",
    part: PART_LARGE_FOOTER,
};

/// Number of pieces of a value.
#[must_use]
pub fn pieces(length: u64) -> u64 {
    length.div_ceil(PIECE_BYTES)
}

/// Bytes of the page of a value of `length` bytes, at most [`LARGE_VALUE_BYTES_MAX`], and a key.
#[must_use]
pub fn page_bytes(length: u64, key_bytes: usize) -> u64 {
    let tail = key_bytes as u64 + 4 * pieces(length) + FOOTER_BYTES as u64;
    (length + tail).next_multiple_of(EXTENT_ALIGNMENT)
}

/// The checksum of a piece.
pub(super) fn piece_checksum(id: PageId, number: u64, piece: &[u8]) -> u32 {
    crc32c_append(part_seed(id, number as u32), piece)
}

/// What stands behind the value: key and checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) key: Box<[u8]>,
    pub(super) checksums: Box<[u32]>,
    /// The footer's own checksum. The log's record names it.
    pub(super) checksum: u32,
}

/// Appends the tail of a value to its last piece, up to the end of its page. Returns the footer's
/// checksum.
pub(super) fn append_tail(
    (page, length): (&PageUse, u64),
    key: &[u8],
    checksums: &[u32],
    out: &mut Vec<u8>,
) -> u32 {
    let start = out.len();
    out.extend_from_slice(key);
    for checksum in checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    let crc = crc32c_append(part_seed(page.id, PART_LARGE_TAIL), &out[start..]);
    let bytes = (page.bytes - length) as usize;
    out.resize(start + bytes - FOOTER_BYTES, 0);
    let mut fields = Vec::with_capacity(32);
    for value in [page.offset, page.bytes, length] {
        fields.extend_from_slice(&value.to_le_bytes());
    }
    fields.extend_from_slice(&(key.len() as u32).to_le_bytes());
    fields.extend_from_slice(&crc.to_le_bytes());
    let footer = FRAME.encode(page.id, &fields);
    out.extend_from_slice(&footer);
    checksum_of(&footer)
}

fn checksum_of(footer: &[u8; FOOTER_BYTES]) -> u32 {
    let last = footer.last_chunk().copied().unwrap_or_default();
    u32::from_le_bytes(last)
}

impl Tail {
    /// Decodes the bytes behind a value of `length` bytes, which fill the rest of its page.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if they are damaged, or of another page or length.
    pub(super) fn decode(bytes: &[u8], page: &PageUse, length: u64) -> Result<Tail> {
        let (id, mut reader) = FRAME.decode(bytes)?;
        let found = [reader.u64()?, reader.u64()?, reader.u64()?];
        let key_bytes = reader.u32()? as usize;
        let crc = reader.u32()?;
        if id != page.id || found != [page.offset, page.bytes, length] {
            return Err(reader.corrupt("another page, or a value of another length, lies here"));
        }
        FRAME.end(reader)?;
        let is_possible = key_bytes <= KEY_BYTES_MAX
            && length <= LARGE_VALUE_BYTES_MAX
            && page.bytes == page_bytes(length, key_bytes)
            && bytes.len() as u64 == page.bytes - length;
        if !is_possible {
            return Err(Error::corrupt("impossible fields").with("in", FRAME.name));
        }
        let count = pieces(length) as usize;
        let (parts, rest) = bytes.split_at(key_bytes + 4 * count);
        let is_sound = crc32c_append(part_seed(id, PART_LARGE_TAIL), parts) == crc;
        if !is_sound {
            return Err(Error::corrupt("checksum").with("in", "tail of a large page"));
        }
        if rest[..rest.len() - FOOTER_BYTES]
            .iter()
            .any(|&byte| byte != 0)
        {
            return Err(Error::corrupt("padding of a large page is not zero"));
        }
        let (key, checksums) = parts.split_at(key_bytes);
        let mut reader = Reader::new("tail of a large page", checksums);
        let checksums: Result<Box<[u32]>> = (0..count).map(|_| reader.u32()).collect();
        let footer = bytes.last_chunk().copied();
        Ok(Tail {
            key: key.into(),
            checksums: checksums?,
            checksum: footer.as_ref().map_or(0, checksum_of),
        })
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;

    use super::*;

    fn page(length: u64, key: &[u8]) -> PageUse {
        PageUse::whole(PageId(1 << 41), 8192, page_bytes(length, key.len()))
    }

    #[test]
    fn tails_round_trip_and_each_changed_bit_is_refused() {
        for length in [1, (1 << 20) - 1, 1 << 20, (3 << 20) + 5] {
            let key = b"key";
            let page = page(length, key);
            let checksums: Vec<u32> = (0..pieces(length) as u32).collect();
            let mut bytes = Vec::new();
            let checksum = append_tail((&page, length), key, &checksums, &mut bytes);
            assert_eq!(bytes.len() as u64, page.bytes - length);
            let tail = Tail::decode(&bytes, &page, length).unwrap();
            let expected = Tail {
                key: key[..].into(),
                checksums: checksums.into(),
                checksum,
            };
            assert_eq!(tail, expected);
            for at in 0..bytes.len() {
                bytes[at] ^= 1 << (at % 8);
                assert!(Tail::decode(&bytes, &page, length).is_err(), "byte {at}");
                bytes[at] ^= 1 << (at % 8);
            }
            for end in [0, 10, FOOTER_BYTES, bytes.len() - 1] {
                assert!(Tail::decode(&bytes[..end], &page, length).is_err());
            }
            assert!(Tail::decode(&bytes[1..], &page, length).is_err());
            assert!(Tail::decode(&bytes, &page, length + 1).is_err());
        }
    }

    #[test]
    fn pages_are_whole_extents_with_room_for_their_tails() {
        for (length, key_bytes, bytes) in [
            (1u64, 0usize, 4096u64),
            (4096 - 68, 0, 4096),
            (4096 - 67, 0, 8192),
            (1 << 30, 65_535, (1 << 30) + (18 << 12)),
        ] {
            assert_eq!(page_bytes(length, key_bytes), bytes, "{length}");
        }
    }
}
