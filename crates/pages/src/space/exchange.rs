//! Exchanges short free runs for a long one on a full disk. The short runs go back to the file
//! system, and the file grows by as many bytes at its end. The file system can map any of its
//! blocks anywhere in a file, so no page moves. The file becomes longer, and the disk no fuller.
//! Without this, the free space of a full disk ends as runs too short for a leaf, and deletes free
//! nothing any more (D10).
//!
//! After an open it is unknown which runs the file system has allocated. The exchange asks for as
//! many as it needs.

use terrapin_base::sync::Ordering;
use terrapin_base::{EXTENT_ALIGNMENT, ErrorKind, Result};

use super::reserve::PIECE_BYTES_MIN;
use super::{Free, Space, SpaceClass};
use crate::page::Extent;

/// The file system may need blocks for its map of the file.
const MAP_BYTES: u64 = 2 * EXTENT_ALIGNMENT;

impl Free {
    /// Takes the shortest ready runs that do not end at `except_end`. Together they have `bytes`
    /// and, if possible, what a map may need. Takes nothing if they have fewer than `bytes`.
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
    /// A run of `wanted` bytes in exchange for short ones. For [`SpaceClass::Reserve`] these may be
    /// the reserve's. Costs one call of the file system for each short run and one for the new end.
    /// `None` if the short runs do not suffice, or the file system does not do it.
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
            // The search may have found a run that is long enough.
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
        // After a failed exchange, the scraps are allocated again, unless another process took the
        // space.
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
            // A scrap that could not be allocated again may be allocated in part.
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

    /// Asks for free space that may be allocated already, until there is enough to exchange. Asks
    /// for nothing while the reserve is not full, because the reserve's own search comes first and
    /// punches less. The caller holds `resizing`.
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

    /// Punches scraps, then allocates `bytes` behind the file's end. Returns whether both worked. A
    /// file system that does not reuse the blocks leaves the disk as full as before.
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
