//! Giving free space back to the file system, a piece at a time: the file's end is cut off, holes
//! are punched elsewhere.
//!
//! Kept is a slack, since the next checkpoint wants space too: what the last ones wrote, within
//! bounds. At rest only the reserve is kept. Reclaiming begins a growth step above the slack, so
//! that it never takes back what the file just grew by, and ends at it. Only space that no durable
//! superblock and no pin reaches is free (D5), so a crash at any point loses nothing.
//!
//! Nobody reads the file while a piece is given back, and where the file system tells the device of
//! every hole at once, that takes milliseconds however small the hole is. So pieces are as large as
//! they can be, within a bound, scraps are left alone in the midst of work, and who is in no hurry
//! rests between pieces.

use terrapin_base::sync::Ordering;
use terrapin_base::{EXTENT_ALIGNMENT, Result, mutant};

use super::{Space, State, growth_bytes};
use crate::page::Extent;
use crate::superblock::PAGES_START;

/// Most bytes that one step gives back.
const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Smaller runs are not given back in the midst of work.
const SCRAP_BYTES: u64 = 64 << 10;

/// What a step found to do.
enum Piece {
    /// Cut the file there; what lies behind is `Extent`.
    Cut(Extent),
    Punch(Extent),
}

/// What a step came to.
#[derive(Default)]
pub(crate) struct Reclaimed {
    /// Bytes that the disk may have got back.
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

    /// Whether any of the excess is worth giving back: it may lie in scraps, or in the reserve.
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

    /// The next piece to give back, taken out of the free space.
    fn next_piece(&mut self) -> Option<Piece> {
        if !self.update_reclaiming() {
            return None;
        }
        self.lower_reserve();
        let excess = self.excess();
        if let Some(tail) = self.free.all.ending_at(self.free.end) {
            // Behind the last run that occupies anything, cutting is free; of that run, only the
            // excess goes.
            let last = self.free.occupying.within(tail).next();
            let cut = match last {
                Some(run) if run.end() == tail.end() => run.bytes.min(excess).min(PIECE_BYTES_MAX),
                Some(run) => tail.end() - run.end(),
                None => tail.bytes,
            };
            if cut > 0 {
                let piece = Extent {
                    offset: tail.end() - cut,
                    bytes: cut,
                };
                self.free.take(piece);
                self.free.end = piece.offset;
                debug_assert!(self.free.end >= PAGES_START);
                return Some(Piece::Cut(piece));
            }
        }
        let run = self.free.occupying.largest()?;
        let bytes = run.bytes.min(excess).min(PIECE_BYTES_MAX);
        if bytes < self.piece_bytes_min() {
            self.reclaiming = false; // the excess is all in the reserve, or not worth it
            return None;
        }
        let piece = Extent {
            offset: run.end() - bytes,
            bytes,
        };
        self.free.take(piece);
        Some(Piece::Punch(piece))
    }

    /// Moves the reserve's highest run down, if ready space below can take its place, so that it
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
    /// Whether a step would find something to do.
    pub(crate) fn reclaim_needed(&self) -> bool {
        let mut state = self.state.lock();
        state.pages.loosened() || state.update_reclaiming()
    }

    /// Makes the next steps go down to the reserve, however little lies above it.
    pub(crate) fn begin_reclaim(&self) {
        let mut state = self.state.lock();
        state.sweep();
        state.at_rest = true;
        state.reclaiming = state.excess() > 0;
        drop(state);
        self.signal.notify();
    }

    /// One piece: frees what pins let go, then gives at most one range back.
    pub(crate) fn reclaim_step(&self) -> Result<Reclaimed> {
        let _resizing = self.resizing.lock();
        let piece = {
            let mut state = self.state.lock();
            state.sweep();
            let piece = state.next_piece();
            if let Some(Piece::Cut(extent)) = &piece {
                self.file_bytes.store(extent.offset, Ordering::Release);
            }
            piece
        };
        let (bytes, done) = match piece {
            None => (0, Ok(())),
            Some(Piece::Cut(extent)) => (extent.bytes, self.cut(extent)),
            Some(Piece::Punch(extent)) => (extent.bytes, self.punch(extent)),
        };
        done?;
        self.state.lock().refusal = None;
        Ok(Reclaimed {
            bytes,
            more: self.reclaim_needed(),
        })
    }

    fn cut(&self, extent: Extent) -> Result<()> {
        let done = self.file.set_bytes(extent.offset);
        if done.is_err() {
            let mut state = self.state.lock();
            state.free.end = extent.end();
            self.file_bytes.store(extent.end(), Ordering::Release);
            state.free.add(extent, false, true);
        }
        done
    }

    fn punch(&self, extent: Extent) -> Result<()> {
        let bytes =
            extent.bytes + EXTENT_ALIGNMENT * u64::from(mutant::active("hole-one-extent-too-far"));
        let done = self.file.punch_hole(extent.offset, bytes);
        self.state.lock().free.add(extent, false, done.is_err());
        done
    }
}
