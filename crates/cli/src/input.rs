//! The file or stdin from which a command reads records.
//!
//! An input may be a slow pipe. While it pauses, [`Watched`] does other work ([`Idle`]). A signal
//! ends the wait.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use terrapin_base::{Error, Result};

use crate::interrupt::Interrupt;
use crate::progress::Bar;

/// How long an input may pause before the records read so far are written.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Work for the pauses of an input.
pub trait Idle {
    /// Whether there is work.
    fn has_work(&self) -> bool;
    /// Does it.
    fn work(&self) -> Result<()>;
}

/// An open input.
pub struct InputFile {
    file: File,
    /// The size, if it is known.
    pub bytes: Option<u64>,
}

impl InputFile {
    /// Opens a file, or stdin for `-`.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |e| Error::io("cannot open the input", e).with("file", path.display());
        let file = match path.as_os_str() == "-" {
            // Bypass the standard library's buffer, whose bytes `poll` does not see.
            true => File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?),
            false => File::open(path).map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(Error::invalid("the input is a directory").with("file", path.display()));
        }
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(InputFile { file, bytes })
    }

    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Returns the bytes of an input.
pub trait Input {
    /// Reads some bytes; none at the end.
    fn read(&mut self, out: &mut [u8]) -> Result<usize>;
}

impl<R: Read> Input for R {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            match Read::read(self, out) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(failed),
            }
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::io("cannot read the input", error)
}

/// Reads an input, shows progress, and runs other work while it pauses.
pub struct Watched<'a> {
    input: &'a InputFile,
    bar: &'a Bar,
    interrupt: Option<&'a Interrupt>,
    idle: Option<&'a dyn Idle>,
    read_bytes: u64,
}

impl<'a> Watched<'a> {
    /// Reads without signals and without work in pauses.
    #[must_use]
    pub fn new(input: &'a InputFile, bar: &'a Bar) -> Self {
        Watched {
            input,
            bar,
            interrupt: None,
            idle: None,
            read_bytes: 0,
        }
    }

    /// Fails at the first signal, and works while the input pauses.
    #[must_use]
    pub fn minding(mut self, interrupt: &'a Interrupt, idle: &'a dyn Idle) -> Self {
        (self.interrupt, self.idle) = (Some(interrupt), Some(idle));
        self
    }

    /// Waits for input or its end.
    fn wait(&self, interrupt: &Interrupt, idle: &dyn Idle) -> Result<()> {
        loop {
            interrupt.check()?;
            let mut watched = [
                PollFd::new(&self.input.file, PollFlags::IN),
                PollFd::new(interrupt, PollFlags::IN),
            ];
            let timeout = idle.has_work().then_some(&PAUSE);
            match poll(&mut watched, timeout) {
                Ok(0) => idle.work()?,
                Ok(_) if watched[0].revents().is_empty() => {}
                Err(Errno::INTR) => {}
                Ok(_) => return interrupt.check(),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

impl Input for Watched<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if let (Some(interrupt), Some(idle)) = (self.interrupt, self.idle) {
            self.wait(interrupt, idle)?;
        }
        let count = Input::read(&mut &self.input.file, out)?;
        self.read_bytes += count as u64;
        self.bar.set(self.read_bytes);
        Ok(count)
    }
}
