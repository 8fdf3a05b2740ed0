//! Writes that depend on the records that are there: what they do to a map, and how a script spells
//! them.

use std::fmt;

use terrapin_base::checksum::hash64;

use crate::operation::{Change, Operation, place};
use crate::oracle::UNLOGGED;
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

/// Writes the conditions of a batch: `require KEY VALUE` and `lack KEY`.
pub(crate) fn show_required(f: &mut fmt::Formatter<'_>, required: &[Change]) -> fmt::Result {
    for required in required {
        f.write_str(" ")?;
        place(f, &required.keyspace)?;
        match &required.value {
            Some(value) => write!(f, "require {} {value} ;", required.key)?,
            None => write!(f, "lack {} ;", required.key)?,
        }
    }
    Ok(())
}

/// Turns one write in eight into a conditional one. `number` chooses; it draws no random number, so
/// the operations around stay the same.
pub(crate) fn conditional(operation: Operation, number: u64) -> Operation {
    let choice = hash64(&number.to_le_bytes());
    let (is_chosen, choice) = (choice % 8 == 0, choice / 8);
    let how = |keyspace, how| Operation::Conditional { keyspace, how };
    match operation {
        Operation::Put {
            keyspace,
            key,
            value,
            durability: None,
        } if is_chosen && keyspace != UNLOGGED => match choice % 5 {
            0 => how(keyspace, Conditional::Insert(key, value)),
            1 => how(keyspace, Conditional::Replace(key, value)),
            2 => how(keyspace, Conditional::Update(key, value)),
            3 => {
                let (expected, new) = (None, Some(value));
                how(keyspace, Conditional::Swap { key, expected, new })
            }
            _ => {
                let required = Change {
                    keyspace,
                    key,
                    value: None,
                };
                let mut change = required.clone();
                change.value = Some(value);
                Operation::Guarded {
                    required: vec![required],
                    changes: vec![change],
                    durability: None,
                }
            }
        },
        Operation::Delete {
            keyspace,
            key,
            durability: None,
        } if is_chosen && keyspace != UNLOGGED => match choice % 2 {
            0 => how(keyspace, Conditional::Take(key)),
            _ => how(
                keyspace,
                Conditional::Pop {
                    last: choice % 4 == 1,
                },
            ),
        },
        operation => operation,
    }
}
