//! Nodes in memory: what a node page holds, with what makes its search quick, shared through the page cache.

use std::ops::Deref;
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::heads::{Prefix, equal_heads, head};
use terrapin_pages::{GroupHandle, Handle, PageKind, PageRef, PageStore};

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
    /// For each level and pivot, in this order: the segments with something for the pivot, as a half-open range.
    routes: Box<[(u16, u16)]>,
    /// What the bounds of all segments begin with.
    segment_common: Prefix,
    /// Of each segment, level after level: the heads of its least and greatest key behind `segment_common`.
    segment_heads: Box<[(u64, u64)]>,
    /// Of each child that is a node.
    child_handles: Box<[Handle<LoadedNode>]>,
    /// Of each child that is a leaf, then of each segment, level after level.
    group_handles: Box<[GroupHandle]>,
    /// For each level, where its segments begin in `group_handles`.
    level_handles: Box<[usize]>,
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
        let mut routes = vec![(0, 0); node.levels.len() * pivots];
        for (level, segments) in node.levels.iter().enumerate() {
            let routes = &mut routes[level * pivots..][..pivots];
            let mut reached = 0;
            for (number, segment) in segments.iter().enumerate() {
                if segment.live.first().is_none_or(|part| part.pivot < reached) {
                    return Err(Error::corrupt("live ranges out of order").with("level", level));
                }
                reached = segment.live.last().map_or(reached, |part| part.pivot);
                let behind = u16::try_from(number + 1)
                    .map_err(|_| Error::corrupt("too many segments in a level"))?;
                for part in &segment.live {
                    let Some(route) = routes.get_mut(usize::from(part.pivot)) else {
                        return Err(Error::corrupt("live range of a pivot that is not there")
                            .with("pivot", part.pivot));
                    };
                    match route {
                        (from, to) if from == to => *route = (behind - 1, behind),
                        (_, to) => *to = behind,
                    }
                }
            }
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
        let mut groups = leaves;
        let mut level_handles = Vec::with_capacity(node.levels.len());
        for segments in &node.levels {
            level_handles.push(groups);
            groups += segments.len();
        }
        Ok(LoadedNode {
            node,
            common: prefix,
            heads,
            segment_common: Prefix::new(&segment_common),
            segment_heads,
            routes: routes.into(),
            child_handles: (leaves..pivots).map(|_| Handle::default()).collect(),
            group_handles: (0..groups).map(|_| GroupHandle::default()).collect(),
            level_handles: level_handles.into(),
        })
    }

    /// The direct way to the child of a pivot, which is a leaf. Panics when it is a node.
    #[inline]
    pub(crate) fn leaf_handle(&self, pivot: usize) -> &GroupHandle {
        &self.group_handles[..self.node.pivots.len()][pivot]
    }

    /// The direct way to the group of a segment. Panics when there is no such segment.
    #[inline]
    pub(crate) fn segment_handle(&self, level: usize, segment: usize) -> &GroupHandle {
        &self.group_handles[self.level_handles[level] + segment]
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
        let first = self.level_handles[level] - self.level_handles[0];
        &self.segment_heads[first..][..self.node.levels[level].len()]
    }

    /// The segments of a level that have something for a pivot, in key order.
    #[inline]
    pub(crate) fn segments_for(&self, level: usize, pivot: usize) -> &[Segment] {
        let (from, to) = self.routes[level * self.node.pivots.len() + pivot];
        &self.node.levels[level][usize::from(from)..usize::from(to)]
    }

    /// The head that [`LoadedNode::candidate`] looks for; none when no segment here can hold the key.
    #[inline]
    pub(crate) fn segment_head(&self, key: &[u8]) -> Option<u64> {
        self.segment_common.strip(key).ok().map(head)
    }

    /// The one segment of a level that can hold a key, which lies in the range of `pivot`, and the direct way to it.
    /// `wanted` is the key's [`LoadedNode::segment_head`].
    #[inline]
    pub(crate) fn candidate(
        &self,
        level: usize,
        pivot: usize,
        key: &[u8],
        wanted: u64,
    ) -> Option<(&Segment, &GroupHandle)> {
        let (from, to) = self.routes[level * self.node.pivots.len() + pivot];
        if from == to {
            return None;
        }
        let (from, to) = (usize::from(from), usize::from(to));
        let segments = &self.node.levels[level];
        let first_handle = self.level_handles[level];
        let heads = &self.segment_heads[first_handle - self.level_handles[0]..][from..to];
        let mut place = heads.partition_point(|&(_, max)| max < wanted);
        // The keys themselves are looked at only where heads are equal.
        while heads.get(place).is_some_and(|&(_, max)| max == wanted)
            && segments[from + place].max[..] < *key
        {
            place += 1;
        }
        let &(min, _) = heads.get(place)?;
        let segment = &segments[from + place];
        let holds = min < wanted || min == wanted && segment.min[..] <= *key;
        holds.then(|| (segment, &self.group_handles[first_handle + from + place]))
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
                + GroupHandle::memory_bytes(&segment.group);
        }
        for pivot in &self.node.pivots {
            bytes += match &pivot.child {
                Child::Leaf(group) => GroupHandle::memory_bytes(group),
                Child::Node { .. } => size_of::<Handle<LoadedNode>>(),
            };
        }
        bytes + size_of_val(&self.level_handles[..])
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
