//! What a merge reads: sorted messages of a sealed memtable, or of runs.

use std::sync::Arc;

use terrapin_base::{Message, Result};

use crate::Estimate;

/// A cursor over sorted messages with unique keys. It only moves forward; merges read from it.
pub trait MessageCursor: Send {
    /// The current key; `None` at the end.
    fn key(&self) -> Option<&[u8]>;
    /// The current message. Panics at the end.
    fn message(&self) -> Message<'_>;
    /// Moves to the next message. The caller drops the cursor after an error.
    fn advance(&mut self) -> Result<()>;
}

/// A range of keys of which a merge erases everything that its base version holds. It has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erased {
    /// The first key. Empty: below all keys.
    pub lo: Box<[u8]>,
    /// The first key behind the range. `None`: the end of all keys.
    pub hi: Option<Box<[u8]>>,
}

/// The content of a sealed memtable, as a merge sees it. Its messages are newer than everything in
/// the version that the merge starts from.
pub trait MergeInput: Send + Sync {
    /// A cursor over the messages of a range: `lo` is inclusive, `hi` is exclusive, and `None` is
    /// unbounded.
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>>;
    /// Estimates the content of a range, within a few per cent for large ranges.
    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate;
    /// Ranges that the merge erases from the base version before it applies the messages. They
    /// ascend and do not overlap. Each is a range that [`crate::Ordered::erasable`] of the base
    /// version returned, so a structure that returns none gets deletes instead. An input that wraps
    /// another one must pass these on: erased records that a merge keeps come back.
    fn erased(&self) -> &[Erased];
    /// Keys that divide the input into about `parts` equal parts, in ascending order. Each is above
    /// the input's first key. The list may be shorter, or empty.
    fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let _ = parts;
        Vec::new()
    }
    /// Whether messages may be handles of large values, whose pages the merge is to adopt.
    fn has_handles(&self) -> bool {
        false
    }
    /// The share of messages known to replace a record, in thousandths. It covers this memtable and
    /// those before it. 0 means that the share is not known.
    fn replacing_permille(&self) -> u16 {
        0
    }
}

/// No messages: what a compaction merges.
pub struct NoInput;

impl MessageCursor for NoInput {
    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn message(&self) -> Message<'_> {
        Message::Delete
    }

    fn advance(&mut self) -> Result<()> {
        Ok(())
    }
}

impl MergeInput for NoInput {
    fn cursor(
        self: Arc<Self>,
        _: Option<&[u8]>,
        _: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        Ok(Box::new(NoInput))
    }

    fn estimate(&self, _: Option<&[u8]>, _: Option<&[u8]>) -> Estimate {
        Estimate::default()
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}
