//! Reads: through the cache, otherwise by as few device reads as possible. Before a reference leads
//! to an allocation, it is checked against the file. Before bytes are used, their checksum is
//! checked (D8).
//!
//! Blocks are adjacent without padding, and a device reads whole sectors. So a read fetches the
//! *cover* of the wanted bytes, out to the file's alignment at that time. A database can therefore
//! be copied to a device with larger sectors.

use std::any::Any;
use std::ops::Range;

use terrapin_base::sync::Arc;
use terrapin_base::{EXTENT_ALIGNMENT, Error, PageId, Result, mutant};
use terrapin_disk::AlignedBuf;

use super::PageStore;
use super::fill::{Fill, OwnMemory};
use super::filter_page::FilterPage;
use super::reading::STRETCH_BYTES_MAX;
use crate::block::Block;
use crate::cache::{Key, Kind, Standing};
use crate::group::{BlockPlace, GroupIndex, GroupRef, check_filter_partition};
use crate::metrics::ReadFor;
use crate::page::{PageKind, PageRef, PageUse, format};

/// Most blocks whose lookups are prefetched at once: more than a scan has levels.
const PREFETCHED_MAX: usize = 32;

/// Decodes a page's content into an object, and returns the object with the memory bytes that it
/// takes.
pub type DecodePage<'a, T> = &'a dyn Fn(&[u8]) -> Result<(T, usize)>;

#[inline]
pub(super) fn block_key(page: PageId, number: usize) -> Key {
    Key {
        page,
        kind: Kind::Block,
        number: number as u32,
    }
}

/// The keys of the first blocks, and their number. This is inlined, so no array is copied.
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

pub(super) fn object_key(page: PageId) -> Key {
    Key {
        page,
        kind: Kind::Object,
        number: 0,
    }
}

fn index_key(page: PageId) -> Key {
    Key {
        page,
        kind: Kind::Index,
        number: 0,
    }
}

impl PageStore {
    /// The content of a node or catalog page, read without the cache.
    pub fn read_page(&self, page: &PageRef, kind: PageKind) -> Result<Vec<u8>> {
        self.with_page(page, kind, |content| Ok(content.to_vec()))
    }

    /// The contents of some pages of a kind, in their order, read without the cache. The device
    /// serves the reads in parallel.
    ///
    /// # Errors
    ///
    /// That of the first page that cannot be read.
    pub fn read_pages(
        &self,
        pages: impl Iterator<Item = PageRef>,
        kind: PageKind,
    ) -> Result<Vec<Vec<u8>>> {
        let whole = |page: PageRef| (PageUse::from(&page), 0..u64::from(page.bytes));
        let pieces: Vec<_> = pages.map(whole).collect();
        let mut contents: Vec<_> = pieces.iter().map(|_| Ok(Vec::new())).collect();
        self.read_pieces(&pieces, ReadFor::Meta, &mut |number, bytes| {
            let id = pieces[number].0.id;
            contents[number] = bytes.and_then(|bytes| {
                let content = format::content(bytes, kind, id).map(<[u8]>::to_vec);
                content.map_err(|error| self.place_page(error, id))
            });
        })?;
        let contents = contents.into_iter();
        contents
            .map(|content| content.map_err(|error| error.with("kind", kind.name())))
            .collect()
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

    /// A decoded page, through the cache, where it counts as metadata. The call passes errors of
    /// `decode` on and caches nothing then.
    pub fn object<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        kind: PageKind,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        self.object_counting(page, kind, 0, decode)
    }

    /// Like [`PageStore::object`]. A hit counts `uncounted` further uses.
    pub(super) fn object_counting<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        kind: PageKind,
        uncounted: u64,
        decode: DecodePage<'_, T>,
    ) -> Result<Arc<T>> {
        let key = object_key(page.id);
        if let Some(object) = self.cache.get_counting::<T>(key, uncounted) {
            return Ok(object);
        }
        let (object, memory_bytes) = self.with_page(page, kind, decode)?;
        Ok(self.cache.insert(key, Arc::new(object), memory_bytes))
    }

    /// The object of a page, if it is cached. It counts one use, and `uncounted` further ones.
    #[must_use]
    pub fn cached_object<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        uncounted: u64,
    ) -> Option<Arc<T>> {
        self.cache.get_counting(object_key(page.id), uncounted)
    }

    /// Caches the object of a page that was just written, as [`PageStore::object`] would.
    pub fn cache_object<T: Any + Send + Sync>(
        &self,
        page: &PageRef,
        object: Arc<T>,
        memory_bytes: usize,
    ) {
        let key = object_key(page.id);
        self.cache.insert(key, object, memory_bytes);
    }

    /// A group's index, through the cache.
    pub fn index(&self, group: &GroupRef) -> Result<Arc<GroupIndex>> {
        self.index_counting(group, 0)
    }

    /// Like [`PageStore::index`]. A hit counts `uncounted` further uses.
    pub(super) fn index_counting(
        &self,
        group: &GroupRef,
        uncounted: u64,
    ) -> Result<Arc<GroupIndex>> {
        if let Some(index) = self.cached_index(group, uncounted) {
            return Ok(index);
        }
        let (offset, bytes) = self.index_place(group)?;
        self.with_bytes(ReadFor::Meta, offset, bytes, |bytes| {
            self.take_in_index(bytes, group.id, group.index_offset)
        })
        .map_err(|e| self.place(e))
    }

    /// Whether a group's index is cached. This is no use of it.
    #[must_use]
    pub fn has_index(&self, group: &GroupRef) -> bool {
        self.cache.has_metadata(index_key(group.id))
    }

    /// Offset and length of a group's index in the file.
    pub(super) fn index_place(&self, group: &GroupRef) -> Result<(u64, usize)> {
        self.place_in_group(group, group.index_offset, group.index_bytes)
            .map(|offset| (offset, group.index_bytes as usize))
    }

    /// Decodes an index that was read into the cache. The index starts at `at` in its group.
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
        Ok(self.cache_index(group, index))
    }

    /// A group's index, if it is cached. It counts one use, and `uncounted` further ones.
    pub(super) fn cached_index(&self, group: &GroupRef, uncounted: u64) -> Option<Arc<GroupIndex>> {
        self.cache.get_counting(index_key(group.id), uncounted)
    }

    pub(super) fn cache_index(&self, group: PageId, index: GroupIndex) -> Arc<GroupIndex> {
        let memory_bytes = index.memory_bytes();
        let key = index_key(group);
        self.cache.insert(key, Arc::new(index), memory_bytes)
    }

    /// Whether a group may hold a key of this hash. Asks one partition of the group's filter,
    /// through the cache. `true` if the group has no filter.
    pub fn may_contain(&self, group: &GroupRef, hash: u64) -> Result<bool> {
        let partitions = group.filter_partitions();
        if partitions == 0 {
            return Ok(true);
        }
        let number = terrapin_filter::partition_of(hash, partitions);
        let page = self.filter_page(group, number, 0)?;
        self.ask(&page, group, number, hash)
    }

    /// A filter partition, through the cache. A hit counts `uncounted` further uses.
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

    /// Asks one partition for a hash.
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

    /// A block, if it is cached. Counts a hit, and no miss.
    #[must_use]
    pub fn cached_block(&self, group: &GroupRef, number: usize) -> Option<Arc<Block>> {
        self.cached_block_as(group, number, Fill::Normal)
    }

    /// Like [`PageStore::cached_block`]. The use counts as one of kind `fill`.
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

    /// Whether a block is cached. This is no use of it, and the block may be evicted at any time.
    #[must_use]
    pub fn has_block(&self, group: &GroupRef, number: usize) -> bool {
        self.cache.has_block(block_key(group.id, number))
    }

    /// Prefetches the memory that lookups of cached blocks visit. The processor then waits once a
    /// step instead of once a block. Of very many blocks only the first are prefetched.
    #[inline]
    pub fn prefetch_blocks<'a>(&self, blocks: impl Iterator<Item = (&'a GroupRef, usize)>) {
        let (keys, count) = first_keys(blocks);
        self.cache.prefetch_blocks(&keys[..count]);
    }

    /// Prefetches where the records of blocks begin, for a caller that reads them in order. Call
    /// [`PageStore::prefetch_blocks`] first.
    pub fn prefetch_records<'a>(&self, blocks: impl Iterator<Item = (&'a GroupRef, usize)>) {
        let (keys, count) = first_keys(blocks);
        self.cache.prefetch_records(&keys[..count]);
    }

    /// How a block stands in the cache whose group is being replaced. The block loses its lives to
    /// the block that replaces it, see [`crate::group::GroupBuilder::takes_place_of`].
    #[must_use]
    pub fn bequeath_block(&self, group: &GroupRef, number: usize) -> Standing {
        self.cache.bequeath(block_key(group.id, number))
    }

    /// Counts a miss of a block, after [`PageStore::cached_block`] or [`PageStore::has_block`],
    /// which count none.
    pub fn missed_block(&self, group: &GroupRef, number: usize) {
        self.cache.missed_block(block_key(group.id, number));
    }

    /// A block, through the cache, with at most one device read. Panics if `number` is not below
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

    /// The block at a place that the caller has of the group's index, through the cache, with at
    /// most one device read.
    pub fn block_at(&self, group: &GroupRef, place: BlockPlace, fill: Fill) -> Result<Arc<Block>> {
        if let Some(block) = self.look_up(group, place.number, fill) {
            return Ok(block);
        }
        let offset = self.place_in_group(group, place.offset, place.bytes)?;
        self.read_placed(group, (offset, place.bytes as usize), place.number, fill)
    }

    /// Adjacent blocks, appended to `out` in order. One device read fetches all from the first to
    /// the last that is not cached. A long run of a scan uses a batch of reads. Serves read-ahead
    /// and merges. Panics if the range goes beyond [`GroupIndex::blocks`].
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

    /// A group's image, in which what the device cannot read is zeros. For what a damaged group
    /// still holds.
    pub fn read_sound_parts(&self, group: &GroupRef) -> Result<AlignedBuf> {
        match self.read_whole_group(group) {
            Err(error) if error.is_of_data() => {}
            read => return read,
        }
        let bytes = self
            .check_bounds(group.offset, group.bytes)
            .map_err(|e| self.place_page(e, group.id))?;
        let mut image = AlignedBuf::zeroed(bytes);
        for (index, piece) in image.chunks_mut(EXTENT_ALIGNMENT as usize).enumerate() {
            let offset = group.offset + index as u64 * EXTENT_ALIGNMENT;
            match self.file.read_at(piece, offset) {
                Err(error) if error.is_of_data() => piece.fill(0),
                read => read.map_err(|e| self.place_page(e, group.id))?,
            }
        }
        Ok(image)
    }

    /// A group's whole image, to verify it: one large read without the cache.
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

    /// Decodes a block that was read. The block enters the cache, unless `fill` says no; then it
    /// takes memory of `own`.
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

    /// Reads a block after a lookup missed it.
    pub(super) fn read_one(
        &self,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
        fill: Fill,
    ) -> Result<Arc<Block>> {
        let place = self.block_place(group, index, number)?;
        self.read_placed(group, place, number, fill)
    }

    fn read_placed(
        &self,
        group: &GroupRef,
        (offset, bytes): (u64, usize),
        number: usize,
        fill: Fill,
    ) -> Result<Arc<Block>> {
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

    /// Offset and length of a block in the file.
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

    /// The offset in the file of a part of a group, if the group contains the part.
    pub(super) fn place_in_group(&self, group: &GroupRef, offset: u32, bytes: u32) -> Result<u64> {
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

    /// `bytes` as a size in memory, if the file contains these bytes.
    pub(super) fn check_bounds(&self, offset: u64, bytes: u64) -> Result<usize> {
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

    /// Start and length of a read of some bytes of the file: out to whole sectors of the device.
    pub(super) fn cover(&self, offset: u64, bytes: usize) -> Result<(u64, usize)> {
        self.check_bounds(offset, bytes as u64)?;
        let alignment = u64::from(self.file.alignment());
        let start = offset / alignment * alignment;
        let end = offset + bytes as u64;
        // Only a shortened file ends within a sector of the device.
        let covered = end.next_multiple_of(alignment);
        let end = covered.min(self.space.file_bytes()).max(end);
        Ok((start, (end - start) as usize))
    }

    /// Reads bytes of the file in one device read and passes them to `use_bytes`.
    pub(super) fn with_bytes<T>(
        &self,
        reader: ReadFor,
        offset: u64,
        bytes: usize,
        use_bytes: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.with_bytes_meanwhile(reader, offset, bytes, &mut || {}, use_bytes)
    }

    /// Like [`PageStore::with_bytes`]. Calls `meanwhile` during the read, see
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
