//! Whether the database is open, and which errors its background work met.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use terrapin_base::sync::{AtomicBool, Ordering};

use terrapin_base::sync::Mutex;
use terrapin_base::{Error, ErrorKind, Result, Signal};
use terrapin_disk::Process;

use crate::types::closed::Closed;

type Listener = Arc<dyn Fn(&Error) + Send + Sync>;

/// Whether the database is open, the last background errors, and the listeners for further ones.
#[derive(Default)]
pub(crate) struct Health {
    /// The process that opened the database. A forked child must not use it.
    process: Process,
    closed: AtomicBool,
    /// The result of the first close, once that close is over.
    outcome: OnceLock<Result<Closed>>,
    ended: Arc<Signal>,
    background: Mutex<Option<Error>>,
    /// The error of the first job that panicked. Its work is not done any more.
    dead: OnceLock<Error>,
    /// Whether listeners got the error of a failed log.
    log_reported: AtomicBool,
    /// The error of an open that could not read all of a tree.
    damaged: OnceLock<Error>,
    listeners: Mutex<Vec<Listener>>,
}

impl Health {
    /// Whether the database is open, and the calling process is the one that opened it.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.process.is_this()
    }

    /// Fails with [`ErrorKind::Closed`] once the database is closed, and in a forked child.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if self.is_open() {
            Ok(())
        } else {
            Err(self.not_open())
        }
    }

    /// The process that opened the database.
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

    /// Begins the close. None if another call began it.
    pub fn close(&self) -> Option<Closing<'_>> {
        let first = !self.closed.swap(true, Ordering::AcqRel);
        first.then(|| Closing(self))
    }

    fn close_ended(&self, outcome: Result<Closed>) {
        self.outcome.get_or_init(|| outcome);
        self.ended.notify();
    }

    /// The result of the first close. None while that close goes on.
    pub fn close_outcome(&self) -> Option<Result<Closed>> {
        self.outcome.get().cloned()
    }

    /// The signal that the first close sends at its end.
    pub fn close_signal(&self) -> &Arc<Signal> {
        &self.ended
    }

    /// Stores an error of a background job and calls every listener, on this thread.
    pub fn report(&self, error: &Error) {
        tracing::error!(%error, "background work failed");
        *self.background.lock() = Some(error.clone());
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            // The listener is the user's code. The calling job must survive its panic, or a close
            // would wait for the job without end.
            if catch_unwind(AssertUnwindSafe(|| listener(error))).is_err() {
                tracing::error!("a listener for background errors panicked");
            }
        }
    }

    /// Reports that a background job panicked and is gone. Later successes do not clear this error.
    pub fn job_died(&self, error: &Error) {
        self.dead.get_or_init(|| error.clone());
        self.report(error);
    }

    /// Reports, once, that the log failed. Only a new open ends this failure.
    pub fn log_failed(&self, error: &Error) {
        if !self.log_reported.swap(true, Ordering::AcqRel) {
            self.report(error);
        }
    }

    /// Reports that the open could not read all of a tree. Later successes do not clear this error.
    pub fn damaged(&self, error: &Error) {
        self.damaged.get_or_init(|| error.clone());
        self.report(error);
    }

    /// Notes that background work succeeded again, which clears the stored error. Three errors
    /// stay: one that `lasting` returns, that of a dead job, and that of a damaged tree.
    pub fn recovered(&self, lasting: impl FnOnce() -> Option<Error>) {
        *self.background.lock() = None;
        // Read at this point only: an error that comes later is reported later.
        let lasting_errors = || self.dead.get().or(self.damaged.get()).cloned();
        if let Some(error) = lasting().or_else(lasting_errors) {
            *self.background.lock() = Some(error);
        }
    }

    /// The last background error that no success has cleared yet.
    pub fn background_error(&self) -> Option<Error> {
        self.background.lock().clone()
    }

    /// Adds a listener, which is called until the database is closed.
    pub fn listen(&self, listener: Listener) {
        let mut listeners = self.listeners.lock();
        if self.is_open() {
            listeners.push(listener);
        }
    }

    /// Drops the listeners of a closed database. What they hold may keep the database alive.
    pub fn let_listeners_go(&self) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        drop(listeners);
    }
}

/// The close that began first. Other closes wait until this value is dropped, also if a panic drops
/// it.
pub(crate) struct Closing<'a>(&'a Health);

impl Closing<'_> {
    /// Ends the close with its result.
    pub fn ended(self, outcome: Result<Closed>) {
        self.0.close_ended(outcome);
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // Has an effect only if `ended` set no result before.
        self.0.close_ended(Err(Error::internal(
            "the close that began first panicked; the next open replays the log",
        )));
    }
}

/// The error of every call on a closed database.
#[cold]
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_close_runs_and_later_ones_get_its_result() {
        let health = Health::default();
        let closing = health.close().expect("it was open");
        assert!(health.close().is_none() && health.close_outcome().is_none());
        closing.ended(Ok(Closed::default()));
        assert!(matches!(health.close_outcome(), Some(Ok(_))));
    }

    #[test]
    fn a_close_that_panics_fails_the_closes_that_wait_for_it() {
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
