//! Slabs: memory of our own for values that are cached in great numbers, and that goes back to the
//! kernel whole.
//!
//! A general allocator cannot give a page of memory back as long as anything on it lives, so a
//! cache that evicts at random places shrinks in name only. Here values are laid one behind the
//! other into a [`Slab`], each as a [`Piece`] that is owned as a box is. When the last piece of a
//! slab is gone, its memory is used for the next slab or given back. Nothing is laid into a slab
//! twice: as long as a reader keeps one piece, all of the slab stays as it is.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use terrapin_base::sync::{Arc, Mutex};
use terrapin_base::{Charge, MEMORY_ALIGNMENT};

use crate::long::LongBox;
use crate::region::Region;

/// Pieces start on multiples of this.
const PIECE_ALIGNMENT: usize = 16;
/// Slabs that free memory is kept of for the next ones, charged to no budget: faulting memory in
/// costs about as much as filling it.
const WARM_MAX: usize = 16;
/// Slabs in a reserved range of addresses. For Miri addresses are memory.
const SLABS_IN_REGION: usize = if cfg!(miri) { 4 } else { 1024 };

/// Where slabs come from, all of one length.
///
/// ```
/// use terrapin_disk::{Filler, Slabs};
/// let slabs = Slabs::new(64 << 10);
/// let mut filler = Filler::default();
/// assert!(filler.take(3).is_none(), "no slab yet");
/// filler.open(slabs.take(None));
/// let mut piece = filler.take(3).expect("an empty slab has room");
/// piece.copy_from_slice(b"abc");
/// assert_eq!(&*piece, b"abc");
/// ```
#[derive(Debug)]
pub struct Slabs {
    slab_bytes: usize,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// With memory.
    warm: Vec<SlabMemory>,
    /// Without.
    cold: Vec<SlabMemory>,
}

/// The memory of a slab, owned.
struct SlabMemory {
    region: Arc<Region>,
    at: usize,
}

impl std::fmt::Debug for SlabMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlabMemory({} of {})", self.at, self.region.bytes())
    }
}

impl Slabs {
    /// Slabs of so many bytes, rounded up to whole units of alignment, at least one. Takes no
    /// memory yet.
    #[must_use]
    pub fn new(slab_bytes: usize) -> Arc<Self> {
        Arc::new(Slabs {
            slab_bytes: slab_bytes.max(1).next_multiple_of(MEMORY_ALIGNMENT),
            free: Mutex::default(),
        })
    }

    /// Bytes of a slab.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// An empty slab; the charge lasts as long as its memory is in use. Aborts, as any allocation
    /// does, when the system refuses.
    #[must_use]
    pub fn take(self: &Arc<Self>, charge: Option<Charge>) -> Slab {
        let memory = {
            let mut free = self.free.lock();
            if free.warm.is_empty() && free.cold.is_empty() {
                let region = Arc::new(Region::reserved(self.slab_bytes * SLABS_IN_REGION));
                let memory = (0..SLABS_IN_REGION).rev().map(|i| SlabMemory {
                    region: region.clone(),
                    at: i * self.slab_bytes,
                });
                free.cold.extend(memory);
            }
            free.warm.pop().or_else(|| free.cold.pop())
        };
        Slab {
            memory,
            slabs: self.clone(),
            _charge: charge,
        }
    }

    fn put(&self, memory: SlabMemory) {
        {
            let mut free = self.free.lock();
            if free.warm.len() < WARM_MAX {
                free.warm.push(memory);
                return;
            }
        }
        // Without the lock: this goes to the kernel.
        memory
            .region
            .release(memory.at..memory.at + self.slab_bytes);
        self.free.lock().cold.push(memory);
    }
}

/// A slab. Who holds one keeps its memory, and may ask [`Piece::is_of`]; only a [`Filler`] lays
/// pieces into it.
#[derive(Debug)]
pub struct Slab {
    /// None only while it is dropped.
    memory: Option<SlabMemory>,
    slabs: Arc<Slabs>,
    _charge: Option<Charge>,
}

impl Slab {
    /// The bytes from `from` to `to`, unless they go beyond it.
    fn bytes(&self, from: usize, to: usize) -> Option<NonNull<u8>> {
        let memory = self.memory.as_ref()?;
        if from > to || to > self.slabs.slab_bytes {
            return None;
        }
        // SAFETY: a place's region has a whole slab from `at` on, and `from` is no more than a
        // slab.
        Some(unsafe { memory.region.start().add(memory.at + from) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.slabs.put(memory);
        }
    }
}

/// Lays pieces into one slab after the other.
#[derive(Debug, Default)]
pub struct Filler {
    slab: Option<Arc<Slab>>,
    used: usize,
}

impl Filler {
    /// The next piece, filled with whatever was there; none when the slab has no room for it, or
    /// there is none.
    pub fn take(&mut self, bytes: usize) -> Option<Piece> {
        let (start, end) = self.room(bytes)?;
        self.used = end.next_multiple_of(PIECE_ALIGNMENT);
        Some(Piece {
            slab: self.slab.clone(),
            start,
            bytes,
        })
    }

    /// Whether [`Filler::take`] of so many bytes will find room.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room(bytes).is_some()
    }

    /// Where so many bytes more start in memory, and end in the slab.
    fn room(&self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        let end = self.used.checked_add(bytes)?;
        let start = self.slab.as_ref()?.bytes(self.used, end)?;
        Some((start, end))
    }

    /// Goes on with an empty slab, which is returned for the caller's books.
    pub fn open(&mut self, slab: Slab) -> Arc<Slab> {
        // Whoever has a slab by value has one that no filler fills and no piece lies in.
        let slab = Arc::new(slab);
        self.slab = Some(slab.clone());
        self.used = 0;
        slab
    }

    /// Lets go of the slab.
    pub fn close(&mut self) {
        self.slab = None;
    }
}

/// Bytes in a slab, or by themselves in an allocation of their own; owned as a box is.
pub struct Piece {
    /// None: from a [`LongBox`].
    slab: Option<Arc<Slab>>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a piece owns its bytes alone, as a box does: a filler never gives bytes twice, and the
// slab outlives its pieces.
unsafe impl Send for Piece {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Piece {}

impl Piece {
    /// So many bytes in an allocation of their own, which begin with these; zeros behind, or what
    /// does not fit cut off.
    #[must_use]
    pub fn alone(bytes: usize, begin: &[u8]) -> Self {
        Piece {
            slab: None,
            start: LongBox::new(bytes, begin).into_start(),
            bytes,
        }
    }

    /// Whether it lies in a slab.
    #[must_use]
    pub fn is_in_slab(&self) -> bool {
        self.slab.is_some()
    }

    /// Whether it lies in that slab.
    #[must_use]
    pub fn is_of(&self, slab: &Arc<Slab>) -> bool {
        self.slab
            .as_ref()
            .is_some_and(|mine| Arc::ptr_eq(mine, slab))
    }
}

impl Deref for Piece {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: that many initialised bytes, which are ours alone, and shared with whoever
        // borrows them through us.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Piece {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.slab.is_none() {
            // SAFETY: it came from one of that length, and its owner goes.
            drop(unsafe { LongBox::from_start(self.start, self.bytes) });
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Piece({} bytes)", self.bytes)
    }
}

#[cfg(not(terrapin_shuttle))]
#[cfg(test)]
mod tests {
    use terrapin_base::{Budget, Purpose};

    use super::*;

    #[test]
    fn pieces_of_a_slab_are_disjoint_and_end_with_it() {
        let slabs = Slabs::new(8192);
        let mut filler = Filler::default();
        filler.open(slabs.take(None));
        let mut pieces = Vec::new();
        for length in (0..).map(|i| i % 700) {
            let Some(mut piece) = filler.take(length) else {
                break;
            };
            assert_eq!(piece.len(), length);
            piece.fill(pieces.len() as u8);
            pieces.push(piece);
        }
        assert!(pieces.len() > 20);
        for (i, piece) in pieces.iter().enumerate() {
            assert!(piece.iter().all(|&byte| byte == i as u8), "piece {i}");
        }
        assert!(filler.take(8193).is_none() && filler.take(usize::MAX).is_none());
        filler.open(slabs.take(None));
        assert_eq!(filler.take(8192).map(|piece| piece.len()), Some(8192));
        assert!(filler.take(1).is_none());
    }

    #[test]
    fn memory_is_used_again_only_after_the_last_piece() {
        let budget = Budget::new(1 << 20);
        let slabs = Slabs::new(4096);
        let mut filler = Filler::default();
        let slab = filler.open(slabs.take(Some(budget.charge(Purpose::Blocks, 4096))));
        let mut piece = filler.take(100).unwrap();
        piece.fill(7);
        assert!(piece.is_of(&slab) && piece.is_in_slab());
        filler.close();
        drop(slab);
        let others: Vec<Slab> = (0..2 * WARM_MAX).map(|_| slabs.take(None)).collect();
        let address = |slab: &Slab| slab.bytes(0, 0).unwrap();
        assert!(others.iter().all(|slab| address(slab) != piece.start));
        drop(others);
        assert!(piece.iter().all(|&byte| byte == 7));
        assert_eq!(budget.used(Purpose::Blocks), 4096, "a piece keeps the slab");
        let start = piece.start;
        drop(piece);
        assert_eq!(budget.used(Purpose::Blocks), 0);
        let again: Vec<Slab> = (0..2 * WARM_MAX + 1).map(|_| slabs.take(None)).collect();
        assert!(again.iter().any(|slab| address(slab) == start));
        // More slabs than a region has; all of them are different ones.
        let more: Vec<Slab> = (0..SLABS_IN_REGION).map(|_| slabs.take(None)).collect();
        let mut all: Vec<_> = again.iter().chain(&more).map(address).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), again.len() + more.len());
    }

    #[test]
    fn what_is_kept_warm_is_bounded_and_the_rest_is_given_back() {
        let slabs = Slabs::new(4096);
        let opened = || -> Vec<Filler> {
            let fillers = (0..WARM_MAX + 3).map(|_| Filler::default());
            let open = |mut filler: Filler| {
                filler.open(slabs.take(None));
                filler
            };
            fillers.map(open).collect()
        };
        for mut filler in opened() {
            filler.take(4096).unwrap().fill(1);
        }
        assert!(slabs.free.lock().warm.len() <= WARM_MAX);
        let mut all = opened();
        for filler in &mut all {
            filler.take(4096).unwrap().fill(1);
        }
        drop(all);
        assert_eq!(slabs.free.lock().warm.len(), WARM_MAX);
        let mut all = opened();
        let is_zero = |filler: &mut Filler| filler.take(4096).unwrap().iter().all(|&b| b == 0);
        assert_eq!(all.iter_mut().map(is_zero).filter(|&zero| zero).count(), 3);
    }

    #[test]
    fn a_piece_alone_is_a_box() {
        let mut piece = Piece::alone(5, &[7, 8]);
        piece[4] = 1;
        assert_eq!(*piece, [7, 8, 0, 0, 1]);
        assert!(!piece.is_in_slab());
        assert_eq!(*Piece::alone(1, &[7, 8]), [7]);
        assert!(Piece::alone(0, &[]).is_empty());
    }
}
