//! Nodes in memory: what a node page holds, with what makes its search quick, shared through the page cache.

use std::ops::Deref;
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::{PageKind, PageRef, PageStore};

use crate::node::{Node, Segment};

/// Most levels of nodes that a tree can have: with four children a node and one record a leaf, 16 levels hold 4·10⁹ leaves.
pub(crate) const HEIGHT_MAX: u16 = 16;

/// A decoded node, with its pivots and segments laid out for point lookups.
#[derive(Debug)]
pub(crate) struct LoadedNode {
    node: Node,
    /// Bytes that all pivots' lower bounds, but the first pivot's, begin with.
    common: Box<[u8]>,
    /// Of each pivot but the first: the eight bytes of the lower bound behind `common`, big-endian, filled up with zeros.
    heads: Box<[u64]>,
    /// For each level and pivot, in this order: the segments with something for the pivot, as a half-open range.
    routes: Box<[(u16, u16)]>,
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
        let common: Box<[u8]> = node
            .pivots
            .get(1)
            .and_then(|p| p.lower.get(..common))
            .unwrap_or_default()
            .into();
        let heads = lowers
            .map(|lower| head(lower.get(common.len()..).unwrap_or_default()))
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
                let number = u16::try_from(number)
                    .map_err(|_| Error::corrupt("too many segments in a level"))?;
                for part in &segment.live {
                    let Some(route) = routes.get_mut(usize::from(part.pivot)) else {
                        return Err(Error::corrupt("live range of a pivot that is not there")
                            .with("pivot", part.pivot));
                    };
                    match route {
                        (from, to) if from == to => *route = (number, number + 1),
                        (_, to) => *to = number + 1,
                    }
                }
            }
        }
        Ok(LoadedNode {
            node,
            common,
            heads,
            routes: routes.into(),
        })
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
        let shared = self.common.len().min(key.len());
        match self.common[..].cmp(&key[..shared]) {
            std::cmp::Ordering::Less => return self.heads.len(),
            std::cmp::Ordering::Greater => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let head = head(&key[shared..]);
        let below = self.heads.partition_point(|&h| h < head);
        let same = self.heads[below..].partition_point(|&h| h == head);
        below + self.node.pivots[below + 1..][..same].partition_point(|p| comes_before(&p.lower))
    }

    /// The segments of a level that have something for a pivot, in key order.
    #[inline]
    pub(crate) fn segments_for(&self, level: usize, pivot: usize) -> &[Segment] {
        let (from, to) = self.routes[level * self.node.pivots.len() + pivot];
        &self.node.levels[level][usize::from(from)..usize::from(to)]
    }

    /// The one segment of a level that can hold a key, which lies in the range of `pivot`.
    #[inline]
    pub(crate) fn candidate(&self, level: usize, pivot: usize, key: &[u8]) -> Option<&Segment> {
        let segments = self.segments_for(level, pivot);
        let segment = segments.get(segments.partition_point(|s| s.max[..] < *key))?;
        (segment.min[..] <= *key).then_some(segment)
    }

    /// Bytes of memory that it takes.
    fn memory_bytes(&self) -> usize {
        let mut bytes = size_of::<Self>() + self.common.len();
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
                + size_of_val(&segment.live[..]);
        }
        bytes
    }
}

/// The first eight bytes as a number; comparing it is comparing them.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(chunk)
        }
    }
}

/// Reads a node of a height, through the cache. As heights fall by one from parent to child, no walk is deeper than
/// [`HEIGHT_MAX`], whatever the pages say (D8).
pub(crate) fn load_node(store: &PageStore, page: &PageRef, height: u16) -> Result<Arc<LoadedNode>> {
    let decode = |bytes: &[u8]| {
        let node = LoadedNode::new(Node::decode(bytes)?)?;
        let memory_bytes = node.memory_bytes();
        Ok((node, memory_bytes))
    };
    let node = store.object(page, PageKind::Node, &decode)?;
    if node.height != height || height == 0 || height > HEIGHT_MAX {
        return Err(Error::corrupt("node of a wrong height")
            .with("page", page.id)
            .with("height", node.height)
            .with("expected", height));
    }
    Ok(node)
}

/// Reads a child of a node of height `parent`.
pub(crate) fn load_child(
    store: &PageStore,
    page: &PageRef,
    parent: u16,
) -> Result<Arc<LoadedNode>> {
    load_node(store, page, parent.saturating_sub(1))
}
