//! The free space of a file: which of it is allocated in the file system, and the reserve.

use terrapin_base::EXTENT_ALIGNMENT;

use super::runs::Runs;
use crate::page::Extent;
use crate::superblock::PAGES_START;

/// Free space, in sets that overlap.
#[derive(Debug, Default)]
pub(super) struct Free {
    /// All free space except the reserve.
    pub(super) all: Runs,
    /// The part of `all` that is known to be allocated in the file system. A write there cannot run
    /// out of space.
    pub(super) ready: Runs,
    /// The part of `all` that may be allocated in the file system and is worth punching. Contains
    /// `ready`.
    pub(super) occupying: Runs,
    /// The part of `all` that may be allocated but is not in `ready`. After an open this is
    /// everything, until the file system was asked.
    pub(super) unasked: Runs,
    /// Allocated space that is set aside for [`SpaceClass::Reserve`]. Not in `all`.
    pub(super) reserve: Runs,
    /// The file's length.
    pub(super) end: u64,
}

impl Free {
    pub(super) fn add(&mut self, extent: Extent, ready: bool, occupying: bool) {
        debug_assert!(
            !self.all.overlaps(extent) && !self.reserve.overlaps(extent),
            "{extent:?} is free already"
        );
        debug_assert!(extent.offset >= PAGES_START && extent.end() <= self.end);
        self.all.insert(extent);
        if ready {
            self.ready.insert(extent);
        } else if occupying {
            self.unasked.insert(extent);
        }
        if occupying {
            self.occupying.insert(extent);
        }
    }

    pub(super) fn take(&mut self, extent: Extent) {
        debug_assert_eq!(self.all.gaps(extent), [], "{extent:?} is not free");
        self.all.remove(extent);
        self.ready.remove(extent);
        self.occupying.remove(extent);
        self.unasked.remove(extent);
    }

    /// Moves ready space into the reserve: the fewest runs, low ones first.
    pub(super) fn refill_reserve(&mut self, target: u64) {
        while self.reserve.total() < target {
            let missing = (target - self.reserve.total()).next_multiple_of(EXTENT_ALIGNMENT);
            let Some(extent) = self
                .ready
                .fit(missing, None)
                .or_else(|| self.ready.largest())
            else {
                return;
            };
            self.take(extent);
            self.reserve.insert(extent);
        }
    }

    /// Moves the reserve back to the free space, where its runs join their neighbours.
    pub(super) fn dissolve_reserve(&mut self) {
        let reserve = std::mem::take(&mut self.reserve);
        for run in reserve.iter() {
            self.add(run, true, true);
        }
    }
}
