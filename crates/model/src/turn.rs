//! Turns some of the writes of random runs into conditional ones.

use terrapin_base::checksum::hash64;

use crate::conditional::Conditional;
use crate::operation::{Change, Operation};
use crate::oracle::UNLOGGED;

/// Turns one write in eight into a conditional one. `number` chooses; it draws no random number, so
/// the operations around stay the same.
pub(crate) fn conditional(operation: Operation, number: u64) -> Operation {
    let choice = hash64(&number.to_le_bytes());
    let (is_chosen, choice) = (choice.is_multiple_of(8), choice / 8);
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
                let required = Change::of(&keyspace, key.clone(), None);
                Operation::Guarded {
                    required: vec![required],
                    changes: vec![Change::of(&keyspace, key, Some(value))],
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
