//! An input that is read in large pieces and scanned byte by byte. It tracks the line.

use terrapin_base::{Error, Result};

use super::text::{Out, Spool};
use crate::input::Input;

const PIECE_BYTES: usize = 256 << 10;

/// The byte order mark, which some programs write before a UTF-8 text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line that breaks the format.
pub(super) fn malformed(line: u64, what: &str) -> Error {
    Error::invalid(format!("malformed line {line}: {what}"))
}

/// An input with its position.
pub(super) struct Source<'a> {
    input: &'a mut dyn Input,
    piece: Box<[u8]>,
    at: usize,
    end: usize,
    line: u64,
    /// Bytes of the input before the piece.
    before: u64,
    /// Where long values go.
    pub spool: Spool,
}

impl<'a> Source<'a> {
    pub fn new(input: &'a mut dyn Input) -> Self {
        Source {
            input,
            piece: vec![0; PIECE_BYTES].into(),
            at: 0,
            end: 0,
            line: 1,
            before: 0,
            spool: Spool::new(),
        }
    }

    /// The line of the next byte, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The number of the next byte in the input, from 1.
    pub fn byte(&self) -> u64 {
        self.before + self.at as u64 + 1
    }

    /// An error about the current line.
    pub fn malformed(&self, what: &str) -> Error {
        malformed(self.line, what)
    }

    /// The bytes at hand; reads more only if there are none. Empty at the end.
    fn available(&mut self) -> Result<&[u8]> {
        if self.at == self.end {
            self.before += self.end as u64;
            (self.at, self.end) = (0, 0);
            self.fill()?;
        }
        Ok(&self.piece[self.at..self.end])
    }

    /// Appends the input's next bytes to the piece; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let count = self.input.read(&mut self.piece[self.end..]);
        let count = count.map_err(|error| error.with("line", self.line))?;
        self.end += count;
        Ok(count > 0)
    }

    /// The next byte without consuming it; none at the end.
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

    /// Skips a byte order mark at the beginning of the input.
    pub fn skip_byte_order_mark(&mut self) -> Result<()> {
        // Waits for no more bytes than are needed to decide.
        while self.end < BYTE_ORDER_MARK.len()
            && BYTE_ORDER_MARK.starts_with(&self.piece[..self.end])
        {
            if !self.fill()? {
                return Ok(());
            }
        }
        if self.piece[..self.end].starts_with(BYTE_ORDER_MARK) {
            self.at = BYTE_ORDER_MARK.len();
        }
        Ok(())
    }

    /// Appends bytes up to the first one that `stops`, which is not consumed, or to the end.
    pub fn until(&mut self, out: &mut impl Out, stops: impl Fn(u8) -> bool) -> Result<()> {
        self.until_with(&mut |run, spool| out.add(run, spool), stops)
    }

    /// [`Source::until`], where `add` takes the pieces.
    pub fn until_with(
        &mut self,
        add: &mut dyn FnMut(&[u8], &mut Spool) -> Result<()>,
        stops: impl Fn(u8) -> bool,
    ) -> Result<()> {
        while !self.available()?.is_empty() {
            let piece = &self.piece[self.at..self.end];
            let stop = piece.iter().position(|&byte| stops(byte));
            let run = &piece[..stop.unwrap_or(piece.len())];
            let lines = run.iter().filter(|&&byte| byte == b'\n').count();
            let added = add(run, &mut self.spool);
            self.at += run.len();
            self.line += lines as u64;
            added.map_err(|error| error.with("line", self.line))?;
            if stop.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Appends bytes to a text.
    pub fn add(&mut self, out: &mut impl Out, bytes: &[u8]) -> Result<()> {
        let added = out.add(bytes, &mut self.spool);
        added.map_err(|error| error.with("line", self.line))
    }

    /// Forgets a text.
    pub fn empty(&mut self, out: &mut impl Out) -> Result<()> {
        out.empty(&mut self.spool)
    }
}
