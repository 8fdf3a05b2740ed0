//! Address space of which pieces are in use: memory comes with a piece and goes back with it.
//!
//! In a large reserve memory comes by *frames* as long as a huge page, with the first piece in use there: what is read at random then
//! costs a miss of the translation cache less, which is as dear in a virtual machine as one of the data (decision 0012). A piece
//! that goes back breaks its frame's page up, and what comes there again comes in small pages, until all of the frame was free. So
//! the kernel is told not to join pages by itself: it would bring back what was given back.

use std::ops::Range;

use terrapin_base::sync::{AtomicU32, Ordering};

use crate::region::Region;

/// As long as a huge page of the usual processors.
const FRAME_BYTES: usize = 2 << 20;
/// A smaller reserve has no frames: the part of a frame that nothing uses yet would be too much beside it.
const FRAMED_FROM: usize = 128 << 20;

/// The address space.
pub(crate) struct Reserve {
    region: Region,
    /// How many pieces are in use in each frame; empty for a small reserve.
    frames: Box<[AtomicU32]>,
}

impl Reserve {
    /// So many bytes, rounded up to whole units of alignment; zeros.
    pub(crate) fn new(bytes: usize) -> Self {
        let framed = bytes >= FRAMED_FROM && !cfg!(miri);
        let frames = if framed {
            bytes.div_ceil(FRAME_BYTES)
        } else {
            0
        };
        Reserve {
            region: Region::reserved(bytes),
            frames: (0..frames).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The memory.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    fn frames_of(&self, piece: &Range<usize>) -> Range<usize> {
        let end = piece.end.div_ceil(FRAME_BYTES).min(self.frames.len());
        (piece.start / FRAME_BYTES).min(end)..end
    }

    /// A piece is in use from now on. With the first of a frame this takes as long as the kernel needs to zero a huge page.
    pub(crate) fn enter(&self, piece: &Range<usize>) {
        for frame in self.frames_of(piece) {
            if self.frames[frame].fetch_add(1, Ordering::Relaxed) == 0 {
                let start = frame * FRAME_BYTES;
                let end = self.region.bytes().min(start + FRAME_BYTES);
                self.region.fault_in(start..end);
            }
        }
    }

    /// A piece that was entered is not used any more, by anything but loads of atomics: gives its memory back, and leaves zeros.
    pub(crate) fn leave(&self, piece: Range<usize>) {
        let frames = self.frames_of(&piece);
        self.region.release(piece);
        for frame in frames {
            self.frames[frame].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(not(terrapin_shuttle))]
#[cfg(test)]
mod tests {
    use super::*;

    fn word(reserve: &Reserve, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= reserve.region().bytes());
        // SAFETY: inside of the region, aligned, and any bytes are such a word.
        unsafe {
            reserve
                .region()
                .start()
                .add(at)
                .cast::<AtomicU32>()
                .as_ref()
        }
    }

    #[test]
    fn pieces_come_and_go_in_any_order_and_keep_what_their_neighbours_hold() {
        let piece = 256 << 10;
        for bytes in [1 << 20, FRAMED_FROM + FRAME_BYTES / 2] {
            let reserve = Reserve::new(bytes);
            let count = 2 * FRAME_BYTES / piece;
            let pieces: Vec<_> = (0..count.min(bytes / piece))
                .map(|i| i * piece..(i + 1) * piece)
                .collect();
            for round in 0..3 {
                for (i, range) in pieces.iter().enumerate() {
                    reserve.enter(range);
                    word(&reserve, range.start).store(i as u32 + 1, Ordering::Relaxed);
                }
                let odd = pieces.iter().skip(1).step_by(2);
                for range in odd.clone() {
                    reserve.leave(range.clone());
                }
                for (i, range) in pieces.iter().enumerate() {
                    let there = word(&reserve, range.start).load(Ordering::Relaxed);
                    let kept = if i % 2 == 0 { i as u32 + 1 } else { 0 };
                    assert_eq!(there, kept, "piece {i} in round {round}");
                }
                for range in pieces.iter().step_by(2) {
                    reserve.leave(range.clone());
                }
                let left = |frame: &AtomicU32| frame.load(Ordering::Relaxed);
                assert_eq!(reserve.frames.iter().map(left).sum::<u32>(), 0);
            }
            // The last frame is cut short.
            let end = reserve.region().bytes();
            reserve.enter(&(end - 4096..end));
            word(&reserve, end - 4).store(7, Ordering::Relaxed);
            reserve.leave(end - 4096..end);
            assert_eq!(word(&reserve, end - 4).load(Ordering::Relaxed), 0);
        }
    }
}
