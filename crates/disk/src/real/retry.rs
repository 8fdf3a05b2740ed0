//! System calls that a signal interrupts are made again.

use rustix::io::{Errno, Result};

/// Repeats a system call until it ends with something else than `EINTR`.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}
