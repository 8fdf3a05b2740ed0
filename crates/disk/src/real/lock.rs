//! Who holds what, for writing or shared: `flock` between processes, a registry within this one (D9).
//!
//! The kernel frees an `flock` when the last reference to its descriptor goes, and I/O in flight is such a reference. So a descriptor
//! that a killed process wrote through stays locked until its writes are over, which may take a second on a slow disk: who opens next waits.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use terrapin_base::sync::Mutex;
use terrapin_base::{Condition, Env, Error, ErrorKind, Result, mutant};

/// How long an open waits for another process to let go, in nanoseconds.
const LOCK_WAIT_NS: u64 = 5_000_000_000;
/// After how long it says so, in nanoseconds.
const LOCK_TOLD_NS: u64 = 500_000_000;
/// How often it looks, in nanoseconds.
const LOCK_RETRY_NS: u64 = 10_000_000;

/// How this process holds a file or directory.
#[derive(Clone, Copy)]
enum Hold {
    Writing,
    /// By so many handles.
    Shared(usize),
}

/// Device and inode of every file and directory that this process holds.
static HELD: Mutex<BTreeMap<(u64, u64), Hold>> = Mutex::new(BTreeMap::new());

/// A file or directory in the registry until this is dropped. Whoever has it keeps the descriptor open longer than this, so that the inode's
/// number cannot pass to another file in between.
pub(super) struct Claim {
    key: (u64, u64),
}

impl Claim {
    /// Claims what the descriptor is open on; [`ErrorKind::Locked`] at once when this process holds it already.
    pub(super) fn new(descriptor: BorrowedFd<'_>, describe: impl Fn() -> String) -> Result<Self> {
        Self::take(descriptor, false, describe)
    }

    /// As [`Claim::new`], beside others that share it.
    fn shared(descriptor: BorrowedFd<'_>, describe: impl Fn() -> String) -> Result<Self> {
        Self::take(descriptor, true, describe)
    }

    fn take(
        descriptor: BorrowedFd<'_>,
        shared: bool,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let stat = fstat(descriptor)
            .map_err(|e| Error::io("cannot look at the file", e.into()).with("file", describe()))?;
        let key = (stat.st_dev, stat.st_ino);
        let mut held = HELD.lock();
        let message = match (held.get(&key).filter(|_| !mutant::active(54)), shared) {
            (None, false) => {
                held.insert(key, Hold::Writing);
                return Ok(Claim { key });
            }
            (None, true) => {
                held.insert(key, Hold::Shared(1));
                return Ok(Claim { key });
            }
            (Some(Hold::Shared(handles)), true) => {
                let handles = handles + 1;
                held.insert(key, Hold::Shared(handles));
                return Ok(Claim { key });
            }
            (Some(Hold::Shared(_)), false) => {
                "already open for reading in this process: use that handle (handles may be cloned), or close it first"
            }
            (Some(Hold::Writing), _) => {
                "already open for writing in this process: use that handle (handles may be cloned), or close it first; snapshots and ranges keep it open"
            }
        };
        drop(held);
        Err(Error::new(ErrorKind::Locked, message).with("file", describe()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        match held.get_mut(&self.key) {
            Some(Hold::Shared(handles)) if *handles > 1 => *handles -= 1,
            _ => {
                held.remove(&self.key);
            }
        }
    }
}

/// A file held for writing: its claim, its directory's, and the `flock` that goes with the descriptor.
pub(super) struct Held {
    _file: Claim,
    _directory: Arc<Claim>,
    /// Whether another process held the lock first.
    pub(super) waited: bool,
}

impl Held {
    /// Locks the descriptor. Waits through `env` for another process to let go, and then gives up with [`ErrorKind::Locked`].
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        directory: Arc<Claim>,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::new(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockExclusive;
        match wait_for_lock(env, descriptor, operation, &describe)? {
            Ok(waited) => Ok(Held {
                _file: file,
                _directory: directory,
                waited,
            }),
            Err(e) => {
                let error = Error::io("cannot lock the file", e.into());
                Err(error.with("file", describe()))
            }
        }
    }
}

/// A file that nobody writes meanwhile: its claim, and the shared `flock` that goes with the descriptor.
pub(super) struct Shared {
    _file: Claim,
    /// Whether another process held the lock first.
    pub(super) waited: bool,
}

impl Shared {
    /// As [`Held::new`], beside others that do the same. Where the file system knows no locks, there is only the registry.
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::shared(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockShared;
        let waited = wait_for_lock(env, descriptor, operation, &describe)?.unwrap_or_else(|e| {
            tracing::info!(file = describe(), error = %e, "no lock here, reading without one");
            false
        });
        Ok(Shared {
            _file: file,
            waited,
        })
    }
}

/// Waits until the lock is ours, and tells whether that took time; inside, the file system's refusal to lock anything.
fn wait_for_lock(
    env: &Env,
    descriptor: BorrowedFd<'_>,
    operation: FlockOperation,
    describe: &dyn Fn() -> String,
) -> Result<std::result::Result<bool, Errno>> {
    let mut begun_ns = None;
    let mut told = false;
    loop {
        if mutant::active(54) {
            return Ok(Ok(false));
        }
        match flock(descriptor, operation) {
            Ok(()) => return Ok(Ok(begun_ns.is_some())),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Ok(Err(e)),
        }
        let now_ns = env.now_ns();
        let waited_ns = now_ns.saturating_sub(*begun_ns.get_or_insert(now_ns));
        if waited_ns >= LOCK_TOLD_NS && !told {
            tracing::warn!(
                file = describe(),
                wait_ms_max = LOCK_WAIT_NS / 1_000_000,
                "another process has the file open: waiting until it closes"
            );
            told = true;
        }
        if waited_ns >= LOCK_WAIT_NS {
            let message = match operation {
                FlockOperation::NonBlockingLockShared => {
                    "another process has the file open for writing"
                }
                _ => "another process has the file open",
            };
            return Err(Error::new(ErrorKind::Locked, message)
                .with("file", describe())
                .with("waited_ms", LOCK_WAIT_NS / 1_000_000));
        }
        env.wait(&Condition::delay_until(now_ns + LOCK_RETRY_NS))?;
    }
}
