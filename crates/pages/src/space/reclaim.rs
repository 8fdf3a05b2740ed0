//! Returns free space to the file system, one piece at a time: truncates the file's end, and
//! punches holes elsewhere.
//!
//! A slack stays, because the next checkpoint needs space too: what recent checkpoints wrote,
//! within bounds. At rest only the reserve stays. Reclaiming begins a growth step above the slack
//! and ends at the slack, so it never takes back a recent growth. Only space that no durable
//! superblock and no pin reaches is free (D5), so a crash loses nothing.
//!
//! Parts of a live page go the same way, once no tree and no pin leads to them
//! ([`Space::punch_page`]). When such a page dies, its space is not known to be allocated.
//!
//! No thread reads the file while a piece is returned. Some file systems tell the device of every
//! hole at once. That takes milliseconds, however small the hole is. So pieces are as large as
//! possible within a bound. Scraps stay while the store is busy, and callers without hurry rest
//! between pieces.

use terrapin_base::sync::Ordering;
use terrapin_base::{EXTENT_ALIGNMENT, PageId, Result, mutant};

use super::{Space, State, growth_bytes};
use crate::page::Extent;
use crate::superblock::PAGES_START;

/// Most bytes that one step returns.
const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Smaller runs stay while the store is busy.
const SCRAP_BYTES: u64 = 64 << 10;

/// The piece that a step returns.
enum Piece {
    /// The end of the file, to truncate before this extent.
    Truncate(Extent),
    Punch(Extent),
}

/// The result of one step.
#[derive(Default)]
pub(crate) struct Reclaimed {
    /// Bytes that the step returned.
    pub(crate) bytes: u64,
    /// Whether there is more to do.
    pub(crate) more: bool,
}

impl State {
    fn update_reclaiming(&mut self) -> bool {
        let excess = self.excess();
        if excess == 0 {
            self.reclaiming = false;
        } else if excess >= (self.slack() / 4).max(growth_bytes(self.free.end)) {
            self.reclaiming = self.has_piece(excess);
        }
        self.reclaiming
    }

    /// Whether any of the excess can be returned. It may be in scraps or in the reserve.
    fn has_piece(&self, excess: u64) -> bool {
        let ends_free = self.free.all.ending_at(self.free.end).is_some();
        let largest = self.free.occupying.largest();
        ends_free || largest.is_some_and(|run| run.bytes.min(excess) >= self.piece_bytes_min())
    }

    fn piece_bytes_min(&self) -> u64 {
        if self.at_rest {
            EXTENT_ALIGNMENT
        } else {
            SCRAP_BYTES
        }
    }

    /// The next piece to return, taken out of the free space.
    fn next_piece(&mut self) -> Option<Piece> {
        if !self.update_reclaiming() {
            return None;
        }
        self.lower_reserve();
        let excess = self.excess();
        if let Some(tail) = self.free.all.ending_at(self.free.end) {
            // Behind the last occupying run, truncating the file costs nothing. Of that run, only
            // the excess goes.
            let last = self.free.occupying.within(tail).next();
            let tail_bytes = match last {
                Some(run) if run.end() == tail.end() => run.bytes.min(excess).min(PIECE_BYTES_MAX),
                Some(run) => tail.end() - run.end(),
                None => tail.bytes,
            };
            if tail_bytes > 0 {
                let piece = Extent {
                    offset: tail.end() - tail_bytes,
                    bytes: tail_bytes,
                };
                self.free.take(piece);
                self.free.end = piece.offset;
                debug_assert!(self.free.end >= PAGES_START);
                return Some(Piece::Truncate(piece));
            }
        }
        let run = self.free.occupying.largest()?;
        let bytes = run.bytes.min(excess).min(PIECE_BYTES_MAX);
        if bytes < self.piece_bytes_min() {
            self.reclaiming = false; // the excess is in the reserve or in scraps
            return None;
        }
        let piece = Extent {
            offset: run.end() - bytes,
            bytes,
        };
        self.free.take(piece);
        Some(Piece::Punch(piece))
    }

    /// Moves the reserve's highest run down into ready space, if a run there fits, so the reserve
    /// does not keep the file long.
    fn lower_reserve(&mut self) {
        let Some(high) = self.free.reserve.last() else {
            return;
        };
        if let Some(low) = self
            .free
            .ready
            .fit(high.bytes, None)
            .filter(|low| low.end() <= high.offset)
        {
            self.free.take(low);
            self.free.reserve.remove(high);
            self.free.reserve.insert(low);
            self.free.add(high, true, true);
        }
    }
}

impl Space {
    /// Whether a step has something to do.
    pub(crate) fn reclaim_needed(&self) -> bool {
        let mut state = self.state.lock();
        state.pages.loosened() || state.update_reclaiming()
    }

    /// Lets the next steps reclaim down to the reserve, however small the excess is.
    pub(crate) fn begin_reclaim(&self) {
        let mut state = self.state.lock();
        state.sweep();
        state.at_rest = true;
        state.reclaiming = state.excess() > 0;
        drop(state);
        self.signal.notify();
    }

    /// One step: frees the pages that pins no longer keep, then returns at most one extent.
    pub(crate) fn reclaim_step(&self) -> Result<Reclaimed> {
        let _resizing = self.resizing.lock();
        let piece = {
            let mut state = self.state.lock();
            state.sweep();
            let piece = state.next_piece();
            if let Some(Piece::Truncate(extent)) = &piece {
                self.file_bytes.store(extent.offset, Ordering::Release);
            }
            piece
        };
        let (bytes, done) = match piece {
            None => (0, Ok(())),
            Some(Piece::Truncate(extent)) => (extent.bytes, self.truncate(extent)),
            Some(Piece::Punch(extent)) => (extent.bytes, self.punch(extent)),
        };
        done?;
        self.state.lock().refusal = None;
        Ok(Reclaimed {
            bytes,
            more: self.reclaim_needed(),
        })
    }

    fn truncate(&self, extent: Extent) -> Result<()> {
        let done = self.file.set_bytes(extent.offset);
        if done.is_err() {
            let mut state = self.state.lock();
            state.free.end = extent.end();
            self.file_bytes.store(extent.end(), Ordering::Release);
            state.free.add(extent, false, true);
        }
        done
    }

    /// Returns parts of a live page, `holes` within its extent, ascending and of whole extents.
    /// Returns how many bytes of the page are holes now: none if readers may see them, or if the
    /// file system makes no holes. After a failure, no more holes are made in pages.
    ///
    /// The caller vouches that no tree of the newest generation reads these parts (D14).
    pub(crate) fn punch_page(&self, id: PageId, extent: Extent, holes: &[Extent]) -> u64 {
        if !self.state.lock().pages.begin_holes(id, extent) {
            return 0;
        }
        let mut punched = 0;
        for hole in holes {
            debug_assert!(hole.offset >= extent.offset && hole.end() <= extent.end());
            debug_assert!(hole.offset.is_multiple_of(EXTENT_ALIGNMENT));
            debug_assert!(hole.bytes.is_multiple_of(EXTENT_ALIGNMENT));
            let made = self.file.punch_hole(hole.offset, hole.bytes);
            if let Err(error) = &made {
                tracing::warn!(%error, "no more holes are made in pages: dead values are copied");
            }
            if !matches!(made, Ok(true)) {
                // Whoever frees space by holes goes another way from here on.
                self.makes_holes.store(false, Ordering::Relaxed);
                return 0;
            }
            punched += hole.bytes;
        }
        self.state.lock().pages.note_holes(id, punched);
        punched
    }

    fn punch(&self, extent: Extent) -> Result<()> {
        let bytes =
            extent.bytes + EXTENT_ALIGNMENT * u64::from(mutant::active("hole-one-extent-too-far"));
        let done = self.file.punch_hole(extent.offset, bytes).map(drop);
        self.state.lock().free.add(extent, false, done.is_err());
        done
    }
}
