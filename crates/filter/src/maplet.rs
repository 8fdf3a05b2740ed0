//! Maplets: filters that also tell which of a few sets holds a key (Conway et al., *SplinterDB and
//! Maplets*, SIGMOD 2023). A maplet over N sorted runs answers with one read what N filters answer
//! with N reads.
//!
//! # Structure
//!
//! A maplet is a quotient filter with a value beside each fingerprint. A fingerprint is the first B
//! bits of a key's hash. B grows with the number of entries ([`fingerprint_bits_for`]). So at most
//! one in 128 lookups of a maplet gets a wrong answer, whatever its number of entries and values.
//! Fingerprints are stored whole. So a maplet can be made of another one's entries
//! ([`MapletShape::entries`]) without the keys.
//!
//! A maplet has partitions of [`PARTITION_BYTES_MAX`] bytes, which are read, checked and cached one
//! by one. A partition has 32 cells, and a cell has 64 buckets. A bucket holds the fingerprints of
//! an interval: their counts in unary, then the distances to the interval's begin, each with its
//! value. `docs/FORMAT.md` describes the bytes in its section "Maplet".

use terrapin_base::{Error, Result, mutant};

use crate::cell::{select_zero_of_word, zeros_up_to};
use crate::{CHECKSUM_BYTES, PARTITION_BYTES_MAX};

/// Most values of a maplet: a lookup returns a set of them in one word.
pub const MAPLET_VALUES_MAX: usize = 64;
/// Most partitions of a maplet: enough for 2^27 entries.
pub const MAPLET_PARTITIONS_MAX: u32 = 1 << 16;

/// Cells of a partition, and buckets of a cell.
const CELLS: usize = 32;
const CELL_BUCKETS: usize = 64;
const PARTITION_BITS: u32 = 11;
const PARTITION_BUCKETS: u64 = 1 << PARTITION_BITS;
const _: () = assert!(PARTITION_BUCKETS == (CELLS * CELL_BUCKETS) as u64);
/// Bytes of the table of where cells begin.
const TABLE_BYTES: usize = 2 * (CELLS + 1);
/// Bytes that cells and their table may take.
const ROOM: usize = PARTITION_BYTES_MAX - CHECKSUM_BYTES;
const COUNT_BYTES: usize = 2;

const FINGERPRINT_BITS_MIN: u32 = 12;
const FINGERPRINT_BITS_MAX: u32 = 40;
/// Entries of 2^-7 of all fingerprints: one lookup in 128 meets a wrong one.
const SPARE_BITS: u32 = 7;
/// Bits of a value in [`MapletBuilder::entries`].
const VALUE_BITS: u32 = 6;
/// A layout in which a partition overflows is tried again with more partitions, this often.
const TRIES: u32 = 40;

/// The least bits of a fingerprint with which a maplet of `entries` entries gives at most one wrong
/// answer in 128 lookups.
///
/// ```
/// assert_eq!(terrapin_filter::fingerprint_bits_for(1000), 17);
/// ```
#[must_use]
pub fn fingerprint_bits_for(entries: u64) -> u32 {
    let bits = u64::BITS - entries.saturating_sub(1).leading_zeros() + SPARE_BITS;
    bits.clamp(FINGERPRINT_BITS_MIN, FINGERPRINT_BITS_MAX)
}

/// What is needed to read a maplet's partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapletShape {
    fingerprint_bits: u32,
    values: u32,
    partitions: u32,
    /// Follows from the others.
    entry_bits: usize,
}

impl MapletShape {
    /// The shape of a maplet with these numbers of bits of a fingerprint, of values, and of
    /// partitions. `None` if no maplet has it.
    #[must_use]
    pub fn new(fingerprint_bits: u32, values: usize, partitions: u32) -> Option<Self> {
        let bits = FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX;
        let is_possible = bits.contains(&fingerprint_bits)
            && (1..=MAPLET_VALUES_MAX).contains(&values)
            && (1..=MAPLET_PARTITIONS_MAX).contains(&partitions)
            && u64::from(partitions) * PARTITION_BUCKETS <= 1 << fingerprint_bits;
        is_possible.then(|| {
            let mut shape = MapletShape {
                fingerprint_bits,
                values: values as u32,
                partitions,
                entry_bits: 0,
            };
            shape.entry_bits = shape.bits_of_entry();
            shape
        })
    }

    /// B: bits of a fingerprint.
    #[must_use]
    pub fn fingerprint_bits(&self) -> u32 {
        self.fingerprint_bits
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    fn fingerprint(&self, hash: u64) -> u64 {
        hash.rotate_left(32) >> (u64::BITS - self.fingerprint_bits)
    }

    /// The bucket of a fingerprint, counted over all partitions: P·2^11 buckets share 2^B
    /// fingerprints. No product here exceeds 2^56.
    #[inline]
    fn bucket(&self, fingerprint: u64) -> u64 {
        (fingerprint * u64::from(self.partitions)) >> (self.fingerprint_bits - PARTITION_BITS)
    }

    /// The least fingerprint of a bucket.
    #[inline]
    fn least_of(&self, bucket: u64) -> u64 {
        let product = bucket << (self.fingerprint_bits - PARTITION_BITS);
        product.div_ceil(u64::from(self.partitions))
    }

    #[inline]
    fn value_bits(&self) -> usize {
        (u32::BITS - (self.values - 1).leading_zeros()) as usize
    }

    /// Bits of an entry: its distance from the least fingerprint of its bucket, and its value.
    fn bits_of_entry(&self) -> usize {
        let width = self.least_of(1);
        (u64::BITS - (width - 1).leading_zeros()) as usize + self.value_bits()
    }

    /// The number of the partition that answers for a hash.
    #[inline]
    #[must_use]
    pub fn partition_of(&self, hash: u64) -> u32 {
        (self.bucket(self.fingerprint(hash)) / PARTITION_BUCKETS) as u32
    }

    /// The values of a hash as a set of bits. `partition` must be the one that
    /// [`MapletShape::partition_of`] names. Takes constant time and reads one cell of some 120
    /// bytes. Does not verify the checksum. Never panics, whatever the bytes are.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the cell is impossible.
    #[inline]
    pub fn find(&self, partition: &[u8], hash: u64) -> Result<u64> {
        let fingerprint = self.fingerprint(hash);
        let bucket = self.bucket(fingerprint);
        let within = (bucket % PARTITION_BUCKETS) as usize;
        let distance = fingerprint - self.least_of(bucket);
        self.find_in(partition, within, distance)
            .ok_or_else(|| impossible(within / CELL_BUCKETS))
    }

    #[inline]
    fn find_in(&self, partition: &[u8], bucket: usize, distance: u64) -> Option<u64> {
        let cell = self.cell(partition, bucket / CELL_BUCKETS)?;
        let quotient = bucket % CELL_BUCKETS;
        let mut at = match quotient.checked_sub(1) {
            None => 0,
            Some(before) => cell.place_of_zero(before)? + 1,
        };
        let value_bits = self.value_bits();
        let mut found = 0;
        let mut rank = at
            .checked_sub(quotient)
            .filter(|rank| *rank <= cell.entries)?;
        while cell.is_one(at) {
            let entry = cell.entry(rank)?;
            let there = entry >> value_bits;
            if there > distance {
                break;
            }
            if there == distance {
                let value = entry & ((1 << value_bits) - 1);
                found |= match mutant::active("maplet-bits-wrap-at-32") {
                    true => u64::from(1u32 << (value % 32)),
                    false => 1u64 << (value % 64),
                };
            }
            rank += 1;
            at += 1;
        }
        Some(found)
    }

    /// Calls `visit` with the fingerprint and the value of each entry of partition `number`, in
    /// their order.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if no builder makes a partition like this. Without an
    /// error, [`MapletShape::find`] fails for no hash.
    pub fn entries(
        &self,
        partition: &[u8],
        number: u32,
        mut visit: impl FnMut(u64, usize),
    ) -> Result<()> {
        if partition.len() != PARTITION_BYTES_MAX || number >= self.partitions {
            return Err(
                Error::corrupt("wrong length of a maplet partition").with("bytes", partition.len())
            );
        }
        let first = u64::from(number) * PARTITION_BUCKETS;
        for cell in 0..CELLS {
            let bucket = first + (cell * CELL_BUCKETS) as u64;
            self.entries_of_cell(partition, cell, bucket, &mut visit)
                .ok_or_else(|| impossible(cell))?;
        }
        Ok(())
    }

    fn entries_of_cell(
        &self,
        partition: &[u8],
        number: usize,
        first: u64,
        visit: &mut impl FnMut(u64, usize),
    ) -> Option<()> {
        let cell = self.cell(partition, number)?;
        let value_bits = self.value_bits();
        let (mut rank, mut bucket) = (0, 0);
        let mut before = None;
        for at in 0..cell.entries + CELL_BUCKETS {
            if !cell.is_one(at) {
                bucket += 1;
                continue;
            }
            let entry = cell.entry(rank)?;
            let (least, next) = (
                self.least_of(first + bucket),
                self.least_of(first + bucket + 1),
            );
            let fingerprint = least + (entry >> value_bits);
            let value = (entry & ((1 << value_bits) - 1)) as usize;
            let ascends = before.is_none_or(|before| before < (fingerprint, value));
            if !ascends || fingerprint >= next || value >= self.values as usize {
                return None;
            }
            before = Some((fingerprint, value));
            visit(fingerprint, value);
            rank += 1;
        }
        (rank == cell.entries && bucket == CELL_BUCKETS as u64).then_some(())
    }

    #[inline]
    fn cell<'p>(&self, partition: &'p [u8], number: usize) -> Option<Cell<'p>> {
        let start = usize::from(u16_at(partition, 2 * number)?);
        let end = usize::from(u16_at(partition, 2 * number + 2)?);
        if start < TABLE_BYTES || end > ROOM || partition.len() != PARTITION_BYTES_MAX {
            return None;
        }
        let bytes = partition.get(start..end)?;
        let entries = usize::from(u16_at(bytes, 0)?);
        let cell = Cell {
            bits: &bytes[COUNT_BYTES..],
            entries,
            entry_bits: self.entry_bits,
        };
        (bytes.len() == cell_bytes(entries, cell.entry_bits)).then_some(cell)
    }
}

/// Bytes of a cell.
#[inline]
fn cell_bytes(entries: usize, entry_bits: usize) -> usize {
    COUNT_BYTES + (entries + CELL_BUCKETS + entries * entry_bits).div_ceil(8)
}

/// A cell whose length is right.
struct Cell<'p> {
    bits: &'p [u8],
    entries: usize,
    entry_bits: usize,
}

impl Cell<'_> {
    #[inline]
    fn is_one(&self, at: usize) -> bool {
        at < self.entries + CELL_BUCKETS && self.bits[at / 8] >> (at % 8) & 1 == 1
    }

    /// The place of a zero among the counts, by its rank.
    #[inline]
    fn place_of_zero(&self, mut rank: usize) -> Option<usize> {
        let mut start = 0;
        while start < self.entries + CELL_BUCKETS {
            let word = bits_from(self.bits, start);
            let sums = zeros_up_to(word);
            let zeros = (sums >> 56) as usize;
            if rank < zeros {
                return Some(start + select_zero_of_word(word, sums, rank as u64) as usize);
            }
            rank -= zeros;
            start += 64;
        }
        None
    }

    #[inline]
    fn entry(&self, rank: usize) -> Option<u64> {
        if rank >= self.entries {
            return None;
        }
        let at = self.entries + CELL_BUCKETS + rank * self.entry_bits;
        Some(bits_from(self.bits, at) & ((1 << self.entry_bits) - 1))
    }
}

/// The bits from bit `at` on: at least 57, or zeros behind the end.
#[inline]
fn bits_from(bytes: &[u8], at: usize) -> u64 {
    let from = at / 8;
    let word = match bytes.get(from..from + 8) {
        Some(eight) => eight.try_into().unwrap_or_default(),
        None => {
            let mut padded = [0; 8];
            for (to, byte) in padded.iter_mut().zip(bytes.get(from..).unwrap_or_default()) {
                *to = *byte;
            }
            padded
        }
    };
    u64::from_le_bytes(word) >> (at % 8)
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes([two[0], two[1]]))
}

#[cold]
fn impossible(cell: usize) -> Error {
    Error::corrupt("impossible cell of a maplet").with("cell", cell)
}

/// Collects entries, and lays a maplet out. Takes 8 bytes of memory for each entry.
///
/// ```
/// use terrapin_filter::{MapletBuilder, fingerprint_bits_for};
/// let mut builder = MapletBuilder::new(fingerprint_bits_for(2));
/// builder.add(0x1234_5678_9abc_def0, 0);
/// builder.add(42, 5);
/// let (shape, bytes) = builder.finish(6).unwrap();
/// assert_eq!(shape.find(&bytes[..4096], 42)?, 1 << 5);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Debug)]
pub struct MapletBuilder {
    fingerprint_bits: u32,
    /// Fingerprints, each with its value in the last six bits.
    entries: Vec<u64>,
}

impl MapletBuilder {
    /// A builder without entries. Fingerprints have `fingerprint_bits` bits: see
    /// [`fingerprint_bits_for`].
    #[must_use]
    pub fn new(fingerprint_bits: u32) -> Self {
        MapletBuilder {
            fingerprint_bits: fingerprint_bits.clamp(FINGERPRINT_BITS_MIN, FINGERPRINT_BITS_MAX),
            entries: Vec::new(),
        }
    }

    /// Adds an entry. All 64 bits of the hash should be random. Panics if the value is not below
    /// [`MAPLET_VALUES_MAX`].
    pub fn add(&mut self, hash: u64, value: usize) {
        let fingerprint = hash.rotate_left(32) >> (u64::BITS - self.fingerprint_bits);
        self.push(fingerprint, value);
    }

    /// Adds an entry of another maplet, whose fingerprints have `bits` bits: at least as many as
    /// the builder's. Panics if they have fewer.
    pub fn add_fingerprint(&mut self, fingerprint: u64, bits: u32, value: usize) {
        assert!(bits >= self.fingerprint_bits, "fingerprints are too short");
        let cut = match mutant::active("maplet-cuts-fingerprints") {
            true => (fingerprint >> (bits - self.fingerprint_bits)) & !1,
            false => fingerprint >> (bits - self.fingerprint_bits),
        };
        self.push(cut, value);
    }

    fn push(&mut self, fingerprint: u64, value: usize) {
        assert!(value < MAPLET_VALUES_MAX, "value {value}");
        self.entries.push(fingerprint << VALUE_BITS | value as u64);
    }

    /// Heap memory of the builder in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u64>()
    }

    /// Lays the entries out as partitions. The last four bytes of each stay zero for a checksum
    /// ([`crate::seal_partition`]). Takes O(n log n) time for n entries.
    ///
    /// `None` if the hashes are so unevenly distributed that a partition cannot hold its share, or
    /// if there are too many entries or values.
    #[must_use]
    pub fn finish(mut self, values: usize) -> Option<(MapletShape, Vec<u8>)> {
        self.entries.sort_unstable();
        self.entries.dedup();
        // About 29,000 bits of a partition are left for entries of about 14 bits.
        let mut partitions = (self.entries.len() / 2400).max(1);
        for _ in 0..TRIES {
            let number = u32::try_from(partitions).ok()?;
            let shape = MapletShape::new(self.fingerprint_bits, values, number)?;
            if let Some(bytes) = self.lay_out(&shape) {
                return Some((shape, bytes));
            }
            partitions += partitions / 32 + 1;
        }
        None
    }

    fn lay_out(&self, shape: &MapletShape) -> Option<Vec<u8>> {
        let mut out = vec![0; shape.partitions as usize * PARTITION_BYTES_MAX];
        let (value_bits, entry_bits) = (shape.value_bits(), shape.entry_bits);
        let mut rest = &self.entries[..];
        let mut first = 0;
        for partition in out.chunks_exact_mut(PARTITION_BYTES_MAX) {
            let mut end = TABLE_BYTES;
            for cell in 0..CELLS {
                partition[2 * cell..][..2].copy_from_slice(&(end as u16).to_le_bytes());
                let next = shape.least_of(first + CELL_BUCKETS as u64);
                let entries = rest.iter().take_while(|entry| **entry >> VALUE_BITS < next);
                let entries = entries.count();
                let bytes = cell_bytes(entries, entry_bits);
                if end + bytes > ROOM {
                    return None;
                }
                let (own, behind) = rest.split_at(entries);
                let (count, bits) = partition[end..end + bytes].split_at_mut(COUNT_BYTES);
                count.copy_from_slice(&(entries as u16).to_le_bytes());
                for (rank, entry) in own.iter().enumerate() {
                    let (fingerprint, value) =
                        (entry >> VALUE_BITS, entry & ((1 << VALUE_BITS) - 1));
                    let bucket = shape.bucket(fingerprint);
                    put_bits(bits, (bucket - first) as usize + rank, 1);
                    let distance = fingerprint - shape.least_of(bucket);
                    let at = entries + CELL_BUCKETS + rank * entry_bits;
                    put_bits(bits, at, distance << value_bits | value);
                }
                rest = behind;
                end += bytes;
                first += CELL_BUCKETS as u64;
            }
            partition[2 * CELLS..][..2].copy_from_slice(&(end as u16).to_le_bytes());
        }
        Some(out)
    }
}

/// Sets the bits of a number from bit `at` on.
fn put_bits(bytes: &mut [u8], at: usize, bits: u64) {
    let shifted = bits << (at % 8);
    for (byte, part) in bytes[at / 8..].iter_mut().zip(shifted.to_le_bytes()) {
        *byte |= part;
    }
}
