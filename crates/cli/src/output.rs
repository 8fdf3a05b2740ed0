//! What the command says: results on stdout, complaints of one line on stderr.

use std::fmt::{self, Display};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use terrapin_base::{Error, ErrorKind, Result};

use crate::bytes;

/// Exit code of a command that did its work, and the answer is no: there is no such key, the database is damaged.
pub const NO: u8 = 1;
/// Exit code of a command that failed, or whose command line makes no sense.
pub const FAILED: u8 = 2;

/// Why stdout takes no more: its reader has gone. It is told from pipes that a command was given by name.
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

/// Whether stdout is a terminal, which would obey control characters that are stored.
#[must_use]
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Stdout, buffered, for text with stored bytes in it: exact, but on a terminal control characters other than line ends and tabs
/// are escaped. What is written at once ends with a whole character.
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
    let mut out = Stdout::lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(stdout_failed)
}

/// Whether the reader of stdout has gone, which is no failure of a command that only prints.
#[must_use]
pub fn is_reader_gone(error: &Error) -> bool {
    let said = error.io_error().and_then(io::Error::get_ref);
    said.is_some_and(|inner| inner.is::<ReaderGone>())
}

/// Prints an error as one line on stderr.
pub fn complain(error: &Error) {
    warn(format_args!("{error}{}", hint(error)));
}

/// What may be done about an error that does not say so itself.
fn hint(error: &Error) -> &'static str {
    match error.kind() {
        // Where the system refuses memory, less of it is to be asked for.
        ErrorKind::OutOfMemory if is_of_small_budget(error) => "; --memory gives it more",
        ErrorKind::Locked => {
            "; a writer needs the database to itself, while readers share it: close the other one first"
        }
        _ => "",
    }
}

/// Whether it says what a memory budget would have to be, or what this one holds.
fn is_of_small_budget(error: &Error) -> bool {
    let mut names = error.context().iter().map(|(name, _)| *name);
    names.any(|name| matches!(name, "largest possible" | "memory needed, about"))
}

/// Prints one line on stderr that begins with the command's name.
pub fn warn(message: impl Display) {
    line(&format!("terrapin: {message}"));
}

/// Tells who watches, in one line on stderr: on a terminal only, as progress is.
pub fn notice(message: impl Display) {
    if io::stderr().is_terminal() {
        line(&message.to_string());
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
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "{clean}");
}

/// Help and version as clap words them, to stdout; a wrong command line as one line on stderr.
#[must_use]
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind as K;
    match error.kind() {
        K::DisplayHelp | K::DisplayVersion => {
            // A closed pipe behind help is no failure.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        K::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(FAILED)
        }
        _ => {
            warn(format_args!(
                "{} (--help tells more)",
                in_one_line(&error.to_string())
            ));
            ExitCode::from(FAILED)
        }
    }
}

/// What clap has to say of a wrong command line: the error and the tips, without usage.
fn in_one_line(text: &str) -> String {
    let paragraphs = text.split("\n\n").enumerate();
    let told = paragraphs.filter(|(at, text)| *at == 0 || text.trim_start().starts_with("tip:"));
    let lines: Vec<String> = told
        .map(|(_, text)| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let line = lines.join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_line_is_told_in_one_line_with_its_tips() {
        let text = "error: unrecognized subcommand 'improt'\n\n  tip: a similar subcommand exists: 'import'\n\nUsage: terrapin <COMMAND>\n";
        assert_eq!(
            in_one_line(text),
            "unrecognized subcommand 'improt'; tip: a similar subcommand exists: 'import'"
        );
        assert_eq!(in_one_line("error: what\n  more\n\nUsage: x"), "what more");
    }
}
