//! Finding what is allocated, first of all the reserve (D10). After an open nobody knows which free
//! space the file system holds for us, and the reserve of the last life is one run with the holes
//! beside it, which a full disk has nothing for. What is allocated already is given however full
//! the disk is, so free space is asked for in pieces: for the reserve first in such as would do,
//! then in halves of what was refused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Result};

use super::{Free, Space, SpaceClass};
use crate::page::Extent;

/// Refused pieces are halved down to about this.
pub(super) const PIECE_BYTES_MIN: u64 = 64 << 10;
/// Pieces of one search: it ends within milliseconds.
const PIECES_MAX: usize = 1024;

/// What a search was refused, and took out of the free space so as not to ask for it again.
#[derive(Default)]
pub(super) struct Refused {
    /// Halves that were not asked for by themselves yet; the largest, and of those the lowest, is
    /// next.
    halves: BinaryHeap<(u64, Reverse<u64>)>,
    /// What is too small to be halved, and whether it may be allocated in part.
    rest: Vec<(Extent, bool)>,
}

impl Refused {
    fn halve(&mut self, piece: Extent) {
        let half = (piece.bytes / 2).next_multiple_of(EXTENT_ALIGNMENT);
        self.halves.push((half, Reverse(piece.offset)));
        self.halves
            .push((piece.bytes - half, Reverse(piece.offset + half)));
    }

    /// The next half, if it is larger than that.
    fn next_above(&mut self, bytes: u64) -> Option<Extent> {
        let next = self.halves.peek()?;
        if next.0 <= bytes {
            return None;
        }
        let (bytes, Reverse(offset)) = self.halves.pop()?;
        Some(Extent { offset, bytes })
    }

    /// All of it, each with whether it may be allocated in part.
    fn into_extents(self) -> impl Iterator<Item = (Extent, bool)> {
        let halves = self.halves.into_iter();
        halves
            .map(|(bytes, Reverse(offset))| (Extent { offset, bytes }, true))
            .chain(self.rest)
    }
}

impl Space {
    /// Fills the reserve after an open: from free space of the file as far as it can be allocated,
    /// else by growing. A full disk is no error here: writes will see it.
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

    /// Takes so much of the reserve, or of it and what is ready beside it, if there is a run of
    /// that; where it is not whole, after a search for what it lacks.
    pub(super) fn take_reserve(&self, wanted: u64) -> Result<Option<Extent>> {
        let take = || {
            let mut state = self.state.lock();
            let target = state.reserve_target;
            let free = &mut state.free;
            if let Some(extent) = free.reserve.fit(wanted, None) {
                free.reserve.remove(extent);
                return Some(extent);
            }
            // One run of free space may lie across the reserve's bound.
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

    /// Fills the reserve where something was not asked for that may hold what it lacks.
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

    /// Fills the reserve from free space of the file as far as that can be allocated; whether it is
    /// whole.
    fn search_reserve(&self) -> Result<bool> {
        // Two searches would hide from each other what they hold, and the file keeps its end.
        let _resizing = self.resizing.lock();
        self.search(2 * PIECE_BYTES_MIN, |free, target, refused| {
            let missing = target.saturating_sub(free.reserve.total());
            if missing == 0 {
                return None;
            }
            let missing = missing.next_multiple_of(EXTENT_ALIGNMENT);
            // Ready space is all in the reserve by now, and holes are known: the file system was
            // asked for them.
            let unasked = free.unasked.fit(missing, None);
            let unasked = unasked.or_else(|| free.unasked.largest());
            let half = refused.next_above(unasked.map_or(0, |extent| extent.bytes));
            half.or_else(|| unasked.inspect(|extent| free.take(*extent)))
        })?;
        Ok(!self.is_short())
    }

    /// Asks for pieces, as many as `next` takes out of the free space, where it is told the
    /// reserve's target. What is refused from `halved_from` bytes on is left to it in halves;
    /// shorter ones go back to the file system at once, and the next piece may have them.
    /// `resizing` is held.
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
