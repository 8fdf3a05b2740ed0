//! Which record an operation picks: uniform, zipfian (scrambled), or latest.

use terrapin_base::{Error, Result};

/// YCSB's skew.
const THETA: f64 = 0.99;

/// How requests spread over the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Zipfian with exponent 0.99; the popular records are scattered over the key space.
    Zipfian,
    /// Every record is equally likely.
    Uniform,
}

impl std::str::FromStr for Distribution {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "zipfian" => Ok(Distribution::Zipfian),
            "uniform" => Ok(Distribution::Uniform),
            _ => Err(Error::invalid("a distribution is zipfian or uniform")
                .with("given", text.to_owned())),
        }
    }
}

/// A small, fast generator of random bits (SplitMix64).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same bits.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(mix(seed ^ 0x5eed_5eed_5eed_5eed))
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A bijection on 64 bits that scatters neighbours.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Zipfian ranks below a bound that may grow: the method of Gray et al., *Quickly Generating
/// Billion-Record Synthetic Databases* (SIGMOD 1994), as YCSB uses it. Growing costs a `powf` for
/// each new item.
#[derive(Clone)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    zeta_two: f64,
    alpha: f64,
}

impl Zipfian {
    /// For ranks `0..items`; at least one item. O(items).
    #[must_use]
    pub fn new(items: u64) -> Self {
        let mut zipfian = Zipfian {
            items: 0,
            zeta: 0.0,
            zeta_two: 1.0 + 0.5f64.powf(THETA),
            alpha: 1.0 / (1.0 - THETA),
        };
        zipfian.grow(items.max(1));
        zipfian
    }

    /// Raises the bound; a smaller one changes nothing.
    pub fn grow(&mut self, items: u64) {
        for rank in self.items..items {
            self.zeta += 1.0 / ((rank + 1) as f64).powf(THETA);
        }
        self.items = self.items.max(items);
    }

    /// A rank; 0 is the most popular.
    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        let n = self.items as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - self.zeta_two / self.zeta);
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.zeta_two {
            return 1.min(self.items - 1);
        }
        ((n * (eta * u - eta + 1.0).powf(self.alpha)) as u64).min(self.items - 1)
    }
}

/// A prime above every number of records, so it shares no factor with any.
const SCATTER: u64 = 0xffff_ffff_ffff_ffc5;

/// Scatters ranks over `0..items`: each rank gets an item of its own, so popular records are
/// anywhere.
///
/// YCSB reduces a hash of the rank to the items. Several ranks then share an item and others have
/// none, so the working set depends on the hash and the number of items.
pub(crate) fn scatter(rank: u64, items: u64) -> u64 {
    (u128::from(rank) * u128::from(SCATTER) % u128::from(items)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipfian_ranks_follow_the_law() {
        let items = 1000;
        let zipfian = Zipfian::new(items);
        let zeta: f64 = (1..=items).map(|i| 1.0 / (i as f64).powf(THETA)).sum();
        assert!((zipfian.zeta - zeta).abs() < 1e-9);
        let mut random = Random::new(1);
        let mut seen = vec![0u64; items as usize];
        let draws = 1_000_000;
        for _ in 0..draws {
            seen[zipfian.rank(&mut random) as usize] += 1;
        }
        // The method is exact for the first two ranks and close beyond.
        for rank in [0usize, 1] {
            let expected = draws as f64 / ((rank + 1) as f64).powf(THETA) / zeta;
            assert!(
                (seen[rank] as f64 / expected - 1.0).abs() < 0.05,
                "rank {rank}: {} for {expected}",
                seen[rank]
            );
        }
        let top: u64 = seen[..100].iter().sum();
        let expected: f64 = (1..=100).map(|i| 1.0 / (i as f64).powf(THETA)).sum::<f64>() / zeta;
        assert!((top as f64 / draws as f64 / expected - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_grown_generator_equals_a_large_one_and_one_item_is_enough() {
        let mut grown = Zipfian::new(10);
        grown.grow(500);
        assert!((grown.zeta - Zipfian::new(500).zeta).abs() < 1e-9);
        let (one, mut random) = (Zipfian::new(1), Random::new(2));
        assert!((0..100).all(|_| one.rank(&mut random) == 0));
    }

    #[test]
    fn every_rank_is_scattered_to_an_item_of_its_own() {
        for items in [1, 2, 1000, 150_000, 300_000] {
            let mut seen = vec![false; items as usize];
            for rank in 0..items {
                seen[scatter(rank, items) as usize] = true;
            }
            assert!(seen.iter().all(|&hit| hit), "{items} items");
        }
        let near = (1..1000)
            .filter(|&rank| scatter(rank, 3_000_000).abs_diff(scatter(rank - 1, 3_000_000)) < 1000);
        assert_eq!(near.count(), 0, "neighbours stay together");
    }

    #[test]
    fn bounded_numbers_stay_below_their_bound() {
        let mut random = Random::new(3);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[random.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
    }
}
