//! Boxes of bytes: memory of long ones goes back to the kernel page by page.
//!
//! A general allocator keeps one arena for a few threads. Long values of many lengths and
//! lifetimes, freed by other threads, leave gaps in every arena. With keys of 50 to 65 KB a process
//! held three times the memory that it used. Here long values take whole pages, and any freed page
//! can be given back.
//!
//! - [`KEPT_PAGES_MAX`] freed pages keep their memory for the next box, since faulting memory in
//!   costs about as much as filling it. No budget is charged for them.
//! - Pages come from chunks of reserved addresses. So many values need few mappings: the kernel
//!   allows about 65,000.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use terrapin_base::MEMORY_ALIGNMENT;
use terrapin_base::sync::Mutex;

use crate::region::Region;

/// Shorter boxes use the C library's heap. Longer ones use whole pages, which wastes a quarter at
/// most.
const LONG_BYTES_MIN: usize = 16 << 10;
/// Longer boxes get a mapping each.
const CHUNKED_BYTES_MAX: usize = CHUNK_BYTES / 4;
const CHUNK_BYTES: usize = 4 << 20;
/// Pages of a chunk.
const PAGES: usize = CHUNK_BYTES / MEMORY_ALIGNMENT;
/// Most freed pages that keep their memory.
const KEPT_PAGES_MAX: usize = PAGES;
/// Whether long boxes use pages. Miri checks more in memory of the allocator, and the model checker
/// has its own locks.
const IS_OURS: bool = !cfg!(miri) && !cfg!(terrapin_shuttle);

/// Bytes with one owner, like a `Box<[u8]>` and of the same size. From 16 KiB on, a drop gives
/// their memory back to the kernel.
///
/// ```
/// use terrapin_disk::LongBox;
/// let key = LongBox::from(&[7; 50_000][..]);
/// assert_eq!((key.len(), key[49_999]), (50_000, 7));
/// ```
pub struct LongBox {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the box is the only owner of its bytes.
unsafe impl Send for LongBox {}
// SAFETY: a shared reference allows reads only.
unsafe impl Sync for LongBox {}

impl LongBox {
    /// A box of `bytes`, which starts with a copy of `begin`. Zeros follow; a longer `begin` is
    /// truncated. O(bytes).
    #[must_use]
    pub fn new(bytes: usize, begin: &[u8]) -> Self {
        let begin = &begin[..begin.len().min(bytes)];
        if !is_long(bytes) {
            let mut memory = Vec::with_capacity(bytes);
            memory.extend_from_slice(begin);
            memory.resize(bytes, 0);
            return Self::of_box(memory.into_boxed_slice());
        }
        let start = take(bytes);
        // SAFETY: `bytes` bytes from `start` on have this box as their only owner.
        unsafe {
            start.copy_from_nonoverlapping(NonNull::from(begin).cast(), begin.len());
            start.add(begin.len()).write_bytes(0, bytes - begin.len());
        }
        LongBox { start, bytes }
    }

    /// Gives up the box for its start. [`LongBox::from_start`] makes the box again.
    pub(crate) fn into_start(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start
    }

    /// The box that starts there.
    ///
    /// # Safety
    /// [`LongBox::into_start`] returned `start` for a box of `bytes`, and no other box was made
    /// from it.
    pub(crate) unsafe fn from_start(start: NonNull<u8>, bytes: usize) -> Self {
        LongBox { start, bytes }
    }

    fn of_box(short: Box<[u8]>) -> Self {
        let bytes = short.len();
        debug_assert!(!is_long(bytes));
        // SAFETY: a box's pointer is never null.
        let start = unsafe { NonNull::new_unchecked(Box::into_raw(short).cast()) };
        LongBox { start, bytes }
    }
}

fn is_long(bytes: usize) -> bool {
    IS_OURS && bytes >= LONG_BYTES_MIN
}

impl Drop for LongBox {
    fn drop(&mut self) {
        if is_long(self.bytes) {
            // SAFETY: `take` returned this memory for `bytes`, and its only owner is dropped.
            unsafe { put(self.start, self.bytes) };
            return;
        }
        let short = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.bytes);
        // SAFETY: a short box came from a boxed slice of that length.
        drop(unsafe { Box::from_raw(short) });
    }
}

impl Deref for LongBox {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the box owns these initialised bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for LongBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the box owns these initialised bytes, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl From<&[u8]> for LongBox {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes.len(), bytes)
    }
}

impl From<Vec<u8>> for LongBox {
    fn from(bytes: Vec<u8>) -> Self {
        match is_long(bytes.len()) {
            true => Self::from(&bytes[..]),
            false => Self::of_box(bytes.into_boxed_slice()),
        }
    }
}

impl Default for LongBox {
    fn default() -> Self {
        Self::of_box(Box::default())
    }
}

impl Clone for LongBox {
    fn clone(&self) -> Self {
        Self::from(&self[..])
    }
}

impl PartialEq for LongBox {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for LongBox {}

impl PartialOrd for LongBox {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LongBox {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self[..].cmp(&other[..])
    }
}

impl fmt::Debug for LongBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

/// Memory for `bytes`, with unspecified content. Aborts, as any allocation does, if the system
/// refuses it.
fn take(bytes: usize) -> NonNull<u8> {
    if bytes > CHUNKED_BYTES_MAX {
        return Region::reserved(bytes).into_start();
    }
    CHUNKS.lock().take(bytes.div_ceil(MEMORY_ALIGNMENT))
}

/// Gives memory back that [`take`] returned.
///
/// # Safety
/// `take` returned `start` for `bytes`, and nothing refers to the memory.
unsafe fn put(start: NonNull<u8>, bytes: usize) {
    if bytes > CHUNKED_BYTES_MAX {
        // SAFETY: the contract says that this is a region of that length.
        drop(unsafe { Region::from_start(start, bytes) });
        return;
    }
    let pages = bytes.div_ceil(MEMORY_ALIGNMENT);
    let keeps = CHUNKS.lock().keep(pages);
    if !keeps {
        // A system call: not under the lock. The pages still count as used, so no thread takes
        // them. SAFETY: the contract says that these are whole pages to which nothing refers.
        unsafe { Region::release_at(start, pages * MEMORY_ALIGNMENT) };
    }
    let _empty = CHUNKS.lock().put(start, pages, keeps);
}

static CHUNKS: Mutex<Chunks> = Mutex::new(Chunks {
    by_start: BTreeMap::new(),
    kept: 0,
});

/// Chunks of addresses, with their pages.
struct Chunks {
    by_start: BTreeMap<usize, Chunk>,
    /// Number of free pages that have memory.
    kept: usize,
}

struct Chunk {
    region: Region,
    /// For each page, a bit: whether it is used, and whether it has memory.
    used: Bits,
    warm: Bits,
    free: usize,
}

impl Chunks {
    fn take(&mut self, pages: usize) -> NonNull<u8> {
        for chunk in self.by_start.values_mut().filter(|c| c.free >= pages) {
            if let Some(at) = chunk.used.free_run(pages) {
                self.kept -= chunk.warm.count(at, pages);
                return chunk.take(at, pages);
            }
        }
        let region = Region::reserved(CHUNK_BYTES);
        let start = region.start().addr().get();
        let chunk = self.by_start.entry(start).or_insert(Chunk {
            region,
            used: Bits::default(),
            warm: Bits::default(),
            free: PAGES,
        });
        chunk.take(0, pages)
    }

    /// Whether pages that are about to be freed may keep their memory. If so, counts them.
    fn keep(&mut self, pages: usize) -> bool {
        let keeps = self.kept + pages <= KEPT_PAGES_MAX;
        self.kept += if keeps { pages } else { 0 };
        keeps
    }

    /// Frees pages. Returns their chunk if it has no used pages and no memory left.
    fn put(&mut self, start: NonNull<u8>, pages: usize, keeps: bool) -> Option<Chunk> {
        let address = start.addr().get();
        let (&from, chunk) = self.by_start.range_mut(..=address).next_back()?;
        let at = (address - from) / MEMORY_ALIGNMENT;
        debug_assert_eq!(chunk.used.count(at, pages), pages);
        chunk.used.set(at, pages, false);
        chunk.warm.set(at, pages, keeps);
        chunk.free += pages;
        let is_cold = chunk.free == PAGES && chunk.warm.count(0, PAGES) == 0;
        is_cold.then(|| self.by_start.remove(&from)).flatten()
    }
}

impl Chunk {
    fn take(&mut self, at: usize, pages: usize) -> NonNull<u8> {
        self.used.set(at, pages, true);
        self.warm.set(at, pages, true);
        self.free -= pages;
        // SAFETY: the page is within the chunk.
        unsafe { self.region.start().add(at * MEMORY_ALIGNMENT) }
    }
}

/// One bit for each page of a chunk.
#[derive(Clone, Copy)]
struct Bits([u64; PAGES / 64]);

impl Default for Bits {
    fn default() -> Self {
        Bits([0; PAGES / 64])
    }
}

impl Bits {
    /// The words that hold the bits of a run of pages, each with a mask of these bits.
    fn words(at: usize, pages: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = at + pages;
        (at / 64..end.div_ceil(64)).map(move |word| {
            let first = at.saturating_sub(word * 64);
            let last = (end - word * 64).min(64);
            let mask = (u64::MAX << first) & (u64::MAX >> (64 - last));
            (word, mask)
        })
    }

    fn set(&mut self, at: usize, pages: usize, on: bool) {
        for (word, mask) in Self::words(at, pages) {
            match on {
                true => self.0[word] |= mask,
                false => self.0[word] &= !mask,
            }
        }
    }

    fn count(&self, at: usize, pages: usize) -> usize {
        let ones = |(word, mask): (usize, u64)| (self.0[word] & mask).count_ones() as usize;
        Self::words(at, pages).map(ones).sum()
    }

    /// Start of the first run of `pages` free pages, if there is one.
    fn free_run(&self, pages: usize) -> Option<usize> {
        let mut at = 0;
        while at + pages <= PAGES {
            let end = self.next_set(at);
            if end - at >= pages {
                return Some(at);
            }
            at = self.next_clear(end);
        }
        None
    }

    /// The first set bit from `at` on, or the number of pages.
    fn next_set(&self, at: usize) -> usize {
        self.next(at, 0)
    }

    /// The first clear bit from `at` on, or the number of pages.
    fn next_clear(&self, at: usize) -> usize {
        self.next(at, u64::MAX)
    }

    fn next(&self, at: usize, flip: u64) -> usize {
        let mut word = at / 64;
        let mut mask = u64::MAX << (at % 64);
        while let Some(bits) = self.0.get(word) {
            let bits = (bits ^ flip) & mask;
            if bits != 0 {
                return word * 64 + bits.trailing_zeros() as usize;
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;

    #[test]
    fn boxes_keep_their_bytes_in_any_order_of_taking_and_freeing() {
        let mut random = Random::new(11);
        let mut held: Vec<(u8, LongBox)> = Vec::new();
        for step in 0..4000_u32 {
            if held.len() < 40 || !random.below(2).is_multiple_of(2) {
                let bytes = match random.below(8) {
                    0 => random.below(64),
                    1 => (1 << 20) + random.below(1 << 20),
                    _ => random.below(100_000),
                } as usize;
                let mark = step as u8;
                let mut new = LongBox::new(bytes, &[mark]);
                assert!(new.iter().skip(1).all(|&byte| byte == 0));
                new.fill(mark);
                held.push((mark, new));
            } else {
                let at = random.below(held.len() as u64) as usize;
                let (mark, gone) = held.swap_remove(at);
                assert!(gone.iter().all(|&byte| byte == mark));
            }
            if held.len() > 80 {
                held.clear();
            }
        }
        for (mark, left) in &held {
            assert!(left.iter().all(|byte| byte == mark));
        }
    }

    #[test]
    fn runs_of_bits_are_found_counted_and_cleared_across_words() {
        let mut bits = Bits::default();
        for (at, pages) in [(0, 1), (3, 60), (64, 1), (130, 200), (1000, 24)] {
            bits.set(at, pages, true);
            assert_eq!(bits.count(at, pages), pages);
        }
        assert_eq!(bits.count(0, PAGES), 286);
        assert_eq!(bits.free_run(1), Some(1));
        assert_eq!(bits.free_run(3), Some(65));
        assert_eq!(bits.free_run(66), Some(330));
        assert_eq!(bits.free_run(670), Some(330));
        assert_eq!(bits.free_run(671), None);
        bits.set(3, 60, false);
        assert_eq!(bits.free_run(63), Some(1));
    }
}
