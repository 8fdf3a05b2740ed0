//! Randomness from a seed: the seed alone repeats a failed run.

/// A small generator of random numbers (SplitMix64). Equal seeds give equal numbers on every
/// machine, always.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// An index below `end`; 0 when `end` is 0.
    pub fn index(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// A number of a half-open range.
    pub fn between(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True once in `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.index(all.len())]
    }

    /// A number from 1 to `max` with a uniform logarithm: small numbers are as likely as large
    /// ones.
    pub fn scaled(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(64 - max.leading_zeros()) + 1) as u32;
        (self.below(1u64.checked_shl(bits).unwrap_or(u64::MAX)) + 1).min(max.max(1))
    }

    /// Another generator, independent of this one's later numbers.
    pub fn fork(&mut self) -> Random {
        Random(self.bits())
    }

    /// The numbers below `end` in random order.
    pub fn shuffled(&mut self, end: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..end).collect();
        for i in (1..end).rev() {
            order.swap(i, self.index(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_within_their_bounds() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            assert_eq!(a.bits(), b.bits());
            assert!(a.below(10) < 10 && b.below(10) < 10);
            let scaled = a.scaled(1000);
            assert!((1..=1000).contains(&scaled));
            assert_eq!(scaled, b.scaled(1000));
        }
        let mut order = a.shuffled(50);
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        assert_eq!(a.index(0), 0);
    }
}
