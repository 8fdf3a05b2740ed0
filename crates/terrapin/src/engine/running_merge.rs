//! The merge under way. The coordinator and the workers step it concurrently.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use terrapin_base::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Env, Error, Result, Signal, Step};
use terrapin_structure::{Merge, MergeStep};

use crate::engine::state::KeyspaceShared;

/// Longest rest of a worker while other workers hold all work, in nanoseconds.
const REST_NS: u64 = 5_000_000;

/// A merge that any number of workers steps.
pub(crate) struct RunningMerge {
    merge: Arc<dyn Merge>,
    /// The keyspace whose sealed memtable is being merged. None for a compaction.
    keyspace: Option<Arc<KeyspaceShared>>,
    workers: AtomicUsize,
    done: AtomicBool,
    failed: Mutex<Option<Error>>,
    has_failed: AtomicBool,
}

impl RunningMerge {
    /// Wraps a merge that has begun.
    pub fn new(
        merge: Arc<dyn Merge>,
        keyspace: Option<Arc<KeyspaceShared>>,
        now_ns: u64,
    ) -> Arc<Self> {
        let running = RunningMerge {
            merge,
            keyspace,
            workers: AtomicUsize::new(0),
            done: AtomicBool::new(false),
            failed: Mutex::new(None),
            has_failed: AtomicBool::new(false),
        };
        if let Some(keyspace) = &running.keyspace {
            keyspace.forecast.merges(now_ns);
        }
        running.show_progress(now_ns);
        Arc::new(running)
    }

    /// Whether no step is left.
    pub fn is_over(&self) -> bool {
        self.done.load(Ordering::SeqCst) || self.has_failed.load(Ordering::SeqCst)
    }

    /// Whether no worker steps the merge now or later.
    pub fn is_left(&self) -> bool {
        self.is_over() && self.workers.load(Ordering::SeqCst) == 0
    }

    /// The error with which the merge failed, if any.
    pub fn failure(&self) -> Option<Error> {
        self.failed.lock().clone()
    }

    /// The merge itself, for its end.
    pub fn merge(&self) -> &Arc<dyn Merge> {
        &self.merge
    }

    /// Runs one step. At the end of the merge, notifies `work`.
    pub fn step(&self, env: &Env, work: &Signal) -> Step {
        self.workers.fetch_add(1, Ordering::SeqCst);
        // Counts this worker before testing for the end. The thread that ends the merge tests in
        // the reverse order.
        let outcome = if self.is_over() {
            Ok(MergeStep::Done)
        } else {
            guarded(|| self.merge.step())
        };
        let step = match outcome {
            Ok(MergeStep::Again) => Step::Again,
            Ok(MergeStep::Pending(condition)) => {
                Step::Pending(condition.until(env.now_ns() + REST_NS))
            }
            Ok(MergeStep::Done) => {
                self.done.store(true, Ordering::SeqCst);
                Step::Done
            }
            Err(error) => {
                self.failed.lock().get_or_insert(error);
                self.has_failed.store(true, Ordering::SeqCst);
                Step::Done
            }
        };
        let now_ns = env.now_ns();
        if !self.is_over() {
            self.show_progress(now_ns);
        }
        self.workers.fetch_sub(1, Ordering::SeqCst);
        if self.is_over() {
            work.notify();
        }
        step
    }

    fn show_progress(&self, now_ns: u64) {
        if let Some(keyspace) = &self.keyspace {
            keyspace.forecast.progress(self.merge.progress(), now_ns);
        }
    }
}

/// Runs a piece of a merge and turns a panic of the structure into an error. The panic fails that
/// merge only; the job goes on.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::internal("a merge panicked")))
}
