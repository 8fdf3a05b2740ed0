//! Writes pages and superblocks. Pages go into allocated space that no reader uses (D1, D10). After
//! a failed write, the space stays unused for a while.

use terrapin_base::sync::{Arc, Ordering};
use terrapin_base::{Error, ErrorKind, Generation, Incarnation, PageId, Result, mutant};
use terrapin_disk::AlignedBuf;
use terrapin_filter::Outline;

use super::PageStore;
use super::filter_page::FilterPage;
use super::read::block_key;
use crate::block::Block;
use crate::cache::{Key, Kind};
use crate::group::{GroupIndex, GroupRef, Heir, NodeIndex, PendingGroup};
use crate::metrics::WriteOf;
use crate::page::{Extent, PageKind, PageRef, PageUse, format};
use crate::space::SpaceClass;
use crate::superblock::{GENERATION_MAX, SLOTS, Superblock};

impl PageStore {
    /// Writes a page group as a leaf: one large direct write. Not durable before
    /// [`PageStore::sync`]. Its index goes into the cache, its filter too while there is room,
    /// unless that is [kept out](PendingGroup::keep_filter_out), and blocks that take the place of
    /// cached ones (decision 0019).
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::NoSpace`] when the class has no space; nothing is written then.
    /// After any error no page owns the space, and the next write uses other space.
    pub fn write_group(&self, pending: PendingGroup, class: SpaceClass) -> Result<GroupRef> {
        self.write_group_as(WriteOf::Leaf, pending, class)
            .map(|(group, _)| group)
    }

    /// As [`PageStore::write_group`], and returns the used bytes of the group's index. The caller
    /// keeps them in a node ([`NodeIndex`](crate::group::NodeIndex)).
    pub fn write_group_with_index(
        &self,
        pending: PendingGroup,
        class: SpaceClass,
    ) -> Result<(GroupRef, Vec<u8>)> {
        let (group, image) = self.write_group_as(WriteOf::Leaf, pending, class)?;
        let index = part(&image, group.index_offset, group.index_bytes).unwrap_or_default();
        Ok((group, NodeIndex::of_group(index).to_vec()))
    }

    /// As [`PageStore::write_group`], counted as a buffer segment.
    pub fn write_segment(&self, pending: PendingGroup, class: SpaceClass) -> Result<GroupRef> {
        self.write_group_as(WriteOf::Segment, pending, class)
            .map(|(group, _)| group)
    }

    fn write_group_as(
        &self,
        what: WriteOf,
        mut pending: PendingGroup,
        class: SpaceClass,
    ) -> Result<(GroupRef, AlignedBuf)> {
        let outlines = std::mem::take(&mut pending.outlines);
        let heirs = std::mem::take(&mut pending.heirs);
        let (caches_filter, caches_index) = (pending.caches_filter, pending.caches_index);
        let id = self.begin_page()?;
        let extent = self.space.allocate(pending.bytes_needed, class)?;
        let (group, mut image) = pending.place(id, extent.offset);
        self.write_image(what, id, extent, &mut image)?;
        if caches_index {
            self.cache_new_index(&group, &image);
        }
        if caches_filter {
            self.cache_new_filter(&group, &image, outlines);
        }
        self.cache_heirs(group.id, &image, &heirs);
        Ok((group, image))
    }

    /// Writes a node or catalog page. Not durable before [`PageStore::sync`].
    ///
    /// # Errors
    ///
    /// As [`PageStore::write_group`].
    pub fn write_page(&self, kind: PageKind, content: &[u8], class: SpaceClass) -> Result<PageRef> {
        let id = self.begin_page()?;
        let header = format::header(kind, id, content)?;
        let bytes = (header.len() + content.len()).next_multiple_of(self.unit as usize);
        let page_bytes = u32::try_from(bytes)
            .map_err(|_| Error::internal("page over 4 GiB").with("bytes", content.len()))?;
        let mut image = AlignedBuf::with_capacity(bytes);
        image.extend_from_slice(&header);
        image.extend_from_slice(content);
        image.resize(bytes, 0);
        let extent = self.space.allocate(bytes as u64, class)?;
        let what = match kind {
            PageKind::Node | PageKind::MapNode | PageKind::TrieNode | PageKind::HashList => {
                WriteOf::Node
            }
            PageKind::CatalogRoot
            | PageKind::CatalogLeaf
            | PageKind::ValueTableRoot
            | PageKind::ValueTableLeaf => WriteOf::Catalog,
        };
        self.write_image(what, id, extent, &mut image)?;
        Ok(PageRef {
            id,
            offset: extent.offset,
            bytes: page_bytes,
        })
    }

    /// Writes a page of `bytes` bytes with a layout of its own: `image` makes its bytes for an id
    /// and an offset, and must be of that length. Not durable before [`PageStore::sync`].
    ///
    /// # Errors
    ///
    /// As [`PageStore::write_group`].
    pub fn write_values(
        &self,
        bytes: u64,
        class: SpaceClass,
        image: impl FnOnce(PageId, u64) -> AlignedBuf,
    ) -> Result<PageUse> {
        self.write_laid_out(WriteOf::Values, bytes, class, image)
    }

    pub(super) fn write_laid_out(
        &self,
        what: WriteOf,
        bytes: u64,
        class: SpaceClass,
        image: impl FnOnce(PageId, u64) -> AlignedBuf,
    ) -> Result<PageUse> {
        let id = self.begin_page()?;
        let extent = self.space.allocate(bytes, class)?;
        let mut image = image(id, extent.offset);
        if image.len() as u64 != bytes {
            self.space.park(extent);
            return Err(Error::internal("a page is not as long as its writer said")
                .with("bytes", image.len())
                .with("said", bytes));
        }
        self.write_image(what, id, extent, &mut image)?;
        Ok(PageUse::whole(id, extent.offset, bytes))
    }

    fn write_image(
        &self,
        what: WriteOf,
        id: PageId,
        extent: Extent,
        image: &mut AlignedBuf,
    ) -> Result<()> {
        #[cfg(any(test, debug_assertions))]
        self.space.assert_unused(extent);
        // An extent is a multiple of every accepted alignment, so the padding stays inside it.
        image.resize(
            image.len().next_multiple_of(self.write_alignment as usize),
            0,
        );
        debug_assert!(image.len() as u64 <= extent.bytes);
        if let Err(error) = self.file.write_at(image, extent.offset)
            && !mutant::active("failed-page-write-ignored")
        {
            self.space.park(extent);
            return Err(self.place_page(error, id));
        }
        self.counters.written(what, image.len() as u64);
        self.space.add_fresh(id, extent);
        Ok(())
    }

    /// Caches the index of a new group, which saves the first reader a device read.
    fn cache_new_index(&self, group: &GroupRef, image: &[u8]) {
        if let Some(Ok(index)) = part(image, group.index_offset, group.index_bytes)
            .map(|bytes| GroupIndex::decode(bytes, group.id))
        {
            let key = Key {
                page: group.id,
                kind: Kind::Index,
                number: 0,
            };
            let memory_bytes = index.memory_bytes();
            self.cache.insert(key, index.into(), memory_bytes);
        }
    }

    /// Caches the filter partitions of a new group while the cache has room.
    fn cache_new_filter(&self, group: &GroupRef, image: &[u8], outlines: Vec<Outline>) {
        let filter = part(image, group.filter_offset, group.filter_bytes).unwrap_or_default();
        let partition_bytes = group.filter_partition_bytes().max(1);
        let memory_bytes = FilterPage::memory_bytes(partition_bytes);
        let mut outlines = outlines.into_iter();
        for (number, partition) in (0..).zip(filter.chunks_exact(partition_bytes)) {
            if !self.cache.has_room(memory_bytes) {
                break;
            }
            let key = Key {
                page: group.id,
                kind: Kind::Filter,
                number,
            };
            let page = Arc::new(FilterPage::copy(partition));
            if let Some(outline) = outlines.next() {
                self.leave_outline(&page, outline);
            }
            self.cache.insert(key, page, memory_bytes);
        }
    }

    /// Caches blocks of a new group that take the place of cached ones, without a device read.
    fn cache_heirs(&self, group: PageId, image: &[u8], heirs: &[Heir]) {
        for heir in heirs {
            let Some((worth, lives)) = self.cache.inherits(heir.standing) else {
                continue;
            };
            let bytes = image.get(heir.place.start as usize..heir.place.end as usize);
            let memory = |bytes| self.cache.memory_for(bytes, worth);
            let block = bytes.map(|bytes| Block::decode_into(bytes, group, heir.number, memory));
            if let Some(Ok(block)) = block {
                let number =
                    heir.number + u32::from(mutant::active("replaced-block-cached-as-next"));
                let key = block_key(group, number as usize);
                self.cache.insert_block(key, Arc::new(block), worth, lives);
            }
        }
    }

    /// Checks that the store takes page writes, and returns the id of the next page.
    pub(super) fn begin_page(&self) -> Result<PageId> {
        self.check_writable()?;
        let life = self.life.load(Ordering::Acquire);
        if life == 0 || !self.rebuilt.load(Ordering::Acquire) {
            return Err(Error::internal(
                "a page is written before the store was rebuilt and its life began",
            ));
        }
        let incarnation = Incarnation(life - 1);
        if self
            .space
            .newest_incarnation()
            .is_some_and(|newest| newest >= incarnation)
        {
            return Err(
                Error::internal("an incarnation is used twice").with("incarnation", incarnation)
            );
        }
        self.settle_slots()?;
        let counter = self.next_page.fetch_add(1, Ordering::Relaxed);
        if counter > PageId::COUNTER_MAX || incarnation > Incarnation::MAX {
            return Err(Error::internal("page ids exhausted")
                .with("incarnation", incarnation)
                .with("counter", counter));
        }
        let first = self.first_page.load(Ordering::Acquire);
        Ok(PageId::new(
            incarnation,
            first.wrapping_add(counter) & PageId::COUNTER_MAX,
        ))
    }

    /// Writes a slot, which is durable after [`PageStore::sync`]. A failure poisons the store,
    /// since the slot may hold the old or the new superblock.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::InvalidArgument`] for a slot that does not exist, a superblock
    /// of another database or unit, an older generation, or one above the largest generation.
    pub fn write_superblock(&self, slot: usize, superblock: &Superblock) -> Result<()> {
        self.check_writable()?;
        let newest = self.superblock();
        if slot >= SLOTS
            || superblock.database_id != newest.database_id
            || superblock.unit != self.unit
            || superblock.generation < newest.generation
            || superblock.generation > GENERATION_MAX
        {
            return Err(Error::invalid("a superblock that cannot follow the newest")
                .with("slot", slot)
                .with("generation", superblock.generation)
                .with("newest", newest.generation));
        }
        self.settle_slots()?;
        self.write_slot(slot, superblock)
            .map_err(|error| self.poisoned(error))?;
        self.roots.lock().newest = *superblock;
        Ok(())
    }

    /// Writes both slots anew and syncs them, before the first change to any page. One slot may
    /// hold an older root, whose pages count as free. The newest slot may not be durable, because
    /// its writer died before the sync, or the sync failed. The system reports a failed sync only
    /// once, so another sync without a write proves nothing. A power cut could then bring back the
    /// older root.
    pub fn settle_slots(&self) -> Result<()> {
        // The lock is held over the I/O once in a life: other writers must wait for the slots.
        let mut roots = self.roots.lock();
        let Some(first) = roots.unsettled else {
            return Ok(());
        };
        if mutant::active("found-slot-unsynced") {
            return Ok(());
        }
        // The newest slot may not be durable yet, and two slots must never be at risk (D2).
        self.file.sync().map_err(|error| self.poisoned(error))?;
        for slot in [first, SLOTS - 1 - first] {
            let written = self.write_slot(slot, &roots.newest);
            let durable = written.and_then(|()| self.file.sync());
            durable.map_err(|error| self.poisoned(error))?;
        }
        roots.unsettled = None;
        Ok(())
    }

    /// Begins a life of the database: writes its branch into both slots, onto stable storage, in
    /// place of [`PageStore::settle_slots`] and before anything else is written. `incarnation` and
    /// `log_branch` are those of the log's newest life. From here on the file is no copy. Returns
    /// the superblock that was written.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Unsupported`] when generations are used up; those of the writes
    /// and syncs.
    pub fn begin_branch(
        &self,
        incarnation: Incarnation,
        branch: u64,
        log_branch: u64,
    ) -> Result<Superblock> {
        self.check_writable()?;
        let begun = Superblock {
            incarnation,
            branch,
            log_branch,
            home: self.home,
            closed: false,
            ..self.following()?
        };
        {
            let mut roots = self.roots.lock();
            roots.newest = begun;
            roots.unsettled.get_or_insert(0);
        }
        self.settle_slots()?;
        Ok(begun)
    }

    /// Writes durably that this life has ended and that no write follows. A copy of the file then
    /// equals the file. This is the last call before the store is dropped.
    ///
    /// # Errors
    ///
    /// As [`PageStore::begin_branch`].
    pub fn end_branch(&self) -> Result<()> {
        self.check_writable()?;
        let ended = Superblock {
            closed: true,
            ..self.following()?
        };
        {
            let mut roots = self.roots.lock();
            roots.newest = ended;
            // The last checkpoint may have been stopped between the slots: the first one holds the
            // newest superblock then.
            roots.unsettled = Some(SLOTS - 1);
        }
        self.settle_slots()
    }

    /// The newest superblock with the next generation.
    fn following(&self) -> Result<Superblock> {
        let newest = self.superblock();
        if newest.generation >= GENERATION_MAX {
            let message = "the database was checkpointed as often as one can be: export it, and import it into a new one";
            return Err(
                Error::new(ErrorKind::Unsupported, message).with("generation", newest.generation)
            );
        }
        Ok(Superblock {
            generation: Generation(newest.generation.0 + 1),
            ..newest
        })
    }

    pub(super) fn poisoned(&self, error: Error) -> Error {
        let error = self.place(error);
        self.poison.get_or_init(|| error.clone());
        error
    }
}

/// A part of an image, or none if the image is too short.
fn part(image: &[u8], offset: u32, bytes: u32) -> Option<&[u8]> {
    image.get(offset as usize..)?.get(..bytes as usize)
}
