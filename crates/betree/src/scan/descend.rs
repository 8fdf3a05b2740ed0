//! The movement of a scan's path: from the root to the first leaf, and on to the next leaf.

use std::ops::Bound;

use terrapin_base::Result;
use terrapin_structure::Direction;

use super::TreeScan;
use super::path::{Edge, LEAF, PathFrame, PathNode};
use super::source::{Item, Source};
use crate::load::load_child_of;
use crate::node::Child;
use terrapin_runs::bounds::as_slice;
use terrapin_runs::walk::{BlockWalk, ReadAhead};

impl TreeScan {
    /// Goes on to the next leaf, at the end of the current leaf's key range.
    pub(super) fn next_leaf(&mut self) -> Result<()> {
        self.order.retain(|queued| queued.source_index != LEAF);
        loop {
            let Some(frame) = self.path.frames.last_mut() else {
                return Ok(());
            };
            match self.path.direction {
                Direction::Forward if frame.pivot + 1 < frame.node.pivots.len() => {
                    frame.pivot += 1;
                    break;
                }
                Direction::Backward if frame.pivot > 0 => {
                    frame.pivot -= 1;
                    break;
                }
                _ => {}
            }
            let from = frame.sources_from;
            self.order
                .retain(|queued| usize::from(queued.source_index) < from);
            self.sources.truncate(from);
            self.path.frames.pop();
        }
        let old = self.sources.len();
        self.descend(false)?;
        for source_index in old as u16..self.sources.len() as u16 {
            self.catch_up(source_index);
            self.insert(source_index)?;
        }
        self.insert(LEAF)
    }

    /// Sets the pace of a level that a long scan reaches. The level then reads as far ahead of its
    /// records as the leaves do.
    pub(super) fn keep_pace(&mut self, source_index: u16) {
        let leaf = &self.sources[usize::from(LEAF)];
        let pace = leaf.walk.as_ref().map_or(leaf.pace, BlockWalk::pace);
        if source_index == LEAF || !pace.is_long(ReadAhead::SCAN) {
            return;
        }
        let source = &mut self.sources[usize::from(source_index)];
        let pace = pace.part(self.path.density_of_level(source.range));
        source.pace = source.pace.or_faster(pace);
    }

    /// Starts reading a level of a node that a long scan reaches, if the level begins there.
    pub(super) fn catch_up(&mut self, source_index: u16) {
        self.keep_pace(source_index);
        let source = &self.sources[usize::from(source_index)];
        // Ignores errors: the damage may be far ahead, and is reported when the scan reaches it.
        if source.item == Item::Pending
            && source.pace.is_long(ReadAhead::SCAN)
            && self.prepare(source_index).is_ok()
        {
            let source = &mut self.sources[usize::from(source_index)];
            source.go_ahead(source_index, &self.path, &self.store);
            source.send(&self.store);
        }
    }

    /// Goes down from the last frame to a leaf. `seek` is set at the start of the scan.
    pub(super) fn descend(&mut self, seek: bool) -> Result<()> {
        while let Some(frame) = self.path.frames.last() {
            let Child::Node { page, .. } = &frame.node.pivots[frame.pivot].child else {
                self.enter_leaf(seek);
                break;
            };
            let node = load_child_of(&self.store, &frame.node, frame.pivot, page)?;
            self.push_frame(PathNode::Below(node), seek);
        }
        Ok(())
    }

    /// Adds a node to the path, and a source for each of its levels.
    pub(super) fn push_frame(&mut self, node: PathNode, seek: bool) {
        if self.sources.is_empty() {
            self.sources.push(Source::new(0, 0, 0, 0));
        }
        let direction = self.path.direction;
        let pivot = match (direction, seek) {
            (Direction::Forward, false) => 0,
            (Direction::Backward, false) => node.pivots.len() - 1,
            (Direction::Forward, true) => match &self.path.lower {
                Bound::Unbounded => 0,
                Bound::Included(key) | Bound::Excluded(key) => node.pivot_of(key),
            },
            (Direction::Backward, true) => match &self.path.upper {
                Bound::Unbounded => node.pivots.len() - 1,
                Bound::Included(key) => node.pivot_of(key),
                Bound::Excluded(key) => node.pivot_before(key),
            },
        };
        let start = match (seek, direction) {
            (false, _) => Bound::Unbounded,
            (true, Direction::Forward) => as_slice(&self.path.lower),
            (true, Direction::Backward) => as_slice(&self.path.upper),
        };
        let start = match start {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
        };
        let frame = self.path.frames.len();
        let sources_from = self.sources.len();
        for (level, segments) in node
            .levels
            .iter()
            .enumerate()
            .filter(|(_, segments)| !segments.is_empty())
        {
            // The scan begins in the first segment that ends at or behind its first key.
            let (segment, part) = match (direction, start) {
                (Direction::Forward, start) => {
                    let segment = start.map_or(0, |key| node.segments_below(level, key));
                    let part = segments.get(segment).map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) < pivot)
                    });
                    (segment, part)
                }
                (Direction::Backward, start) => {
                    let segment =
                        start.map_or(segments.len(), |key| node.segments_from(level, key));
                    let last = segment.checked_sub(1).map(|last| &segments[last]);
                    let part = last.map_or(0, |s| {
                        s.live.partition_point(|l| usize::from(l.pivot) <= pivot)
                    });
                    (segment, part)
                }
            };
            self.sources.push(Source::new(frame, level, segment, part));
        }
        self.path.frames.push(PathFrame {
            node,
            pivot,
            sources_from,
        });
        for source_index in sources_from..self.sources.len() {
            self.next_live_range(source_index as u16);
        }
    }

    /// Moves a buffer level's source before its next live range.
    pub(super) fn next_live_range(&mut self, source_index: u16) {
        let source = &mut self.sources[usize::from(source_index)];
        match self.path.next_live_range(source.range, source.part) {
            Some((range, part)) => {
                (source.range, source.part) = (range, part);
                source.end_walk();
                source.item = Item::Pending;
            }
            None => {
                source.ahead = None;
                source.item = Item::End;
            }
        }
    }

    /// Moves the leaf's source before the leaf of the path. Only the scan's own bounds can be
    /// inside the leaf.
    pub(super) fn enter_leaf(&mut self, seek: bool) {
        let cut_start = if seek { Edge::Scan } else { Edge::Open };
        let cut_end = match self.path.leaf_has_successor() {
            true => Edge::Open,
            false => Edge::Scan,
        };
        if self.sources.is_empty() {
            self.sources.push(Source::new(0, 0, 0, 0));
        }
        let source = &mut self.sources[usize::from(LEAF)];
        (source.range.lower, source.range.upper) = match self.path.direction {
            Direction::Forward => (cut_start, cut_end),
            Direction::Backward => (cut_end, cut_start),
        };
        source.end_walk();
        source.block = None;
        source.item = Item::Start;
    }
}
