//! Write stalls, as events: when writes have to stop, for what, and when they go on.
//!
//! Many writes may wait for one thing. The first of them begins the stall, and the last one ends
//! it. The first emits an event, at most once a second for each cause. If it did, the last one
//! emits another.

use terrapin_base::Env;
use terrapin_base::sync::{AtomicBool, AtomicU64, Ordering};

/// The least time between two stalls of one cause that emit events, in nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;

/// The stalls of a database, by cause.
#[derive(Default)]
pub(crate) struct Stalls {
    /// A memtable is full, or memory for memtables is short, before a merge has ended.
    pub merge: Stall,
    /// The log's ring has no room, or its disk none.
    pub log: Stall,
}

/// The writes that wait for one cause.
#[derive(Default)]
pub(crate) struct Stall {
    waiting: AtomicU64,
    since_ns: AtomicU64,
    is_told: AtomicBool,
    /// When a stall last emitted an event.
    told_ns: AtomicU64,
}

/// A write that waits.
pub(crate) struct Stalled<'a> {
    stall: &'a Stall,
    cause: &'static str,
    env: &'a Env,
}

impl Stall {
    /// A write begins to wait. `keyspace` is the one that it writes to, if that is known.
    pub fn begin<'a>(
        &'a self,
        env: &'a Env,
        cause: &'static str,
        keyspace: Option<&str>,
    ) -> Stalled<'a> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            let now = env.now_ns();
            self.since_ns.store(now, Ordering::Relaxed);
            let told = self.told_ns.load(Ordering::Relaxed);
            if told == 0 || now.saturating_sub(told) >= QUIET_NS {
                self.told_ns.store(now.max(1), Ordering::Relaxed);
                self.is_told.store(true, Ordering::Relaxed);
                tracing::info!(cause, keyspace, "a write stall began");
            }
        }
        Stalled {
            stall: self,
            cause,
            env,
        }
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        let stall = self.stall;
        if stall.waiting.fetch_sub(1, Ordering::Relaxed) == 1
            && stall.is_told.swap(false, Ordering::Relaxed)
        {
            let since = stall.since_ns.load(Ordering::Relaxed);
            let duration_ms = self.env.now_ns().saturating_sub(since) / 1_000_000;
            tracing::info!(cause = self.cause, duration_ms, "a write stall ended");
        }
    }
}
