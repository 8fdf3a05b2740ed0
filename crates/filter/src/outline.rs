//! Outlines of partitions, which deny most absent hashes for a tenth of a filter's cost.
//!
//! An outline is a Bloom filter with two bits per fingerprint. Each cell has its own outline of its
//! own size. Both bits follow from the fingerprint's bits, so a partition is enough to make its
//! outline in memory. Of the absent hashes, one in 25 still needs a look into the partition.
//!
//! An outline that is made together with its partition uses the hashes themselves. That costs a
//! third, and leaves one in 40.

use terrapin_base::Result;
use terrapin_base::sync::Arc;

use crate::cell::{self, OUTLINE_WORDS};
use crate::{cell_and_fraction, cells_of, wrong_size};

/// The outline of one partition. It never denies a hash that the partition contains. Clones share
/// their memory.
///
/// ```
/// use terrapin_filter::{BITS_PER_KEY, FilterBuilder, Outline};
/// let mut builder = FilterBuilder::new();
/// builder.add(42);
/// let outline = Outline::of(&builder.finish(BITS_PER_KEY, 512))?;
/// assert!(outline.may_contain(42) && !outline.may_contain(1 << 31));
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Outline(Arc<[u64]>);

impl Outline {
    /// Splits words into outlines of `cells` cells each.
    pub(crate) fn cut(words: &[u64], cells: usize) -> Vec<Outline> {
        let each = words.chunks(cells * OUTLINE_WORDS);
        each.map(|words| Outline(words.into())).collect()
    }

    /// Makes the outline of a partition. It denies no hash that the partition affirms. Takes time
    /// in proportion to the partition's bytes. Never panics, whatever these bytes are.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if no partition has this length.
    pub fn of(partition: &[u8]) -> Result<Outline> {
        let Some(cells) = cells_of(partition) else {
            return Err(wrong_size(partition.len()));
        };
        let mut words = vec![0; cells * OUTLINE_WORDS];
        for (index, words) in words.as_chunks_mut().0.iter_mut().enumerate() {
            cell::outline(partition, index, words);
        }
        Ok(Outline(words.into()))
    }

    /// Whether the partition may contain this hash, which must lead to the partition. Reads one
    /// word of memory, or two on one pair of cache lines.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let words = &self.0[..];
        // Treats each bit as a cell: the answering cell is the first bit, and the rest of the
        // fraction chooses the second bit.
        let (first, rest) = cell_and_fraction(hash, words.len() * u64::BITS as usize);
        let is_set = |bit: usize| {
            let word = words.get(bit / 64);
            word.is_none_or(|word| word >> (bit % 64) & 1 == 1)
        };
        is_set(first) && is_set(cell::second_outline_bit(first, rest))
    }

    /// Memory in bytes: the length of the partition and a little more.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        Self::memory_bytes_of(size_of_val(&self.0[..]))
    }

    /// Memory in bytes of the outline of a partition of `partition_bytes`.
    #[must_use]
    pub fn memory_bytes_of(partition_bytes: usize) -> usize {
        partition_bytes + 2 * size_of::<usize>()
    }
}
