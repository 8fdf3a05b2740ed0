//! Outlines of the filters of buffer segments. An outline tells most lookups that a segment lacks
//! their key. Asking an outline takes no lock and counts nothing.
//!
//! A node in memory keeps the outlines of its segments for as long as the node lives. The cached
//! filter pages pass them to the node's next version. The outlines are charged as metadata that
//! cannot be evicted. All outlines together take at most a sixteenth of what the caches may take.
//! Segments that come later have none.

use terrapin_base::sync::{Arc, OnceLock};
use terrapin_base::{Budget, Purpose, Result};
use terrapin_filter::{Outline, PARTITION_BYTES_MAX, partition_of};

use super::PageStore;
use super::filter_page::{FilterPage, KeptOutline};
use super::handle::{GroupHandle, partitions_with_handles};
use crate::group::GroupRef;

/// All outlines together take at most one part in this many of what the caches may take.
const PART: u64 = 16;
/// Most outlines that a node has positions for: far more than its segments have partitions. Hostile
/// references cannot make more positions.
const PLACES_MAX: u32 = 1 << 16;

/// The memory that the outlines of a store take.
pub(super) struct Outlines(Arc<Budget>);

impl Default for Outlines {
    fn default() -> Self {
        Outlines(Budget::new(u64::MAX))
    }
}

impl Outlines {
    /// Bytes of all outlines.
    fn bytes(&self) -> u64 {
        self.0.used(Purpose::Metadata)
    }
}

/// The outlines that a node in memory keeps of its segments' filters. They are in one array: group
/// behind group, one outline for each partition.
#[derive(Debug, Default)]
pub struct SegmentOutlines {
    /// The array, allocated when the first outline is kept.
    kept: OnceLock<Box<[OnceLock<KeptOutline>]>>,
    places: u32,
}

/// Where the outlines of a segment's filter are in the array of its node.
#[derive(Clone, Copy, Debug)]
pub struct OutlinePlaces {
    first: u32,
    partitions: u32,
}

impl OutlinePlaces {
    /// The positions of a segment that has no outlines.
    pub const NONE: OutlinePlaces = OutlinePlaces {
        first: u32::MAX,
        partitions: 0,
    };

    #[inline]
    fn of(self, number: u32) -> usize {
        self.first as usize + number as usize
    }
}

/// The outlines that a node keeps at this moment.
#[derive(Clone, Copy)]
pub struct KnownOutlines<'n>(&'n [OnceLock<KeptOutline>]);

impl KnownOutlines<'_> {
    /// Whether a known outline says that the segment holds no key of this hash.
    #[inline]
    #[must_use]
    pub fn deny(self, places: OutlinePlaces, hash: u64) -> bool {
        let number = partition_of(hash, places.partitions);
        let kept = self.0.get(places.of(number)).and_then(OnceLock::get);
        kept.is_some_and(|kept| !kept.outline.may_contain(hash))
    }
}

impl SegmentOutlines {
    /// Positions for the outlines of another segment. None if the segment has no filter or the node
    /// has too many.
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

    /// The outlines that are kept at this moment.
    #[inline]
    #[must_use]
    pub fn known(&self) -> KnownOutlines<'_> {
        KnownOutlines(self.kept.get().map(|kept| &kept[..]).unwrap_or_default())
    }

    /// Whether an outline has a position and is not kept yet.
    #[inline]
    fn lack(&self, places: OutlinePlaces, number: u32) -> bool {
        places.partitions > 0
            && self
                .known()
                .0
                .get(places.of(number))
                .is_none_or(|place| place.get().is_none())
    }

    /// Keeps the outline of partition `number`.
    #[cold]
    fn keep(&self, places: OutlinePlaces, number: u32, outline: KeptOutline) {
        let kept = self
            .kept
            .get_or_init(|| (0..self.places).map(|_| OnceLock::new()).collect());
        if let Some(place) = kept.get(places.of(number)) {
            place.get_or_init(|| outline);
        }
    }

    /// Bytes of memory that the array takes once it is allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.places as usize * size_of::<OnceLock<KeptOutline>>()
    }
}

impl PageStore {
    /// Whether a buffer segment may hold a key, like [`PageStore::may_contain_by`]. If the node
    /// lacks the outline of the asked partition, it keeps that outline from now on.
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

    /// Whether the outline of another partition of any length may still be kept.
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

    /// Keeps the outline of a partition that was just written, for the first reader to find, if
    /// there is room.
    pub(super) fn leave_outline(&self, page: &FilterPage, outline: Outline) {
        if self.has_room_for_outline(page.bytes.len()) {
            page.outline.get_or_init(|| self.charged(outline));
        }
    }

    /// The outline of a partition, if there is room for it. The call makes the outline unless the
    /// writer or an earlier call did.
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
