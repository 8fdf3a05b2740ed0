//! Nothing of our own: what production runs on.

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub use std::hint::spin_loop;
pub use std::sync::atomic::{
    self, AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub use std::thread::yield_now;
pub use std::thread_local;

pub(crate) use std::thread::Builder;

/// How long a nap is asked to be; the system adds about as much again.
const NAP: std::time::Duration = std::time::Duration::from_micros(20);

/// Sleeps for a moment.
#[cold]
#[allow(clippy::disallowed_methods)] // of no length that an answer could depend on
pub(crate) fn nap() {
    std::thread::sleep(NAP);
}

/// A clock that never goes back.
#[derive(Clone, Copy)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    /// Starts at zero.
    #[allow(clippy::disallowed_methods)] // the one place where time comes from
    pub(crate) fn start() -> Self {
        Clock(std::time::Instant::now())
    }

    /// Nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Bits that nobody knows beforehand.
pub(crate) struct Entropy(std::hash::RandomState);

impl Entropy {
    /// From the system.
    pub(crate) fn new() -> Self {
        Entropy(std::hash::RandomState::new())
    }

    /// Others for another number. Also in a forked child, and in a clone of a running machine,
    /// which have the parent's state.
    pub(crate) fn draw(&self, number: u64) -> u64 {
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let drawn = (number, std::process::id(), now.as_nanos());
        std::hash::BuildHasher::hash_one(&self.0, drawn)
    }
}

/// How much nicer than the process a thread is that gives way.
#[cfg(target_os = "linux")]
const NICER: i32 = 7;

/// Lowers the calling thread's priority. A refusal changes nothing but latencies.
pub(crate) fn give_way() {
    // On Linux, unlike elsewhere, niceness belongs to threads.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICER);
}
