//! [`ArcSwap`]: a value that readers load without a lock and other threads replace as a whole. It
//! wraps arc-swap's type. In a build for the model checker, each use is a point where another
//! thread may run (see `terrapin_base::sync`).

#[cfg(not(terrapin_shuttle))]
pub(crate) use arc_swap::ArcSwap;
#[cfg(terrapin_shuttle)]
pub(crate) use checked::ArcSwap;

#[cfg(terrapin_shuttle)]
mod checked {
    use std::sync::Arc;

    use arc_swap::Guard;
    use terrapin_base::sync::point;

    /// A value with the methods of arc-swap's `ArcSwap`.
    pub(crate) struct ArcSwap<T>(arc_swap::ArcSwap<T>);

    impl<T> ArcSwap<T> {
        pub fn from_pointee(value: T) -> Self {
            ArcSwap(arc_swap::ArcSwap::from_pointee(value))
        }

        pub fn load(&self) -> Guard<Arc<T>> {
            point();
            self.0.load()
        }

        pub fn load_full(&self) -> Arc<T> {
            point();
            self.0.load_full()
        }

        pub fn swap(&self, next: Arc<T>) -> Arc<T> {
            point();
            self.0.swap(next)
        }
    }
}
