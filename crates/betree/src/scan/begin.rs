//! The start of a scan: the sources that begin at its first key move to their first records
//! (decision 0017).
//!
//! On its way there a source visits memory that is probably not in the processor's cache. It visits
//! the page cache's table and entry, the block, its array of heads, and the record. Handling one
//! source after the other would wait for each of these. So each step is done for all sources before
//! the next step, and prefetches the memory of the next step. Then the waits of all sources
//! overlap.

use terrapin_base::{Error, Result};
use terrapin_pages::GroupHandle;
use terrapin_pages::group::GroupRef;
use terrapin_structure::Direction;

use super::path::{Edge, LEAF};
use super::source::Item;
use super::{SOURCES_EXPECTED, TreeScan};
use crate::node::Child;
use terrapin_runs::walk::{BlockWalk, ReadAhead};

impl TreeScan {
    /// Opens all sources that begin where the scan begins, reads the missing blocks at once, and
    /// sorts all sources.
    pub(super) fn begin(&mut self) -> Result<()> {
        let source_indexes = 0..self.sources.len() as u16;
        for source_index in source_indexes.clone() {
            if self.begins_with_scan(source_index) {
                self.prepare(source_index)?;
                let begun = self.sources[usize::from(source_index)].walk.is_some();
                self.runs += u16::from(begun && source_index != LEAF);
            }
        }
        // A scan for more records than a block has usually reaches further blocks of the leaf.
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
        for (source_index, source) in (0..).zip(&mut self.sources) {
            let (path, range) = (&self.path, source.range);
            if let Some(walk) = &mut source.walk {
                walk.search(|| path.bounds_of(source_index, range));
            }
        }
        for source_index in source_indexes.clone() {
            if self.sources[usize::from(source_index)].walk.is_some() {
                self.open(source_index)?;
            }
        }
        self.order.reserve(self.sources.len().max(SOURCES_EXPECTED));
        for source_index in source_indexes {
            self.insert(source_index)?;
        }
        Ok(())
    }

    /// Whether a source of which nothing was read begins where the scan begins.
    fn begins_with_scan(&self, source_index: u16) -> bool {
        let source = &self.sources[usize::from(source_index)];
        let edge = match self.path.direction {
            Direction::Forward => source.range.lower,
            Direction::Backward => source.range.upper,
        };
        source.item == Item::Start || (source.item == Item::Pending && edge == Edge::Scan)
    }

    /// The walks that have begun.
    fn walks(&self) -> impl Iterator<Item = &BlockWalk> + Clone {
        self.sources
            .iter()
            .filter_map(|source| source.walk.as_ref())
    }

    /// The current or next group of a source, and its handle, if it has one.
    fn group_of(&self, source_index: u16) -> Option<(&GroupRef, Option<&GroupHandle>)> {
        match (source_index, self.path.frames.last()) {
            (LEAF, Some(frame)) => match &frame.node.pivots[frame.pivot].child {
                Child::Leaf(group) => Some((group, Some(frame.node.leaf_handle(frame.pivot)))),
                Child::Node { .. } => None,
            },
            (LEAF, None) => Some((self.lone_leaf.as_ref()?, None)),
            _ => {
                let range = self.sources[usize::from(source_index)].range;
                let (node, number, segment) = self.path.segment_of(range)?;
                let handle = node.segment_handle(range.level, number);
                Some((&segment.group, Some(handle)))
            }
        }
    }

    /// Starts a walk over a source's range.
    pub(super) fn begin_walk(&mut self, source_index: u16) -> Result<()> {
        let Some((group, handle)) = self.group_of(source_index) else {
            return Err(Error::internal("a source of a scan has no group"));
        };
        let index = match handle {
            Some(handle) => self.store.index_by(group, handle)?,
            None => self.store.index(group)?,
        };
        let group = *group;
        let source = &mut self.sources[usize::from(source_index)];
        let bounds = self.path.bounds_of(source_index, source.range);
        let direction = self.path.direction;
        let walk = BlockWalk::new(&group, index, bounds, direction, ReadAhead::SCAN);
        source.walk = Some(walk.at_pace(source.pace));
        Ok(())
    }
}
