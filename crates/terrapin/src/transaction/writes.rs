//! [`Writes`]: what a transaction has written and not committed.
//!
//! The operations are encoded as the payload of a log record, in the order of the calls. An index
//! says what they make of each key. Rolling back cuts the payload, and builds the index again.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use terrapin_base::{Error, ErrorKind, KeyspaceId, Message, Result, expiry};
use terrapin_structure::Direction;

use crate::log_record::format::{BATCH, put_operation, put_range_delete};
use crate::log_record::{Change, Operations, check_sizes};
use crate::types::key_range::borrowed;
use crate::write::footprint::Stretch;
use crate::write::{Asks, PreparedBatch};

/// Memory that the index takes for each key, besides the key.
const INDEX_BYTES: usize = 64;

/// What a transaction has written.
pub(crate) struct Writes {
    payload: Vec<u8>,
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

/// The newest operation on a key.
#[derive(Clone)]
enum Newest {
    /// A put, with the place of its value in the payload.
    Put(Range<usize>),
    Delete,
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

    /// Adds a put or a delete. After an error nothing was added.
    pub fn add(&mut self, id: KeyspaceId, key: &[u8], message: Message<'_>) -> Result<()> {
        check_sizes(key, message)?;
        let start = self.payload.len();
        put_operation(&mut self.payload, id, key, message);
        self.check_length(start)?;
        self.index(id, Change::Message(key, message), self.payload.len());
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
            Change::Message(key, message) => {
                let newest = match message {
                    Message::Put(value) => Newest::Put(end - value.len()..end),
                    // It outlasts the transaction's now, which was taken before.
                    Message::Expiring(payload) => {
                        Newest::Put(end - payload.len() + expiry::DEADLINE_BYTES..end)
                    }
                    Message::Delete => Newest::Delete,
                    Message::Merge(_) | Message::Stack(_) | Message::Separated(_) => {
                        unreachable!("transactions write no merges")
                    }
                };
                self.puts += usize::from(matches!(newest, Newest::Put(_)));
                match own.points.get_mut(key) {
                    Some(place) => *place = newest,
                    None => {
                        self.index_bytes += key.len() + INDEX_BYTES;
                        own.points.insert(key.into(), newest);
                    }
                }
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
        payload.truncate(mark.payload);
        *self = Writes::new(self.bytes_max);
        let mut operations = Operations::decode(BATCH, &payload).into_iter().flatten();
        let mut next = operations.next();
        // This object encoded checked operations, so every one decodes.
        while let Some(Ok(operation)) = next {
            next = operations.next();
            let end = match &next {
                Some(Ok(next)) => next.offset as usize,
                _ => payload.len(),
            };
            self.index(operation.keyspace, operation.change, end);
        }
        self.payload = payload;
    }

    /// The transaction's own value of a key, if it wrote the key. The inner None is a delete.
    #[expect(clippy::option_option, reason = "not written, deleted, or a value")]
    pub fn get(&self, id: KeyspaceId, key: &[u8]) -> Option<Option<&[u8]>> {
        let own = self.keyspaces.get(&id)?;
        match own.points.get(key) {
            Some(newest) => Some(self.value(newest)),
            None => own.deletes(key).then_some(None),
        }
    }

    /// What the transaction wrote into a keyspace.
    pub fn of(&self, id: KeyspaceId) -> Option<&OwnWrites> {
        self.keyspaces.get(&id)
    }

    fn value(&self, newest: &Newest) -> Option<&[u8]> {
        match newest {
            Newest::Put(place) => Some(&self.payload[place.clone()]),
            Newest::Delete => None,
        }
    }

    /// The first written key between two bounds, or the last one, and its value.
    pub fn next<'a>(
        &'a self,
        own: &'a OwnWrites,
        bounds: (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
        direction: Direction,
    ) -> Option<(&'a [u8], Option<&'a [u8]>)> {
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
    fn own_range_deletes_agree_with_a_set_of_keys() {
        let (_env, random) = Env::simulated(42);
        let below = |limit| random.below(limit);
        for _ in 0..200 {
            let mut writes = Writes::new(1 << 20);
            let mut states = vec![None; 40];
            let mut marks = Vec::new();
            for number in 0..below(40) {
                let key = below(40) as usize;
                match below(6) {
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
                let got = writes.get(ID, &[key as u8]);
                assert_eq!(got, state.as_ref().map(|value| value.as_deref()));
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
