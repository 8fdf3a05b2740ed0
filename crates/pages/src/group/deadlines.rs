//! Counters of deadlines: how many records of a group or a tree expire when.

use terrapin_base::mutant;

/// Most records that one counter of [`Deadlines`] counts.
pub const DEADLINES_MAX: u64 = 1 << 47;

/// Counters of [`Deadlines`].
const COUNTERS: usize = 16;

/// The part of a group or a tree that has to be expired for a compaction to rewrite it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredPart {
    /// The moment, in milliseconds since 1970.
    pub now_ms: u64,
    /// The least part, in thousandths.
    pub permille: u64,
}

impl ExpiredPart {
    /// No part is expired enough: none has expired at the first moment.
    pub const NONE: ExpiredPart = ExpiredPart {
        now_ms: 0,
        permille: 1000,
    };
}

/// How many records expire when: 16 counters by the logarithm of the time left.
///
/// Counter 0 counts records that had less than a second left, seen from one moment
/// ([`Deadlines::seen_from_ms`]). Counter i counts those that had at least 4^(i − 1) and less than
/// 4^i seconds left. The last counter has no upper end: it begins at 4^14 seconds, 8.5 years.
/// Besides there are the first and the last deadline. Records without a deadline are not counted.
/// Without counted records this takes a pointer's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deadlines(Option<Box<Counted>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Counted {
    /// In milliseconds since 1970.
    seen_from_ms: u64,
    /// At least one is not 0.
    counts: [u64; COUNTERS],
    /// The first and the last deadline, in milliseconds since 1970.
    ends_ms: (u64, u64),
}

impl Deadlines {
    /// Counters that were taken at a moment, and the first and the last deadline, all in
    /// milliseconds since 1970. Counters beyond [`DEADLINES_MAX`] are cut to it.
    #[must_use]
    pub fn new(seen_from_ms: u64, counts: [u64; COUNTERS], ends_ms: (u64, u64)) -> Self {
        let counts = counts.map(|count| count.min(DEADLINES_MAX));
        let counted = || Counted {
            seen_from_ms,
            counts,
            ends_ms,
        };
        Deadlines((counts != [0; COUNTERS]).then(|| Box::new(counted())))
    }

    /// Whether no record is counted.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The moment from which the time left was seen, in milliseconds since 1970; 0 if no record is
    /// counted.
    #[must_use]
    pub fn seen_from_ms(&self) -> u64 {
        self.0.as_ref().map_or(0, |counted| counted.seen_from_ms)
    }

    /// The first and the last deadline, in milliseconds since 1970; 0 if no record is counted.
    #[must_use]
    pub fn ends_ms(&self) -> (u64, u64) {
        self.0.as_ref().map_or((0, 0), |counted| counted.ends_ms)
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> [u64; COUNTERS] {
        self.0
            .as_ref()
            .map_or([0; COUNTERS], |counted| counted.counts)
    }

    /// Records with a deadline.
    #[inline]
    #[must_use]
    pub fn records(&self) -> u64 {
        let add = |all: u64, count: &u64| all.saturating_add(*count);
        self.0
            .as_ref()
            .map_or(0, |counted| counted.counts.iter().fold(0, add))
    }

    /// Bytes of memory besides the pointer.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.0.as_deref().map_or(0, size_of_val)
    }

    /// Counts a deadline, as seen from a moment that is the same in all calls. O(1).
    ///
    /// ```
    /// use terrapin_pages::group::Deadlines;
    /// let mut deadlines = Deadlines::default();
    /// deadlines.count(1_000_000, 1_000_999);
    /// deadlines.count(1_000_000, 1_000_000 + 3_600_000);
    /// assert_eq!((deadlines.records(), deadlines.counts()[0]), (2, 1));
    /// ```
    #[cold]
    pub fn count(&mut self, seen_from_ms: u64, deadline_ms: u64) {
        let left = deadline_ms.saturating_sub(seen_from_ms);
        let counter = (0..COUNTERS).find(|&c| end_ms(c).is_none_or(|end| left < end));
        let counted = self.0.get_or_insert_with(|| {
            Box::new(Counted {
                seen_from_ms,
                counts: [0; COUNTERS],
                ends_ms: (deadline_ms, deadline_ms),
            })
        });
        let (first, last) = counted.ends_ms;
        counted.ends_ms = (first.min(deadline_ms), last.max(deadline_ms));
        let count = &mut counted.counts[counter.unwrap_or(COUNTERS - 1)];
        *count = count.saturating_add(1).min(DEADLINES_MAX);
    }

    /// About how many records have expired at a moment, in milliseconds since 1970. The deadlines
    /// that one counter counts are taken to be even over its time, as far as that lies between the
    /// first and the last deadline. So records of one deadline expire together.
    ///
    /// ```
    /// use terrapin_pages::group::Deadlines;
    /// let mut deadlines = Deadlines::default();
    /// // Their counter counts 16 to 64 seconds.
    /// (20..=30).for_each(|seconds| deadlines.count(1_000_000, 1_000_000 + seconds * 1000));
    /// assert_eq!(deadlines.expired_at(1_000_000 + 20_000), 0);
    /// assert_eq!(deadlines.expired_at(1_000_000 + 25_000), 5);
    /// assert_eq!(deadlines.expired_at(1_000_000 + 30_000), 11);
    /// ```
    #[must_use]
    pub fn expired_at(&self, now_ms: u64) -> u64 {
        let (seen_from, (first, last)) = (self.seen_from_ms(), self.ends_ms());
        let counts = self.counts().into_iter().enumerate();
        let expired = counts.map(|(counter, count)| {
            let start = counter.checked_sub(1).and_then(end_ms).unwrap_or(0);
            let start = seen_from.saturating_add(start).max(first);
            let end = end_ms(counter).map_or(last, |end| seen_from.saturating_add(end).min(last));
            // A sum may count records too late, but none behind the last deadline.
            if now_ms >= end {
                return count;
            }
            let passed = u128::from(now_ms.saturating_sub(start));
            let part = u128::from(count) * passed / u128::from(end.saturating_sub(start).max(1));
            u64::try_from(part).map_or(count, |part| part.min(count))
        });
        expired.fold(0, u64::saturating_add)
    }

    /// About which share of `records` records has expired at a moment, in thousandths.
    #[must_use]
    pub fn expired_permille(&self, records: u64, now_ms: u64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.expired_at(now_ms).saturating_mul(1000) / records.max(1)
    }

    /// Whether about so large a part of `records` records has expired that a compaction rewrites
    /// what holds them.
    ///
    /// ```
    /// use terrapin_pages::group::{Deadlines, ExpiredPart};
    /// let mut deadlines = Deadlines::default();
    /// deadlines.count(1_000_000, 1_000_999);
    /// let quarter = ExpiredPart { now_ms: 1_001_000, permille: 250 };
    /// assert!(deadlines.is_due(4, quarter));
    /// assert!(!deadlines.is_due(5, quarter));
    /// assert!(!Deadlines::default().is_due(0, quarter));
    /// ```
    #[inline]
    #[must_use]
    pub fn is_due(&self, records: u64, part: ExpiredPart) -> bool {
        let is_counted = !self.is_empty() && !mutant::active("idle-trees-keep-expired");
        is_counted && self.has_expired(records, part)
    }

    fn has_expired(&self, records: u64, part: ExpiredPart) -> bool {
        let expired = self.expired_at(part.now_ms);
        expired > 0 && expired.saturating_mul(1000) >= records.saturating_mul(part.permille)
    }

    /// Adds the counters of a sibling. The earlier ones are seen from the later moment then. What
    /// that leaves open counts as the longest time that may be left.
    #[inline]
    pub fn add(&mut self, other: &Deadlines) {
        if !other.is_empty() {
            self.add_counted(other);
        }
    }

    fn add_counted(&mut self, other: &Deadlines) {
        let later = self.seen_from_ms().max(other.seen_from_ms());
        let ends_ms = match self.is_empty() {
            true => other.ends_ms(),
            false => {
                let (own, other) = (self.ends_ms(), other.ends_ms());
                (own.0.min(other.0), own.1.max(other.1))
            }
        };
        let (own, other) = (self.seen_at(later), other.seen_at(later));
        let mut counts = own;
        for (count, more) in counts.iter_mut().zip(other) {
            *count = count.saturating_add(more);
        }
        *self = Deadlines::new(later, counts, ends_ms);
    }

    /// The same share of each counter, rounded down: `part` of `whole` records. Unchanged if
    /// `whole` is 0.
    #[must_use]
    pub fn share(&self, part: u64, whole: u64) -> Deadlines {
        if self.is_empty() || whole == 0 {
            return self.clone();
        }
        let scale = |count| {
            let scaled = u128::from(count) * u128::from(part) / u128::from(whole);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        Deadlines::new(
            self.seen_from_ms(),
            self.counts().map(scale),
            self.ends_ms(),
        )
    }

    /// The counters, seen from a moment that is not earlier.
    fn seen_at(&self, later_ms: u64) -> [u64; COUNTERS] {
        let passed = later_ms.saturating_sub(self.seen_from_ms());
        let mut counts = [0u64; COUNTERS];
        for (counter, count) in self.counts().into_iter().enumerate() {
            let left = end_ms(counter).map(|end| end.saturating_sub(passed));
            // The counter of the longest time left, which is below that end.
            let now = match left {
                None => COUNTERS - 1,
                Some(left) => (0..COUNTERS)
                    .find(|&counter| end_ms(counter).is_none_or(|end| left <= end))
                    .unwrap_or(COUNTERS - 1),
            };
            counts[now] = counts[now].saturating_add(count);
        }
        counts
    }
}

/// Records of a counter have less time left than this, in milliseconds; the last one has no end.
fn end_ms(counter: usize) -> Option<u64> {
    (counter + 1 < COUNTERS).then(|| 1000 << (2 * counter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: (u64, u64) = (0, u64::MAX);

    fn one(counter: usize, seen_from_ms: u64) -> Deadlines {
        let mut counts = [0; COUNTERS];
        counts[counter] = 1;
        Deadlines::new(seen_from_ms, counts, ENDS)
    }

    fn counter_of(deadlines: &Deadlines) -> usize {
        let taken = deadlines.counts().iter().position(|&count| count > 0);
        taken.unwrap()
    }

    #[test]
    fn sums_are_seen_from_the_later_moment_and_no_record_expires_earlier() {
        // Counter, milliseconds that pass, counter then.
        for (counter, passed, then) in [
            (5, 0, 5),
            // Below 1024 s: one of them may have 1023 s left after a second.
            (5, 1_000, 5),
            (5, 768_000, 4),
            (5, 767_999, 5),
            (5, 1_020_000, 1),
            (5, 1_023_000, 0),
            (5, 1_024_000, 0),
            (5, u64::MAX / 2, 0),
            (0, 0, 0),
            (14, 1_000, 14),
            (15, u64::MAX / 2, 15),
        ] {
            let mut sum = one(counter, 7_000);
            sum.add(&one(2, 7_000 + passed));
            let other = one(2, 7_000 + passed);
            assert_eq!(sum.seen_from_ms(), 7_000 + passed);
            assert_eq!(sum.records(), 2);
            let mut rest = sum.counts();
            rest[counter_of(&other)] -= 1;
            let rest = Deadlines::new(1, rest, ENDS);
            assert_eq!(counter_of(&rest), then, "{counter} after {passed} ms");
            let mut turned = other;
            turned.add(&one(counter, 7_000));
            assert_eq!(turned, sum, "the order of a sum does not matter");
        }
    }

    #[test]
    fn nothing_is_added_by_nothing_and_sums_keep_their_bounds() {
        let mut sum = Deadlines::default();
        sum.add(&Deadlines::default());
        assert!(sum.is_empty() && Deadlines::new(9, [0; COUNTERS], ENDS).is_empty());
        let most = Deadlines::new(3, [u64::MAX; COUNTERS], ENDS);
        sum.add(&most);
        assert_eq!(sum, most);
        sum.add(&most);
        assert_eq!(sum, most, "sums stop at their bounds");
        assert_eq!(sum.counts(), [DEADLINES_MAX; COUNTERS]);
    }

    #[test]
    fn records_of_one_deadline_expire_together_also_in_sums() {
        let (early, late) = (1_100_000, 5_000_000);
        let mut sum = Deadlines::default();
        (0..10).for_each(|_| sum.count(1_000_000, early));
        let expired = |sum: &Deadlines| [early - 1, early].map(|now_ms| sum.expired_at(now_ms));
        assert_eq!(expired(&sum), [0, 10]);
        // Seen from a later moment, a counter may have them that counts longer times.
        for seen_from in [1_000_000, 1_050_000, 1_099_999, 2_000_000] {
            let mut more = Deadlines::default();
            (0..10).for_each(|_| more.count(seen_from, early));
            let mut own = sum.clone();
            own.add(&more);
            assert_eq!(own.ends_ms(), (early, early));
            assert_eq!(expired(&own), [0, 20], "seen from {seen_from}");
        }
        // The last counter has no end of its own.
        let mut far = Deadlines::default();
        far.count(0, 1 << 45);
        assert_eq!(
            [(1 << 45) - 1, 1 << 45].map(|now_ms| far.expired_at(now_ms)),
            [0, 1]
        );
        let mut two = sum.clone();
        (0..10).for_each(|_| two.count(1_000_000, late));
        assert_eq!(two.ends_ms(), (early, late));
        assert_eq!(two.share(1, 2).ends_ms(), (early, late));
        assert_eq!(two.expired_at(early - 1), 0);
        assert_eq!(two.expired_at(late), 20);
    }

    #[test]
    fn a_share_is_rounded_down() {
        let counts = std::array::from_fn(|counter| counter as u64);
        let deadlines = Deadlines::new(3, counts, ENDS);
        assert_eq!(deadlines.share(7, 7), deadlines);
        assert_eq!(deadlines.share(0, 7), Deadlines::default());
        assert_eq!(deadlines.share(1, 0), deadlines);
        let half = deadlines.share(1, 2);
        assert_eq!((half.counts()[3], half.counts()[4]), (1, 2));
    }
}
