//! Nodes in memory: what a node page holds, with what makes its search quick, shared through the page cache.

use std::ops::{Deref, Range};
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::heads::{Prefix, equal_heads, head};
use terrapin_pages::{GroupHandle, Handle, PageKind, PageRef, PageStore, SegmentHandle};

use crate::node::{Child, Node, Segment};

/// Most levels of nodes that a tree can have: with four children a node and one record a leaf, 16 levels hold 4·10⁹ leaves.
pub(crate) const HEIGHT_MAX: u16 = 16;

/// A decoded node, with its pivots and segments laid out for point lookups.
#[derive(Debug)]
pub(crate) struct LoadedNode {
    node: Node,
    /// Bytes that all pivots' lower bounds, but the first pivot's, begin with.
    common: Prefix,
    /// Of each pivot but the first: the eight bytes of the lower bound behind `common`, big-endian, filled up with zeros.
    heads: Box<[u64]>,
    /// For each pivot and level, in this order: the segments with something for the pivot, as a half-open range of all segments.
    routes: Box<[(u32, u32)]>,
    /// How many segments lie in the levels above each.
    level_starts: Box<[u32]>,
    /// What the bounds of all segments begin with.
    segment_common: Prefix,
    /// Of each segment, level after level: the heads of its least and greatest key behind `segment_common`.
    segment_heads: Box<[(u64, u64)]>,
    /// Of each child that is a node.
    child_handles: Box<[Handle<LoadedNode>]>,
    /// Of each child that is a leaf.
    leaf_handles: Box<[GroupHandle]>,
    /// Of each segment, level after level.
    segment_handles: Box<[SegmentHandle]>,
}

impl Deref for LoadedNode {
    type Target = Node;

    #[inline]
    fn deref(&self) -> &Node {
        &self.node
    }
}

impl LoadedNode {
    /// Lays a node out for lookups.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when live ranges within a level are not in the order of their pivots.
    pub(crate) fn new(node: Node) -> Result<Self> {
        let pivots = node.pivots.len();
        if pivots == 0 || pivots > usize::from(u16::MAX) {
            return Err(Error::corrupt("impossible number of pivots").with("pivots", pivots));
        }
        let lowers = node.pivots.iter().skip(1).map(|p| &p.lower[..]);
        let common = match (lowers.clone().next(), lowers.clone().next_back()) {
            (Some(first), Some(last)) => first.iter().zip(last).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let prefix = node.pivots.get(1).and_then(|p| p.lower.get(..common));
        let prefix = Prefix::new(prefix.unwrap_or_default());
        let heads = lowers
            .map(|lower| head(lower.get(common..).unwrap_or_default()))
            .collect();
        let levels = node.levels.len();
        let mut routes = vec![(0, 0); pivots * levels];
        let mut level_starts = Vec::with_capacity(levels);
        let mut level_start = 0;
        for (level, segments) in node.levels.iter().enumerate() {
            level_starts.push(level_start);
            let mut reached = 0;
            for (number, segment) in segments.iter().enumerate() {
                if segment.live.first().is_none_or(|part| part.pivot < reached) {
                    return Err(Error::corrupt("live ranges out of order").with("level", level));
                }
                reached = segment.live.last().map_or(reached, |part| part.pivot);
                let behind = u16::try_from(number + 1)
                    .map_err(|_| Error::corrupt("too many segments in a level"))?;
                let behind = level_start + u32::from(behind);
                for part in &segment.live {
                    let route = usize::from(part.pivot) * levels + level;
                    let Some(route) = routes.get_mut(route) else {
                        return Err(Error::corrupt("live range of a pivot that is not there")
                            .with("pivot", part.pivot));
                    };
                    match route {
                        (from, to) if from == to => *route = (behind - 1, behind),
                        (_, to) => *to = behind,
                    }
                }
            }
            level_start += segments.len() as u32;
        }
        let leaves = node
            .pivots
            .iter()
            .filter(|p| matches!(p.child, Child::Leaf(_)))
            .count();
        // Children are of one kind (rule 1), so a pivot's number finds its handle in either array.
        if leaves != 0 && leaves != pivots {
            return Err(Error::corrupt("children of both kinds"));
        }
        let mut keys = node.levels.iter().flatten().flat_map(|s| [&s.min, &s.max]);
        let mut segment_common: Vec<u8> = keys.next().map_or(Vec::new(), |key| key.to_vec());
        for key in keys {
            let same = segment_common.iter().zip(key).take_while(|(a, b)| a == b);
            segment_common.truncate(same.count());
        }
        let behind = |key: &[u8]| head(key.get(segment_common.len()..).unwrap_or_default());
        let segment_heads = node
            .levels
            .iter()
            .flatten()
            .map(|segment| (behind(&segment.min), behind(&segment.max)))
            .collect();
        let segments = level_start as usize;
        Ok(LoadedNode {
            node,
            common: prefix,
            heads,
            segment_common: Prefix::new(&segment_common),
            segment_heads,
            routes: routes.into(),
            level_starts: level_starts.into(),
            child_handles: (leaves..pivots).map(|_| Handle::default()).collect(),
            leaf_handles: (0..leaves).map(|_| GroupHandle::default()).collect(),
            segment_handles: (0..segments).map(|_| SegmentHandle::default()).collect(),
        })
    }

    /// The direct way to the child of a pivot, which is a leaf. Panics when it is a node.
    #[inline]
    pub(crate) fn leaf_handle(&self, pivot: usize) -> &GroupHandle {
        &self.leaf_handles[pivot]
    }

    /// The direct way to the group of a segment. Panics when there is no such segment.
    #[inline]
    pub(crate) fn segment_handle(&self, level: usize, segment: usize) -> &GroupHandle {
        self.segment_handles[self.level_starts[level] as usize + segment].group()
    }

    /// The pivot whose key range holds a key; the first for keys below all others.
    #[inline]
    pub(crate) fn pivot_of(&self, key: &[u8]) -> usize {
        self.lowers_before(key, |lower| lower <= key)
    }

    /// The pivot whose key range holds the keys just below a key.
    #[inline]
    pub(crate) fn pivot_before(&self, key: &[u8]) -> usize {
        self.lowers_before(key, |lower| lower < key)
    }

    /// How many lower bounds, without the first pivot's, come before a key; `comes_before` decides where heads are equal.
    #[inline]
    fn lowers_before(&self, key: &[u8], comes_before: impl Fn(&[u8]) -> bool) -> usize {
        let wanted = match self.common.strip(key) {
            Ok(suffix) => head(suffix),
            Err(std::cmp::Ordering::Less) => return 0,
            Err(_) => return self.heads.len(),
        };
        let same = equal_heads(&self.heads, wanted);
        let pivots = &self.node.pivots[same.start + 1..same.end + 1];
        same.start + pivots.partition_point(|p| comes_before(&p.lower))
    }

    /// How many segments of a level end before a key.
    pub(crate) fn segments_below(&self, level: usize, key: &[u8]) -> usize {
        self.segments_before(level, key, |&(_, max)| max, |s| s.max[..] < *key)
    }

    /// How many segments of a level begin at a key or before it.
    pub(crate) fn segments_from(&self, level: usize, key: &[u8]) -> usize {
        self.segments_before(level, key, |&(min, _)| min, |s| s.min[..] <= *key)
    }

    /// How many segments of a level have an end before a key, by its head; `comes_before` decides where heads are equal.
    #[inline]
    fn segments_before(
        &self,
        level: usize,
        key: &[u8],
        end: impl Fn(&(u64, u64)) -> u64,
        comes_before: impl Fn(&Segment) -> bool,
    ) -> usize {
        let segments = &self.node.levels[level];
        let wanted = match self.segment_common.strip(key) {
            Ok(suffix) => head(suffix),
            Err(std::cmp::Ordering::Less) => return 0,
            Err(_) => return segments.len(),
        };
        let heads = self.heads_of(level);
        let from = heads.partition_point(|heads| end(heads) < wanted);
        let same = heads[from..].partition_point(|heads| end(heads) == wanted);
        from + segments[from..from + same].partition_point(comes_before)
    }

    /// The heads of a level's segments.
    #[inline]
    fn heads_of(&self, level: usize) -> &[(u64, u64)] {
        let first = self.level_starts[level] as usize;
        &self.segment_heads[first..][..self.node.levels[level].len()]
    }

    /// The segments with something for a pivot, as half-open ranges of all segments, level after level.
    #[inline]
    fn routes_of(&self, pivot: usize) -> &[(u32, u32)] {
        let levels = self.level_starts.len();
        &self.routes[pivot * levels..][..levels]
    }

    /// The segments of a level that have something for a pivot, in key order.
    #[inline]
    pub(crate) fn segments_for(&self, level: usize, pivot: usize) -> &[Segment] {
        match self.routes_of(pivot)[level] {
            (from, to) if from == to => &[],
            (from, to) => {
                let first = self.level_starts[level];
                &self.node.levels[level][(from - first) as usize..(to - first) as usize]
            }
        }
    }

    /// The head that [`LoadedNode::next_candidate`] looks for; none when no segment here can hold the key.
    #[inline]
    pub(crate) fn segment_head(&self, key: &[u8]) -> Option<u64> {
        self.segment_common.strip(key).ok().map(head)
    }

    /// The next segment that may hold a key, which lies in the range of `pivot`, and the direct way to it: of the one segment of each
    /// level from `level` on that can hold it, the first whose outline does not deny it. `level` becomes the next to look at.
    /// `wanted` is the key's [`LoadedNode::segment_head`].
    #[inline]
    pub(crate) fn next_candidate(
        &self,
        level: &mut usize,
        pivot: usize,
        key: &[u8],
        wanted: u64,
        hash: u64,
    ) -> Option<(&Segment, &SegmentHandle)> {
        let routes = self.routes_of(pivot);
        while let Some(&(from, to)) = routes.get(*level) {
            let this = *level;
            *level += 1;
            let (from, to) = (from as usize, to as usize);
            let heads = &self.segment_heads[from..to];
            let place = heads.partition_point(|&(_, max)| max < wanted);
            let Some(&(min, max)) = heads.get(place) else {
                continue;
            };
            if min > wanted {
                continue;
            }
            let mut number = from + place;
            if min == wanted || max == wanted {
                // The keys themselves are looked at only where heads are equal.
                match self.among_equals(this, number..to, key, wanted) {
                    Some(found) => number = found,
                    None => continue,
                }
            }
            let handle = &self.segment_handles[number];
            if !handle.lacks(hash) {
                return Some((self.segment(this, number), handle));
            }
        }
        None
    }

    /// The one of a level's segments that can hold a key, among those of `numbers`, none of which ends at a head below `wanted`.
    fn among_equals(
        &self,
        level: usize,
        numbers: Range<usize>,
        key: &[u8],
        wanted: u64,
    ) -> Option<usize> {
        let mut numbers = numbers.clone().zip(&self.segment_heads[numbers]);
        let (number, &(min, _)) = numbers.find(|&(number, &(_, max))| {
            max > wanted || self.segment(level, number).max[..] >= *key
        })?;
        let holds = min < wanted || min == wanted && self.segment(level, number).min[..] <= *key;
        holds.then_some(number)
    }

    /// A segment of a level by its number among all segments.
    #[inline]
    fn segment(&self, level: usize, number: usize) -> &Segment {
        &self.node.levels[level][number - self.level_starts[level] as usize]
    }

    /// Bytes of memory that it takes.
    fn memory_bytes(&self) -> usize {
        let mut bytes = size_of::<Self>() + self.common.bytes().len();
        bytes += self.segment_common.bytes().len() + size_of_val(&self.segment_heads[..]);
        bytes += size_of_val(&self.heads[..]) + size_of_val(&self.routes[..]);
        bytes += self
            .node
            .pivots
            .iter()
            .map(|p| size_of_val(p) + p.lower.len())
            .sum::<usize>();
        for segment in self.node.levels.iter().flatten() {
            bytes += size_of_val(segment)
                + segment.min.len()
                + segment.max.len()
                + size_of_val(&segment.live[..])
                + SegmentHandle::memory_bytes(&segment.group);
        }
        for pivot in &self.node.pivots {
            bytes += match &pivot.child {
                Child::Leaf(group) => GroupHandle::memory_bytes(group),
                Child::Node { .. } => size_of::<Handle<LoadedNode>>(),
            };
        }
        bytes + size_of_val(&self.level_starts[..])
    }
}

/// Reads a node of a height, through the cache. As heights fall by one from parent to child, no walk is deeper than
/// [`HEIGHT_MAX`], whatever the pages say (D8).
pub(crate) fn load_node(store: &PageStore, page: &PageRef, height: u16) -> Result<Arc<LoadedNode>> {
    let node = store.object(page, PageKind::Node, &decode)?;
    check_height(node, page, height)
}

/// Reads a child of a node of height `parent`.
pub(crate) fn load_child(
    store: &PageStore,
    page: &PageRef,
    parent: u16,
) -> Result<Arc<LoadedNode>> {
    load_node(store, page, parent.saturating_sub(1))
}

/// As [`load_child`], for the child of a pivot of a node in memory. Panics when that child is a leaf.
#[inline]
pub(crate) fn load_child_of(
    store: &PageStore,
    node: &LoadedNode,
    pivot: usize,
    page: &PageRef,
) -> Result<Arc<LoadedNode>> {
    let handle = &node.child_handles[pivot];
    let child = store.object_by(page, PageKind::Node, handle, &decode)?;
    check_height(child, page, node.height.saturating_sub(1))
}

fn decode(bytes: &[u8]) -> Result<(LoadedNode, usize)> {
    let node = LoadedNode::new(Node::decode(bytes)?)?;
    let memory_bytes = node.memory_bytes();
    Ok((node, memory_bytes))
}

#[inline]
fn check_height(node: Arc<LoadedNode>, page: &PageRef, height: u16) -> Result<Arc<LoadedNode>> {
    if node.height != height || height == 0 || height > HEIGHT_MAX {
        return Err(Error::corrupt("node of a wrong height")
            .with("page", page.id)
            .with("height", node.height)
            .with("expected", height));
    }
    Ok(node)
}
