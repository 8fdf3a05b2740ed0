//! Moving a scan on to a key.
//!
//! A seek to a near key mostly stays in the blocks of the sources: each source before the key
//! searches its block. If a block has no record at or behind the key, the path begins again at the
//! key. The scan's end stays.

use std::ops::Bound;

use terrapin_base::Result;
use terrapin_structure::Direction;

use super::TreeScan;
use super::source::{Item, Source};

impl TreeScan {
    /// Moves to the first record at or behind `key`, unless the scan has passed it.
    pub(super) fn move_to(&mut self, key: &[u8]) -> Result<()> {
        if !self.has_before(key) {
            return Ok(());
        }
        self.returned = false;
        loop {
            // A source reaches the key only if its block has a record at or behind the key.
            let first = self.order[0].source_index;
            let direction = self.path.direction;
            if !self.sources[usize::from(first)].move_to(key, direction) {
                return self.begin_at(key);
            }
            self.sort_first()?;
            if !self.has_before(key) {
                return Ok(());
            }
        }
    }

    /// Whether the first source comes before a key, or its record was returned and comes before it.
    fn has_before(&self, key: &[u8]) -> bool {
        let Some(first) = self.order.first() else {
            return false;
        };
        let source = &self.sources[usize::from(first.source_index)];
        let next = match source.item {
            // Of this leaf, nothing was read: the scan is at the start of its key range.
            Item::Start => match self.path.start() {
                Some(start) => (start, &[][..]),
                None => return true,
            },
            Item::End => return true,
            _ => source.key(first.source_index, &self.path),
        };
        self.path.compare(next, (key, &[])).is_lt()
    }

    /// Begins again at a key, which the scan has not passed.
    fn begin_at(&mut self, key: &[u8]) -> Result<()> {
        let start = match self.path.direction {
            Direction::Forward => &mut self.path.lower,
            Direction::Backward => &mut self.path.upper,
        };
        let mut memory = match std::mem::replace(start, Bound::Unbounded) {
            Bound::Included(memory) | Bound::Excluded(memory) => memory,
            Bound::Unbounded => Vec::new(),
        };
        memory.clear();
        memory.extend_from_slice(key);
        *start = Bound::Included(memory);
        self.sources.clear();
        self.order.clear();
        let root = self.path.frames.drain(..).next().map(|frame| frame.node);
        if self.path.is_empty() {
            self.done = true;
            return Ok(());
        }
        // The scan began in as many runs as it did: these are further visits.
        let runs = self.runs;
        match root {
            Some(root) => {
                self.push_frame(root, true);
                self.descend(true)?;
            }
            None => self.enter_leaf(true),
        }
        self.begin()?;
        self.runs = runs;
        Ok(())
    }
}

impl Source {
    /// Moves to the first record of the block at or behind a key. Returns false, and does nothing,
    /// if the source is at no record, or the block has no such record inside the range.
    fn move_to(&mut self, key: &[u8], direction: Direction) -> bool {
        let (Item::Record, Some(block)) = (self.item, &self.block) else {
            return false;
        };
        let records = match direction {
            Direction::Forward => {
                let (Ok(at) | Err(at)) = block.search(key);
                at.max(self.at)..self.at + self.following + 1
            }
            Direction::Backward => {
                let behind = block.search(key).map_or_else(|at| at, |at| at + 1);
                self.at - self.following..behind.min(self.at + 1)
            }
        };
        if records.is_empty() {
            return false;
        }
        let block = block.clone();
        self.enter(block, records, direction);
        true
    }
}
