//! Who holds what for writing: `flock` between processes, a registry within this one (D9).
//!
//! The kernel frees an `flock` when the last reference to its descriptor goes, and I/O in flight is such a reference. So a descriptor
//! that a killed process wrote through stays locked until its writes are over, which may take a second on a slow disk: who opens next waits.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use terrapin_base::sync::Mutex;
use terrapin_base::{Condition, Env, Error, ErrorKind, Result};

/// How long an open waits for another process to let go, in nanoseconds.
const LOCK_WAIT_NS: u64 = 5_000_000_000;
/// How often it looks, in nanoseconds.
const LOCK_RETRY_NS: u64 = 10_000_000;

/// Device and inode of every file and directory that this process holds for writing.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// A file or directory in the registry until this is dropped. Whoever has it keeps the descriptor open longer than this, so that the inode's
/// number cannot pass to another file in between.
pub(super) struct Claim {
    key: (u64, u64),
}

impl Claim {
    /// Claims what the descriptor is open on; [`ErrorKind::Locked`] at once when this process holds it already.
    pub(super) fn new(descriptor: BorrowedFd<'_>, describe: impl Fn() -> String) -> Result<Self> {
        let stat = fstat(descriptor)
            .map_err(|e| Error::io("cannot look at the file", e.into()).with("file", describe()))?;
        let key = (stat.st_dev, stat.st_ino);
        if !HELD.lock().insert(key) {
            let message = "already open for writing in this process";
            return Err(Error::new(ErrorKind::Locked, message).with("file", describe()));
        }
        Ok(Claim { key })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        HELD.lock().remove(&self.key);
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
        let mut deadline_ns = None;
        loop {
            match flock(descriptor, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => {}
                Err(e) => {
                    let error = Error::io("cannot lock the file", e.into());
                    return Err(error.with("file", describe()));
                }
            }
            let now_ns = env.now_ns();
            let deadline_ns = *deadline_ns.get_or_insert_with(|| {
                tracing::info!(file = describe(), "waiting for another process to close");
                now_ns.saturating_add(LOCK_WAIT_NS)
            });
            if now_ns >= deadline_ns {
                let message = "another process has the file open for writing";
                return Err(Error::new(ErrorKind::Locked, message)
                    .with("file", describe())
                    .with("waited_ms", LOCK_WAIT_NS / 1_000_000));
            }
            env.wait(&Condition::delay_until(now_ns + LOCK_RETRY_NS))?;
        }
        Ok(Held {
            _file: file,
            _directory: directory,
            waited: deadline_ns.is_some(),
        })
    }
}
