//! Repeats system calls that a signal interrupted.

use rustix::io::{Errno, Result};

/// Repeats a system call until its outcome is not `EINTR`.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}
