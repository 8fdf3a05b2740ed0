//! A copy of a group's index inside the node that refers to the group. A get searches the copy as
//! it is, without memory of its own: about ten bytes a block.
//!
//! The copy ends where the index's used bytes end. The zeros behind them are left out, so the copy
//! and the group's own index are the same bytes, and the same checksum covers both.

use std::cmp::Ordering;

use terrapin_base::codec::Reader;
use terrapin_base::{Error, PageId, Result};

use super::format::decode_optional_sums;
use super::index::{HEADER_BYTES, MODEL_BIT};
use super::model::Model;
use super::{GroupIndex, GroupRef};

/// The longest index that a node holds a copy of, in bytes with its padding.
const COPY_BYTES_MAX: u32 = 64 << 20;

/// Where a block is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The block's number.
    pub number: usize,
    /// Its offset in the group, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub bytes: u32,
}

/// The used bytes of a group's index.
#[derive(Clone, Copy, Debug)]
pub struct NodeIndex<'a>(&'a [u8]);

impl<'a> NodeIndex<'a> {
    /// The used bytes of an index as a group has it.
    #[must_use]
    pub fn of_group(index: &[u8]) -> &[u8] {
        let used = index.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let used = used.map_or(0, u32::from_le_bytes) as usize;
        index.get(..used).unwrap_or(index)
    }

    /// A copy that [`NodeIndex::decode`] accepted before.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        NodeIndex(bytes)
    }

    /// The bytes of the copy.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Decodes the copy of a group's index, and checks it like the index itself. `scratch` keeps
    /// memory between calls.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if it is not the index of that group.
    pub fn decode(self, group: &GroupRef, scratch: &mut Vec<u8>) -> Result<GroupIndex> {
        if self.0.len() > group.index_bytes as usize || group.index_bytes > COPY_BYTES_MAX {
            let error = Error::corrupt("the copy of a group index is longer than the index");
            return Err(error.with("page", group.id));
        }
        if NodeIndex::of_group(self.0).len() != self.0.len() {
            let error = Error::corrupt("the copy of a group index has another length");
            return Err(error.with("page", group.id));
        }
        scratch.clear();
        scratch.extend_from_slice(self.0);
        scratch.resize(group.index_bytes as usize, 0);
        let index = GroupIndex::decode(scratch, group.id)?;
        match index.blocks_bytes() == group.index_offset {
            true => Ok(index),
            false => Err(contradicts(group.id)),
        }
    }

    fn reader(self) -> Reader<'a> {
        Reader::new(
            "group index in a node",
            self.0.get(HEADER_BYTES..).unwrap_or_default(),
        )
    }

    /// The group's smallest key; empty if the bytes are no index.
    #[inline]
    #[must_use]
    pub fn first_key(self) -> &'a [u8] {
        self.reader().prefixed().unwrap_or_default()
    }

    /// The group's largest key; empty if the bytes are no index.
    #[inline]
    #[must_use]
    pub fn last_key(self) -> &'a [u8] {
        let mut reader = self.reader();
        let last = reader.prefixed().and_then(|_| reader.prefixed());
        last.unwrap_or_default()
    }

    /// The place of the only block that may hold the key. `None` if the key is below the group's
    /// first key or above its last one. Linear in the number of blocks; allocates nothing.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are no index.
    pub fn find(self, key: &[u8]) -> Result<Option<BlockPlace>> {
        let (blocks, has_model) = self.count()?;
        let mut reader = self.reader();
        let first_key = reader.prefixed()?;
        if key < first_key || key > reader.prefixed()? {
            return Ok(None);
        }
        let prefix = reader.prefixed()?;
        let (separated_bytes, _) = decode_optional_sums(&mut reader)?;
        let behind = 3 + usize::from(separated_bytes > 0);
        let lengths = reader.bytes(reader.remaining())?;
        let mut reader = Reader::new("group index in a node", lengths);
        for _ in 0..blocks {
            for _ in 0..=behind {
                reader.varint()?;
            }
        }
        let mut number = 0;
        if has_model {
            let model = Model::decode(&mut reader, first_key)?;
            number = model.find(key, first_key, blocks);
            return sum(lengths, number, behind);
        }
        let common = prefix.len().min(key.len());
        match key[..common].cmp(&prefix[..common]) {
            Ordering::Less => {}
            Ordering::Greater => number = blocks.saturating_sub(1),
            Ordering::Equal if key.len() < prefix.len() => {}
            Ordering::Equal => {
                let suffix = &key[prefix.len()..];
                while number + 1 < blocks && reader.prefixed()? <= suffix {
                    number += 1;
                }
            }
        }
        sum(lengths, number, behind)
    }

    /// The number of blocks, and whether a model stands in the place of separators.
    fn count(self) -> Result<(usize, bool)> {
        let bytes = self.0.get(8..).unwrap_or_default();
        let count = Reader::new("group index in a node", bytes).u32()?;
        Ok(((count & !MODEL_BIT) as usize, count & MODEL_BIT != 0))
    }

    /// Whether a linear model stands in the place of separators.
    #[must_use]
    pub fn has_model(self) -> bool {
        self.count().is_ok_and(|(_, has_model)| has_model)
    }
}

/// The place of a block, from the lengths of all blocks; `behind` further numbers follow each.
fn sum(lengths: &[u8], number: usize, behind: usize) -> Result<Option<BlockPlace>> {
    let mut reader = Reader::new("group index in a node", lengths);
    let (mut offset, mut bytes) = (0u32, 0u32);
    for at in 0..=number {
        offset = offset.saturating_add(bytes);
        bytes = u32::try_from(reader.varint()?).unwrap_or(u32::MAX);
        for _ in 0..behind * usize::from(at < number) {
            reader.varint()?;
        }
    }
    Ok(Some(BlockPlace {
        number,
        offset,
        bytes,
    }))
}

fn contradicts(id: PageId) -> Error {
    Error::corrupt("index and reference contradict each other").with("page", id)
}

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Message};

    use super::*;
    use crate::block::Compression;
    use crate::group::{GroupBuilder, GroupOptions};

    fn group_of(keys: &[Vec<u8>], value: &[u8]) -> (GroupRef, Vec<u8>) {
        let mut builder = GroupBuilder::new(GroupOptions {
            target_bytes: 1 << 20,
            block_bytes: 512,
            unit: 512,
            compression: Compression::None,
            filter_bits: 0,
            now_ms: 0,
        });
        for key in keys {
            assert!(builder.add(key, Message::Put(value)).unwrap().is_none());
        }
        let (group, image) = builder.finish().remove(0).place(PageId(7), 0);
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        (group, NodeIndex::of_group(index).to_vec())
    }

    fn sets() -> Vec<Vec<Vec<u8>>> {
        let numbers = |format: &dyn Fn(u32) -> Vec<u8>| (1..400u32).map(format).collect();
        vec![
            numbers(&|i| (i * 3).to_be_bytes().to_vec()),
            numbers(&|i| format!("tenant-0017/projects/{i:06}/x").into_bytes()),
            numbers(&|i| [&i.to_be_bytes()[..], &[0; 9], &[(i % 5) as u8]].concat()),
            vec![b"only".to_vec()],
            vec![Vec::new(), b"a".to_vec()],
        ]
    }

    #[test]
    fn the_copy_finds_the_block_that_the_index_finds() {
        for keys in sets() {
            let (group, bytes) = group_of(&keys, b"a value of some length");
            let copy = NodeIndex::new(&bytes);
            let index = copy.decode(&group, &mut Vec::new()).unwrap();
            assert_eq!(copy.first_key(), index.first_key());
            let beside = |key: &Vec<u8>| {
                let mut less = key.clone();
                less.pop();
                [key.clone(), less, [&key[..], b"\0"].concat()]
            };
            for key in keys.iter().flat_map(beside) {
                let place = copy.find(&key).unwrap();
                if key < keys[0] || key > keys[keys.len() - 1] {
                    assert_eq!(place, None);
                    continue;
                }
                let (place, number) = (place.unwrap(), index.find(&key));
                let found = (place.number, (place.offset, place.bytes));
                assert_eq!(found, (number, index.block_place(number)));
            }
        }
    }

    #[test]
    fn a_changed_copy_is_refused_and_searching_any_bytes_does_not_panic() {
        let (group, bytes) = group_of(&sets()[1], b"value");
        for at in 0..bytes.len() {
            for bit in [0, 3, 7] {
                let mut hostile = bytes.clone();
                hostile[at] ^= 1 << bit;
                let copy = NodeIndex::new(&hostile);
                let refused = copy.decode(&group, &mut Vec::new()).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt);
                let _ = copy.find(b"tenant-0017/projects/000300/x");
                let _ = copy.first_key();
            }
            let cut = NodeIndex::new(&bytes[..at]);
            assert!(cut.decode(&group, &mut Vec::new()).is_err());
            let _ = cut.find(b"tenant-0017/projects/000300/x");
        }
    }
}
