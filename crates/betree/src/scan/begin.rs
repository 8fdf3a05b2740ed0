//! How a scan begins: the sources that begin where it does come to their first records (decision
//! 0017).
//!
//! On its way there a source visits memory in several places that nobody visited lately: the
//! cache's table and entry, the block, its array of heads, the record. One source after the other
//! would wait for each of them. So every step is done for all sources before the next one, and asks
//! the processor for what that visits: the waits of all sources are one.

use terrapin_base::{Error, Result};
use terrapin_pages::GroupHandle;
use terrapin_pages::group::GroupRef;
use terrapin_structure::Direction;

use super::source::{Edge, Head, LEAF};
use super::{SOURCES_EXPECTED, TreeScan};
use crate::node::Child;
use crate::walk::{BlockWalk, ReadAhead};

impl TreeScan {
    /// Opens all sources that begin where the scan begins, reading what is not cached at once, and
    /// puts all in order.
    pub(super) fn begin(&mut self) -> Result<()> {
        let slots = 0..self.sources.len() as u16;
        for slot in slots.clone() {
            if self.begins_with_scan(slot) {
                self.prepare(slot)?;
                let begun = self.sources[usize::from(slot)].walk.is_some();
                self.runs += u16::from(begun && slot != LEAF);
            }
        }
        // Who asks for more records than a block has mostly comes to more of the leaf's.
        let leaf = self.sources[usize::from(LEAF)].walk.iter();
        let leaf = leaf.flat_map(|walk| walk.places(walk.near_blocks(self.expected)).skip(1));
        let firsts = self.walks().flat_map(|walk| walk.places(1));
        self.store.prefetch_blocks(firsts.chain(leaf));
        let mut waits = false;
        for source in &mut self.sources {
            if let Some(walk) = &mut source.walk {
                waits |= !walk.take_cached(&self.store) && !walk.is_over();
            }
        }
        if waits {
            self.read_together(self.expected, None)?;
        }
        self.walks().for_each(BlockWalk::prefetch_search);
        if let Some(leaf) = &mut self.sources[usize::from(LEAF)].walk
            && !waits
            && let behind @ 1.. = leaf.near_blocks(self.expected) - 1
        {
            leaf.near_is(&self.store, behind);
        }
        for (slot, source) in (0..).zip(&mut self.sources) {
            let (path, range) = (&self.path, source.range);
            if let Some(walk) = &mut source.walk {
                walk.search(|| path.bounds_of(slot, range));
            }
        }
        for slot in slots.clone() {
            if self.sources[usize::from(slot)].walk.is_some() {
                self.open(slot)?;
            }
        }
        self.order.reserve(self.sources.len().max(SOURCES_EXPECTED));
        for slot in slots {
            self.insert(slot)?;
        }
        Ok(())
    }

    /// Whether a source that nothing was read of begins where the scan does.
    fn begins_with_scan(&self, slot: u16) -> bool {
        let source = &self.sources[usize::from(slot)];
        let edge = match self.path.direction {
            Direction::Forward => source.range.lower,
            Direction::Backward => source.range.upper,
        };
        source.head == Head::Start || (source.head == Head::Pending && edge == Edge::Scan)
    }

    /// The walks that were begun.
    fn walks(&self) -> impl Iterator<Item = &BlockWalk> + Clone {
        self.sources
            .iter()
            .filter_map(|source| source.walk.as_ref())
    }

    /// The group that a source stands in or before, and the direct way to it, if there is one.
    fn group_of(&self, slot: u16) -> Option<(&GroupRef, Option<&GroupHandle>)> {
        match (slot, self.path.frames.last()) {
            (LEAF, Some(frame)) => match &frame.node.pivots[frame.pivot].child {
                Child::Leaf(group) => Some((group, Some(frame.node.leaf_handle(frame.pivot)))),
                Child::Node { .. } => None,
            },
            (LEAF, None) => Some((self.lone_leaf.as_ref()?, None)),
            _ => {
                let range = self.sources[usize::from(slot)].range;
                let (node, number, segment) = self.path.segment_of(range)?;
                let handle = node.segment_handle(range.level, number);
                Some((&segment.group, Some(handle)))
            }
        }
    }

    /// Begins a walk over a source's range.
    pub(super) fn begin_walk(&mut self, slot: u16) -> Result<()> {
        let Some((group, handle)) = self.group_of(slot) else {
            return Err(Error::internal("a scan's source without a group"));
        };
        let index = match handle {
            Some(handle) => self.store.index_by(group, handle)?,
            None => self.store.index(group)?,
        };
        let group = *group;
        let source = &mut self.sources[usize::from(slot)];
        let bounds = self.path.bounds_of(slot, source.range);
        let direction = self.path.direction;
        let walk = BlockWalk::new(&group, index, bounds, direction, ReadAhead::SCAN);
        source.walk = Some(walk.at_pace(source.pace));
        Ok(())
    }
}
