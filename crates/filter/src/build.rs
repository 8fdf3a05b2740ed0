//! Building of filters: hashes are collected in any order and laid out at once. Memory: 8 bytes per
//! hash, and 16 during [`FilterBuilder::finish`].

use crate::{
    CELL_BYTES, CHECKSUM_BYTES, Outline, PARTITION_BYTES_MAX, cell, cell_and_fraction, partition_of,
};

/// Collects hashes and lays out filters. A builder can be reused after [`FilterBuilder::finish`],
/// and keeps its memory.
///
/// ```
/// use terrapin_filter::{BITS_PER_KEY, FilterBuilder, may_contain, partition_for};
/// let mut builder = FilterBuilder::new();
/// builder.add_all(&[0x1234_5678_9abc_def0, 42]);
/// let filter = builder.finish(BITS_PER_KEY, 512);
/// assert_eq!(filter.len(), 512);
/// let partition = partition_for(&filter, 42).unwrap();
/// assert!(may_contain(partition, 42)?);
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

    /// Adds a hash. All its 64 bits should be random ([`terrapin_base::checksum::hash64`]).
    ///
    /// Any order works. A duplicate counts for the filter's size, and takes no other space.
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

    /// Whether no hash was added since the last [`FilterBuilder::finish`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Heap memory of the builder in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        (self.hashes.capacity() + self.sorted.capacity()) * 8 + self.ends.capacity() * 4
    }

    /// Number of partitions of a filter for `keys` keys, and bytes of each partition.
    ///
    /// There is at least one, each is a multiple of `unit`, and a key gets at least `bits_per_key`
    /// bits on average.
    #[must_use]
    pub fn shape(keys: usize, bits_per_key: u32, unit: usize) -> (u32, usize) {
        let bytes = (keys as u64 * u64::from(bits_per_key)).div_ceil(8);
        let room = (PARTITION_BYTES_MAX - CHECKSUM_BYTES) as u64;
        let partitions = bytes.div_ceil(room).max(1);
        let each = bytes.div_ceil(partitions) as usize + CHECKSUM_BYTES;
        (
            u32::try_from(partitions).unwrap_or(u32::MAX),
            each.next_multiple_of(unit),
        )
    }

    /// Lays the hashes out as whole partitions of a multiple of `unit` bytes, and removes them from
    /// the builder. Takes time in proportion to the number of hashes.
    ///
    /// The last four bytes of each partition stay zero for [`crate::seal_partition`]. Without
    /// hashes the filter is one partition that contains nothing.
    ///
    /// Panics at 2^32 hashes or more. Panics unless `unit` is a power of two from [`CELL_BYTES`] to
    /// [`PARTITION_BYTES_MAX`].
    pub fn finish(&mut self, bits_per_key: u32, unit: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish_into(bits_per_key, unit, &mut out);
        out
    }

    /// Appends to `out` what [`FilterBuilder::finish`] returns.
    pub fn finish_into(&mut self, bits_per_key: u32, unit: usize, out: &mut Vec<u8>) {
        self.lay_out(bits_per_key, unit, out, |_, _| ());
    }

    /// Appends the filter to `out`, and returns the outline of each partition.
    pub fn finish_outlined(
        &mut self,
        bits_per_key: u32,
        unit: usize,
        out: &mut Vec<u8>,
    ) -> Vec<Outline> {
        let (partitions, partition_bytes) = Self::shape(self.hashes.len(), bits_per_key, unit);
        let cells = partition_bytes / CELL_BYTES;
        let mut words = vec![0; partitions as usize * cells * cell::OUTLINE_WORDS];
        let outlines: &mut [[u64; cell::OUTLINE_WORDS]] = words.as_chunks_mut().0;
        self.lay_out(bits_per_key, unit, out, |cell, fractions| {
            cell::outline_fractions(fractions, &mut outlines[cell]);
        });
        Outline::cut(&words, cells)
    }

    /// Lays the hashes out. `see` gets the fractions of each cell; cell numbers count over all
    /// partitions.
    fn lay_out(
        &mut self,
        bits_per_key: u32,
        unit: usize,
        out: &mut Vec<u8>,
        mut see: impl FnMut(usize, &[u64]),
    ) {
        assert!(
            unit.is_power_of_two() && (CELL_BYTES..=PARTITION_BYTES_MAX).contains(&unit),
            "unit of {unit} bytes"
        );
        assert!(
            u32::try_from(self.hashes.len()).is_ok(),
            "too many hashes for one filter"
        );
        let (partitions, partition_bytes) = Self::shape(self.hashes.len(), bits_per_key, unit);
        let cells = partition_bytes / CELL_BYTES;
        self.sort_into_cells(partitions, cells);

        let start = out.len();
        out.resize(start + partitions as usize * partition_bytes, 0);
        let mut from = 0;
        for (number, (partition, ends)) in out[start..]
            .chunks_exact_mut(partition_bytes)
            .zip(self.ends.chunks_exact(cells))
            .enumerate()
        {
            for (index, &end) in ends.iter().enumerate() {
                let fractions = &mut self.sorted[from..end as usize];
                fractions.sort_unstable();
                let unique = deduplicate(fractions);
                let cell = &mut partition[index * CELL_BYTES..][..cell::cell_bytes(index, cells)];
                cell::build(cell, &fractions[..unique]);
                see(number * cells + index, &fractions[..unique]);
                from = end as usize;
            }
        }
        self.hashes.clear();
    }

    /// Sorts by cell, with a counting sort. Afterwards `sorted[ends[c - 1]..ends[c]]` are the
    /// fractions of cell `c`; cell numbers count over all partitions.
    fn sort_into_cells(&mut self, partitions: u32, cells: usize) {
        let locate = |hash: u64| {
            let (cell, fraction) = cell_and_fraction(hash, cells);
            (
                partition_of(hash, partitions) as usize * cells + cell,
                fraction,
            )
        };
        self.ends.clear();
        self.ends.resize(partitions as usize * cells, 0);
        for &hash in &self.hashes {
            self.ends[locate(hash).0] += 1;
        }
        let mut sum = 0;
        for end in &mut self.ends {
            let count = *end;
            *end = sum; // the cell's start for now: filling the cell moves it to the end
            sum += count;
        }
        self.sorted.resize(self.hashes.len(), 0);
        for &hash in &self.hashes {
            let (cell, fraction) = locate(hash);
            let next = &mut self.ends[cell];
            self.sorted[*next as usize] = fraction;
            *next += 1;
        }
    }
}

/// Moves the distinct values of a sorted slice to its front and counts them.
fn deduplicate(sorted: &mut [u64]) -> usize {
    // Duplicates are rare, so there is usually nothing to move.
    let Some(first) = sorted.windows(2).position(|pair| pair[0] == pair[1]) else {
        return sorted.len();
    };
    let mut unique = first + 1;
    for i in first + 1..sorted.len() {
        if sorted[i] != sorted[unique - 1] {
            sorted[unique] = sorted[i];
            unique += 1;
        }
    }
    unique
}
