//! What readers load without a lock and others replace as a whole. arc-swap's own, whose uses, in a
//! build for the model checker, are points where another thread may come in between (see
//! `terrapin_base::sync`).

#[cfg(not(terrapin_shuttle))]
pub(crate) use arc_swap::ArcSwap;
#[cfg(terrapin_shuttle)]
pub(crate) use checked::ArcSwap;

#[cfg(terrapin_shuttle)]
mod checked {
    use std::sync::Arc;

    use arc_swap::Guard;
    use terrapin_base::sync::point;

    /// As arc-swap's.
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
