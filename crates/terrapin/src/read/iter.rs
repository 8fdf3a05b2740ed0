//! Ranges: a double-ended iterator over one view of one keyspace.
//!
//! An iterator serves records from chunks. A chunk has copies of the memtables' records. Between
//! two calls, the iterator holds its view and pages, but no memtable. Runs may therefore replace
//! the memtables of an idle iterator at any time.
//!
//! Each refill loads the view's state again and continues the scans of the tree and of the runs. It
//! remembers the next key of the memtables, which does not change for a view. It seeks the
//! memtables only when the scan reaches that key.
//!
//! A range jumps over the keys that range deletes of the memtables hide (`cover`).
//!
//! The keys that neither end has fetched are one region, which shrinks. When it is empty, each end
//! continues with the records that the other end has fetched.

pub mod keys_values;
mod merging;

use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use terrapin_base::{Error, KeyspaceId, Result, Slice, mutant};
use terrapin_disk::Process;
use terrapin_structure::{BatchLimits, Direction};
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::LargeReader;

use crate::engine::view::ViewHandle;
use crate::read::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::read::cover::Cover;
use crate::read::resolve;
use crate::types::key_range::{OwnedBounds, borrowed, is_empty};
use merging::{InMemtables, Merging, Region, TreeScan, from_tree};

/// Minimum number of records of the first chunk. The first chunk has half as many records as recent
/// ranges took, if that is more. Each later chunk has as many records as all chunks before it. A
/// scan therefore fetches at most about twice the records that it serves. Refills stay rare; one
/// costs about as much as ten records.
const CHUNK_RECORDS_FIRST: usize = 8;
/// Maximum number of records of the first chunk.
const CHUNK_RECORDS_FIRST_MAX: usize = 64;
/// Minimum number of records of a later chunk.
const CHUNK_RECORDS_MIN: usize = 16;
/// Maximum number of records of a chunk.
const CHUNK_RECORDS_MAX: usize = 4096;
/// An end that has fetched fewer records reads only the blocks that its next record needs, unless
/// the range is known to be short. An end that has fetched more is expected to continue.
const SPARING_RECORDS: usize = 128;

/// Records in key order, from either end: `Item = Result<(key, value)>`. All records are of one
/// moment, however long you hold the range.
///
/// **Errors.** Making a range never fails. An error, also one of the beginning, is an item `Err`,
/// and the range ends after it. From either end, all records before the unreadable place come
/// before that item. A new range may begin after that place. Use `?` on each item, or collect into
/// a `Result`: `count()` counts the error as a record, and `flatten()` hides it. The only item of a
/// keyspace whose structure keeps no order of keys is `Err` of the kind `Unsupported`.
///
/// **Memory.** Slices of one chunk (64 KiB and the excess of its last record) share one allocation.
/// Copy the few records of a long scan that you keep for long. To look at one record after another,
/// use [`Range::next_ref`] and [`Range::next_back_ref`], which show records in the cached blocks
/// and cost less. Such a range keeps up to sixteen cached blocks between two calls, about 64 KiB in
/// all unless one is larger.
///
/// Every range also keeps the blocks of its position and some that it read ahead. The cache may
/// evict other blocks ahead of the range while you pause; the range then reads them again.
#[doc(alias("iterator", "cursor", "scan"))]
pub struct Range {
    /// None after an error or once the range has served its limit.
    handle: Option<Arc<ViewHandle>>,
    /// The error of opening the view, until the range has returned it.
    error: Option<Error>,
    keyspace: KeyspaceId,
    /// The process that made the range.
    process: Process,
    /// The bounds of the region that neither end has fetched.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// Whether that region is known to be empty.
    exhausted: bool,
    front: End,
    back: End,
    /// Whether the range tells its keyspace how many records the caller took. It does so if the
    /// caller took records and set no limit.
    is_noted: bool,
    /// Number of records that the caller may still take. `usize::MAX` without a limit.
    left: usize,
    /// Whether the caller set a limit.
    is_limited: bool,
    /// Whether the caller takes no values.
    keys_only: bool,
    /// What it shows of large values.
    large: resolve::Large,
}

/// A key, its value, and the deadline of the value if it has one.
pub type RecordAndDeadline<'a> = (&'a [u8], &'a [u8], Option<SystemTime>);

/// A record of [`Range::next_left`].
pub(crate) type LeftRecord<'a> = (&'a [u8], Left<'a>, Option<SystemTime>);

/// A value: its bytes, or a reader of a large one, and the longest range that it returns.
pub(crate) enum Left<'a> {
    Value(&'a [u8]),
    Large(Box<LargeReader>, u64),
}

/// One end of a range.
struct End {
    fetched: Chunk,
    /// The error that follows the fetched records.
    failed: Option<Error>,
    scan: Option<TreeScan>,
    /// The records of the view's memtables and runs that follow the fetched records.
    in_memtables: InMemtables,
    /// Number of records fetched so far.
    total_records: usize,
    /// Maximum number of records of the next chunk.
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
            large: resolve::Large::Read,
        }
    }

    /// The range with an error as its only item.
    pub(crate) fn failed(self, error: Error) -> Self {
        Range::new(
            Err(error),
            self.keyspace,
            (Bound::Unbounded, Bound::Unbounded),
        )
    }

    /// Limits the range to `records` records, counted from both ends together, as
    /// [`Iterator::take`] does. Set the limit whenever you know it, for a page of results for
    /// example. The range then reads the blocks of these records at once (up to 128 KiB of each
    /// sorted run) and hardly any more, however long it is.
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

    /// Shows the handles of large values and a number that no user knows in place of the values:
    /// for comparisons.
    pub(crate) fn with_large_by_handle(mut self, tag: u64) -> Self {
        self.large = resolve::Large::Tagged(tag);
        self
    }

    /// Leaves large values unread, for [`Range::next_left`], which alone may be called.
    pub(crate) fn with_large_left(mut self) -> Self {
        self.large = resolve::Large::Left;
        self
    }

    /// The next record of a direction and its deadline. It has a reader of a large value.
    pub(crate) fn next_left(&mut self, direction: Direction) -> Result<Option<LeftRecord<'_>>> {
        // The last record of a limit gives up the view.
        let view = self.handle.clone();
        let (end, record) = match self.take_fetched(direction) {
            Some(record) => (direction, record),
            None => match self.find(direction, true)? {
                Some(found) => (found.end, found.record),
                None => return Ok(None),
            },
        };
        let id = self.keyspace;
        let chunk = &mut self.end(end).fetched;
        let (deadline, has_handle) = (chunk.deadline(record), chunk.has_handle(record));
        let (key, bytes) = chunk.record(record);
        let value = match (has_handle, view) {
            (false, _) => Left::Value(bytes),
            (true, None) => return Err(Error::internal("a range without a view has a record")),
            (true, Some(view)) => {
                let held = view.view().held()?;
                let shared = &held.keyspace(id)?.shared;
                let opened = shared.large.open(Handle::decode(bytes)?, key);
                let named = |error: Error| error.with("keyspace", &shared.name);
                Left::Large(
                    Box::new(opened.map_err(named)?),
                    shared.large.get_bytes_max(),
                )
            }
        };
        Ok(Some((key, value, deadline)))
    }

    /// The next record from the front, borrowed until the next call. Unlike [`Iterator::next`], it
    /// counts no references and allocates nothing for records. Calls of both may alternate.
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

    /// The next record from the back, borrowed until the next call: see [`Range::next_ref`].
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step_ref(Direction::Backward)
    }

    /// The next record from the front and its deadline, if its value has one, borrowed until the
    /// next call: see [`Range::next_ref`]. The deadline counts in milliseconds. If merges
    /// ([`Keyspace::merge`](crate::Keyspace::merge)) changed a value with a deadline, this is the
    /// time at which that value ends, as [`Keyspace::ttl`](crate::Keyspace::ttl) says.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-next-deadline-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use std::time::{Duration, SystemTime};
    /// let sessions = database.keyspace("sessions")?;
    /// let deadline = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33);
    /// sessions.put_expiring("Ann", "token", deadline)?;
    /// sessions.put("Bob", "token")?;
    /// let mut range = sessions.iter();
    /// while let Some((key, _, deadline)) = range.next_with_deadline()? {
    ///     assert_eq!(deadline.is_some(), key == b"Ann");
    /// }
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn next_with_deadline(&mut self) -> Result<Option<RecordAndDeadline<'_>>> {
        self.step_with_deadline(Direction::Forward)
    }

    /// The next record from the back and its deadline: see [`Range::next_with_deadline`].
    pub fn next_back_with_deadline(&mut self) -> Result<Option<RecordAndDeadline<'_>>> {
        self.step_with_deadline(Direction::Backward)
    }

    fn step_with_deadline(
        &mut self,
        direction: Direction,
    ) -> Result<Option<RecordAndDeadline<'_>>> {
        let found = match self.take_fetched(direction) {
            Some(record) => Some(Found {
                end: direction,
                record,
            }),
            None => self.find(direction, true)?,
        };
        Ok(found.map(|Found { end, record }| {
            let chunk = &mut self.end(end).fetched;
            let deadline = chunk.deadline(record);
            let (key, value) = chunk.record(record);
            (key, value, deadline)
        }))
    }

    /// The part of the range after a key. Use it for the next page of a range or a prefix, with the
    /// last key of the previous page. The key need not exist any more. A range that is already past
    /// the key does not change.
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

    /// The part of the range before a key, for pages that are read from the back: see
    /// [`Range::after`].
    #[must_use]
    pub fn before(mut self, key: impl AsRef<[u8]>) -> Self {
        self.leave_out(Direction::Backward, key.as_ref());
        self
    }

    /// Leaves out a key and all keys that precede it in a direction.
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
        // Both are at the old beginning of the region.
        end.scan = None;
        end.in_memtables = InMemtables::Unknown;
        // The unreadable place may be left out now. If not, the range meets it again.
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

    /// Takes the next record of a direction, if it is fetched. A closed database serves no record
    /// that was fetched before.
    #[inline]
    fn take_fetched(&mut self, direction: Direction) -> Option<usize> {
        let is_open = self.handle.as_ref()?.core().health.is_open();
        let end = self.end(direction);
        let record = is_open.then(|| end.fetched.take_first()).flatten()?;
        self.count_taken();
        Some(record)
    }

    /// Counts a record that the caller took. Gives up the view after the last one of the limit.
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

    /// Takes the next record of a direction when its end has no fetched record left. The record may
    /// come from the other end. With `borrows`, records stay in their blocks.
    fn find(&mut self, direction: Direction, borrows: bool) -> Result<Option<Found>> {
        let Some(handle) = self.handle.take() else {
            return self.error.take().map_or(Ok(None), Err);
        };
        let opened = handle.core().health.check_open();
        let refilled = match (opened, self.end(direction).failed.take()) {
            // The other end fetched the rest of the region.
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
        // A limited range says nothing about the lengths of others.
        self.is_noted = !self.is_limited;
        let expected = keyspace.shared.range_length.expected();
        // Without any knowledge, the scan reads nothing in advance.
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
        // A range that is known to be short is one chunk.
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
            // A long range reads ahead by as much as it has passed.
            likely: if is_short { ahead } else { 0 },
            most: match self.is_limited && !at_once {
                true => limit,
                false => usize::MAX,
            },
            bytes: CHUNK_BYTES_MAX,
            sparing: is_short && !at_once,
            keys_only: self.keys_only,
            lends: borrows,
        };
        let batch = end.fetched.restart(limits);
        let in_memtables = &mut end.in_memtables;
        let cover =
            Cover::of(keyspace, view.before).filter(|_| !mutant::active("range-shows-deleted-gap"));
        let alone = match cover {
            None => from_tree((tree, keyspace, view.moment()), region, in_memtables, batch),
            Some(_) => Ok(None),
        };
        let filled = match alone {
            Ok(Some(whole)) => Ok(whole),
            Err(error) => Err(error),
            Ok(None) => {
                let mut passed = 0;
                let (scan, runs) = (&mut *tree.scan, tree.runs.as_deref_mut());
                let merged = Merging {
                    scan,
                    is_tree_over: &mut tree.is_over,
                    region,
                    in_memtables,
                    cover: cover.as_ref(),
                    chunk: batch,
                    passed: &mut passed,
                }
                .above(keyspace, view.moment(), runs);
                if passed > 0 {
                    core.range_passed_in_memtable(&keyspace.active, passed);
                    core.counters.scanned_deletes.add(passed);
                }
                merged
            }
        };
        // An unreadable value comes before what ended the filling.
        let filled = match batch.has_handles() {
            true => {
                let mut cost = resolve::ValueReads::default();
                let resolved = resolve::handles(keyspace, batch, self.large, &mut cost);
                core.range_read_values(keyspace, cost);
                resolved.and(filled)
            }
            false => filled,
        };
        let count = batch.len();
        let (whole, failed) = match filled.map_err(named) {
            Ok(whole) => (whole, None),
            Err(error) if count == 0 => return Err(error),
            // The records before the error are sound.
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

/// Replaces a bound by one that excludes a key, which comes in two pieces. Reuses the memory of the
/// old bound.
fn exclude(bound: &mut Bound<Vec<u8>>, (first, rest): (&[u8], &[u8])) {
    let memory = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(memory) | Bound::Excluded(memory) => memory,
        Bound::Unbounded => Vec::new(),
    };
    let mut key = copied(memory, first);
    key.extend_from_slice(rest);
    *bound = Bound::Excluded(key);
}

/// Copies a key into existing memory.
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
            // In a forked child, the range leaves its view to the parent. `Owner` gives the reason.
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
