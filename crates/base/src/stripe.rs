//! Stripes: shared state in several parts, each written by few threads.
//!
//! A cache line that two processors write in turn costs each of them about fifty nanoseconds per
//! write, and more with more processors. So threads write to the part of their own stripe.

use std::ops::Deref;

use crate::sync::{Arc, AtomicUsize, OnceLock, Ordering, thread_local};

/// Number of stripes.
pub const STRIPES: usize = 8;

thread_local! {
    static STRIPE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

/// The calling thread's stripe, below [`STRIPES`]. Every eighth thread has the same one. It never
/// changes for a thread, except that a thread that ends may see stripe 0.
///
/// ```
/// assert_eq!(terrapin_base::stripe(), terrapin_base::stripe());
/// assert!(terrapin_base::stripe() < terrapin_base::STRIPES);
/// ```
#[inline]
#[must_use]
pub fn stripe() -> usize {
    STRIPE.try_with(|s| *s).unwrap_or(0)
}

/// Copies of one [`Arc`], with a reference count for each stripe, for threads that clone and drop
/// it often.
///
/// A stripe's copy is made at its first use. It lives until this value and all its clones are
/// dropped.
///
/// ```
/// use std::sync::Arc;
/// use terrapin_base::Shares;
///
/// let value = Arc::new(5);
/// let shares = Shares::default();
/// let held = shares.get(&value).clone();
/// assert!(Arc::ptr_eq(&**held, &value));
/// drop(shares);
/// assert_eq!(Arc::strong_count(&value), 2);
/// ```
#[derive(Debug)]
pub struct Shares<T>(OnceLock<Box<[Made<T>; STRIPES]>>);

type Made<T> = OnceLock<Arc<Share<T>>>;

/// One copy of [`Shares`], alone on a pair of cache lines, which processors fetch together.
#[derive(Debug)]
#[repr(align(128))]
pub struct Share<T>(Arc<T>);

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Shares(OnceLock::new())
    }
}

impl<T> Shares<T> {
    /// The copy of the calling thread's stripe. It refers to the `value` of the stripe's first
    /// call.
    #[inline]
    pub fn get(&self, value: &Arc<T>) -> &Arc<Share<T>> {
        let shares = self.0.get_or_init(Box::default);
        shares[stripe()].get_or_init(|| Share::lone(value))
    }
}

impl<T> Share<T> {
    /// A copy that belongs to no stripe.
    pub fn lone(value: &Arc<T>) -> Arc<Self> {
        Arc::new(Share(value.clone()))
    }
}

impl<T> Deref for Share<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stripe_makes_one_share_that_lives_until_its_last_clone() {
        let value = Arc::new(());
        let shares = Shares::default();
        let held: Vec<_> = std::thread::scope(|scope| {
            let ask = || (stripe(), shares.get(&value).clone());
            let threads: Vec<_> = (0..3 * STRIPES).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let made = Arc::strong_count(&value) - 1;
        assert_eq!(made, STRIPES);
        for (stripe, share) in &held {
            let same = held.iter().filter(|(other, _)| stripe == other);
            assert!(same.clone().count() >= 2);
            assert!(same.into_iter().all(|(_, other)| Arc::ptr_eq(share, other)));
        }
        drop(shares);
        assert_eq!(Arc::strong_count(&value) - 1, made);
        drop(held);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
