//! Ranges: a double-ended iterator over one view of one keyspace.
//!
//! An iterator holds its view, and pages, but never a window: it serves records from chunks that it copied, and each
//! refill loads the view's state anew, seeks the windows behind the last key, and goes on with the tree's scan where it
//! stands. So the fold job may take the windows from under an idle iterator at any time. What both ends have not fetched
//! yet is one shrinking region; when it is empty, each end goes on with what the other has fetched.
//!
//! A chunk is one run of bytes. Who takes slices gets shares of it, and the next chunk lies elsewhere; who borrows
//! ([`Range::next_ref`]) leaves its memory to the next chunk, so that such a scan allocates nothing as it goes.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Lsn, Result, Slice};
use terrapin_memtable::{Cursor, Op};
use terrapin_structure::{Batch, BatchLimits, Direction, Filled, Scan, Version};

use crate::read::{OwnedBounds, windows};
use crate::state::{KeyspaceShared, KeyspaceState};
use crate::view::ViewHandle;

/// Records of the first chunk, at least; half as many as ranges were read for lately, if that is more. Each later one holds as many as were fetched so far: a scan that ends somewhere has fetched at
/// most twice what it took, and refills, each of which costs about as much as ten records, are rare.
const CHUNK_RECORDS_FIRST: usize = 8;
/// Most records of the first chunk.
const CHUNK_RECORDS_FIRST_MAX: usize = 64;
/// Least records of a later chunk.
const CHUNK_RECORDS_MIN: usize = 16;
/// Most records of a chunk.
const CHUNK_RECORDS_MAX: usize = 4096;
/// A chunk ends when it holds so many bytes.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// A chunk has room for so many records from the start, at most.
const CHUNK_RECORDS_RESERVED: usize = 512;
/// Bytes that a record is expected to take before any was seen.
const RECORD_BYTES_EXPECTED: usize = 128;
/// An end that has fetched fewer records reads only what the next record needs; beyond, it is expected to go on.
const SPARING_RECORDS: usize = 128;

/// Records in key order, from either end: `Item = Result<(key, value)>`. Sees one moment throughout, however long it is
/// held. After an error it ends.
///
/// Slices of one chunk (64 KiB at most, unless a record is larger) share one allocation: who keeps a few records of a long
/// scan for long should copy them. Who only looks at each record, one after the other, does so for less with
/// [`Range::next_ref`] and [`Range::next_back_ref`].
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
    /// The keyspace, once something was fetched, which is told how many records were taken.
    shared: Option<Arc<KeyspaceShared>>,
    /// One record is wanted, whatever other ranges were read for.
    one: bool,
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

/// A scan of the tree that stands behind the last record that a chunk took.
struct TreeScan {
    version: Arc<dyn Version>,
    scan: Box<dyn Scan>,
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
                handle.core().range_begins();
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
            shared: None,
            one: false,
        }
    }

    /// For who wants one record: the first chunk from either end holds no other.
    pub(crate) fn one_at_first(mut self) -> Self {
        self.one = true;
        self
    }

    /// The next record from the front, borrowed until the next call: as [`Iterator::next`], without counting references or
    /// allocating for records. Both may be used in turn.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-next-ref-{}", std::process::id()));
    /// let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// let mut range = fruit.iter();
    /// let mut bytes = 0;
    /// while let Some((key, value)) = range.next_ref()? {
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 10);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step_ref(Direction::Forward)
    }

    /// As [`Range::next_ref`], from the back.
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step_ref(Direction::Backward)
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Option<Result<(Slice, Slice)>> {
        match self.find(direction) {
            Ok(Some(found)) => {
                let chunk = &mut self.end(found.end).fetched;
                Some(Ok(chunk.slices(found.record)))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }

    #[inline]
    fn step_ref(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        Ok(self
            .find(direction)?
            .map(|found| self.end(found.end).fetched.record(found.record)))
    }

    #[inline]
    fn end(&mut self, direction: Direction) -> &mut End {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        }
    }

    /// Takes the next record of a direction.
    #[inline]
    fn find(&mut self, direction: Direction) -> Result<Option<Found>> {
        let Some(handle) = &self.handle else {
            return self.error.take().map_or(Ok(None), Err);
        };
        // What was fetched before the database was closed is not served after it.
        if handle.core().health.check_open().is_ok()
            && let Some(record) = self.end(direction).fetched.take_first()
        {
            let end = direction;
            return Ok(Some(Found { end, record }));
        }
        self.find_over(direction)
    }

    /// As [`Range::find`], when this end has nothing left.
    fn find_over(&mut self, direction: Direction) -> Result<Option<Found>> {
        let Some(handle) = self.handle.clone() else {
            return Ok(None);
        };
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
            return Err(error);
        }
        let found = |end, record| Found { end, record };
        if let Some(record) = self.end(direction).fetched.take_first() {
            return Ok(Some(found(direction, record)));
        }
        let other = match direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        let last = self.end(other).fetched.take_last();
        Ok(last.map(|record| found(other, record)))
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
        let expected = match self.one {
            true => 1,
            false => keyspace.shared.range_length.expected(),
        };
        if self.shared.is_none() && !self.one {
            self.shared = Some(keyspace.shared.clone());
        }
        if end.total_records == 0 {
            let likely = (expected / 2).clamp(CHUNK_RECORDS_FIRST, CHUNK_RECORDS_FIRST_MAX);
            end.chunk_records = if self.one { 1 } else { likely };
        }
        let bounds = (lower, upper);
        let tree = TreeScan::current(&mut end.scan, keyspace, bounds, direction, expected)?;
        let batch = end
            .fetched
            .restart(end.chunk_records, end.total_records < SPARING_RECORDS);
        let whole = merge(
            keyspace,
            view.before,
            tree,
            (lower, upper),
            direction,
            batch,
        )?;
        let count = batch.len();
        core.counters.scanned_records.add(count as u64);
        end.total_records += count;
        end.chunk_records = end
            .total_records
            .clamp(CHUNK_RECORDS_MIN, CHUNK_RECORDS_MAX);
        if whole {
            self.exhausted = true;
        } else if let Some(last) = batch.last_key() {
            match direction {
                Direction::Forward => exclude(&mut self.lower, last),
                Direction::Backward => exclude(&mut self.upper, last),
            }
        }
        end.fetched.end = count;
        Ok(())
    }
}

/// A record that was taken from the chunk of an end.
struct Found {
    end: Direction,
    record: usize,
}

/// Sets a bound, in the memory of the one that was there.
fn exclude(bound: &mut Bound<Vec<u8>>, key: &[u8]) {
    let mut kept = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(kept) | Bound::Excluded(kept) => kept,
        Bound::Unbounded => Vec::new(),
    };
    kept.clear();
    kept.extend_from_slice(key);
    *bound = Bound::Excluded(kept);
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

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let left = self.front.fetched.left() + self.back.fetched.left();
            let fetched = self.front.total_records + self.back.total_records;
            shared.range_length.note(fetched.saturating_sub(left));
        }
    }
}

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
        expected: usize,
    ) -> Result<&'a mut TreeScan> {
        let stale = slot
            .as_ref()
            .is_none_or(|s| !Arc::ptr_eq(&s.version, &keyspace.version));
        if stale {
            let bounds = (
                lower.as_ref().map(Vec::as_slice),
                upper.as_ref().map(Vec::as_slice),
            );
            let scan = keyspace
                .version
                .scan_expecting(bounds, direction, expected)?;
            *slot = None;
            return Ok(slot.insert(TreeScan {
                version: keyspace.version.clone(),
                scan,
            }));
        }
        slot.as_mut()
            .ok_or_else(|| Error::internal("a scan that is neither old nor new"))
    }
}

/// Copied records in the order in which they were fetched, and which of them were not taken yet.
#[derive(Default)]
struct Chunk {
    records: Batch,
    /// The bytes of the records, once somebody has a share of them; until then they are the batch's.
    shared: Option<Slice>,
    /// Records from here on were not taken from the front,
    first: usize,
    /// and those from here on were taken from the back.
    end: usize,
}

impl Chunk {
    /// Takes the record that was fetched first.
    #[inline]
    fn take_first(&mut self) -> Option<usize> {
        let record = self.first;
        (record < self.end).then(|| {
            self.first += 1;
            record
        })
    }

    /// Takes the record that was fetched last.
    fn take_last(&mut self) -> Option<usize> {
        (self.first < self.end).then(|| {
            self.end -= 1;
            self.end
        })
    }

    /// How many records nobody took.
    fn left(&self) -> usize {
        self.end - self.first
    }

    /// A record that was taken.
    #[inline]
    fn record(&self, record: usize) -> (&[u8], &[u8]) {
        let (start, key_end, end) = self.records.place(record).unwrap_or_default();
        let bytes = match &self.shared {
            Some(shared) => shared,
            None => self.records.bytes(),
        };
        (&bytes[start..key_end], &bytes[key_end..end])
    }

    /// A record that was taken, as shares of the chunk.
    #[inline]
    fn slices(&mut self, record: usize) -> (Slice, Slice) {
        let (start, key_end, end) = self.records.place(record).unwrap_or_default();
        let records = &mut self.records;
        let bytes = self
            .shared
            .get_or_insert_with(|| Slice::from_vec(records.take_bytes()));
        (bytes.sub(start..key_end), bytes.sub(key_end..end))
    }

    /// Drops what there was, all of it taken, and makes room for so many records of the same kind. None of what is filled in
    /// can be taken before `end` is set.
    fn restart(&mut self, records: usize, sparing: bool) -> &mut Batch {
        let bytes = match &self.shared {
            Some(shared) => shared.len(),
            None => self.records.bytes().len(),
        };
        let each = bytes.checked_div(self.records.len());
        self.shared = None;
        let each = each.unwrap_or(RECORD_BYTES_EXPECTED);
        let bytes = records.saturating_mul(each);
        let limits = BatchLimits {
            records,
            bytes: CHUNK_BYTES_MAX,
            sparing,
        };
        self.records.restart(
            limits,
            records.min(CHUNK_RECORDS_RESERVED),
            // The last record may go beyond.
            bytes.min(CHUNK_BYTES_MAX + each),
        );
        (self.first, self.end) = (0, 0);
        &mut self.records
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
    chunk: &mut Batch,
) -> Result<bool> {
    let mut cursors = windows(keyspace, before).map(|window| {
        let mut cursor = window?.cursor(Lsn(0), before);
        match direction {
            Direction::Forward => seek_forward(&mut cursor, lower),
            Direction::Backward => seek_backward(&mut cursor, upper),
        }
        cursor.is_valid().then_some(cursor)
    });
    // Where the region ends, in the scan's direction.
    let region_end = match direction {
        Direction::Forward => upper.as_ref().map(Vec::as_slice),
        Direction::Backward => lower.as_ref().map(Vec::as_slice),
    };
    let inside = |key: &[u8]| match (region_end, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(end), Direction::Forward) => key <= end,
        (Bound::Excluded(end), Direction::Forward) => key < end,
        (Bound::Included(end), Direction::Backward) => key >= end,
        (Bound::Excluded(end), Direction::Backward) => key > end,
    };
    let sooner = |a: &[u8], b: &[u8]| match direction {
        Direction::Forward => a < b,
        Direction::Backward => a > b,
    };

    loop {
        // The window whose key comes first; of equal keys the newer window.
        let mut first: Option<(usize, &[u8])> = None;
        for (place, cursor) in cursors.iter().enumerate() {
            if let Some(key) = cursor.as_ref().and_then(Cursor::key)
                && first.is_none_or(|(_, best)| sooner(key, best))
            {
                first = Some((place, key));
            }
        }
        let first = first.filter(|(_, key)| inside(key));
        // The tree's records before that.
        let until = first.map_or(region_end, |(_, key)| Bound::Excluded(key));
        if tree.scan.fill(until, chunk)? == Filled::Full {
            return Ok(false);
        }
        let Some((place, key)) = first else {
            return Ok(true);
        };
        if chunk.is_full() {
            return Ok(false);
        }
        if let Some(Op::Put(value)) = cursors[place].as_ref().map(Cursor::op) {
            chunk.push(key, value, 0);
        }
        tree.scan.skip(key);
        for cursor in cursors.iter_mut().flatten() {
            if cursor.key() == Some(key) {
                match direction {
                    Direction::Forward => cursor.next(),
                    Direction::Backward => cursor.prev(),
                }
            }
        }
    }
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
