//! An input, read in large pieces and looked at byte by byte, that knows which line it is in and how much of one record memory
//! may hold.

use std::io::Read;

use terrapin_base::{Error, ErrorKind, Result, VALUE_BYTES_MAX};

const PIECE_BYTES: usize = 256 << 10;

/// The most bytes of one key, value or line that are kept: the largest value as hexadecimal digits, twice over. Nothing that
/// could be stored is refused for it, and no input makes the reader grow.
pub(super) const TEXT_BYTES_MAX: usize = 4 * VALUE_BYTES_MAX;

/// A line that is not what the format says.
pub(super) fn malformed(line: u64, what: &str) -> Error {
    Error::invalid(format!("malformed line {line}: {what}"))
}

/// See the head of this file.
pub(super) struct Source<'a> {
    input: &'a mut dyn Read,
    piece: Box<[u8]>,
    at: usize,
    end: usize,
    line: u64,
}

impl<'a> Source<'a> {
    pub fn new(input: &'a mut dyn Read) -> Self {
        Source {
            input,
            piece: vec![0; PIECE_BYTES].into(),
            at: 0,
            end: 0,
            line: 1,
        }
    }

    /// The line of the next byte, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// An error about the current line.
    pub fn malformed(&self, what: &str) -> Error {
        malformed(self.line, what)
    }

    /// What is there without asking the system again, unless that is nothing; empty at the end.
    fn available(&mut self) -> Result<&[u8]> {
        while self.at == self.end {
            match self.input.read(&mut self.piece) {
                Ok(0) => return Ok(&[]),
                Ok(count) => (self.at, self.end) = (0, count),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io("cannot read the input", error).with("line", self.line));
                }
            }
        }
        Ok(&self.piece[self.at..self.end])
    }

    /// The next byte, left where it is; none at the end.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<u8>> {
        if self.at < self.end {
            return Ok(Some(self.piece[self.at]));
        }
        Ok(self.available()?.first().copied())
    }

    /// The next byte; none at the end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.at += 1;
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    /// Skips the byte order mark that some programs begin UTF-8 with, where nothing else that begins with its first byte makes sense.
    pub fn skip_byte_order_mark(&mut self) -> Result<()> {
        if self.peek()? != Some(0xef) {
            return Ok(());
        }
        self.next()?;
        match (self.next()?, self.next()?) {
            (Some(0xbb), Some(0xbf)) => Ok(()),
            _ => Err(self.malformed("it does not begin with what the format begins with")),
        }
    }

    /// Appends bytes up to the first one that `stops`, which stays, or to the end.
    pub fn until(&mut self, out: &mut Vec<u8>, stops: impl Fn(u8) -> bool) -> Result<()> {
        loop {
            let piece = self.available()?;
            if piece.is_empty() {
                return Ok(());
            }
            let stop = piece.iter().position(|&byte| stops(byte));
            let run = &piece[..stop.unwrap_or(piece.len())];
            let (count, lines) = (run.len(), run.iter().filter(|&&byte| byte == b'\n').count());
            out.extend_from_slice(run);
            self.at += count;
            self.line += lines as u64;
            self.check_length(out)?;
            if stop.is_some() {
                return Ok(());
            }
        }
    }

    /// Refuses text that is longer than anything that can be stored.
    pub fn check_length(&self, text: &[u8]) -> Result<()> {
        if text.len() <= TEXT_BYTES_MAX {
            return Ok(());
        }
        Err(
            Error::new(ErrorKind::TooLarge, "a record is far larger than the limit")
                .with("line", self.line)
                .with("value limit", VALUE_BYTES_MAX),
        )
    }
}
