//! What the command says: results on stdout, complaints of one line on stderr.

use std::error::Error as _;
use std::io::{self, Write};
use std::process::ExitCode;

use terrapin_base::{Error, ErrorKind, Result};

/// Exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// Stdout, buffered; flush it to learn of errors.
#[must_use]
pub fn stdout() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// An error of writing to stdout.
pub fn stdout_failed(error: io::Error) -> Error {
    Error::io("cannot write to stdout", error)
}

/// Prints one line to stdout and flushes it.
pub fn say(line: impl std::fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(stdout_failed)
}

/// Whether the reader of our output has gone, which is no failure of ours.
#[must_use]
pub fn is_closed_pipe(error: &Error) -> bool {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints an error as one line on stderr.
pub fn complain(error: &Error) {
    let hint = match error.kind() {
        ErrorKind::OutOfMemory => "; --memory gives it more",
        ErrorKind::Locked => "; only one process at a time can have it",
        _ => "",
    };
    line(&format!("{error}{hint}"));
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
    let _ = writeln!(io::stderr().lock(), "terrapin: {clean}");
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
            ExitCode::from(USAGE)
        }
        _ => {
            let text = error.to_string();
            let head = text.split("\n\n").next().unwrap_or(&text);
            let words: Vec<&str> = head.split_whitespace().collect();
            let message = words.join(" ");
            line(&format!(
                "{} (--help tells more)",
                message.strip_prefix("error: ").unwrap_or(&message)
            ));
            ExitCode::from(USAGE)
        }
    }
}
