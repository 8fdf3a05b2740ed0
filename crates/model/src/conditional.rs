//! Writes that depend on the records that are there: what they do to a map, and how a script spells
//! them.

use std::fmt;

use crate::pattern::Pattern;

/// A write of one keyspace that depends on its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// Sets the value of a key that has none. The answer is the value that is there.
    Insert(Pattern, Pattern),
    /// Changes a key from one value to another; none is no value. The answer is whether it did.
    Swap {
        /// The key.
        key: Pattern,
        /// The value that it must have.
        expected: Option<Pattern>,
        /// Its next value.
        new: Option<Pattern>,
    },
    /// Reads a key, and swaps what it read for a value. The answer is the value before.
    Replace(Pattern, Pattern),
    /// Puts bytes in front of a key's value ([`updated`]). The answer is the new value.
    Update(Pattern, Pattern),
    /// Removes a key. The answer is its value.
    Take(Pattern),
    /// Removes the first record, or the last one. The answer is the record.
    Pop {
        /// Whether it is the last one.
        last: bool,
    },
}

/// The most bytes of an updated value, if what goes in front is not longer.
const UPDATED_BYTES_MAX: usize = 64;

/// The value after [`Conditional::Update`].
#[must_use]
pub fn updated(value: Option<&[u8]>, front: &[u8]) -> Vec<u8> {
    let mut new = front.to_vec();
    new.extend_from_slice(value.unwrap_or_default());
    new.truncate(front.len().max(UPDATED_BYTES_MAX));
    new
}

/// A value, or the word for none.
fn value(value: Option<&Pattern>) -> String {
    value.map_or("absent".to_owned(), Pattern::to_string)
}

impl fmt::Display for Conditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conditional::Insert(key, value) => write!(f, "insert {key} {value}"),
            Conditional::Swap { key, expected, new } => {
                let (expected, new) = (value(expected.as_ref()), value(new.as_ref()));
                write!(f, "swap {key} {expected} {new}")
            }
            Conditional::Replace(key, value) => write!(f, "replace {key} {value}"),
            Conditional::Update(key, front) => write!(f, "update {key} {front}"),
            Conditional::Take(key) => write!(f, "take {key}"),
            Conditional::Pop { last: false } => f.write_str("pop first"),
            Conditional::Pop { last: true } => f.write_str("pop last"),
        }
    }
}
