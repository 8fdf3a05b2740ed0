//! Which process something belongs to: a child that was forked has copies of its parent's memory
//! and descriptors, and may use none of them.
//!
//! A number tells the processes of one line of forks apart. A handler that the C library runs in
//! each child raises it (`pthread_atfork`), so that asking costs one load. A child that was made by
//! the system call itself, past the C library, keeps its parent's number.
//!
//! A child that was forked while files were held for a database opens none of its own: threads of
//! its parent, which it does not have, may have held locks at the fork, and those that waited are
//! still in the queues of locks. It would wait for them for ever. After `exec` all that is gone.

use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use terrapin_base::{Error, ErrorKind, Result};

use super::retry::retry;

/// The number of this process.
static CURRENT: AtomicU64 = AtomicU64::new(0);

/// Files and directories that this process holds.
static HOLDS: AtomicUsize = AtomicUsize::new(0);
/// Its parent held some at the fork.
static IS_CROWDED: AtomicBool = AtomicBool::new(false);

extern "C" fn begin_child() {
    CURRENT.fetch_add(1, Ordering::Relaxed);
    if HOLDS.swap(0, Ordering::Relaxed) > 0 {
        IS_CROWDED.store(true, Ordering::Relaxed);
    }
}

/// A process that made something.
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
    /// The calling process. Children that it forks from now on are recognized as others.
    #[must_use]
    pub fn this() -> Self {
        static WATCH: Once = Once::new();
        // Miri forks nothing.
        if !cfg!(miri) {
            WATCH.call_once(|| {
                // SAFETY: the handler adds to a static atomic and does nothing else, which any
                // child may do.
                let refused = unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
                if refused != 0 {
                    tracing::warn!("forked children cannot be told from their parent: no memory");
                }
            });
        }
        Process(CURRENT.load(Ordering::Relaxed))
    }

    /// Whether the caller is in it, and not in a child that was forked since. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        self.0 == CURRENT.load(Ordering::Relaxed)
    }

    /// [`ErrorKind::Closed`] in any other process.
    pub(super) fn check(self) -> Result<()> {
        match self.is_this() {
            true => Ok(()),
            false => Err(Self::foreign()),
        }
    }

    /// This process holds one file more; [`ErrorKind::Unsupported`] where it must not.
    pub(super) fn hold() -> Result<Self> {
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

    /// It holds one less.
    pub(super) fn let_go(self) {
        if self.is_this() {
            HOLDS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What a child gets that uses what its parent opened: [`ErrorKind::Closed`].
    #[cold]
    #[must_use]
    pub fn foreign() -> Error {
        Error::new(
            ErrorKind::Closed,
            "a forked child cannot use a database that its parent opened: open it in the child, after the parent has closed it",
        )
    }
}

/// A child that was forked, for tests and proofs: what a user's process does when it forks beside
/// an open database. Dropping it kills the child and waits for its end.
#[derive(Debug)]
pub struct Forked(Option<Pid>);

impl Forked {
    /// Forks a child that does this work, and then ends at once, with that exit code and without
    /// running anything else. It has one thread, and must not panic.
    pub fn run(work: impl FnOnce() -> u8) -> Result<Self> {
        // SAFETY: the child runs `work` and ends. It may allocate: the C library's locks are free
        // in it.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(u8::MAX);
                // SAFETY: it ends the child, without what its parent wants done at its own end.
                unsafe { libc::_exit(code.into()) }
            }
            child => match Pid::from_raw(child) {
                Some(child) if child.as_raw_nonzero().get() > 0 => Ok(Forked(Some(child))),
                _ => Err(Error::io("cannot fork", std::io::Error::last_os_error())),
            },
        }
    }

    /// Forks a child that does nothing until it is dropped.
    pub fn idle() -> Result<Self> {
        Self::run(|| {
            loop {
                // SAFETY: it waits for a signal, and touches nothing.
                unsafe { libc::pause() };
            }
        })
    }

    /// Waits for its end: its exit code, or none where a signal ended it.
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
            // It may have ended already.
            let _ = kill_process(child, Signal::KILL);
            let _ = retry(|| waitpid(Some(child), WaitOptions::empty()));
        }
    }
}
