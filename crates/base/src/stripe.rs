//! What threads do all the time, in parts that few of them share, so that they do not wait for each
//! other's cache lines: a line that two processors write by turns costs each of them some fifty
//! nanoseconds a time, and more the more they are.

use std::ops::Deref;

use crate::sync::{Arc, AtomicUsize, OnceLock, Ordering, thread_local};

/// Parts of what threads write each for itself.
pub const STRIPES: usize = 8;

thread_local! {
    static STRIPE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES
    };
}

/// The calling thread's part, which every eighth thread shares. Always the same for a thread; the
/// first while it ends.
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

/// An [`Arc`] again, for threads that clone and drop it all the time: with a count of references
/// for each stripe. A stripe's is made when one of its threads first asks, and goes when this is
/// dropped and nobody holds it.
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

/// One of [`Shares`], on a cache line (and the one beside it, which processors fetch too) of its
/// own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Share<T>(Arc<T>);

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Shares(OnceLock::new())
    }
}

impl<T> Shares<T> {
    /// The share of the calling thread's stripe; it is in the `value` of who asked first.
    #[inline]
    pub fn get(&self, value: &Arc<T>) -> &Arc<Share<T>> {
        let shares = self.0.get_or_init(Box::default);
        shares[stripe()].get_or_init(|| Share::lone(value))
    }
}

impl<T> Share<T> {
    /// One of no stripe.
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
    fn a_share_is_made_once_a_stripe_and_goes_with_the_last_who_holds_it() {
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
