//! A scan: a lazy merge of the current leaf with every buffer level of every node on the path to
//! that leaf.
//!
//! The path is a stack of frames, one for each node. Each buffer level of a node is a *source*. It
//! walks the level's live ranges in key order over the whole node, and lives as long as its frame.
//! It opens a segment only when one of the segment's keys may be next.
//!
//! The leaf is a source too. When its records are used up, it represents the *boundary* of its key
//! range. When the boundary is next in order, every record before it was returned. Then the path
//! moves on to the next leaf, and frames that end there have no more records. So no key is compared
//! with the end of a range. A scan of any length holds one run of blocks for each source.
//!
//! The sources are in one array, sorted by their next keys. Most steps stay with the source of the
//! last record, because a leaf has far more records than the levels. Such a step costs one
//! comparison of numbers. A batch is filled in runs from one block. Two sources never have the same
//! current key: sorting a source in moves the older of the two on.
//!
//! A scan for few records should wait and read little. It reads the blocks in which sources begin
//! at once. It reads another block when the block's first possible key is next in order, together
//! with the blocks that other sources probably need (`together`). It reads nothing only to find out
//! what follows the last record.
//!
//! `path` holds the nodes and ranges, `source` the sources, and `order` sorts them. `descend` moves
//! the path. `begin` opens the first blocks, `seek` moves on to a key, `together` combines reads,
//! and `ahead` reads ahead.

mod ahead;
mod begin;
mod descend;
mod order;
mod path;
mod seek;
mod source;
mod spare;
mod together;

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Message, Result, Share, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_pages::heads::head as head_of;
use terrapin_structure::{Batch, Direction, Filled, KeyBounds, Scan};

use crate::load::LoadedNode;
use path::{LEAF, Path, PathNode};
use source::{Item, Source};
use spare::Spare;
use terrapin_runs::bounds::is_empty;

/// Initial capacity for sources: the leaf, and the levels of a node or two.
const SOURCES_EXPECTED: usize = 12;
/// Initial capacity for nodes on the path.
const FRAMES_EXPECTED: usize = 4;

/// A source in the array sorted by next keys.
#[derive(Clone, Copy, Debug)]
struct Queued {
    /// The head of the source's next key, as [`Path::in_order`] returns it. It decides most
    /// comparisons.
    head: u64,
    source_index: u16,
}

/// The result of looking for the next record.
#[derive(PartialEq, Eq)]
enum Next {
    /// The first source is at the record.
    Record,
    /// There are no more records.
    End,
    /// The next item is outside the bound: no put, or a source that must be read to know more.
    Reached,
    /// The first source is at operands of merges, inside the bound.
    Operands,
    /// A read would be needed, but the caller did not want one.
    Unread,
}

/// A scan over one version of the tree.
pub(crate) struct TreeScan {
    store: Arc<Share<PageStore>>,
    path: Path,
    /// The leaf that is the whole tree.
    lone_leaf: Option<GroupRef>,
    sources: Vec<Source>,
    /// The sources that have more, sorted by their next keys.
    order: Vec<Queued>,
    /// The record of the first source was returned, so that source must move on first.
    returned: bool,
    /// An error or the end was returned.
    done: bool,
    /// The key that [`Scan::next`] returned.
    key: Vec<u8>,
    /// The expected number of records; 0 if unknown.
    expected: usize,
    /// The number of records that the current call wants.
    asked: usize,
    /// Buffer levels that had messages where the scan began.
    runs: u16,
    /// Deletes passed between records since [`Scan::take_passed`] was called.
    passed: u64,
}

impl TreeScan {
    /// A scan over a tree whose root is a node.
    pub(crate) fn over_node(
        store: &Arc<Share<PageStore>>,
        root: &Arc<Share<LoadedNode>>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Self> {
        let mut scan = Self::nowhere(store, bounds, direction, expected);
        if !scan.done {
            scan.sources.reserve(SOURCES_EXPECTED);
            scan.path.frames.reserve(FRAMES_EXPECTED);
            scan.push_frame(PathNode::Root(root.clone()), true);
            scan.descend(true)?;
            scan.begin()?;
        }
        Ok(scan)
    }

    /// A scan over a tree of one leaf.
    pub(crate) fn over_leaf(
        store: &Arc<Share<PageStore>>,
        leaf: &GroupRef,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Self> {
        let mut scan = Self::nowhere(store, bounds, direction, expected);
        if !scan.done {
            scan.lone_leaf = Some(*leaf);
            scan.enter_leaf(true);
            scan.begin()?;
        }
        Ok(scan)
    }

    /// A scan that returns nothing yet.
    pub(crate) fn nowhere(
        store: &Arc<Share<PageStore>>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Self {
        let spare = Spare::take();
        TreeScan {
            store: store.clone(),
            path: Path {
                direction,
                lower: bounds.0.map(|key| spare::copied(spare.lower, key)),
                upper: bounds.1.map(|key| spare::copied(spare.upper, key)),
                frames: spare.frames,
            },
            lone_leaf: None,
            sources: spare.sources,
            order: spare.order,
            returned: false,
            done: is_empty(bounds.0, bounds.1),
            key: spare.key,
            expected,
            asked: 0,
            runs: 0,
            passed: 0,
        }
    }

    /// Brings a record to the first source in the order, for a call that asks for `asked` records.
    /// It stops at [`Next::Unread`] instead of reading if `sparing` is set. The record found may be
    /// outside `until`. But deletes outside `until` are not passed to find one.
    fn find_next(
        &mut self,
        sparing: bool,
        asked: usize,
        (until, until_head): (Bound<&[u8]>, u64),
    ) -> Result<Next> {
        self.asked = asked;
        if self.returned {
            self.returned = false;
            self.move_first()?;
        }
        while let Some(&Queued { head, source_index }) = self.order.first() {
            let source = &self.sources[usize::from(source_index)];
            match source.item {
                Item::Pending | Item::Between | Item::Boundary
                    if self.lies_behind(Queued { head, source_index }, until, until_head) =>
                {
                    return Ok(Next::Reached);
                }
                Item::Record => {
                    if source.place.is_put() {
                        return Ok(Next::Record);
                    }
                    if !self.is_let_in(Queued { head, source_index }, until, until_head) {
                        return Ok(Next::Reached);
                    }
                    let place = self.sources[usize::from(source_index)].place;
                    if !place.is_delete() {
                        return Ok(Next::Operands);
                    }
                    self.passed += 1;
                    self.move_first()?;
                }
                Item::Start | Item::Pending | Item::Boundary if sparing => {
                    return Ok(Next::Unread);
                }
                Item::Start | Item::Pending => {
                    self.prepare(source_index)?;
                    self.read_for(source_index, asked)?;
                    self.open(source_index)?;
                    self.sort_first()?;
                }
                Item::Between => {
                    if sparing && !self.take_cached(source_index) {
                        return Ok(Next::Unread);
                    }
                    self.read_for(source_index, asked)?;
                    self.open(source_index)?;
                    self.sort_first()?;
                }
                Item::Boundary => self.next_leaf()?,
                Item::End => {
                    self.order.remove(0);
                }
            }
        }
        Ok(Next::End)
    }

    /// Whether the first source is at a record that was not returned.
    #[inline]
    fn stands_at_record(&self) -> bool {
        let first = self
            .order
            .first()
            .map(|queued| &self.sources[usize::from(queued.source_index)]);
        first.is_some_and(|first| first.item == Item::Record && first.place.is_put())
            && !self.returned
    }

    /// Whether a source's next block is in memory.
    fn take_cached(&mut self, source_index: u16) -> bool {
        let walk = self.sources[usize::from(source_index)].walk.as_mut();
        walk.is_some_and(|walk| walk.take_cached(&self.store))
    }

    /// Moves a source to its next record, or to what follows its last record.
    #[inline]
    fn advance(&mut self, source_index: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(source_index)];
        if source.step(self.path.direction) {
            return Ok(());
        }
        self.next_block(source_index)
    }

    /// Called at the end of a source's block. Moves the source to the first record of the next
    /// block if that is in memory, else before it. Behind the last block, moves the source to what
    /// follows its last record.
    fn next_block(&mut self, source_index: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(source_index)];
        source.block = None;
        if let Some(walk) = &mut source.walk
            && !walk.is_ready()
            && !walk.is_over()
            // The next record is most often the leaf's.
            && !(source_index == LEAF && walk.take_near(&self.store, self.asked))
        {
            source.item = Item::Between;
            return Ok(());
        }
        self.open(source_index)
    }

    /// Moves a source to the first record of its next block, and reads that block if needed. If a
    /// bound leaves the block no records, the source moves before the block behind it. Behind the
    /// last block, it moves to what follows its last record.
    fn open(&mut self, source_index: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(source_index)];
        source.go_ahead(source_index, &self.path, &self.store);
        if let Some(walk) = &mut source.walk {
            let (path, range) = (&self.path, source.range);
            let bounds = || path.bounds_of(source_index, range);
            let stream = source.ahead.as_mut().map(|ahead| &mut ahead.stream);
            let mut next = walk.next(&self.store, bounds, stream);
            if next.is_err() && source.ahead.take().is_some() {
                // A read of many blocks may have failed because of a later block.
                walk.leave_stream();
                next = walk.next(&self.store, bounds, None);
            }
            match next? {
                // No record of the block is in the range. The next block may be far behind, and is
                // read when it is next in order.
                Some((_, records)) if records.is_empty() => return self.next_block(source_index),
                Some((block, records)) => {
                    source.enter(block, records, self.path.direction);
                    source.read_ahead(&self.path, &self.store);
                    return Ok(());
                }
                None => source.end_walk(),
            }
        }
        if source_index != LEAF {
            self.next_live_range(source_index);
        } else if self.path.leaf_has_successor() {
            source.item = Item::Boundary;
        } else {
            source.item = Item::End;
        }
        Ok(())
    }

    /// Prepares a source to walk its range, unless it is ready. It reads at most the index of the
    /// group.
    fn prepare(&mut self, source_index: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(source_index)];
        if source.walk.is_some() {
            return Ok(());
        }
        // If it does not know the next group, it does not know later ones either.
        source.ahead.take_if(|ahead| !ahead.knows_next());
        let begun = match &mut source.ahead {
            Some(ahead) => ahead.enter(&self.path, &self.store)?,
            None => None,
        };
        if let Some(walk) = begun {
            source.walk = Some(walk.at_pace(source.pace));
            return Ok(());
        }
        self.keep_pace(source_index);
        self.begin_walk(source_index)
    }

    /// Fills a batch with records, or with keys alone if `KEYS` is set. The caller handles errors
    /// and the end.
    fn fill_batch<const KEYS: bool>(
        &mut self,
        until: Bound<&[u8]>,
        batch: &mut Batch,
    ) -> Result<Filled> {
        let until_head = match until {
            Bound::Unbounded => u64::MAX,
            Bound::Included(key) | Bound::Excluded(key) => self.path.in_order(head_of(key)),
        };
        loop {
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            // After a run the first source is usually at a record.
            if !self.stands_at_record() {
                match self.find_next(batch.spares_reads(), batch.wanted(), (until, until_head))? {
                    Next::End => return Ok(Filled::End),
                    Next::Reached => return Ok(Filled::Reached),
                    Next::Unread => return Ok(Filled::Full),
                    Next::Operands => return Ok(Filled::Unresolved),
                    Next::Record => {}
                }
            }
            if !self.is_let_in(self.order[0], until, until_head) {
                return Ok(Filled::Reached);
            }
            if !batch.lends() || !self.lend_run(until_head, batch)? {
                self.take_run::<KEYS>(until, until_head, batch)?;
            }
        }
    }

    /// Whether the current key of a source is inside a bound, whose head is `until_head`.
    #[inline(always)]
    fn is_let_in(&self, queued: Queued, until: Bound<&[u8]>, until_head: u64) -> bool {
        let source = &self.sources[usize::from(queued.source_index)];
        queued.head < until_head
            || self
                .path
                .lets_in(until, source.key(queued.source_index, &self.path))
    }

    /// Appends the first source's record and the records behind it in the same block, until another
    /// source or `until` comes first.
    #[inline]
    fn take_run<const KEYS: bool>(
        &mut self,
        until: Bound<&[u8]>,
        until_head: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        let source_index = self.order[0].source_index;
        let limit = self.limit(until_head);
        if self.sources[usize::from(source_index)].record().is_none() {
            return Err(Error::internal("a source of a scan is not at a record"));
        }
        loop {
            let source = &mut self.sources[usize::from(source_index)];
            // Records with heads below both limits come first. No keys are compared.
            if !source.copy_run::<KEYS>(limit, self.path.direction, batch) {
                self.returned = true;
                return Ok(());
            }
            let (head, has_operands) = (source.key_head, source.is_at_operands());
            if head > limit || has_operands || !self.comes_first(source_index, until, until_head) {
                return self.sink(Queued { head, source_index });
            }
        }
    }

    /// Like [`TreeScan::take_run`], but the records stay in their block. Returns false, and does
    /// nothing, if copying is cheaper.
    fn lend_run(&mut self, until_head: u64, batch: &mut Batch) -> Result<bool> {
        let source_index = self.order[0].source_index;
        let (limit, direction) = (self.limit(until_head), self.path.direction);
        let source = &mut self.sources[usize::from(source_index)];
        let Some(came) = source.lend_run(limit, direction, batch) else {
            return Ok(false);
        };
        let head = source.key_head;
        self.returned = !came;
        if came {
            self.sink(Queued { head, source_index })?;
        }
        Ok(true)
    }

    /// Records of the first source with heads below this limit come before those of all other
    /// sources and before `until`.
    #[inline]
    fn limit(&self, until_head: u64) -> u64 {
        if mutant::active("scan-run-passes-other-source") {
            return until_head;
        }
        let second = self.order.get(1).map_or(u64::MAX, |second| second.head);
        until_head.min(second)
    }

    /// Whether the first source's record comes before the second source and inside the bound.
    /// Called if heads do not decide.
    #[inline(never)]
    fn comes_first(&self, source_index: u16, until: Bound<&[u8]>, until_head: u64) -> bool {
        let source = &self.sources[usize::from(source_index)];
        let key = source.key(source_index, &self.path);
        let before_second = match self.order.get(1) {
            Some(second) if source.key_head == second.head => {
                let other = &self.sources[usize::from(second.source_index)];
                let other = other.key(second.source_index, &self.path);
                self.path.compare(key, other) == Ordering::Less
            }
            _ => true,
        };
        before_second && (source.key_head < until_head || self.path.lets_in(until, key))
    }

    /// Whether the next key of a source is behind a bound, whose head is `until_head`. A source
    /// that may begin exactly at the bound must be opened: a newer memtable record may hide its
    /// record ([`Scan::skip`]).
    fn lies_behind(&self, queued: Queued, until: Bound<&[u8]>, until_head: u64) -> bool {
        let (Bound::Included(key) | Bound::Excluded(key)) = until else {
            return false;
        };
        let source = &self.sources[usize::from(queued.source_index)];
        match queued.head.cmp(&until_head) {
            Ordering::Equal => {
                let at = source.key(queued.source_index, &self.path);
                self.path.compare(at, (key, &[])) == Ordering::Greater
            }
            order => order == Ordering::Greater,
        }
    }

    /// Records how a call ended.
    fn ended<T>(
        &mut self,
        result: Result<T>,
        at_end: impl FnOnce(&T) -> bool,
        end: T,
    ) -> Result<T> {
        match result {
            Ok(value) => {
                self.done = at_end(&value);
                Ok(value)
            }
            Err(error) => {
                self.done = true;
                if mutant::active("unreadable-block-ends-scan") {
                    return Ok(end);
                }
                Err(error)
            }
        }
    }
}

impl Scan for TreeScan {
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.done {
            return Ok(None);
        }
        let next = self.find_next(false, 1, (Bound::Unbounded, u64::MAX));
        let is_record = |next: &Next| matches!(next, Next::Record | Next::Operands);
        let next = self.ended(next, |next| !is_record(next), Next::End)?;
        if !is_record(&next) {
            return Ok(None);
        }
        self.returned = true;
        let source = &self.sources[usize::from(self.order[0].source_index)];
        let Some((block, place)) = source.record() else {
            return Ok(None);
        };
        let bytes = block.bytes();
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        self.key.extend_from_slice(&bytes[place.suffix()]);
        let value = match next {
            Next::Record => &bytes[place.value()],
            _ => &[],
        };
        Ok(Some((&self.key, value)))
    }

    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        if self.done {
            return Ok(Filled::End);
        }
        if batch.most() != usize::MAX {
            self.ends_after(batch.most());
        }
        let filled = match batch.keys_only() {
            true => self.fill_batch::<true>(until, batch),
            false => self.fill_batch::<false>(until, batch),
        };
        self.ended(filled, |filled| *filled == Filled::End, Filled::End)
    }

    fn unresolved(&self, key: &mut Vec<u8>) -> Option<&[u8]> {
        let first = self.order.first()?;
        let (block, place) = self.sources[usize::from(first.source_index)].record()?;
        key.extend_from_slice(block.prefix());
        key.extend_from_slice(&block.bytes()[place.suffix()]);
        match block.message_at(place) {
            Message::Separated(handle) => Some(handle),
            _ => None,
        }
    }

    fn skip(&mut self, key: &[u8]) {
        if self.done || self.returned {
            return;
        }
        if let Some(first) = self.order.first() {
            let source = &self.sources[usize::from(first.source_index)];
            let same = source.record().is_some_and(|(block, place)| {
                key.strip_prefix(block.prefix()) == Some(&block.bytes()[place.suffix()])
            });
            self.returned = same;
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        if self.done {
            return Ok(());
        }
        let moved = self.move_to(key);
        let done = self.done;
        self.ended(moved, |()| done, ())
    }

    fn runs(&self) -> usize {
        self.runs.into()
    }

    fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }
}
