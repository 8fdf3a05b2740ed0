//! Who holds what, for writing or shared: `flock` between processes, a registry within this one
//! (D9).
//!
//! The kernel frees an `flock` when the last reference to its descriptor goes, and I/O in flight is
//! such a reference. So a descriptor that a killed process wrote through stays locked until its
//! writes are over, which may take a second on a slow disk: who opens next waits.
//!
//! A forked child has copies of the descriptors, which are references to the same locks. So a file
//! that is closed in order is unlocked first: no write is under way then, and the lock must not
//! last as long as the child. A child never unlocks what its parent holds.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use terrapin_base::sync::Mutex;
use terrapin_base::{Condition, Env, Error, ErrorKind, Result, mutant};

use super::process::Process;
use super::retry::retry;

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
static REGISTRY: Mutex<BTreeMap<(u64, u64), Hold>> = Mutex::new(BTreeMap::new());

/// A file or directory in the registry until this is dropped. Whoever has it keeps the descriptor
/// open longer than this, so that the inode's number cannot pass to another file in between.
pub(super) struct Claim {
    key: (u64, u64),
    holder: Holder,
}

/// A process that holds something.
struct Holder(Process);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Claim {
    /// Claims what the descriptor is open on; [`ErrorKind::Locked`] at once when this process holds
    /// it already.
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
        let holder = Holder(Process::hold()?);
        let mut held = REGISTRY.lock();
        let message = match (
            held.get(&key)
                .filter(|_| !mutant::active("second-open-admitted")),
            shared,
        ) {
            (None, false) => {
                held.insert(key, Hold::Writing);
                return Ok(Claim { key, holder });
            }
            (None, true) => {
                held.insert(key, Hold::Shared(1));
                return Ok(Claim { key, holder });
            }
            (Some(Hold::Shared(handles)), true) => {
                let handles = handles + 1;
                held.insert(key, Hold::Shared(handles));
                return Ok(Claim { key, holder });
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
        if !self.holder.0.is_this() {
            return;
        }
        let mut held = REGISTRY.lock();
        match held.get_mut(&self.key) {
            Some(Hold::Shared(handles)) if *handles > 1 => *handles -= 1,
            _ => {
                held.remove(&self.key);
            }
        }
    }
}

/// The `flock` of a descriptor, which whoever has this keeps open longer. Dropping it unlocks the
/// descriptor.
struct Flock {
    descriptor: RawFd,
    process: Process,
}

impl Flock {
    fn of(descriptor: BorrowedFd<'_>) -> Self {
        Flock {
            descriptor: descriptor.as_raw_fd(),
            process: Process::this(),
        }
    }
}

impl Drop for Flock {
    fn drop(&mut self) {
        // In a child this would unlock the file of its parent, which goes on writing.
        if self.process.is_this() {
            // SAFETY: whoever has this keeps the descriptor open longer.
            let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
            // A refusal leaves the lock to the last reference, as the death of the process does.
            let _ = retry(|| flock(descriptor, FlockOperation::Unlock));
        }
    }
}

/// A file held for writing: its `flock`, its claim, and its directory's. Fields are dropped in this
/// order.
pub(super) struct WriteLock {
    lock: Flock,
    _file: Claim,
    _directory: Arc<Claim>,
    /// Whether another process held the lock first.
    pub(super) waited: bool,
}

impl WriteLock {
    /// [`ErrorKind::Closed`] in a child that was forked since.
    pub(super) fn check_process(&self) -> Result<()> {
        self.lock.process.check()
    }

    /// Locks the descriptor. Waits through `env` for another process to let go, and then gives up
    /// with [`ErrorKind::Locked`].
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        directory: Arc<Claim>,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::new(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockExclusive;
        match wait_for_lock(env, descriptor, operation, &describe)? {
            Ok(waited) => Ok(WriteLock {
                lock: Flock::of(descriptor),
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

/// A file that nobody writes meanwhile: its shared `flock`, if the file system has any, and its
/// claim. Fields are dropped in this order.
pub(super) struct SharedLock {
    _lock: Option<Flock>,
    _file: Claim,
    /// Whether another process held the lock first.
    pub(super) waited: bool,
}

impl SharedLock {
    /// As [`WriteLock::new`], beside others that do the same. Where the file system knows no locks,
    /// there is only the registry.
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::shared(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockShared;
        let (lock, waited) = match wait_for_lock(env, descriptor, operation, &describe)? {
            Ok(waited) => (Some(Flock::of(descriptor)), waited),
            Err(e) => {
                tracing::info!(file = describe(), error = %e, "no lock here, reading without one");
                (None, false)
            }
        };
        Ok(SharedLock {
            _lock: lock,
            _file: file,
            waited,
        })
    }
}

/// Waits until the lock is ours, and tells whether that took time; inside, the file system's
/// refusal to lock anything.
fn wait_for_lock(
    env: &Env,
    descriptor: BorrowedFd<'_>,
    operation: FlockOperation,
    describe: &dyn Fn() -> String,
) -> Result<std::result::Result<bool, Errno>> {
    let mut begun_ns = None;
    let mut told = false;
    loop {
        if mutant::active("second-open-admitted") {
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
