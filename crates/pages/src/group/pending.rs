//! A pending group lacks only its id and position. Every checksum depends on the id.

use std::ops::Range;

use terrapin_base::PageId;
use terrapin_disk::AlignedBuf;
use terrapin_filter::{Outline, seal_partition};

use super::deadlines::Deadlines;
use super::format::{FOOTER_BYTES, Footer, GroupRef};
use super::{filter_seed, index};
use crate::block::seal_block;
use crate::cache::Standing;

/// A finished group without a position. Allocate [`PendingGroup::bytes_needed`] bytes and an id,
/// then call [`PendingGroup::place`].
#[derive(Debug)]
pub struct PendingGroup {
    /// Bytes of the image, which must be allocated.
    pub bytes_needed: u64,
    /// The group's smallest key.
    pub first_key: Vec<u8>,
    /// The group's largest key.
    pub last_key: Vec<u8>,
    /// Records, deletes included.
    pub records: u64,
    /// Deletes.
    pub tombstones: u64,
    /// Key and value bytes of all records.
    pub logical_bytes: u64,
    /// Bytes that its messages hide.
    pub hidden_bytes: u64,
    /// Key and value bytes of its largest record.
    pub record_bytes_max: u32,
    /// Bytes of its records' values that lie outside of it.
    pub separated_bytes: u64,
    /// How many of its records expire when. The reference in a node says it, too.
    pub deadlines: Deadlines,
    /// Number of blocks.
    pub blocks: u32,
    pub(super) unit: u32,
    pub(super) index_offset: u32,
    pub(super) index_bytes: u32,
    pub(super) filter_bytes: u32,
    /// Bytes of each block.
    pub(super) block_bytes: Vec<u32>,
    /// Blocks, index, filter and a zeroed last unit.
    pub(super) image: AlignedBuf,
    /// The outline of each partition of the filter, if they were wanted.
    pub(crate) outlines: Vec<Outline>,
    /// Blocks that replace cached ones.
    pub(crate) heirs: Vec<Heir>,
    /// Whether the filter enters the cache when it is written.
    pub(crate) caches_filter: bool,
    /// Whether the index does.
    pub(crate) caches_index: bool,
}

/// A block that replaces cached ones.
#[derive(Debug)]
pub(crate) struct Heir {
    pub(crate) number: u32,
    /// The position of the block in the image.
    pub(crate) place: Range<u32>,
    pub(crate) standing: Standing,
}

impl PendingGroup {
    /// The filter does not enter the cache when it is written, because reads do not ask such
    /// filters now.
    pub fn keep_filter_out(&mut self) {
        self.caches_filter = false;
    }

    /// The index does not enter the cache when it is written, because the node that refers to the
    /// group holds a copy of it.
    pub fn keep_index_out(&mut self) {
        self.caches_index = false;
    }

    /// Gives the group its id and its position in the data file, in bytes. Computes every checksum.
    /// Returns the reference that the node keeps, and the whole image for a direct write. One pass
    /// over the image.
    #[must_use]
    pub fn place(self, id: PageId, offset: u64) -> (GroupRef, AlignedBuf) {
        let mut image = self.image;
        let filter_offset = self.index_offset + self.index_bytes;
        let group = GroupRef {
            id,
            offset,
            bytes: self.bytes_needed,
            index_offset: self.index_offset,
            index_bytes: self.index_bytes,
            filter_offset,
            filter_bytes: self.filter_bytes,
            records: self.records,
            tombstones: self.tombstones,
            logical_bytes: self.logical_bytes,
            hidden_bytes: self.hidden_bytes,
            record_bytes_max: self.record_bytes_max,
            separated_bytes: self.separated_bytes,
        };
        let (blocks, rest) = image.split_at_mut(self.index_offset as usize);
        let (index, rest) = rest.split_at_mut(self.index_bytes as usize);
        let (filter, last_unit) = rest.split_at_mut(self.filter_bytes as usize);

        let mut blocks = blocks;
        for (number, &bytes) in (0..).zip(&self.block_bytes) {
            let (block, behind) = blocks.split_at_mut(bytes as usize);
            seal_block(block, id, number);
            blocks = behind;
        }
        index::seal(index, id);
        for (number, partition) in
            (0..).zip(filter.chunks_exact_mut(group.filter_partition_bytes().max(1)))
        {
            seal_partition(partition, filter_seed(id, number));
        }
        let footer = Footer {
            group,
            unit: self.unit,
            blocks: self.blocks,
        };
        let start = last_unit.len() - FOOTER_BYTES;
        last_unit[start..].copy_from_slice(&footer.encode());
        (group, image)
    }

    /// Bytes of memory that the group has touched.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.image.len()
            + self.block_bytes.capacity() * 4
            + self
                .outlines
                .iter()
                .map(Outline::memory_bytes)
                .sum::<usize>()
            + self.heirs.capacity() * size_of::<Heir>()
            + self.first_key.len()
            + self.last_key.len()
    }
}
