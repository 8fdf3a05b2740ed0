//! Locks and atomics, from one place, so that a model checker can take theirs (DESIGN §3).
//!
//! Locks here do not poison: a panic in a job is reported through [`crate::JobHandle`], not by every later lock.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub use std::sync::atomic::{
    self, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub use std::sync::{Arc, OnceLock, Weak};
