//! A large array of atomic words, for caches that are read without locks.
//!
//! The array reserves address space at once. Stores take memory as they need it. Pieces of it go
//! back to the kernel while readers may still load from them: they read zeros. The array can grow
//! within its address space while threads read it.

use std::ops::Range;

use terrapin_base::sync::AtomicU64;
#[cfg(not(terrapin_shuttle))]
use terrapin_base::sync::{AtomicUsize, Ordering};

#[cfg(not(terrapin_shuttle))]
use crate::region::Reach;

/// The array. A word is zero until it is stored to, and after its release.
///
/// ```
/// use terrapin_base::sync::Ordering::Relaxed;
/// let words = terrapin_disk::Words::reserve(1 << 20, 1 << 30);
/// words.all()[5].store(7, Relaxed);
/// assert!(words.grow(2 << 20));
/// assert_eq!((words.all().len(), words.all()[5].load(Relaxed)), (1 << 18, 7));
/// words.release(0..512);
/// assert_eq!(words.all()[5].load(Relaxed), 0);
/// ```
#[cfg(not(terrapin_shuttle))]
pub struct Words {
    reach: Reach,
    /// Number of words that are memory.
    count: AtomicUsize,
}

/// The array in builds for the model checker. Its words are the checker's, and it does not grow.
#[cfg(terrapin_shuttle)]
pub struct Words(Box<[AtomicU64]>);

impl Words {
    /// Words of a page of memory, the unit of [`Words::release`].
    pub const IN_PAGE: usize = 512;

    /// An array of `bytes` with address space for `bytes_max`, both rounded up to pages.
    ///
    /// The address space may be smaller if the system refuses. If the system refuses even `bytes`,
    /// the array is empty and cannot grow.
    #[must_use]
    #[cfg(not(terrapin_shuttle))]
    pub fn reserve(bytes: usize, bytes_max: usize) -> Self {
        let reach = Reach::new(bytes, bytes_max);
        let count = bytes.next_multiple_of(Self::IN_PAGE * 8) / 8;
        Words {
            count: AtomicUsize::new(count.min(reach.bytes() / 8)),
            reach,
        }
    }

    /// An array of `bytes`, for the model checker.
    #[must_use]
    #[cfg(terrapin_shuttle)]
    pub fn reserve(bytes: usize, _bytes_max: usize) -> Self {
        Words((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    /// The largest size in bytes that [`Words::grow`] can reach.
    #[must_use]
    #[cfg(not(terrapin_shuttle))]
    pub fn bytes_max(&self) -> usize {
        self.reach.bytes()
    }

    /// The size in bytes.
    #[must_use]
    #[cfg(terrapin_shuttle)]
    pub fn bytes_max(&self) -> usize {
        self.0.len() * 8
    }

    /// Makes the array at least `bytes` long, rounded up to pages. Returns `false` beyond its
    /// address space, or if the system refuses the memory.
    #[cfg(not(terrapin_shuttle))]
    pub fn grow(&self, bytes: usize) -> bool {
        let Some(bytes) = bytes
            .checked_next_multiple_of(Self::IN_PAGE * 8)
            .filter(|&bytes| bytes <= self.bytes_max())
        else {
            return false;
        };
        if bytes > self.all().len() * 8 {
            if !self.reach.open(bytes) {
                return false;
            }
            // Another thread may have made it longer meanwhile.
            self.count.fetch_max(bytes / 8, Ordering::AcqRel);
        }
        true
    }

    /// Whether the array has `bytes`: this build cannot grow it.
    #[cfg(terrapin_shuttle)]
    pub fn grow(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max()
    }

    /// All words.
    #[must_use]
    #[inline]
    #[cfg(not(terrapin_shuttle))]
    pub fn all(&self) -> &[AtomicU64] {
        let count = self.count.load(Ordering::Acquire);
        // SAFETY: these words became memory before they were counted, and they stay mapped as long
        // as `self` lives. They are zeroed, aligned to more than a word, and accessed only as
        // atomics, for which any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.reach.start().as_ptr().cast(), count) }
    }

    /// All words.
    #[must_use]
    #[cfg(terrapin_shuttle)]
    pub fn all(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Zeroes a range of words and gives its memory back. Panics unless both ends are multiples of
    /// [`Words::IN_PAGE`] within the array.
    pub fn release(&self, range: Range<usize>) {
        assert!(
            range.start.is_multiple_of(Self::IN_PAGE) && range.end.is_multiple_of(Self::IN_PAGE)
        );
        assert!(range.end <= self.all().len());
        #[cfg(not(terrapin_shuttle))]
        self.reach.release(range.start * 8..range.end * 8);
        #[cfg(terrapin_shuttle)]
        for word in &self.0[range] {
            word.store(0, terrapin_base::sync::Ordering::Relaxed);
        }
    }
}

#[cfg(not(terrapin_shuttle))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn released_words_are_zero_and_their_neighbours_stay() {
        let words = Words::reserve(64 << 10, 0);
        assert_eq!(words.all().len(), 8192);
        for (value, word) in words.all().iter().enumerate() {
            word.store(value as u64 + 1, Relaxed);
        }
        words.release(1024..2048);
        for (value, word) in words.all().iter().enumerate() {
            let released = (1024..2048).contains(&value);
            let expected = if released { 0 } else { value as u64 + 1 };
            assert_eq!(word.load(Relaxed), expected);
        }
        words.all()[1500].store(9, Relaxed);
        assert_eq!(words.all()[1500].load(Relaxed), 9);
    }

    #[test]
    fn reserved_addresses_cost_no_memory() {
        let words = Words::reserve(1 << 40, 0);
        words.all()[(1 << 37) - 1].store(1, Relaxed);
        assert_eq!(words.all()[(1 << 37) - 1].load(Relaxed), 1);
    }

    #[test]
    fn an_array_grows_in_place_up_to_its_address_space() {
        let words = Words::reserve(10_000, 1 << 20);
        assert_eq!(words.all().len(), 3 * Words::IN_PAGE);
        let start = words.all().as_ptr();
        words.all()[0].store(7, Relaxed);
        if words.bytes_max() < 1 << 20 {
            return; // the system refused the address space
        }
        for bytes in [100, 20_000, 1 << 20] {
            assert!(words.grow(bytes));
            let last = words.all().last().expect("a page at least");
            assert_eq!(last.swap(1, Relaxed), 0);
        }
        assert_eq!((words.all().len(), words.all().as_ptr()), (1 << 17, start));
        assert_eq!(words.all()[0].load(Relaxed), 7);
        assert!(!words.grow((1 << 20) + 1) && !words.grow(usize::MAX));
    }

    #[test]
    fn an_array_is_empty_if_the_system_refuses_it() {
        // More than any processor has addresses for.
        let words = Words::reserve(1 << 60, 1 << 61);
        assert!(words.all().is_empty() && words.bytes_max() == 0);
        assert!(!words.grow(1) && words.grow(0));
        words.release(0..0);
    }

    #[test]
    fn an_array_of_zero_bytes_is_empty() {
        for bytes_max in [0, 1 << 20] {
            let words = Words::reserve(0, bytes_max);
            assert!(words.all().is_empty() && words.all().as_ptr().is_aligned());
            words.release(0..0);
        }
    }
}
