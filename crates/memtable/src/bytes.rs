//! Sets of key bytes, as nodes store them. A set is either sixteen sorted bytes in one `u128`, the
//! first in the lowest bits, or a bitmap of 256 bits.

/// Length of the common prefix of two strings.
#[inline]
pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    let mut at = 0;
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let (mut left, mut right) = ([0; 8], [0; 8]);
        left.copy_from_slice(x);
        right.copy_from_slice(y);
        let differ = u64::from_le_bytes(left) ^ u64::from_le_bytes(right);
        if differ != 0 {
            return at + differ.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..]
        .iter()
        .zip(&b[at..])
        .take_while(|(x, y)| x == y)
        .count()
}

/// Inserts `byte` into sorted keys at `index`.
#[inline]
pub(crate) fn insert_key(keys: u128, index: usize, byte: u8) -> u128 {
    let below = (1 << (8 * index)) - 1;
    keys & below | u128::from(byte) << (8 * index) | (keys & !below) << 8
}

/// Whether the set has `byte`.
#[inline]
pub(crate) fn is_present(words: &[u64; 4], byte: u8) -> bool {
    words[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0
}

/// Number of bytes in the set.
#[inline]
pub(crate) fn popcount(words: &[u64; 4]) -> usize {
    words.iter().map(|w| w.count_ones() as usize).sum()
}

/// Number of bytes in the set that are below `byte`.
#[inline]
pub(crate) fn rank(words: &[u64; 4], byte: u8) -> usize {
    let word = usize::from(byte >> 6);
    let mut below = 0;
    for (i, w) in words.iter().enumerate() {
        let mask = if i < word { u64::MAX } else { 0 };
        below += (w & mask).count_ones();
    }
    (below + (words[word] & ((1 << (byte & 63)) - 1)).count_ones()) as usize
}

/// The first byte of the set at or above `byte`.
#[inline]
pub(crate) fn next_present(words: &[u64; 4], byte: u8) -> Option<u8> {
    let mut word = usize::from(byte >> 6);
    let mut bits = words[word] & (u64::MAX << (byte & 63));
    while bits == 0 {
        word += 1;
        bits = *words.get(word)?;
    }
    Some((word as u8) << 6 | bits.trailing_zeros() as u8)
}

/// The last byte of the set at or below `byte`.
#[inline]
pub(crate) fn previous_present(words: &[u64; 4], byte: u8) -> Option<u8> {
    let mut word = usize::from(byte >> 6);
    let mut bits = words[word] & (u64::MAX >> (63 - (byte & 63)));
    while bits == 0 {
        word = word.checked_sub(1)?;
        bits = words[word];
    }
    Some((word as u8) << 6 | (63 - bits.leading_zeros()) as u8)
}

/// Operations on sixteen sorted key bytes at once.
#[cfg(target_arch = "x86_64")]
pub(crate) mod simd {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_max_epu8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
    };

    #[inline]
    fn vector(keys: u128) -> __m128i {
        // SAFETY: SSE2 is part of the architecture.
        unsafe { _mm_set_epi64x((keys >> 64) as i64, keys as i64) }
    }

    /// The first index of `byte`; 32 if the keys do not have it.
    #[inline]
    pub(crate) fn find(keys: u128, byte: u8) -> u32 {
        // SAFETY: SSE2 is part of the architecture.
        let equal =
            unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(vector(keys), _mm_set1_epi8(byte as i8))) };
        equal.trailing_zeros()
    }

    /// How many of the first `count` keys are below `byte`.
    #[inline]
    pub(crate) fn rank(keys: u128, count: usize, byte: u8) -> usize {
        let keys = vector(keys);
        // SAFETY: SSE2 is part of the architecture.
        let from = unsafe {
            _mm_movemask_epi8(_mm_cmpeq_epi8(
                _mm_max_epu8(keys, _mm_set1_epi8(byte as i8)),
                keys,
            ))
        };
        (from.trailing_zeros() as usize).min(count)
    }
}

/// Operations on sixteen sorted key bytes, one by one. The compiler uses the vector instructions of
/// the architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod simd {
    /// The first index of `byte`; 32 if the keys do not have it.
    #[inline]
    pub(crate) fn find(keys: u128, byte: u8) -> u32 {
        keys.to_le_bytes()
            .iter()
            .position(|&key| key == byte)
            .map_or(32, |place| place as u32)
    }

    /// How many of the first `count` keys are below `byte`.
    #[inline]
    pub(crate) fn rank(keys: u128, count: usize, byte: u8) -> usize {
        keys.to_le_bytes()[..count.min(16)]
            .iter()
            .filter(|&&key| key < byte)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_set_answer_like_a_sorted_list() {
        let (mut keys, mut words, mut list) = (0u128, [0u64; 4], Vec::new());
        for i in 0..16u8 {
            let byte = i.wrapping_mul(119).wrapping_add(128);
            keys = insert_key(keys, simd::rank(keys, list.len(), byte), byte);
            words[usize::from(byte >> 6)] |= 1 << (byte & 63);
            list.push(byte);
            list.sort_unstable();
            assert_eq!(keys.to_le_bytes()[..list.len()], list);
            for byte in 0..=255 {
                let below = list.partition_point(|&b| b < byte);
                let place = list.iter().position(|&b| b == byte);
                assert_eq!(simd::rank(keys, list.len(), byte), below);
                assert_eq!(
                    Some(simd::find(keys, byte) as usize).filter(|&p| p < list.len()),
                    place
                );
                assert_eq!(
                    (rank(&words, byte), is_present(&words, byte)),
                    (below, place.is_some())
                );
                assert_eq!(
                    next_present(&words, byte),
                    list.iter().copied().find(|&b| b >= byte)
                );
                assert_eq!(
                    previous_present(&words, byte),
                    list.iter().copied().rfind(|&b| b <= byte)
                );
            }
            assert_eq!(popcount(&words), list.len());
        }
    }

    #[test]
    fn common_prefixes_of_any_length_are_found() {
        for length in 0..40usize {
            let whole = vec![b'k'; length];
            assert_eq!(common(&whole, &[&whole[..], b"x"].concat()), length);
            for differ in 0..length {
                let mut other = whole.clone();
                other[differ] ^= 1;
                assert_eq!(common(&whole, &other), differ);
            }
        }
    }
}
