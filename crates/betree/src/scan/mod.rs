//! A scan merges, lazily, the leaf that it stands in with every buffer level of every node on the
//! path to that leaf.
//!
//! The path is a stack of frames, one a node. Each of its levels is one *source*: it walks the
//! level's live ranges in key order over the whole node, opens a segment only when a key of it may
//! be next, and lives as long as its frame. The leaf is a source too; once its records are out, it
//! stands for the *boundary* of its key range: when that comes up, every record before it was
//! returned, the path moves on to the next leaf, and frames that end there have nothing left. So no
//! key is ever compared with a range's end, and a scan of any length holds one block run a source.
//!
//! Sources stand in one array, sorted by their next keys. Most steps stay with the source that gave
//! the last record (a leaf holds far more than the levels), which costs one comparison of numbers:
//! a batch is filled in runs from one block. Two sources never stand at the same key: the older one
//! is moved on while it is sorted in.
//!
//! A scan that was asked for few records should cost few waits and few reads: the blocks in which
//! the sources begin are read at once; others when the first key that they may hold comes up,
//! together with what the other sources are expected to need (`together`), and none only to know
//! what follows the last.

mod ahead;
mod begin;
mod source;
mod spare;
mod together;

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Result, Share, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_pages::heads::{head as head_of, head_of_pieces};
use terrapin_structure::{Batch, Direction, Filled, KeyBounds, Scan};

use crate::bounds::{as_slice, is_empty};
use crate::load::{LoadedNode, load_child_of};
use crate::node::Child;
use crate::walk::{BlockWalk, ReadAhead};
use source::{Edge, Frame, Head, LEAF, Path, PathNode, Source};
use spare::Spare;

/// Sources that there is room for from the start: the leaf, and the levels of a node or two.
const SOURCES_EXPECTED: usize = 12;
/// Nodes on the path that there is room for from the start.
const FRAMES_EXPECTED: usize = 4;

/// A source in the order of what comes next.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The head of the key that it stands at, as [`Path::in_order`] has it; most comparisons end
    /// here.
    head: u64,
    slot: u16,
}

/// What a scan came to on its way to the next record.
#[derive(PartialEq, Eq)]
enum Next {
    /// The first source stands at it.
    Record,
    /// There is none.
    End,
    /// There is none before a delete that is not let in any more, or before what must be read to
    /// know more.
    Reached,
    /// More must be read to know, which was not wanted.
    Unread,
}

/// A scan over one version of the tree.
pub(crate) struct TreeScan {
    store: Arc<Share<PageStore>>,
    path: Path,
    /// The leaf that is the whole tree.
    lone_leaf: Option<GroupRef>,
    sources: Vec<Source>,
    /// The sources that have something, sorted by what is next.
    order: Vec<Place>,
    /// The first source in the order was returned and must move on first.
    returned: bool,
    /// An error or the end was returned.
    done: bool,
    /// The key that was returned alone.
    key: Vec<u8>,
    /// How many records are likely to be asked for; 0 when nobody knows.
    expected: usize,
    /// How many are wanted by the call that goes on.
    asked: usize,
    /// Buffer levels that had something where it began.
    runs: u16,
    /// Deletes that it went over on its way to a record, until told.
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

    /// A scan over a tree that is one leaf.
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

    /// A scan that returns nothing as it stands.
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

    /// Makes the first source in the order a record to return, unless that takes a read and
    /// `sparing` says not to. So many records are asked for. It may be one that `until` does not
    /// let in, but no deletes behind that are gone over to find it.
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
        while let Some(&Place { head, slot }) = self.order.first() {
            let source = &self.sources[usize::from(slot)];
            match source.head {
                Head::Pending | Head::Between | Head::Boundary
                    if self.lies_behind(Place { head, slot }, until, until_head) =>
                {
                    return Ok(Next::Reached);
                }
                Head::Record => {
                    if !source.place.is_delete {
                        return Ok(Next::Record);
                    }
                    if !self.is_let_in(Place { head, slot }, until, until_head) {
                        return Ok(Next::Reached);
                    }
                    self.passed += 1;
                    self.move_first()?;
                }
                Head::Start | Head::Pending | Head::Boundary if sparing => {
                    return Ok(Next::Unread);
                }
                Head::Start | Head::Pending => {
                    self.prepare(slot)?;
                    self.read_for(slot, asked)?;
                    self.open(slot)?;
                    self.sort_first()?;
                }
                Head::Between => {
                    if sparing && !self.take_cached(slot) {
                        return Ok(Next::Unread);
                    }
                    self.read_for(slot, asked)?;
                    self.open(slot)?;
                    self.sort_first()?;
                }
                Head::Boundary => self.next_leaf()?,
                Head::End => {
                    self.order.remove(0);
                }
            }
        }
        Ok(Next::End)
    }

    /// Whether the first source stands at a record that was not returned.
    #[inline]
    fn stands_at_record(&self) -> bool {
        let first = self
            .order
            .first()
            .map(|place| &self.sources[usize::from(place.slot)]);
        first.is_some_and(|first| first.head == Head::Record && !first.place.is_delete)
            && !self.returned
    }

    /// Whether a source's next block is at hand.
    fn take_cached(&mut self, slot: u16) -> bool {
        let walk = self.sources[usize::from(slot)].walk.as_mut();
        walk.is_some_and(|walk| walk.take_cached(&self.store))
    }

    /// Moves the first source on and sorts it in again.
    #[inline]
    fn move_first(&mut self) -> Result<()> {
        self.advance(self.order[0].slot)?;
        self.sort_first()
    }

    /// The first source in the order changed: puts it where it belongs.
    #[inline]
    fn sort_first(&mut self) -> Result<()> {
        let slot = self.order[0].slot;
        if self.sources[usize::from(slot)].head == Head::End {
            self.order.remove(0);
            return Ok(());
        }
        self.sink(self.place(slot))
    }

    /// Puts the first source where it belongs now.
    #[inline(always)]
    fn sink(&mut self, place: Place) -> Result<()> {
        let mut at = 0;
        while let Some(&next) = self.order.get(at + 1) {
            match self.compare(place, next) {
                Ordering::Less => break,
                Ordering::Greater => self.order[at] = next,
                Ordering::Equal => {
                    self.order.remove(at);
                    return self.insert(place.slot);
                }
            }
            at += 1;
        }
        self.order[at] = place;
        Ok(())
    }

    /// Sorts a source in; of two records with one key the older is moved on until all keys differ.
    fn insert(&mut self, mut slot: u16) -> Result<()> {
        'sorting: while self.sources[usize::from(slot)].head != Head::End {
            let place = self.place(slot);
            for at in 0..self.order.len() {
                let other = self.order[at];
                match self.compare(other, place) {
                    Ordering::Less => {}
                    Ordering::Greater => {
                        self.order.insert(at, place);
                        return Ok(());
                    }
                    Ordering::Equal => {
                        if slot != LEAF && (other.slot == LEAF || slot < other.slot) {
                            self.order[at] = place;
                            slot = other.slot;
                        }
                        self.advance(slot)?;
                        continue 'sorting;
                    }
                }
            }
            self.order.push(place);
            return Ok(());
        }
        Ok(())
    }

    /// Where a source belongs in the order.
    #[inline]
    fn place(&self, slot: u16) -> Place {
        let source = &self.sources[usize::from(slot)];
        let head = match source.head {
            Head::Start => 0,
            Head::Record => source.key_head,
            _ => self
                .path
                .in_order(head_of_pieces(self.path.key(slot, source))),
        };
        Place { head, slot }
    }

    /// Which of two sources comes first in the scan's direction; equal only for two records with
    /// one key.
    #[inline]
    fn compare(&self, a: Place, b: Place) -> Ordering {
        match a.head.cmp(&b.head) {
            Ordering::Equal => self.compare_keys(a.slot, b.slot),
            unequal => unequal,
        }
    }

    /// As [`TreeScan::compare`], where heads are equal.
    #[inline(never)]
    fn compare_keys(&self, a: u16, b: u16) -> Ordering {
        let (left, right) = (&self.sources[usize::from(a)], &self.sources[usize::from(b)]);
        if left.head == Head::Start || right.head == Head::Start {
            return (left.head != Head::Start)
                .cmp(&(right.head != Head::Start))
                .then(a.cmp(&b));
        }
        let by_key = self
            .path
            .compare(self.path.key(a, left), self.path.key(b, right));
        match by_key {
            Ordering::Equal if left.head == Head::Record && right.head == Head::Record => {
                Ordering::Equal
            }
            Ordering::Equal => left
                .rank(self.path.direction)
                .cmp(&right.rank(self.path.direction))
                .then(a.cmp(&b)),
            unequal => unequal,
        }
    }

    /// Moves a source to its next record, or to what stands behind its last.
    #[inline]
    fn advance(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        if source.step(self.path.direction) {
            return Ok(());
        }
        self.next_block(slot)
    }

    /// A block of a source is done: moves it to the first record of the next, if that is at hand,
    /// or else before it; or to what stands behind its last.
    fn next_block(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        source.block = None;
        if let Some(walk) = &mut source.walk
            && !walk.is_ready()
            && !walk.is_over()
            // The leaf's is most often the next one.
            && !(slot == LEAF && walk.take_near(&self.store, self.asked))
        {
            source.head = Head::Between;
            return Ok(());
        }
        self.open(slot)
    }

    /// Moves a source to the first record of its next block, which is read if need be; or, where a
    /// bound leaves that none, to before the one behind it; or to what stands behind its last.
    fn open(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        source.go_ahead(slot, &self.path, &self.store);
        if let Some(walk) = &mut source.walk {
            let (path, range) = (&self.path, source.range);
            let bounds = || path.bounds_of(slot, range);
            let stream = source.ahead.as_mut().map(|ahead| &mut ahead.stream);
            let mut next = walk.next(&self.store, bounds, stream);
            if next.is_err() && source.ahead.take().is_some() {
                // A read of many blocks may have failed for one that lies behind.
                walk.leave_stream();
                next = walk.next(&self.store, bounds, None);
            }
            match next? {
                // A bound falls behind what it has. What follows may lie far behind, and is wanted
                // when its turn comes.
                Some((_, records)) if records.is_empty() => return self.next_block(slot),
                Some((block, records)) => {
                    source.enter(block, records, self.path.direction);
                    source.read_ahead(&self.path, &self.store);
                    return Ok(());
                }
                None => source.end_walk(),
            }
        }
        if slot != LEAF {
            self.next_live_range(slot);
        } else if self.path.leaf_has_successor() {
            source.head = Head::Boundary;
        } else {
            source.head = Head::End;
        }
        Ok(())
    }

    /// Makes a source ready to walk its range, unless it is; reads the group's index at most.
    fn prepare(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        if source.walk.is_some() {
            return Ok(());
        }
        // One that does not know the next group would not know those behind either.
        source.ahead.take_if(|ahead| !ahead.knows_next());
        let begun = match &mut source.ahead {
            Some(ahead) => ahead.enter(&self.path, &self.store)?,
            None => None,
        };
        if let Some(walk) = begun {
            source.walk = Some(walk.at_pace(source.pace));
            return Ok(());
        }
        self.keep_pace(slot);
        self.begin_walk(slot)
    }

    /// The scan has come to the end of the leaf's key range: goes on to the next leaf.
    fn next_leaf(&mut self) -> Result<()> {
        self.order.retain(|place| place.slot != LEAF);
        loop {
            let Some(frame) = self.path.frames.last_mut() else {
                return Ok(());
            };
            match self.path.direction {
                Direction::Forward if frame.pivot + 1 < frame.node.pivots.len() => {
                    frame.pivot += 1;
                    break;
                }
                Direction::Backward if frame.pivot > 0 => {
                    frame.pivot -= 1;
                    break;
                }
                _ => {}
            }
            let from = frame.sources_from;
            self.order.retain(|place| usize::from(place.slot) < from);
            self.sources.truncate(from);
            self.path.frames.pop();
        }
        let old = self.sources.len();
        self.descend(false)?;
        for slot in old as u16..self.sources.len() as u16 {
            self.catch_up(slot);
            self.insert(slot)?;
        }
        self.insert(LEAF)
    }

    /// A level that a long scan comes to is read as if it had been there before: as far ahead of
    /// its records as the leaves are.
    fn keep_pace(&mut self, slot: u16) {
        let leaf = &self.sources[usize::from(LEAF)];
        let pace = leaf.walk.as_ref().map_or(leaf.pace, BlockWalk::pace);
        if slot == LEAF || !pace.is_long(ReadAhead::SCAN) {
            return;
        }
        let source = &mut self.sources[usize::from(slot)];
        let pace = pace.part(self.path.density_of_level(source.range));
        source.pace = source.pace.or_faster(pace);
    }

    /// Begins to read a level of a node that the scan comes to, if it is there already and the scan
    /// is long.
    fn catch_up(&mut self, slot: u16) {
        self.keep_pace(slot);
        let source = &self.sources[usize::from(slot)];
        // What is wrong with it may lie far ahead: who comes to it is told.
        if source.head == Head::Pending
            && source.pace.is_long(ReadAhead::SCAN)
            && self.prepare(slot).is_ok()
        {
            let source = &mut self.sources[usize::from(slot)];
            source.go_ahead(slot, &self.path, &self.store);
            source.send(&self.store);
        }
    }

    /// Goes down from the last frame to a leaf; `seek` for the place where the scan begins.
    fn descend(&mut self, seek: bool) -> Result<()> {
        while let Some(frame) = self.path.frames.last() {
            let Child::Node { page, .. } = &frame.node.pivots[frame.pivot].child else {
                self.enter_leaf(seek);
                break;
            };
            let node = load_child_of(&self.store, &frame.node, frame.pivot, page)?;
            self.push_frame(PathNode::Below(node), seek);
        }
        Ok(())
    }

    /// Adds a node to the path, with a source for each of its levels.
    fn push_frame(&mut self, node: PathNode, seek: bool) {
        if self.sources.is_empty() {
            self.sources.push(Source::new(0, 0, 0, 0));
        }
        let direction = self.path.direction;
        let pivot = match (direction, seek) {
            (Direction::Forward, false) => 0,
            (Direction::Backward, false) => node.pivots.len() - 1,
            (Direction::Forward, true) => match &self.path.lower {
                Bound::Unbounded => 0,
                Bound::Included(key) | Bound::Excluded(key) => node.pivot_of(key),
            },
            (Direction::Backward, true) => match &self.path.upper {
                Bound::Unbounded => node.pivots.len() - 1,
                Bound::Included(key) => node.pivot_of(key),
                Bound::Excluded(key) => node.pivot_before(key),
            },
        };
        let start = match (seek, direction) {
            (false, _) => Bound::Unbounded,
            (true, Direction::Forward) => as_slice(&self.path.lower),
            (true, Direction::Backward) => as_slice(&self.path.upper),
        };
        let start = match start {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
        };
        let frame = self.path.frames.len();
        let sources_from = self.sources.len();
        for (level, segments) in node
            .levels
            .iter()
            .enumerate()
            .filter(|(_, segments)| !segments.is_empty())
        {
            // The scan begins in the first segment that ends at its first key or behind.
            let (segment, part) = match (direction, start) {
                (Direction::Forward, start) => {
                    let segment = start.map_or(0, |key| node.segments_below(level, key));
                    let part = segments.get(segment).map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) < pivot)
                    });
                    (segment, part)
                }
                (Direction::Backward, start) => {
                    let segment =
                        start.map_or(segments.len(), |key| node.segments_from(level, key));
                    let last = segment.checked_sub(1).map(|last| &segments[last]);
                    let part = last.map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) <= pivot)
                    });
                    (segment, part)
                }
            };
            self.sources.push(Source::new(frame, level, segment, part));
        }
        self.path.frames.push(Frame {
            node,
            pivot,
            sources_from,
        });
        for slot in sources_from..self.sources.len() {
            self.next_live_range(slot as u16);
        }
    }

    /// Makes a buffer level's source stand before its next live range.
    fn next_live_range(&mut self, slot: u16) {
        let source = &mut self.sources[usize::from(slot)];
        match self.path.next_live_range(source.range, source.part) {
            Some((range, part)) => {
                (source.range, source.part) = (range, part);
                source.end_walk();
                source.head = Head::Pending;
            }
            None => {
                source.ahead = None;
                source.head = Head::End;
            }
        }
    }

    /// Makes the leaf's source stand before the leaf that the path leads to. Only the scan's ends
    /// can lie inside it.
    fn enter_leaf(&mut self, seek: bool) {
        let cut_start = if seek { Edge::Scan } else { Edge::Open };
        let cut_end = match self.path.leaf_has_successor() {
            true => Edge::Open,
            false => Edge::Scan,
        };
        if self.sources.is_empty() {
            self.sources.push(Source::new(0, 0, 0, 0));
        }
        let source = &mut self.sources[usize::from(LEAF)];
        (source.range.lower, source.range.upper) = match self.path.direction {
            Direction::Forward => (cut_start, cut_end),
            Direction::Backward => (cut_end, cut_start),
        };
        source.end_walk();
        source.block = None;
        source.head = Head::Start;
    }

    /// Fills a batch, with `KEYS` alone or whole records; the caller takes note of errors and of
    /// the end.
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
            // After a run the first source mostly stands at a record.
            if !self.stands_at_record() {
                match self.find_next(batch.spares_reads(), batch.wanted(), (until, until_head))? {
                    Next::End => return Ok(Filled::End),
                    Next::Reached => return Ok(Filled::Reached),
                    Next::Unread => return Ok(Filled::Full),
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

    /// Whether a bound, which has that head, lets in what a source stands at.
    #[inline(always)]
    fn is_let_in(&self, place: Place, until: Bound<&[u8]>, until_head: u64) -> bool {
        let source = &self.sources[usize::from(place.slot)];
        place.head < until_head || self.path.lets_in(until, self.path.key(place.slot, source))
    }

    /// Appends the record that the first source stands at, and those that follow it in its block up
    /// to where another source or `until` comes first.
    #[inline]
    fn take_run<const KEYS: bool>(
        &mut self,
        until: Bound<&[u8]>,
        until_head: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        let slot = self.order[0].slot;
        let limit = self.limit(until_head);
        if self.sources[usize::from(slot)].record().is_none() {
            return Err(Error::internal("a scan's source that stands at no record"));
        }
        loop {
            let source = &mut self.sources[usize::from(slot)];
            // The records whose heads are below both others' come first without a look at more.
            if !source.copy_run::<KEYS>(limit, self.path.direction, batch) {
                self.returned = true;
                return Ok(());
            }
            let head = source.key_head;
            if head > limit || !self.comes_first(slot, until, until_head) {
                return self.sink(Place { head, slot });
            }
        }
    }

    /// As [`TreeScan::take_run`], for records that stay in their block; whether that is worth it.
    fn lend_run(&mut self, until_head: u64, batch: &mut Batch) -> Result<bool> {
        let slot = self.order[0].slot;
        let (limit, direction) = (self.limit(until_head), self.path.direction);
        let source = &mut self.sources[usize::from(slot)];
        let Some(came) = source.lend_run(limit, direction, batch) else {
            return Ok(false);
        };
        let head = source.key_head;
        self.returned = !came;
        if came {
            self.sink(Place { head, slot })?;
        }
        Ok(true)
    }

    /// Records of the first source whose heads are below this come before those of others and
    /// `until`.
    #[inline]
    fn limit(&self, until_head: u64) -> u64 {
        if mutant::active(71) {
            return until_head;
        }
        let second = self.order.get(1).map_or(u64::MAX, |second| second.head);
        until_head.min(second)
    }

    /// Whether the record that the first source came to comes before the second source and is let
    /// in, where heads do not tell.
    #[inline(never)]
    fn comes_first(&self, slot: u16, until: Bound<&[u8]>, until_head: u64) -> bool {
        let source = &self.sources[usize::from(slot)];
        let key = self.path.key(slot, source);
        let before_second = match self.order.get(1) {
            Some(second) if source.key_head == second.head => {
                let other = &self.sources[usize::from(second.slot)];
                let other = self.path.key(second.slot, other);
                self.path.compare(key, other) == Ordering::Less
            }
            _ => true,
        };
        before_second && (source.key_head < until_head || self.path.lets_in(until, key))
    }

    /// Whether what a source stands at lies behind a bound, which has that head, and not at it: one
    /// that may begin there must be opened, since a record there may be hidden by a newer one
    /// ([`Scan::skip`]).
    fn lies_behind(&self, place: Place, until: Bound<&[u8]>, until_head: u64) -> bool {
        let (Bound::Included(key) | Bound::Excluded(key)) = until else {
            return false;
        };
        let source = &self.sources[usize::from(place.slot)];
        match place.head.cmp(&until_head) {
            Ordering::Equal => {
                let at = self.path.key(place.slot, source);
                self.path.compare(at, (key, &[])) == Ordering::Greater
            }
            order => order == Ordering::Greater,
        }
    }

    /// Takes note of how a call ended.
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
                if mutant::active(56) {
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
        if self.ended(next, |next| *next != Next::Record, Next::End)? != Next::Record {
            return Ok(None);
        }
        self.returned = true;
        let source = &self.sources[usize::from(self.order[0].slot)];
        let Some((block, place)) = source.record() else {
            return Ok(None);
        };
        let bytes = block.bytes();
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        self.key.extend_from_slice(&bytes[place.suffix()]);
        Ok(Some((&self.key, &bytes[place.value()])))
    }

    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        if self.done {
            return Ok(Filled::End);
        }
        let filled = match batch.keys_only() {
            true => self.fill_batch::<true>(until, batch),
            false => self.fill_batch::<false>(until, batch),
        };
        self.ended(filled, |filled| *filled == Filled::End, Filled::End)
    }

    fn skip(&mut self, key: &[u8]) {
        if self.done || self.returned {
            return;
        }
        if let Some(first) = self.order.first() {
            let source = &self.sources[usize::from(first.slot)];
            let same = source.record().is_some_and(|(block, place)| {
                key.strip_prefix(block.prefix()) == Some(&block.bytes()[place.suffix()])
            });
            self.returned = same;
        }
    }

    fn runs(&self) -> usize {
        self.runs.into()
    }

    fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }
}
