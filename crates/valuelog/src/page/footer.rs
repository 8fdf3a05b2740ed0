//! The footer of a value page: its last bytes, by which the page can be checked without the table.

use terrapin_base::{EXTENT_ALIGNMENT, PageId, Result};
use terrapin_pages::FooterFrame;
use terrapin_pages::block::is_unit;

use crate::{PAGE_BYTES_MAX, PLACE_BYTES};

/// Bytes of a footer.
pub(crate) const FOOTER_BYTES: usize = 96;
/// Part number of a value page's directory, for
/// [`part_seed`](terrapin_pages::block::part_seed). No page group has such a part.
pub const PART_DIRECTORY: u32 = 0x4000_0000;
/// Part number of a value page's footer.
pub const PART_VALUE_FOOTER: u32 = 0x4000_0001;
const FRAME: FooterFrame<FOOTER_BYTES> = FooterFrame {
    name: "value page footer",
    magic: *b"TPVALUE1",
    part: PART_VALUE_FOOTER,
};

/// Position and counts of a value page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The page's id.
    pub id: PageId,
    /// The page's first byte in the data file.
    pub offset: u64,
    /// The page's length in bytes: a multiple of the unit.
    pub bytes: u64,
    /// Bytes of all records, in front of the directory: a multiple of the unit.
    pub record_bytes: u32,
    /// Bytes of the directory.
    pub directory_bytes: u32,
    /// Number of records: at least one.
    pub records: u32,
    /// Number of parts: at least one.
    pub parts: u32,
    /// Key and value bytes, decompressed.
    pub logical_bytes: u64,
    /// The store's unit in bytes.
    pub unit: u32,
}

impl Footer {
    /// The footer's bytes, checksum included.
    pub(crate) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        for value in [self.offset, self.bytes] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for value in [
            self.record_bytes,
            self.directory_bytes,
            self.records,
            self.parts,
        ] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&self.logical_bytes.to_le_bytes());
        out.extend_from_slice(&self.unit.to_le_bytes());
        FRAME.encode(self.id, &out)
    }

    /// Decodes a footer from the last bytes of a value page: at least its length.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are damaged or no footer.
    pub fn decode(bytes: &[u8]) -> Result<Footer> {
        let (id, mut reader) = FRAME.decode(bytes)?;
        let footer = Footer {
            id,
            offset: reader.u64()?,
            bytes: reader.u64()?,
            record_bytes: reader.u32()?,
            directory_bytes: reader.u32()?,
            records: reader.u32()?,
            parts: reader.u32()?,
            logical_bytes: reader.u64()?,
            unit: reader.u32()?,
        };
        if !footer.is_possible() {
            return Err(reader.corrupt("impossible fields"));
        }
        FRAME.end(reader)?;
        Ok(footer)
    }

    fn is_possible(&self) -> bool {
        let unit = u64::from(self.unit);
        let record_bytes = u64::from(self.record_bytes);
        is_unit(self.unit)
            && self.offset.is_multiple_of(EXTENT_ALIGNMENT)
            && self.offset.checked_add(self.bytes).is_some()
            && self.bytes == page_bytes(self.record_bytes, self.directory_bytes, self.unit)
            && self.bytes <= PAGE_BYTES_MAX
            && record_bytes.is_multiple_of(unit)
            && self.parts > 0
            && self.records >= self.parts
            && u64::from(self.records) * PLACE_BYTES as u64 <= record_bytes
    }
}

/// Bytes of a page with such parts.
pub(crate) fn page_bytes(record_bytes: u32, directory_bytes: u32, unit: u32) -> u64 {
    let rest = u64::from(directory_bytes) + FOOTER_BYTES as u64;
    u64::from(record_bytes) + rest.next_multiple_of(u64::from(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Footer {
        Footer {
            id: PageId(0x0102),
            offset: 8192,
            bytes: 4096 + 512,
            record_bytes: 4096,
            directory_bytes: 100,
            records: 10,
            parts: 1,
            logical_bytes: 3000,
            unit: 512,
        }
    }

    #[test]
    fn footers_round_trip_and_each_changed_bit_is_refused() {
        let bytes = sample().encode();
        assert_eq!(Footer::decode(&bytes).unwrap(), sample());
        assert!(Footer::decode(&bytes[1..]).is_err());
        for at in 0..FOOTER_BYTES {
            for bit in 0..8 {
                let mut bad = bytes;
                bad[at] ^= 1 << bit;
                assert!(Footer::decode(&bad).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn impossible_footers_are_refused() {
        for change in [
            |f: &mut Footer| f.parts = 0,
            |f: &mut Footer| f.records = 0,
            |f: &mut Footer| f.records = 1000,
            |f: &mut Footer| f.offset = 100,
            |f: &mut Footer| f.offset = u64::MAX - 4095,
            |f: &mut Footer| f.bytes = 4096,
            |f: &mut Footer| f.unit = 500,
            |f: &mut Footer| f.record_bytes = 4000,
            |f: &mut Footer| f.directory_bytes = u32::MAX,
        ] {
            let mut footer = sample();
            change(&mut footer);
            assert!(Footer::decode(&footer.encode()).is_err(), "{footer:?}");
        }
    }
}
