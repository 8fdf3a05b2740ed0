//! Replay: the records that a checkpoint did not cover, in the order in which they were appended.

use terrapin_base::{Lsn, Result};

use crate::format::{RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN};
use crate::stream::Stream;

/// A user's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it starts: its version number.
    pub lsn: Lsn,
    /// Where it ends.
    pub end: Lsn,
    /// What its user said that it is.
    pub kind: u8,
    /// Its payload in one piece.
    pub payload: &'a [u8],
}

/// Hands out the accepted records one by one. It reads ahead by a megabyte and holds nothing else
/// in memory. The segments that it has yet to read must not be trimmed; a checkpoint never does
/// that, since it trims below what was applied (D3).
pub struct Replay {
    pub(crate) stream: Stream,
    pub(crate) needed_from: u64,
    pub(crate) end: u64,
}

impl Replay {
    /// The next record of a user's kind from the needed LSN on; `None` at the end. Errors: what
    /// reading says, and [`terrapin_base::ErrorKind::Corrupt`] for a record that was good when the
    /// log was scanned.
    #[allow(clippy::should_implement_trait)] // it lends out its buffer
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        let found = loop {
            match self.stream.step()? {
                None => return Ok(None),
                Some(found)
                    if found.kind >= RECORD_KIND_USER_MIN && found.lsn >= self.needed_from =>
                {
                    break found;
                }
                Some(_) => {}
            }
        };
        let payload = &self.stream.bytes(&found)[RECORD_HEADER_BYTES as usize..];
        Ok(Some(Record {
            lsn: Lsn(found.lsn),
            end: Lsn(found.end()),
            kind: found.kind,
            payload,
        }))
    }

    /// Records from here on are handed out.
    #[must_use]
    pub fn from(&self) -> Lsn {
        Lsn(self.needed_from)
    }

    /// Where the last of them ends, or what follows it that is no user's.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.end)
    }

    /// LSN of the next record, or the end of the log.
    #[must_use]
    pub fn position(&self) -> Lsn {
        Lsn(self.stream.position())
    }
}
