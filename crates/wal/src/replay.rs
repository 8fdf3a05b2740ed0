//! Replay: hands out the records that no checkpoint covers, in append order.

use terrapin_base::{Lsn, Result};

use crate::format::{RECORD_HEADER_BYTES, RECORD_KIND_USER_MIN};
use crate::stream::Stream;

/// A record that a user of the log appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// LSN at which the record starts; also its version number.
    pub lsn: Lsn,
    /// LSN at which the record ends.
    pub end: Lsn,
    /// The kind that the user gave the record.
    pub kind: u8,
    /// The whole payload.
    pub payload: &'a [u8],
}

/// Hands out the accepted records one by one. Replay reads ahead by 1 MiB at a time. The caller
/// must not trim unread segments. A checkpoint never trims them, because it trims only below the
/// applied LSN (D3).
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

    /// LSN from which replay hands out records.
    #[must_use]
    pub fn from(&self) -> Lsn {
        Lsn(self.needed_from)
    }

    /// LSN at which the accepted log ends, including the log's own records.
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
