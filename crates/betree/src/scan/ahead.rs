//! What a long scan reads ahead of a source: blocks of the group that it stands in and of those
//! behind it are under way while the scan goes over those before them, and the indexes of those
//! groups before that. So neither a short group nor a node's end lets the device wait.
//!
//! All sources are to be as far ahead in keys: who has fewer records in the same range has fewer
//! bytes under way. One that had too few would make the scan wait again and again, however much the
//! others have.
//!
//! What is wrong with a group behind is nobody's business here: the scan goes on without, and is
//! told when it comes there.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::group::GroupRef;
use terrapin_pages::{GroupHandle, PageStore};
use terrapin_structure::{Direction, KeyBounds};

use super::source::{LiveRange, Path};
use crate::bounds::as_slice;
use crate::load::{LoadedNode, load_child_of};
use crate::node::Child;
use crate::stream::Stream;
use crate::walk::{BlockWalk, ReadAhead};

/// Most groups that are named, or begun.
const GROUPS_MAX: usize = 64;
/// Most bytes under way of leaves,
const LEAF_BYTES: usize = 4 << 20;
/// and fewest of a buffer level, which has as many for each of a leaf's as it has records, and half
/// as many more: they do not lie evenly.
const LEVEL_BYTES: usize = 256 << 10;
const LEVEL_MARGIN: f64 = 1.5;

/// A node, and which of its children is meant.
type Branch = (Arc<LoadedNode>, usize);

/// A group that a source comes to.
enum Coming {
    /// A leaf, by its parent.
    Leaf(Branch),
    /// A live range of a buffer level.
    Range(LiveRange),
}

/// The last group that is known, behind which others are looked for.
enum Last {
    /// The way from the root to a leaf.
    Leaf(Vec<Branch>),
    /// A live range, and the next part of its segment.
    Range(LiveRange, usize),
}

/// The groups that a source comes to, in the order in which it does.
pub(super) struct Ahead {
    /// The blocks of the group that the source stands in, as far as the walk there sent them, and
    /// of `begun`.
    pub(super) stream: Stream,
    last: Last,
    /// There is none behind it, or it could not be read.
    over: bool,
    /// Walks that have begun: their blocks are in the stream.
    begun: VecDeque<BlockWalk>,
    /// The groups behind those, and how many bytes the source has there.
    named: VecDeque<(Coming, u64)>,
    /// The sum of these.
    named_bytes: u64,
    /// Groups whose indexes are to come into the stream next.
    unasked: VecDeque<GroupRef>,
}

impl Coming {
    /// The group, and the direct way to it; none is not possible.
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
            // Only the scan's end can lie inside it.
            Coming::Leaf(_) => (as_slice(&path.lower), as_slice(&path.upper)),
            Coming::Range(range) => path.bounds_of_range(*range),
        }
    }
}

impl Ahead {
    /// Behind the leaf of the path, of a scan that passed so many bytes; none when memory is short.
    pub(super) fn of_leaf(path: &Path, passed: u64, store: &PageStore) -> Option<Self> {
        let branches = path.frames.iter();
        let way = branches.map(|frame| (Arc::clone(&frame.node), frame.pivot));
        let last = Last::Leaf(way.collect());
        Self::new(path, store, LEAF_BYTES, passed, last)
    }

    /// Behind a live range, of a scan that passed so many bytes; none when memory is short.
    pub(super) fn of_range(
        path: &Path,
        range: LiveRange,
        part: usize,
        passed: u64,
        store: &PageStore,
    ) -> Option<Self> {
        let leaf_bytes = store.stream_bytes(LEAF_BYTES);
        let share = LEVEL_MARGIN * path.density_of_level(range);
        let bytes = (leaf_bytes as f64 * share) as usize;
        let bytes = bytes.min(leaf_bytes).max(LEVEL_BYTES);
        Self::new(path, store, bytes, passed, Last::Range(range, part))
    }

    fn new(path: &Path, store: &PageStore, bytes: usize, passed: u64, last: Last) -> Option<Self> {
        let mut ahead = Ahead {
            stream: Stream::new(store, ReadAhead::SCAN.fill, bytes, passed)?,
            last,
            over: false,
            begun: VecDeque::new(),
            named: VecDeque::new(),
            named_bytes: 0,
            unasked: VecDeque::new(),
        };
        ahead.look_on(path, store);
        Some(ahead)
    }

    /// The source comes to the next group: the walk over it, if that has begun.
    pub(super) fn enter(&mut self, path: &Path, store: &PageStore) -> Result<Option<BlockWalk>> {
        let begun = self.begun.pop_front();
        if begun.is_none()
            && let Some(coming) = self.take_named()
        {
            // There is nothing under way but indexes, perhaps this one.
            let group = coming.group(path).map(|(group, _)| group);
            while group.is_some_and(|group| !store.has_index(group)) && !self.stream.is_empty() {
                let taken = self.stream.take_indexes(store);
                // This group is gone from what is named: who comes again begins without all that.
                taken.inspect_err(|_| self.named.clear())?;
            }
            self.look_on(path, store);
        }
        Ok(begun)
    }

    /// Whether it knows the group that the source comes to next.
    pub(super) fn knows_next(&self) -> bool {
        !self.begun.is_empty() || !self.named.is_empty()
    }

    fn take_named(&mut self) -> Option<Coming> {
        let (coming, bytes) = self.named.pop_front()?;
        self.named_bytes -= bytes;
        Some(coming)
    }

    /// Adds to the stream what there is room for, behind what the walk over the source's own group
    /// has in it.
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
            // It is on its way: nothing is read twice.
            if !self.stream.is_empty() && !store.has_index(group) {
                return Ok(());
            }
            let Ok(index) = store.index_by(group, handle) else {
                // From here on it knows nothing.
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

    /// Names groups, and asks for their indexes: an index comes when all that was added before it
    /// was taken, so it is there in time if it is asked for before the blocks in front of its group
    /// are, and behind the first group twice as far ahead as blocks are.
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
            let is_far = !self.named.is_empty() && self.named_bytes - first_bytes >= bytes_ahead;
            if self.over || is_far || self.named.len() >= GROUPS_MAX {
                return;
            }
            self.over = !matches!(self.name(path, store), Ok(true));
        }
    }

    /// Names the group behind the last; `false` when the scan comes to none.
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

/// Makes the way lead to the leaf behind; none when the scan comes to none. The first segments of
/// nodes that are new on it are added to those whose indexes are to be asked for.
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
