//! Ctrl-C (SIGINT) and SIGTERM for commands that must finish something. The first signal sets a
//! flag and wakes a wait for input. The second signal ends the process at once.

use std::fmt::{self, Display};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use terrapin_base::{Error, Result};

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Signals sent to this process since [`Interrupt::listen`].
pub struct Interrupt {
    /// The last one; 0 before the first.
    signal: Arc<AtomicUsize>,
    /// Readable after the first signal.
    wake: UnixStream,
}

/// The source of an error that names the signal which ended a command.
#[derive(Debug)]
struct Stopped(i32);

impl Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(low_level::signal_name(self.0).unwrap_or("a signal"))
    }
}

impl std::error::Error for Stopped {}

impl Interrupt {
    /// Records signals from here on, for the rest of the process. A signal that the process was
    /// started to ignore stays ignored.
    pub fn listen() -> Result<Self> {
        let failed = |error| Error::io("cannot listen for signals", error);
        let (wake, raise) = UnixStream::pair().map_err(failed)?;
        let (signal, again) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let ignored = ignored();
        for number in SIGNALS
            .into_iter()
            .filter(|n| ignored & (1 << (n - 1)) == 0)
        {
            // In this order: the first signal finds `again` unset.
            let listening = flag::register_conditional_default(number, Arc::clone(&again))
                .and_then(|_| flag::register(number, Arc::clone(&again)))
                .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
                .and_then(|_| raise.try_clone())
                .and_then(|raise| low_level::pipe::register(number, raise));
            listening.map_err(failed)?;
        }
        Ok(Interrupt { signal, wake })
    }

    /// Fails after a signal.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                let stopped = Stopped(signal as i32);
                let source = io::Error::new(io::ErrorKind::Interrupted, stopped);
                Err(Error::io("stopped by a signal", source))
            }
        }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The signals that this process ignores, as bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// The signal that an error names.
fn signal_of(error: &Error) -> Option<i32> {
    let source = error.io_error()?.get_ref()?;
    Some(source.downcast_ref::<Stopped>()?.0)
}

/// Whether an error says that a signal ended the command.
#[must_use]
pub fn is_stopped(error: &Error) -> bool {
    signal_of(error).is_some()
}

/// Ends the process by the signal that an error names. Shells then see 130 for SIGINT and 143 for
/// SIGTERM, and stop a script on Ctrl-C. Returns none if the error names no signal.
pub fn end(error: &Error) -> Option<ExitCode> {
    let signal = signal_of(error)?;
    // This returns only if it fails.
    let _ = low_level::emulate_default_handler(signal);
    Some(ExitCode::from(128 + signal as u8))
}
