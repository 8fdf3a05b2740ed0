//! The sources of a range's chunk: a scan of the tree, and the memtables above it or the runs that
//! replaced them.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{
    Lsn, Message, Result, Slice, checksum::hash64, expiry, handle_deadline_ms, handle_value_bytes,
};
use terrapin_memtable::Cursor;
use terrapin_structure::{Batch, Direction, Filled, Scan};

use super::copied;
use crate::engine::clock::Moment;
use crate::engine::compactions::KeySpan;
use crate::engine::state::KeyspaceState;
use crate::engine::views::Held;
use crate::read::cover::{Cover, Gap};
use crate::read::{folded, is_live_handle, memtables, resolve};
use crate::run::{Run, RunScan};
use crate::types::key_range::borrowed;

/// The next key of a view's memtables, or of the runs that replaced them. The view sees the same
/// records in both.
#[derive(Default)]
pub(super) enum InMemtables {
    #[default]
    Unknown,
    /// The next key in the region.
    Next(Vec<u8>),
    /// The region has no key of them.
    Nothing,
}

/// A scan of the tree, positioned after the last record that a chunk took.
pub(super) struct TreeScan {
    /// [`Held::turn`] of the view when the scan was opened.
    pub turn: u64,
    pub scan: Box<dyn Scan>,
    /// Scans of the runs that replaced the active and the sealed memtable, if the view has runs.
    pub runs: Option<Box<[Option<RunScan>; 2]>>,
    /// Whether a gap reaches to the end of all keys, so that the tree has no more to show. The scan
    /// then stays where it is.
    pub is_over: bool,
}

impl TreeScan {
    /// Opens a scan of the keyspace's version for about `expected` records.
    pub fn open(
        held: &Held,
        keyspace: &KeyspaceState,
        before: Lsn,
        region: Region<'_>,
        expected: usize,
    ) -> Result<Self> {
        let bounds = (borrowed(region.lower), borrowed(region.upper));
        let ordered = keyspace.ordered()?;
        let scan = ordered.scan_expecting(bounds, region.direction, expected)?;
        let open = |run: &Option<Arc<Run>>| {
            let run = run.as_ref();
            run.map(|run| run.scan(bounds, region.direction, before, expected))
                .transpose()
        };
        let runs = match &keyspace.spilled {
            Some(spilled) => Some(Box::new([open(&spilled.active)?, open(&spilled.sealed)?])),
            None => None,
        };
        let turn = held.turn;
        Ok(TreeScan {
            turn,
            scan,
            runs,
            is_over: false,
        })
    }
}

impl InMemtables {
    /// The next key, if known.
    fn next(&self) -> Option<&[u8]> {
        match self {
            InMemtables::Next(next) => Some(next),
            InMemtables::Unknown | InMemtables::Nothing => None,
        }
    }

    /// Remembers the next key.
    pub fn note(&mut self, next: Option<&[u8]>) {
        let memory = match std::mem::take(self) {
            InMemtables::Next(memory) => memory,
            InMemtables::Unknown | InMemtables::Nothing => Vec::new(),
        };
        *self = match next {
            Some(next) => InMemtables::Next(copied(memory, next)),
            None => InMemtables::Nothing,
        };
    }
}

/// The keys that a range has not fetched, and the direction in which a chunk is filled.
#[derive(Clone, Copy)]
pub(super) struct Region<'a> {
    pub lower: &'a Bound<Vec<u8>>,
    pub upper: &'a Bound<Vec<u8>>,
    pub direction: Direction,
}

impl<'a> Region<'a> {
    /// The end of the region in its direction.
    fn end(self) -> Bound<&'a [u8]> {
        let end = match self.direction {
            Direction::Forward => self.upper,
            Direction::Backward => self.lower,
        };
        borrowed(end)
    }

    /// The keys that a chunk covers: up to its last key, or to the end of the region.
    pub fn gone_over(self, last: Option<(&[u8], &[u8])>) -> KeySpan {
        let last = last.map(|(first, rest)| [first, rest].concat());
        let key = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
            Bound::Unbounded => None,
        };
        let (from, to) = match self.direction {
            Direction::Forward => (key(self.lower), last.or_else(|| key(self.upper))),
            Direction::Backward => (last.or_else(|| key(self.lower)), key(self.upper)),
        };
        (from.unwrap_or_default().into(), to.map(Into::into))
    }

    /// Whether a key comes before the end of the region.
    fn ends_behind(self, key: &[u8]) -> bool {
        match (self.end(), self.direction) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(end), Direction::Forward) => key <= end,
            (Bound::Excluded(end), Direction::Forward) => key < end,
            (Bound::Included(end), Direction::Backward) => key >= end,
            (Bound::Excluded(end), Direction::Backward) => key > end,
        }
    }

    /// The first gap of the region in its direction.
    fn first_gap(self, cover: &Cover) -> Option<Gap> {
        match self.direction {
            Direction::Forward => match self.lower {
                Bound::Unbounded => cover.gap_from(&[]),
                Bound::Included(key) | Bound::Excluded(key) => cover.gap_from(key),
            },
            Direction::Backward => match self.upper {
                Bound::Unbounded => cover.gap_below(None),
                Bound::Excluded(key) => cover.gap_below(Some(key)),
                Bound::Included(key) => cover.gap_below(Some(&[key, &[0][..]].concat())),
            },
        }
    }

    /// The next gap behind one, in the region's direction.
    fn gap_after(self, cover: &Cover, gap: &Gap) -> Option<Gap> {
        match self.direction {
            Direction::Forward => cover.gap_from(gap.hi.as_deref()?),
            Direction::Backward => cover.gap_below(Some(&gap.lo)),
        }
    }

    /// Where the tree's records before a gap end, if the gap begins inside the region, and before
    /// or at a memtable's key.
    fn until_gap<'g>(self, gap: &'g Gap, first: Option<&[u8]>) -> Option<Bound<&'g [u8]>> {
        match self.direction {
            Direction::Forward => {
                let comes = first.is_none_or(|key| gap.lo[..] <= *key) && self.ends_behind(&gap.lo);
                comes.then_some(Bound::Excluded(&gap.lo))
            }
            Direction::Backward => match &gap.hi {
                None => Some(Bound::Unbounded),
                Some(hi) => {
                    let comes = first.is_none_or(|key| *key < hi[..]) && self.ends_behind(hi);
                    comes.then_some(Bound::Included(hi))
                }
            },
        }
    }

    /// Moves a memtable's cursor to its first key in the region. `next` is a key that is known not
    /// to be after that one.
    fn seek(self, cursor: &mut Cursor<'_>, next: Option<&[u8]>) {
        match (self.direction, next) {
            (Direction::Forward, Some(next)) => cursor.seek(next),
            (Direction::Forward, None) => seek_forward(cursor, self.lower),
            (Direction::Backward, Some(next)) => seek_back_to(cursor, next),
            (Direction::Backward, None) => seek_backward(cursor, self.upper),
        }
    }
}

/// Fills a chunk from the tree only, as far as the memtables are known to have no key. Returns what
/// [`Merging::with`] returns. Returns none if the memtables have the next key or if that is
/// unknown.
#[inline(always)] // each chunk of a range
pub(super) fn from_tree(
    (tree, keyspace, at): (&mut TreeScan, &KeyspaceState, Moment<'_>),
    region: Region<'_>,
    in_memtables: &InMemtables,
    chunk: &mut Batch,
) -> Result<Option<bool>> {
    let next = match in_memtables {
        InMemtables::Unknown => return Ok(None),
        InMemtables::Next(next) => Some(&next[..]).filter(|next| region.ends_behind(next)),
        InMemtables::Nothing => None,
    };
    let until = next.map_or(region.end(), Bound::Excluded);
    let filled = fill(&mut *tree.scan, (keyspace, at), until, chunk)?;
    if filled == Filled::Full || next.is_some() && chunk.is_full() {
        return Ok(Some(false));
    }
    Ok(next.is_none().then_some(true))
}

/// Fills a chunk from the tree up to a bound. Operands that the tree holds are applied, deadlines
/// count, and handles stay.
#[inline(always)] // each chunk of a range
fn fill(
    scan: &mut dyn Scan,
    (keyspace, at): (&KeyspaceState, Moment<'_>),
    until: Bound<&[u8]>,
    chunk: &mut Batch,
) -> Result<Filled> {
    let mut key = Vec::new();
    loop {
        match scan.fill(until, chunk)? {
            Filled::Unresolved => resolve_next(scan, (keyspace, at), &mut key, chunk)?,
            filled => return Ok(filled),
        }
    }
}

/// Adds the scan's next record, as a get shows it. A handle stays: the values of the chunk's
/// handles are read together ([`resolve::handles`]). `key` is memory.
#[cold]
fn resolve_next(
    scan: &mut dyn Scan,
    (keyspace, at): (&KeyspaceState, Moment<'_>),
    key: &mut Vec<u8>,
    chunk: &mut Batch,
) -> Result<()> {
    key.clear();
    match (scan.unresolved(key), keyspace.version.stored_values()) {
        // It has expired.
        (Some(handle), Some(_)) if !is_live_handle(at, handle) => {}
        (Some(handle), Some(_)) => push_handle(chunk, key, handle),
        _ => {
            let read = |at: Moment<'_>| resolve::get(keyspace, at, key, hash64(key));
            push_read(at.learning(read)?, key, chunk);
        }
    }
    scan.skip(key);
    Ok(())
}

#[inline(always)] // each record of a range
fn push(chunk: &mut Batch, key: &[u8], value: &[u8]) {
    let value = if chunk.keys_only() { &[] } else { value };
    chunk.push(key, value, 0);
}

/// Adds a record whose value is read with those of the chunk, and its deadline.
fn push_handle(chunk: &mut Batch, key: &[u8], handle: &[u8]) {
    match chunk.keys_only() {
        true => push(chunk, key, &[]),
        false => {
            let length = handle_value_bytes(handle);
            chunk.push_handle(key, handle, usize::try_from(length).unwrap_or(usize::MAX));
        }
    }
    if let Some(deadline_ms) = handle_deadline_ms(handle) {
        chunk.note_deadline(deadline_ms);
    }
}

/// Adds what a get of the key read: its value, if it has one, and the value's deadline.
fn push_read((value, deadline_ms): (Option<Slice>, Option<u64>), key: &[u8], chunk: &mut Batch) {
    let Some(value) = value else {
        return;
    };
    push(chunk, key, &value);
    if let Some(deadline_ms) = deadline_ms {
        chunk.note_deadline(deadline_ms);
    }
}

/// Fills a chunk from the tree and from the memtables or runs above it.
pub(super) struct Merging<'a> {
    pub scan: &'a mut dyn Scan,
    /// [`TreeScan::is_over`].
    pub is_tree_over: &'a mut bool,
    pub region: Region<'a>,
    pub in_memtables: &'a mut InMemtables,
    /// The range deletes of the memtables or runs, if there are any.
    pub cover: Option<&'a Cover>,
    pub chunk: &'a mut Batch,
    /// Number of deletes of the active memtable that the range passed, and of range deletes that it
    /// looked up.
    pub passed: &'a mut u64,
}

/// A source that is merged with a tree. It is at a key or at its end.
trait Source {
    fn key(&self) -> Option<&[u8]>;
    fn message(&self) -> Message<'_>;
    fn go_on(&mut self, direction: Direction) -> Result<()>;
}

impl Source for Cursor<'_> {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        Cursor::key(self)
    }

    #[inline]
    fn message(&self) -> Message<'_> {
        Cursor::message(self)
    }

    #[inline]
    fn go_on(&mut self, direction: Direction) -> Result<()> {
        match direction {
            Direction::Forward => self.next(),
            Direction::Backward => self.prev(),
        }
        Ok(())
    }
}

/// A memtable or a run above a view's tree.
#[allow(clippy::large_enum_variant)] // A range has two, and does not move them.
enum Above<'a> {
    Memtable(Cursor<'a>),
    Run(&'a mut RunScan),
}

impl Source for Above<'_> {
    fn key(&self) -> Option<&[u8]> {
        match self {
            Above::Memtable(cursor) => cursor.key(),
            Above::Run(run) => run.key(),
        }
    }

    fn message(&self) -> Message<'_> {
        match self {
            Above::Memtable(cursor) => cursor.message(),
            Above::Run(run) => run.message(),
        }
    }

    fn go_on(&mut self, direction: Direction) -> Result<()> {
        match self {
            Above::Memtable(cursor) => cursor.go_on(direction),
            // A run's scan has one direction, which it got at its beginning.
            Above::Run(run) => run.advance(),
        }
    }
}

impl Merging<'_> {
    /// Merges the memtables, or the runs that replaced them, with the tree: see [`Merging::with`].
    #[inline(always)] // each chunk of a range
    pub fn above(
        self,
        keyspace: &KeyspaceState,
        at: Moment<'_>,
        runs: Option<&mut [Option<RunScan>; 2]>,
    ) -> Result<bool> {
        let (region, next) = (self.region, self.in_memtables.next());
        let memtables = memtables(keyspace, at.before).map(|memtable| {
            let mut cursor = memtable?.cursor(Lsn(0), at.before);
            region.seek(&mut cursor, next);
            cursor.is_valid().then_some(cursor)
        });
        let Some(runs) = runs else {
            return self.with((keyspace, at), memtables);
        };
        let [mut newer, mut older] = memtables.map(|memtable| memtable.map(Above::Memtable));
        for (source, run) in [&mut newer, &mut older].into_iter().zip(runs) {
            if let Some(run) = run {
                run.start()?;
                *source = Some(Above::Run(run));
            }
        }
        self.with((keyspace, at), [newer, older])
    }

    /// Merges the sources, newer first, with the tree from one end of the region. Returns `false`
    /// when the chunk is full, and `true` at the end of the region. Of equal keys the newest wins.
    /// A tombstone hides older records.
    #[inline(always)] // each chunk of a range
    fn with<S: Source>(
        self,
        (keyspace, at): (&KeyspaceState, Moment<'_>),
        mut sources: [Option<S>; 2],
    ) -> Result<bool> {
        let Merging {
            scan,
            is_tree_over,
            region,
            in_memtables,
            cover,
            chunk,
            passed,
        } = self;
        let direction = region.direction;
        let sooner = |a: &[u8], b: &[u8]| match direction {
            Direction::Forward => a < b,
            Direction::Backward => a > b,
        };
        let mut gap = match is_tree_over {
            true => None,
            false => cover.and_then(|cover| region.first_gap(cover)),
        };

        *passed += gap.as_ref().map_or(0, |gap| gap.links);
        loop {
            // The source whose key comes first; of equal keys the newer one.
            let mut first: Option<(usize, &[u8])> = None;
            for (place, source) in sources.iter().enumerate() {
                if let Some(key) = source.as_ref().and_then(S::key)
                    && first.is_none_or(|(_, best)| sooner(key, best))
                {
                    first = Some((place, key));
                }
            }
            let first = first.filter(|(_, key)| region.ends_behind(key));
            let first_key = first.map(|(_, key)| key);
            if let (Some(cover), Some(here)) = (cover, &gap)
                && let Some(until) = region.until_gap(here, first_key)
            {
                let begins_here = until == Bound::Unbounded;
                let is_full =
                    !begins_here && fill(scan, (keyspace, at), until, chunk)? == Filled::Full;
                if is_full || chunk.is_full() {
                    in_memtables.note(first_key);
                    return Ok(false);
                }
                gap = match jump(scan, here, direction, chunk)? {
                    Jumped::Behind => {
                        let next = region.gap_after(cover, here);
                        *passed += next.as_ref().map_or(0, |gap| gap.links);
                        next
                    }
                    Jumped::Over => {
                        *is_tree_over = true;
                        None
                    }
                    Jumped::Unread => {
                        in_memtables.note(first_key);
                        return Ok(false);
                    }
                };
                continue;
            }
            // The tree's records before that key.
            let until = first.map_or(region.end(), |(_, key)| Bound::Excluded(key));
            let is_full = match is_tree_over {
                true => false,
                false => fill(scan, (keyspace, at), until, chunk)? == Filled::Full,
            };
            if is_full || first.is_some() && chunk.is_full() {
                in_memtables.note(first_key);
                return Ok(false);
            }
            let Some((place, key)) = first else {
                return Ok(true);
            };
            let is_hidden = place > 0 && cover.is_some_and(|cover| cover.hides_below_newer(key));
            match sources[place].as_ref().map(S::message) {
                Some(Message::Put(value)) if !is_hidden => push(chunk, key, value),
                Some(Message::Merge(_) | Message::Stack(_)) if !is_hidden => {
                    push_read(
                        at.learning(|at: Moment<'_>| folded(keyspace, at, key))?,
                        key,
                        chunk,
                    );
                }
                Some(Message::Expiring(payload)) if !is_hidden => {
                    let (deadline_ms, value) = expiry::split(payload)?;
                    match at.is_live(deadline_ms) {
                        true => {
                            push(chunk, key, value);
                            chunk.note_deadline(deadline_ms);
                        }
                        // It costs what a delete costs.
                        false => *passed += u64::from(place == 0),
                    }
                }
                Some(Message::Separated(handle)) if !is_hidden => {
                    match is_live_handle(at, handle) {
                        true => push_handle(chunk, key, handle),
                        false => *passed += u64::from(place == 0),
                    }
                }
                // The active memtable is the first source.
                Some(Message::Delete) if place == 0 => *passed += 1,
                _ => {}
            }
            if !*is_tree_over {
                scan.skip(key);
            }
            let has_key = |source: &Option<S>| source.as_ref().and_then(S::key) == Some(key);
            let go_on = [has_key(&sources[0]), has_key(&sources[1])];
            for (source, goes_on) in sources.iter_mut().zip(go_on) {
                if goes_on && let Some(source) = source {
                    source.go_on(direction)?;
                }
            }
        }
    }
}

/// Where a jump over a gap ended.
enum Jumped {
    /// Behind the gap.
    Behind,
    /// The gap reaches to the end of all keys.
    Over,
    /// A key of the gap may be next: the chunk has records, and spares the read that would tell.
    Unread,
}

/// Moves the tree's scan behind a gap. The chunk takes nothing and has room.
fn jump(scan: &mut dyn Scan, gap: &Gap, direction: Direction, chunk: &mut Batch) -> Result<Jumped> {
    match direction {
        Direction::Forward => match &gap.hi {
            None => return Ok(Jumped::Over),
            Some(hi) => scan.seek(hi)?,
        },
        Direction::Backward => {
            if gap.lo.is_empty() {
                return Ok(Jumped::Over);
            }
            // The seek may find the first key of the gap.
            scan.seek(&gap.lo)?;
            if scan.fill(Bound::Excluded(&gap.lo), chunk)? == Filled::Full {
                return Ok(Jumped::Unread);
            }
            scan.skip(&gap.lo);
        }
    }
    Ok(Jumped::Behind)
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
        Bound::Included(key) => seek_back_to(cursor, key),
    }
}

/// Moves the cursor to the last key that is not greater than `key`.
fn seek_back_to(cursor: &mut Cursor<'_>, key: &[u8]) {
    cursor.seek(key);
    if cursor.key() != Some(key) {
        cursor.seek_before(key);
    }
}
