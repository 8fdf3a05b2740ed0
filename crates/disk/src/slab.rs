//! Slabs: memory for many cached values, which goes back to the kernel a slab at a time.
//!
//! A general allocator cannot return a page of memory while any value on it lives. So a cache that
//! evicts at random keeps almost all of its memory. Here a [`Filler`] puts values one after the
//! other into a [`Slab`], each as a [`Piece`] that is owned like a box. When the last piece of a
//! slab is dropped, the slab's memory is reused or given back. Invariant: a filler never puts two
//! pieces at the same bytes of a slab.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use terrapin_base::sync::{Arc, Mutex};
use terrapin_base::{Charge, MEMORY_ALIGNMENT};

use crate::long::LongBox;
use crate::region::Region;

/// Alignment of pieces in bytes.
const PIECE_ALIGNMENT: usize = 16;
/// Most free slabs that keep their memory. No budget is charged for them. Faulting memory in costs
/// about as much as filling it.
const WARM_MAX: usize = 16;
/// Number of slabs in one reserved range of addresses. Under Miri, reserved addresses are memory.
const SLABS_IN_REGION: usize = if cfg!(miri) { 4 } else { 1024 };

/// The source of slabs, which all have one length.
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
    /// Free slabs that have memory.
    warm: Vec<SlabMemory>,
    /// Free slabs without memory.
    cold: Vec<SlabMemory>,
}

/// The owned memory of one slab.
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
    /// A source of slabs of `slab_bytes` each, rounded up to the memory alignment. Takes no memory
    /// yet.
    #[must_use]
    pub fn new(slab_bytes: usize) -> Arc<Self> {
        Arc::new(Slabs {
            slab_bytes: slab_bytes.max(1).next_multiple_of(MEMORY_ALIGNMENT),
            free: Mutex::default(),
        })
    }

    /// Length of a slab in bytes.
    #[must_use]
    pub fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// An empty slab. The charge lasts as long as the slab's memory is in use. Aborts, as any
    /// allocation does, if the system refuses memory.
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
        // A system call: not under the lock.
        memory
            .region
            .release(memory.at..memory.at + self.slab_bytes);
        self.free.lock().cold.push(memory);
    }
}

/// A slab. Holding it keeps its memory and allows [`Piece::is_of`]. Only a [`Filler`] puts pieces
/// into it.
#[derive(Debug)]
pub struct Slab {
    /// `None` only during the drop.
    memory: Option<SlabMemory>,
    slabs: Arc<Slabs>,
    _charge: Option<Charge>,
}

impl Slab {
    /// The bytes from `from` to `to`; `None` if the slab ends before.
    fn bytes(&self, from: usize, to: usize) -> Option<NonNull<u8>> {
        let memory = self.memory.as_ref()?;
        if from > to || to > self.slabs.slab_bytes {
            return None;
        }
        // SAFETY: the region has a whole slab from `at` on, and `from` is at most the slab's
        // length.
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

/// Puts pieces into one slab after the other.
#[derive(Debug, Default)]
pub struct Filler {
    slab: Option<Arc<Slab>>,
    used: usize,
}

impl Filler {
    /// The next piece of `bytes`, with unspecified content. Returns `None` if there is no slab, or
    /// too little room in it.
    pub fn take(&mut self, bytes: usize) -> Option<Piece> {
        let (start, end) = self.room(bytes)?;
        self.used = end.next_multiple_of(PIECE_ALIGNMENT);
        Some(Piece {
            slab: self.slab.clone(),
            start,
            bytes,
        })
    }

    /// Whether [`Filler::take`] of `bytes` will succeed.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.room(bytes).is_some()
    }

    /// The next piece's start in memory, and its end as an offset in the slab.
    fn room(&self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        let end = self.used.checked_add(bytes)?;
        let start = self.slab.as_ref()?.bytes(self.used, end)?;
        Some((start, end))
    }

    /// Continues with an empty slab. Returns it for the caller's records.
    pub fn open(&mut self, slab: Slab) -> Arc<Slab> {
        // A `Slab` that is owned by value is in no filler and has no pieces.
        let slab = Arc::new(slab);
        self.slab = Some(slab.clone());
        self.used = 0;
        slab
    }

    /// Releases the current slab.
    pub fn close(&mut self) {
        self.slab = None;
    }
}

/// Bytes in a slab or in an allocation of their own. A piece owns its bytes like a box.
pub struct Piece {
    /// `None` if the bytes came from a [`LongBox`].
    slab: Option<Arc<Slab>>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a piece is the only owner of its bytes, like a box. A filler never gives out bytes twice,
// and the slab outlives its pieces.
unsafe impl Send for Piece {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Piece {}

impl Piece {
    /// An allocation of its own of `bytes`, which starts with a copy of `begin`. Zeros follow; a
    /// longer `begin` is truncated.
    #[must_use]
    pub fn alone(bytes: usize, begin: &[u8]) -> Self {
        Piece {
            slab: None,
            start: LongBox::new(bytes, begin).into_start(),
            bytes,
        }
    }

    /// Whether the piece is in a slab.
    #[must_use]
    pub fn is_in_slab(&self) -> bool {
        self.slab.is_some()
    }

    /// Whether the piece is in this slab.
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
        // SAFETY: the piece owns these bytes, which are initialised. The result borrows the piece.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Piece {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the piece owns these initialised bytes, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.slab.is_none() {
            // SAFETY: the bytes came from a `LongBox` of that length, and their only owner is
            // dropped.
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
    fn a_slab_is_reused_only_after_its_last_piece() {
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
        // More slabs than a region has; all of them have different addresses.
        let more: Vec<Slab> = (0..SLABS_IN_REGION).map(|_| slabs.take(None)).collect();
        let mut all: Vec<_> = again.iter().chain(&more).map(address).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), again.len() + more.len());
    }

    #[test]
    fn few_free_slabs_keep_memory_and_the_others_give_it_back() {
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
