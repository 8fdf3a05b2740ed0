//! Turns some of the writes of random runs into conditional ones.

use std::ops::Bound;

use terrapin_base::checksum::hash64;

use crate::conditional::Conditional;
use crate::operation::{Change, Durability, Operation, Span};
use crate::oracle::UNLOGGED;
use crate::pattern::Pattern;
use crate::step::TxStep;

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
        Operation::Batch {
            changes,
            durability,
        } if is_chosen && may_transact(&changes, durability) => {
            transaction(changes, durability, choice)
        }
        operation => operation,
    }
}

fn may_transact(changes: &[Change], durability: Durability) -> bool {
    durability != Some(terrapin::Durability::None)
        && changes.iter().all(|change| change.keyspace != UNLOGGED)
}

/// A transaction that writes what a batch wrote. It also reads, takes writes back, and meets other
/// writers.
fn transaction(changes: Vec<Change>, durability: Durability, choice: u64) -> Operation {
    let mut steps = Vec::new();
    let mut bits = choice / 8;
    let mut one_in = |count: u64| {
        let is_chosen = bits.is_multiple_of(count);
        bits = hash64(&bits.to_le_bytes());
        is_chosen
    };
    let mut places = 0;
    for change in changes {
        let keyspace = change.keyspace.clone();
        let key = change.record().map(|(key, _)| key.clone());
        if let Some(key) = &key {
            if one_in(3) {
                steps.push(match one_in(2) {
                    true => TxStep::Get(keyspace.clone(), key.clone()),
                    false => TxStep::GetForUpdate(keyspace.clone(), key.clone()),
                });
            }
            if one_in(4) {
                let end = Bound::Included(key.clone());
                let (back, limit) = (one_in(2), if one_in(3) { None } else { Some(3) });
                let span = match one_in(2) {
                    true => Span::Between(end, Bound::Unbounded),
                    false => Span::Between(Bound::Unbounded, end),
                };
                steps.push(TxStep::Range {
                    keyspace: keyspace.clone(),
                    span,
                    back,
                    limit,
                });
            }
            if one_in(12) {
                // The value is of no other operation, so it is a change.
                let value = Pattern::literal(choice.to_le_bytes());
                let key = match one_in(2) {
                    true => key.clone(),
                    false => Pattern::literal([&key.bytes()[..], b"+"].concat()),
                };
                steps.push(TxStep::Beside(Change::of(&keyspace, key, Some(value))));
            }
        }
        if one_in(20) {
            steps.push(TxStep::Checkpoint);
        }
        if one_in(4) {
            steps.push(TxStep::Save);
            places += 1;
            if let Some(key) = key.filter(|_| one_in(2)) {
                steps.push(TxStep::Change(Change::of(&keyspace, key, None)));
                steps.push(TxStep::Undo(places - 1));
            }
        }
        steps.push(TxStep::Change(change));
    }
    Operation::Transact {
        snapshot: one_in(3),
        steps,
        durability,
    }
}
