//! The message: what one write says about one key.
//!
//! Memtables, the log's records, buffers of trees and leaves all hold messages of this type. Each
//! of them has its own bytes for a message, and encodes them in its own file. They store a message
//! as its [`MessageKind`] and its payload.

use crate::codec::Reader;

/// What one write says about one key, with a borrowed payload.
///
/// Code that stores a message or answers a read from one matches all kinds by name, without `_`. So
/// a new kind does not compile until each of these places handles it.
///
/// ```
/// use terrapin_base::Message;
/// let put = Message::Put(b"slow");
/// assert_eq!(put.payload(), &b"slow"[..]);
/// assert_eq!((put.value_bytes(), put.is_delete(), put.has_operands()), (4, false, false));
/// assert!(Message::Merge(b"+1").has_operands());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The key has this value from now on.
    Put(&'a [u8]),
    /// The key has no value from now on, whatever older messages say.
    Delete,
    /// An operand that the keyspace's merge operator applies to what older messages say.
    Merge(&'a [u8]),
    /// Operands side by side, with what they apply to, if that is known: the bytes of a
    /// [`crate::Stack`]. A store makes these where an operator declines, fails or is missing.
    Stack(&'a [u8]),
    /// The key has a value that is stored elsewhere: the bytes of its handle, which end with the
    /// value's length as a varint. A structure keeps handles and never follows them.
    Separated(&'a [u8]),
    /// The key has this value until a moment, and no value from then on, whatever older messages
    /// say: the bytes of a deadline and the value ([`crate::expiry`]).
    Expiring(&'a [u8]),
}

/// The kind of a [`Message`], as stores of messages number it in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// [`Message::Put`].
    #[default]
    Put = 0,
    /// [`Message::Delete`].
    Delete = 1,
    /// [`Message::Merge`].
    Merge = 2,
    /// [`Message::Stack`].
    Stack = 3,
    /// [`Message::Separated`].
    Separated = 4,
    /// [`Message::Expiring`].
    Expiring = 5,
}

impl MessageKind {
    /// The bits that a kind's number takes.
    pub const BITS: u32 = 3;

    /// The kind of a number, of which the lowest [`MessageKind::BITS`] bits count. O(1).
    #[inline]
    #[must_use]
    pub fn from_bits(number: u32) -> Self {
        match number & ((1 << Self::BITS) - 1) {
            0 => MessageKind::Put,
            1 => MessageKind::Delete,
            2 => MessageKind::Merge,
            4 => MessageKind::Separated,
            5 => MessageKind::Expiring,
            _ => MessageKind::Stack,
        }
    }
}

impl<'a> Message<'a> {
    /// The message of this kind and payload. A delete has no payload. O(1).
    #[inline]
    #[must_use]
    pub fn of(kind: MessageKind, payload: &'a [u8]) -> Self {
        match kind {
            MessageKind::Put => Message::Put(payload),
            MessageKind::Delete => Message::Delete,
            MessageKind::Merge => Message::Merge(payload),
            MessageKind::Stack => Message::Stack(payload),
            MessageKind::Separated => Message::Separated(payload),
            MessageKind::Expiring => Message::Expiring(payload),
        }
    }

    /// The kind. O(1).
    #[inline]
    #[must_use]
    pub fn kind(self) -> MessageKind {
        match self {
            Message::Put(_) => MessageKind::Put,
            Message::Delete => MessageKind::Delete,
            Message::Merge(_) => MessageKind::Merge,
            Message::Stack(_) => MessageKind::Stack,
            Message::Separated(_) => MessageKind::Separated,
            Message::Expiring(_) => MessageKind::Expiring,
        }
    }

    /// The bytes that a store keeps: of a put its value, of a merge its operand, of a stack its
    /// bytes, of a separated value its handle, of an expiring one its deadline and value, of a
    /// delete none. O(1).
    #[inline]
    #[must_use]
    pub fn payload(self) -> &'a [u8] {
        match self {
            Message::Put(bytes)
            | Message::Merge(bytes)
            | Message::Stack(bytes)
            | Message::Separated(bytes)
            | Message::Expiring(bytes) => bytes,
            Message::Delete => &[],
        }
    }

    /// The value of a put; `None` for the other kinds. For code that handles puts alone. O(1).
    #[inline]
    #[must_use]
    pub fn put_value(self) -> Option<&'a [u8]> {
        match self {
            Message::Put(value) => Some(value),
            Message::Delete
            | Message::Merge(_)
            | Message::Stack(_)
            | Message::Separated(_)
            | Message::Expiring(_) => None,
        }
    }

    /// Length of the payload in bytes. O(1).
    #[inline]
    #[must_use]
    pub fn value_bytes(self) -> usize {
        self.payload().len()
    }

    /// Bytes of the value that lie outside of the message. O(1).
    #[inline]
    #[must_use]
    pub fn separated_bytes(self) -> u64 {
        match self {
            Message::Put(_)
            | Message::Delete
            | Message::Merge(_)
            | Message::Stack(_)
            | Message::Expiring(_) => 0,
            Message::Separated(handle) => handle_value_bytes(handle),
        }
    }

    /// Whether this is a delete. O(1).
    #[inline]
    #[must_use]
    pub fn is_delete(self) -> bool {
        match self {
            Message::Delete => true,
            Message::Put(_)
            | Message::Merge(_)
            | Message::Stack(_)
            | Message::Separated(_)
            | Message::Expiring(_) => false,
        }
    }

    /// Whether the message holds operands of a merge operator. O(1).
    #[inline]
    #[must_use]
    pub fn has_operands(self) -> bool {
        match self {
            Message::Put(_) | Message::Delete | Message::Separated(_) | Message::Expiring(_) => {
                false
            }
            Message::Merge(_) | Message::Stack(_) => true,
        }
    }

    /// Whether a merge must look at more than the newest message of a key: operands need their
    /// base, and the moment says what a deadline means. O(1).
    #[inline]
    #[must_use]
    pub fn settles(self) -> bool {
        match self {
            Message::Put(_) | Message::Delete => false,
            Message::Separated(handle) => handle_deadline_ms(handle).is_some(),
            Message::Merge(_) | Message::Stack(_) | Message::Expiring(_) => true,
        }
    }

    /// The message, if nothing older exists: an expired value is a delete then. `now_ms` is in
    /// milliseconds since 1970. O(1).
    #[inline]
    #[must_use]
    pub fn at_last_place(self, now_ms: u64) -> Self {
        match self.deadline_ms() {
            Some(deadline_ms) if deadline_ms <= now_ms => Message::Delete,
            _ => self,
        }
    }

    /// The deadline of an expiring value, in milliseconds since 1970, also of one that is stored
    /// elsewhere. O(1).
    #[inline]
    #[must_use]
    pub fn deadline_ms(self) -> Option<u64> {
        match self {
            Message::Expiring(payload) => Some(crate::expiry::split_or_expired(payload).0),
            Message::Separated(handle) => handle_deadline_ms(handle),
            Message::Put(_) | Message::Delete | Message::Merge(_) | Message::Stack(_) => None,
        }
    }
}

/// Handles of births from this number on are of large values: the number is the id of a page.
pub const LARGE_BIRTHS: u64 = 1 << 40;

/// The deadline of the large value that a handle names, in milliseconds since 1970: the second of
/// its varints. `None` without one, and for handles of other values.
#[must_use]
pub fn handle_deadline_ms(handle: &[u8]) -> Option<u64> {
    // The number of a large birth takes six bytes at least.
    if handle.len() < 8 {
        return None;
    }
    let mut reader = Reader::new("value handle", handle);
    let birth = reader.varint().ok()?;
    let second = reader.varint().ok()?;
    (birth >= LARGE_BIRTHS && second > 0).then_some(second)
}

/// The length of the value that a handle names: the last of its varints. 0 for damaged bytes.
#[must_use]
pub fn handle_value_bytes(handle: &[u8]) -> u64 {
    let Some((last, before)) = handle.split_last() else {
        return 0;
    };
    let more = before
        .iter()
        .rev()
        .take_while(|byte| **byte & 0x80 != 0)
        .take(9);
    let bytes = more.fold(u64::from(*last & 0x7f), |value, byte| {
        value << 7 | u64::from(byte & 0x7f)
    });
    // Nine continued bytes hold 63 bits, and the last one at most one more.
    bytes
}
