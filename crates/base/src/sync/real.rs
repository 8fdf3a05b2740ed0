//! The production build: types of the standard library and parking_lot.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub use std::hint::spin_loop;
pub use std::sync::atomic::{
    self, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub use std::thread::yield_now;
pub use std::thread_local;

pub(crate) use std::thread::Builder;

/// Length of a nap. The system adds about as much again.
const NAP: std::time::Duration = std::time::Duration::from_micros(20);

/// Sleeps for a moment.
#[cold]
#[allow(clippy::disallowed_methods)] // no result depends on the length of this sleep
pub(crate) fn nap() {
    std::thread::sleep(NAP);
}

/// A monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    /// Starts the clock at zero.
    #[allow(clippy::disallowed_methods)] // the only place that reads the system's clock
    pub(crate) fn start() -> Self {
        Clock(std::time::Instant::now())
    }

    /// Nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Milliseconds since 1970 of the system's wall clock; 0 if it shows an earlier time.
    pub(crate) fn wall_ms() -> u64 {
        let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A source of unpredictable bits.
pub(crate) struct Entropy(std::hash::RandomState);

impl Entropy {
    /// A source seeded by the system.
    pub(crate) fn new() -> Self {
        Entropy(std::hash::RandomState::new())
    }

    /// Bits that differ for each `number`. They also differ in a forked child and in a clone of a
    /// running machine, which have the parent's state.
    pub(crate) fn draw(&self, number: u64) -> u64 {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let drawn = (number, std::process::id(), now.as_nanos());
        std::hash::BuildHasher::hash_one(&self.0, drawn)
    }
}

/// Niceness that a thread that gives way adds to the process's.
#[cfg(target_os = "linux")]
const NICER: i32 = 7;

/// Lowers the calling thread's priority. A refusal by the system affects latencies only.
pub(crate) fn give_way() {
    // On Linux, unlike elsewhere, niceness belongs to a thread.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICER);
}
