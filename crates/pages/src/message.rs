//! A message is what a write says about a key. Buffers and leaves hold messages; only a put
//! survives at the leaves.

/// What a write says about a key.
///
/// Blocks keep two bits for the kind: two of four values are taken, so range deletes and merges
/// have room (a reader that does not know a kind refuses the block).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The key has this value.
    Put(&'a [u8]),
    /// The key has no value.
    Delete,
}

/// Number of [`Message::Put`] on disk.
pub(crate) const KIND_PUT: u8 = 0;
/// Number of [`Message::Delete`] on disk.
pub(crate) const KIND_DELETE: u8 = 1;

impl<'a> Message<'a> {
    /// The value of a put; nothing for a delete.
    #[inline]
    #[must_use]
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            Message::Put(value) => Some(value),
            Message::Delete => None,
        }
    }

    /// Bytes of the value; 0 for a delete.
    #[inline]
    #[must_use]
    pub fn value_bytes(self) -> usize {
        self.value().map_or(0, <[u8]>::len)
    }

    /// Whether this is a delete.
    #[inline]
    #[must_use]
    pub fn is_delete(self) -> bool {
        matches!(self, Message::Delete)
    }

    /// The kind's number on disk.
    #[inline]
    pub(crate) fn kind(self) -> u8 {
        match self {
            Message::Put(_) => KIND_PUT,
            Message::Delete => KIND_DELETE,
        }
    }
}
