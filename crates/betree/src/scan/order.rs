//! The order of a scan's sources by their next keys.

use std::cmp::Ordering;

use terrapin_base::Result;
use terrapin_pages::heads::head_of_pieces;

use super::path::LEAF;
use super::source::Item;
use super::{Queued, TreeScan};

impl TreeScan {
    /// Moves the first source on and sorts it in again.
    #[inline]
    pub(super) fn move_first(&mut self) -> Result<()> {
        self.advance(self.order[0].source_index)?;
        self.sort_first()
    }

    /// Moves the first source, which changed, to its position in the order.
    #[inline]
    pub(super) fn sort_first(&mut self) -> Result<()> {
        let source_index = self.order[0].source_index;
        if self.sources[usize::from(source_index)].item == Item::End {
            self.order.remove(0);
            return Ok(());
        }
        self.sink(self.queued(source_index))
    }

    /// Moves the first entry of the order, which is now `queued`, to its position.
    #[inline(always)]
    pub(super) fn sink(&mut self, queued: Queued) -> Result<()> {
        let mut at = 0;
        while let Some(&next) = self.order.get(at + 1) {
            match self.compare(queued, next) {
                Ordering::Less => break,
                Ordering::Greater => self.order[at] = next,
                Ordering::Equal => {
                    self.order.remove(at);
                    return self.insert(queued.source_index);
                }
            }
            at += 1;
        }
        self.order[at] = queued;
        Ok(())
    }

    /// Sorts a source in. If two records have one key, the older source moves on until all keys
    /// differ.
    pub(super) fn insert(&mut self, mut source_index: u16) -> Result<()> {
        'sorting: while self.sources[usize::from(source_index)].item != Item::End {
            let queued = self.queued(source_index);
            for at in 0..self.order.len() {
                let other = self.order[at];
                match self.compare(other, queued) {
                    Ordering::Less => {}
                    Ordering::Greater => {
                        self.order.insert(at, queued);
                        return Ok(());
                    }
                    Ordering::Equal => {
                        if source_index != LEAF
                            && (other.source_index == LEAF || source_index < other.source_index)
                        {
                            self.order[at] = queued;
                            source_index = other.source_index;
                        }
                        self.advance(source_index)?;
                        continue 'sorting;
                    }
                }
            }
            self.order.push(queued);
            return Ok(());
        }
        Ok(())
    }

    /// The entry of a source in the order.
    #[inline]
    pub(super) fn queued(&self, source_index: u16) -> Queued {
        let source = &self.sources[usize::from(source_index)];
        let head = match source.item {
            Item::Start => 0,
            Item::Record => source.key_head,
            _ => self
                .path
                .in_order(head_of_pieces(source.key(source_index, &self.path))),
        };
        Queued { head, source_index }
    }

    /// Which of two sources comes first in the scan's direction. Only two records with one key are
    /// equal.
    #[inline]
    pub(super) fn compare(&self, a: Queued, b: Queued) -> Ordering {
        match a.head.cmp(&b.head) {
            Ordering::Equal => self.compare_keys(a.source_index, b.source_index),
            unequal => unequal,
        }
    }

    /// Like [`TreeScan::compare`], if the heads are equal.
    #[inline(never)]
    pub(super) fn compare_keys(&self, a: u16, b: u16) -> Ordering {
        let (left, right) = (&self.sources[usize::from(a)], &self.sources[usize::from(b)]);
        if left.item == Item::Start || right.item == Item::Start {
            return (left.item != Item::Start)
                .cmp(&(right.item != Item::Start))
                .then(a.cmp(&b));
        }
        let by_key = self
            .path
            .compare(left.key(a, &self.path), right.key(b, &self.path));
        match by_key {
            Ordering::Equal if left.item == Item::Record && right.item == Item::Record => {
                Ordering::Equal
            }
            Ordering::Equal => left
                .rank(self.path.direction)
                .cmp(&right.rank(self.path.direction))
                .then(a.cmp(&b)),
            unequal => unequal,
        }
    }
}
