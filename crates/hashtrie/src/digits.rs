//! Hash prefixes, their digits, and the places of nodes and leaves in the space of hashes.

use terrapin_base::{Error, Result};

/// Bits of a hash prefix.
pub(crate) const PREFIX_BITS: u32 = 40;
/// Bytes of a hash prefix in front of an order key.
pub(crate) const PREFIX_BYTES: usize = 5;
/// The first number that is no prefix.
pub(crate) const PREFIXES: u64 = 1 << PREFIX_BITS;

/// The hash prefix of an order key. Errors: `Corrupt` for a key that is too short to have one.
pub(crate) fn prefix_of(key: &[u8]) -> Result<u64> {
    let Some(bytes) = key.first_chunk::<PREFIX_BYTES>() else {
        return Err(Error::corrupt("an order key without a hash").with("bytes", key.len()));
    };
    let mut wide = [0; 8];
    wide[3..].copy_from_slice(bytes);
    Ok(u64::from_be_bytes(wide))
}

/// The smallest order key of a prefix.
#[must_use]
pub(crate) fn first_key(prefix: u64) -> [u8; PREFIX_BYTES] {
    let mut key = [0; PREFIX_BYTES];
    key.copy_from_slice(&prefix.to_be_bytes()[3..]);
    key
}

/// The fan-out of a trie: 2^1 to 2^8 children of each node. A trie of one leaf has a root of one
/// child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout(u8);

impl Fanout {
    /// Of the root of a trie that is one leaf: its child has the same stretch.
    pub(crate) const ONE: Fanout = Fanout(0);
    /// A fan-out of 16, the default.
    pub const SIXTEEN: Fanout = Fanout(4);

    /// A fan-out of 2^bits; `None` unless bits is from 1 to 8.
    #[must_use]
    pub fn new(bits: u8) -> Option<Self> {
        (1..=8).contains(&bits).then_some(Fanout(bits))
    }

    /// The bits of a digit.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Children of a node at most.
    #[must_use]
    pub fn children(self) -> usize {
        1 << self.0
    }
}

/// A part of the space of hashes: all prefixes that begin with some bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first prefix.
    lo: u64,
    /// How many leading bits all prefixes share, up to 40.
    bits: u8,
}

impl Stretch {
    /// All prefixes.
    pub(crate) const ALL: Stretch = Stretch { lo: 0, bits: 0 };

    /// The stretch whose first prefix is `lo` and whose prefixes share `bits` bits. `None` if there
    /// is no such stretch.
    #[must_use]
    pub(crate) fn new(lo: u64, bits: u8) -> Option<Self> {
        let rest = PREFIX_BITS.checked_sub(u32::from(bits))?;
        let is_aligned = lo < PREFIXES && lo & ((1 << rest) - 1) == 0;
        is_aligned.then_some(Stretch { lo, bits })
    }

    /// The first prefix.
    #[must_use]
    pub(crate) fn lo(self) -> u64 {
        self.lo
    }

    /// The first prefix behind the stretch.
    #[must_use]
    pub(crate) fn hi(self) -> u64 {
        self.lo + self.len()
    }

    /// How many leading bits all prefixes share.
    #[must_use]
    pub(crate) fn bits(self) -> u8 {
        self.bits
    }

    /// The number of prefixes: a power of two.
    #[must_use]
    pub(crate) fn len(self) -> u64 {
        1 << (PREFIX_BITS - u32::from(self.bits))
    }

    /// Whether the stretch is one prefix, which no digit divides.
    #[must_use]
    pub(crate) fn is_single(self) -> bool {
        u32::from(self.bits) == PREFIX_BITS
    }

    /// Whether a prefix is in the stretch.
    #[must_use]
    pub(crate) fn contains(self, prefix: u64) -> bool {
        (self.lo..self.hi()).contains(&prefix)
    }

    /// The first key of the stretch, and the first one behind it, as bounds: `None` at the ends of
    /// all keys.
    #[must_use]
    pub(crate) fn keys(self) -> (Option<[u8; PREFIX_BYTES]>, Option<[u8; PREFIX_BYTES]>) {
        let (lo, hi) = (self.lo, self.hi());
        let lo = (lo > 0).then(|| first_key(lo));
        (lo, (hi < PREFIXES).then(|| first_key(hi)))
    }

    /// Bits of the next digit. The last one may be shorter than the others.
    fn digit_bits(self, fanout: Fanout) -> u8 {
        fanout.bits().min(PREFIX_BITS as u8 - self.bits)
    }

    /// The number of children that the next digit gives; 1 for a single prefix.
    #[must_use]
    pub(crate) fn children(self, fanout: Fanout) -> usize {
        1 << self.digit_bits(fanout)
    }

    /// The number of the child that a prefix of this stretch belongs to.
    #[must_use]
    pub(crate) fn child_of(self, fanout: Fanout, prefix: u64) -> usize {
        let below = PREFIX_BITS - u32::from(self.bits) - u32::from(self.digit_bits(fanout));
        ((prefix - self.lo) >> below) as usize
    }

    /// A child. `number` is below [`Stretch::children`].
    #[must_use]
    pub(crate) fn child(self, fanout: Fanout, number: usize) -> Stretch {
        let bits = self.bits + self.digit_bits(fanout);
        let below = PREFIX_BITS - u32::from(bits);
        Stretch {
            lo: self.lo + ((number as u64) << below),
            bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_divide_a_stretch_for_every_fan_out() {
        for bits in 1..=8 {
            let fanout = Fanout::new(bits).unwrap();
            let mut stretch = Stretch::ALL;
            let prefix = 0xa5_1234_9876;
            let mut depth = 0;
            while !stretch.is_single() {
                let mut end = stretch.lo();
                for number in 0..stretch.children(fanout) {
                    let child = stretch.child(fanout, number);
                    assert_eq!(child.lo(), end);
                    assert_eq!(stretch.child_of(fanout, child.lo()), number);
                    assert_eq!(stretch.child_of(fanout, child.hi() - 1), number);
                    assert_eq!(Stretch::new(child.lo(), child.bits()), Some(child));
                    end = child.hi();
                }
                assert_eq!(end, stretch.hi());
                stretch = stretch.child(fanout, stretch.child_of(fanout, prefix));
                assert!(stretch.contains(prefix));
                depth += 1;
            }
            assert_eq!(depth, 40_u32.div_ceil(u32::from(bits)));
        }
        assert!(Fanout::new(0).is_none() && Fanout::new(9).is_none());
        assert!(Stretch::new(1, 8).is_none() && Stretch::new(PREFIXES, 40).is_none());
        assert!(Stretch::new(0, 41).is_none());
    }

    #[test]
    fn prefixes_come_from_keys_and_go_back() {
        let prefix = 0x01_0203_0405;
        assert_eq!(first_key(prefix), [1, 2, 3, 4, 5]);
        assert_eq!(prefix_of(&[1, 2, 3, 4, 5, 6]).unwrap(), prefix);
        assert!(prefix_of(&[1, 2, 3, 4]).is_err());
    }
}
