//! A histogram of nanoseconds that many threads fill without a lock: log-linear buckets, an eighth of an octave wide, so
//! that a percentile is at most 12.5 % too high. Recording costs three relaxed atomic additions and allocates nothing.

use terrapin_base::sync::{AtomicU64, Ordering};

/// Buckets an octave.
const STEPS: usize = 8;
/// Values below 2 × [`STEPS`] have a bucket each; above, 60 octaves of [`STEPS`] buckets.
const BUCKETS: usize = 2 * STEPS + 60 * STEPS;

/// Percentiles of a latency, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// How many were measured; most operations are sampled, not all measured.
    pub count: u64,
    /// Half were at most that long.
    pub p50_ns: u64,
    /// 99 % were at most that long.
    pub p99_ns: u64,
    /// 99.9 % were at most that long.
    pub p999_ns: u64,
    /// 99.99 % were at most that long.
    pub p9999_ns: u64,
    /// All of them together.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// See the module.
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    total: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            total: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 2 * STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize - 4; // 16..32 is octave 0
    let step = (ns >> (octave + 1)) as usize - STEPS; // the three bits below the top one
    2 * STEPS + octave * STEPS + step
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < 2 * STEPS {
        return bucket as u64;
    }
    let (octave, step) = ((bucket - 2 * STEPS) / STEPS, (bucket - 2 * STEPS) % STEPS);
    let next = ((STEPS + step + 1) as u128) << (octave + 1);
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    /// Counts one latency.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(ns, Ordering::Relaxed);
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// The percentiles so far.
    pub fn latency(&self) -> Latency {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .collect();
        let count: u64 = counts.iter().sum();
        let max_ns = self.max.load(Ordering::Relaxed);
        let percentile = |ten_thousandths: u64| {
            let rank = (count * ten_thousandths).div_ceil(10_000);
            let mut seen = 0;
            for (place, &n) in counts.iter().enumerate() {
                seen += n;
                if n > 0 && seen >= rank {
                    return upper(place).min(max_ns);
                }
            }
            0
        };
        Latency {
            count,
            p50_ns: percentile(5000),
            p99_ns: percentile(9900),
            p999_ns: percentile(9990),
            p9999_ns: percentile(9999),
            total_ns: self.total.load(Ordering::Relaxed),
            max_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_an_eighth_of_an_octave_wide() {
        let mut last = 0;
        for value in (0..100_000)
            .chain((17..64).flat_map(|b| [(1u64 << b) - 1, 1 << b, (1 << b) + (1 << (b - 1))]))
        {
            let place = bucket(value);
            assert!(place >= last || value < 100_000, "{value}");
            assert!(upper(place) >= value && place < BUCKETS, "{value}");
            assert!(
                upper(place) as u128 * 8 <= value as u128 * 9 + 8,
                "{value} {}",
                upper(place)
            );
            last = place;
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let histogram = Histogram::default();
        assert_eq!(histogram.latency(), Latency::default());
        for value in 1..=1000 {
            histogram.record(value * 1000);
        }
        let found = histogram.latency();
        assert_eq!((found.count, found.max_ns), (1000, 1_000_000));
        assert_eq!(found.total_ns, 500_500_000);
        for (ns, exact) in [
            (found.p50_ns, 500_000),
            (found.p99_ns, 990_000),
            (found.p999_ns, 999_000),
            (found.p9999_ns, 1_000_000),
        ] {
            assert!(ns >= exact && ns <= exact + exact / 8, "{ns} for {exact}");
        }
    }
}
