//! What a structure knows about one key. One place above all structures
//! (`terrapin/src/read/resolve.rs`) makes the user's answer of it.

use terrapin_base::Slice;

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
    /// Operands of merges, with or without the value that they apply to, as the record has them.
    Operands(Slice),
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
