//! A cell: a complete quotient filter in 128 bytes (124 for the last cell of a partition). Its
//! number of fingerprints determines its layout.
//!
//! ```text
//! bits  0..10   n, the number of fingerprints
//! bits 10..16   r, the bits of a remainder; n = 1023 and r = 63: saturated, every hash "may" be there
//! then          n + m bits: for each of m quotients a one per fingerprint, then a zero    (m = capacity - n (r + 1))
//! then          n remainders of r bits each, ordered by quotient and remainder
//! ```
//!
//! Bits count from the least significant bit of the first byte. A fingerprint represents a fraction
//! of 64 bits. The quotient is the integer part of the fraction times `m`. The remainder is the
//! first `r` bits of that product's fractional part. Both grow with the fraction, so sorted hashes
//! make a sorted cell for any `m` and `r`.

use crate::CHECKSUM_BYTES;

/// Bytes of a cell: two cache lines, which processors fetch as a pair.
pub(crate) const CELL_BYTES: usize = 128;

/// Words of a cell's outline, which has as many bits as the cell.
pub(crate) const OUTLINE_WORDS: usize = CELL_BYTES / 8;
const OUTLINE_BITS: usize = OUTLINE_WORDS * 64;
/// Number of first bits of a fraction that the outline depends on. With twelve bits a key,
/// fingerprints contain one bit more.
const OUTLINE_PREFIX_BITS: u32 = 15;
/// Those of the first bits that do not choose the outline's first bit.
const REST_BITS: u32 = OUTLINE_PREFIX_BITS - OUTLINE_BITS.ilog2();

const HEADER_BITS: usize = 16;
const COUNT_BITS: u32 = 10;
/// Longest remainder. In a partition of 32 cells, the first 27 bits of a fraction do not depend on
/// the partition. A quotient uses 10 of them, a remainder 16.
const REMAINDER_BITS_MAX: usize = 16;
const SATURATED: u16 = u16::MAX;

/// Bytes of a cell by its index, in a partition of `cells` cells.
#[inline]
pub(crate) fn cell_bytes(index: usize, cells: usize) -> usize {
    if index + 1 == cells {
        CELL_BYTES - CHECKSUM_BYTES
    } else {
        CELL_BYTES
    }
}

/// Bits of a cell of `bytes` bytes without its header.
#[inline]
fn capacity(bytes: usize) -> usize {
    bytes * 8 - HEADER_BITS
}

/// The layout (m, r) of `n` fingerprints in `capacity` bits; `None` if there are too many.
fn layout(n: usize, capacity: usize) -> Option<(usize, usize)> {
    let r = (capacity / n).checked_sub(2)?.min(REMAINDER_BITS_MAX);
    Some((capacity - n * (r + 1), r))
}

#[inline]
fn split(fraction: u64, m: usize, r: usize) -> (usize, u64) {
    let product = u128::from(fraction) * m as u128;
    // Two shifts, since `r` may be 0.
    let remainder = product as u64 >> 1 >> (63 - r);
    ((product >> 64) as usize, remainder)
}

/// Fills a zeroed cell with sorted fractions.
pub(crate) fn build(cell: &mut [u8], fractions: &[u64]) {
    let n = fractions.len();
    if n == 0 {
        return;
    }
    let capacity = capacity(cell.len());
    let Some((m, r)) = layout(n, capacity) else {
        cell[..2].copy_from_slice(&SATURATED.to_le_bytes());
        return;
    };
    let header = n as u16 | (r as u16) << COUNT_BITS;
    // Words on the stack are cheaper to set bits in, and the cell is then written once.
    let mut words = [0u64; CELL_BYTES / 8];
    words[0] = u64::from(header);
    let remainders = HEADER_BITS + n + m;
    for (i, &fraction) in fractions.iter().enumerate() {
        let (quotient, remainder) = split(fraction, m, r);
        let unary = HEADER_BITS + quotient + i;
        words[unary / 64] |= 1 << (unary % 64);
        if r == 0 {
            continue;
        }
        let at = remainders + i * r;
        words[at / 64] |= remainder << (at % 64);
        if at % 64 + r > 64 {
            words[at / 64 + 1] |= remainder >> (64 - at % 64);
        }
    }
    for (bytes, word) in cell.chunks_mut(8).zip(words) {
        let word = word.to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
}

/// Whether the cell may contain the fraction. `None` if there is no such cell, or no builder makes
/// a cell like this.
#[inline]
pub(crate) fn may_contain(partition: &[u8], index: usize, fraction: u64) -> Option<bool> {
    let cells = partition.as_chunks().0;
    let cell: &[u8; CELL_BYTES] = cells.get(index)?;
    let header = u16::from_le_bytes([cell[0], cell[1]]);
    let Some((n, r, m)) = shape(header, index, cells.len()) else {
        return without_fingerprints(header);
    };
    let (quotient, remainder) = split(fraction, m, r);
    // The start of the quotient's run, and the number of fingerprints before it. Both grow
    // together, and `quotient < m`: while `rank` is at most `n`, `unary` is in the unary part.
    let mut unary = HEADER_BITS;
    if quotient > 0 {
        unary = select_zero(cell, quotient as u64 - 1)? + 1;
    }
    let mut rank = unary - HEADER_BITS - quotient;
    if rank > n {
        return None;
    }
    while cell.get(unary / 8)? >> (unary % 8) & 1 == 1 {
        if rank == n {
            return None;
        }
        let at = index * CELL_BYTES * 8 + HEADER_BITS + n + m + rank * r;
        let found = bits(partition, at)? & ((1 << r) - 1);
        if found >= remainder {
            return Some(found == remainder);
        }
        rank += 1;
        unary += 1;
    }
    Some(false)
}

/// The two outline bits of a fraction, by the first bits of that fraction.
#[inline]
fn outline_bits(prefix: u32) -> [usize; 2] {
    [(prefix >> REST_BITS) as usize, scattered_bit(prefix)]
}

#[inline]
fn scattered_bit(prefix: u32) -> usize {
    (prefix.wrapping_mul(0x9e37_79b1) >> (u32::BITS - OUTLINE_BITS.ilog2())) as usize
}

/// The second outline bit of a fraction, as a number among the bits of all cells' outlines. `first`
/// is the first bit's number, and `rest` are the fraction's bits after those that chose it.
#[inline]
pub(crate) fn second_outline_bit(first: usize, rest: u64) -> usize {
    let in_cell = first % OUTLINE_BITS;
    let prefix = (in_cell as u32) << REST_BITS | (rest >> (u64::BITS - REST_BITS)) as u32;
    first - in_cell + scattered_bit(prefix)
}

/// Makes the outline of a cell with these fractions. `out` must be zeros.
pub(crate) fn outline_fractions(fractions: &[u64], out: &mut [u64; OUTLINE_WORDS]) {
    for fraction in fractions {
        mark(out, (fraction >> (u64::BITS - OUTLINE_PREFIX_BITS)) as u32);
    }
}

#[inline]
fn mark(outline: &mut [u64; OUTLINE_WORDS], prefix: u32) {
    for bit in outline_bits(prefix) {
        outline[bit / 64] |= 1 << (bit % 64);
    }
}

/// Makes the outline of the cell at `index`. `out` must be zeros.
///
/// Sets both bits of every fraction that the cell may contain. Sets all bits for a cell that no
/// builder makes, so that each question reaches [`may_contain`] and its error.
pub(crate) fn outline(partition: &[u8], index: usize, out: &mut [u64; OUTLINE_WORDS]) {
    if mark_fingerprints(partition, index, out).is_none() {
        out.fill(u64::MAX);
    }
}

/// Sets the bits of all fingerprints. `None` if the cell is saturated, or if no builder makes it.
fn mark_fingerprints(partition: &[u8], index: usize, out: &mut [u64; OUTLINE_WORDS]) -> Option<()> {
    let cells = partition.as_chunks().0;
    let cell: &[u8; CELL_BYTES] = cells.get(index)?;
    let header = u16::from_le_bytes([cell[0], cell[1]]);
    let Some((n, r, m)) = shape(header, index, cells.len()) else {
        return (without_fingerprints(header) == Some(false)).then_some(());
    };
    // Quotient and remainder form one number below `m << r`. This is the distance in fractions'
    // first bits between two such numbers, times 2^32, rounded down.
    let step = (1 << OUTLINE_PREFIX_BITS << 32) / (m << r) as u64;
    let end = HEADER_BITS + n + m;
    let mut rank = 0;
    for (number, word) in cell.as_chunks().0.iter().enumerate() {
        let start = number * 64;
        if start >= end {
            break;
        }
        let mut ones = u64::from_le_bytes(*word);
        if number == 0 {
            ones &= u64::MAX << HEADER_BITS;
        }
        if end - start < 64 {
            ones &= (1 << (end - start)) - 1;
        }
        while ones != 0 {
            let quotient = start + ones.trailing_zeros() as usize - HEADER_BITS - rank;
            ones &= ones - 1;
            if rank == n || quotient >= m {
                return None;
            }
            let at = index * CELL_BYTES * 8 + end + rank * r;
            let remainder = bits(partition, at)? & ((1 << r) - 1);
            let value = (quotient as u64) << r | remainder;
            let first = (value * step) >> 32;
            let last = ((value + 1) * (step + 1)) >> 32;
            for prefix in first..=last.min((1 << OUTLINE_PREFIX_BITS) - 1) {
                mark(out, prefix as u32);
            }
            rank += 1;
        }
    }
    (rank == n).then_some(())
}

/// Whether [`may_contain`] has an answer for every fraction in this cell. The ones and zeros must
/// match the header, and the last of them must be a zero.
pub(crate) fn is_possible(partition: &[u8], index: usize) -> bool {
    let cells = partition.as_chunks().0;
    let cell: &[u8; CELL_BYTES] = &cells[index];
    let header = u16::from_le_bytes([cell[0], cell[1]]);
    let Some((n, _, m)) = shape(header, index, cells.len()) else {
        return without_fingerprints(header).is_some();
    };
    let is_one = |at: usize| cell[at / 8] >> (at % 8) & 1 == 1;
    let end = HEADER_BITS + n + m;
    let ones = (HEADER_BITS..end).filter(|&at| is_one(at)).count();
    ones == n && !is_one(end - 1)
}

/// The layout (n, r, m) of a cell by its header; `None` without fingerprints, or if they do not
/// fit.
///
/// A builder never makes fewer quotients than fingerprints. Such a cell is refused, since
/// [`outline`] would visit too many first bits for one fingerprint.
#[inline]
fn shape(header: u16, index: usize, cells: usize) -> Option<(usize, usize, usize)> {
    let n = usize::from(header & ((1 << COUNT_BITS) - 1));
    let r = usize::from(header >> COUNT_BITS);
    let m = capacity(cell_bytes(index, cells)).checked_sub(n * (r + 1))?;
    (n > 0 && r <= REMAINDER_BITS_MAX && m >= n).then_some((n, r, m))
}

/// The answer of a header without quotients: `true` if saturated, `false` if empty, else `None`.
#[cold]
fn without_fingerprints(header: u16) -> Option<bool> {
    match header {
        SATURATED => Some(true),
        0 => Some(false),
        _ => None,
    }
}

/// Position of the `rank`-th zero after the header, counted from 0.
#[inline]
fn select_zero(cell: &[u8; CELL_BYTES], mut rank: u64) -> Option<usize> {
    let mut start = 0;
    let mut header = (1 << HEADER_BITS) - 1;
    for word in cell.as_chunks().0 {
        let word = u64::from_le_bytes(*word) | header;
        let sums = zeros_up_to(word);
        let count = sums >> 56;
        if rank < count {
            return Some(start + select_zero_of_word(word, sums, rank) as usize);
        }
        rank -= count;
        start += 64;
        header = 0;
    }
    None
}

/// A word with one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// A word with the top bit of each byte.
const TOPS: u64 = ONES << 7;

/// For each byte, the number of zeros in it and in all lower bytes. The top byte has the total.
///
/// Not `count_zeros`: few target processors are known to have an instruction for it, and the caller
/// uses the sums of all bytes.
#[inline]
pub(crate) fn zeros_up_to(word: u64) -> u64 {
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let nibbles = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let ones = ((nibbles + (nibbles >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(ONES);
    0x4038_3028_2018_1008 - ones
}

/// Position of the `rank`-th zero of a word with more zeros than `rank`. The sums find the byte,
/// and setting bits finds the bit.
#[inline]
pub(crate) fn select_zero_of_word(word: u64, sums: u64, rank: u64) -> u32 {
    // A byte's top bit stays set where `rank - sum` does not borrow. The lowest byte that borrows
    // contains the zero.
    let not_above = ((rank * ONES) | TOPS) - sums;
    let byte = (!not_above & TOPS).trailing_zeros() & 0x38;
    let before = sums << 8 >> byte;
    let mut rest = word >> byte;
    // Fewer than eight iterations, since the zero is in this byte.
    for _ in 0..(rank.wrapping_sub(before) & 7) {
        rest |= rest + 1;
    }
    byte + rest.trailing_ones()
}

/// At least 16 bits from bit `at` on, which is in a cell or just after it. The partition's checksum
/// follows, so the read stays inside.
#[inline]
fn bits(partition: &[u8], at: usize) -> Option<u64> {
    let four = partition.get(at / 8..at / 8 + 4)?.try_into().ok()?;
    Some(u64::from(u32::from_le_bytes(four) >> (at % 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_every_zero_of_a_word() {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..2000 {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            for candidate in [
                word,
                0,
                !(1 << (word % 64)),
                word & word << 7,
                word | word << 9,
            ] {
                let sums = zeros_up_to(candidate);
                let zeros: Vec<u32> = (0..64).filter(|b| candidate >> b & 1 == 0).collect();
                assert_eq!(sums >> 56, zeros.len() as u64);
                for (rank, &position) in zeros.iter().enumerate() {
                    assert_eq!(select_zero_of_word(candidate, sums, rank as u64), position);
                }
            }
        }
    }

    #[test]
    fn a_cell_finds_its_fractions_at_every_load() {
        for (index, cells) in [(0, 32), (31, 32), (0, 1), (4, 5)] {
            for n in 0..=600u64 {
                let mut fractions: Vec<u64> = (0..n)
                    .map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                    .collect();
                if n % 3 == 0 {
                    // Crowded at both ends: first quotient, last quotient, longest runs.
                    for (i, f) in fractions.iter_mut().enumerate() {
                        *f = if i % 2 == 0 {
                            i as u64
                        } else {
                            u64::MAX - i as u64
                        };
                    }
                }
                fractions.sort_unstable();
                // Bytes around the cell must not matter.
                let mut partition = vec![0xa5; cells * CELL_BYTES];
                let cell = &mut partition[index * CELL_BYTES..][..cell_bytes(index, cells)];
                cell.fill(0);
                build(cell, &fractions);
                for &fraction in &fractions {
                    assert_eq!(
                        may_contain(&partition, index, fraction),
                        Some(true),
                        "{n} fractions, {fraction:x}"
                    );
                }
            }
        }
    }
}
