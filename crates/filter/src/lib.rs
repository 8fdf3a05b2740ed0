//! A filter is built once, in bulk, and then only asked: "may this hash be among those that you
//! were given?" It never denies one that it was given, and wrongly affirms about one in 700 of the
//! others at its default of 12 bits a key.
//!
//! # Shape
//!
//! A quotient filter (Bender et al., *Don't Thrash: How to Cache Your Hash on Flash*, VLDB 2012,
//! §3), in partitions of at most 4 KiB that can be read and cached one by one. They are equally
//! long, and no longer than their keys ask for: a group of few records has a filter of one short
//! partition. A hash names its partition ([`partition_of`]) and, with other bits, one of the up to
//! 32 *cells* of 128 bytes in it; the cell alone answers. So a probe touches one pair of cache
//! lines and nothing else.
//!
//! # How it differs from the rank-and-select quotient filter (CQF; SplinterDB §5), and why
//!
//! The filter is static, so the slack that insertion needs (a load factor of 0.95, two more bits a
//! slot, shifted runs that leave their block) is not paid for. A cell holds its `n` fingerprints in
//! Elias–Fano form: the quotients as counts in unary (`n` ones, `m` zeros), the remainders of `r`
//! bits packed behind them. `r` and the number of quotients `m` are not fixed but follow from `n`,
//! so that a cell is always full to its last bit: `r = capacity / n - 2`,
//! `m = capacity - n (r + 1)`. The false-positive rate of a cell is `n / m / 2^r`. Nothing ever
//! overflows: a cell that drew more keys than its share has a worse rate, one that drew fewer a
//! better one. Expected over the binomial loads: 1/527 at 11.5 bits a key, 1/718 at 12 (cells of 64
//! bytes: 1/389 and 1/516; of 256 bytes: 1/625 and 1/866, for up to four lines touched instead of
//! two). A rank-and-select filter reaches 1/539 with a remainder of 9 bits at 12 to 12.6 bits a
//! key.
//!
//! The bytes are described in `docs/FORMAT.md`, section "Filter".
#![forbid(unsafe_code)]

mod build;
mod cell;
mod outline;

pub use build::FilterBuilder;
pub use outline::Outline;

use terrapin_base::checksum::crc32c_append;
use terrapin_base::{Error, Result};

/// Most bytes of a partition: the piece of a filter that is read, checked and cached by itself.
pub const PARTITION_BYTES_MAX: usize = 4096;
/// What a partition's bytes are a multiple of.
pub const CELL_BYTES: usize = cell::CELL_BYTES;

/// Bits a key that filters get unless told otherwise. Expected false positives: 1/386 at 11, 1/718
/// at 12, 1/1300 at 13.
pub const BITS_PER_KEY: u32 = 12;

/// Bytes at a partition's end that hold its CRC32C.
const CHECKSUM_BYTES: usize = 4;

/// How many partitions a filter of so many bytes has: as few as can hold them.
///
/// ```
/// assert_eq!([0, 512, 4096, 7168, 8192].map(terrapin_filter::partitions_in), [0, 1, 1, 2, 2]);
/// ```
#[inline]
#[must_use]
pub fn partitions_in(filter_bytes: u32) -> u32 {
    filter_bytes.div_ceil(PARTITION_BYTES_MAX as u32)
}

/// Bytes of each partition of a filter of so many; none when no filter is that long.
#[inline]
#[must_use]
pub fn partition_bytes(filter_bytes: u32) -> Option<u32> {
    let bytes = filter_bytes.checked_div(partitions_in(filter_bytes))?;
    let fits = bytes.checked_mul(partitions_in(filter_bytes)) == Some(filter_bytes);
    (fits && (bytes as usize).is_multiple_of(CELL_BYTES)).then_some(bytes)
}

/// The partition, of so many, that answers for this hash. It is chosen by the hash's upper 32 bits.
///
/// ```
/// assert_eq!(terrapin_filter::partition_of(u64::MAX, 7), 6);
/// assert_eq!(terrapin_filter::partition_of(0, 7), 0);
/// ```
#[inline]
#[must_use]
pub fn partition_of(hash: u64, partitions: u32) -> u32 {
    (((hash >> 32) * u64::from(partitions)) >> 32) as u32
}

/// The partition of a whole filter that answers for this hash; none when no filter is that long.
#[inline]
#[must_use]
pub fn partition_for(filter: &[u8], hash: u64) -> Option<&[u8]> {
    let filter_bytes = u32::try_from(filter.len()).ok()?;
    let number = partition_of(hash, partitions_in(filter_bytes)) as usize;
    filter
        .chunks_exact(partition_bytes(filter_bytes)? as usize)
        .nth(number)
}

/// Whether this hash may be among those that the filter was built from; `partition` is the one that
/// [`partition_of`] names.
///
/// Constant time; touches one cell of 128 bytes. The checksum is not looked at ([`check_partition`]
/// does that once, when the partition is read); whatever the bytes are, this does not panic.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] when no partition has so many bytes or its cell is
/// impossible.
#[inline]
pub fn may_contain(partition: &[u8], hash: u64) -> Result<bool> {
    let Some(cells) = cells_of(partition) else {
        return Err(wrong_size(partition.len()));
    };
    let (index, fraction) = cell_and_fraction(hash, cells);
    cell::may_contain(partition, index, fraction).ok_or_else(|| impossible_cell(index))
}

/// Writes the CRC32C of a partition into its last four bytes. `seed` should name where the
/// partition belongs, so that a misplaced one is noticed. Panics when no partition has so many
/// bytes.
pub fn seal_partition(partition: &mut [u8], seed: u32) {
    assert!(cells_of(partition).is_some(), "not a filter partition");
    let (body, checksum) = partition.split_at_mut(partition.len() - CHECKSUM_BYTES);
    checksum.copy_from_slice(&crc32c_append(seed, body).to_le_bytes());
}

/// Checks what [`seal_partition`] wrote.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] when the size or the checksum is wrong.
pub fn check_partition(partition: &[u8], seed: u32) -> Result<()> {
    if cells_of(partition).is_none() {
        return Err(wrong_size(partition.len()));
    }
    let (body, checksum) = partition.split_at(partition.len() - CHECKSUM_BYTES);
    if checksum != crc32c_append(seed, body).to_le_bytes() {
        return Err(Error::corrupt("filter checksum"));
    }
    Ok(())
}

/// Checks that every cell is one that a builder can make: then no hash makes [`may_contain`] fail.
/// The checksum is not looked at.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] when the size is wrong or a cell is impossible.
pub fn check_cells(partition: &[u8]) -> Result<()> {
    let Some(cells) = cells_of(partition) else {
        return Err(wrong_size(partition.len()));
    };
    match (0..cells).find(|&index| !cell::is_possible(partition, index)) {
        Some(index) => Err(impossible_cell(index)),
        None => Ok(()),
    }
}

#[cold]
fn wrong_size(bytes: usize) -> Error {
    Error::corrupt("filter partition of wrong size").with("bytes", bytes)
}

#[cold]
fn impossible_cell(index: usize) -> Error {
    Error::corrupt("impossible filter cell").with("cell", index)
}

/// Cells of a partition; the last is four bytes shorter, for the checksum. None when no partition
/// is that long.
#[inline]
fn cells_of(partition: &[u8]) -> Option<usize> {
    let bytes = partition.len();
    let possible = bytes.is_multiple_of(CELL_BYTES) && bytes.wrapping_sub(1) < PARTITION_BYTES_MAX;
    possible.then_some(bytes / CELL_BYTES)
}

/// The cell, of so many, that answers for a hash within its partition, and the binary fraction that
/// stands for it there: of the fraction whose leading bits are those that [`partition_of`] does not
/// use.
#[inline]
fn cell_and_fraction(hash: u64, cells: usize) -> (usize, u64) {
    let product = u128::from(hash.rotate_left(32)) * cells as u128;
    ((product >> 64) as usize, product as u64)
}
