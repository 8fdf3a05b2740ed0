//! Decides whether the filters of leaves are worth asking.
//!
//! Most keys that reach a leaf are there. A filter that never denies a key saves no read. But it
//! takes memory that blocks could use, a visit for each lookup, and on a cold start a read of its
//! own. So a tree asks its leaf filters only while they deny some keys. (RocksDB has an option that
//! omits filters at the last level. Here the tree finds out by itself, and returns to asking.)
//!
//! Only lookups whose block is not cached count, because only these can be saved a read. A lookup
//! that finds nothing weighs as much as 64 that find their key. This is about the cost of a read
//! relative to the cost of asking.

use terrapin_base::sync::{AtomicU32, Ordering};

/// A lookup that finds nothing takes this much credit. One that finds its key adds 1.
const ABSENT_COST: u32 = 64;
/// At this credit, filters are no longer asked. Then sixteen lookups must read in vain before
/// filters are asked again.
const CREDIT_MAX: u32 = 1024;
/// Flag beside the credit: filters are not asked.
const TRUSTED: u32 = 1 << 31;

/// What lookups learned in all versions of a tree. Counts are approximate if many threads look up
/// at once.
#[derive(Debug, Default)]
pub(crate) struct LeafFilters(AtomicU32);

impl LeafFilters {
    /// Whether to ask a leaf's filter before reading a block.
    #[inline]
    pub(crate) fn are_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & TRUSTED == 0
    }

    /// Records whether a lookup, whose block was not cached, found its key. If not, the block was
    /// read in vain, or the filter denied the key.
    #[inline]
    pub(crate) fn learn(&self, found: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let (credit, trusted) = (before & !TRUSTED, before & TRUSTED);
        let after = match found {
            true if credit + 1 >= CREDIT_MAX => CREDIT_MAX | TRUSTED,
            true => (credit + 1) | trusted,
            false if credit <= ABSENT_COST => 0,
            false => (credit - ABSENT_COST) | trusted,
        };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(filters: &LeafFilters, found: bool, times: u32) {
        (0..times).for_each(|_| filters.learn(found));
    }

    #[test]
    fn filters_that_deny_nothing_are_not_asked_until_keys_are_absent_again() {
        let filters = LeafFilters::default();
        learn(&filters, true, CREDIT_MAX - 1);
        assert!(filters.are_asked());
        learn(&filters, true, 10 * CREDIT_MAX);
        assert!(!filters.are_asked());
        // One absent key in a hundred changes nothing; one in thirty does.
        for absent in [100, 30] {
            for _ in 0..1000 {
                learn(&filters, true, absent - 1);
                learn(&filters, false, 1);
            }
            assert_eq!(filters.are_asked(), absent == 30);
        }
        learn(&filters, true, CREDIT_MAX);
        assert!(!filters.are_asked());
        learn(&filters, false, CREDIT_MAX / ABSENT_COST - 1);
        assert!(!filters.are_asked());
        learn(&filters, false, 1);
        assert!(filters.are_asked());
    }

    #[test]
    fn filters_that_deny_some_stay_asked() {
        let filters = LeafFilters::default();
        for _ in 0..10_000 {
            learn(&filters, true, 50);
            learn(&filters, false, 1);
            assert!(filters.are_asked());
        }
    }
}
