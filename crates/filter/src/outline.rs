//! An outline says no to most hashes that a filter says no to, for a tenth of what it costs to ask
//! the filter. It is a Bloom filter of two bits a fingerprint, for each cell its own, as large as
//! the cell. Both bits follow from what the cell's fingerprints tell of their hashes, so outlines
//! can be made from partitions, in memory only. Of the hashes that are not there, one in
//! twenty-five has to be looked for in the partition itself. One that is made with its partition
//! knows the hashes themselves, costs a third, and leaves one in forty.

use terrapin_base::Result;
use terrapin_base::sync::Arc;

use crate::cell::{self, OUTLINE_WORDS};
use crate::{cell_and_fraction, cells_of, wrong_size};

/// The outline of one partition. It never denies a hash that was added there. Clones share their
/// memory.
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
    /// Outlines of so many cells each, all in one piece.
    pub(crate) fn cut(words: &[u64], cells: usize) -> Vec<Outline> {
        let each = words.chunks(cells * OUTLINE_WORDS);
        each.map(|words| Outline(words.into())).collect()
    }

    /// The outline of a partition: it denies nothing that the partition does not deny. Linear in
    /// its bytes. Whatever those are, this does not panic.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when no partition has so many bytes.
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

    /// Whether this hash, one of those that lead to the partition, may be there. Looks at one word
    /// of memory, or at two of one pair of cache lines.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let words = &self.0[..];
        // As many cells of one bit each: the one that answers is the first bit, and what is left of
        // the fraction tells the second.
        let (first, rest) = cell_and_fraction(hash, words.len() * u64::BITS as usize);
        let is_set = |bit: usize| {
            let word = words.get(bit / 64);
            word.is_none_or(|word| word >> (bit % 64) & 1 == 1)
        };
        is_set(first) && is_set(cell::second_outline_bit(first, rest))
    }

    /// Bytes of memory that it takes: as many as its partition, and a little.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        Self::memory_bytes_of(size_of_val(&self.0[..]))
    }

    /// Bytes of memory of the outline of a partition of so many bytes.
    #[must_use]
    pub fn memory_bytes_of(partition_bytes: usize) -> usize {
        partition_bytes + 2 * size_of::<usize>()
    }
}
