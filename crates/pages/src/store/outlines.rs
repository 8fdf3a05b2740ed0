//! Outlines of buffer segments' filters: most lookups pass a segment by its outline, and neither lock nor count anything. Handles keep
//! outlines for as long as there is the node, and pages share them with the next version of the node. They are charged as metadata
//! that nothing evicts, so all of them take a small part of what caches may take, at most; segments that come when that is taken do without.

use terrapin_base::sync::{Arc, OnceLock};
use terrapin_base::{Budget, Charge, Purpose, Result};
use terrapin_filter::{Outline, partition_of};

use super::PageStore;
use super::handle::{GroupHandle, partitions_with_handles};
use super::read::FilterPage;
use crate::group::GroupRef;

/// All outlines take one part in so many of what caches may take, at most.
const PART: u64 = 16;

/// An outline that is charged for as long as somebody has it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    outline: Outline,
    /// To the store's budget, and among the outlines.
    _charges: Arc<[Charge; 2]>,
}

/// What the outlines of a store take.
pub(super) struct Outlines(Arc<Budget>);

impl Default for Outlines {
    fn default() -> Self {
        Outlines(Budget::new(u64::MAX))
    }
}

impl Outlines {
    /// Bytes of all.
    fn bytes(&self) -> u64 {
        self.0.used(Purpose::Metadata)
    }
}

/// The handle of a group that is a buffer segment: besides, of each partition of its filter, the outline.
#[derive(Debug, Default)]
pub struct SegmentHandle {
    group: GroupHandle,
    /// One a partition, since one was first kept.
    outlines: OnceLock<Box<[OnceLock<Kept>]>>,
}

impl SegmentHandle {
    /// The direct ways.
    #[inline]
    #[must_use]
    pub fn group(&self) -> &GroupHandle {
        &self.group
    }

    /// Whether the group certainly lacks all keys of that hash, by what is known here.
    #[inline]
    #[must_use]
    pub fn lacks(&self, hash: u64) -> bool {
        let Some(outlines) = self.outlines.get() else {
            return false;
        };
        let number = partition_of(hash, outlines.len() as u32) as usize;
        let kept = outlines.get(number).and_then(OnceLock::get);
        kept.is_some_and(|kept| !kept.outline.may_contain(hash))
    }

    /// Keeps the outline of a partition, of so many.
    #[cold]
    fn keep(&self, partitions: u32, number: u32, outline: Kept) {
        let outlines = self
            .outlines
            .get_or_init(|| (0..partitions).map(|_| OnceLock::new()).collect());
        if let Some(place) = outlines.get(number as usize) {
            place.get_or_init(|| outline);
        }
    }

    /// Whether the outline of a partition is kept.
    #[inline]
    fn keeps(&self, number: u32) -> bool {
        let place = self.outlines.get().and_then(|all| all.get(number as usize));
        place.is_some_and(|place| place.get().is_some())
    }

    /// Bytes of memory that a segment's handle comes to take, itself included, but for the outlines.
    #[must_use]
    pub fn memory_bytes(group: &GroupRef) -> usize {
        let partitions = partitions_with_handles(group).unwrap_or(0) as usize;
        size_of::<Self>() - size_of::<GroupHandle>()
            + GroupHandle::memory_bytes(group)
            + partitions * size_of::<OnceLock<Kept>>()
    }
}

impl PageStore {
    /// As [`PageStore::may_contain`], of a buffer segment by its handle, which keeps the outline that it had to do without.
    #[inline]
    pub fn segment_may_contain(
        &self,
        group: &GroupRef,
        handle: &SegmentHandle,
        hash: u64,
    ) -> Result<bool> {
        let Some(partitions) = partitions_with_handles(group) else {
            return self.may_contain(group, hash);
        };
        let number = partition_of(hash, partitions);
        let page = self.filter_page_by(group, &handle.group, partitions, number)?;
        if !handle.keeps(number)
            && let Some(outline) = self.outline_of(&page, group)?
        {
            handle.keep(partitions, number, outline);
        }
        self.ask(&page, group, number, hash)
    }

    /// The outline of a partition, made when it is first asked for and there is room.
    fn outline_of(&self, page: &FilterPage, group: &GroupRef) -> Result<Option<Kept>> {
        if let Some(kept) = page.outline.get() {
            return Ok(Some(kept.clone()));
        }
        let bytes = Outline::memory_bytes(page.bytes.len()) as u64;
        let budget = self.cache.budget();
        if self.outlines.bytes() + bytes > budget.room_for_caches() / PART {
            return Ok(None);
        }
        let outline = Outline::of(&page.bytes).map_err(|e| self.place_page(e, group.id))?;
        let charges = [budget, &self.outlines.0];
        let kept = Kept {
            outline,
            _charges: Arc::new(charges.map(|to| to.charge(Purpose::Metadata, bytes))),
        };
        Ok(Some(page.outline.get_or_init(|| kept).clone()))
    }
}
