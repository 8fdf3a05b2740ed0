//! The bytes of a value table.
//!
//! ```text
//! reference  (in the root of a version) page reference; varints: leaves, parts, records, record
//!            bytes, dead record bytes, extents that are holes
//! root       (page kind 4) per leaf, births ascending: first birth: varint gap to the leaf before,
//!            page reference, parts: varint
//! leaf       (page kind 5) per part, births ascending: birth: varint gap to the part before (the
//!            first: the birth), born in: u64, page id: u64, varints: page offset in extents,
//!            page bytes, bytes of all records of the page, bytes of its directory; of the part:
//!            records, their bytes, bytes of their values, dead records, bytes of their values,
//!            extents that are holes, dead records when holes were last made
//! ```

use std::ops::Range;

use terrapin_base::codec::{Reader, put_varint, varint_bytes};
use terrapin_base::{EXTENT_ALIGNMENT, PageId, Result};
use terrapin_pages::{PageRef, PageUse};

use crate::large::{LARGE_BIRTHS, large_page_bytes_max};
use crate::page::FOOTER_BYTES;
use crate::{PAGE_BYTES_MAX, PLACE_BYTES};

/// Most bytes of a leaf's content.
pub const LEAF_BYTES_MAX: usize = 60 << 10;
/// Least bytes of a part in a leaf.
const PART_BYTES_MIN: usize = 1 + 8 + 8 + 11;

/// Where the values of a birth are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRef {
    /// The birth.
    pub birth: u64,
    /// The page that the birth was written to at first. Records name it.
    pub born_in: PageId,
    /// The value page that has the part now.
    pub page: PageUse,
    /// Bytes of all records of the page, of this part and others.
    pub record_bytes: u32,
    /// Bytes of the page's directory.
    pub directory_bytes: u32,
    /// Records of the part: at least one.
    pub records: u32,
    /// Bytes of the part's records on disk.
    pub bytes: u32,
    /// Bytes of the part's values, decompressed.
    pub value_bytes: u64,
    /// Records that nothing refers to any more.
    pub dead_records: u32,
    /// Bytes of the values of dead records, decompressed.
    pub dead_value_bytes: u64,
    /// Dead records when holes were last made. `page.hole_bytes` is the part's share of them.
    pub punched_records: u32,
}

impl PartRef {
    /// Bytes of dead records on disk, in proportion to their values. O(1).
    #[must_use]
    pub fn dead_bytes(&self) -> u64 {
        let bytes = u128::from(self.bytes);
        let dead = match self.dead_records == self.records {
            true => bytes,
            false => {
                let (dead, all) = (self.dead_value_bytes, self.value_bytes.max(1));
                (bytes * u128::from(dead) / u128::from(all)).min(bytes)
            }
        };
        dead as u64
    }

    /// Bytes of dead records that take space. O(1).
    #[must_use]
    pub fn waste_bytes(&self) -> u64 {
        self.dead_bytes().saturating_sub(self.page.hole_bytes)
    }

    /// Whether the part is a large value, in a page of its own.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.birth >= LARGE_BIRTHS
    }

    /// Where the directory is in the page, in bytes.
    #[must_use]
    pub fn directory(&self) -> Range<u64> {
        let start = u64::from(self.record_bytes);
        start..start + u64::from(self.directory_bytes)
    }

    fn encode(&self, birth_before: u64, out: &mut Vec<u8>) {
        put_varint(out, self.birth - birth_before);
        out.extend_from_slice(&self.born_in.0.to_le_bytes());
        out.extend_from_slice(&self.page.id.0.to_le_bytes());
        for value in [
            self.page.offset / EXTENT_ALIGNMENT,
            self.page.bytes,
            u64::from(self.record_bytes),
            u64::from(self.directory_bytes),
            u64::from(self.records),
            u64::from(self.bytes),
            self.value_bytes,
            u64::from(self.dead_records),
            self.dead_value_bytes,
            self.page.hole_bytes / EXTENT_ALIGNMENT,
            u64::from(self.punched_records),
        ] {
            put_varint(out, value);
        }
    }

    fn decode(reader: &mut Reader<'_>, before: Option<u64>) -> Result<PartRef> {
        let birth = ascending(reader, before)?;
        let born_in = PageId(reader.u64()?);
        let id = PageId(reader.u64()?);
        let offset = reader.varint()?.checked_mul(EXTENT_ALIGNMENT);
        let bytes = reader.varint()?;
        let [record_bytes, directory_bytes, records, part_bytes] = [
            number(reader)?,
            number(reader)?,
            number(reader)?,
            number(reader)?,
        ];
        let value_bytes = reader.varint()?;
        let dead_records = number(reader)?;
        let dead_value_bytes = reader.varint()?;
        let hole_bytes = reader.varint()?.checked_mul(EXTENT_ALIGNMENT);
        let punched_records = number(reader)?;
        let part = offset.zip(hole_bytes).map(|(offset, hole_bytes)| PartRef {
            birth,
            born_in,
            page: PageUse {
                hole_bytes,
                // A crash may have come between holes and the checkpoint that notes them.
                may_have_holes: dead_records > 0,
                ..PageUse::whole(id, offset, bytes)
            },
            record_bytes,
            directory_bytes,
            records,
            bytes: part_bytes,
            value_bytes,
            dead_records,
            dead_value_bytes,
            punched_records,
        });
        part.filter(PartRef::is_possible)
            .ok_or_else(|| reader.corrupt("impossible part"))
    }

    fn is_possible(&self) -> bool {
        let parts_end = self.directory().end + FOOTER_BYTES as u64;
        let bytes_max = match self.is_large() {
            true => large_page_bytes_max(),
            false => PAGE_BYTES_MAX,
        };
        self.page.extent().is_some()
            && self.page.bytes <= bytes_max
            && (!self.is_large() || (self.page.id.0 == self.birth && self.records == 1))
            && parts_end <= self.page.bytes
            && self.bytes <= self.record_bytes
            && self.dead_records <= self.records
            && self.dead_value_bytes <= self.value_bytes
            && self.page.hole_bytes <= u64::from(self.record_bytes)
            && self.punched_records <= self.dead_records
            && self.records > 0
            && u64::from(self.records) * PLACE_BYTES as u64 <= u64::from(self.bytes)
    }
}

fn number(reader: &mut Reader<'_>) -> Result<u32> {
    let number = reader.varint()?;
    u32::try_from(number).map_err(|_| reader.corrupt("impossible part"))
}

fn ascending(reader: &mut Reader<'_>, before: Option<u64>) -> Result<u64> {
    let gap = reader.varint()?;
    let birth = match before {
        None => Some(gap),
        Some(before) if gap > 0 => before.checked_add(gap),
        Some(_) => None,
    };
    birth.ok_or_else(|| reader.corrupt("births do not ascend"))
}

/// The reference to a table: where its root is, and what it holds in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRef {
    /// The root page.
    pub page: PageRef,
    /// Leaves.
    pub leaves: u64,
    /// Parts.
    pub parts: u64,
    /// Records of all parts, dead ones included.
    pub records: u64,
    /// Bytes of these records on disk.
    pub bytes: u64,
    /// Bytes of dead records among them.
    pub dead_bytes: u64,
    /// Bytes of holes in the pages. The file system has taken them back.
    pub hole_bytes: u64,
}

impl TableRef {
    /// Appends the reference.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.page.encode(out);
        for value in [
            self.leaves,
            self.parts,
            self.records,
            self.bytes,
            self.dead_bytes,
            self.hole_bytes / EXTENT_ALIGNMENT,
        ] {
            put_varint(out, value);
        }
    }

    /// Decodes a reference.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes end early.
    pub fn decode(reader: &mut Reader<'_>) -> Result<TableRef> {
        Ok(TableRef {
            page: PageRef::decode(reader)?,
            leaves: reader.varint()?,
            parts: reader.varint()?,
            records: reader.varint()?,
            bytes: reader.varint()?,
            dead_bytes: reader.varint()?,
            hole_bytes: reader.varint()?.saturating_mul(EXTENT_ALIGNMENT),
        })
    }
}

/// A leaf as the root lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) first_birth: u64,
    pub(super) page: PageRef,
    pub(super) parts: u64,
}

/// A decoded root page: at least one leaf.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaves {
    pub(super) leaves: Vec<Listed>,
}

impl Leaves {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut before = 0;
        for listed in &self.leaves {
            put_varint(&mut out, listed.first_birth - before);
            before = listed.first_birth;
            listed.page.encode(&mut out);
            put_varint(&mut out, listed.parts);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8], root: &TableRef) -> Result<Leaves> {
        let mut reader = Reader::new("value table root", bytes);
        let mut leaves: Vec<Listed> = Vec::new();
        let mut parts = 0u64;
        while reader.remaining() > 0 {
            let before = leaves.last().map(|listed| listed.first_birth);
            let listed = Listed {
                first_birth: ascending(&mut reader, before)?,
                page: PageRef::decode(&mut reader)?,
                parts: reader.varint()?,
            };
            parts = parts.saturating_add(listed.parts);
            leaves.push(listed);
        }
        match !leaves.is_empty() && (leaves.len() as u64, parts) == (root.leaves, root.parts) {
            true => Ok(Leaves { leaves }),
            false => Err(reader.corrupt("a value table and its reference contradict each other")),
        }
    }

    /// The only leaf that may have a birth.
    pub(super) fn find(&self, birth: u64) -> Option<usize> {
        let above = self
            .leaves
            .partition_point(|listed| listed.first_birth <= birth);
        above.checked_sub(1)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Listed>()
    }
}

/// A decoded leaf: at least one part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) parts: Vec<PartRef>,
}

impl Leaf {
    pub(super) fn encode(parts: &[PartRef]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut before = 0;
        for part in parts {
            part.encode(before, &mut out);
            before = part.birth;
        }
        out
    }

    /// How many of the first parts a leaf has room for.
    pub(super) fn fitting(parts: &[PartRef]) -> usize {
        let mut scratch = Vec::new();
        let (mut bytes, mut before) = (0, 0);
        for (number, part) in parts.iter().enumerate() {
            scratch.clear();
            part.encode(before, &mut scratch);
            bytes += scratch.len();
            if number == 0 {
                // The gap may be shorter elsewhere, but never longer than the birth itself.
                bytes += varint_bytes(u64::MAX) - varint_bytes(part.birth);
            }
            if bytes > LEAF_BYTES_MAX {
                return number;
            }
            before = part.birth;
        }
        parts.len()
    }

    pub(super) fn decode(bytes: &[u8], listed: &Listed) -> Result<Leaf> {
        let mut reader = Reader::new("value table leaf", bytes);
        if listed.parts > (bytes.len() / PART_BYTES_MIN) as u64 {
            return Err(reader.corrupt("a leaf is too short for its parts"));
        }
        let mut parts: Vec<PartRef> = Vec::with_capacity(listed.parts as usize);
        while reader.remaining() > 0 {
            let before = parts.last().map(|part| part.birth);
            parts.push(PartRef::decode(&mut reader, before)?);
        }
        let agrees = parts.len() as u64 == listed.parts
            && parts
                .first()
                .is_some_and(|part| part.birth == listed.first_birth);
        match agrees {
            true => Ok(Leaf { parts }),
            false => Err(reader.corrupt("a leaf and its root contradict each other")),
        }
    }

    pub(super) fn find(&self, birth: u64) -> Option<&PartRef> {
        let at = self
            .parts
            .binary_search_by_key(&birth, |part| part.birth)
            .ok()?;
        Some(&self.parts[at])
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.parts.capacity() * size_of::<PartRef>()
    }
}
