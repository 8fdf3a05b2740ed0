//! What a long scan reads ahead of a source: blocks of the group that it stands in and of those behind it are under way while the scan goes
//! over those before them, and the indexes of those groups before that. So neither a short group nor a node's end lets the device wait.
//!
//! What is wrong with a group behind is nobody's business here: the scan goes on without, and is told when it comes there.

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
const LEAF_BYTES: usize = 2 << 20;
/// and of a buffer level, which has fewer records in the same range.
const LEVEL_BYTES: usize = 256 << 10;

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
    /// The blocks of the group that the source stands in, as far as the walk there sent them, and of `begun`.
    pub(super) stream: Stream,
    last: Last,
    /// There is none behind it, or it could not be read.
    over: bool,
    /// Walks that have begun: their blocks are in the stream.
    begun: VecDeque<BlockWalk>,
    /// The groups behind those: their indexes are in the stream, or cached.
    named: VecDeque<Coming>,
    /// Bytes of these.
    named_bytes: u64,
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

    fn bytes(&self, path: &Path) -> u64 {
        self.group(path).map_or(0, |(group, _)| group.bytes)
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
    /// Nothing yet behind the leaf of the path, of a scan that passed so many bytes; none when memory is short.
    pub(super) fn of_leaf(path: &Path, passed: u64, store: &PageStore) -> Option<Self> {
        let branches = path.frames.iter();
        let way = branches.map(|frame| (frame.node.clone(), frame.pivot));
        Self::new(store, LEAF_BYTES, passed, Last::Leaf(way.collect()))
    }

    /// Nothing yet behind a live range, of a scan that passed so many bytes; none when memory is short.
    pub(super) fn of_range(
        range: LiveRange,
        part: usize,
        passed: u64,
        store: &PageStore,
    ) -> Option<Self> {
        Self::new(store, LEVEL_BYTES, passed, Last::Range(range, part))
    }

    fn new(store: &PageStore, bytes: usize, passed: u64, last: Last) -> Option<Self> {
        Some(Ahead {
            stream: Stream::new(store, ReadAhead::SCAN.fill, bytes, passed)?,
            last,
            over: false,
            begun: VecDeque::new(),
            named: VecDeque::new(),
            named_bytes: 0,
        })
    }

    /// The source comes to the next group: the walk over it, if that has begun.
    pub(super) fn enter(&mut self, path: &Path) -> Option<BlockWalk> {
        let begun = self.begun.pop_front();
        if begun.is_none() {
            self.take_named(path);
        }
        begun
    }

    /// Whether it knows the group that the source comes to next.
    pub(super) fn knows_next(&self) -> bool {
        !self.begun.is_empty() || !self.named.is_empty()
    }

    fn take_named(&mut self, path: &Path) -> Option<Coming> {
        let coming = self.named.pop_front()?;
        self.named_bytes -= coming.bytes(path);
        Some(coming)
    }

    /// Adds to the stream what there is room for, behind what the walk over the source's own group has in it.
    pub(super) fn go_on(&mut self, path: &Path, store: &PageStore) -> Result<()> {
        loop {
            if let Some(last) = self.begun.back_mut() {
                last.send(store, &mut self.stream)?;
                if !last.is_sent() {
                    return Ok(());
                }
            }
            if self.begun.len() >= GROUPS_MAX || !self.stream.has_room() {
                return Ok(());
            }
            // An index comes when all that was added before it was taken: it is there in time if it is asked for twice as far ahead as blocks are.
            let bytes_ahead = 2 * self.stream.bytes_ahead();
            while !self.over
                && self.named.len() < GROUPS_MAX
                && (self.named.is_empty() || self.named_bytes < bytes_ahead)
            {
                self.over = !matches!(self.name(path, store), Ok(true));
            }
            let next = self.named.front().and_then(|next| next.group(path));
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
            let Some(coming) = self.take_named(path) else {
                return Ok(());
            };
            let bounds = coming.bounds(path);
            let walk = BlockWalk::new(&group, index, bounds, path.direction, ReadAhead::SCAN);
            self.begun.push_back(walk);
        }
    }

    /// Names the group behind the last; `false` when the scan comes to none.
    fn name(&mut self, path: &Path, store: &PageStore) -> Result<bool> {
        let coming = match &mut self.last {
            Last::Leaf(way) => next_leaf(way, path, store, &mut self.stream)?.map(Coming::Leaf),
            Last::Range(range, part) => {
                path.next_live_range(*range, *part).map(|(next, behind)| {
                    (*range, *part) = (next, behind);
                    Coming::Range(next)
                })
            }
        };
        let Some(coming) = coming else {
            return Ok(false);
        };
        if let Some((group, _)) = coming.group(path) {
            self.stream.add_index(store, group)?;
            self.named_bytes += group.bytes;
        }
        self.named.push_back(coming);
        Ok(true)
    }
}

/// Makes the way lead to the leaf behind; none when the scan comes to none. Indexes of the first segments of nodes that are new on it are
/// added to the stream.
fn next_leaf(
    way: &mut Vec<Branch>,
    path: &Path,
    store: &PageStore,
    stream: &mut Stream,
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
            if let Some(segment) = first {
                stream.add_index(store, &segment.group)?;
            }
        }
        let pivot = match path.direction {
            Direction::Forward => 0,
            Direction::Backward => child.pivots.len() - 1,
        };
        way.push((child, pivot));
    }
    Ok(None)
}
