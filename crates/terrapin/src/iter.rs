//! Ranges: a double-ended iterator over one view of one keyspace.
//!
//! An iterator holds its view, and pages, but never a window: it serves records from chunks that it copied, and each
//! refill loads the view's state anew, seeks the windows behind the last key, and goes on with the tree's scan where it
//! stands. So the fold job may take the windows from under an idle iterator at any time. What both ends have not fetched
//! yet is one shrinking region; when it is empty, each end goes on with what the other has fetched.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Lsn, Result, Slice};
use terrapin_memtable::{Cursor, Op};
use terrapin_structure::{Direction, Scan, Version};

use crate::read::{OwnedBounds, windows};
use crate::state::KeyspaceState;
use crate::view::ViewHandle;

/// Records of the first chunk. Later ones hold half of what was fetched so far, so that a scan that ends somewhere has not
/// fetched much more than it took, and a refill, which costs about six records, is rare.
const CHUNK_RECORDS_FIRST: usize = 8;
/// Least records of a later chunk.
const CHUNK_RECORDS_MIN: usize = 16;
/// Most records of a chunk.
const CHUNK_RECORDS_MAX: usize = 4096;
/// A chunk ends when it holds so many bytes.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Records in key order, from either end: `Item = Result<(key, value)>`. Sees one moment throughout, however long it is
/// held. After an error it ends.
///
/// Slices of one chunk (64 KiB at most, unless a record is larger) share one allocation: who keeps a few records of a long
/// scan for long should copy them.
pub struct Range {
    /// None once the iterator has failed.
    handle: Option<Arc<ViewHandle>>,
    /// What opening it came to, until told.
    error: Option<Error>,
    keyspace: KeyspaceId,
    /// What neither end has fetched.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// That region is known to be empty.
    exhausted: bool,
    front: End,
    back: End,
}

/// One end of a range.
struct End {
    fetched: Chunk,
    scan: Option<TreeScan>,
    /// Records fetched so far.
    total_records: usize,
    /// Records of the next chunk at most.
    chunk_records: usize,
}

impl Default for End {
    fn default() -> Self {
        End {
            fetched: Chunk::default(),
            scan: None,
            total_records: 0,
            chunk_records: CHUNK_RECORDS_FIRST,
        }
    }
}

/// A scan of the tree that stands behind the last record it showed.
struct TreeScan {
    version: Arc<dyn Version>,
    scan: Box<dyn Scan>,
    /// A record that the scan showed and no chunk took yet.
    pending: Option<(Vec<u8>, Vec<u8>)>,
    /// The scan is at its end.
    done: bool,
}

impl Range {
    pub(crate) fn new(
        handle: Result<Arc<ViewHandle>>,
        keyspace: KeyspaceId,
        bounds: OwnedBounds,
    ) -> Self {
        let (lower, upper) = bounds;
        let exhausted = is_empty(&lower, &upper);
        let (handle, error) = match handle {
            Ok(handle) => {
                handle.core().env.breathe();
                handle.core().counters.scans.add(1);
                handle.core().missed_records();
                (Some(handle), None)
            }
            Err(error) => (None, Some(error)),
        };
        Range {
            handle,
            error,
            keyspace,
            lower,
            upper,
            exhausted,
            front: End::default(),
            back: End::default(),
        }
    }

    /// For who wants one record: the first chunk from either end holds no other.
    pub(crate) fn one_at_first(mut self) -> Self {
        self.front.chunk_records = 1;
        self.back.chunk_records = 1;
        self
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Option<Result<(Slice, Slice)>> {
        let Some(handle) = &self.handle else {
            return self.error.take().map(Err);
        };
        let mine = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        // What was fetched before the database was closed is not served after it.
        if handle.core().health.check_open().is_ok()
            && let Some(record) = mine.fetched.pop_front()
        {
            return Some(Ok(record));
        }
        self.step_over(direction)
    }

    /// A step at which this end has nothing left.
    fn step_over(&mut self, direction: Direction) -> Option<Result<(Slice, Slice)>> {
        let handle = self.handle.clone()?;
        let opened = handle.core().health.check_open();
        let refilled = match opened {
            Ok(()) if self.exhausted => Ok(()),
            Ok(()) => self.refill(&handle, direction),
            closed => closed,
        };
        if let Err(error) = refilled {
            self.front = End::default();
            self.back = End::default();
            self.handle = None;
            return Some(Err(error));
        }
        let (mine, other) = match direction {
            Direction::Forward => (&mut self.front, &mut self.back),
            Direction::Backward => (&mut self.back, &mut self.front),
        };
        mine.fetched
            .pop_front()
            .or_else(|| other.fetched.pop_back())
            .map(Ok)
    }

    /// Fetches the next chunk from one end of the region, and takes it out of the region.
    fn refill(&mut self, handle: &ViewHandle, direction: Direction) -> Result<()> {
        let core = handle.core();
        core.env.breathe();
        let view = handle.view();
        let held = view.held()?;
        let Some(held) = &*held else {
            return Err(Error::internal("a view without a state"));
        };
        let keyspace = held.keyspace(self.keyspace)?;
        let (lower, upper) = (&self.lower, &self.upper);
        let end = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        let tree = TreeScan::current(&mut end.scan, keyspace, (lower, upper), direction)?;
        let mut filling = end.fetched.refill(end.chunk_records);
        let whole = merge(
            keyspace,
            view.before,
            tree,
            (lower, upper),
            direction,
            &mut filling,
        )?;
        end.fetched = filling.done();
        let count = end.fetched.places.len();
        core.counters.scanned_records.add(count as u64);
        end.total_records += count;
        end.chunk_records = (end.total_records / 2).clamp(CHUNK_RECORDS_MIN, CHUNK_RECORDS_MAX);
        if whole {
            self.exhausted = true;
        } else if let Some(last) = end.fetched.last_key() {
            match direction {
                Direction::Forward => self.lower = Bound::Excluded(last.to_vec()),
                Direction::Backward => self.upper = Bound::Excluded(last.to_vec()),
            }
        }
        Ok(())
    }
}

impl Iterator for Range {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}

impl std::iter::FusedIterator for Range {}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("keyspace", &self.keyspace)
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish()
    }
}

impl TreeScan {
    /// The scan of the keyspace's version; opened anew when the version is another than last time (the view was folded).
    fn current<'a>(
        slot: &'a mut Option<TreeScan>,
        keyspace: &KeyspaceState,
        (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
        direction: Direction,
    ) -> Result<&'a mut TreeScan> {
        let stale = slot
            .as_ref()
            .is_none_or(|s| !Arc::ptr_eq(&s.version, &keyspace.version));
        if stale {
            let bounds = (
                lower.as_ref().map(Vec::as_slice),
                upper.as_ref().map(Vec::as_slice),
            );
            let scan = keyspace.version.scan(bounds, direction)?;
            *slot = None;
            return Ok(slot.insert(TreeScan {
                version: keyspace.version.clone(),
                scan,
                pending: None,
                done: false,
            }));
        }
        slot.as_mut()
            .ok_or_else(|| Error::internal("a scan that is neither old nor new"))
    }
}

/// Copied records, back to back, in the order in which they were fetched.
#[derive(Default)]
struct Chunk {
    bytes: Slice,
    /// Where each record's key and value end; it starts where the one before ends.
    places: Vec<(usize, usize)>,
    /// How many were taken from the front.
    taken: usize,
}

impl Chunk {
    fn start(&self, record: usize) -> usize {
        record
            .checked_sub(1)
            .map_or(0, |before| self.places[before].1)
    }

    #[inline]
    fn pop_front(&mut self) -> Option<(Slice, Slice)> {
        let &(key_end, end) = self.places.get(self.taken)?;
        let start = self.start(self.taken);
        self.taken += 1;
        Some((self.bytes.sub(start..key_end), self.bytes.sub(key_end..end)))
    }

    fn pop_back(&mut self) -> Option<(Slice, Slice)> {
        if self.taken == self.places.len() {
            return None;
        }
        let (key_end, end) = self.places.pop()?;
        let start = self.start(self.places.len());
        Some((self.bytes.sub(start..key_end), self.bytes.sub(key_end..end)))
    }

    fn last_key(&self) -> Option<&[u8]> {
        let &(key_end, _) = self.places.last()?;
        Some(&self.bytes[self.start(self.places.len() - 1)..key_end])
    }

    /// An empty chunk for so many records, in what this one, all taken, leaves.
    fn refill(&mut self, records_max: usize) -> Filling {
        let Chunk {
            bytes, mut places, ..
        } = std::mem::take(self);
        let expected = bytes.len() * records_max / places.len().max(1);
        places.clear();
        let bytes = Vec::with_capacity(expected.min(CHUNK_BYTES_MAX));
        Filling {
            bytes,
            places,
            records_max,
        }
    }
}

/// A chunk that is being filled.
struct Filling {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
    records_max: usize,
}

impl Filling {
    #[inline]
    fn is_full(&self) -> bool {
        self.places.len() >= self.records_max || self.bytes.len() >= CHUNK_BYTES_MAX
    }

    #[inline]
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.places.push((key_end, self.bytes.len()));
    }

    fn done(self) -> Chunk {
        Chunk {
            bytes: Slice::from_vec(self.bytes),
            places: self.places,
            taken: 0,
        }
    }
}

/// Merges the windows with the tree from one end of the region until the chunk is full (`false`) or the region is at its
/// end (`true`). Of equal keys the newest counts, and a tombstone hides what is older.
fn merge(
    keyspace: &KeyspaceState,
    before: Lsn,
    tree: &mut TreeScan,
    (lower, upper): (&Bound<Vec<u8>>, &Bound<Vec<u8>>),
    direction: Direction,
    chunk: &mut Filling,
) -> Result<bool> {
    let mut cursors = windows(keyspace, before).map(|window| {
        let mut cursor = window?.cursor(Lsn(0), before);
        match direction {
            Direction::Forward => seek_forward(&mut cursor, lower),
            Direction::Backward => seek_backward(&mut cursor, upper),
        }
        cursor.is_valid().then_some(cursor)
    });
    let inside = |key: &[u8]| match direction {
        Direction::Forward => match upper {
            Bound::Unbounded => true,
            Bound::Included(upper) => key <= upper.as_slice(),
            Bound::Excluded(upper) => key < upper.as_slice(),
        },
        Direction::Backward => match lower {
            Bound::Unbounded => true,
            Bound::Included(lower) => key >= lower.as_slice(),
            Bound::Excluded(lower) => key > lower.as_slice(),
        },
    };
    let sooner = |a: &[u8], b: &[u8]| match direction {
        Direction::Forward => a < b,
        Direction::Backward => a > b,
    };

    // The tree's record: the one left over from last time, or borrowed from the scan until it moves on.
    let TreeScan {
        scan,
        pending,
        done,
        ..
    } = tree;
    let leftover = pending.take();
    let mut record = match &leftover {
        Some((key, value)) => Some((key.as_slice(), value.as_slice())),
        None if *done => None,
        None => scan.next()?,
    };
    let whole = loop {
        // The window whose key comes first; of equal keys the newer window.
        let mut first: Option<(usize, &[u8])> = None;
        for (place, cursor) in cursors.iter().enumerate() {
            if let Some(key) = cursor.as_ref().and_then(Cursor::key)
                && first.is_none_or(|(_, best)| sooner(key, best))
            {
                first = Some((place, key));
            }
        }
        let from_tree = match (first, record) {
            (None, None) => break true,
            (Some((_, key)), Some((tree_key, _))) => sooner(tree_key, key),
            (None, Some(_)) => true,
            (Some(_), None) => false,
        };
        if from_tree {
            let Some((key, value)) = record else {
                break true;
            };
            if !inside(key) {
                break true;
            }
            if chunk.is_full() {
                break false;
            }
            chunk.push(key, value);
            record = scan.next()?;
            continue;
        }
        let Some((place, key)) = first else {
            break true;
        };
        if !inside(key) {
            break true;
        }
        if chunk.is_full() {
            break false;
        }
        if let Some(Op::Put(value)) = cursors[place].as_ref().map(Cursor::op) {
            chunk.push(key, value);
        }
        if record.is_some_and(|(tree_key, _)| tree_key == key) {
            record = scan.next()?;
        }
        for cursor in cursors.iter_mut().flatten() {
            if cursor.key() == Some(key) {
                match direction {
                    Direction::Forward => cursor.next(),
                    Direction::Backward => cursor.prev(),
                }
            }
        }
    };
    match record {
        Some((key, value)) => *pending = Some((key.to_vec(), value.to_vec())),
        None => *done = true,
    }
    Ok(whole)
}

fn seek_forward(cursor: &mut Cursor<'_>, lower: &Bound<Vec<u8>>) {
    match lower {
        Bound::Unbounded => cursor.seek_first(),
        Bound::Included(key) => cursor.seek(key),
        Bound::Excluded(key) => {
            cursor.seek(key);
            if cursor.key() == Some(key.as_slice()) {
                cursor.next();
            }
        }
    }
}

fn seek_backward(cursor: &mut Cursor<'_>, upper: &Bound<Vec<u8>>) {
    match upper {
        Bound::Unbounded => cursor.seek_last(),
        Bound::Excluded(key) => cursor.seek_before(key),
        Bound::Included(key) => {
            cursor.seek(key);
            if cursor.key() != Some(key.as_slice()) {
                cursor.seek_before(key);
            }
        }
    }
}

/// Whether no key can lie between the bounds.
fn is_empty(lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
    }
}
