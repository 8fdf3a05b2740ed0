//! The same names for the model checker (shuttle). Threads are coroutines on one system thread, and
//! every use of a lock or atomic is a scheduling point.
//!
//! Limits: the checker tries interleavings of whole operations, as if all were sequentially
//! consistent. It does not find an ordering that is too weak for a real processor. So publication
//! and the memtable's nodes argue their orderings in their files, and stress tests check them.
//! `Arc` and `OnceLock` are the real ones and have no scheduling points.

mod atomics;
mod locks;

use std::cell::Cell;
use std::time::Duration;

pub use atomics::*;
pub use locks::{Condvar, Mutex, MutexGuard, RwLock};
pub use shuttle::hint::spin_loop;
pub use shuttle::thread::yield_now;
pub use shuttle::thread_local;

pub(crate) use shuttle::thread::Builder;

/// Lets other threads run.
pub(crate) fn nap() {
    yield_now();
}

/// Does nothing: the model checker has no priorities.
pub(crate) fn give_way() {}

/// A scheduling point for state that is shared by other means than this module's types. Does
/// nothing outside a model, and while a failed model unwinds.
pub fn point() {
    if shuttle::current::try_get_current_task().is_some() && !std::thread::panicking() {
        shuttle::thread::sleep(Duration::ZERO);
    }
}

std::thread_local! {
    /// The current time of the running model.
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Sets the clock to zero.
pub(super) fn restart_clock() {
    NOW_NS.set(0);
}

/// Moves the clock forward.
fn pass(ns: u64) {
    NOW_NS.set(NOW_NS.get().saturating_add(ns));
}

/// A clock that moves a little with each look, and further with each timed wait.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn start() -> Self {
        Clock
    }

    pub(crate) fn now_ns(&self) -> u64 {
        pass(100);
        NOW_NS.get()
    }

    pub(crate) fn wall_ms() -> u64 {
        NOW_NS.get() / 1_000_000
    }
}

/// Bits that are equal in every run.
pub(crate) struct Entropy;

impl Entropy {
    pub(crate) fn new() -> Self {
        Entropy
    }

    pub(crate) fn draw(&self, number: u64) -> u64 {
        number
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}
