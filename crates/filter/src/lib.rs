//! Static quotient filters. A filter is built once in bulk, and then answers whether a hash may be
//! among those that it was built from. It never denies one of them. At the default of 12 bits a key
//! it wrongly affirms about one in 700 other hashes.
//!
//! # Structure
//!
//! A filter is a quotient filter (Bender et al., *Don't Thrash: How to Cache Your Hash on Flash*,
//! VLDB 2012, §3). It has partitions of at most 4 KiB, which are read and cached one by one. All
//! partitions of a filter have the same length, and are only as long as their keys need. So a group
//! of few records has one short partition.
//!
//! Some bits of a hash choose its partition ([`partition_of`]). Other bits choose one of up to 32
//! *cells* of 128 bytes in it. The cell alone answers, so a probe reads one pair of cache lines.
//!
//! # Differences from the rank-and-select quotient filter (CQF; SplinterDB §5)
//!
//! The filter is static, so it needs no slack for insertions. The CQF pays for a load factor of
//! 0.95, two more bits per slot, and shifted runs that leave their block.
//!
//! A cell stores its `n` fingerprints in Elias–Fano form: quotients as counts in unary (`n` ones
//! and `m` zeros), then packed remainders of `r` bits. Both parameters follow from `n`: `r =
//! capacity / n - 2`, `m = capacity - n (r + 1)`. So a cell is always full to its last bit. The
//! false-positive rate of a cell is `n / m / 2^r`. No cell overflows: a cell with more keys than
//! the average has a worse rate, and a cell with fewer has a better one.
//!
//! | | 11.5 bits a key | 12 bits a key | cache lines read |
//! | --- | --- | --- | --- |
//! | cells of 64 bytes | 1/389 | 1/516 | 1 |
//! | cells of 128 bytes (this crate) | 1/527 | 1/718 | 2 |
//! | cells of 256 bytes | 1/625 | 1/866 | up to 4 |
//!
//! These are expected false positives over binomial loads. A rank-and-select filter has 1/539 with
//! a remainder of 9 bits, at 12 to 12.6 bits a key.
//!
//! `docs/FORMAT.md` describes the bytes in its section "Filter".
#![forbid(unsafe_code)]

mod build;
mod cell;
mod maplet;
mod outline;

pub use build::FilterBuilder;
pub use maplet::{
    MAPLET_PARTITIONS_MAX, MAPLET_VALUES_MAX, MapletBuilder, MapletShape, fingerprint_bits_for,
};
pub use outline::Outline;

use terrapin_base::checksum::crc32c_append;
use terrapin_base::{Error, Result};

/// Largest partition in bytes. A partition is the part of a filter that is read, checked and cached
/// as one.
pub const PARTITION_BYTES_MAX: usize = 4096;
/// The length of a partition is a multiple of this number of bytes.
pub const CELL_BYTES: usize = cell::CELL_BYTES;

/// Default size of filters in bits a key. Expected false positives: 1/386 at 11, 1/718 at 12,
/// 1/1300 at 13.
pub const BITS_PER_KEY: u32 = 12;

/// Bytes of the CRC32C at a partition's end.
const CHECKSUM_BYTES: usize = 4;

/// Number of partitions of a filter of `filter_bytes`: as few as can hold it.
///
/// ```
/// assert_eq!([0, 512, 4096, 7168, 8192].map(terrapin_filter::partitions_in), [0, 1, 1, 2, 2]);
/// ```
#[inline]
#[must_use]
pub fn partitions_in(filter_bytes: u32) -> u32 {
    filter_bytes.div_ceil(PARTITION_BYTES_MAX as u32)
}

/// Bytes of each partition of a filter of `filter_bytes`; `None` if no filter has that length.
#[inline]
#[must_use]
pub fn partition_bytes(filter_bytes: u32) -> Option<u32> {
    let bytes = filter_bytes.checked_div(partitions_in(filter_bytes))?;
    let fits = bytes.checked_mul(partitions_in(filter_bytes)) == Some(filter_bytes);
    (fits && (bytes as usize).is_multiple_of(CELL_BYTES)).then_some(bytes)
}

/// The number of the partition that answers for this hash. The hash's upper 32 bits choose it.
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

/// The partition that answers for this hash, from a whole filter. `None` if no filter has that
/// length.
#[inline]
#[must_use]
pub fn partition_for(filter: &[u8], hash: u64) -> Option<&[u8]> {
    let filter_bytes = u32::try_from(filter.len()).ok()?;
    let number = partition_of(hash, partitions_in(filter_bytes)) as usize;
    filter
        .chunks_exact(partition_bytes(filter_bytes)? as usize)
        .nth(number)
}

/// Whether this hash may be among those that the filter was built from. `partition` must be the one
/// that [`partition_of`] names.
///
/// Takes constant time and reads one cell of 128 bytes. Does not verify the checksum, which
/// [`check_partition`] does once after a read. Never panics, whatever the bytes are.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] if no partition has this length, or its cell is
/// impossible.
#[inline]
pub fn may_contain(partition: &[u8], hash: u64) -> Result<bool> {
    let Some(cells) = cells_of(partition) else {
        return Err(wrong_size(partition.len()));
    };
    let (index, fraction) = cell_and_fraction(hash, cells);
    cell::may_contain(partition, index, fraction).ok_or_else(|| impossible_cell(index))
}

/// Writes the CRC32C of a partition into its last four bytes. `seed` should identify the
/// partition's location, so that a check finds a misplaced one. Panics if no partition has this
/// length.
pub fn seal_partition(partition: &mut [u8], seed: u32) {
    assert!(cells_of(partition).is_some(), "not a filter partition");
    let (body, checksum) = partition.split_at_mut(partition.len() - CHECKSUM_BYTES);
    checksum.copy_from_slice(&crc32c_append(seed, body).to_le_bytes());
}

/// Verifies the checksum that [`seal_partition`] wrote.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] if the length or the checksum is wrong.
pub fn check_partition(partition: &[u8], seed: u32) -> Result<()> {
    if cells_of(partition).is_none() {
        return Err(wrong_size(partition.len()));
    }
    let (body, checksum) = partition.split_at(partition.len() - CHECKSUM_BYTES);
    if checksum != crc32c_append(seed, body).to_le_bytes() {
        return Err(Error::corrupt("wrong checksum of a filter partition"));
    }
    Ok(())
}

/// Verifies that a builder can make every cell, so that [`may_contain`] fails for no hash. Does not
/// verify the checksum.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`] if the length is wrong or a cell is impossible.
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
    Error::corrupt("wrong length of a filter partition").with("bytes", bytes)
}

#[cold]
fn impossible_cell(index: usize) -> Error {
    Error::corrupt("impossible filter cell").with("cell", index)
}

/// Number of cells of a partition; `None` if no partition has this length. The last cell is four
/// bytes shorter, for the checksum.
#[inline]
fn cells_of(partition: &[u8]) -> Option<usize> {
    let bytes = partition.len();
    let possible = bytes.is_multiple_of(CELL_BYTES) && bytes.wrapping_sub(1) < PARTITION_BYTES_MAX;
    possible.then_some(bytes / CELL_BYTES)
}

/// The cell that answers for a hash within its partition, and the binary fraction that represents
/// the hash there. Uses the bits that [`partition_of`] does not use first.
#[inline]
fn cell_and_fraction(hash: u64, cells: usize) -> (usize, u64) {
    let product = u128::from(hash.rotate_left(32)) * cells as u128;
    ((product >> 64) as usize, product as u64)
}
