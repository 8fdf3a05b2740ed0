//! The same names for a model checker (shuttle): threads are coroutines on one thread of the
//! system, and every use of a lock or atomic is a point where the checker may let another one go
//! on.
//!
//! What that can find and what not: it tries interleavings of whole operations, as if all were
//! sequentially consistent. An ordering that is too weak for a real processor passes here; so the
//! orderings of publication and of the memtable's nodes are argued in their files, tried by the
//! stress tests, and by those under ThreadSanitizer (`scripts/sanitize.sh`). `Arc` and `OnceLock`
//! are the real ones and no points; neither is plain memory.

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

/// Lets others go on.
pub(crate) fn nap() {
    yield_now();
}

/// A checker of schedules knows no priorities.
pub(crate) fn give_way() {}

/// A point where another thread may come in between, for what is shared by other means than this
/// module's. None outside of a model, nor while a failed one is unwound.
pub fn point() {
    if shuttle::current::try_get_current_task().is_some() && !std::thread::panicking() {
        shuttle::thread::sleep(Duration::ZERO);
    }
}

std::thread_local! {
    /// What time it is in the model under way.
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Back to the beginning of time.
pub(super) fn restart_clock() {
    NOW_NS.set(0);
}

/// Lets time pass.
fn pass(ns: u64) {
    NOW_NS.set(NOW_NS.get().saturating_add(ns));
}

/// A clock that moves a little when it is looked at, and by leaps when somebody waits for it.
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
}

/// Bits that are the same in every run.
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
