//! A histogram of nanoseconds that many threads fill without a lock: log-linear buckets, an eighth
//! of an octave wide, so that a percentile is at most 12.5 % too high. Recording costs three
//! relaxed atomic additions and allocates nothing.

use terrapin_base::sync::{AtomicU64, Ordering};

/// Buckets an octave.
const STEPS: usize = 8;
/// Values below 2 × [`STEPS`] have a bucket each; above, 60 octaves of [`STEPS`] buckets.
const BUCKETS: usize = 2 * STEPS + 60 * STEPS;

/// A histogram of durations and its percentiles, in nanoseconds. Two readings of one histogram can
/// be subtracted: [`Latency::since`].
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-latency-{}", std::process::id()));
/// # let database = terrapin::Database::open(&directory)?;
/// let before = database.metrics();
/// for key in 0..1000_u32 {
///     database.default_keyspace().put(key.to_be_bytes(), "value")?;
/// }
/// let lately = database.metrics().put_latency.since(&before.put_latency);
/// println!("{} timed puts, 99.9 % within {} ns", lately.count, lately.p999_ns);
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Latency {
    /// Number of measured durations. Most kinds of operations are sampled.
    pub count: u64,
    /// Half of the durations were at most this long.
    pub p50_ns: u64,
    /// 99 % of the durations were at most this long.
    pub p99_ns: u64,
    /// 99.9 % of the durations were at most this long.
    pub p999_ns: u64,
    /// 99.99 % of the durations were at most this long.
    pub p9999_ns: u64,
    /// The sum of the durations.
    pub total_ns: u64,
    /// The longest duration. In a difference of two readings, the upper end of the highest bucket,
    /// because the longest duration between the readings is not known.
    pub max_ns: u64,
    /// The buckets that are not empty, in ascending order. A bucket covers the eighth of an octave
    /// that ends at its `upper_ns`.
    pub buckets: Vec<Bucket>,
}

/// One bucket of a [`Latency`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Bucket {
    /// The largest duration that belongs here, in nanoseconds.
    pub upper_ns: u64,
    /// Number of durations in the bucket.
    pub count: u64,
}

impl Latency {
    fn of(buckets: Vec<Bucket>, total_ns: u64, max_ns: u64) -> Self {
        let mut latency = Latency {
            count: buckets.iter().map(|b| b.count).sum(),
            total_ns,
            max_ns,
            buckets,
            ..Latency::default()
        };
        latency.p50_ns = latency.percentile_ns(0.5);
        latency.p99_ns = latency.percentile_ns(0.99);
        latency.p999_ns = latency.percentile_ns(0.999);
        latency.p9999_ns = latency.percentile_ns(0.9999);
        latency
    }

    /// The duration, in nanoseconds, that a fraction (0.0 to 1.0) of all durations did not exceed.
    /// At most 12.5 % too high. 0 if nothing was measured.
    #[must_use]
    pub fn percentile_ns(&self, fraction: f64) -> u64 {
        let rank = (self.count as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for bucket in &self.buckets {
            seen += bucket.count;
            if seen >= rank.max(1) {
                return bucket.upper_ns.min(self.max_ns);
            }
        }
        0
    }

    /// The durations that were measured after `earlier`, an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Latency) -> Latency {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = Vec::new();
        for bucket in &self.buckets {
            while before.next_if(|b| b.upper_ns < bucket.upper_ns).is_some() {}
            let known = before.next_if(|b| b.upper_ns == bucket.upper_ns);
            let count = bucket.count.saturating_sub(known.map_or(0, |b| b.count));
            if count > 0 {
                buckets.push(Bucket { count, ..*bucket });
            }
        }
        let highest = buckets.last().map_or(0, |b: &Bucket| b.upper_ns);
        let total_ns = self.total_ns.saturating_sub(earlier.total_ns);
        Latency::of(buckets, total_ns, highest.min(self.max_ns))
    }
}

/// A histogram of nanoseconds that threads fill without a lock.
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

    /// Reads the histogram.
    pub fn latency(&self) -> Latency {
        let buckets = self.buckets.iter().enumerate();
        let filled = buckets.filter_map(|(place, count)| {
            let count = count.load(Ordering::Relaxed);
            let upper_ns = upper(place);
            (count > 0).then_some(Bucket { upper_ns, count })
        });
        let total_ns = self.total.load(Ordering::Relaxed);
        Latency::of(filled.collect(), total_ns, self.max.load(Ordering::Relaxed))
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

    #[test]
    fn a_difference_of_two_readings_is_what_came_between_them() {
        let histogram = Histogram::default();
        (0..1000).for_each(|_| histogram.record(1000));
        let before = histogram.latency();
        assert_eq!(before.since(&before), Latency::default());
        (0..10).for_each(|_| histogram.record(1000));
        (0..90).for_each(|_| histogram.record(50_000));
        let between = histogram.latency().since(&before);
        assert_eq!(between.count, 100);
        assert_eq!(between.total_ns, 10 * 1000 + 90 * 50_000);
        assert!((1000..1126).contains(&between.percentile_ns(0.1)));
        assert!((50_000..56_251).contains(&between.p50_ns), "{between:?}");
        assert!((50_000..56_251).contains(&between.max_ns), "{between:?}");
        assert_eq!(histogram.latency().since(&Latency::default()), {
            let mut all = histogram.latency();
            all.max_ns = 50_000;
            all
        });
    }
}
