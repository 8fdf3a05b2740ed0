//! Atomics of the model checker's build, with a scheduling point before every use. In memory they
//! equal the real ones, since memtables build their nodes in raw memory.

use std::sync::atomic as real;

use super::point;

pub use real::Ordering;

/// The atomics, under the module name of [`std::sync::atomic`].
pub mod atomic {
    pub use super::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub use std::sync::atomic::fence;
}

macro_rules! common {
    ($name:ident, $value:ty $(, $t:ident)?) => {
        impl$(<$t>)? $name$(<$t>)? {
            /// An atomic with this value.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            /// Loads the value, after a scheduling point.
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            /// Stores a value, after a scheduling point.
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            /// Swaps the value, after a scheduling point.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            /// Exchanges the value if it is `current`, after a scheduling point.
            pub fn compare_exchange(
                &self,
                current: $value,
                next: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, next, success, failure)
            }

            /// Exchanges the value if it is `current`. Never fails without a reason.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                next: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, next, success, failure)
            }

            /// Updates the value with a load and repeated exchanges.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut current = self.load(fetch);
                while let Some(value) = next(current) {
                    match self.compare_exchange(current, value, set, fetch) {
                        Ok(value) => return Ok(value),
                        Err(now) => current = now,
                    }
                }
                Err(current)
            }

            /// The value, borrowed uniquely.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// The value.
            #[must_use]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

macro_rules! exchanges {
    ($name:ident, $value:ty: $($method:ident)+) => {
        impl $name {
            $(
                /// Changes the value, after a scheduling point.
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$method(value, order)
                }
            )+
        }
    };
}

macro_rules! integers {
    ($($name:ident: $value:ty),+) => {
        $(
            /// The atomic of this name, with scheduling points.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(real::$name);

            common!($name, $value);
            exchanges!($name, $value: fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);
        )+
    };
}

integers!(AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicI64: i64, AtomicUsize: usize);

/// An atomic `bool` with scheduling points.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct AtomicBool(real::AtomicBool);

common!(AtomicBool, bool);
exchanges!(AtomicBool, bool: fetch_and fetch_or fetch_xor);

/// An atomic pointer with scheduling points.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicPtr<T>(real::AtomicPtr<T>);

common!(AtomicPtr, *mut T, T);

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        AtomicPtr(real::AtomicPtr::default())
    }
}
