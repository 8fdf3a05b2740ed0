//! Outlines of buffer segments' filters: most lookups pass a segment by its outline, and neither
//! lock nor count anything. A node in memory keeps its segments' for as long as there is the node,
//! and pages share them with its next version. They are charged as metadata that nothing evicts, so
//! all of them take a small part of what caches may take, at most; segments that come when that is
//! taken do without.

use terrapin_base::sync::{Arc, OnceLock};
use terrapin_base::{Budget, Purpose, Result};
use terrapin_filter::{Outline, PARTITION_BYTES_MAX, partition_of};

use super::PageStore;
use super::filter_page::{FilterPage, KeptOutline};
use super::handle::{GroupHandle, partitions_with_handles};
use crate::group::GroupRef;

/// All outlines take one part in so many of what caches may take, at most.
const PART: u64 = 16;
/// More partitions than the segments of a node come to, by far: references that lie make no more
/// places.
const PLACES_MAX: u32 = 1 << 16;

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

/// The outlines that a node in memory keeps of its segments' filters, all side by side: group
/// behind group, one a partition.
#[derive(Debug, Default)]
pub struct SegmentOutlines {
    /// Since one was first kept.
    kept: OnceLock<Box<[OnceLock<KeptOutline>]>>,
    places: u32,
}

/// Where the outlines of a segment's filter are among those of its node.
#[derive(Clone, Copy, Debug)]
pub struct OutlinePlaces {
    first: u32,
    partitions: u32,
}

impl OutlinePlaces {
    /// Those of a segment that none are kept of.
    pub const NONE: OutlinePlaces = OutlinePlaces {
        first: u32::MAX,
        partitions: 0,
    };

    #[inline]
    fn of(self, number: u32) -> usize {
        self.first as usize + number as usize
    }
}

/// The outlines that are kept by now.
#[derive(Clone, Copy)]
pub struct KnownOutlines<'n>(&'n [OnceLock<KeptOutline>]);

impl KnownOutlines<'_> {
    /// Whether the segment certainly lacks all keys of that hash, by what is known here.
    #[inline]
    #[must_use]
    pub fn deny(self, places: OutlinePlaces, hash: u64) -> bool {
        let number = partition_of(hash, places.partitions);
        let kept = self.0.get(places.of(number)).and_then(OnceLock::get);
        kept.is_some_and(|kept| !kept.outline.may_contain(hash))
    }
}

impl SegmentOutlines {
    /// Places for the outlines of another segment, unless it has no filter or the node has too
    /// many.
    pub fn add(&mut self, group: &GroupRef) -> OutlinePlaces {
        match partitions_with_handles(group) {
            Some(partitions) if self.places + partitions <= PLACES_MAX => {
                let first = self.places;
                self.places += partitions;
                OutlinePlaces { first, partitions }
            }
            _ => OutlinePlaces::NONE,
        }
    }

    /// What is kept now.
    #[inline]
    #[must_use]
    pub fn known(&self) -> KnownOutlines<'_> {
        KnownOutlines(self.kept.get().map(|kept| &kept[..]).unwrap_or_default())
    }

    /// Whether there is a place and nothing in it.
    #[inline]
    fn lack(&self, places: OutlinePlaces, number: u32) -> bool {
        places.partitions > 0
            && self
                .known()
                .0
                .get(places.of(number))
                .is_none_or(|place| place.get().is_none())
    }

    /// Keeps the outline of a partition.
    #[cold]
    fn keep(&self, places: OutlinePlaces, number: u32, outline: KeptOutline) {
        let kept = self
            .kept
            .get_or_init(|| (0..self.places).map(|_| OnceLock::new()).collect());
        if let Some(place) = kept.get(places.of(number)) {
            place.get_or_init(|| outline);
        }
    }

    /// Bytes of memory that the places come to take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.places as usize * size_of::<OnceLock<KeptOutline>>()
    }
}

impl PageStore {
    /// As [`PageStore::may_contain_by`], of a buffer segment; its node keeps the outline that it
    /// had to do without.
    #[inline]
    pub fn segment_may_contain(
        &self,
        group: &GroupRef,
        handle: &GroupHandle,
        outlines: &SegmentOutlines,
        places: OutlinePlaces,
        hash: u64,
    ) -> Result<bool> {
        self.ask_by(group, handle, hash, |number, page| {
            if outlines.lack(places, number)
                && let Some(outline) = self.outline_of(page, group)?
            {
                outlines.keep(places, number, outline);
            }
            Ok(())
        })
    }

    /// Whether another partition's outline may come to be kept, however long that is.
    #[must_use]
    pub fn has_room_for_outlines(&self) -> bool {
        self.has_room_for_outline(PARTITION_BYTES_MAX)
    }

    fn has_room_for_outline(&self, partition_bytes: usize) -> bool {
        let bytes = Outline::memory_bytes_of(partition_bytes) as u64;
        self.outlines.bytes() + bytes <= self.cache.budget().room_for_caches() / PART
    }

    fn charged(&self, outline: Outline) -> KeptOutline {
        let bytes = outline.memory_bytes() as u64;
        let charges = [self.cache.budget(), &self.outlines.0];
        KeptOutline {
            outline,
            _charges: Arc::new(charges.map(|to| to.charge(Purpose::Metadata, bytes))),
        }
    }

    /// Leaves the outline of a partition that was just written to who asks for it, if there is
    /// room.
    pub(super) fn leave_outline(&self, page: &FilterPage, outline: Outline) {
        if self.has_room_for_outline(page.bytes.len()) {
            page.outline.get_or_init(|| self.charged(outline));
        }
    }

    /// The outline of a partition, made when it is first asked for, was not left by who wrote the
    /// partition, and there is room.
    fn outline_of(&self, page: &FilterPage, group: &GroupRef) -> Result<Option<KeptOutline>> {
        if let Some(kept) = page.outline.get() {
            return Ok(Some(kept.clone()));
        }
        if !self.has_room_for_outline(page.bytes.len()) {
            return Ok(None);
        }
        let outline = Outline::of(&page.bytes).map_err(|e| self.place_page(e, group.id))?;
        let kept = page.outline.get_or_init(|| self.charged(outline));
        Ok(Some(kept.clone()))
    }
}
