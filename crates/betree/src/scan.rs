//! A scan merges, lazily, the leaf that it stands in with every buffer level of every node on the path to that leaf.
//!
//! The path is a stack of frames, one a node. Each of its levels is one *source*: it walks the level's live ranges in
//! key order over the whole node, opens a segment only when a key of it may be next, and lives as long as its frame.
//! The leaf is a source too; once its records are out, it stands for the *boundary* of its key range: when that comes up,
//! every record before it was returned, the path moves on to the next leaf, and frames that end there have nothing left.
//! So no key is ever compared with a range's end, and a scan of any length holds one block run a source.
//!
//! Sources stand in one array, sorted by their next keys. Most steps stay with the source that gave the last record (a
//! leaf holds far more than the levels), which costs one comparison; others find their place by binary search. Two
//! sources never stand at the same key: the older one is moved on while it is sorted in.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::group::GroupRef;
use terrapin_pages::heads::head as prefix_of;
use terrapin_pages::message::Message;
use terrapin_structure::{Direction, KeyBounds, Scan};

use crate::bounds::{
    as_slice, is_empty, lets_in_above, lets_in_below, tighter_lower, tighter_upper,
};
use crate::cursor::{GroupCursor, ReadAhead};
use crate::load::{LoadedNode, load_child};
use crate::node::Child;

/// What a source stands at. The order among different kinds at one key is [`Source::rank`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// Nothing was read, and nothing is known about its first key.
    Start,
    /// Nothing was read; no record comes before `mark`.
    Pending,
    /// A record.
    Record,
    /// The leaf is done; its key range ends at `mark`.
    Boundary,
    /// No more records.
    End,
}

/// The slot of the leaf among the sources; buffer levels follow it, from the root's newest down.
const LEAF: u16 = 0;

/// Sources that there is room for from the start: the leaf, and the levels of a node or two.
const SOURCES_EXPECTED: usize = 12;

/// One sorted run of records: the current leaf, or one buffer level of a node on the path.
struct Source {
    head: Head,
    /// The first eight bytes of the next key, big-endian: most comparisons end here.
    prefix: u64,
    cursor: Option<GroupCursor>,
    /// The key that a pending source or a boundary stands at.
    mark: Vec<u8>,
    /// The range of the group that is to be opened: the live range cut to the scan's bounds.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    group: Option<GroupRef>,
    /// Which node and level, for a buffer level; and where its next live range is to be looked for.
    frame: usize,
    level: usize,
    segment: usize,
    part: usize,
}

/// A node on the path.
struct Frame {
    node: Arc<LoadedNode>,
    /// The pivot that the path goes through.
    pivot: usize,
    /// The node's key range: inclusive, exclusive.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// The first of its sources.
    sources_from: usize,
}

/// A scan over one version of the tree.
pub(crate) struct TreeScan {
    store: Arc<PageStore>,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    frames: Vec<Frame>,
    sources: Vec<Source>,
    /// Slots of the sources that have something, sorted by what is next.
    order: Vec<u16>,
    /// The first source in the order was returned and must move on first.
    returned: bool,
    /// An error or the end was returned.
    done: bool,
}

impl Source {
    fn level(frame: usize, level: usize, segment: usize, part: usize) -> Self {
        Source {
            head: Head::End,
            prefix: 0,
            cursor: None,
            mark: Vec::new(),
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            group: None,
            frame,
            level,
            segment,
            part,
        }
    }

    /// The key that the source stands at.
    #[inline]
    fn key(&self) -> &[u8] {
        match (self.head, &self.cursor) {
            (Head::Record, Some(cursor)) => cursor.current_key().unwrap_or_default(),
            _ => &self.mark,
        }
    }

    /// Which kind of head goes first at one key: a source that may begin there must be opened before the record is
    /// returned, and a leaf's range ends before its upper bound, which is not in it, but behind its lower bound, which is.
    #[inline]
    fn rank(&self, direction: Direction) -> u8 {
        match (self.head, direction) {
            (Head::Start | Head::Pending, _) => 0,
            (Head::Boundary, Direction::Forward) => 1,
            (Head::Record, _) => 2,
            (Head::Boundary, Direction::Backward) if mutant::active(71) => 1,
            (Head::Boundary, Direction::Backward) => 3,
            (Head::End, _) => 4,
        }
    }

    /// Takes the prefix of the key that it stands at.
    #[inline]
    fn set_head(&mut self, head: Head) {
        self.head = head;
        self.prefix = prefix_of(self.key());
    }
}

impl Frame {
    /// The key range of pivots `first` to `last`.
    fn range(&self, first: usize, last: usize) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let lower = match first {
            0 => as_slice(&self.lower),
            _ => Bound::Included(&self.node.pivots[first].lower[..]),
        };
        let upper = match self.node.pivots.get(last + 1) {
            None => as_slice(&self.upper),
            Some(next) => Bound::Excluded(&next.lower[..]),
        };
        (lower, upper)
    }
}

impl TreeScan {
    /// A scan over a tree whose root is a node.
    pub(crate) fn over_node(
        store: &Arc<PageStore>,
        root: &Arc<LoadedNode>,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Result<Self> {
        let mut scan = Self::nowhere(store, bounds, direction);
        if scan.done {
            return Ok(scan);
        }
        scan.push_frame(root.clone(), Bound::Unbounded, Bound::Unbounded, true);
        scan.descend(true)?;
        scan.read_first_blocks()?;
        for slot in 0..scan.sources.len() {
            scan.insert(slot as u16)?;
        }
        Ok(scan)
    }

    /// A scan over a tree that is one leaf.
    pub(crate) fn over_leaf(
        store: &Arc<PageStore>,
        leaf: &GroupRef,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Result<Self> {
        let mut scan = Self::nowhere(store, bounds, direction);
        if !scan.done {
            scan.enter_leaf(leaf, true);
            scan.insert(LEAF)?;
        }
        Ok(scan)
    }

    /// A scan that returns nothing as it stands.
    pub(crate) fn nowhere(
        store: &Arc<PageStore>,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Self {
        let mut sources = Vec::with_capacity(SOURCES_EXPECTED);
        sources.push(Source::level(0, 0, 0, 0));
        TreeScan {
            store: store.clone(),
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            frames: Vec::new(),
            sources,
            order: Vec::with_capacity(SOURCES_EXPECTED),
            returned: false,
            done: is_empty(bounds.0, bounds.1),
        }
    }

    /// Makes the first source in the order a record to return; false at the end.
    fn find_next(&mut self) -> Result<bool> {
        if std::mem::take(&mut self.returned) {
            self.move_first()?;
        }
        while let Some(&slot) = self.order.first() {
            let source = &self.sources[usize::from(slot)];
            match source.head {
                Head::Record => match source.cursor.as_ref().map(GroupCursor::current_message) {
                    Some(Message::Put(_)) => {
                        self.returned = true;
                        return Ok(true);
                    }
                    _ => self.move_first()?,
                },
                Head::Start | Head::Pending => {
                    self.open(slot)?;
                    self.sort_first()?;
                }
                Head::Boundary => self.next_leaf()?,
                Head::End => {
                    self.order.remove(0);
                }
            }
        }
        Ok(false)
    }

    /// Moves the first source on and sorts it in again.
    #[inline]
    fn move_first(&mut self) -> Result<()> {
        self.advance(self.order[0])?;
        self.sort_first()
    }

    /// The first source in the order changed: puts it where it belongs.
    #[inline]
    fn sort_first(&mut self) -> Result<()> {
        let slot = self.order[0];
        if self.sources[usize::from(slot)].head != Head::End {
            let Some(&second) = self.order.get(1) else {
                return Ok(());
            };
            if self.compare(slot, second) == Ordering::Less {
                return Ok(());
            }
        }
        self.order.remove(0);
        self.insert(slot)
    }

    /// Sorts a source in; of two records with one key the older is moved on until all keys differ.
    fn insert(&mut self, mut slot: u16) -> Result<()> {
        while self.sources[usize::from(slot)].head != Head::End {
            match self
                .order
                .binary_search_by(|&other| self.compare(other, slot))
            {
                Err(place) => {
                    self.order.insert(place, slot);
                    break;
                }
                Ok(place) => {
                    let other = self.order[place];
                    if slot != LEAF && (other == LEAF || slot < other) {
                        self.order[place] = slot;
                        slot = other;
                    }
                    self.advance(slot)?;
                }
            }
        }
        Ok(())
    }

    /// Which of two sources comes first in the scan's direction; equal only for two records with one key.
    #[inline]
    fn compare(&self, a: u16, b: u16) -> Ordering {
        let (left, right) = (&self.sources[usize::from(a)], &self.sources[usize::from(b)]);
        if left.head == Head::Start || right.head == Head::Start {
            return (left.head != Head::Start)
                .cmp(&(right.head != Head::Start))
                .then(a.cmp(&b));
        }
        let by_key = left
            .prefix
            .cmp(&right.prefix)
            .then_with(|| left.key().cmp(right.key()));
        let by_key = match self.direction {
            Direction::Forward => by_key,
            Direction::Backward => by_key.reverse(),
        };
        match by_key {
            Ordering::Equal if left.head == Head::Record && right.head == Head::Record => {
                Ordering::Equal
            }
            Ordering::Equal => left
                .rank(self.direction)
                .cmp(&right.rank(self.direction))
                .then(a.cmp(&b)),
            unequal => unequal,
        }
    }

    /// Moves a source to its next record, or to what stands behind its last.
    #[inline]
    fn advance(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        if let Some(cursor) = &mut source.cursor {
            cursor.step()?;
        }
        self.after_step(slot)
    }

    /// The cursor of a source has moved: takes over where it stands.
    #[inline]
    fn after_step(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        if source
            .cursor
            .as_ref()
            .is_some_and(|cursor| cursor.current_key().is_some())
        {
            source.set_head(Head::Record);
            return Ok(());
        }
        source.cursor = None;
        if slot != LEAF {
            self.next_live_range(slot);
        } else if self.leaf_has_successor() {
            self.mark_boundary();
        } else {
            self.sources[usize::from(LEAF)].head = Head::End;
        }
        Ok(())
    }

    /// Reads the first block of a source.
    fn open(&mut self, slot: u16) -> Result<()> {
        self.prepare(slot)?;
        if let Some(cursor) = &mut self.sources[usize::from(slot)].cursor {
            cursor.start()?;
        }
        self.after_step(slot)
    }

    /// Gives a source its cursor, which has not read any block then.
    fn prepare(&mut self, slot: u16) -> Result<()> {
        let source = &mut self.sources[usize::from(slot)];
        if let (None, Some(group)) = (&source.cursor, &source.group) {
            let bounds = (as_slice(&source.lower), as_slice(&source.upper));
            source.cursor = Some(GroupCursor::prepare(
                &self.store,
                group,
                bounds,
                self.direction,
                ReadAhead::SCAN,
            )?);
        }
        Ok(())
    }

    /// Reads, at once, the first blocks of all sources that begin where the scan begins.
    fn read_first_blocks(&mut self) -> Result<()> {
        let start = match self.direction {
            Direction::Forward => as_slice(&self.lower),
            Direction::Backward => as_slice(&self.upper),
        };
        let key = match start {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
        };
        let at_once: Vec<u16> = (0..self.sources.len() as u16)
            .filter(|&slot| {
                let source = &self.sources[usize::from(slot)];
                source.head == Head::Start
                    || (source.head == Head::Pending && key == Some(&source.mark[..]))
            })
            .collect();
        if at_once.len() < 2 {
            return Ok(());
        }
        let mut wants = Vec::with_capacity(at_once.len());
        let mut wanting = Vec::with_capacity(at_once.len());
        for slot in at_once {
            self.prepare(slot)?;
            let cursor = self.sources[usize::from(slot)].cursor.as_ref();
            if let Some((group, (index, block))) =
                cursor.and_then(|c| Some((*c.group(), c.first_want()?)))
            {
                wants.push((group, index, block));
                wanting.push(slot);
            }
        }
        let blocks = self.store.blocks(&wants, ReadAhead::SCAN.fill_first)?;
        for (slot, block) in wanting.into_iter().zip(blocks) {
            if let Some(cursor) = &mut self.sources[usize::from(slot)].cursor {
                cursor.give_first(block);
            }
        }
        Ok(())
    }

    /// The scan has come to the end of the leaf's key range: goes on to the next leaf.
    fn next_leaf(&mut self) -> Result<()> {
        self.order.retain(|&slot| slot != LEAF);
        loop {
            let Some(frame) = self.frames.last_mut() else {
                return Ok(());
            };
            match self.direction {
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
            self.order.retain(|&slot| usize::from(slot) < from);
            self.sources.truncate(from);
            self.frames.pop();
        }
        let old = self.sources.len();
        self.descend(false)?;
        for slot in old..self.sources.len() {
            self.insert(slot as u16)?;
        }
        self.insert(LEAF)
    }

    /// Goes down from the last frame to a leaf; `seek` for the place where the scan begins.
    fn descend(&mut self, seek: bool) -> Result<()> {
        while let Some(frame) = self.frames.last() {
            match &frame.node.pivots[frame.pivot].child {
                Child::Leaf(group) => {
                    let group = *group;
                    self.enter_leaf(&group, seek);
                    break;
                }
                Child::Node { page, .. } => {
                    let node = load_child(&self.store, page, frame.node.height)?;
                    let (lower, upper) = frame.range(frame.pivot, frame.pivot);
                    let (lower, upper) = (lower.map(<[u8]>::to_vec), upper.map(<[u8]>::to_vec));
                    self.push_frame(node, lower, upper, seek);
                }
            }
        }
        Ok(())
    }

    /// Adds a node to the path, with a source for each of its levels.
    fn push_frame(
        &mut self,
        node: Arc<LoadedNode>,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
        seek: bool,
    ) {
        let pivot = match (self.direction, seek) {
            (Direction::Forward, false) => 0,
            (Direction::Backward, false) => node.pivots.len() - 1,
            (Direction::Forward, true) => match &self.lower {
                Bound::Unbounded => 0,
                Bound::Included(key) | Bound::Excluded(key) => node.pivot_of(key),
            },
            (Direction::Backward, true) => match &self.upper {
                Bound::Unbounded => node.pivots.len() - 1,
                Bound::Included(key) => node.pivot_of(key),
                Bound::Excluded(key) => node.pivot_before(key),
            },
        };
        let frame = self.frames.len();
        let sources_from = self.sources.len();
        for (level, segments) in node
            .levels
            .iter()
            .enumerate()
            .filter(|(_, segments)| !segments.is_empty())
        {
            let (segment, part) = match self.direction {
                Direction::Forward => {
                    let segment = segments.partition_point(|s| {
                        s.live.last().is_some_and(|l| usize::from(l.pivot) < pivot)
                    });
                    let part = segments.get(segment).map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) < pivot)
                    });
                    (segment, part)
                }
                Direction::Backward => {
                    let segment = segments.partition_point(|s| {
                        s.live
                            .first()
                            .is_some_and(|l| usize::from(l.pivot) <= pivot)
                    });
                    let last = segment.checked_sub(1).map(|last| &segments[last]);
                    let part = last.map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) <= pivot)
                    });
                    (segment, part)
                }
            };
            self.sources
                .push(Source::level(frame, level, segment, part));
        }
        self.frames.push(Frame {
            node,
            pivot,
            lower,
            upper,
            sources_from,
        });
        for slot in sources_from..self.sources.len() {
            self.next_live_range(slot as u16);
        }
    }

    /// Makes a buffer level's source stand before its next live range. Forward, `segment` and `part` count what was
    /// passed; backward, what is left.
    fn next_live_range(&mut self, slot: u16) {
        let source = &mut self.sources[usize::from(slot)];
        let frame = &self.frames[source.frame];
        let segments = &frame.node.levels[source.level];
        source.head = Head::End;
        loop {
            let segment;
            let (mut first, mut last);
            match self.direction {
                Direction::Forward => {
                    let Some(here) = segments.get(source.segment) else {
                        return;
                    };
                    let Some(part) = here.live.get(source.part) else {
                        source.segment += 1;
                        source.part = 0;
                        continue;
                    };
                    segment = here;
                    (first, last) = (usize::from(part.pivot), usize::from(part.pivot));
                    source.part += 1;
                    while here
                        .live
                        .get(source.part)
                        .is_some_and(|l| usize::from(l.pivot) == last + 1)
                    {
                        last += 1;
                        source.part += 1;
                    }
                }
                Direction::Backward => {
                    let Some(here) = source.segment.checked_sub(1).and_then(|i| segments.get(i))
                    else {
                        return;
                    };
                    let Some(part) = source.part.checked_sub(1).and_then(|i| here.live.get(i))
                    else {
                        source.segment -= 1;
                        let left = source.segment.checked_sub(1).and_then(|i| segments.get(i));
                        source.part = left.map_or(0, |s| s.live.len());
                        continue;
                    };
                    segment = here;
                    (first, last) = (usize::from(part.pivot), usize::from(part.pivot));
                    source.part -= 1;
                    while source.part > 0
                        && usize::from(here.live[source.part - 1].pivot) + 1 == first
                    {
                        first -= 1;
                        source.part -= 1;
                    }
                }
            }
            let (lower, upper) = frame.range(first, last);
            let (min, max) = (&segment.min[..], &segment.max[..]);
            let (scan_lower, scan_upper) = (as_slice(&self.lower), as_slice(&self.upper));
            let beyond = match self.direction {
                Direction::Forward => {
                    !lets_in_below(scan_upper, min) || is_empty(lower, scan_upper)
                }
                Direction::Backward => {
                    !lets_in_above(scan_lower, max) || is_empty(scan_lower, upper)
                }
            };
            if beyond {
                return;
            }
            // A segment has only what lies between its first and last key: the group may hold more.
            let lower = tighter_lower(tighter_lower(lower, scan_lower), Bound::Included(min));
            let upper = tighter_upper(tighter_upper(upper, scan_upper), Bound::Included(max));
            if is_empty(lower, upper) {
                continue;
            }
            let mark = match (self.direction, lower, upper) {
                (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => key,
                (Direction::Backward, _, Bound::Included(key) | Bound::Excluded(key)) => key,
                _ => &[],
            };
            source.mark.clear();
            source.mark.extend_from_slice(mark);
            source.lower = lower.map(<[u8]>::to_vec);
            source.upper = upper.map(<[u8]>::to_vec);
            source.group = Some(segment.group);
            source.cursor = None;
            source.set_head(Head::Pending);
            return;
        }
    }

    /// Makes the leaf's source stand before a leaf. Only the scan's ends can lie inside it.
    fn enter_leaf(&mut self, group: &GroupRef, seek: bool) {
        let goes_on = self.leaf_has_successor();
        let cut_start = seek;
        let cut_end = !goes_on;
        let (cut_lower, cut_upper) = match self.direction {
            Direction::Forward => (cut_start, cut_end),
            Direction::Backward => (cut_end, cut_start),
        };
        let lower = if cut_lower {
            self.lower.clone()
        } else {
            Bound::Unbounded
        };
        let upper = if cut_upper {
            self.upper.clone()
        } else {
            Bound::Unbounded
        };
        let source = &mut self.sources[usize::from(LEAF)];
        source.cursor = None;
        source.group = Some(*group);
        source.lower = lower;
        source.upper = upper;
        source.head = Head::Start;
    }

    /// Where the key range of the current leaf ends, in the scan's direction; none at the end of the tree.
    fn leaf_end(&self) -> Option<&[u8]> {
        self.frames
            .iter()
            .rev()
            .find_map(|frame| match self.direction {
                Direction::Forward => frame
                    .node
                    .pivots
                    .get(frame.pivot + 1)
                    .map(|next| &next.lower[..]),
                Direction::Backward => {
                    (frame.pivot > 0).then(|| &frame.node.pivots[frame.pivot].lower[..])
                }
            })
    }

    /// Whether records of the next leaf can be in the scan's range.
    fn leaf_has_successor(&self) -> bool {
        self.leaf_end().is_some_and(|end| match self.direction {
            Direction::Forward => lets_in_below(as_slice(&self.upper), end),
            Direction::Backward => !is_empty(as_slice(&self.lower), Bound::Excluded(end)),
        })
    }

    /// Makes the leaf's source stand at the end of its key range.
    fn mark_boundary(&mut self) {
        let mut mark = std::mem::take(&mut self.sources[usize::from(LEAF)].mark);
        mark.clear();
        mark.extend_from_slice(self.leaf_end().unwrap_or_default());
        let source = &mut self.sources[usize::from(LEAF)];
        source.mark = mark;
        source.set_head(Head::Boundary);
    }
}

impl Scan for TreeScan {
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.done {
            return Ok(None);
        }
        match self.find_next() {
            Ok(true) => {}
            Ok(false) => {
                self.done = true;
                return Ok(None);
            }
            Err(error) => {
                self.done = true;
                if mutant::active(56) {
                    return Ok(None);
                }
                return Err(error);
            }
        }
        let source = &self.sources[usize::from(self.order[0])];
        Ok(source
            .cursor
            .as_ref()
            .and_then(|cursor| match cursor.current_message() {
                Message::Put(value) => Some((cursor.current_key()?, value)),
                _ => None,
            }))
    }
}
