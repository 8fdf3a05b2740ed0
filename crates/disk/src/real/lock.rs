//! Locks on files: `flock` between processes, and a registry within this process (D9).
//!
//! The kernel frees an `flock` with the last reference to its descriptor, and a write in flight is
//! a reference. So a file that a killed process was writing stays locked until its writes end. That
//! may take a second on a slow disk, and the next open waits for it.
//!
//! A forked child has copies of the descriptors, which refer to the same locks. So a close unlocks
//! the file explicitly, when no write is in flight: else the lock would last as long as the child.
//! A child never unlocks a file of its parent.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use terrapin_base::sync::Mutex;
use terrapin_base::{Condition, Env, Error, ErrorKind, Result, mutant};

use super::process::Process;
use super::retry::retry;

/// Longest wait of an open for another process's lock, in nanoseconds.
const LOCK_WAIT_NS: u64 = 5_000_000_000;
/// Wait in nanoseconds after which an open logs a warning.
const LOCK_TOLD_NS: u64 = 500_000_000;
/// Time between two tries, in nanoseconds.
const LOCK_RETRY_NS: u64 = 10_000_000;

/// How this process holds a file or directory.
#[derive(Clone, Copy)]
enum Hold {
    Writing,
    /// Shared by this number of handles.
    Shared(usize),
}

/// All files and directories that this process holds, by device and inode.
static REGISTRY: Mutex<BTreeMap<(u64, u64), Hold>> = Mutex::new(BTreeMap::new());

/// An entry in the registry. Its owner must keep the descriptor open longer, so that no other file
/// can get the same inode number in between.
pub(super) struct Claim {
    key: (u64, u64),
    holder: Holder,
}

/// Counts a held file of a process until it is dropped.
struct Holder(Process);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Claim {
    /// Claims the descriptor's file for writing. [`ErrorKind::Locked`] at once if this process
    /// holds it.
    pub(super) fn new(descriptor: BorrowedFd<'_>, describe: impl Fn() -> String) -> Result<Self> {
        Self::take(descriptor, false, describe)
    }

    /// Claims the descriptor's file for sharing. [`ErrorKind::Locked`] if this process holds it for
    /// writing.
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

/// The `flock` of a descriptor. Its owner must keep the descriptor open longer. A drop unlocks it.
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
        // An unlock in a child would unlock the file of its parent, which goes on writing.
        if self.process.is_this() {
            // SAFETY: the owner of this value keeps the descriptor open longer.
            let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
            // After a refusal, the last reference to the descriptor frees the lock.
            let _ = retry(|| flock(descriptor, FlockOperation::Unlock));
        }
    }
}

/// The locks of a file that is open for writing: its `flock`, its claim, and the directory's claim.
/// The order of the fields is the order of their drops.
pub(super) struct WriteLock {
    lock: Flock,
    _file: Claim,
    _directory: Arc<Claim>,
    /// Whether this open waited for another process.
    pub(super) waited: bool,
}

impl WriteLock {
    /// Returns [`ErrorKind::Closed`] in a child that was forked since.
    pub(super) fn check_process(&self) -> Result<()> {
        self.lock.process.check()
    }

    /// Locks the descriptor. Waits through `env` for another process, and fails with
    /// [`ErrorKind::Locked`] after [`LOCK_WAIT_NS`].
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        directory: Arc<Claim>,
        at_once: bool,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::new(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockExclusive;
        match wait_for_lock(env, descriptor, (operation, wait_ns(at_once)), &describe)? {
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

/// The locks of a shared file: its shared `flock` if the file system has locks, and its claim. The
/// order of the fields is the order of their drops.
pub(super) struct SharedLock {
    _lock: Option<Flock>,
    _file: Claim,
    /// Whether this open waited for another process.
    pub(super) waited: bool,
}

impl SharedLock {
    /// Locks the descriptor shared, and waits like [`WriteLock::new`]. On a file system without
    /// locks, only the registry excludes writers.
    pub(super) fn new(
        env: &Env,
        descriptor: BorrowedFd<'_>,
        at_once: bool,
        describe: impl Fn() -> String,
    ) -> Result<Self> {
        let file = Claim::shared(descriptor, &describe)?;
        let operation = FlockOperation::NonBlockingLockShared;
        let (lock, waited) = match wait_for_lock(
            env,
            descriptor,
            (operation, wait_ns(at_once)),
            &describe,
        )? {
            Ok(waited) => (Some(Flock::of(descriptor)), waited),
            Err(e) => {
                tracing::info!(file = describe(), error = %e, "the file system has no locks, reading without one");
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

/// Longest wait for a lock, in nanoseconds.
fn wait_ns(at_once: bool) -> u64 {
    match at_once {
        true => 0,
        false => LOCK_WAIT_NS,
    }
}

/// A process that has an `flock` on the file, by number and name, as `/proc` tells it. For messages
/// only: the process may end at any time, and some file systems and namespaces hide it.
fn holder(descriptor: BorrowedFd<'_>) -> Option<String> {
    let stat = fstat(descriptor).ok()?;
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let number = locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|&word| word != "FLOCK");
        let number = words.nth(3)?;
        (words.next() == Some(&file)).then_some(number)
    })?;
    let number: u32 = number.parse().ok().filter(|&number| number > 0)?;
    let name = std::fs::read_to_string(format!("/proc/{number}/comm")).ok();
    Some(match name {
        Some(name) => format!("{number} ({})", name.trim_end()),
        None => number.to_string(),
    })
}

/// Takes the lock, and returns whether that took a wait. The inner error is the file system's
/// refusal.
fn wait_for_lock(
    env: &Env,
    descriptor: BorrowedFd<'_>,
    (operation, wait_ns): (FlockOperation, u64),
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
        if waited_ns >= wait_ns {
            let message = match operation {
                FlockOperation::NonBlockingLockShared => {
                    "another process has the file open for writing"
                }
                _ => "another process has the file open",
            };
            let error = Error::new(ErrorKind::Locked, message)
                .with("file", describe())
                .with("waited_ms", wait_ns / 1_000_000);
            return Err(match holder(descriptor) {
                Some(holder) => error.with("process", holder),
                None => error,
            });
        }
        env.wait(&Condition::delay_until(now_ns + LOCK_RETRY_NS))?;
    }
}
