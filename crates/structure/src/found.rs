//! What a structure knows about one key. One place above all structures
//! (`terrapin/src/read/resolve.rs`) makes the user's answer of it.

use terrapin_base::{Fold, Message, Operator, Slice};

/// What a version holds for a key.
///
/// A structure returns what it stores and interprets nothing: it follows no handle and applies no
/// operand. So each structure treats all kinds of messages alike, and a new kind needs no change in
/// any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// The key has no value.
    #[default]
    Nothing,
    /// The key's value.
    Value(Slice),
    /// The handle of a value that is stored elsewhere, as the record has it.
    Handle(Slice),
    /// A value with a deadline: the payload of a [`terrapin_base::Message::Expiring`].
    Expiring(Slice),
    /// Operands of merges and the base that they apply to: the bytes of a [`terrapin_base::Stack`]
    /// whose base is known. The version gathered them from all its places.
    Operands(Slice),
}

impl Found {
    /// What a key's gathered messages are, if nothing older exists. Applies no operand and no
    /// deadline.
    #[must_use]
    pub fn gathered(fold: &mut Fold, key: &[u8]) -> Self {
        match fold.finish(&Operator::default(), key, Some(0)) {
            Message::Put(value) => Found::Value(Slice::copy(value)),
            Message::Delete => Found::Nothing,
            Message::Separated(handle) => Found::Handle(Slice::copy(handle)),
            Message::Expiring(payload) => Found::Expiring(Slice::copy(payload)),
            Message::Merge(bytes) | Message::Stack(bytes) => Found::Operands(Slice::copy(bytes)),
        }
    }
}

/// Whether a version holds a value for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The key has no value.
    Absent,
    /// The key has a value, here or elsewhere.
    Present,
    /// Only the record itself tells: the caller asks [`crate::Version::get`].
    Unresolved,
}

impl Presence {
    /// What the handle of a value says that is stored elsewhere: a deadline may have ended it.
    #[must_use]
    pub fn of_handle(message: Message<'_>) -> Presence {
        match message.deadline_ms() {
            None => Presence::Present,
            Some(_) => Presence::Unresolved,
        }
    }
}
