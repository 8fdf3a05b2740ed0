//! Locks, atomics and threads, from one place, so that a model checker can replace them.
//!
//! The engine's crates use these only, which the test `locks_and_atomics_come_from_one_place`
//! checks. In a build with `--cfg terrapin_shuttle` they come from `checked`, where every use is a
//! scheduling point. Any other build gets those of the standard library and parking_lot under their
//! own names.
//!
//! Locks do not become poisoned. [`crate::JobHandle`] reports a panic in a job.

mod backoff;
#[cfg(terrapin_shuttle)]
mod checked;
#[cfg(terrapin_shuttle)]
pub mod explore;
#[cfg(not(terrapin_shuttle))]
mod real;
mod swap;

pub use backoff::Backoff;
#[cfg(terrapin_shuttle)]
pub use checked::*;
#[cfg(not(terrapin_shuttle))]
pub use real::*;
pub use std::sync::{Arc, OnceLock, Weak};
pub use swap::ArcSwap;
