//! Locks, atomics and the threads themselves, from one place, so that a model checker can take
//! theirs (DESIGN §3).
//!
//! The engine's crates take these from here and nowhere else (held by the test
//! `locks_and_atomics_come_from_one_place`). A build with `--cfg terrapin_shuttle` gets them from
//! `checked`, in which every use is a point where another thread may come in between; any other
//! build gets those of the standard library and parking_lot, by their own names.
//!
//! Locks here do not poison: a panic in a job is reported through [`crate::JobHandle`], not by
//! every later lock.

mod backoff;
#[cfg(terrapin_shuttle)]
mod checked;
#[cfg(terrapin_shuttle)]
pub mod explore;
#[cfg(not(terrapin_shuttle))]
mod real;

pub use backoff::Backoff;
#[cfg(terrapin_shuttle)]
pub use checked::*;
#[cfg(not(terrapin_shuttle))]
pub use real::*;
pub use std::sync::{Arc, OnceLock, Weak};
