//! Where no free run is long enough on a full disk: short ones go back to the file system, for one
//! as long at the end of the file. The file system maps any of its blocks anywhere in a file, so
//! nothing of ours is moved for that; the file is longer, the disk no fuller. Without it what is
//! free on a full disk ends in runs that no leaf fits into, and deletes free nothing any more
//! (D10).
//!
//! After an open nobody knows which of them the file system holds for us, so it is asked for as
//! many as are needed.

use terrapin_base::sync::Ordering;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Result};

use super::reserve::PIECE_BYTES_MIN;
use super::{Free, Space, SpaceClass};
use crate::page::Extent;

/// The file system may need a block for its map of where everything is.
const MAP_BYTES: u64 = 2 * EXTENT_ALIGNMENT;

impl Free {
    /// Takes ready runs, the shortest first, that do not end at that offset: together so many bytes
    /// and what a map may need, or at least so many. Otherwise nothing.
    fn take_scraps(&mut self, bytes: u64, except_end: u64) -> Option<Vec<Extent>> {
        let mut scraps = Vec::new();
        let mut missing = bytes + MAP_BYTES;
        for run in self.ready.ascending() {
            if missing == 0 {
                break;
            }
            if run.end() == except_end {
                continue;
            }
            let bytes = run.bytes.min(missing);
            missing -= bytes;
            scraps.push(Extent {
                offset: run.end() - bytes,
                bytes,
            });
        }
        if missing > MAP_BYTES {
            return None;
        }
        scraps.iter().for_each(|scrap| self.take(*scrap));
        Some(scraps)
    }
}

impl Space {
    /// A run of that many bytes for short ones, which for [`SpaceClass::Reserve`] may be the
    /// reserve's: a call of the file system for each and one for the new end. None where they do
    /// not come to that, or the file system does not do it.
    pub(super) fn exchange(&self, wanted: u64, class: SpaceClass) -> Result<Option<Extent>> {
        let _resizing = self.resizing.lock();
        self.find_scraps(wanted, class)?;
        let (tail, missing, scraps) = {
            let mut state = self.state.lock();
            let target = state.reserve_target;
            let free = &mut state.free;
            match class {
                SpaceClass::Reserve => free.dissolve_reserve(),
                SpaceClass::Normal if free.reserve.total() < target => return Ok(None),
                SpaceClass::Normal => {}
            }
            // Among what was found there may be one.
            if let Some(extent) = free.ready.fit(wanted, None) {
                free.take(extent);
                free.refill_reserve(target);
                return Ok(Some(extent));
            }
            let end = free.end;
            let tail = free.ready.ending_at(end).unwrap_or(Extent {
                offset: end,
                bytes: 0,
            });
            let missing = wanted.saturating_sub(tail.bytes);
            let scraps = free.take_scraps(missing, end);
            if scraps.is_some() {
                free.take(tail);
            }
            free.refill_reserve(target);
            let Some(scraps) = scraps else {
                return Ok(None);
            };
            (tail, missing, scraps)
        };
        let done = self.swap(&scraps, tail.end(), missing);
        let exchanged = matches!(done, Ok(true));
        // What they had is theirs again where that came to nothing, unless somebody else was
        // faster.
        let is_back = |scrap: &Extent| {
            let is_back = self.file.allocate(scrap.offset, scrap.bytes).is_ok();
            if !is_back {
                self.let_go(*scrap);
            }
            is_back
        };
        let is_ready: Vec<bool> = match exchanged {
            true => vec![false; scraps.len()],
            false => scraps.iter().map(is_back).collect(),
        };
        let mut state = self.state.lock();
        let target = state.reserve_target;
        let free = &mut state.free;
        for (scrap, ready) in scraps.into_iter().zip(is_ready) {
            // What is not theirs again may be allocated in part.
            free.add(scrap, ready, !exchanged);
        }
        if exchanged {
            free.end += missing;
            self.file_bytes.store(free.end, Ordering::Release);
        } else if tail.bytes > 0 {
            free.add(tail, true, true);
        }
        free.refill_reserve(target);
        done.map(|exchanged| {
            exchanged.then_some(Extent {
                offset: tail.offset,
                bytes: wanted,
            })
        })
    }

    /// Asks for what may be allocated already, until there is enough to exchange. Nothing is asked
    /// for while the reserve is not whole: its own search comes first, and lets go of less.
    /// `resizing` is held.
    fn find_scraps(&self, wanted: u64, class: SpaceClass) -> Result<()> {
        let enough = wanted + MAP_BYTES;
        self.search(u64::MAX, |free, target, _| {
            let found = match class {
                SpaceClass::Normal => free.ready.total(),
                SpaceClass::Reserve => free.ready.total() + free.reserve.total(),
            };
            if free.reserve.total() < target || found >= enough {
                return None;
            }
            let bytes = enough.max(PIECE_BYTES_MIN);
            let piece = free.unasked.fit(bytes, None);
            let piece = piece.or_else(|| free.unasked.largest());
            piece.inspect(|piece| free.take(*piece))
        })
    }

    /// Gives the file system scraps for so many bytes behind the file's end; whether it took them
    /// for that. A file system that does not take them leaves the disk as full as it is.
    fn swap(&self, scraps: &[Extent], end: u64, bytes: u64) -> Result<bool> {
        for scrap in scraps {
            if let Err(error) = self.file.punch_hole(scrap.offset, scrap.bytes) {
                tracing::debug!(%error, "short free runs stay short");
                return Ok(false);
            }
        }
        match self.file.allocate(end, bytes) {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            allocated => allocated.map(|()| true),
        }
    }
}
