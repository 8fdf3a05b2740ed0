//! Whether leaves' filters are worth asking. What gets as far as a leaf is mostly there, and a
//! filter that never denies saves no read: it takes memory that blocks could have, a visit a
//! lookup, and on a cold start a read of its own. So a tree asks its leaves' filters only while
//! they deny some of what they are asked (RocksDB has no filters at its last level for such trees,
//! by an option; here the tree finds out, and turns back).
//!
//! Only lookups whose block is not cached count, as only those can be saved a read. One that finds
//! nothing weighs as much as 64 that find their key: about what a read costs beside what asking
//! does.

use terrapin_base::sync::{AtomicU32, Ordering};

/// What one lookup that finds nothing takes from the credit; one that finds its key adds 1.
const ABSENT_COST: u32 = 64;
/// With so much credit filters are no longer asked; then sixteen lookups in vain are read for
/// before they are again.
const CREDIT_MAX: u32 = 1024;
/// Beside the credit: filters are not asked.
const TRUSTED: u32 = 1 << 31;

/// What a tree's lookups told, in all of its versions. Counts are not exact where many threads look
/// up at once.
#[derive(Debug, Default)]
pub(crate) struct LeafFilters(AtomicU32);

impl LeafFilters {
    /// Whether a leaf's filter is to be asked before a block is read.
    #[inline]
    pub(crate) fn are_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & TRUSTED == 0
    }

    /// A lookup whose block was not cached found its key there, or not: that was read in vain, or
    /// its filter said so.
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
        // One in a hundred that is not there changes nothing, one in thirty does.
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
