//! The sources of a scan and the path that they belong to: the current item of each source, and the
//! records that it may show.
//!
//! No source owns a key. The ends of a source's range are given by where they come from ([`Edge`]):
//! the scan's bounds, pivots of nodes on the path, or the segment. All of these live as long as the
//! path.

use std::cmp::Ordering;
use std::ops::{Bound, Deref, Range};
use std::sync::Arc;

use terrapin_base::{Share, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::block::{Block, RecordPlace};
use terrapin_structure::{Batch, Direction, KeyBounds};

use crate::bounds::{
    as_slice, is_empty, is_tighter_lower, is_tighter_upper, lets_in_above, lets_in_below,
};
use crate::load::LoadedNode;
use crate::node::Segment;
use crate::walk::{BlockWalk, Pace};

use super::ahead::Ahead;

/// The next item of a source. [`Source::rank`] orders different kinds at one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Nothing was read. The first key is not known at all.
    Start,
    /// Nothing was read. No record comes before the start of the range.
    Pending,
    /// A record.
    Record,
    /// The next block was not read. None of its records comes before the edge of the walk.
    Between,
    /// The leaf is used up: its key range ends here.
    Boundary,
    /// No more records.
    End,
}

/// The index of the leaf among the sources. Buffer levels follow, from the root's newest down.
pub(super) const LEAF: u16 = 0;

/// Records of at least this mean length are lent from their block. Decoding a record again costs as
/// much as copying a quarter of these bytes.
const LENT_BYTES_MIN: usize = 512;

/// Where an end of a source's range comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// The range has no end on this side.
    Open,
    /// The scan's bound.
    Scan,
    /// The lower bound of a pivot of a node on the path. It is inclusive as a lower end and
    /// exclusive as an upper end.
    Pivot { frame: usize, pivot: usize },
    /// The first or last key of the segment, inclusive.
    Segment,
}

/// A sorted run of records: the current leaf, or one buffer level of a node on the path.
pub(super) struct Source {
    pub(super) head: Head,
    pub(super) walk: Option<BlockWalk>,
    /// How far the walks before the current one went.
    pub(super) pace: Pace,
    /// The block of the current record.
    pub(super) block: Option<Arc<Block>>,
    /// The number of the current record in its block, its place there, and the head of its key as
    /// [`Path::in_order`] returns it. `following` counts the records behind it in the block, inside
    /// the range.
    pub(super) at: usize,
    pub(super) place: RecordPlace,
    pub(super) key_head: u64,
    pub(super) following: usize,
    pub(super) range: LiveRange,
    /// Index in the segment's live parts from which the next live range is searched. It counts
    /// passed parts in a forward scan, and remaining parts in a backward scan.
    pub(super) part: usize,
    /// What the source reads ahead, once it has returned much.
    pub(super) ahead: Option<Box<Ahead>>,
}

/// The live range that a source is in or before.
#[derive(Clone, Copy)]
pub(super) struct LiveRange {
    /// The two ends of the range.
    pub(super) lower: Edge,
    pub(super) upper: Edge,
    /// Node, level and segment, for a buffer level. `segment` counts passed segments in a forward
    /// scan, and remaining segments in a backward scan. `Source::part` does the same.
    pub(super) frame: usize,
    pub(super) level: usize,
    pub(super) segment: usize,
}

/// A node on the path, kept in memory. All scans share the root, so a stripe's share keeps it.
pub(super) enum PathNode {
    Root(Arc<Share<LoadedNode>>),
    Below(Arc<LoadedNode>),
}

impl Deref for PathNode {
    type Target = Arc<LoadedNode>;

    #[inline]
    fn deref(&self) -> &Arc<LoadedNode> {
        match self {
            PathNode::Root(node) => node,
            PathNode::Below(node) => node,
        }
    }
}

/// A node on the path.
pub(super) struct Frame {
    pub(super) node: PathNode,
    /// The pivot through which the path goes.
    pub(super) pivot: usize,
    /// Index of the node's first source.
    pub(super) sources_from: usize,
}

/// A key in two pieces: a common prefix and the rest, or the whole key and nothing.
pub(super) type Pieces<'a> = (&'a [u8], &'a [u8]);

/// The bounds and direction of a scan, and the nodes from the root to the current leaf.
pub(super) struct Path {
    pub(super) direction: Direction,
    pub(super) lower: Bound<Vec<u8>>,
    pub(super) upper: Bound<Vec<u8>>,
    pub(super) frames: Vec<Frame>,
}

/// Compares keys that are each given in two pieces.
pub(super) fn compare_pieces(a: Pieces<'_>, b: Pieces<'_>) -> Ordering {
    let (mut a, mut b) = ([a.0, a.1], [b.0, b.1]);
    loop {
        if a[0].is_empty() {
            a = [a[1], &[]];
        }
        if b[0].is_empty() {
            b = [b[1], &[]];
        }
        let common = a[0].len().min(b[0].len());
        if common == 0 {
            return a[0].len().cmp(&b[0].len());
        }
        let ((first_a, rest_a), (first_b, rest_b)) = (a[0].split_at(common), b[0].split_at(common));
        match first_a.cmp(first_b) {
            Ordering::Equal => (a[0], b[0]) = (rest_a, rest_b),
            unequal => return unequal,
        }
    }
}

/// Returns the first of some pivots, in either order, the last that follows it without a gap, and
/// the number of pivots from first to last.
fn run_of_pivots(
    mut pivots: impl DoubleEndedIterator<Item = u16> + Clone,
    count: usize,
) -> Option<(usize, usize, usize)> {
    let whole = pivots.clone().next_back()?;
    let first = pivots.next()?;
    // The pivots of live parts ascend. If there are as many as numbers in between, there is no gap.
    if usize::from(first.abs_diff(whole)) + 1 == count {
        return Some((usize::from(first), usize::from(whole), count));
    }
    let (mut last, mut run) = (first, 1);
    for pivot in pivots {
        if pivot.abs_diff(last) != 1 {
            break;
        }
        last = pivot;
        run += 1;
    }
    Some((usize::from(first), usize::from(last), run))
}

impl Source {
    pub(super) fn new(frame: usize, level: usize, segment: usize, part: usize) -> Self {
        Source {
            head: Head::End,
            walk: None,
            pace: Pace::default(),
            block: None,
            at: 0,
            place: RecordPlace::default(),
            key_head: 0,
            following: 0,
            range: LiveRange {
                lower: Edge::Open,
                upper: Edge::Open,
                frame,
                level,
                segment,
            },
            part,
            ahead: None,
        }
    }

    /// Starts reading ahead, if the scan is long enough and memory is not short.
    pub(super) fn go_ahead(&mut self, source_index: u16, path: &Path, store: &PageStore) {
        let walk = self.walk.as_ref().filter(|walk| walk.wants_stream());
        let Some(walk) = walk.filter(|_| self.ahead.is_none()) else {
            return;
        };
        let passed = walk.pace().scan_bytes();
        let ahead = match source_index {
            LEAF => Ahead::of_leaf(path, passed, store),
            _ => Ahead::of_range(path, self.range, self.part, passed, store),
        };
        self.ahead = ahead.map(Box::new);
    }

    /// Reads ahead in the groups behind the current one, if all of the current one is being read
    /// and there is room.
    pub(super) fn read_ahead(&mut self, path: &Path, store: &PageStore) {
        if let (Some(ahead), Some(walk)) = (&mut self.ahead, &self.walk)
            && walk.is_sent()
            && ahead.stream.has_room()
        {
            // Ignores errors: the damage is ahead, and is reported when the scan reaches it.
            let _ = ahead.go_on(path, store);
        }
    }

    /// Starts reads of this group's blocks, if the source reads ahead.
    pub(super) fn send(&mut self, store: &PageStore) {
        if let (Some(ahead), Some(walk)) = (&mut self.ahead, &mut self.walk) {
            // Ignores errors, as in `read_ahead`.
            let _ = walk.send(store, &mut ahead.stream);
        }
    }

    /// Ends the walk over a group.
    pub(super) fn end_walk(&mut self) {
        if let Some(walk) = self.walk.take() {
            self.pace = walk.pace();
        }
    }

    /// The current record; `None` if the source is at another item.
    #[inline]
    pub(super) fn record(&self) -> Option<(&Block, RecordPlace)> {
        match (self.head, &self.block) {
            (Head::Record, Some(block)) => Some((block, self.place)),
            _ => None,
        }
    }

    /// Moves to the first of these records of a block.
    #[inline]
    pub(super) fn enter(&mut self, block: Arc<Block>, records: Range<usize>, direction: Direction) {
        let at = match direction {
            Direction::Forward => records.start,
            Direction::Backward => records.end - 1,
        };
        (self.place, self.key_head) = look(&block, at, direction);
        self.block = Some(block);
        self.head = Head::Record;
        self.at = at;
        self.following = records.len() - 1;
    }

    /// Moves to the next record of the block, if there is one.
    #[inline]
    pub(super) fn step(&mut self, direction: Direction) -> bool {
        let (Head::Record, Some(block), 1..) = (self.head, &self.block, self.following) else {
            return false;
        };
        self.at = step(direction, self.at);
        (self.place, self.key_head) = look(block, self.at, direction);
        self.following -= 1;
        true
    }

    /// Appends the current record to a batch, and the records behind it in the block whose heads
    /// are below `limit`. It passes deletes, and leaves values out if `KEYS` is set.
    ///
    /// Returns true if it stopped at a record with a head at or above the limit. Otherwise the
    /// current record is the last one appended. It is a function of its own so that the loop gets
    /// the registers.
    #[inline(never)]
    pub(super) fn copy_run<const KEYS: bool>(
        &mut self,
        limit: u64,
        direction: Direction,
        batch: &mut Batch,
    ) -> bool {
        let Some(block) = &self.block else {
            return false;
        };
        let mut prefix = block.prefix();
        if mutant::active(65) {
            prefix = &prefix[..prefix.len().saturating_sub(1)];
        }
        let (word, bytes) = (block.prefix_word(), block.bytes());
        let (mut place, mut head) = (self.place, self.key_head);
        let (mut at, mut following) = (self.at, self.following);
        let came = loop {
            if !place.is_delete {
                let record = match KEYS {
                    true => &bytes[place.suffix()],
                    false => &bytes[place.suffix_and_value()],
                };
                batch.push_behind(prefix, word, record, place.suffix().len());
            }
            if following == 0 || batch.is_full() {
                break false;
            }
            following -= 1;
            at = step(direction, at);
            (place, head) = look(block, at, direction);
            if head >= limit {
                break true;
            }
        };
        (self.place, self.key_head) = (place, head);
        (self.at, self.following) = (at, following);
        came
    }

    /// Like [`Source::copy_run`], but the records stay in their block. Returns `None` if copies are
    /// cheaper: for small records, which the reader would have to decode again one by one, and for
    /// a block with deletes.
    pub(super) fn lend_run(
        &mut self,
        limit: u64,
        direction: Direction,
        batch: &mut Batch,
    ) -> Option<bool> {
        let block = self.block.as_ref()?;
        let are_large = block.bytes().len() >= LENT_BYTES_MIN * block.len();
        if !are_large || block.has_deletes() {
            return None;
        }
        let most = batch.room().min(self.following + 1);
        let (first, mut count) = (self.at, 1);
        let came = loop {
            if self.following == 0 || count == most {
                break false;
            }
            self.following -= 1;
            self.at = step(direction, self.at);
            (self.place, self.key_head) = look(block, self.at, direction);
            if self.key_head >= limit {
                break true;
            }
            count += 1;
        };
        batch.lend(block, first, count, direction);
        Some(came)
    }

    /// The order of different items at one key. A source that may begin at a key must be opened
    /// before the record there is returned. A leaf's range ends before its upper bound, which is
    /// exclusive, and behind its lower bound, which is inclusive.
    #[inline]
    pub(super) fn rank(&self, direction: Direction) -> u8 {
        match (self.head, direction) {
            (Head::Start | Head::Pending | Head::Between, _) => 0,
            (Head::Boundary, Direction::Forward) => 1,
            (Head::Record, _) => 2,
            (Head::Boundary, Direction::Backward) => 3,
            (Head::End, _) => 4,
        }
    }
}

/// The next index in a direction. The caller makes sure that there is one.
#[inline]
fn step(direction: Direction, at: usize) -> usize {
    match direction {
        Direction::Forward => at + 1,
        Direction::Backward => at - 1,
    }
}

/// Inverts a head in a backward scan, so that a smaller head comes first.
#[inline]
fn in_order(direction: Direction, head: u64) -> u64 {
    match direction {
        Direction::Forward => head,
        Direction::Backward => !head,
    }
}

/// The place of a record of a block, and the head of its key.
#[inline(always)]
fn look(block: &Block, at: usize, direction: Direction) -> (RecordPlace, u64) {
    let (place, head) = block.look(at);
    (place, in_order(direction, head))
}

impl Path {
    /// Inverts a head in a backward scan, so that a smaller head comes first.
    #[inline]
    pub(super) fn in_order(&self, head: u64) -> u64 {
        in_order(self.direction, head)
    }

    /// Orders keys in the scan's direction.
    #[inline]
    pub(super) fn compare(&self, a: Pieces<'_>, b: Pieces<'_>) -> Ordering {
        match self.direction {
            Direction::Forward => compare_pieces(a, b),
            Direction::Backward => compare_pieces(b, a),
        }
    }

    /// The ends of the range from pivot `first` to pivot `last` of a node on the path.
    pub(super) fn edges(&self, frame: usize, first: usize, last: usize) -> (Edge, Edge) {
        let (mut lower, mut upper) = (Edge::Open, Edge::Open);
        let (mut first, mut last) = (first, last);
        for (frame, on_path) in self.frames[..=frame].iter().enumerate().rev() {
            if lower == Edge::Open && first > 0 {
                let pivot = first;
                lower = Edge::Pivot { frame, pivot };
            }
            if upper == Edge::Open && last + 1 < on_path.node.pivots.len() {
                let pivot = last + 1;
                upper = Edge::Pivot { frame, pivot };
            }
            let Some(above) = frame.checked_sub(1) else {
                break;
            };
            (first, last) = (self.frames[above].pivot, self.frames[above].pivot);
        }
        (lower, upper)
    }

    fn pivot(&self, frame: usize, pivot: usize) -> &[u8] {
        &self.frames[frame].node.pivots[pivot].lower
    }

    /// The lower bound that an edge stands for.
    pub(super) fn lower_at<'a>(
        &'a self,
        edge: Edge,
        segment: Option<&'a Segment>,
    ) -> Bound<&'a [u8]> {
        match (edge, segment) {
            (Edge::Scan, _) => as_slice(&self.lower),
            (Edge::Pivot { frame, pivot }, _) => Bound::Included(self.pivot(frame, pivot)),
            (Edge::Segment, Some(segment)) => Bound::Included(&segment.min),
            (Edge::Open | Edge::Segment, _) => Bound::Unbounded,
        }
    }

    /// The upper bound that an edge stands for.
    pub(super) fn upper_at<'a>(
        &'a self,
        edge: Edge,
        segment: Option<&'a Segment>,
    ) -> Bound<&'a [u8]> {
        match (edge, segment) {
            (Edge::Scan, _) => as_slice(&self.upper),
            (Edge::Pivot { frame, pivot }, _) => Bound::Excluded(self.pivot(frame, pivot)),
            (Edge::Segment, Some(segment)) => Bound::Included(&segment.max),
            (Edge::Open | Edge::Segment, _) => Bound::Unbounded,
        }
    }

    /// The segment of a buffer level's live range, and its number.
    pub(super) fn segment_of(&self, range: LiveRange) -> Option<(&LoadedNode, usize, &Segment)> {
        let node = &self.frames.get(range.frame)?.node;
        let number = match self.direction {
            Direction::Forward => range.segment,
            Direction::Backward => range.segment.checked_sub(1)?,
        };
        Some((node, number, node.levels.get(range.level)?.get(number)?))
    }

    /// The range of a source.
    pub(super) fn bounds_of(&self, source_index: u16, range: LiveRange) -> KeyBounds<'_> {
        if source_index != LEAF {
            return self.bounds_of_range(range);
        }
        (
            self.lower_at(range.lower, None),
            self.upper_at(range.upper, None),
        )
    }

    /// The bounds of a buffer level's live range.
    pub(super) fn bounds_of_range(&self, range: LiveRange) -> KeyBounds<'_> {
        let segment = self.segment_of(range).map(|(_, _, segment)| segment);
        (
            self.lower_at(range.lower, segment),
            self.upper_at(range.upper, segment),
        )
    }

    /// Records of a buffer level for each record of the leaves below. Only leaves for which the
    /// level has records count.
    pub(super) fn density_of_level(&self, range: LiveRange) -> f64 {
        let node = &self.frames[range.frame].node;
        let (mut records, mut below, mut last) = (0u64, 0u64, None);
        for part in node.levels[range.level].iter().flat_map(|s| &s.live) {
            records += u64::from(part.records);
            let pivot = usize::from(part.pivot);
            if last.replace(pivot) != Some(pivot) {
                below += node.pivots[pivot].child.records();
            }
        }
        records as f64 / below.max(1) as f64
    }

    /// Key and value bytes of a live range. The search for the next range starts at `behind`. If
    /// another range of the same segment comes before, the search for this one started at `before`.
    pub(super) fn live_bytes(&self, range: LiveRange, before: Option<usize>, behind: usize) -> u64 {
        let live = self.segment_of(range).map(|(_, _, segment)| &*segment.live);
        let live = live.unwrap_or_default();
        let parts = match self.direction {
            Direction::Forward => before.unwrap_or(0)..behind,
            Direction::Backward => behind..before.unwrap_or(live.len()),
        };
        let parts = live.get(parts).unwrap_or_default();
        parts.iter().map(|part| part.bytes).sum()
    }

    /// The next live range of a buffer level, and the index from which the one behind it is
    /// searched (see [`Source::part`]).
    pub(super) fn next_live_range(
        &self,
        mut range: LiveRange,
        mut part: usize,
    ) -> Option<(LiveRange, usize)> {
        let segments = &self.frames[range.frame].node.levels[range.level];
        loop {
            let segment;
            let (first, last);
            match self.direction {
                Direction::Forward => {
                    let here = segments.get(range.segment)?;
                    let parts = here.live.get(part..).unwrap_or_default();
                    let run = run_of_pivots(parts.iter().map(|part| part.pivot), parts.len());
                    let Some((begin, end, count)) = run else {
                        range.segment += 1;
                        part = 0;
                        continue;
                    };
                    segment = here;
                    (first, last) = (begin, end);
                    part += count;
                }
                Direction::Backward => {
                    let here = segments.get(range.segment.checked_sub(1)?)?;
                    let parts = here.live.get(..part).unwrap_or_default();
                    let run = run_of_pivots(parts.iter().rev().map(|part| part.pivot), parts.len());
                    let Some((end, begin, count)) = run else {
                        range.segment -= 1;
                        let left = range.segment.checked_sub(1).and_then(|i| segments.get(i));
                        part = left.map_or(0, |s| s.live.len());
                        continue;
                    };
                    segment = here;
                    (first, last) = (begin, end);
                    part -= count;
                }
            }
            let (lower, upper) = self.edges(range.frame, first, last);
            let pivots = (self.lower_at(lower, None), self.upper_at(upper, None));
            if self.is_beyond(pivots, segment) {
                return None;
            }
            // The group may hold more keys, but only those between the segment's first and last key
            // belong to the segment.
            let mut low = (pivots.0, lower);
            let mut high = (pivots.1, upper);
            for edge in [Edge::Segment, Edge::Scan] {
                let (below, above) = (
                    self.lower_at(edge, Some(segment)),
                    self.upper_at(edge, Some(segment)),
                );
                if is_tighter_lower(below, low.0) {
                    low = (below, edge);
                }
                if is_tighter_upper(above, high.0) {
                    high = (above, edge);
                }
            }
            if !is_empty(low.0, high.0) {
                (range.lower, range.upper) = (low.1, high.1);
                return Some((range, part));
            }
        }
    }

    /// The next key of a source.
    pub(super) fn key<'a>(&'a self, source_index: u16, source: &'a Source) -> Pieces<'a> {
        match source.head {
            Head::Record => match source.record() {
                Some((block, place)) => (block.prefix(), &block.bytes()[place.suffix()]),
                None => (&[], &[]),
            },
            Head::Between => source.walk.as_ref().map_or((&[], &[]), BlockWalk::edge),
            Head::Boundary => (self.leaf_end().unwrap_or_default(), &[]),
            Head::Start | Head::Pending | Head::End => {
                let (lower, upper) = self.bounds_of(source_index, source.range);
                let begin = match self.direction {
                    Direction::Forward => lower,
                    Direction::Backward => upper,
                };
                match begin {
                    Bound::Included(key) | Bound::Excluded(key) => (key, &[]),
                    Bound::Unbounded => (&[], &[]),
                }
            }
        }
    }

    /// The nodes from the root down, each with the child through which the path goes.
    fn branches(&self) -> impl DoubleEndedIterator<Item = (&LoadedNode, usize)> {
        self.frames.iter().map(|frame| (&**frame.node, frame.pivot))
    }

    /// The end of the current leaf's key range in the scan's direction; `None` at the end of the
    /// tree.
    pub(super) fn leaf_end(&self) -> Option<&[u8]> {
        self.end_of(self.branches())
    }

    /// The end of the key range of the leaf to which these branches lead, from the root down.
    fn end_of<'a>(
        &self,
        branches: impl DoubleEndedIterator<Item = (&'a LoadedNode, usize)>,
    ) -> Option<&'a [u8]> {
        branches
            .rev()
            .find_map(|(node, pivot)| match self.direction {
                Direction::Forward => node.pivots.get(pivot + 1).map(|next| &next.lower[..]),
                Direction::Backward => (pivot > 0).then(|| &node.pivots[pivot].lower[..]),
            })
    }

    /// Whether records of the leaf behind the current one can be in the scan's range.
    pub(super) fn leaf_has_successor(&self) -> bool {
        self.goes_on_behind(self.branches())
    }

    /// Whether records of the leaf behind the one to which these branches lead can be in the scan's
    /// range.
    pub(super) fn goes_on_behind<'a>(
        &self,
        branches: impl DoubleEndedIterator<Item = (&'a LoadedNode, usize)>,
    ) -> bool {
        self.end_of(branches)
            .is_some_and(|end| match self.direction {
                Direction::Forward => lets_in_below(as_slice(&self.upper), end),
                Direction::Backward => !is_empty(as_slice(&self.lower), Bound::Excluded(end)),
            })
    }

    /// Whether a key is inside a bound of the scan's direction.
    pub(super) fn lets_in(&self, until: Bound<&[u8]>, key: Pieces<'_>) -> bool {
        let (bound, included) = match until {
            Bound::Unbounded => return true,
            Bound::Included(bound) => (bound, true),
            Bound::Excluded(bound) => (bound, false),
        };
        match self.compare(key, (bound, &[])) {
            Ordering::Less => true,
            Ordering::Equal => included,
            Ordering::Greater => false,
        }
    }

    /// Whether a segment's records in this range are behind the scan's end. Then all later records
    /// of its level are too.
    pub(super) fn is_beyond(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        segment: &Segment,
    ) -> bool {
        match self.direction {
            Direction::Forward => {
                let end = as_slice(&self.upper);
                end != Bound::Unbounded
                    && (!lets_in_below(end, &segment.min) || is_empty(lower, end))
            }
            Direction::Backward => {
                let end = as_slice(&self.lower);
                end != Bound::Unbounded
                    && (!lets_in_above(end, &segment.max) || is_empty(end, upper))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_pieces_compare_like_whole_keys() {
        let keys: [&[u8]; 9] = [
            b"", b"a", b"ab", b"aba", b"abab", b"abb", b"b", b"ba", b"bab",
        ];
        for a in keys {
            for b in keys {
                for i in 0..=a.len() {
                    for j in 0..=b.len() {
                        assert_eq!(
                            compare_pieces(a.split_at(i), b.split_at(j)),
                            a.cmp(b),
                            "{a:?} {i} {b:?} {j}"
                        );
                    }
                }
            }
        }
    }
}
