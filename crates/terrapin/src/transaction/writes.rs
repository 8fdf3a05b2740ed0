//! [`Writes`]: what a transaction has written and not committed.
//!
//! The operations are encoded as the payload of a log record, in the order of the calls. An index
//! says what they make of each key. Rolling back cuts the payload, and builds the index again.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{
    Error, ErrorKind, Fold, KeyspaceId, Message, Operator, Result, Slice, expiry, mutant,
};
use terrapin_structure::Direction;
use terrapin_valuelog::large::{LargeRef, OwnedLarge};

use crate::log_record::format::{BATCH, put_large, put_operation, put_range_delete};
use crate::log_record::{Change, Operations, check_sizes};
use crate::types::key_range::borrowed;
use crate::write::footprint::Stretch;
use crate::write::{Asks, PreparedBatch};

/// Memory that the index takes for each key, besides the key.
const INDEX_BYTES: usize = 64;

/// What a transaction has written.
pub(crate) struct Writes {
    payload: Vec<u8>,
    /// The large values that the payload names, in its order.
    large: Vec<Arc<OwnedLarge>>,
    operations: usize,
    puts: usize,
    has_ranges: bool,
    keyspaces: BTreeMap<KeyspaceId, OwnWrites>,
    index_bytes: usize,
    bytes_max: usize,
}

/// What a transaction has written into a keyspace.
#[derive(Default)]
pub(crate) struct OwnWrites {
    points: BTreeMap<Box<[u8]>, Newest>,
    /// Deleted ranges by their first key, apart from each other, and the first key behind each.
    /// None is the end of all keys. Points are newer.
    deleted: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
}

/// What the operations on a key make of it. Places are those of values and operands in the payload.
enum Newest {
    /// A put.
    Put(Range<usize>),
    /// A put of a large value: the place of its handle.
    Large(Range<usize>),
    Delete,
    /// Merges, oldest first, over the value below. None is what the transaction's view has.
    Merges(Option<Box<Newest>>, Vec<Range<usize>>),
}

/// What a transaction itself says of a key.
pub(crate) enum Own<'a> {
    Value(&'a [u8]),
    /// The large value of this handle.
    Large(&'a [u8]),
    Nothing,
    /// Operands that apply to another value.
    Operands(Operands<'a>),
}

/// The operands of a transaction for a key.
pub(crate) struct Operands<'a> {
    payload: &'a [u8],
    /// None: they apply to what the transaction's view has.
    below: Option<&'a Newest>,
    places: &'a [Range<usize>],
}

impl Operands<'_> {
    /// Whether they apply to what the transaction's view has.
    pub fn need_view(&self) -> bool {
        self.below.is_none()
    }

    /// The handle of the large value that they apply to, if the transaction wrote that.
    pub fn large_base(&self) -> Option<&[u8]> {
        match self.below {
            Some(Newest::Large(place)) => Some(&self.payload[place.clone()]),
            _ => None,
        }
    }

    /// The value that the operands make, if the view has `of_view`, or if that is the large value
    /// that they apply to.
    pub fn value(
        &self,
        operator: &Operator,
        key: &[u8],
        of_view: Option<&[u8]>,
    ) -> Result<Option<Slice>> {
        let mut fold = Fold::default();
        for place in self.places.iter().rev() {
            fold.push(Message::Merge(&self.payload[place.clone()]))?;
        }
        let below = match self.below {
            None => of_view,
            Some(Newest::Put(place)) => Some(&self.payload[place.clone()]),
            Some(Newest::Large(_)) => of_view,
            Some(Newest::Delete | Newest::Merges(..)) => None,
        };
        fold.push(below.map_or(Message::Delete, Message::Put))?;
        let value = fold.value(operator, key, |_| true)?;
        Ok(value.map(Slice::copy))
    }
}

/// Where the operations end at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    payload: usize,
}

impl Writes {
    /// No writes. Their record may have `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Writes {
            payload: Vec::new(),
            large: Vec::new(),
            operations: 0,
            puts: 0,
            has_ranges: false,
            keyspaces: BTreeMap::new(),
            index_bytes: 0,
            bytes_max,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Bytes of the record.
    pub fn record_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.index_bytes
    }

    /// Adds a put, a delete or a merge. After an error nothing was added.
    pub fn add(&mut self, id: KeyspaceId, key: &[u8], message: Message<'_>) -> Result<()> {
        check_sizes(key, message)?;
        let start = self.payload.len();
        put_operation(&mut self.payload, id, key, message);
        self.check_length(start)?;
        self.index(id, Change::Message(key, message), self.payload.len());
        Ok(())
    }

    /// Adds the put of a large value that was written. After an error nothing was added, and the
    /// value's page is given back.
    pub fn add_large(&mut self, id: KeyspaceId, key: &[u8], large: OwnedLarge) -> Result<()> {
        let start = self.payload.len();
        put_large(&mut self.payload, id, key, large.large());
        self.check_length(start)?;
        let mut bytes = Vec::new();
        large.large().encode(&mut bytes);
        self.large.push(Arc::new(large));
        self.index(id, Change::Large(key, &bytes), self.payload.len());
        Ok(())
    }

    /// Adds a range delete. After an error nothing was added.
    pub fn delete_range(&mut self, id: KeyspaceId, lo: &[u8], hi: Option<&[u8]>) -> Result<()> {
        let start = self.payload.len();
        put_range_delete(&mut self.payload, id, lo, hi);
        self.check_length(start)?;
        self.index(id, Change::DeleteRange(lo, hi), self.payload.len());
        Ok(())
    }

    /// Takes the last operation back if the record has become too long.
    fn check_length(&mut self, start: usize) -> Result<()> {
        let bytes = self.payload.len();
        if bytes <= self.bytes_max {
            return Ok(());
        }
        self.payload.truncate(start);
        Err(Error::new(
            ErrorKind::TooLarge,
            "the transaction writes more than a quarter of the log's ring: split it, or open with \
             a larger ring (Options::ring_bytes)",
        )
        .with("bytes", bytes)
        .with("limit", self.bytes_max))
    }

    /// Enters an operation into the index. A value ends its operation, at `end` in the payload.
    fn index(&mut self, id: KeyspaceId, change: Change<'_>, end: usize) {
        self.operations += 1;
        let own = self.keyspaces.entry(id).or_default();
        match change {
            Change::Message(key, Message::Merge(operand)) => {
                self.puts += 1;
                self.index_bytes += own.merge(key, end - operand.len()..end);
            }
            Change::Message(key, message) => {
                let newest = match message {
                    Message::Put(value) => Newest::Put(end - value.len()..end),
                    // It outlasts the transaction's now, which was taken before.
                    Message::Expiring(payload) => {
                        Newest::Put(end - payload.len() + expiry::DEADLINE_BYTES..end)
                    }
                    Message::Delete => Newest::Delete,
                    Message::Merge(_) | Message::Stack(_) | Message::Separated(_) => {
                        unreachable!("users write no such messages, and merges are above")
                    }
                };
                self.puts += usize::from(matches!(newest, Newest::Put(_)));
                self.index_bytes += own.set(key, newest);
            }
            Change::Large(key, bytes) => {
                self.puts += 1;
                // These bytes end with the handle.
                let handle = LargeRef::decode(bytes).map_or(0, |(_, handle)| handle.len());
                self.index_bytes += own.set(key, Newest::Large(end - handle..end));
            }
            Change::DeleteRange(lo, hi) => {
                self.has_ranges = true;
                self.index_bytes += lo.len() + hi.map_or(0, <[u8]>::len) + INDEX_BYTES;
                own.delete_range(lo, hi);
            }
        }
    }

    /// Where the operations end now.
    pub fn mark(&self) -> Mark {
        Mark {
            payload: self.payload.len(),
        }
    }

    /// Takes back all operations since a mark. O(operations before it).
    pub fn roll_back(&mut self, mark: Mark) {
        let mut payload = std::mem::take(&mut self.payload);
        let mut large = std::mem::take(&mut self.large);
        payload.truncate(mark.payload);
        *self = Writes::new(self.bytes_max);
        let mut named = 0;
        let mut operations = Operations::decode(BATCH, &payload).into_iter().flatten();
        let mut next = operations.next();
        // This object encoded checked operations, so every one decodes.
        while let Some(Ok(operation)) = next {
            next = operations.next();
            let end = match &next {
                Some(Ok(next)) => next.offset as usize,
                _ => payload.len(),
            };
            named += usize::from(matches!(operation.change, Change::Large(..)));
            self.index(operation.keyspace, operation.change, end);
        }
        // The pages of the others are given back.
        large.truncate(named);
        (self.payload, self.large) = (payload, large);
    }

    /// What the transaction itself says of a key, if it wrote the key.
    pub fn get(&self, id: KeyspaceId, key: &[u8]) -> Option<Own<'_>> {
        let own = self.keyspaces.get(&id)?;
        match own.points.get(key) {
            Some(newest) => Some(self.value(newest)),
            None => own.deletes(key).then_some(Own::Nothing),
        }
    }

    /// What the transaction wrote into a keyspace.
    pub fn of(&self, id: KeyspaceId) -> Option<&OwnWrites> {
        self.keyspaces.get(&id)
    }

    fn value<'a>(&'a self, newest: &'a Newest) -> Own<'a> {
        match newest {
            Newest::Put(place) => Own::Value(&self.payload[place.clone()]),
            Newest::Large(_) if mutant::active("own-large-values-are-not-there") => Own::Nothing,
            Newest::Large(place) => Own::Large(&self.payload[place.clone()]),
            Newest::Delete => Own::Nothing,
            Newest::Merges(below, places) => Own::Operands(Operands {
                payload: &self.payload,
                below: below.as_deref(),
                places,
            }),
        }
    }

    /// The first written key between two bounds, or the last one, and what it has.
    pub fn next<'a>(
        &'a self,
        own: &'a OwnWrites,
        bounds: (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
        direction: Direction,
    ) -> Option<(&'a [u8], Own<'a>)> {
        let bounds = (borrowed(bounds.0), borrowed(bounds.1));
        if crate::types::key_range::is_empty(bounds) {
            return None;
        }
        let mut between = own.points.range::<[u8], _>(bounds);
        let (key, newest) = match direction {
            Direction::Forward => between.next(),
            Direction::Backward => between.next_back(),
        }?;
        Some((key, self.value(newest)))
    }

    /// The written keys.
    pub fn keys(&self) -> impl Iterator<Item = (KeyspaceId, &[u8])> {
        let of = |(id, own)| {
            let own: &OwnWrites = own;
            let id: &KeyspaceId = id;
            own.points.keys().map(|key| (*id, &**key))
        };
        self.keyspaces.iter().flat_map(of)
    }

    /// The deleted ranges.
    pub fn deleted(&self) -> impl Iterator<Item = Stretch> {
        self.keyspaces.iter().flat_map(|(id, own)| {
            own.deleted.iter().map(|(lo, hi)| Stretch {
                keyspace: *id,
                lo: lo.to_vec(),
                hi: hi.as_ref().map(|hi| hi.to_vec()),
            })
        })
    }

    /// The writes as a batch.
    pub fn prepared<'a>(&'a self, asks: Asks<'a>) -> PreparedBatch<'a> {
        let mut ids = self.keyspaces.keys();
        PreparedBatch {
            payload: &self.payload,
            operations: self.operations,
            frees: self.puts == 0,
            has_ranges: self.has_ranges,
            only_keyspace: ids.next().filter(|_| self.keyspaces.len() == 1).copied(),
            asks,
            large: &self.large,
        }
    }
}

impl OwnWrites {
    /// Whether the transaction deleted a range that has this key. The key may have been put since.
    pub fn deletes(&self, key: &[u8]) -> bool {
        let bounds = (Bound::Unbounded, Bound::Included(key));
        let last = self.deleted.range::<[u8], _>(bounds).next_back();
        last.is_some_and(|(_, hi)| hi.as_ref().is_none_or(|hi| key < &**hi))
    }

    /// Number of records that the writes may hide from a range. None if a range delete is among
    /// them.
    pub fn hides_at_most(&self) -> Option<usize> {
        self.deleted.is_empty().then_some(self.points.len())
    }

    /// Sets what the operations make of a key. Returns how much larger the index has become, in
    /// bytes.
    fn set(&mut self, key: &[u8], newest: Newest) -> usize {
        match self.points.get_mut(key) {
            Some(place) => {
                *place = newest;
                0
            }
            None => {
                self.points.insert(key.into(), newest);
                key.len() + INDEX_BYTES
            }
        }
    }

    /// Adds an operand for a key. Returns how much larger the index has become, in bytes.
    fn merge(&mut self, key: &[u8], operand: Range<usize>) -> usize {
        match self.points.get_mut(key) {
            Some(Newest::Merges(_, operands)) => {
                operands.push(operand);
                size_of::<Range<usize>>()
            }
            Some(newest) => {
                let below = std::mem::replace(newest, Newest::Delete);
                *newest = Newest::Merges(Some(Box::new(below)), vec![operand]);
                INDEX_BYTES
            }
            None => {
                let below = self.deletes(key).then(|| Box::new(Newest::Delete));
                let newest = Newest::Merges(below, vec![operand]);
                self.points.insert(key.into(), newest);
                key.len() + 2 * INDEX_BYTES
            }
        }
    }

    fn delete_range(&mut self, lo: &[u8], hi: Option<&[u8]>) {
        let upper = hi.map_or(Bound::Unbounded, Bound::Excluded);
        let inside = (Bound::Included(lo), upper);
        while let Some((key, _)) = self.points.range::<[u8], _>(inside).next() {
            let key = key.clone();
            self.points.remove(&key);
        }
        let (mut lo, mut hi): (Box<[u8]>, Option<Box<[u8]>>) = (lo.into(), hi.map(Into::into));
        // Joins the ranges that meet it. They are apart, so at most one begins before it.
        let meets =
            |end: &Option<Box<[u8]>>, key: &[u8]| end.as_ref().is_none_or(|end| **end >= *key);
        let bounds = (Bound::Unbounded, Bound::Included(&*lo));
        let before = self.deleted.range::<[u8], _>(bounds).next_back();
        let before = before
            .filter(|(_, end)| meets(end, &lo))
            .map(|(start, _)| start.clone());
        let mut first = before.or_else(|| self.first_from(&lo));
        while let Some(start) = first.filter(|start| meets(&hi, start)) {
            if let Some(end) = self.deleted.remove(&start)
                && hi
                    .as_ref()
                    .is_some_and(|hi| end.as_ref().is_none_or(|end| end > hi))
            {
                hi = end;
            }
            lo = lo.min(start);
            first = self.first_from(&lo);
        }
        self.deleted.insert(lo, hi);
    }

    fn first_from(&self, key: &[u8]) -> Option<Box<[u8]>> {
        let bounds = (Bound::Included(key), Bound::Unbounded);
        let mut from = self.deleted.range::<[u8], _>(bounds);
        from.next().map(|(start, _)| start.clone())
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;

    use super::*;

    const ID: KeyspaceId = KeyspaceId(1);

    #[test]
    fn own_writes_agree_with_a_map() {
        let (_env, random) = Env::simulated(42);
        let below = |limit| random.below(limit);
        let append = Operator::named("append", &[]);
        for _ in 0..200 {
            let mut writes = Writes::new(1 << 20);
            let mut states = vec![None; 40];
            let mut marks = Vec::new();
            for number in 0..below(40) {
                let key = below(40) as usize;
                match below(7) {
                    0 => {
                        let end = (below(4) > 0).then(|| key + 1 + below(12) as usize);
                        let hi = end.map(|end| [end as u8]);
                        let hi = hi.as_ref().map(|hi| &hi[..]);
                        writes.delete_range(ID, &[key as u8], hi).unwrap();
                        states[key..end.unwrap_or(40).min(40)].fill(Some(None));
                    }
                    1 => {
                        writes.add(ID, &[key as u8], Message::Delete).unwrap();
                        states[key] = Some(None);
                    }
                    4 => {
                        // The view has one byte for each key.
                        let operand = [number as u8];
                        writes
                            .add(ID, &[key as u8], Message::Merge(&operand))
                            .unwrap();
                        let below = states[key].take().unwrap_or(Some(vec![b'v']));
                        let mut value = below.unwrap_or_default();
                        value.extend(operand);
                        states[key] = Some(Some(value));
                    }
                    2 => marks.push((writes.mark(), states.clone())),
                    3 if !marks.is_empty() => {
                        let at = below(marks.len() as u64) as usize;
                        marks.truncate(at + 1);
                        writes.roll_back(marks[at].0);
                        states = marks[at].1.clone();
                    }
                    _ => {
                        let value = number.to_le_bytes();
                        writes.add(ID, &[key as u8], Message::Put(&value)).unwrap();
                        states[key] = Some(Some(value.to_vec()));
                    }
                }
            }
            for (key, state) in states.iter().enumerate() {
                let got = writes.get(ID, &[key as u8]).map(|own| match own {
                    Own::Value(value) => Some(value.to_vec()),
                    Own::Nothing | Own::Large(_) => None,
                    Own::Operands(operands) => {
                        let value = operands.value(&append, b"key", Some(b"v"));
                        value.unwrap().map(|value| value.to_vec())
                    }
                });
                assert_eq!(got, *state);
            }
            let deleted: Vec<_> = writes.deleted().collect();
            for pair in deleted.windows(2) {
                assert!(
                    pair[0].hi.as_ref().is_some_and(|hi| *hi < pair[1].lo),
                    "{deleted:?}"
                );
            }
        }
    }
}
