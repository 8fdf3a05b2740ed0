//! Transactions of scripts: what they do step by step, and what a map makes of them.
//!
//! A transaction is one operation. Other writers' changes come between its steps, as steps of their
//! own, so that a script may provoke each conflict.

use std::collections::BTreeSet;
use std::ops::Bound;

use terrapin::{Database, Isolation, Keyspace, TransactionOptions, prefix_range};
use terrapin_base::Result;

use crate::operation::{Answer, Change, Durability, Record, Span, What};
use crate::oracle::{Map, State};
use crate::pattern::Pattern;
use crate::step::TxStep;
use crate::tail::Tail;

/// The key of the last record of a transaction's answer, if it committed.
pub const COMMITTED: &[u8] = b"committed";
/// The key of that record if another writer was in the way.
pub const CONFLICT: &[u8] = b"conflict";

/// Runs a transaction of a database. The answer has the records that it read, in order, and the
/// outcome as a last record.
pub(crate) fn transact(
    database: &Database,
    keyspace: &mut dyn FnMut(&str) -> Result<Keyspace>,
    (snapshot, durability): (bool, Durability),
    steps: &[TxStep],
) -> Result<Answer> {
    let mut options = TransactionOptions::new();
    if snapshot {
        options = options.isolation(Isolation::Snapshot);
    }
    if let Some(durability) = durability {
        options = options.durability(durability);
    }
    let mut tx = database.transaction_with(&options)?;
    let (mut answer, mut saved) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            TxStep::Change(Change {
                keyspace: name,
                what,
            }) => {
                let keyspace = keyspace(name)?;
                match what {
                    What::Put(key, value) => tx.put(&keyspace, key.bytes(), value.bytes())?,
                    What::Delete(key) => tx.delete(&keyspace, key.bytes())?,
                    What::Merge(key, operand) => {
                        tx.merge(&keyspace, key.bytes(), operand.bytes())?;
                    }
                    What::Erase(span) => tx.delete_range(&keyspace, bounds(span))?,
                }
            }
            TxStep::Get(name, key) => {
                let value = tx.get(&keyspace(name)?, key.bytes())?;
                answer.extend(value.map(|value| (key.bytes(), value.to_vec())));
            }
            TxStep::GetForUpdate(name, key) => {
                let value = tx.get_for_update(&keyspace(name)?, key.bytes())?;
                answer.extend(value.map(|value| (key.bytes(), value.to_vec())));
            }
            TxStep::Range {
                keyspace: name,
                span,
                back,
                limit,
            } => {
                let mut range = tx.range(&keyspace(name)?, bounds(span));
                if let Some(limit) = limit {
                    range = range.limit(*limit);
                }
                let next = || match back {
                    true => range.next_back(),
                    false => range.next(),
                };
                for record in std::iter::from_fn(next) {
                    let (key, value) = record?;
                    answer.push((key.to_vec(), value.to_vec()));
                }
            }
            TxStep::Save => saved.push(tx.savepoint()),
            TxStep::Undo(number) => match saved.get(*number) {
                Some(savepoint) => {
                    tx.rollback_to(savepoint)?;
                    saved.truncate(number + 1);
                }
                None => return Ok(Answer::Broken(format!("there is no place {number}"))),
            },
            TxStep::Beside(change) => {
                let keyspace = keyspace(&change.keyspace)?;
                match change.record() {
                    Some((key, Some(value))) => keyspace.put(key.bytes(), value.bytes())?,
                    Some((key, None)) => keyspace.delete(key.bytes())?,
                    None => return Ok(Answer::Broken("others write keys".to_owned())),
                }
            }
            TxStep::Checkpoint => database.checkpoint()?,
        }
    }
    let outcome = match tx.commit()? {
        Ok(_) => COMMITTED,
        Err(_) => CONFLICT,
    };
    answer.push((outcome.to_vec(), Vec::new()));
    Ok(Answer::Records(answer))
}

fn bounds(span: &Span) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bytes = |bound: &Bound<Pattern>| bound.as_ref().map(Pattern::bytes);
    match span {
        Span::Prefix(prefix) => prefix_range(prefix.bytes()),
        Span::Between(lower, upper) => (bytes(lower), bytes(upper)),
    }
}

/// What a transaction does to maps.
pub(crate) struct Imagined {
    view: State,
    is_serializable: bool,
    changes: Vec<Change>,
    saved: Vec<usize>,
    /// The keys that it depends on.
    points: BTreeSet<(String, Vec<u8>)>,
    ranges: Vec<RangeRead>,
    answer: Vec<Record>,
}

struct RangeRead {
    keyspace: String,
    span: Span,
    back: bool,
    /// The last key that was taken. None if the range has ended.
    last: Option<Vec<u8>>,
}

impl Imagined {
    pub fn new(view: &State, snapshot: bool) -> Self {
        Imagined {
            view: view.clone(),
            is_serializable: !snapshot,
            changes: Vec::new(),
            saved: Vec::new(),
            points: BTreeSet::new(),
            ranges: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// The records of a keyspace as the transaction sees them.
    fn seen(&self, keyspace: &str) -> Map {
        let map = self.view.keyspaces().get(keyspace);
        let mut map: Map = map.map(|map| (**map).clone()).unwrap_or_default();
        for change in self
            .changes
            .iter()
            .filter(|change| change.keyspace == keyspace)
        {
            match &change.what {
                What::Put(key, value) => {
                    map.insert(key.bytes(), value.bytes().into());
                }
                What::Delete(key) => {
                    map.remove(&key.bytes());
                }
                What::Erase(span) => map.retain(|key, _| !holds(span, key)),
                What::Merge(key, operand) => {
                    let value = map.get(&key.bytes()).map_or(&[][..], |value| value);
                    let value = Tail::of(value, &operand.bytes());
                    map.insert(key.bytes(), value.into());
                }
            }
        }
        map
    }

    /// Whether the transaction has written a key.
    fn has_written(&self, keyspace: &str, key: &[u8]) -> bool {
        let merges = |change: &Change| match &change.what {
            What::Merge(other, _) => change.keyspace == keyspace && other.bytes() == key,
            What::Put(..) | What::Delete(_) | What::Erase(_) => false,
        };
        self.has_replaced(keyspace, key) || self.changes.iter().any(merges)
    }

    /// Whether the transaction has written a key so that the value of its view does not matter.
    fn has_replaced(&self, keyspace: &str, key: &[u8]) -> bool {
        let of = self
            .changes
            .iter()
            .filter(|change| change.keyspace == keyspace);
        of.into_iter().any(|change| match &change.what {
            What::Put(other, _) | What::Delete(other) => other.bytes() == key,
            What::Merge(..) => false,
            What::Erase(span) => holds(span, key),
        })
    }

    pub fn change(&mut self, change: &Change) {
        self.changes.push(change.clone());
    }

    pub fn get(&mut self, keyspace: &str, key: &Pattern, for_update: bool) {
        let key = key.bytes();
        if let Some(value) = self.seen(keyspace).get(&key) {
            self.answer.push((key.clone(), value.to_vec()));
        }
        if (self.is_serializable || for_update) && !self.has_replaced(keyspace, &key) {
            self.points.insert((keyspace.to_owned(), key));
        }
    }

    pub fn range(&mut self, keyspace: &str, span: &Span, back: bool, limit: Option<usize>) {
        let limit = limit.unwrap_or(usize::MAX);
        let all = self.seen(keyspace);
        let mut found: Vec<Record> = all
            .into_iter()
            .filter(|(key, _)| holds(span, key))
            .map(|(key, value)| (key, value.to_vec()))
            .collect();
        if back {
            found.reverse();
        }
        let is_whole = found.len() < limit;
        found.truncate(limit);
        let last = found.last().map(|(key, _)| key.clone());
        if self.is_serializable && (is_whole || last.is_some()) {
            self.ranges.push(RangeRead {
                keyspace: keyspace.to_owned(),
                span: span.clone(),
                back,
                last: last.filter(|_| !is_whole),
            });
        }
        self.answer.append(&mut found);
    }

    pub fn save(&mut self) {
        self.saved.push(self.changes.len());
    }

    /// Returns whether there is such a place.
    pub fn undo(&mut self, number: usize) -> bool {
        let Some(&length) = self.saved.get(number) else {
            return false;
        };
        self.changes.truncate(length);
        self.saved.truncate(number + 1);
        true
    }

    /// Whether it has written anything. Otherwise it commits.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    fn depends_on(&self, keyspace: &str, key: &[u8]) -> bool {
        let in_range = |range: &RangeRead| {
            let is_passed = match &range.last {
                None => true,
                Some(last) if range.back => key >= &last[..],
                Some(last) => key <= &last[..],
            };
            range.keyspace == keyspace && holds(&range.span, key) && is_passed
        };
        self.points.contains(&(keyspace.to_owned(), key.to_vec()))
            || self.has_written(keyspace, key)
            || self.ranges.iter().any(in_range)
    }

    /// Whether what others wrote is a conflict. None if it depends on merges: others wrote what the
    /// transaction depends on, and the values are as before.
    pub fn conflicts(&self, beside: &[&Change], now: &State) -> Option<bool> {
        let keys = beside.iter().filter_map(|change| {
            let key = change.record()?.0.bytes();
            self.depends_on(&change.keyspace, &key)
                .then_some((&change.keyspace, key))
        });
        let value = |state: &State, keyspace: &str, key: &Vec<u8>| {
            state
                .keyspaces()
                .get(keyspace)
                .and_then(|map| map.get(key).cloned())
        };
        let mut is_any = false;
        for (keyspace, key) in keys {
            if value(now, keyspace, &key) != value(&self.view, keyspace, &key) {
                return Some(true);
            }
            is_any = true;
        }
        (!is_any).then_some(false)
    }

    /// What it has written, and its answer.
    pub fn end(mut self, is_committed: bool) -> (Vec<Change>, Answer) {
        let outcome = match is_committed {
            true => COMMITTED,
            false => CONFLICT,
        };
        self.answer.push((outcome.to_vec(), Vec::new()));
        (self.changes, Answer::Records(self.answer))
    }
}

/// Whether a key lies in a span.
fn holds(span: &Span, key: &[u8]) -> bool {
    match span {
        Span::Prefix(prefix) => key.starts_with(&prefix.bytes()),
        Span::Between(lower, upper) => {
            let above = match lower {
                Bound::Unbounded => true,
                Bound::Included(lower) => key >= &lower.bytes()[..],
                Bound::Excluded(lower) => key > &lower.bytes()[..],
            };
            let below = match upper {
                Bound::Unbounded => true,
                Bound::Included(upper) => key <= &upper.bytes()[..],
                Bound::Excluded(upper) => key < &upper.bytes()[..],
            };
            above && below
        }
    }
}
