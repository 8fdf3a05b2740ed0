//! The directory of a value page: which records it has, and where they are.
//!
//! ```text
//! CRC32C u32, then per part, births ascending:
//!     birth: varint gap to the birth before (the first: the birth)
//!     born in: page id u64, 0 if the part was born in this page
//!     records: varint, at least one
//!     per record, places ascending:
//!         varint gap to the place before (the first: the place)
//!         if the part was born elsewhere: varint gap to the position before (likewise)
//! ```
//!
//! A position is where a record begins in this page, in steps of
//! [`PLACE_BYTES`](crate::PLACE_BYTES). In the page where a part was born, positions are places.

use terrapin_base::checksum::crc32c_append;
use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::{PageId, Result};
use terrapin_pages::block::part_seed;

use super::build::THIS_PAGE;
use super::footer::PART_DIRECTORY;
use crate::PLACES_MAX;

/// A part: what a page has of one birth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartEntry {
    /// The birth.
    pub birth: u64,
    /// The page that the birth was written to at first.
    pub born_in: PageId,
    /// Place and position of each record, both ascending.
    records: Vec<(u32, u32)>,
}

impl PartEntry {
    pub(crate) fn new(birth: u64, born_in: PageId, records: Vec<(u32, u32)>) -> Self {
        PartEntry {
            birth,
            born_in,
            records,
        }
    }

    pub(super) fn push(&mut self, record: (u32, u32)) {
        self.records.push(record);
    }

    /// Place and position of each record, in steps of [`PLACE_BYTES`](crate::PLACE_BYTES), both
    /// ascending. At least one.
    #[must_use]
    pub fn records(&self) -> &[(u32, u32)] {
        &self.records
    }

    /// The position of the record with a place. Logarithmic.
    #[must_use]
    pub fn position(&self, place: u32) -> Option<u32> {
        let at = self
            .records
            .binary_search_by_key(&place, |record| record.0)
            .ok()?;
        Some(self.records[at].1)
    }
}

/// A decoded directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    parts: Vec<PartEntry>,
}

impl Directory {
    pub(crate) fn new(parts: Vec<PartEntry>) -> Self {
        Directory { parts }
    }

    /// The parts, births ascending. At least one.
    #[must_use]
    pub fn parts(&self) -> &[PartEntry] {
        &self.parts
    }

    /// The part of a birth. Logarithmic.
    #[must_use]
    pub fn part(&self, birth: u64) -> Option<&PartEntry> {
        let at = self
            .parts
            .binary_search_by_key(&birth, |part| part.birth)
            .ok()?;
        Some(&self.parts[at])
    }

    /// Replaces `placeholder` by the id of the page that parts are born in, and calls `visit` with
    /// place and position of each record of such parts.
    pub(super) fn born_here(
        &mut self,
        placeholder: PageId,
        id: PageId,
        mut visit: impl FnMut(u32, u32),
    ) {
        for part in self
            .parts
            .iter_mut()
            .filter(|part| part.born_in == placeholder)
        {
            part.born_in = id;
            part.records
                .iter()
                .for_each(|&(place, position)| visit(place, position));
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let records: usize = self.parts.iter().map(|part| part.records.capacity()).sum();
        self.parts.capacity() * size_of::<PartEntry>() + records * size_of::<(u32, u32)>()
    }

    /// The bytes of the directory of page `id`.
    pub(crate) fn encode(&self, id: PageId) -> Vec<u8> {
        let mut out = vec![0; 4];
        let mut birth = 0;
        for part in &self.parts {
            put_varint(&mut out, part.birth - birth);
            birth = part.birth;
            let is_born_here = part.born_in == id;
            let born_in = if is_born_here { 0 } else { part.born_in.0 };
            out.extend_from_slice(&born_in.to_le_bytes());
            put_varint(&mut out, part.records.len() as u64);
            let mut last = (0, 0);
            for &(place, position) in &part.records {
                put_varint(&mut out, u64::from(place - last.0));
                if !is_born_here {
                    put_varint(&mut out, u64::from(position - last.1));
                }
                last = (place, position);
            }
        }
        let crc = crc32c_append(part_seed(id, PART_DIRECTORY), &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the directory of page `id`. Memory is bounded by the length of `bytes`.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are not that directory.
    pub fn decode(bytes: &[u8], id: PageId) -> Result<Directory> {
        let mut reader = Reader::new("value directory", bytes);
        let crc = reader.u32()?;
        if crc32c_append(part_seed(id, PART_DIRECTORY), &bytes[4..]) != crc {
            return Err(reader.corrupt("checksum"));
        }
        let mut parts: Vec<PartEntry> = Vec::new();
        while reader.remaining() > 0 {
            let gap = reader.varint()?;
            let birth = match parts.last() {
                None => Some(gap),
                Some(before) if gap > 0 => before.birth.checked_add(gap),
                Some(_) => None,
            };
            let birth = birth.ok_or_else(|| reader.corrupt("births do not ascend"))?;
            let born_in = PageId(reader.u64()?);
            let is_born_here = born_in == PageId(0);
            if born_in == id || born_in == THIS_PAGE {
                return Err(reader.corrupt("a part names its own page"));
            }
            let count = reader.varint()?;
            // Each record takes a byte at least.
            if count == 0 || count > reader.remaining() as u64 {
                return Err(reader.corrupt("impossible number of records"));
            }
            let mut records: Vec<(u32, u32)> = Vec::with_capacity(count as usize);
            for number in 0..count {
                let last = records.last().copied().unwrap_or((0, 0));
                let place = step(&mut reader, last.0, number > 0)?;
                let position = match is_born_here {
                    true => place,
                    false => step(&mut reader, last.1, number > 0)?,
                };
                records.push((place, position));
            }
            let born_in = if is_born_here { id } else { born_in };
            parts.push(PartEntry {
                birth,
                born_in,
                records,
            });
        }
        match parts.is_empty() {
            true => Err(reader.corrupt("no parts")),
            false => Ok(Directory { parts }),
        }
    }
}

/// The next number of an ascending list.
fn step(reader: &mut Reader<'_>, last: u32, ascends: bool) -> Result<u32> {
    let gap = reader.varint()?;
    let next = u64::from(last).checked_add(gap);
    match next {
        Some(next) if next < u64::from(PLACES_MAX) && (gap > 0 || !ascends) => Ok(next as u32),
        _ => Err(reader.corrupt("places do not ascend")),
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Incarnation;

    use super::*;

    fn id(counter: u64) -> PageId {
        PageId::new(Incarnation(2), counter)
    }

    fn sample() -> Directory {
        Directory::new(vec![
            PartEntry::new(3, id(9), vec![(0, 0), (40, 40), (80, 80)]),
            PartEntry::new(7, id(4), vec![(5, 120), (6, 160), (9000, 161)]),
            PartEntry::new(1 << 40, id(5), vec![(0, 200)]),
        ])
    }

    #[test]
    fn directories_round_trip() {
        let bytes = sample().encode(id(9));
        let directory = Directory::decode(&bytes, id(9)).unwrap();
        assert_eq!(directory, sample());
        assert_eq!(directory.part(7).unwrap().position(6), Some(160));
        assert_eq!(directory.part(7).unwrap().position(7), None);
        assert!(directory.part(8).is_none());
    }

    #[test]
    fn damage_and_the_directory_of_another_page_are_refused() {
        let bytes = sample().encode(id(9));
        assert!(Directory::decode(&bytes, id(8)).is_err());
        for at in 0..bytes.len() {
            assert!(Directory::decode(&bytes[..at], id(9)).is_err());
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Directory::decode(&bad, id(9)).is_err());
        }
    }

    #[test]
    fn hostile_directories_are_refused_without_large_memory() {
        let with = |content: &[u8]| {
            let crc = crc32c_append(part_seed(id(9), PART_DIRECTORY), content);
            let bytes = [&crc.to_le_bytes()[..], content].concat();
            Directory::decode(&bytes, id(9))
        };
        let part = |birth: u8, born: PageId, rest: &[u8]| {
            [&[birth][..], &born.0.to_le_bytes(), rest].concat()
        };
        assert!(with(&part(1, PageId(0), &[1, 5])).is_ok());
        assert!(with(&[]).is_err(), "no parts");
        assert!(with(&part(1, PageId(0), &[0])).is_err(), "no records");
        assert!(
            with(&part(1, PageId(0), &[200, 1, 1])).is_err(),
            "too many records"
        );
        assert!(
            with(&part(1, PageId(0), &[2, 5, 0])).is_err(),
            "a place twice"
        );
        assert!(
            with(&part(1, id(4), &[2, 5, 1, 1, 0])).is_err(),
            "a position twice"
        );
        assert!(
            with(&part(1, id(9), &[1, 5, 5])).is_err(),
            "names its own page"
        );
        assert!(
            with(&part(1, PageId(0), &[1, 0xff, 0xff, 0xff, 0x7f])).is_err(),
            "far place"
        );
        let twice = [part(1, PageId(0), &[1, 5]), part(0, PageId(0), &[1, 6])].concat();
        assert!(with(&twice).is_err(), "a birth twice");
    }
}
