//! Reading: through the cache, else by as few device reads as can be. Everything that a reference
//! says is checked against the file before it is trusted with memory, and every byte against its
//! checksum before it is believed (D8).
//!
//! Blocks lie byte after byte, and a device reads whole blocks of its own: what is read is the
//! *cover* of what is asked for, out to the alignment of the file as it is now. So a database may
//! be copied to a device with larger blocks.

use std::any::Any;
use std::ops::Range;

use terrapin_base::sync::Arc;
use terrapin_base::{Error, PageId, Result, mutant};
use terrapin_disk::AlignedBuf;

use super::PageStore;
use super::fill::{Fill, OwnMemory};
use super::filter_page::FilterPage;
use super::reading::STRETCH_BYTES_MAX;
use crate::block::Block;
use crate::cache::{Key, Kind, Standing};
use crate::group::{GroupIndex, GroupRef, check_filter_partition};
use crate::metrics::ReadFor;
use crate::page::{PageKind, PageRef, format};

/// Most blocks whose lookups are prepared at once: more than a scan has levels.
const PREFETCHED_MAX: usize = 32;

/// Decodes a page's content: the object, and the bytes of memory that it takes.
pub type DecodePage<'a, T> = &'a dyn Fn(&[u8]) -> Result<(T, usize)>;

#[inline]
pub(super) fn block_key(page: PageId, number: usize) -> Key {
    Key {
        page,
        kind: Kind::Block,
        number: number as u32,
    }
}

/// The keys of blocks, and how many there are, up to a bound. Inlined, it copies no array.
#[inline]
fn first_keys<'a>(
    blocks: impl Iterator<Item = (&'a GroupRef, usize)>,
) -> ([Key; PREFETCHED_MAX], usize) {
    let mut keys = [block_key(PageId(0), 0); PREFETCHED_MAX];
    let mut count = 0;
    for (key, (group, number)) in keys.iter_mut().zip(blocks) {
        *key = block_key(group.id, number);
        count += 1;
    }
    (keys, count)
}

fn index_key(page: PageId) -> Key {
    Key {
        page,
        kind: Kind::Index,
        number: 0,
    }
}

impl PageStore {
    /// The content of a node or catalog page, not cached.
    pub fn read_page(&self, page: &PageRef, kind: PageKind) -> Result<Vec<u8>> {
        self.with_page(page, kind, |content| Ok(content.to_vec()))
    }

    fn with_page<T>(
        &self,
        page: &PageRef,
        kind: PageKind,
        use_content: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.with_bytes(ReadFor::Meta, page.offset, page.bytes as usize, |bytes| {
            use_content(format::content(bytes, kind, page.id)?)
        })
        .map_err(|e| self.place_page(e, page.id).with("kind", kind.name()))
    }

    /// A page decoded, through the cache, where it counts as metadata. Errors of `decode` are
    /// passed on, and nothing is cached then.
    pub fn object<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        kind: PageKind,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        self.object_counting(page, kind, 0, decode)
    }

    /// As [`PageStore::object`]; a hit counts for so many more.
    pub(super) fn object_counting<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        kind: PageKind,
        uncounted: u64,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        let key = Key {
            page: page.id,
            kind: Kind::Object,
            number: 0,
        };
        if let Some(object) = self.cache.get_counting::<T>(key, uncounted) {
            return Ok(object);
        }
        let (object, memory_bytes) = self.with_page(page, kind, decode)?;
        Ok(self.cache.insert(key, Arc::new(object), memory_bytes))
    }

    /// Puts the object of a page that was just written into the cache, as [`PageStore::object`]
    /// would.
    pub fn cache_object<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        object: Arc<T>,
        memory_bytes: usize,
    ) {
        let key = Key {
            page: page.id,
            kind: Kind::Object,
            number: 0,
        };
        self.cache.insert(key, object, memory_bytes);
    }

    /// A group's index, through the cache.
    pub fn index(&self, group: &GroupRef) -> Result<Arc<GroupIndex>> {
        self.index_counting(group, 0)
    }

    /// As [`PageStore::index`]; a hit counts for so many more.
    pub(super) fn index_counting(
        &self,
        group: &GroupRef,
        uncounted: u64,
    ) -> Result<Arc<GroupIndex>> {
        if let Some(index) = self.cache.get_counting(index_key(group.id), uncounted) {
            return Ok(index);
        }
        let (offset, bytes) = self.index_place(group)?;
        self.with_bytes(ReadFor::Meta, offset, bytes, |bytes| {
            self.take_in_index(bytes, group.id, group.index_offset)
        })
        .map_err(|e| self.place(e))
    }

    /// Whether a group's index is cached; leaves no trace.
    #[must_use]
    pub fn has_index(&self, group: &GroupRef) -> bool {
        self.cache.has_metadata(index_key(group.id))
    }

    /// Where a group's index lies in the file.
    pub(super) fn index_place(&self, group: &GroupRef) -> Result<(u64, usize)> {
        self.place_in_group(group, group.index_offset, group.index_bytes)
            .map(|offset| (offset, group.index_bytes as usize))
    }

    /// Decodes an index that was read, which starts at `at` in its group, into the cache.
    pub(super) fn take_in_index(
        &self,
        bytes: &[u8],
        group: PageId,
        at: u32,
    ) -> Result<Arc<GroupIndex>> {
        let index = GroupIndex::decode(bytes, group)?;
        if index.blocks_bytes() != at {
            return Err(
                Error::corrupt("index and reference contradict each other").with("page", group)
            );
        }
        let memory_bytes = index.memory_bytes();
        Ok(self
            .cache
            .insert(index_key(group), Arc::new(index), memory_bytes))
    }

    /// Whether a group may hold a key of that hash; asks one partition of its filter, through the
    /// cache. Without a filter it may.
    pub fn may_contain(&self, group: &GroupRef, hash: u64) -> Result<bool> {
        let partitions = group.filter_partitions();
        if partitions == 0 {
            return Ok(true);
        }
        let number = terrapin_filter::partition_of(hash, partitions);
        let page = self.filter_page(group, number, 0)?;
        self.ask(&page, group, number, hash)
    }

    /// A filter partition, through the cache; a hit counts for so many more.
    pub(super) fn filter_page(
        &self,
        group: &GroupRef,
        number: u32,
        uncounted: u64,
    ) -> Result<Arc<FilterPage>> {
        let key = Key {
            page: group.id,
            kind: Kind::Filter,
            number,
        };
        if let Some(page) = self.cache.get_counting(key, uncounted) {
            return Ok(page);
        }
        self.place_in_group(group, group.filter_offset, group.filter_bytes)?;
        let offset = group.filter_partition_offset(number);
        let partition_bytes = group.filter_partition_bytes();
        let page = self
            .with_bytes(ReadFor::Meta, offset, partition_bytes, |bytes| {
                if !mutant::active("filter-checksum-ignored") {
                    check_filter_partition(bytes, group.id, number)?;
                }
                Ok(FilterPage::copy(bytes))
            })
            .map_err(|e| self.place(e))?;
        let memory_bytes = FilterPage::memory_bytes(partition_bytes);
        Ok(self.cache.insert(key, Arc::new(page), memory_bytes))
    }

    /// Asks the partition that a hash leads to.
    #[inline]
    pub(super) fn ask(
        &self,
        page: &FilterPage,
        group: &GroupRef,
        number: u32,
        hash: u64,
    ) -> Result<bool> {
        terrapin_filter::may_contain(&page.bytes, hash)
            .map_err(|e| self.place_page(e, group.id).with("partition", number))
    }

    /// A block, if it is cached. Counts as a hit, or not at all.
    #[must_use]
    pub fn cached_block(&self, group: &GroupRef, number: usize) -> Option<Arc<Block>> {
        self.cached_block_as(group, number, Fill::Normal)
    }

    /// As [`PageStore::cached_block`]; the use counts as one of that kind.
    #[must_use]
    pub fn cached_block_as(
        &self,
        group: &GroupRef,
        number: usize,
        fill: Fill,
    ) -> Option<Arc<Block>> {
        self.cache
            .block_if_there(block_key(group.id, number), fill.worth())
    }

    /// Whether a block is cached; leaves no trace, and the block may leave at any time.
    #[must_use]
    pub fn has_block(&self, group: &GroupRef, number: usize) -> bool {
        self.cache.has_block(block_key(group.id, number))
    }

    /// Has the processor bring near what lookups of cached blocks visit: it waits for memory once a
    /// step, and not for each block. Of very many only for some.
    pub fn prefetch_blocks<'a>(&self, blocks: impl Iterator<Item = (&'a GroupRef, usize)>) {
        let (keys, count) = first_keys(blocks);
        self.cache.prefetch_blocks(&keys[..count]);
    }

    /// Has it bring near where those blocks' records begin, for who reads them in order; after
    /// [`PageStore::prefetch_blocks`].
    pub fn prefetch_records<'a>(&self, blocks: impl Iterator<Item = (&'a GroupRef, usize)>) {
        let (keys, count) = first_keys(blocks);
        self.cache.prefetch_records(&keys[..count]);
    }

    /// How a block stands in the cache whose group is being replaced. It leaves its lives to what
    /// takes its place in the new one, see [`crate::group::GroupBuilder::takes_place_of`].
    #[must_use]
    pub fn bequeath_block(&self, group: &GroupRef, number: usize) -> Standing {
        self.cache.bequeath(block_key(group.id, number))
    }

    /// Counts a block as one that was looked for and not cached, after [`PageStore::cached_block`]
    /// or [`PageStore::has_block`], which do not.
    pub fn missed_block(&self, group: &GroupRef, number: usize) {
        self.cache.missed_block(block_key(group.id, number));
    }

    /// A block, through the cache: at most one device read. Panics when `number` is not below
    /// [`GroupIndex::blocks`].
    pub fn block(
        &self,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
        fill: Fill,
    ) -> Result<Arc<Block>> {
        if let Some(block) = self.look_up(group, number, fill) {
            return Ok(block);
        }
        self.read_one(group, index, number, fill)
    }

    /// Blocks that lie side by side, appended to `out` in order: at most one device read, from the
    /// first that is not cached to the last; for a long run of a scan, a batch of reads. For
    /// read-ahead and merges. Panics when the range goes beyond [`GroupIndex::blocks`].
    pub fn block_run(
        &self,
        group: &GroupRef,
        index: &GroupIndex,
        range: Range<usize>,
        fill: Fill,
        out: &mut Vec<Arc<Block>>,
    ) -> Result<()> {
        let mut cached: Vec<Option<Arc<Block>>> = range
            .clone()
            .map(|n| self.look_up(group, n, fill))
            .collect();
        let Some(first) = cached.iter().position(Option::is_none) else {
            out.extend(cached.into_iter().flatten());
            return Ok(());
        };
        let last = cached.iter().rposition(Option::is_none).unwrap_or(first);
        let (start, _) = self.block_place(group, index, range.start + first)?;
        let (last_start, last_bytes) = self.block_place(group, index, range.start + last)?;
        let run_bytes = last_start
            .checked_sub(start)
            .map(|bytes| bytes as usize + last_bytes);
        let run_bytes = run_bytes
            .ok_or_else(|| self.place_page(Error::corrupt("blocks out of order"), group.id))?;
        if fill != Fill::No && run_bytes > STRETCH_BYTES_MAX {
            let wants = range.map(|number| (group, index, number));
            self.read_missing(wants, fill, &mut cached)?;
            out.extend(cached.into_iter().flatten());
            return Ok(());
        }
        let mut own = OwnMemory::of_run(run_bytes);
        self.with_bytes(fill.reader(), start, run_bytes, |bytes| {
            for (number, slot) in (range.start + first..).zip(&mut cached[first..=last]) {
                if slot.is_none() {
                    let (offset, block_bytes) = self.block_place(group, index, number)?;
                    let block = offset
                        .checked_sub(start)
                        .and_then(|at| bytes.get(at as usize..)?.get(..block_bytes));
                    let block = block.ok_or_else(|| {
                        Error::corrupt("blocks out of order")
                            .with("page", group.id)
                            .with("block", number)
                    })?;
                    *slot = Some(self.take_in(block, group.id, number, fill, &mut own)?);
                }
            }
            Ok(())
        })?;
        out.extend(cached.into_iter().flatten());
        Ok(())
    }

    /// A group's whole image, to verify it; not cached, one large read.
    pub fn read_whole_group(&self, group: &GroupRef) -> Result<AlignedBuf> {
        let bytes = self
            .check_bounds(group.offset, group.bytes)
            .map_err(|e| self.place_page(e, group.id))?;
        let mut image = AlignedBuf::zeroed(bytes);
        self.file
            .read_at(&mut image, group.offset)
            .map_err(|e| self.place_page(e, group.id))?;
        self.counters.read(ReadFor::Verify, 1, bytes as u64);
        Ok(image)
    }

    #[inline]
    pub(super) fn look_up(
        &self,
        group: &GroupRef,
        number: usize,
        fill: Fill,
    ) -> Option<Arc<Block>> {
        let key = block_key(group.id, number);
        match fill {
            Fill::Normal | Fill::Low => self.cache.block(key, fill.worth()),
            Fill::No => self.cache.peek_block(key),
        }
    }

    /// Decodes a block that was read, into the cache's memory and the cache or, if nothing is to be
    /// left there, into the caller's own.
    pub(super) fn take_in(
        &self,
        bytes: &[u8],
        group: PageId,
        number: usize,
        fill: Fill,
        own: &mut OwnMemory,
    ) -> Result<Arc<Block>> {
        let cached = fill != Fill::No;
        let memory = |bytes| match cached {
            true => self.cache.memory_for(bytes, fill.worth()),
            false => own.memory_for(bytes, &self.cache),
        };
        let block = Block::decode_into(bytes, group, number as u32, memory);
        let block = Arc::new(block.map_err(|e| self.place(e))?);
        if !cached {
            return Ok(block);
        }
        let key = block_key(group, number);
        Ok(self.cache.insert_block(key, block, fill.worth(), 0))
    }

    /// Reads a block that was just looked up in vain.
    pub(super) fn read_one(
        &self,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
        fill: Fill,
    ) -> Result<Arc<Block>> {
        let (offset, bytes) = self.block_place(group, index, number)?;
        let mut make_room = || {
            if fill != Fill::No {
                self.cache.prepare_memory_for(bytes, fill.worth());
            }
        };
        self.with_bytes_meanwhile(fill.reader(), offset, bytes, &mut make_room, |bytes| {
            Ok(self.take_in(bytes, group.id, number, fill, &mut OwnMemory::default()))
        })
        .map_err(|e| self.place_block(e, group.id, number))?
    }

    fn place_block(&self, error: Error, id: PageId, number: usize) -> Error {
        self.place_page(error, id).with("block", number)
    }

    /// Where a block lies in the file.
    pub(super) fn block_place(
        &self,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
    ) -> Result<(u64, usize)> {
        let (offset, bytes) = index.block_place(number);
        self.place_in_group(group, offset, bytes)
            .map(|offset| (offset, bytes as usize))
    }

    /// Where a part of a group starts in the file, if the group contains it.
    fn place_in_group(&self, group: &GroupRef, offset: u32, bytes: u32) -> Result<u64> {
        let end = u64::from(offset) + u64::from(bytes);
        let start = group.offset.checked_add(u64::from(offset));
        match start
            .filter(|start| end <= group.bytes && start.checked_add(u64::from(bytes)).is_some())
        {
            Some(start) => Ok(start),
            None => Err(self
                .place_page(Error::corrupt("a part outside of its group"), group.id)
                .with("offset", offset)),
        }
    }

    /// The length as a size in memory, if those bytes lie in the file.
    fn check_bounds(&self, offset: u64, bytes: u64) -> Result<usize> {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.space.file_bytes());
        usize::try_from(bytes)
            .ok()
            .filter(|_| inside)
            .ok_or_else(|| {
                self.place(Error::corrupt("a reference beyond the end of the file"))
                    .with("offset", offset)
                    .with("bytes", bytes)
                    .with("length of the file", self.space.file_bytes())
            })
    }

    /// Where a read of bytes of the file starts and how long it is: out to what the device reads at
    /// least.
    pub(super) fn cover(&self, offset: u64, bytes: usize) -> Result<(u64, usize)> {
        self.check_bounds(offset, bytes as u64)?;
        let alignment = u64::from(self.file.alignment());
        let start = offset / alignment * alignment;
        let end = offset + bytes as u64;
        // Only a file that somebody shortened ends within a device's block.
        let covered = end.next_multiple_of(alignment);
        let end = covered.min(self.space.file_bytes()).max(end);
        Ok((start, (end - start) as usize))
    }

    /// Reads bytes of the file and hands them on: one device read.
    fn with_bytes<T>(
        &self,
        reader: ReadFor,
        offset: u64,
        bytes: usize,
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.with_bytes_meanwhile(reader, offset, bytes, &mut || {}, use_bytes)
    }

    /// As [`PageStore::with_bytes`]; does something `meanwhile`, see
    /// [`File::read_meanwhile`](terrapin_disk::File::read_meanwhile).
    fn with_bytes_meanwhile<T>(
        &self,
        reader: ReadFor,
        offset: u64,
        bytes: usize,
        meanwhile: &mut dyn FnMut(),
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let (start, cover_bytes) = self.cover(offset, bytes)?;
        self.with_scratch(cover_bytes, |buffer| {
            let cached = reader.may_come_again();
            self.file.read_meanwhile(buffer, start, cached, meanwhile)?;
            self.counters.read(reader, 1, cover_bytes as u64);
            use_bytes(&buffer[(offset - start) as usize..][..bytes])
        })
    }
}
