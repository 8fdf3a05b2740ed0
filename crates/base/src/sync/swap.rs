//! [`ArcSwap`]: a value that readers load without a lock and other threads replace as a whole. It
//! wraps arc-swap's type. In a build for the model checker, each use is a point where another
//! thread may run (see the module `sync`).

#[cfg(not(terrapin_shuttle))]
pub use arc_swap::ArcSwap;
#[cfg(terrapin_shuttle)]
pub use checked::ArcSwap;

#[cfg(terrapin_shuttle)]
mod checked {
    use std::sync::Arc;

    use super::super::point;
    use arc_swap::Guard;

    /// A value with the methods of arc-swap's `ArcSwap`.
    pub struct ArcSwap<T>(arc_swap::ArcSwap<T>);

    impl<T> ArcSwap<T> {
        /// Holds this value first.
        pub fn from_pointee(value: T) -> Self {
            ArcSwap(arc_swap::ArcSwap::from_pointee(value))
        }

        /// The value now, without a count where that is possible.
        pub fn load(&self) -> Guard<Arc<T>> {
            point();
            self.0.load()
        }

        /// The value now, counted.
        pub fn load_full(&self) -> Arc<T> {
            point();
            self.0.load_full()
        }

        /// Replaces the value, and returns the one before.
        pub fn swap(&self, next: Arc<T>) -> Arc<T> {
            point();
            self.0.swap(next)
        }
    }
}
