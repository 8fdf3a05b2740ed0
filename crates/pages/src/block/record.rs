//! The kinds of records in the format, including those that this version does not execute.
//!
//! [`Record::message`] is the only place that decides which records this version executes.

use terrapin_base::{Error, Message, Result, VALUE_BYTES_MAX};

use super::format::DEADLINE_MS_MAX;

/// The kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The key has this value.
    Put,
    /// The key has no value.
    Delete,
    /// Operands, which a merge operator applies to older records of the key.
    Merge,
    /// The key's value lies in a value page. The record's value is a handle.
    Separated,
    /// The key's value lies in a page of its own. The record's value is a handle.
    Large,
    /// A base and operands above it, which a merge operator could not apply.
    BaseWithOperands,
}

impl RecordKind {
    /// Every kind.
    pub const ALL: [RecordKind; 6] = [
        RecordKind::Put,
        RecordKind::Delete,
        RecordKind::Merge,
        RecordKind::Separated,
        RecordKind::Large,
        RecordKind::BaseWithOperands,
    ];

    /// Its name in errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecordKind::Put => "put",
            RecordKind::Delete => "delete",
            RecordKind::Merge => "merge",
            RecordKind::Separated => "separated value",
            RecordKind::Large => "large value",
            RecordKind::BaseWithOperands => "base with operands",
        }
    }
}

/// A record without its key.
///
/// ```
/// use terrapin_base::{ErrorKind, Message};
/// use terrapin_pages::block::{Record, RecordKind};
/// let put = Record::from(Message::Put(b"red"));
/// assert_eq!(put.message()?, Message::Put(b"red"));
/// let expiring = Record { deadline_ms: Some(1_800_000_000_000), ..put };
/// assert_eq!(expiring.message().unwrap_err().kind(), ErrorKind::Corrupt);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What the record does.
    pub kind: RecordKind,
    /// The moment from which on the key has no value, in milliseconds since 1970: at most
    /// [`DEADLINE_MS_MAX`]. Deletes and operands without a base have none.
    pub deadline_ms: Option<u64>,
    /// The value of a put; empty for a delete. For the other kinds: a handle, or operands.
    pub value: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record as a message. O(1).
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`], with the kind, if this version does not execute such
    /// records. It writes none.
    pub fn message(self) -> Result<Message<'a>> {
        let refused = match (self.kind, self.deadline_ms) {
            (RecordKind::Put, None) => return Ok(Message::Put(self.value)),
            (RecordKind::Delete, _) => return Ok(Message::Delete),
            (RecordKind::Put, Some(_)) => "this version does not execute puts with a deadline",
            (
                RecordKind::Merge
                | RecordKind::Separated
                | RecordKind::Large
                | RecordKind::BaseWithOperands,
                _,
            ) => "this version does not execute records of this kind",
        };
        Err(Error::corrupt(refused).with("kind", self.kind.name()))
    }

    /// Whether the record needs no extension. O(1).
    pub(super) fn is_plain(self) -> bool {
        match self.kind {
            RecordKind::Put => self.deadline_ms.is_none(),
            RecordKind::Delete => true,
            RecordKind::Merge
            | RecordKind::Separated
            | RecordKind::Large
            | RecordKind::BaseWithOperands => false,
        }
    }

    /// Whether the format has such a record. O(1).
    #[must_use]
    pub fn is_possible(self) -> bool {
        let has_no_deadline = self.deadline_ms.is_none();
        let fits_kind = match self.kind {
            RecordKind::Delete => has_no_deadline && self.value.is_empty(),
            RecordKind::Merge => has_no_deadline,
            RecordKind::Put
            | RecordKind::Separated
            | RecordKind::Large
            | RecordKind::BaseWithOperands => true,
        };
        fits_kind
            && self.value.len() <= VALUE_BYTES_MAX
            && self.deadline_ms.is_none_or(|ms| ms <= DEADLINE_MS_MAX)
    }
}

impl<'a> From<Message<'a>> for Record<'a> {
    fn from(message: Message<'a>) -> Self {
        let (kind, value) = match message {
            Message::Put(value) => (RecordKind::Put, value),
            Message::Delete => (RecordKind::Delete, &[][..]),
        };
        Record {
            kind,
            deadline_ms: None,
            value,
        }
    }
}
