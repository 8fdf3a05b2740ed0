//! Nodes in memory: the content of a node page, laid out for fast search, shared through the page
//! cache.

use std::ops::{Deref, Range};
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::heads::{Prefix, head, heads_before};
use terrapin_pages::{
    GroupHandle, Handle, OutlinePlaces, PageKind, PageRef, PageStore, SegmentOutlines,
};

use crate::maplet::Mapped;
use crate::node::{Child, LivePart, Node, Segment};

/// Most levels of nodes in a tree. With four children a node and one record a leaf, 16 levels have
/// 4·10⁹ leaves.
pub(crate) const HEIGHT_MAX: u16 = 16;

/// If a level has at most this many segments for a pivot, each gets a run of its own.
const FEW: u16 = 4;

/// A decoded node with its pivots and segments laid out for point lookups.
#[derive(Debug)]
pub(crate) struct LoadedNode {
    node: Node,
    /// The common prefix of all pivots' lower bounds, except the first pivot's.
    common: Prefix,
    /// For each pivot except the first: eight bytes of the lower bound behind `common`, big-endian,
    /// padded with zeros.
    heads: Box<[u64]>,
    /// For each pivot, level by level: the segments with messages for it, in key order.
    runs: Box<[SegmentRun]>,
    /// For each pivot the index of its first run; then the number of all runs.
    run_starts: Box<[u32]>,
    /// For each level the number of segments in the levels above it.
    level_starts: Box<[u32]>,
    /// The common prefix of the bounds of all segments.
    segment_common: Prefix,
    /// For each segment, level by level: the heads of its least and greatest key behind
    /// `segment_common`.
    segment_heads: Box<[(u64, u64)]>,
    /// One handle for each child that is a node.
    child_handles: Box<[Handle<LoadedNode>]>,
    /// One handle for each child that is a leaf.
    leaf_handles: Box<[GroupHandle]>,
    /// One handle for each segment, level by level.
    segment_handles: Box<[GroupHandle]>,
    /// For each segment, level by level: where its outlines are.
    outline_places: Box<[OutlinePlaces]>,
    outlines: SegmentOutlines,
    /// For each pivot, its maplet. Empty if no pivot has one.
    mapped: Box<[Option<Mapped>]>,
}

/// What a node has for a key.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The pivot whose range has the key.
    pub(crate) pivot: usize,
    /// The pivot's runs that are not searched yet, newest first.
    runs: Range<usize>,
    /// The head of the key behind `segment_common`.
    head: u64,
}

/// Segments of a level that have messages for a pivot: a single one, or all if there are many.
#[derive(Clone, Copy, Debug)]
struct SegmentRun {
    /// The head of the first segment's least key.
    min: u64,
    /// The head of the last segment's greatest key.
    max: u64,
    /// Where the outlines of a single segment are.
    outlines: OutlinePlaces,
    /// The number of the first segment among all segments.
    from: u32,
    /// Number of segments.
    segments: u16,
    level: u16,
}

impl SegmentRun {
    /// The numbers of the run's segments among all segments.
    #[inline]
    fn numbers(&self) -> Range<usize> {
        let from = self.from as usize;
        from..from + usize::from(self.segments)
    }
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
    /// [`terrapin_base::ErrorKind::Corrupt`] if the live parts of a level are not in the order of
    /// their pivots.
    pub(crate) fn new(node: Node) -> Result<Self> {
        let pivots = node.pivots.len();
        if pivots == 0 || pivots > usize::from(u16::MAX) {
            return Err(
                Error::corrupt("the node has no pivots, or more than its format allows")
                    .with("pivots", pivots),
            );
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
        let mut keys = node.levels.iter().flatten().flat_map(|s| [&s.min, &s.max]);
        let mut segment_common: Vec<u8> = keys.next().map_or(Vec::new(), |key| key.to_vec());
        for key in keys {
            let same = segment_common
                .iter()
                .zip(key.iter())
                .take_while(|(a, b)| a == b);
            segment_common.truncate(same.count());
        }
        let behind = |key: &[u8]| head(key.get(segment_common.len()..).unwrap_or_default());
        let segment_heads: Box<[(u64, u64)]> = node
            .levels
            .iter()
            .flatten()
            .map(|segment| (behind(&segment.min), behind(&segment.max)))
            .collect();
        let mut outlines = SegmentOutlines::default();
        let outline_places: Box<[OutlinePlaces]> = node
            .levels
            .iter()
            .flatten()
            .map(|segment| outlines.add(&segment.group))
            .collect();
        let mut level_starts = Vec::with_capacity(node.levels.len());
        let mut runs: Vec<(u16, SegmentRun)> = Vec::new();
        let mut number = 0u32;
        for (level, segments) in (0..).zip(&node.levels) {
            level_starts.push(number);
            if segments.len() > usize::from(u16::MAX) {
                return Err(Error::corrupt("too many segments in a level").with("level", level));
            }
            let first_run = runs.len();
            for segment in segments {
                let (min, max) = segment_heads[number as usize];
                if segment.live.is_empty() {
                    return Err(Error::corrupt("the segment has no live part").with("level", level));
                }
                for &LivePart { pivot, .. } in &segment.live {
                    if usize::from(pivot) >= pivots {
                        return Err(Error::corrupt(
                            "a live part names a pivot that the node does not have",
                        )
                        .with("pivot", pivot));
                    }
                    match runs[first_run..].last_mut() {
                        Some((last, run)) if *last == pivot => {
                            run.max = max;
                            run.segments += 1;
                        }
                        Some((last, _)) if *last > pivot => {
                            let error =
                                Error::corrupt("live parts are not in the order of their pivots");
                            return Err(error.with("level", level));
                        }
                        _ => {
                            let run = SegmentRun {
                                min,
                                max,
                                outlines: OutlinePlaces::NONE,
                                from: number,
                                segments: 1,
                                level,
                            };
                            runs.push((pivot, run));
                        }
                    }
                }
                number += 1;
            }
        }
        let segments = number as usize;
        // A stable sort keeps the runs of a pivot in the order of levels.
        runs.sort_by_key(|&(pivot, _)| pivot);
        let mut split = Vec::with_capacity(runs.len());
        let mut run_starts = Vec::with_capacity(pivots + 1);
        for (pivot, run) in runs {
            run_starts.resize(usize::from(pivot) + 1, split.len() as u32);
            if run.segments > FEW {
                split.push(run);
                continue;
            }
            split.extend(run.numbers().map(|number| {
                let (min, max) = segment_heads[number];
                SegmentRun {
                    min,
                    max,
                    outlines: outline_places[number],
                    from: number as u32,
                    segments: 1,
                    level: run.level,
                }
            }));
        }
        run_starts.resize(pivots + 1, split.len() as u32);
        let mapped = match node.pivots.iter().any(|pivot| pivot.maplet.is_some()) {
            true => Self::mapped(&node, &split, &run_starts, &level_starts),
            false => Box::default(),
        };
        let leaves = node
            .pivots
            .iter()
            .filter(|p| matches!(p.child, Child::Leaf(_)))
            .count();
        // All children are of one kind (rule 1), so a pivot's number is its index in either array
        // of handles.
        if leaves != 0 && leaves != pivots {
            return Err(Error::corrupt("the node has leaves and nodes as children"));
        }
        Ok(LoadedNode {
            node,
            common: prefix,
            heads,
            segment_common: Prefix::new(&segment_common),
            segment_heads,
            runs: split.into(),
            run_starts: run_starts.into(),
            level_starts: level_starts.into(),
            child_handles: (leaves..pivots).map(|_| Handle::default()).collect(),
            leaf_handles: (0..leaves).map(|_| GroupHandle::default()).collect(),
            segment_handles: (0..segments).map(|_| GroupHandle::default()).collect(),
            outline_places,
            outlines,
            mapped,
        })
    }

    /// The maplets of all pivots, beside the runs that the node has for them.
    fn mapped(
        node: &Node,
        runs: &[SegmentRun],
        run_starts: &[u32],
        level_starts: &[u32],
    ) -> Box<[Option<Mapped>]> {
        let mapped = (node.pivots.iter().zip(run_starts.windows(2))).map(|(pivot, starts)| {
            let maplet = pivot.maplet.as_ref()?;
            let runs = &runs[starts[0] as usize..starts[1] as usize];
            let groups = runs.iter().map(|run| {
                let level = usize::from(run.level);
                let segments = &node.levels[level];
                let first = level_starts[level] as usize;
                run.numbers()
                    .map(move |number| segments[number - first].group.id)
            });
            Some(Mapped::new(maplet, groups))
        });
        mapped.collect()
    }

    /// Whether a pivot has a maplet.
    #[inline]
    pub(crate) fn has_maplets(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// The next segment that may hold a key, like [`LoadedNode::next_candidate`], and whether its
    /// filter is still to be asked. Where a maplet covers a run, the maplet decides.
    pub(crate) fn next_mapped(
        &self,
        store: &PageStore,
        way: &mut Way,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<((&Segment, usize), bool)>> {
        let Some(Some(mapped)) = self.mapped.get(way.pivot) else {
            let candidate = self.next_candidate(way, key, hash);
            return Ok(candidate.map(|candidate| (candidate, true)));
        };
        if way.runs.is_empty() {
            return Ok(None);
        }
        let Mapped { maplet, handle, .. } = mapped;
        let found = store.ask_maplet(&maplet.page, &maplet.shape, handle, hash)?;
        let (first, known) = (self.run_starts[way.pivot] as usize, self.outlines.known());
        for at in way.runs.clone() {
            let (run, values) = (&self.runs[at], mapped.values[at - first]);
            let is_covered = values != 0;
            if is_covered && values & found == 0 || way.head < run.min || way.head > run.max {
                continue;
            }
            let Some(number) = self.in_run(run, key, way.head) else {
                continue;
            };
            let segment = self.segment(usize::from(run.level), number);
            let is_denied = match is_covered {
                true => !mapped.has(found, segment.group.id),
                false => known.deny(self.outline_places[number], hash),
            };
            if !is_denied {
                way.runs.start = at + 1;
                return Ok(Some(((segment, number), !is_covered)));
            }
        }
        way.runs.start = way.runs.end;
        Ok(None)
    }

    /// The handle of a pivot's child, which must be a leaf. Panics if it is a node.
    #[inline]
    pub(crate) fn leaf_handle(&self, pivot: usize) -> &GroupHandle {
        &self.leaf_handles[pivot]
    }

    /// The handle of a segment's group. Panics if there is no such segment.
    #[inline]
    pub(crate) fn segment_handle(&self, level: usize, segment: usize) -> &GroupHandle {
        self.handle_of(self.level_starts[level] as usize + segment)
    }

    /// Like [`LoadedNode::segment_handle`], by the segment's number among all segments.
    #[inline]
    pub(crate) fn handle_of(&self, number: usize) -> &GroupHandle {
        &self.segment_handles[number]
    }

    /// The number of segments in the levels above `level`, which need not exist.
    pub(crate) fn first_segment_of(&self, level: usize) -> usize {
        let start = self.level_starts.get(level);
        start.map_or(self.segment_handles.len(), |&start| start as usize)
    }

    /// The pivot whose key range has the key; the first pivot for keys below all others.
    #[inline]
    pub(crate) fn pivot_of(&self, key: &[u8]) -> usize {
        self.lowers_before(key, |lower| lower <= key)
    }

    /// The pivot whose key range has the keys just below a key.
    #[inline]
    pub(crate) fn pivot_before(&self, key: &[u8]) -> usize {
        self.lowers_before(key, |lower| lower < key)
    }

    /// How many lower bounds, without the first pivot's, come before a key. `comes_before` decides
    /// if heads are equal.
    #[inline(always)] // `way` reuses what this computes of the key
    fn lowers_before(&self, key: &[u8], comes_before: impl Fn(&[u8]) -> bool) -> usize {
        let wanted = match self.common.strip(key) {
            Ok(suffix) => head(suffix),
            Err(std::cmp::Ordering::Less) => return 0,
            Err(_) => return self.heads.len(),
        };
        let before = heads_before(&self.heads, wanted);
        // Heads are rarely equal.
        if self.heads.get(before) != Some(&wanted) {
            return before;
        }
        let same = self.heads[before..].partition_point(|&head| head == wanted);
        let pivots = &self.node.pivots[before + 1..][..same];
        before + pivots.partition_point(|p| comes_before(&p.lower))
    }

    /// How many segments of a level end before a key.
    pub(crate) fn segments_below(&self, level: usize, key: &[u8]) -> usize {
        self.segments_before(level, key, |&(_, max)| max, |s| s.max[..] < *key)
    }

    /// How many segments of a level begin at or before a key.
    pub(crate) fn segments_from(&self, level: usize, key: &[u8]) -> usize {
        self.segments_before(level, key, |&(min, _)| min, |s| s.min[..] <= *key)
    }

    /// How many segments of a level have the given end before a key, compared by heads.
    /// `comes_before` decides if heads are equal.
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

    /// The indexes of a pivot's runs, newest first.
    #[inline]
    fn runs_of(&self, pivot: usize) -> Range<usize> {
        self.run_starts[pivot] as usize..self.run_starts[pivot + 1] as usize
    }

    /// The segments that have messages for a pivot, level by level, in key order.
    pub(crate) fn segments_for(&self, pivot: usize) -> impl Iterator<Item = &Segment> {
        let segments = move |run: &SegmentRun| {
            let level = usize::from(run.level);
            run.numbers().map(move |number| self.segment(level, number))
        };
        self.runs[self.runs_of(pivot)].iter().flat_map(segments)
    }

    /// The pivot and the runs for a key.
    #[inline(always)] // otherwise a lookup writes the result to memory twice
    pub(crate) fn way(&self, key: &[u8]) -> Way {
        let pivot = self.pivot_of(key);
        let (runs, head) = match self.segment_common.strip(key) {
            Ok(suffix) => (self.runs_of(pivot), head(suffix)),
            // No segment can hold the key.
            Err(_) => (0..0, 0),
        };
        Way { pivot, runs, head }
    }

    /// The next segment that may hold a key, and its number among all segments. Of each level on
    /// the `way` at most one segment can hold the key. The call returns the first whose outline
    /// does not deny the key, and moves the way behind it. The first call takes the result of
    /// [`LoadedNode::way`].
    // Always inlined: a get visits each level of each node here. Merges call it too.
    #[inline(always)]
    pub(crate) fn next_candidate(
        &self,
        way: &mut Way,
        key: &[u8],
        hash: u64,
    ) -> Option<(&Segment, usize)> {
        let known = self.outlines.known();
        let Way { runs, head, .. } = way;
        let wanted = *head;
        let mut rest = self.runs[runs.clone()].iter();
        while let Some(run) = rest.next() {
            // Heads are rarely equal, so passing a level costs one of these two comparisons.
            if wanted > run.min && wanted < run.max {
                if known.deny(run.outlines, hash) {
                    continue;
                }
            } else if wanted < run.min || wanted > run.max {
                continue;
            }
            let Some(number) = self.in_run(run, key, wanted) else {
                continue;
            };
            if !known.deny(self.outline_places[number], hash) {
                runs.start = runs.end - rest.len();
                return Some((self.segment(usize::from(run.level), number), number));
            }
        }
        runs.start = runs.end;
        None
    }

    /// Asks the filter of a segment that [`LoadedNode::next_candidate`] returned whether it may
    /// hold a key.
    #[inline]
    pub(crate) fn segment_may_contain(
        &self,
        store: &PageStore,
        (segment, number): (&Segment, usize),
        hash: u64,
    ) -> Result<bool> {
        let handle = self.handle_of(number);
        let places = self.outline_places[number];
        store.segment_may_contain(&segment.group, handle, &self.outlines, places, hash)
    }

    /// The one segment of a run that can hold a key.
    fn in_run(&self, run: &SegmentRun, key: &[u8], wanted: u64) -> Option<usize> {
        let level = usize::from(run.level);
        let numbers = run.numbers();
        let heads = &self.segment_heads[numbers.clone()];
        let mut place = heads.partition_point(|&(_, max)| max < wanted);
        // Keys are compared only if heads are equal.
        while heads.get(place).is_some_and(|&(_, max)| max == wanted)
            && self.segment(level, numbers.start + place).max[..] < *key
        {
            place += 1;
        }
        let &(min, _) = heads.get(place)?;
        let number = numbers.start + place;
        let holds = min < wanted || min == wanted && self.segment(level, number).min[..] <= *key;
        holds.then_some(number)
    }

    /// A segment of a level by its number among all segments.
    #[inline]
    fn segment(&self, level: usize, number: usize) -> &Segment {
        &self.node.levels[level][number - self.level_starts[level] as usize]
    }

    /// Bytes of memory that the node takes.
    fn memory_bytes(&self) -> usize {
        let mut bytes = size_of::<Self>() + self.common.bytes().len();
        bytes += self.segment_common.bytes().len() + size_of_val(&self.segment_heads[..]);
        bytes += size_of_val(&self.heads[..]) + size_of_val(&self.runs[..]);
        bytes += self
            .node
            .pivots
            .iter()
            .map(|p| size_of_val(p) + p.lower.len() + p.deadlines.memory_bytes())
            .sum::<usize>();
        for segment in self.node.levels.iter().flatten() {
            bytes += size_of_val(segment)
                + segment.min.len()
                + segment.max.len()
                + size_of_val(&segment.live[..])
                + segment.deadlines.memory_bytes()
                + size_of::<OutlinePlaces>()
                + GroupHandle::memory_bytes(&segment.group);
        }
        for pivot in &self.node.pivots {
            bytes += match &pivot.child {
                Child::Leaf(group) => GroupHandle::memory_bytes(group),
                Child::Node { .. } => size_of::<Handle<LoadedNode>>(),
            };
        }
        bytes += size_of_val(&self.mapped[..]);
        bytes += self
            .mapped
            .iter()
            .flatten()
            .map(Mapped::memory_bytes)
            .sum::<usize>();
        bytes += size_of_val(&self.level_starts[..]) + size_of_val(&self.run_starts[..]);
        bytes + self.outlines.memory_bytes()
    }
}

/// Reads a node of a given height through the cache. Heights fall by one from parent to child. So
/// no walk is deeper than [`HEIGHT_MAX`], whatever the pages contain (D8).
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

/// Like [`load_child`], for the child of a pivot of a node in memory. Panics if the child is a
/// leaf.
#[inline(always)] // each lookup
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
        return Err(Error::corrupt(
            "the node's height differs from the height that its parent expects",
        )
        .with("page", page.id)
        .with("height", node.height)
        .with("expected", height));
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use terrapin_base::PageId;
    use terrapin_disk::LongBox;
    use terrapin_pages::group::{Deadlines, GroupRef};

    use super::*;
    use crate::node::Pivot;

    /// Keys in groups of five that have the same head.
    fn key(number: usize) -> LongBox {
        format!("{:02}------{}", number / 5, number % 5)
            .into_bytes()
            .into()
    }

    fn group(number: usize) -> GroupRef {
        GroupRef {
            id: PageId(number as u64),
            offset: 0,
            bytes: 2048,
            index_offset: 1024,
            index_bytes: 512,
            filter_offset: 1536,
            filter_bytes: 0,
            records: 3,
            tombstones: 0,
            logical_bytes: 1000,
            hidden_bytes: 0,
            record_bytes_max: 500,
            separated_bytes: 0,
        }
    }

    /// A node with three children. A segment is live for each pivot in whose range it has keys.
    fn node(levels: &[Vec<(usize, usize)>]) -> LoadedNode {
        let lowers = [0, 42, 83];
        let pivot_of = |number| lowers.partition_point(|&lower| lower <= number) as u16 - 1;
        let segment = |&(min, max): &(usize, usize)| Segment {
            group: group(min),
            deadlines: Deadlines::default(),
            min: key(min),
            max: key(max),
            live: (pivot_of(min)..=pivot_of(max))
                .map(|pivot| LivePart {
                    pivot,
                    records: 1,
                    bytes: 1,
                    hidden_bytes: 0,
                    separated_bytes: 0,
                })
                .collect(),
        };
        let node = Node {
            height: 1,
            replaced_permille: 0,
            counts_replaced: false,
            pivots: lowers
                .iter()
                .map(|&lower| Pivot {
                    lower: if lower == 0 {
                        LongBox::default()
                    } else {
                        key(lower)
                    },
                    child: Child::Leaf(group(lower)),
                    deadlines: Deadlines::default(),
                    pending_bytes: 0,
                    maplet: None,
                })
                .collect(),
            levels: levels
                .iter()
                .map(|level| level.iter().map(segment).collect())
                .collect(),
        };
        LoadedNode::new(node).unwrap()
    }

    #[test]
    fn candidates_match_a_search_of_all_segments() {
        let node = node(&[
            vec![(3, 95)],
            (0..12).map(|i| (8 * i + 1, 8 * i + 5)).collect(),
            vec![],
            (0..49).map(|i| (2 * i, 2 * i)).collect(),
            vec![(0, 41), (42, 42), (43, 99)],
        ]);
        let keys = (0..100).flat_map(|number| {
            let key = key(number).to_vec();
            [[&key[..], b"x"].concat(), key]
        });
        for key in keys.chain([vec![], b"00".to_vec(), b"zz".to_vec()]) {
            let holds = |s: &Segment| *s.min <= *key && key[..] <= *s.max;
            let expected: Vec<_> = (node.levels.iter().enumerate())
                .filter_map(|(level, segments)| Some((level, segments.iter().position(holds)?)))
                .collect();
            let mut found = Vec::new();
            let mut way = node.way(&key);
            while let Some((segment, number)) = node.next_candidate(&mut way, &key, 7) {
                let handle = std::ptr::from_ref(node.handle_of(number));
                found.push((segment.group.id, handle));
            }
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(level, number)| {
                    let handle = std::ptr::from_ref(node.segment_handle(level, number));
                    (node.levels[level][number].group.id, handle)
                })
                .collect();
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(&key));
        }
    }
}
