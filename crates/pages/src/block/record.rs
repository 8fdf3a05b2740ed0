//! The kinds of records in the format, including those that this version does not execute.
//!
//! [`Record::check`] is the only place that decides which records this version executes.

use terrapin_base::expiry::{self, DEADLINE_MS_MAX};
use terrapin_base::{Error, Message, Result, STACK_BYTES_MAX, Stack, VALUE_BYTES_MAX};

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
    /// Operands that a merge operator did not combine or apply, and what they apply to: the bytes
    /// of a [`Stack`].
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

    /// Most bytes of the value of such a record. A user's value is shorter. Runs of views have
    /// records that hold a stack of operands as a value.
    #[must_use]
    pub(super) fn value_bytes_max(self) -> usize {
        match self {
            RecordKind::Put | RecordKind::BaseWithOperands => STACK_BYTES_MAX,
            RecordKind::Delete | RecordKind::Merge | RecordKind::Separated | RecordKind::Large => {
                VALUE_BYTES_MAX
            }
        }
    }

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
/// put.check()?;
/// let large = Record { kind: RecordKind::Large, ..put };
/// assert_eq!(large.check().unwrap_err().kind(), ErrorKind::Corrupt);
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
    /// Checks that this version executes the record. O(1), except for a base with operands, whose
    /// bytes are checked.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`], with the kind, if this version does not execute such
    /// records. It writes none.
    pub fn check(self) -> Result<()> {
        let refused = match (self.kind, self.deadline_ms) {
            (RecordKind::Put | RecordKind::Delete | RecordKind::Merge, _)
            | (RecordKind::Separated, None) => return Ok(()),
            (RecordKind::BaseWithOperands, None) => {
                let checked = Stack::decode(self.value);
                return checked
                    .map(drop)
                    .map_err(|e| e.with("kind", self.kind.name()));
            }
            (RecordKind::Separated | RecordKind::BaseWithOperands, Some(_)) => {
                "this version does not execute records of this kind with a deadline"
            }
            (RecordKind::Large, _) => "this version does not execute records of this kind",
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
            && self.value.len() <= self.kind.value_bytes_max()
            && self.deadline_ms.is_none_or(|ms| ms <= DEADLINE_MS_MAX)
    }
}

impl<'a> From<Message<'a>> for Record<'a> {
    fn from(message: Message<'a>) -> Self {
        Record {
            kind: match message {
                Message::Put(_) | Message::Expiring(_) => RecordKind::Put,
                Message::Delete => RecordKind::Delete,
                Message::Merge(_) => RecordKind::Merge,
                Message::Stack(_) => RecordKind::BaseWithOperands,
                Message::Separated(_) => RecordKind::Separated,
            },
            // The handle of a value has its deadline.
            deadline_ms: match message {
                Message::Separated(_) => None,
                message => message.deadline_ms(),
            },
            value: match message {
                // The payload was checked when it came in.
                Message::Expiring(payload) => expiry::split(payload).unwrap_or_default().1,
                message => message.payload(),
            },
        }
    }
}
