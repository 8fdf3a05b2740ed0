//! Large values: each in a page of its own, which the write itself writes (decision 0074).
//!
//! A large value is a birth of one value, whose number is the id of its page. Numbers of other
//! births are below [`LARGE_BIRTHS`], and ids of pages are not. So a memtable, a log record and a
//! tree name a large value by the same [`Handle`], whether a value table lists it or not.
//!
//! # Invariants
//!
//! - A page is written whole before any record names it, and never again.
//! - The page belongs to its writer ([`OwnedLarge`]), then to a memtable, then to a value table. It
//!   is never collected and has no holes: its space is free when its only value dies.
//! - Each piece of 1 MiB has a checksum of its own, so a part of a value can be read and checked
//!   alone, and memory holds a piece at a time.

mod format;
mod read;
mod write;

pub use format::{PIECE_BYTES, page_bytes, pieces};
pub use read::{LargeReader, LargeValues, check_large};
pub(crate) use read::{check_key, check_listed};
pub use write::{LargeWriter, OwnedLarge};

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{
    EXTENT_ALIGNMENT, Error, LARGE_VALUE_BYTES_MAX, PageId, Result, handle_deadline_ms,
};
use terrapin_pages::PageUse;

use crate::handle::Handle;
use crate::table::PartRef;

/// Births from this number on are large values: the number is the id of a page. Ids begin here,
/// since no page is of life 0.
pub use terrapin_base::LARGE_BIRTHS;

/// A large value that was written: what the log's record says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeRef {
    /// The page.
    pub page: PageUse,
    /// Bytes of the value.
    pub length: u64,
    /// The checksum of the page's footer.
    pub checksum: u32,
    /// The deadline of the value, in milliseconds since 1970, if it has one.
    pub deadline_ms: Option<u64>,
}

impl LargeRef {
    /// The handle of the value.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            birth: self.page.id.0,
            place: 0,
            value_bytes: self.length as u32,
        }
    }

    /// Appends what a log record says: varints of offset and bytes in extents; the footer's
    /// checksum, u32; the handle.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.page.offset / EXTENT_ALIGNMENT);
        put_varint(out, self.page.bytes / EXTENT_ALIGNMENT);
        out.extend_from_slice(&self.checksum.to_le_bytes());
        self.handle().encode_large(self.deadline_ms, out);
    }

    /// Decodes bytes of [`LargeRef::encode`], and returns the bytes of the handle too.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if they are not exactly one possible value.
    pub fn decode(bytes: &[u8]) -> Result<(LargeRef, &[u8])> {
        let mut reader = Reader::new("large value", bytes);
        let offset = reader.varint()?.checked_mul(EXTENT_ALIGNMENT);
        let page_bytes = reader.varint()?.checked_mul(EXTENT_ALIGNMENT);
        let checksum = reader.u32()?;
        let handle_bytes = reader.bytes(reader.remaining())?;
        let handle = Handle::decode(handle_bytes)?;
        let page = offset.zip(page_bytes).filter(|_| handle.is_large());
        let page = page.map(|(offset, bytes)| PageUse::whole(PageId(handle.birth), offset, bytes));
        let length = u64::from(handle.value_bytes);
        let page = page.filter(|page| {
            page.extent().is_some()
                && (format::page_bytes(length, 0)
                    ..=format::page_bytes(length, terrapin_base::KEY_BYTES_MAX))
                    .contains(&page.bytes)
        });
        let page = page.ok_or_else(|| Error::corrupt("an impossible large value"))?;
        let large = LargeRef {
            page,
            length,
            checksum,
            deadline_ms: handle_deadline_ms(handle_bytes),
        };
        Ok((large, handle_bytes))
    }
}

/// The part of a value table that lists a large value.
pub(crate) fn part_of(handle: Handle, page: PageUse) -> PartRef {
    // Directory and records of other pages are what the tail and the value are here.
    let record_bytes = page.bytes.saturating_sub(EXTENT_ALIGNMENT / 2) as u32;
    PartRef {
        birth: handle.birth,
        born_in: page.id,
        page,
        record_bytes,
        directory_bytes: 0,
        records: 1,
        bytes: record_bytes,
        value_bytes: u64::from(handle.value_bytes),
        dead_records: 0,
        dead_value_bytes: 0,
        punched_records: 0,
    }
}

/// Most bytes of a large page.
#[must_use]
pub fn large_page_bytes_max() -> u64 {
    format::page_bytes(LARGE_VALUE_BYTES_MAX, terrapin_base::KEY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_round_trip_and_hostile_bytes_are_refused() {
        for length in [1, 300 << 10, 1 << 30] {
            let bytes = page_bytes(length, 5);
            let large = LargeRef {
                page: PageUse::whole(PageId(3 << 40), 1 << 20, bytes),
                length,
                checksum: 0x1234_5678,
                deadline_ms: (length > 1).then_some(length),
            };
            let mut encoded = Vec::new();
            large.encode(&mut encoded);
            let (decoded, handle) = LargeRef::decode(&encoded).unwrap();
            assert_eq!(decoded, large);
            assert_eq!(Handle::decode(handle).unwrap(), large.handle());
            for end in 0..encoded.len() {
                assert!(LargeRef::decode(&encoded[..end]).is_err(), "{end}");
            }
            assert!(LargeRef::decode(&[&encoded[..], &[0]].concat()).is_err());
            for wrong in [
                LargeRef {
                    page: PageUse::whole(PageId(7), 1 << 20, bytes),
                    ..large
                },
                LargeRef {
                    page: PageUse::whole(PageId(3 << 40), 1 << 20, bytes + (1 << 20)),
                    ..large
                },
                LargeRef {
                    length: (1 << 30) + 1,
                    ..large
                },
            ] {
                encoded.clear();
                wrong.encode(&mut encoded);
                assert!(LargeRef::decode(&encoded).is_err(), "{wrong:?}");
            }
        }
    }
}
