//! The path of a scan, from the root to the current leaf, and the ranges of its sources.
//!
//! No range owns a key. An [`Edge`] names where an end of a source's range comes from: the scan's
//! bounds, a pivot of a node on the path, or the segment. All of these live as long as the path.

use std::cmp::Ordering;
use std::ops::{Bound, Deref};
use std::sync::Arc;

use terrapin_base::Share;
use terrapin_structure::{Direction, KeyBounds};

use crate::load::LoadedNode;
use crate::node::Segment;
use terrapin_runs::bounds::{
    as_slice, is_empty, is_tighter_lower, is_tighter_upper, lets_in_above, lets_in_below,
};

/// The index of the leaf among the sources. Buffer levels follow, from the root's newest down.
pub(super) const LEAF: u16 = 0;

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
pub(super) struct PathFrame {
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
    pub(super) frames: Vec<PathFrame>,
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

/// Finds the pivots without a gap at the start of a list, which may descend. Returns the first, the
/// last, and their number.
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

/// Inverts a head in a backward scan, so that a smaller head comes first.
#[inline]
pub(super) fn in_order(direction: Direction, head: u64) -> u64 {
    match direction {
        Direction::Forward => head,
        Direction::Backward => !head,
    }
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

    /// The lower bound at an edge.
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

    /// The upper bound at an edge.
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
    /// searched (see `Source::part` in `source`).
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

    /// The start of the current leaf's key range in the scan's direction, or that of the scan's
    /// range; `None` if both begin with the tree.
    pub(super) fn start(&self) -> Option<&[u8]> {
        let mut branches = self.branches().rev();
        let of_leaf = branches.find_map(|(node, pivot)| match self.direction {
            Direction::Forward => (pivot > 0).then(|| &node.pivots[pivot].lower[..]),
            Direction::Backward => node.pivots.get(pivot + 1).map(|next| &next.lower[..]),
        });
        let of_scan = match self.direction {
            Direction::Forward => &self.lower,
            Direction::Backward => &self.upper,
        };
        of_leaf.or(match of_scan {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        })
    }

    /// Whether no key is in the scan's range.
    pub(super) fn is_empty(&self) -> bool {
        is_empty(as_slice(&self.lower), as_slice(&self.upper))
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
