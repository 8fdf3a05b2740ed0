//! [`TransactionRange`]: the records of a transaction's view, with its own writes over them.

use std::fmt;
use std::ops::Bound;

use terrapin_base::{KeyspaceId, Result, Slice, mutant};
use terrapin_structure::Direction;

use crate::engine::state::KeyspaceShared;
use crate::read::iter::Range;
use crate::transaction::writes::{Own, OwnWrites};
use crate::transaction::{Tx, own_large};
use crate::types::key_range::{KeyRange, owned};
use crate::write::footprint::RangeNumber;

/// Records in key order, from either end, as a transaction sees them:
/// `Item = Result<(key, value)>`. The transaction's own writes are among them.
///
/// A serializable transaction depends on the keys from a bound to the last key that the range
/// handed out from there, and on all keys of the range once it has ended. So a transaction that
/// takes the front of a queue does not conflict with writes at the back.
///
/// Errors: as for [`crate::Range`], and `TooLarge` if the transaction has read more keys than it
/// may remember ([`crate::TransactionOptions::read_bytes_max`]). The range ends after an error.
pub struct TransactionRange<'a> {
    tx: &'a Tx,
    keyspace: KeyspaceId,
    base: Range,
    own: Option<&'a OwnWrites>,
    /// Records of the view that were read from each end, and not handed out.
    front: Option<(Slice, Slice)>,
    back: Option<(Slice, Slice)>,
    /// The bounds of the own writes that neither end has passed.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    number: Option<RangeNumber>,
    /// Number of records that the caller may still take.
    left: usize,
    /// The error of the beginning.
    error: Option<terrapin_base::Error>,
    is_over: bool,
}

impl<'a> TransactionRange<'a> {
    /// A range of a transaction. An error of `checked` is its only item.
    pub(crate) fn new(
        tx: &'a Tx,
        checked: Result<()>,
        shared: &KeyspaceShared,
        range: &impl KeyRange,
    ) -> Self {
        shared.counters.range_begins();
        let (lower, upper) = owned(range);
        let begun = checked.and_then(|()| tx.begin_range(shared.id, range));
        let (number, error) = match begun {
            Ok(number) => (number, None),
            Err(error) => (None, Some(error)),
        };
        TransactionRange {
            tx,
            keyspace: shared.id,
            base: Range::new(Ok(tx.view.clone()), shared.id, owned(range)),
            own: tx.writes.of(shared.id),
            front: None,
            back: None,
            lower,
            upper,
            number,
            left: usize::MAX,
            error,
            is_over: false,
        }
    }

    /// Limits the range to `records` records, counted from both ends together. Set the limit
    /// whenever you know it: see [`crate::Range::limit`].
    #[must_use]
    pub fn limit(mut self, records: usize) -> Self {
        self.left = self.left.min(records);
        // Each own write may hide a record of the view. Each end reads one record ahead.
        if let Some(hidden) = self.own.map_or(Some(0), OwnWrites::hides_at_most) {
            self.base = self.base.limit(records.saturating_add(hidden + 1));
        }
        self
    }

    fn step(&mut self, direction: Direction) -> Option<Result<(Slice, Slice)>> {
        if self.is_over || self.left == 0 {
            return None;
        }
        let next = match self.error.take() {
            Some(error) => Err(error),
            None => self.find(direction),
        };
        let next = next.and_then(|found| {
            self.note(direction, found.as_ref().map(|(key, _)| &key[..]))?;
            Ok(found)
        });
        self.is_over = !matches!(next, Ok(Some(_)));
        self.left -= 1;
        next.transpose()
    }

    /// Notes what the range handed out, or that it has ended.
    fn note(&self, direction: Direction, key: Option<&[u8]>) -> Result<()> {
        let Some(number) = self.number else {
            return Ok(());
        };
        let mut reads = self.tx.reads.borrow_mut();
        match key {
            Some(key) => reads.handed_out(number, direction, key)?,
            None => reads.is_whole(number),
        }
        drop(reads);
        self.tx.charge();
        Ok(())
    }

    fn find(&mut self, direction: Direction) -> Result<Option<(Slice, Slice)>> {
        let Some(own) = self.own else {
            return self.take_of_view(direction);
        };
        loop {
            let record = self.take_of_view(direction)?;
            let bounds = (&self.lower, &self.upper);
            let written = self.tx.writes.next(own, bounds, direction);
            let order = match (&record, &written) {
                (None, None) => return Ok(None),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((key, _)), Some((other, _))) => match direction {
                    Direction::Forward => key[..].cmp(other),
                    Direction::Backward => (*other).cmp(&key[..]),
                },
            };
            if order.is_lt() {
                let shows = |(key, _): &(Slice, Slice)| {
                    !own.deletes(key) || mutant::active("own-range-delete-hides-nothing")
                };
                match record.filter(shows) {
                    Some(record) => return Ok(Some(record)),
                    None => continue,
                }
            }
            let mut of_view = record;
            if order.is_gt() {
                *self.ahead(direction) = of_view.take();
            }
            let Some((key, own)) = written else {
                continue;
            };
            let value = match own {
                Own::Value(value) => Some(Slice::copy(value)),
                Own::Large(handle) => {
                    let held = self.tx.view.view().held()?;
                    let shared = &held.keyspace(self.keyspace)?.shared;
                    Some(own_large(shared, key, handle)?)
                }
                Own::Nothing => None,
                Own::Operands(operands) => {
                    let of_view = of_view.as_ref().map(|(_, value)| &value[..]);
                    self.tx.applied(self.keyspace, key, &operands, of_view)?
                }
            };
            let shown = value.map(|value| (Slice::copy(key), value));
            let passed = Bound::Excluded(key.to_vec());
            match direction {
                Direction::Forward => self.lower = passed,
                Direction::Backward => self.upper = passed,
            }
            if shown.is_some() {
                return Ok(shown);
            }
        }
    }

    fn ahead(&mut self, direction: Direction) -> &mut Option<(Slice, Slice)> {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        }
    }

    /// The next record of the view. The last one may have been read from the other end.
    fn take_of_view(&mut self, direction: Direction) -> Result<Option<(Slice, Slice)>> {
        if let Some(record) = self.ahead(direction).take() {
            return Ok(Some(record));
        }
        let (next, other) = match direction {
            Direction::Forward => (self.base.next(), &mut self.back),
            Direction::Backward => (self.base.next_back(), &mut self.front),
        };
        Ok(next.transpose()?.or_else(|| other.take()))
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}

impl std::iter::FusedIterator for TransactionRange<'_> {}

impl fmt::Debug for TransactionRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionRange")
            .field("keyspace", &self.keyspace)
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish_non_exhaustive()
    }
}
