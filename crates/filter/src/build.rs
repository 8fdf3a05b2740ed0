//! Hashes are collected in any order and laid out at once; memory is 8 bytes a hash, twice that while finishing.

use crate::{
    CELL_INDEX_BITS, CELLS, CHECKSUM_BYTES, PARTITION_BYTES, cell, cell_of, in_cell, in_partition,
    partition_of,
};

/// Collects hashes and lays out filters. It can be used again after [`FilterBuilder::finish`], and then keeps its memory.
///
/// ```
/// use terrapin_filter::{BITS_PER_KEY, FilterBuilder, PARTITION_BYTES, may_contain, partition_of};
/// let mut builder = FilterBuilder::new();
/// builder.add_all(&[0x1234_5678_9abc_def0, 42]);
/// let filter = builder.finish(BITS_PER_KEY);
/// let partitions = (filter.len() / PARTITION_BYTES) as u32;
/// let partition = partition_of(42, partitions) as usize * PARTITION_BYTES;
/// assert!(may_contain(&filter[partition..partition + PARTITION_BYTES], 42)?);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct FilterBuilder {
    hashes: Vec<u64>,
    sorted: Vec<u64>,
    ends: Vec<u32>,
}

impl FilterBuilder {
    /// A builder without hashes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a hash, of which all 64 bits should be good ([`terrapin_base::checksum::hash64`]). Order does not matter;
    /// a hash added twice takes the room of one but counts twice for the size.
    pub fn add(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// Adds many hashes.
    pub fn add_all(&mut self, hashes: &[u64]) {
        self.hashes.extend_from_slice(hashes);
    }

    /// Hashes added since the last [`FilterBuilder::finish`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Bytes of heap that the builder holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.hashes.capacity() + self.sorted.capacity()) * 8 + self.ends.capacity() * 4
    }

    /// Partitions of a filter for `keys` keys at `bits_per_key`: at least one, and enough that the
    /// average key gets no fewer bits.
    #[must_use]
    pub fn partitions(keys: usize, bits_per_key: u32) -> u32 {
        let bits = keys as u64 * u64::from(bits_per_key);
        let room = (PARTITION_BYTES - CHECKSUM_BYTES) as u64 * 8;
        u32::try_from(bits.div_ceil(room).max(1)).unwrap_or(u32::MAX)
    }

    /// Lays the hashes out as whole partitions, each with its last four bytes left zero for [`crate::seal_partition`], and
    /// forgets them. No hashes make one partition that contains nothing. Linear in the number of hashes.
    ///
    /// Panics at 2^32 hashes and more.
    pub fn finish(&mut self, bits_per_key: u32) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish_into(bits_per_key, &mut out);
        out
    }

    /// As [`FilterBuilder::finish`], appending to `out`.
    pub fn finish_into(&mut self, bits_per_key: u32, out: &mut Vec<u8>) {
        assert!(
            u32::try_from(self.hashes.len()).is_ok(),
            "too many hashes for one filter"
        );
        let partitions = Self::partitions(self.hashes.len(), bits_per_key);
        self.sort_into_cells(partitions);

        let start = out.len();
        out.resize(start + partitions as usize * PARTITION_BYTES, 0);
        let mut from = 0;
        for (partition, ends) in out[start..]
            .chunks_exact_mut(PARTITION_BYTES)
            .zip(self.ends.chunks_exact(CELLS))
        {
            for (index, &end) in ends.iter().enumerate() {
                let fractions = &mut self.sorted[from..end as usize];
                fractions.sort_unstable();
                let unique = deduplicate(fractions);
                let cell = &mut partition[index * cell::CELL_BYTES..][..cell::cell_bytes(index)];
                cell::build(cell, &fractions[..unique]);
                from = end as usize;
            }
        }
        self.hashes.clear();
    }

    /// A counting sort by cell. Afterwards `sorted[ends[c - 1]..ends[c]]` are the fractions of cell `c`, counted over all partitions.
    fn sort_into_cells(&mut self, partitions: u32) {
        let cell_index = |hash: u64| {
            (partition_of(hash, partitions) as usize) << CELL_INDEX_BITS
                | cell_of(in_partition(hash))
        };
        self.ends.clear();
        self.ends.resize(partitions as usize * CELLS, 0);
        for &hash in &self.hashes {
            self.ends[cell_index(hash)] += 1;
        }
        let mut sum = 0;
        for end in &mut self.ends {
            let count = *end;
            *end = sum; // a cell's start for now: filling it moves it to its end
            sum += count;
        }
        self.sorted.resize(self.hashes.len(), 0);
        for &hash in &self.hashes {
            let next = &mut self.ends[cell_index(hash)];
            self.sorted[*next as usize] = in_cell(in_partition(hash));
            *next += 1;
        }
    }
}

/// Moves the distinct values of a sorted slice to its front and counts them.
fn deduplicate(sorted: &mut [u64]) -> usize {
    let mut unique = 0;
    for i in 0..sorted.len() {
        if unique == 0 || sorted[i] != sorted[unique - 1] {
            sorted[unique] = sorted[i];
            unique += 1;
        }
    }
    unique
}
