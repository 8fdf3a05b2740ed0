//! An outline says no to most hashes that a filter says no to, for a tenth of what it costs to ask the filter: it is one bit for each of
//! equal parts of what a partition answers for, set where a fingerprint lies. About twelve parts a key are empty but one, so of
//! the hashes that are not there one in twelve has to be looked for in the partition itself. Outlines are made from partitions, in memory only.

use terrapin_base::Result;
use terrapin_base::sync::Arc;

use crate::cell::{self, OUTLINE_WORDS};
use crate::{cells_of, wrong_size};

/// The outline of one partition. It never denies a hash that the partition does not deny. Clones share their memory.
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
    /// The outline of a partition. Linear in its bytes. Whatever those are, this does not panic.
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

    /// Whether this hash, one of those that lead to the partition, may be there. Looks at one word.
    #[inline]
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        // As [`place_in_partition`], with a cell's bits for a cell: what of the product is the cell there, and the first bits of the
        // fraction, is the bit's number here.
        let bits = self.0.len() * 64;
        let bit = ((u128::from(hash.rotate_left(32)) * bits as u128) >> 64) as usize;
        let word = self.0.get(bit / 64);
        word.is_none_or(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Bytes of memory of the outline of a partition of so many bytes.
    #[must_use]
    pub fn memory_bytes(partition_bytes: usize) -> usize {
        partition_bytes + 2 * size_of::<usize>()
    }
}
