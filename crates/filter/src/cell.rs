//! A cell is a whole quotient filter in 128 bytes (the last of a partition: 124), and its load says how it is laid out.
//!
//! ```text
//! bits  0..10   n, the number of fingerprints
//! bits 10..16   r, the bits of a remainder; n = 1023 and r = 63: saturated, every hash "may" be there
//! then          n + m bits: for each of m quotients a one per fingerprint, then a zero    (m = capacity - n (r + 1))
//! then          n remainders of r bits each, ordered by quotient and remainder
//! ```
//!
//! Bits count from the least significant bit of the first byte. A fingerprint is a fraction of 64 bits: the quotient is its
//! product with `m`, integer part; the remainder is the first `r` bits of that product's fraction. Both grow with the
//! fraction, so sorted hashes make a sorted cell, whatever `m` and `r` are.

/// Bytes of a cell: two cache lines, which the hardware fetches as a pair.
pub(crate) const CELL_BYTES: usize = 128;

const HEADER_BITS: usize = 16;
const COUNT_BITS: u32 = 10;
/// Longest remainder. The fraction's first 27 bits do not depend on the partition: 10 for a quotient, 16 for a remainder.
const REMAINDER_BITS_MAX: usize = 16;
const SATURATED: u16 = u16::MAX;

/// How `n` fingerprints lie in a cell of `capacity` bits: (m, r), or none when they are too many.
fn layout(n: usize, capacity: usize) -> Option<(usize, usize)> {
    let r = (capacity / n).checked_sub(2)?.min(REMAINDER_BITS_MAX);
    Some((capacity - n * (r + 1), r))
}

#[inline]
fn split(fraction: u64, m: usize, r: usize) -> (usize, u64) {
    let product = u128::from(fraction) * m as u128;
    let remainder = ((product as u64) as u128) << r >> 64;
    ((product >> 64) as usize, remainder as u64)
}

/// Fills a zeroed cell with sorted fractions.
pub(crate) fn build(cell: &mut [u8], fractions: &[u64]) {
    let n = fractions.len();
    if n == 0 {
        return;
    }
    let capacity = cell.len() * 8 - HEADER_BITS;
    let Some((m, r)) = layout(n, capacity) else {
        cell[..2].copy_from_slice(&SATURATED.to_le_bytes());
        return;
    };
    let header = n as u16 | (r as u16) << COUNT_BITS;
    // Gathered in words on the stack: a cell is written once, and setting bits there is cheaper.
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

/// Whether the cell may hold the fraction; none when no builder makes such a cell.
#[inline]
pub(crate) fn may_contain(cell: &[u8], fraction: u64) -> Option<bool> {
    let header = u16::from_le_bytes([cell[0], cell[1]]);
    if header == SATURATED {
        return Some(true);
    }
    let n = usize::from(header & ((1 << COUNT_BITS) - 1));
    let r = usize::from(header >> COUNT_BITS);
    if n == 0 {
        return if r == 0 { Some(false) } else { None };
    }
    let capacity = cell.len() * 8 - HEADER_BITS;
    let used = n * (r + 1);
    if r > REMAINDER_BITS_MAX || used >= capacity {
        return None;
    }
    let m = capacity - used;
    let (quotient, remainder) = split(fraction, m, r);
    // Where the quotient's run begins in the unary part, and how many fingerprints lie before it.
    let run = if quotient == 0 {
        0
    } else {
        select_zero(cell, quotient - 1, n + m)? + 1
    };
    let mut unary = run;
    let mut index = run - quotient;
    while bit(cell, HEADER_BITS + unary)? {
        if index >= n {
            return None;
        }
        let found = bits(cell, HEADER_BITS + n + m + index * r, r);
        if found >= remainder {
            return Some(found == remainder);
        }
        index += 1;
        unary += 1;
    }
    Some(false)
}

/// Position of the `rank`-th zero (from 0) of the unary part, if it lies before `end`.
#[inline]
fn select_zero(cell: &[u8], mut rank: usize, end: usize) -> Option<usize> {
    let mut at = 0;
    while at < end {
        let zeros = !word(cell, HEADER_BITS / 8 + at / 8);
        let count = zeros.count_ones() as usize;
        if rank < count {
            let position = at + select_one(zeros, rank as u32) as usize;
            return (position < end).then_some(position);
        }
        rank -= count;
        at += 64;
    }
    None
}

/// Position of the `rank`-th one of a word that has more than that: the byte by prefix sums, the bit by clearing.
#[inline]
fn select_one(word: u64, rank: u32) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut sums = word - (word >> 1 & 0x5555_5555_5555_5555);
    sums = (sums & 0x3333_3333_3333_3333) + (sums >> 2 & 0x3333_3333_3333_3333);
    sums = ((sums + (sums >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(ONES);
    // Bytes of `sums` whose prefix sum is at most `rank`: a byte's top bit stays set where rank - sum does not borrow.
    let not_above = (((u64::from(rank) * ONES) | (ONES << 7)) - sums) & (ONES << 7);
    let byte = not_above.count_ones() * 8;
    let before = (sums << 8 >> byte & 0xff) as u32;
    let mut rest = word >> byte;
    for _ in before..rank {
        rest &= rest - 1;
    }
    byte + rest.trailing_zeros()
}

#[inline]
fn bit(cell: &[u8], at: usize) -> Option<bool> {
    Some(cell.get(at / 8)? >> (at % 8) & 1 == 1)
}

/// `count` ≤ 16 bits; the caller has checked that they end within the cell.
#[inline]
fn bits(cell: &[u8], at: usize, count: usize) -> u64 {
    let byte = (at / 8).min(cell.len() - 8);
    word(cell, byte) >> (at - byte * 8).min(63) & ((1 << count) - 1)
}

/// The eight bytes at `byte`, zeros behind the end.
#[inline]
fn word(cell: &[u8], byte: usize) -> u64 {
    let mut eight = [0; 8];
    if let Some(exact) = cell.get(byte..byte + 8) {
        eight.copy_from_slice(exact);
    } else if let Some(rest) = cell.get(byte..) {
        eight[..rest.len()].copy_from_slice(rest);
    }
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_every_one_of_a_word() {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..2000 {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            for candidate in [
                word,
                u64::MAX,
                1 << (word % 64),
                word & word << 7,
                word | word << 9,
            ] {
                let ones: Vec<u32> = (0..64).filter(|b| candidate >> b & 1 == 1).collect();
                for (rank, &position) in ones.iter().enumerate() {
                    assert_eq!(select_one(candidate, rank as u32), position);
                }
            }
        }
    }

    #[test]
    fn every_load_from_empty_to_saturated_finds_its_own() {
        for bytes in [CELL_BYTES, CELL_BYTES - 4] {
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
                let mut cell = vec![0; bytes];
                build(&mut cell, &fractions);
                for &fraction in &fractions {
                    assert_eq!(
                        may_contain(&cell, fraction),
                        Some(true),
                        "{n} fractions, {fraction:x}"
                    );
                }
            }
        }
    }
}
