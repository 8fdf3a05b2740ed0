//! A large array of atomic words for caches that are read without locks: address space is reserved at once, memory comes as
//! words are stored to, and goes back to the kernel in pieces while readers may still look at them (they see zeros).

use std::ops::Range;

use terrapin_base::sync::AtomicU64;

#[cfg(not(terrapin_shuttle))]
use crate::region::Region;

/// The array. What was never stored to, or released since, is zero.
///
/// ```
/// use terrapin_base::sync::Ordering::Relaxed;
/// let words = terrapin_disk::Words::reserve(1 << 20);
/// words.all()[5].store(7, Relaxed);
/// words.release(0..512);
/// assert_eq!(words.all()[5].load(Relaxed), 0);
/// ```
#[cfg(not(terrapin_shuttle))]
pub struct Words(Region);

/// As in other builds, but with the words of a checker of schedules, which are no plain memory.
#[cfg(terrapin_shuttle)]
pub struct Words(Box<[AtomicU64]>);

impl Words {
    /// Words in a page of memory: what [`Words::release`] counts in.
    pub const IN_PAGE: usize = 512;

    /// Reserves address space for `bytes`, rounded up. Aborts, as any allocation does, when the system refuses.
    #[must_use]
    #[cfg(not(terrapin_shuttle))]
    pub fn reserve(bytes: usize) -> Self {
        Words(Region::reserved(bytes))
    }

    /// As in other builds.
    #[must_use]
    #[cfg(terrapin_shuttle)]
    pub fn reserve(bytes: usize) -> Self {
        Words((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    /// All of them.
    #[must_use]
    #[inline]
    #[cfg(not(terrapin_shuttle))]
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the region is ours for as long as `self` lives, zeroed, aligned to more than a word, and is only ever looked at
        // as atomics, which any bytes are.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr().cast(), self.0.bytes() / 8) }
    }

    /// As in other builds.
    #[must_use]
    #[cfg(terrapin_shuttle)]
    pub fn all(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Zeroes a range and gives its memory back; both ends must be multiples of [`Words::IN_PAGE`]. Panics when they are not, or
    /// lie outside.
    pub fn release(&self, range: Range<usize>) {
        assert!(
            range.start.is_multiple_of(Self::IN_PAGE) && range.end.is_multiple_of(Self::IN_PAGE)
        );
        #[cfg(not(terrapin_shuttle))]
        self.0.release(range.start * 8..range.end * 8);
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
    fn released_words_are_zero_and_their_neighbours_are_kept() {
        let words = Words::reserve(64 << 10);
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
    fn reserving_much_costs_no_memory() {
        let words = Words::reserve(1 << 40);
        words.all()[(1 << 37) - 1].store(1, Relaxed);
        assert_eq!(words.all()[(1 << 37) - 1].load(Relaxed), 1);
    }
}
