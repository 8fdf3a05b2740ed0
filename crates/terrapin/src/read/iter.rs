//! Ranges: a double-ended iterator over one view of one keyspace.
//!
//! An iterator holds its view, and pages, but never a memtable: it serves records from chunks, for
//! which what memtables hold is copied, and each refill loads the view's state anew, goes on with
//! the tree's scan where it stands, and seeks the memtables once it comes to the next key that they
//! are known to have (a view sees no other). So runs may take the place of memtables under an idle
//! iterator at any time; their scans stand beside the tree's. What both ends have not fetched yet
//! is one shrinking region; when it is empty, each end goes on with what the other has fetched.

mod merging;

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Result, Slice};
use terrapin_disk::Process;
use terrapin_structure::{BatchLimits, Direction};

use crate::engine::view::ViewHandle;
use crate::read::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::types::key_range::{OwnedBounds, borrowed, is_empty};
use merging::{InMemtables, Merging, Region, TreeScan, from_tree};

/// Records of the first chunk, at least; half as many as ranges were read for lately, if that is
/// more. Each later one holds as many as were fetched so far: a scan that ends somewhere has
/// fetched at most twice what it took, and refills, each of which costs about as much as ten
/// records, are rare.
const CHUNK_RECORDS_FIRST: usize = 8;
/// Most records of the first chunk.
const CHUNK_RECORDS_FIRST_MAX: usize = 64;
/// Least records of a later chunk.
const CHUNK_RECORDS_MIN: usize = 16;
/// Most records of a chunk.
const CHUNK_RECORDS_MAX: usize = 4096;
/// An end that has fetched fewer records reads only what the next record needs, unless it is known
/// to be short; beyond, it is expected to go on.
const SPARING_RECORDS: usize = 128;

/// Records in key order, from either end: `Item = Result<(key, value)>`. Sees one moment
/// throughout, however long it is held.
///
/// What fails is an item, `Err`, and the range ends behind it; so is what fails at the beginning,
/// since making a range never does. All records that come before what cannot be read come before
/// that item, from either end; behind it another range may begin. Ask each item with `?`, or
/// collect into a `Result`: `count()` would count the error as a record, and `flatten()` hide it.
///
/// Slices of one chunk (64 KiB, and what its last record is longer) share one allocation: who keeps
/// a few records of a long scan for long should copy them. Who only looks at each record, one after
/// the other, does so for less with [`Range::next_ref`] and [`Range::next_back_ref`], which show
/// records where they lie in the cache. Such a range keeps up to sixteen of the cache's blocks
/// between two steps, about 64 KiB together unless one is larger.
///
/// Besides, every range keeps the blocks that it stands in and some that it read ahead. Other
/// blocks in front of it may be evicted while you pause; they are then read again.
#[doc(alias("iterator", "cursor", "scan"))]
pub struct Range {
    /// None once the iterator has failed or come to its limit.
    handle: Option<Arc<ViewHandle>>,
    /// What opening it came to, until told.
    error: Option<Error>,
    keyspace: KeyspaceId,
    /// Which made it.
    process: Process,
    /// What neither end has fetched.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// That region is known to be empty.
    exhausted: bool,
    front: End,
    back: End,
    /// How many records are taken is told to the keyspace: somebody asked for some, and did not say
    /// how many.
    is_noted: bool,
    /// How many records may still be taken: without a limit more than anybody takes.
    left: usize,
    /// There is a limit.
    is_limited: bool,
    /// Nobody wants values.
    keys_only: bool,
}

/// One end of a range.
struct End {
    fetched: Chunk,
    /// What is wrong behind these.
    failed: Option<Error>,
    scan: Option<TreeScan>,
    /// What the view's memtables and runs have behind what was fetched.
    in_memtables: InMemtables,
    /// Records fetched so far.
    total_records: usize,
    /// Records of the next chunk at most.
    chunk_records: usize,
}

impl Default for End {
    fn default() -> Self {
        End {
            fetched: Chunk::default(),
            failed: None,
            scan: None,
            in_memtables: InMemtables::Unknown,
            total_records: 0,
            chunk_records: CHUNK_RECORDS_FIRST,
        }
    }
}

impl Range {
    pub(crate) fn new(
        handle: Result<Arc<ViewHandle>>,
        keyspace: KeyspaceId,
        bounds: OwnedBounds,
    ) -> Self {
        let (lower, upper) = bounds;
        let exhausted = is_empty((borrowed(&lower), borrowed(&upper)));
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
            process: Process::this(),
            lower,
            upper,
            exhausted,
            front: End::default(),
            back: End::default(),
            is_noted: false,
            left: usize::MAX,
            is_limited: false,
            keys_only: false,
        }
    }

    /// At most so many records, from both ends together: behind them the range ends, as
    /// [`Iterator::take`] has it. Say it where it is known, as for a page of results: what the
    /// records need is read at once then (up to 128 KiB of each sorted run), and about no more than
    /// that.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-limit-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let page: Vec<_> = fruit.range("apple"..).limit(2).keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(page, ["apple", "banana"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn limit(mut self, records: usize) -> Self {
        self.left = self.left.min(records);
        self.is_limited = true;
        if self.left == 0 {
            self.handle = None;
        }
        self
    }

    /// The next record from the front, borrowed until the next call: as [`Iterator::next`], without
    /// counting references or allocating for records. Both may be used in turn.
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

    /// The keys alone, in order, from either end. No value is copied, so that going over the keys
    /// of long values costs less; the same blocks are read, as values lie beside their keys.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-keys-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let names: Vec<_> = fruit.range("b"..).keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(names, ["banana", "cherry"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn keys(mut self) -> Keys {
        self.keys_only = true;
        Keys(self)
    }

    /// The values alone, in the order of their keys, from either end. Nothing is read or copied
    /// less than by the range itself: keys lie beside their values.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-values-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.put("lemon", "sour")?;
    /// let tastes: Vec<_> = fruit.iter().values().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(tastes, ["sweet", "sour"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn values(self) -> Values {
        Values(self)
    }

    /// What of the range lies behind a key: a page of a prefix or a range goes on there when `key`
    /// was the last of the page before. It need not exist any more. Nothing changes where the range
    /// is further on already.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-after-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple/green", "apple/red", "apple/yellow", "banana"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let mut apples = fruit.prefix("apple/").after("apple/green").keys();
    /// assert_eq!(apples.next().transpose()?.unwrap(), "apple/red");
    /// assert_eq!(apples.next().transpose()?.unwrap(), "apple/yellow");
    /// assert!(apples.next().is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn after(mut self, key: impl AsRef<[u8]>) -> Self {
        self.leave_out(Direction::Forward, key.as_ref());
        self
    }

    /// What of the range lies before a key: as [`Range::after`], for who reads from the back.
    #[must_use]
    pub fn before(mut self, key: impl AsRef<[u8]>) -> Self {
        self.leave_out(Direction::Backward, key.as_ref());
        self
    }

    /// Leaves out what comes up to a key in a direction, that included.
    fn leave_out(&mut self, direction: Direction, key: &[u8]) {
        let is_out = |other: &[u8]| match direction {
            Direction::Forward => other <= key,
            Direction::Backward => other >= key,
        };
        self.front.fetched.leave_out(is_out);
        self.back.fetched.leave_out(is_out);
        let (bound, end) = match direction {
            Direction::Forward => (&mut self.lower, &mut self.front),
            Direction::Backward => (&mut self.upper, &mut self.back),
        };
        let is_behind = match bound {
            Bound::Unbounded => false,
            Bound::Included(first) => !is_out(&first[..]),
            Bound::Excluded(last) => last[..] == *key || !is_out(&last[..]),
        };
        if is_behind {
            return;
        }
        exclude(bound, (key, &[]));
        // They stand where the region began.
        end.scan = None;
        end.in_memtables = InMemtables::Unknown;
        // What is wrong may be left out; what is not is met again.
        self.front.failed = None;
        self.back.failed = None;
        self.exhausted |= is_empty((borrowed(&self.lower), borrowed(&self.upper)));
    }

    #[inline]
    fn step<T>(
        &mut self,
        direction: Direction,
        share: impl Fn(&mut Chunk, usize) -> T,
    ) -> Option<Result<T>> {
        if let Some(record) = self.take_fetched(direction) {
            return Some(Ok(share(&mut self.end(direction).fetched, record)));
        }
        match self.find(direction, false) {
            Ok(Some(found)) => {
                let chunk = &mut self.end(found.end).fetched;
                Some(Ok(share(chunk, found.record)))
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }

    #[inline]
    fn step_ref(&mut self, direction: Direction) -> Result<Option<(&[u8], &[u8])>> {
        if let Some(record) = self.take_fetched(direction) {
            return Ok(Some(self.end(direction).fetched.record(record)));
        }
        Ok(self
            .find(direction, true)?
            .map(|found| self.end(found.end).fetched.record(found.record)))
    }

    #[inline]
    fn end(&mut self, direction: Direction) -> &mut End {
        match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        }
    }

    /// Takes the next record of a direction, if it is fetched. What was fetched before the database
    /// was closed is not served after it.
    #[inline]
    fn take_fetched(&mut self, direction: Direction) -> Option<usize> {
        let is_open = self.handle.as_ref()?.core().health.is_open();
        let end = self.end(direction);
        let record = is_open.then(|| end.fetched.take_first()).flatten()?;
        self.count_taken();
        Some(record)
    }

    /// A record was taken; behind the last that may be there is nothing, and the view goes.
    #[inline]
    fn count_taken(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.come_to_limit();
        }
    }

    #[cold]
    fn come_to_limit(&mut self) {
        self.handle = None;
        self.front.scan = None;
        self.back.scan = None;
    }

    /// Takes the next record of a direction, from which end it may be, when this end has nothing
    /// left. Who borrows records lets them stay in their blocks.
    fn find(&mut self, direction: Direction, borrows: bool) -> Result<Option<Found>> {
        let Some(handle) = self.handle.take() else {
            return self.error.take().map_or(Ok(None), Err);
        };
        let opened = handle.core().health.check_open();
        let refilled = match (opened, self.end(direction).failed.take()) {
            // The other end went over all that was left.
            (Ok(()), _) if self.exhausted => Ok(()),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => self.refill(&handle, direction, borrows),
            (closed, _) => closed,
        };
        if let Err(error) = refilled {
            self.front = End::default();
            self.back = End::default();
            return Err(error);
        }
        self.handle = Some(handle);
        let other = match direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        let (end, record) = match self.end(direction).fetched.take_first() {
            Some(record) => (direction, Some(record)),
            None => (other, self.end(other).fetched.take_last()),
        };
        Ok(record.map(|record| {
            self.count_taken();
            Found { end, record }
        }))
    }

    /// Fetches the next chunk from one end of the region, and takes it out of the region.
    fn refill(&mut self, handle: &ViewHandle, direction: Direction, borrows: bool) -> Result<()> {
        let core = handle.core();
        core.env.breathe();
        let view = handle.view();
        let held = view.held()?;
        let keyspace = held
            .keyspace(self.keyspace)
            .map_err(|error| error.with("keyspace number", self.keyspace))?;
        let named = |error: Error| error.with("keyspace", &keyspace.shared.name);
        let (lower, upper) = (&self.lower, &self.upper);
        let taken = self.front.total_records + self.back.total_records;
        let end = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        // Who says how many records are wanted says nothing of other ranges.
        self.is_noted = !self.is_limited;
        let expected = keyspace.shared.range_length.expected();
        // Where nothing is known, nothing is read for what may be wanted.
        let known = expected.mean > 0 || self.is_limited;
        let limit = self.left;
        let ahead = match self.is_limited {
            true => limit,
            false => expected.ahead(taken),
        };
        if end.total_records == 0 {
            end.chunk_records =
                (expected.mean / 2).clamp(CHUNK_RECORDS_FIRST, CHUNK_RECORDS_FIRST_MAX);
        }
        // What is known to be short comes at once.
        let at_once = limit <= SPARING_RECORDS.saturating_sub(taken);
        if at_once {
            end.chunk_records = limit;
        }
        let region = Region {
            lower,
            upper,
            direction,
        };
        let folded = |scan: &TreeScan| scan.turn != held.turn;
        if end.scan.as_ref().is_some_and(folded) {
            end.scan = None;
            end.in_memtables = InMemtables::Unknown;
        }
        let tree = match &mut end.scan {
            Some(scan) => scan,
            none => {
                let expected = if known { ahead } else { 0 };
                let opened = TreeScan::open(&held, keyspace, view.before, region, expected);
                let opened = opened.map_err(named)?;
                let tree = none.insert(opened);
                core.range_visited(keyspace, tree.scan.runs() as u64);
                tree
            }
        };
        let is_short = end.total_records < SPARING_RECORDS;
        let limits = BatchLimits {
            records: end.chunk_records.min(limit),
            // A long range reads ahead as far as it has come.
            likely: if is_short { ahead } else { 0 },
            bytes: CHUNK_BYTES_MAX,
            sparing: is_short && !at_once,
            keys_only: self.keys_only,
            lends: borrows,
        };
        let batch = end.fetched.restart(limits);
        let in_memtables = &mut end.in_memtables;
        let filled = match from_tree(tree, region, in_memtables, batch) {
            Ok(Some(whole)) => Ok(whole),
            Err(error) => Err(error),
            Ok(None) => {
                let mut passed = 0;
                let (scan, runs) = (&mut *tree.scan, tree.runs.as_deref_mut());
                let merged = Merging {
                    scan,
                    region,
                    in_memtables,
                    chunk: batch,
                    passed: &mut passed,
                }
                .above(keyspace, view.before, runs);
                if passed > 0 {
                    core.range_passed_in_memtable(&keyspace.active, passed);
                    core.counters.scanned_deletes.add(passed);
                }
                merged
            }
        };
        let count = batch.len();
        let (whole, failed) = match filled.map_err(named) {
            Ok(whole) => (whole, None),
            Err(error) if count == 0 => return Err(error),
            // What comes before is sound.
            Err(error) => (false, Some(error)),
        };
        let passed = tree.scan.take_passed();
        if passed > 0 {
            core.counters.scanned_deletes.add(passed);
        }
        core.range_passed(keyspace, passed, count, || {
            region.gone_over(batch.last_key().filter(|_| !whole))
        });
        core.counters.scanned_records.add(count as u64);
        keyspace.shared.counters.scanned(count as u64);
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
        end.fetched.fetched(count);
        if failed.is_some() {
            end.scan = None;
            end.in_memtables = InMemtables::Unknown;
        }
        end.failed = failed;
        Ok(())
    }
}

/// A record that was taken from the chunk of an end.
struct Found {
    end: Direction,
    record: usize,
}

/// Sets a bound to behind a key in two pieces, in the memory of the one that was there.
fn exclude(bound: &mut Bound<Vec<u8>>, (first, rest): (&[u8], &[u8])) {
    let memory = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(memory) | Bound::Excluded(memory) => memory,
        Bound::Unbounded => Vec::new(),
    };
    let mut key = copied(memory, first);
    key.extend_from_slice(rest);
    *bound = Bound::Excluded(key);
}

/// A copy of a key in memory that is there.
fn copied(mut memory: Vec<u8>, key: &[u8]) -> Vec<u8> {
    memory.clear();
    memory.extend_from_slice(key);
    memory
}

impl Iterator for Range {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward, Chunk::slices)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward, Chunk::slices)
    }
}

impl std::iter::FusedIterator for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // As the database itself, in a forked child: `Owner` says why.
            let ends = [&mut self.front, &mut self.back].map(std::mem::take);
            std::mem::forget((self.handle.take(), ends));
            return;
        }
        let handle = self.handle.as_ref().filter(|_| self.is_noted);
        if let Some(Ok(held)) = handle.map(|handle| handle.view().held())
            && let Ok(keyspace) = held.keyspace(self.keyspace)
        {
            let left = self.front.fetched.left() + self.back.fetched.left();
            let fetched = self.front.total_records + self.back.total_records;
            let taken = fetched.saturating_sub(left);
            keyspace.shared.range_length.note(taken);
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

/// The keys of a range in order, from either end: `Item = Result<Slice>`; made by [`Range::keys`].
/// As there, slices share allocations, and after an error it ends.
#[derive(Debug)]
pub struct Keys(Range);

impl Keys {
    /// The next key from the front, borrowed until the next call: see [`Range::next_ref`].
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_ref()?.map(|(key, _)| key))
    }

    /// As [`Keys::next_ref`], from the back.
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_back_ref()?.map(|(key, _)| key))
    }
}

impl Iterator for Keys {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step(Direction::Forward, Chunk::key_slice)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step(Direction::Backward, Chunk::key_slice)
    }
}

impl std::iter::FusedIterator for Keys {}

/// The values of a range in the order of their keys, from either end: `Item = Result<Slice>`;
/// made by [`Range::values`]. Slices share allocations as those of a [`Range`] do. The iterator
/// ends after an error.
#[derive(Debug)]
pub struct Values(Range);

impl Values {
    /// The next value from the front, borrowed until the next call: see [`Range::next_ref`].
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_ref()?.map(|(_, value)| value))
    }

    /// The next value from the back, borrowed until the next call: see [`Range::next_back_ref`].
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_back_ref()?.map(|(_, value)| value))
    }
}

impl Iterator for Values {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(_, value)| value))
    }
}

impl DoubleEndedIterator for Values {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.0.next_back()?.map(|(_, value)| value))
    }
}

impl std::iter::FusedIterator for Values {}
