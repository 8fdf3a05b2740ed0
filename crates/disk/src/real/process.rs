//! The process that made a value. A forked child has copies of its parent's memory and descriptors,
//! and may use neither.
//!
//! A number tells a process from its forked children. The C library runs a handler in each child
//! (`pthread_atfork`), which raises the number. So a check costs one load. A child made by the bare
//! system call, without the C library, keeps its parent's number.
//!
//! A child that was forked while its parent held database files cannot open a database. Threads
//! that the child does not have may have held locks at the fork, and waiting threads are still
//! queued at these locks. The child would wait without end. `exec` removes this state.

use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use terrapin_base::{Error, ErrorKind, Result};

use super::retry::retry;

/// The number of this process.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// Number of files and directories that this process holds.
static HOLDS: AtomicUsize = AtomicUsize::new(0);
/// Whether the parent held files at the fork.
static IS_CROWDED: AtomicBool = AtomicBool::new(false);

extern "C" fn begin_child() {
    CURRENT.fetch_add(1, Ordering::Relaxed);
    if HOLDS.swap(0, Ordering::Relaxed) > 0 {
        IS_CROWDED.store(true, Ordering::Relaxed);
    }
}

/// The process that made a value.
///
/// ```
/// use terrapin_disk::Process;
/// let maker = Process::this();
/// assert!(maker.is_this(), "nobody forked");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Default for Process {
    fn default() -> Self {
        Self::this()
    }
}

impl Process {
    /// The calling process. Children that it forks later are recognised as others.
    #[must_use]
    pub fn this() -> Self {
        static WATCH: Once = Once::new();
        // Miri cannot fork.
        if !cfg!(miri) {
            WATCH.call_once(|| {
                // SAFETY: the handler only changes static atomics, which any child may do.
                let refused = unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
                if refused != 0 {
                    tracing::warn!("cannot tell forked children from their parent: no memory");
                }
            });
        }
        Process(CURRENT.load(Ordering::Relaxed))
    }

    /// Whether the caller runs in this process, not in a child forked since. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        self.0 == CURRENT.load(Ordering::Relaxed)
    }

    /// Returns [`ErrorKind::Closed`] in any other process.
    pub(crate) fn check(self) -> Result<()> {
        match self.is_this() {
            true => Ok(()),
            false => Err(Self::foreign()),
        }
    }

    /// Counts one more held file. Returns [`ErrorKind::Unsupported`] if the parent held files at
    /// the fork.
    pub(crate) fn hold() -> Result<Self> {
        let this = Self::this();
        if IS_CROWDED.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a child that was forked while its parent had a database open cannot open one: fork before the open, or call exec",
            ));
        }
        HOLDS.fetch_add(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Counts one held file less.
    pub(crate) fn let_go(self) {
        if self.is_this() {
            HOLDS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The error of a child that uses what its parent opened: [`ErrorKind::Closed`].
    #[cold]
    #[must_use]
    pub fn foreign() -> Error {
        Error::new(
            ErrorKind::Closed,
            "a forked child cannot use a database that its parent opened: open it in the child, after the parent has closed it",
        )
    }
}

/// A forked child, for tests and proofs of a fork beside an open database. Dropping it kills the
/// child and waits for its end.
#[derive(Debug)]
pub struct Forked(Option<Pid>);

impl Forked {
    /// Forks a child that runs `work` and exits at once with the returned code. No other code runs
    /// in the child. It has one thread, and must not panic.
    pub fn run(work: impl FnOnce() -> u8) -> Result<Self> {
        // SAFETY: the child runs `work` and ends. It may allocate: the C library's locks are free
        // in the child.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(u8::MAX);
                // SAFETY: ends the child without running its parent's exit handlers.
                unsafe { libc::_exit(code.into()) }
            }
            child => match Pid::from_raw(child) {
                Some(child) if child.as_raw_nonzero().get() > 0 => Ok(Forked(Some(child))),
                _ => Err(Error::io("cannot fork", std::io::Error::last_os_error())),
            },
        }
    }

    /// Forks a child that does nothing until this value is dropped.
    pub fn idle() -> Result<Self> {
        Self::run(|| {
            loop {
                // SAFETY: waits for a signal and accesses no memory.
                unsafe { libc::pause() };
            }
        })
    }

    /// Waits for the child's end. Returns its exit code; `None` if a signal ended it.
    pub fn ended(mut self) -> Result<Option<u8>> {
        let Some(child) = self.0.take() else {
            return Ok(None);
        };
        let ended = retry(|| waitpid(Some(child), WaitOptions::empty()));
        let ended = ended.map_err(|e| Error::io("cannot wait for a child", e.into()))?;
        let code = ended.and_then(|(_, status)| status.exit_status());
        Ok(code.and_then(|code| u8::try_from(code).ok()))
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            // The child may have ended already.
            let _ = kill_process(child, Signal::KILL);
            let _ = retry(|| waitpid(Some(child), WaitOptions::empty()));
        }
    }
}
