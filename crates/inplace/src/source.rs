//! What a merge reads: the input, and groups that wait.

use terrapin_base::{Message, Result};
use terrapin_runs::cursor::GroupCursor;
use terrapin_structure::{KWayMerge, MessageCursor};

/// A cursor over the input, or over a group that waits.
pub(crate) enum Source {
    Input(Box<dyn MessageCursor>),
    Waiting(Box<GroupCursor>),
}

/// The records that are newer than the line, newest source first.
pub(crate) type Newer = KWayMerge<Source>;

/// Most bytes of read-ahead that the sources hold.
pub(crate) fn memory_bytes(newer: &Newer) -> u64 {
    let bytes = |source: &Source| match source {
        Source::Input(_) => 0,
        Source::Waiting(cursor) => cursor.memory_bytes_max(),
    };
    newer.cursors().iter().map(bytes).sum()
}

impl MessageCursor for Source {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Source::Input(input) => input.key(),
            Source::Waiting(cursor) => cursor.current_key(),
        }
    }

    #[inline]
    fn message(&self) -> Message<'_> {
        match self {
            Source::Input(input) => input.message(),
            Source::Waiting(cursor) => cursor.current_message(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        match self {
            Source::Input(input) => input.advance(),
            Source::Waiting(cursor) => cursor.step(),
        }
    }
}
