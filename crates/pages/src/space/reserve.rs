//! Finds allocated space, first of all for the reserve (D10). After an open the store does not know
//! which free space the file system has allocated. The last life's reserve may be one run with
//! holes beside it, and a full disk cannot fill holes. The file system grants allocated space
//! however full the disk is. So the search asks for free space in pieces. For the reserve it first
//! asks for pieces that would suffice, then for halves of refused pieces.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Result};

use super::{Free, Space, SpaceClass};
use crate::page::Extent;

/// Refused pieces are halved down to about this size.
pub(super) const PIECE_BYTES_MIN: u64 = 64 << 10;
/// Most pieces of one search, so that it ends within milliseconds.
const PIECES_MAX: usize = 1024;

/// Pieces that a search was refused. They are out of the free space, so the search does not ask
/// again.
#[derive(Default)]
pub(super) struct Refused {
    /// Halves that were not asked for separately yet. The largest comes next; of equal ones, the
    /// lowest.
    halves: BinaryHeap<(u64, Reverse<u64>)>,
    /// Pieces too small to halve, and whether each may be allocated in part.
    rest: Vec<(Extent, bool)>,
}

impl Refused {
    fn halve(&mut self, piece: Extent) {
        let half = (piece.bytes / 2).next_multiple_of(EXTENT_ALIGNMENT);
        self.halves.push((half, Reverse(piece.offset)));
        self.halves
            .push((piece.bytes - half, Reverse(piece.offset + half)));
    }

    /// The next half, if it is larger than `bytes`.
    fn next_above(&mut self, bytes: u64) -> Option<Extent> {
        let next = self.halves.peek()?;
        if next.0 <= bytes {
            return None;
        }
        let (bytes, Reverse(offset)) = self.halves.pop()?;
        Some(Extent { offset, bytes })
    }

    /// All refused pieces, and whether each may be allocated in part.
    fn into_extents(self) -> impl Iterator<Item = (Extent, bool)> {
        let halves = self.halves.into_iter();
        halves
            .map(|(bytes, Reverse(offset))| (Extent { offset, bytes }, true))
            .chain(self.rest)
    }
}

impl Space {
    /// Fills the reserve after an open: from free space that can be allocated, then by growing the
    /// file. A full disk is no error here, because later writes report it.
    pub(super) fn find_reserve(&self) -> Result<()> {
        if self.search_reserve()? {
            return Ok(());
        }
        match self.grow(0, SpaceClass::Normal) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                tracing::warn!(
                    file = self.file.describe(),
                    bytes = self.reserve_held_bytes(),
                    "the disk is full: the reserve for deletes is not whole"
                );
                Ok(())
            }
            done => done,
        }
    }

    /// Takes a run from the reserve, or across the bound of the reserve and ready space. If the
    /// reserve is not full and no run fits, searches for allocated space first.
    pub(super) fn take_reserve(&self, wanted: u64) -> Result<Option<Extent>> {
        let take = || {
            let mut state = self.state.lock();
            let target = state.reserve_target;
            let free = &mut state.free;
            if let Some(extent) = free.reserve.fit(wanted, None) {
                free.reserve.remove(extent);
                return Some(extent);
            }
            // One run of free space may cross the reserve's bound.
            free.dissolve_reserve();
            let extent = free.ready.fit(wanted, None);
            if let Some(extent) = extent {
                free.take(extent);
            }
            free.refill_reserve(target);
            extent
        };
        if let Some(extent) = take() {
            return Ok(Some(extent));
        }
        if self.is_short() {
            self.search_reserve()?;
        }
        Ok(take())
    }

    /// Fills the reserve if there is free space that the file system was not asked for yet.
    pub(super) fn complete_reserve(&self) -> Result<()> {
        let may_be_there = {
            let state = self.state.lock();
            state.free.reserve.total() < state.reserve_target && state.free.unasked.total() > 0
        };
        if may_be_there {
            self.search_reserve()?;
        }
        Ok(())
    }

    /// Fills the reserve from free space that can be allocated. Returns whether the reserve is
    /// full.
    fn search_reserve(&self) -> Result<bool> {
        // Two searches would hide their pieces from each other. The lock also keeps the file's end
        // in place.
        let _resizing = self.resizing.lock();
        self.search(2 * PIECE_BYTES_MIN, |free, target, refused| {
            let missing = target.saturating_sub(free.reserve.total());
            if missing == 0 {
                return None;
            }
            let missing = missing.next_multiple_of(EXTENT_ALIGNMENT);
            // All ready space is in the reserve by now. Holes are known, because the file system
            // refused them.
            let unasked = free.unasked.fit(missing, None);
            let unasked = unasked.or_else(|| free.unasked.largest());
            let half = refused.next_above(unasked.map_or(0, |extent| extent.bytes));
            half.or_else(|| unasked.inspect(|extent| free.take(*extent)))
        })?;
        Ok(!self.is_short())
    }

    /// Asks the file system for each piece that `next` takes out of the free space. `next` also
    /// gets the reserve's target and the refused pieces. A refused piece of at least `halved_from`
    /// bytes is halved. A shorter one is punched at once, so the next piece may get its blocks. The
    /// caller holds `resizing`.
    pub(super) fn search(
        &self,
        halved_from: u64,
        mut next: impl FnMut(&mut Free, u64, &mut Refused) -> Option<Extent>,
    ) -> Result<()> {
        let mut refused = Refused::default();
        let mut searched = Ok(());
        for _ in 0..PIECES_MAX {
            let piece = {
                let mut state = self.state.lock();
                let target = state.reserve_target;
                state.free.refill_reserve(target);
                next(&mut state.free, target, &mut refused)
            };
            let Some(piece) = piece else {
                break;
            };
            match self.file.allocate(piece.offset, piece.bytes) {
                Ok(()) => self.state.lock().free.add(piece, true, true),
                Err(error) => {
                    if piece.bytes >= halved_from {
                        refused.halve(piece);
                    } else {
                        let is_hole = self.let_go(piece);
                        refused.rest.push((piece, !is_hole));
                    }
                    if error.kind() != ErrorKind::NoSpace {
                        searched = Err(error);
                        break;
                    }
                }
            }
        }
        let mut state = self.state.lock();
        for (extent, occupying) in refused.into_extents() {
            state.free.add(extent, false, occupying);
        }
        let target = state.reserve_target;
        state.free.refill_reserve(target);
        searched
    }
}
