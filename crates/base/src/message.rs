//! The message: what one write says about one key.
//!
//! Memtables, the log's records, buffers of trees and leaves all hold messages of this type. Each
//! of them has its own bytes for a message, and encodes them in its own file.

/// What one write says about one key, with a borrowed value.
///
/// Code that stores a message or answers a read from one matches all kinds by name, without `_`. So
/// a new kind does not compile until each of these places handles it.
///
/// ```
/// use terrapin_base::Message;
/// let put = Message::Put(b"slow");
/// assert_eq!(put.value(), Some(&b"slow"[..]));
/// assert_eq!((put.value_bytes(), put.is_delete()), (4, false));
/// assert_eq!(Message::Delete.value(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The key has this value from now on.
    Put(&'a [u8]),
    /// The key has no value from now on, whatever older messages say.
    Delete,
}

impl<'a> Message<'a> {
    /// The value of a put; `None` for a delete. O(1).
    #[inline]
    #[must_use]
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            Message::Put(value) => Some(value),
            Message::Delete => None,
        }
    }

    /// Length of the value in bytes; 0 for a delete. O(1).
    #[inline]
    #[must_use]
    pub fn value_bytes(self) -> usize {
        match self {
            Message::Put(value) => value.len(),
            Message::Delete => 0,
        }
    }

    /// Bytes of the value that lie outside of the message; 0 for a put and a delete. O(1).
    #[inline]
    #[must_use]
    pub fn separated_bytes(self) -> u64 {
        match self {
            Message::Put(_) | Message::Delete => 0,
        }
    }

    /// Whether this is a delete. O(1).
    #[inline]
    #[must_use]
    pub fn is_delete(self) -> bool {
        match self {
            Message::Put(_) => false,
            Message::Delete => true,
        }
    }
}
