//! The command's output: results on stdout, one-line errors on stderr.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use terrapin_base::{Error, ErrorKind, Result};

use crate::bytes;

/// Exit code when the answer is no: there is no such key, or the database is damaged.
pub const NO: u8 = 1;
/// Exit code of a failure or a wrong command line.
pub const FAILED: u8 = 2;

/// The reader of stdout has gone. This is distinct from a pipe that was named as an argument.
#[derive(Debug)]
struct ReaderGone;

impl Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its reader has gone")
    }
}

impl std::error::Error for ReaderGone {}

/// Stdout without a buffer of its own; see [`stdout`].
pub struct Stdout(io::StdoutLock<'static>);

impl Stdout {
    fn lock() -> Self {
        Stdout(io::stdout().lock())
    }
}

fn mark(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        io::Error::new(io::ErrorKind::BrokenPipe, ReaderGone)
    } else {
        error
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark)
    }
}

/// Stdout, buffered; flush it to learn of errors.
#[must_use]
pub fn stdout() -> BufWriter<Stdout> {
    BufWriter::with_capacity(64 << 10, Stdout::lock())
}

/// Whether stdout is a terminal, which would obey stored control characters.
#[must_use]
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Buffered stdout for text with stored bytes: exact, but on a terminal control characters other
/// than line ends and tabs are escaped. Each write ends with a whole character.
pub struct Stored {
    out: BufWriter<Stdout>,
    terminal: bool,
    escaped: Vec<u8>,
}

impl Stored {
    /// Locks stdout.
    #[must_use]
    pub fn new() -> Self {
        Stored {
            out: stdout(),
            terminal: is_terminal(),
            escaped: Vec::new(),
        }
    }
}

impl Write for Stored {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if !self.terminal {
            return self.out.write(text);
        }
        self.escaped.clear();
        bytes::escape(text, "\n\r\t", &mut self.escaped);
        self.out.write_all(&self.escaped)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// An error of writing to stdout.
pub fn stdout_failed(error: io::Error) -> Error {
    Error::io("cannot write to stdout", error)
}

/// Prints one line to stdout and flushes it.
pub fn say(line: impl Display) -> Result<()> {
    clear();
    let mut out = Stdout::lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(stdout_failed)
}

/// Whether the reader of stdout has gone, which is no failure for a command that only prints.
#[must_use]
pub fn is_reader_gone(error: &Error) -> bool {
    let said = error.io_error().and_then(io::Error::get_ref);
    said.is_some_and(|inner| inner.is::<ReaderGone>())
}

/// Prints an error as one line on stderr.
pub fn complain(error: &Error) {
    warn(format_args!("{error}{}", hint(error)));
}

/// Advice for an error whose text has none.
fn hint(error: &Error) -> &'static str {
    match error.kind() {
        // If the system refuses memory, a smaller budget helps.
        ErrorKind::OutOfMemory if is_of_small_budget(error) => "; --memory gives it more",
        ErrorKind::Locked => {
            "; a writer needs the database to itself, while readers share it: close the other one first"
        }
        _ => "",
    }
}

/// Whether the error names the needed memory budget, or what this budget can hold.
fn is_of_small_budget(error: &Error) -> bool {
    let mut names = error.context().iter().map(|(name, _)| *name);
    names.any(|name| matches!(name, "largest possible" | "memory needed, about"))
}

/// Prints one line on stderr that begins with the command's name.
pub fn warn(message: impl Display) {
    line(&format!("terrapin: {message}"));
}

/// Prints one line on stderr, on a terminal only, like progress.
pub fn notice(message: impl Display) {
    if io::stderr().is_terminal() {
        line(&message.to_string());
    }
}

/// Prints a summary in one line on stderr, on a terminal only: records, time, rate.
pub fn notice_sum(done: &str, records: u64, seconds: f64) {
    let rate = (records as f64 / seconds.max(1e-9)) as u64;
    notice(format_args!(
        "{done} {} in {seconds:.1} s, {} a second",
        bytes::counted(records, "record"),
        bytes::thousands(rate)
    ));
}

/// Whether stderr shows a line that the next one replaces ([`draw`]).
static DRAWN: AtomicBool = AtomicBool::new(false);
/// Returns to the line's beginning and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Draws a line on the terminal at stderr, over the line drawn before.
pub fn draw(text: &str) {
    let mut err = io::stderr().lock();
    DRAWN.store(true, Ordering::Relaxed);
    // If stderr is closed, nothing can be printed.
    let _ = write!(err, "{CLEAR}{text}");
}

/// Clears the drawn line, if there is one.
pub fn clear() {
    let mut err = io::stderr().lock();
    if DRAWN.swap(false, Ordering::Relaxed) {
        let _ = write!(err, "{CLEAR}");
    }
}

fn line(message: &str) {
    let mut clean = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    let mut err = io::stderr().lock();
    let clear = if DRAWN.swap(false, Ordering::Relaxed) {
        CLEAR
    } else {
        ""
    };
    // If stderr is closed, nothing can be printed.
    let _ = writeln!(err, "{clear}{clean}");
}
