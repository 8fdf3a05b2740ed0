//! Heads: the first eight bytes of strings as numbers. A search among sorted strings then compares
//! integers.
//!
//! Different heads compare as their strings do. Equal heads say nothing, because zeros fill up a
//! shorter string.

use std::cmp::Ordering;
use std::ops::Range;

use terrapin_disk::LongBox;

/// Interpolations before a search turns to halving.
const GUESSES: usize = 4;
/// Heads in two cache lines. A search among at most this many heads does not interpolate.
const fn few<H>() -> usize {
    128 / size_of::<H>()
}

/// The first eight bytes as a number that compares as the bytes do. Zeros fill up a shorter string.
#[inline]
#[must_use]
pub fn head(bytes: &[u8]) -> u64 {
    if let Some(chunk) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*chunk);
    }
    // Two pieces may overlap. They agree on the bytes that both hold.
    let below = 64 - 8 * bytes.len() as u32;
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
            u64::from(first) << 32 | u64::from(last) << below
        }
        _ => match (bytes.first_chunk::<2>(), bytes.last_chunk::<2>()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u16::from_be_bytes(*first), u16::from_be_bytes(*last));
                u64::from(first) << 48 | u64::from(last) << below
            }
            _ => bytes.first().map_or(0, |&byte| u64::from(byte) << 56),
        },
    }
}

/// The head of a string that is stored in two pieces.
#[inline]
#[must_use]
pub fn head_of_pieces((front, rest): (&[u8], &[u8])) -> u64 {
    match front.len() {
        0..8 => head(front) | head(rest) >> (8 * front.len()),
        _ => head(front),
    }
}

/// A head in one of its stored forms.
pub trait Head: Copy {
    /// The head as the number that [`head`] returns.
    fn number(self) -> u64;
}

impl Head for u64 {
    #[inline]
    fn number(self) -> u64 {
        self
    }
}

/// A head stored as its eight bytes.
impl Head for [u8; 8] {
    #[inline]
    fn number(self) -> u64 {
        u64::from_be_bytes(self)
    }
}

/// A head stored as its first four bytes, whose other bytes are zeros.
impl Head for [u8; 4] {
    #[inline]
    fn number(self) -> u64 {
        u64::from(u32::from_be_bytes(self)) << 32
    }
}

/// The common start of some strings. A comparison with a short prefix reads only the heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    bytes: LongBox,
    head: u64,
    /// The bits of a head that the prefix determines.
    mask: u64,
}

impl Prefix {
    /// Makes a prefix of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Prefix {
            bytes: bytes.into(),
            head: head(bytes),
            mask: head_mask(bytes.len()),
        }
    }

    /// The bytes of the prefix.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The rest of a string behind the prefix.
    ///
    /// # Errors
    ///
    /// The order of the string and the prefix if the string does not begin with the prefix. The
    /// order is never `Equal`.
    #[inline]
    pub fn strip<'a>(&self, string: &'a [u8]) -> Result<&'a [u8], Ordering> {
        if self.bytes.len() <= 8 && string.len() >= self.bytes.len() {
            return match (head(string) & self.mask).cmp(&self.head) {
                Ordering::Equal => Ok(&string[self.bytes.len()..]),
                unequal => Err(unequal),
            };
        }
        match string.strip_prefix(&*self.bytes) {
            Some(rest) => Ok(rest),
            None => Err(string.cmp(&self.bytes)),
        }
    }
}

/// The bits of a head that a string of `bytes` bytes determines.
#[inline]
pub(crate) fn head_mask(bytes: usize) -> u64 {
    match bytes {
        0 => 0,
        1..8 => u64::MAX << (64 - 8 * bytes),
        _ => u64::MAX,
    }
}

/// The range of heads equal to `wanted` among ascending heads. The range is empty, at the position
/// that `wanted` would take, if there are none. O(log n).
#[inline]
#[must_use]
pub fn equal_heads<H: Head>(heads: &[H], wanted: u64) -> Range<usize> {
    let low = heads_before(heads, wanted);
    let is_equal = |head: &H| head.number() == wanted;
    let mut end = low;
    if heads.get(low).is_some_and(is_equal) {
        end += heads[low..].partition_point(is_equal);
    }
    low..end
}

/// The number of heads below `wanted` among ascending heads.
///
/// The search interpolates first, each time between a head below `wanted` and one above. Heads of
/// hashed or numbered keys are spread evenly. An interpolation then costs two cache lines, and
/// halving costs one for each step. Halving finishes the search. O(log n) in any case.
#[inline]
#[must_use]
pub fn heads_before<H: Head>(heads: &[H], wanted: u64) -> usize {
    let among = if heads.len() <= few::<H>() {
        0..heads.len()
    } else {
        interpolate(heads, wanted)
    };
    among.start + heads[among].partition_point(|head| head.number() < wanted)
}

/// A range of positions that contains the first head not below `wanted`, unless that head is right
/// behind the range.
fn interpolate<H: Head>(heads: &[H], wanted: u64) -> Range<usize> {
    let (mut low, mut high) = (0, heads.len());
    // Invariant: all heads before `low` are below `wanted`, and no head from `high` on is.
    let (mut below, mut above) = (0, u64::MAX);
    if let (Some(&first), Some(&last)) = (heads.first(), heads.last()) {
        (below, above) = (first.number(), last.number());
    }
    for _ in 0..GUESSES {
        if high - low <= few::<H>() || wanted <= below || wanted > above {
            break;
        }
        // Since `below < wanted <= above`, the part is from 0 to 1. Rounding costs precision, not
        // correctness. One instruction converts a signed number to a float.
        let signed = |distance: u64| (distance >> 1) as i64 as f64;
        let part = signed(wanted - below) / signed(above - below);
        let guess = low + (part * (high - low) as i64 as f64) as i64 as usize;
        let margin = few::<H>() / 2;
        let (from, to) = (
            guess.saturating_sub(margin).clamp(low, high - 1),
            (guess + margin).min(high - 1),
        );
        let first = heads[from].number();
        if first < wanted {
            let last = heads[to].number();
            if last < wanted {
                (low, below) = (to + 1, last);
            } else {
                (low, below) = (from + 1, first);
                (high, above) = (to, last);
            }
        } else {
            (high, above) = (from, first);
        }
    }
    low..high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_compare_as_strings_do() {
        let strings: [&[u8]; 9] = [
            b"",
            b"\0",
            b"a",
            b"a\0b",
            b"ab",
            b"abcdefg",
            b"abcdefgh",
            b"abcdefi",
            b"\xff",
        ];
        for a in strings {
            for b in strings {
                if head(a) != head(b) {
                    assert_eq!(head(a) < head(b), a < b, "{a:?} {b:?}");
                }
            }
        }
        for bytes in 0..10 {
            let string = &b"abcdefghi"[..bytes.min(9)];
            let mut filled = [0; 8];
            filled[..bytes.min(8)].copy_from_slice(&string[..bytes.min(8)]);
            assert_eq!(head(string), u64::from_be_bytes(filled));
            for cut in 0..=string.len() {
                assert_eq!(head_of_pieces(string.split_at(cut)), head(string));
            }
        }
    }

    #[test]
    fn a_prefix_is_stripped_or_gives_the_order() {
        for prefix in [&b""[..], b"b", b"bb\0", b"bcdefghi", b"bcdefghij"] {
            let stripped = Prefix::new(prefix);
            for string in [
                &b""[..],
                b"\0",
                b"a",
                b"b",
                b"bb",
                b"bb\0",
                b"bb\0\0",
                b"bcdefgh",
                b"bcdefghi",
                b"bcdefghijk",
                b"bcdefghz",
                b"\xff",
            ] {
                let expected = match string.strip_prefix(prefix) {
                    Some(rest) => Ok(rest),
                    None => Err(string.cmp(prefix)),
                };
                assert_eq!(stripped.strip(string), expected, "{prefix:?} {string:?}");
            }
        }
    }

    #[test]
    fn a_search_agrees_with_a_plain_one_for_each_distribution() {
        let mut random = 1u64;
        let mut draw = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            random >> 7 ^ random << 31
        };
        for round in 0..600usize {
            let mut heads: Vec<u64> = (0..round % 200)
                .map(|i| match round % 6 {
                    0 => draw(),
                    1 => 1 << (draw() % 64),
                    2 => draw() % 20,
                    3 => u64::MAX - draw() % 300,
                    4 => i as u64 * 1000,
                    _ => [0, u64::MAX, draw()][i % 3],
                })
                .collect();
            heads.sort_unstable();
            let near: Vec<u64> = heads
                .iter()
                .flat_map(|&h| [h, h.saturating_sub(1), h.saturating_add(1)])
                .chain([0, u64::MAX, draw()])
                .collect();
            for wanted in near {
                let low = heads.partition_point(|&h| h < wanted);
                let high = heads.partition_point(|&h| h <= wanted);
                assert_eq!(equal_heads(&heads, wanted), low..high, "{heads:?} {wanted}");
                let bytes: Vec<[u8; 8]> = heads.iter().map(|h| h.to_be_bytes()).collect();
                assert_eq!(equal_heads(&bytes, wanted), low..high);
                let short: Vec<[u8; 4]> = bytes.iter().map(|b| *b.first_chunk().unwrap()).collect();
                let before = short.partition_point(|s| s.number() < wanted);
                assert_eq!(heads_before(&short, wanted), before);
            }
        }
    }
}
