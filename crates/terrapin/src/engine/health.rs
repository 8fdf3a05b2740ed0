//! Whether the database is open, and what went wrong behind its callers' backs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use terrapin_base::sync::{AtomicBool, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Error, ErrorKind, Result, Signal};
use terrapin_disk::Process;

use crate::types::closed::Closed;

type Listener = Arc<dyn Fn(&Error) + Send + Sync>;

/// Closed or open; the last background error; whom to tell of the next.
#[derive(Default)]
pub(crate) struct Health {
    /// Which opened it: a forked child must not use it.
    process: Process,
    closed: AtomicBool,
    /// What the close that began first came to, once it is over.
    outcome: OnceLock<Result<Closed>>,
    ended: Arc<Signal>,
    background: Mutex<Option<Error>>,
    /// Why the first job that panicked did: its duty is done no more.
    dead: OnceLock<Error>,
    /// Whether it was told that the log failed.
    log_told: AtomicBool,
    /// Which tree the open could not read all of.
    damaged: OnceLock<Error>,
    listeners: Mutex<Vec<Listener>>,
}

impl Health {
    /// Whether it is open, and open for the calling process.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.process.is_this()
    }

    /// [`ErrorKind::Closed`] once the database is closed, and in a forked child.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if self.is_open() {
            Ok(())
        } else {
            Err(self.not_open())
        }
    }

    /// The process that opened it.
    pub fn process(&self) -> Process {
        self.process
    }

    #[cold]
    fn not_open(&self) -> Error {
        match self.process.is_this() {
            true => closed(),
            false => Process::foreign(),
        }
    }

    /// Closes; none if it was closed already.
    pub fn close(&self) -> Option<Closing<'_>> {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        first.then(|| Closing(self))
    }

    fn close_ended(&self, outcome: Result<Closed>) {
        self.outcome.get_or_init(|| outcome);
        self.ended.notify();
    }

    /// What the close that began first came to; none while it goes on.
    pub fn close_outcome(&self) -> Option<Result<Closed>> {
        self.outcome.get().cloned()
    }

    /// Tells when it is over.
    pub fn close_signal(&self) -> &Arc<Signal> {
        &self.ended
    }

    /// Keeps an error of a background job, and tells every listener at once, on this thread.
    pub fn report(&self, error: &Error) {
        tracing::error!(%error, "background work failed");
        *self.background.lock() = Some(error.clone());
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            // It is the user's. The job that tells it goes on whatever it does, or a close would
            // wait for that for ever.
            if catch_unwind(AssertUnwindSafe(|| listener(error))).is_err() {
                tracing::error!("a listener for background errors panicked");
            }
        }
    }

    /// A background job panicked, and is gone: as [`Health::report`], and no success of others ends
    /// it.
    pub fn job_died(&self, error: &Error) {
        self.dead.get_or_init(|| error.clone());
        self.report(error);
    }

    /// The log failed, for good: as [`Health::report`], the first time.
    pub fn log_failed(&self, error: &Error) {
        if !self.log_told.swap(true, Ordering::AcqRel) {
            self.report(error);
        }
    }

    /// The open could not read all of a tree: as [`Health::report`], and no success of others ends
    /// it.
    pub fn damaged(&self, error: &Error) {
        self.damaged.get_or_init(|| error.clone());
        self.report(error);
    }

    /// Background work succeeded again: there is no error to show any more but one that `lasting`
    /// says no success ends, and what lasts anyway.
    pub fn recovered(&self, lasting: impl FnOnce() -> Option<Error>) {
        *self.background.lock() = None;
        // Asked for only now: one that comes later is reported later.
        let for_good = || self.dead.get().or(self.damaged.get()).cloned();
        if let Some(error) = lasting().or_else(for_good) {
            *self.background.lock() = Some(error);
        }
    }

    /// The last background error that is not yet overcome.
    pub fn background_error(&self) -> Option<Error> {
        self.background.lock().clone()
    }

    /// Tells this one, too, until the database is closed.
    pub fn listen(&self, listener: Listener) {
        let mut listeners = self.listeners.lock();
        if self.is_open() {
            listeners.push(listener);
        }
    }

    /// Lets the listeners of a closed database go: what they hold may hold the database.
    pub fn let_listeners_go(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        drop(listeners);
    }
}

/// The close that began first. Others wait until it is over, and it is over once this is gone, if
/// by a panic, too.
pub(crate) struct Closing<'a>(&'a Health);

impl Closing<'_> {
    /// What it came to.
    pub fn ended(self, outcome: Result<Closed>) {
        self.0.close_ended(outcome);
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // Counts only if nothing was said before.
        self.0.close_ended(Err(Error::internal(
            "the close that began first panicked; the next open replays what it left",
        )));
    }
}

/// What every call on a closed database gets.
#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_close_closes_and_others_get_what_it_came_to() {
        let health = Health::default();
        let closing = health.close().expect("it was open");
        assert!(health.close().is_none() && health.close_outcome().is_none());
        closing.ended(Ok(Closed::default()));
        assert!(matches!(health.close_outcome(), Some(Ok(_))));
    }

    #[test]
    fn a_close_that_panics_is_over_and_failed_for_those_that_wait_for_it() {
        let health = Health::default();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _closing = health.close().expect("it was open");
            panic!("a close");
        }));
        assert!(panicked.is_err());
        let error = health.close_outcome().expect("it is over").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
    }
}
