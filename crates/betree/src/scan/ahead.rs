//! Read-ahead of a long scan, for one source. Blocks of the current group and of the groups behind
//! it are being read while the scan uses earlier blocks. The indexes of those groups are read
//! before that. So neither a short group nor the end of a node makes the device idle.
//!
//! All sources should be equally far ahead in keys. A source with fewer records in the same range
//! has fewer bytes in flight. A source with too few would make the scan wait repeatedly, however
//! far ahead the others are.
//!
//! Damage in a later group is not reported here. The scan goes on without read-ahead, and reports
//! the damage when it reaches it.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::group::GroupRef;
use terrapin_pages::{GroupHandle, PageStore};
use terrapin_structure::{Direction, KeyBounds};

use super::path::{LiveRange, Path};
use crate::load::{LoadedNode, load_child_of};
use crate::node::Child;
use terrapin_runs::bounds::as_slice;
use terrapin_runs::stream::Stream;
use terrapin_runs::walk::{BlockWalk, ReadAhead};

/// Most groups that are named, and most that are begun.
const GROUPS_MAX: usize = 64;
/// Most bytes of leaves in flight.
const LEAF_BYTES: usize = 4 << 20;
/// Fewest bytes of a buffer level in flight. A level has bytes in flight in proportion to its
/// records for each record of a leaf. It has half as many more, because its records are spread
/// unevenly.
const LEVEL_BYTES: usize = 256 << 10;
const LEVEL_MARGIN: f64 = 1.5;
/// Memory for this many bytes in flight is enough for a scan that ends before.
const BOUNDED_BYTES_MIN: usize = 512 << 10;

/// A node, and the number of one of its children.
type Branch = (Arc<LoadedNode>, usize);

/// A group that a source will reach.
enum Coming {
    /// A leaf, by its parent.
    Leaf(Branch),
    /// A live range of a buffer level.
    Range(LiveRange),
}

/// The last group that is known. Further groups are searched behind it.
enum Last {
    /// The way from the root to a leaf.
    Leaf(Vec<Branch>),
    /// A live range, and the next part of its segment.
    Range(LiveRange, usize),
}

/// The groups that a source will reach, in order.
pub(super) struct Ahead {
    /// Blocks in flight: those of the source's current group, as far as its walk sent them, and
    /// those of `begun`.
    pub(super) stream: Stream,
    last: Last,
    /// There are no further groups, or one could not be read.
    over: bool,
    /// Walks whose blocks are in the stream.
    begun: VecDeque<BlockWalk>,
    /// The groups behind those, and the source's bytes in each.
    named: VecDeque<(Coming, u64)>,
    /// The sum of these bytes.
    named_bytes: u64,
    /// Groups whose indexes are added to the stream next.
    unasked: VecDeque<GroupRef>,
    /// Bytes behind the source's current group that the scan probably takes.
    behind_bytes: u64,
}

impl Coming {
    /// The group and its handle. `None` cannot happen.
    fn group<'a>(&'a self, path: &'a Path) -> Option<(&'a GroupRef, &'a GroupHandle)> {
        match self {
            Coming::Leaf((node, pivot)) => match &node.pivots[*pivot].child {
                Child::Leaf(group) => Some((group, node.leaf_handle(*pivot))),
                Child::Node { .. } => None,
            },
            Coming::Range(range) => {
                let (node, number, segment) = path.segment_of(*range)?;
                Some((&segment.group, node.segment_handle(range.level, number)))
            }
        }
    }

    fn bounds<'a>(&self, path: &'a Path) -> KeyBounds<'a> {
        match self {
            // Only the scan's end can be inside the leaf.
            Coming::Leaf(_) => (as_slice(&path.lower), as_slice(&path.upper)),
            Coming::Range(range) => path.bounds_of_range(*range),
        }
    }
}

impl Ahead {
    /// Read-ahead behind the path's leaf, in which `walk` is; `None` if memory is short.
    pub(super) fn of_leaf(path: &Path, walk: &BlockWalk, store: &PageStore) -> Option<Self> {
        let branches = path.frames.iter();
        let way = branches.map(|frame| (Arc::clone(&frame.node), frame.pivot));
        let last = Last::Leaf(way.collect());
        Self::new(path, store, LEAF_BYTES, walk, last)
    }

    /// Read-ahead behind a live range, in which `walk` is; `None` if memory is short.
    pub(super) fn of_range(
        path: &Path,
        range: LiveRange,
        part: usize,
        walk: &BlockWalk,
        store: &PageStore,
    ) -> Option<Self> {
        let leaf_bytes = store.stream_bytes(LEAF_BYTES);
        let share = LEVEL_MARGIN * path.density_of_level(range);
        let bytes = (leaf_bytes as f64 * share) as usize;
        let bytes = bytes.min(leaf_bytes).max(LEVEL_BYTES);
        Self::new(path, store, bytes, walk, Last::Range(range, part))
    }

    fn new(
        path: &Path,
        store: &PageStore,
        bytes: usize,
        walk: &BlockWalk,
        last: Last,
    ) -> Option<Self> {
        let (passed, rest) = (walk.pace().scan_bytes(), walk.pace().rest());
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let bytes = bytes.min(rest.max(BOUNDED_BYTES_MIN));
        let mut ahead = Ahead {
            stream: Stream::new(store, ReadAhead::SCAN.fill, bytes, passed)?,
            last,
            over: false,
            begun: VecDeque::new(),
            named: VecDeque::new(),
            named_bytes: 0,
            unasked: VecDeque::new(),
            behind_bytes: u64::MAX,
        };
        ahead.ends_after(walk);
        ahead.look_on(path, store);
        Some(ahead)
    }

    /// Bounds what is read ahead by what the source's walk says of its end.
    pub(super) fn ends_after(&mut self, walk: &BlockWalk) {
        let rest = walk.pace().rest();
        self.stream.ends_after(rest);
        self.behind_bytes = match rest {
            u64::MAX => u64::MAX,
            rest => rest.saturating_sub(walk.unread_bytes()),
        };
    }

    /// The source reaches the next group. Returns the walk over the group, if it has begun.
    pub(super) fn enter(&mut self, path: &Path, store: &PageStore) -> Result<Option<BlockWalk>> {
        let begun = self.begun.pop_front();
        if begun.is_none()
            && let Some(coming) = self.take_named()
        {
            // Only indexes are in flight, perhaps the one of this group.
            let group = coming.group(path).map(|(group, _)| group);
            while group.is_some_and(|group| !store.has_index(group)) && !self.stream.is_empty() {
                let taken = self.stream.take_indexes(store);
                // This group is no longer named. The next call begins without read-ahead.
                taken.inspect_err(|_| self.named.clear())?;
            }
            self.look_on(path, store);
        }
        Ok(begun)
    }

    /// Whether the next group of the source is known.
    pub(super) fn knows_next(&self) -> bool {
        !self.begun.is_empty() || !self.named.is_empty()
    }

    fn take_named(&mut self) -> Option<Coming> {
        let (coming, bytes) = self.named.pop_front()?;
        self.named_bytes -= bytes;
        Some(coming)
    }

    /// Adds blocks to the stream while there is room, behind those of the source's own walk.
    pub(super) fn go_on(&mut self, path: &Path, store: &PageStore) -> Result<()> {
        loop {
            self.look_on(path, store);
            if let Some(last) = self.begun.back_mut() {
                last.send(store, &mut self.stream)?;
                if !last.is_sent() {
                    return Ok(());
                }
            }
            if self.begun.len() >= GROUPS_MAX || !self.stream.has_room() {
                return Ok(());
            }
            let next = self.named.front();
            let next = next.and_then(|(coming, _)| coming.group(path));
            let Some((group, handle)) = next else {
                return Ok(());
            };
            // The index is in flight already: do not read it twice.
            if !self.stream.is_empty() && !store.has_index(group) {
                return Ok(());
            }
            let Ok(index) = store.index_by(group, handle) else {
                // Behind a group without an index, nothing is known.
                self.over = true;
                self.named.clear();
                return Ok(());
            };
            let group = *group;
            let Some(coming) = self.take_named() else {
                return Ok(());
            };
            let bounds = coming.bounds(path);
            let walk = BlockWalk::new(&group, index, bounds, path.direction, ReadAhead::SCAN);
            self.begun.push_back(walk);
        }
    }

    /// Names groups, and adds their indexes to the stream. An index arrives after everything that
    /// was added before it. So it is added before the blocks in front of its group. Groups are
    /// named twice as far ahead as blocks are read, not counting the first group.
    fn look_on(&mut self, path: &Path, store: &PageStore) {
        let bytes_ahead = 2 * self.stream.bytes_ahead();
        loop {
            while let Some(group) = self.unasked.front() {
                if matches!(self.stream.add_index(store, group), Ok(false)) {
                    return;
                }
                self.unasked.pop_front();
            }
            let first_bytes = self.named.front().map_or(0, |(_, bytes)| *bytes);
            let is_far = !self.named.is_empty() && self.named_bytes - first_bytes >= bytes_ahead
                || self.is_enough();
            if self.over || is_far || self.named.len() >= GROUPS_MAX {
                return;
            }
            self.over = !matches!(self.name(path, store), Ok(true));
        }
    }

    /// Whether the groups that are known are all that the scan probably reaches.
    fn is_enough(&self) -> bool {
        if self.behind_bytes == u64::MAX {
            return false;
        }
        let begun: u64 = self.begun.iter().map(BlockWalk::unread_bytes).sum();
        begun + self.named_bytes >= self.behind_bytes
    }

    /// Names the group behind the last one; returns `false` if the scan reaches none.
    fn name(&mut self, path: &Path, store: &PageStore) -> Result<bool> {
        let coming = match &mut self.last {
            Last::Leaf(way) => {
                let branch = next_leaf(way, path, store, &mut self.unasked)?;
                branch.map(|(node, pivot)| {
                    let bytes = node.pivots[pivot].child.leaf_bytes();
                    (Coming::Leaf((node, pivot)), bytes)
                })
            }
            Last::Range(range, part) => {
                path.next_live_range(*range, *part).map(|(next, behind)| {
                    let before = (range.segment == next.segment).then_some(*part);
                    (*range, *part) = (next, behind);
                    let bytes = path.live_bytes(next, before, behind);
                    (Coming::Range(next), bytes)
                })
            }
        };
        let Some((coming, bytes)) = coming else {
            return Ok(false);
        };
        let group = coming.group(path).map(|(group, _)| *group);
        self.unasked.extend(group);
        self.named_bytes += bytes;
        self.named.push_back((coming, bytes));
        Ok(true)
    }
}

/// Moves the way to the next leaf; returns `None` if the scan reaches none. The first segments of
/// new nodes on the way are added to the groups whose indexes are needed.
fn next_leaf(
    way: &mut Vec<Branch>,
    path: &Path,
    store: &PageStore,
    unasked: &mut VecDeque<GroupRef>,
) -> Result<Option<Branch>> {
    let branches = way.iter().map(|(node, pivot)| (&**node, *pivot));
    if !path.goes_on_behind(branches) {
        return Ok(None);
    }
    while let Some((node, pivot)) = way.last_mut() {
        let next = match path.direction {
            Direction::Forward => Some(*pivot + 1).filter(|&next| next < node.pivots.len()),
            Direction::Backward => pivot.checked_sub(1),
        };
        if let Some(next) = next {
            *pivot = next;
            break;
        }
        way.pop();
    }
    while let Some((node, pivot)) = way.last() {
        let Child::Node { page, .. } = &node.pivots[*pivot].child else {
            return Ok(Some((node.clone(), *pivot)));
        };
        let child = load_child_of(store, node, *pivot, page)?;
        for level in &child.levels {
            let first = match path.direction {
                Direction::Forward => level.first(),
                Direction::Backward => level.last(),
            };
            unasked.extend(first.map(|segment| segment.group));
        }
        let pivot = match path.direction {
            Direction::Forward => 0,
            Direction::Backward => child.pivots.len() - 1,
        };
        way.push((child, pivot));
    }
    Ok(None)
}
