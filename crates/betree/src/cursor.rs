//! A group cursor walks the records of one page group inside a key range, in either direction, and never holds more
//! decoded blocks than its read-ahead allows: blocks that it has passed are let go.
//!
//! Merges read every block of their range once, so they ask for large runs from the start and leave the page cache
//! alone. Scans begin with the one block that they need, through the cache, and double their reads as they go on.
//! Keys are put together in one reused buffer; there is no allocation per record.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{PageId, Result, mutant};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::message::Message;
use terrapin_pages::{Fill, PageStore};
use terrapin_structure::{Direction, KeyBounds, MessageCursor};

use crate::bounds::{is_empty, lets_in_above, lets_in_below};

/// Room that a cursor's key gets beyond its first: the others of a block are rarely so much longer.
const KEY_ROOM_BYTES: usize = 24;

/// How far a cursor reads ahead, and what it leaves in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// Bytes of the first read after the first block; every further one is twice as long.
    pub(crate) first_bytes: u32,
    /// Most bytes of one read.
    pub(crate) max_bytes: u32,
    /// The first read is one block.
    pub(crate) one_block_first: bool,
    /// What becomes of the first block in the cache.
    pub(crate) fill_first: Fill,
    /// What becomes of the blocks read ahead.
    pub(crate) fill: Fill,
}

impl ReadAhead {
    /// For merges: the whole range is going to be read, once. A dozen cursors of this kind hold 3 MiB.
    pub(crate) const MERGE: ReadAhead = ReadAhead {
        first_bytes: 256 << 10,
        max_bytes: 256 << 10,
        one_block_first: false,
        fill_first: Fill::No,
        fill: Fill::No,
    };
    /// For scans: nobody knows how far they go.
    pub(crate) const SCAN: ReadAhead = ReadAhead {
        first_bytes: 8 << 10,
        max_bytes: 256 << 10,
        one_block_first: true,
        fill_first: Fill::Low,
        fill: Fill::Low,
    };
}

/// Walks the records of a group that lie inside a range.
pub(crate) struct GroupCursor {
    store: Arc<PageStore>,
    group: GroupRef,
    index: Arc<GroupIndex>,
    direction: Direction,
    ahead: ReadAhead,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// Blocks that can hold records of the range.
    blocks: Range<usize>,
    /// Blocks of the range that are not yet read, from `next_block` in the cursor's direction.
    next_block: usize,
    unread: usize,
    next_read_bytes: u32,
    any_read: bool,
    /// Blocks read and not yet reached, in the cursor's direction.
    read: VecDeque<Arc<Block>>,
    /// The number of the block behind the current one, in the cursor's direction.
    next_number: usize,
    block: Option<Arc<Block>>,
    /// The current record, and how many follow it in the block, inside the range.
    at: usize,
    following: usize,
    /// Where the current value lies in the block; none for a delete.
    value: Option<Range<usize>>,
    /// The current key; its first `prefix_bytes` are the block's prefix.
    key: Vec<u8>,
    prefix_bytes: usize,
    run: Vec<Arc<Block>>,
}

impl GroupCursor {
    /// A forward cursor for a merge over `lo` (inclusive) to `hi` (exclusive), on its first record.
    pub(crate) fn for_merge(
        store: &Arc<PageStore>,
        group: &GroupRef,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
        ahead: ReadAhead,
    ) -> Result<Self> {
        let bounds = (
            lo.map_or(Bound::Unbounded, Bound::Included),
            hi.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let mut cursor = Self::prepare(store, group, bounds, Direction::Forward, ahead)?;
        cursor.start()?;
        Ok(cursor)
    }

    /// A cursor that stands nowhere yet and has read the index only: [`GroupCursor::start`] moves it to its first record.
    pub(crate) fn prepare(
        store: &Arc<PageStore>,
        group: &GroupRef,
        bounds: KeyBounds<'_>,
        direction: Direction,
        ahead: ReadAhead,
    ) -> Result<Self> {
        let index = store.index(group)?;
        let ((lower, upper), blocks) = cut_to_group(&index, bounds.0, bounds.1);
        let next_block = match direction {
            Direction::Forward => blocks.start,
            Direction::Backward => blocks.end.saturating_sub(1),
        };
        Ok(GroupCursor {
            store: store.clone(),
            group: *group,
            index,
            direction,
            ahead,
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            unread: blocks.len(),
            blocks,
            next_block,
            next_read_bytes: ahead.first_bytes,
            any_read: false,
            read: VecDeque::new(),
            next_number: next_block,
            block: None,
            at: 0,
            following: 0,
            value: None,
            key: Vec::new(),
            prefix_bytes: 0,
            run: Vec::new(),
        })
    }

    /// The block that [`GroupCursor::start`] is going to ask for, so that a caller can read those of many cursors at once.
    pub(crate) fn first_want(&self) -> Option<(Arc<GroupIndex>, usize)> {
        (self.unread > 0 && !self.any_read).then(|| (self.index.clone(), self.next_block))
    }

    /// Hands over the block that [`GroupCursor::first_want`] named.
    pub(crate) fn give_first(&mut self, block: Arc<Block>) {
        self.read.push_back(block);
        self.any_read = true;
        self.passed(1);
    }

    /// Moves to the first record of the range.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.next_in_blocks()
    }

    /// The group that the cursor walks.
    pub(crate) fn group(&self) -> &GroupRef {
        &self.group
    }

    /// The group that it goes over.
    pub(crate) fn page(&self) -> PageId {
        self.group.id
    }

    /// Bytes of decoded blocks that the cursor may come to hold.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        u64::from(self.ahead.max_bytes).min(self.group.bytes)
    }

    /// The current key, none behind the last record.
    #[inline]
    pub(crate) fn current_key(&self) -> Option<&[u8]> {
        self.block.is_some().then_some(&self.key[..])
    }

    /// The current message; a delete behind the last record.
    #[inline]
    pub(crate) fn current_message(&self) -> Message<'_> {
        match (&self.block, &self.value) {
            (Some(block), Some(value)) => Message::Put(&block.bytes()[value.clone()]),
            _ => Message::Delete,
        }
    }

    /// Moves to the next record in the cursor's direction.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<()> {
        match &self.block {
            Some(block) if self.following > 0 => {
                self.following -= 1;
                match self.direction {
                    Direction::Forward => self.at += 1,
                    Direction::Backward => self.at -= 1,
                }
                let entry = block.entry(self.at);
                let short = usize::from(mutant::active(65));
                self.key.truncate(self.prefix_bytes.saturating_sub(short));
                self.key.extend_from_slice(entry.suffix);
                self.value = (!entry.is_delete).then_some(entry.value);
                Ok(())
            }
            _ => self.next_in_blocks(),
        }
    }

    /// Goes on to the first record of the next block that has one in the range.
    fn next_in_blocks(&mut self) -> Result<()> {
        loop {
            self.block = None;
            let Some(block) = self.next_block_read()? else {
                return Ok(());
            };
            let number = self.next_number;
            self.next_number = match self.direction {
                Direction::Forward => number + 1,
                Direction::Backward => number.wrapping_sub(1),
            };
            let from = if number == self.blocks.start {
                lower_position(&block, &self.lower)
            } else {
                0
            };
            let to = if number + 1 == self.blocks.end {
                upper_position(&block, &self.upper)
            } else {
                block.len()
            };
            if from < to {
                self.at = match self.direction {
                    Direction::Forward => from,
                    Direction::Backward => to - 1,
                };
                self.following = to - from - 1;
                let entry = block.entry(self.at);
                self.key.clear();
                self.key
                    .reserve(block.prefix().len() + entry.suffix.len() + KEY_ROOM_BYTES);
                self.key.extend_from_slice(block.prefix());
                self.prefix_bytes = self.key.len();
                self.key.extend_from_slice(entry.suffix);
                self.value = (!entry.is_delete).then_some(entry.value);
                self.block = Some(block);
                return Ok(());
            }
        }
    }

    /// The next block in the cursor's direction, from what was read ahead or from the store.
    fn next_block_read(&mut self) -> Result<Option<Arc<Block>>> {
        if let Some(block) = self.read.pop_front() {
            return Ok(Some(block));
        }
        if self.unread == 0 {
            return Ok(None);
        }
        if !self.any_read && self.ahead.one_block_first {
            self.any_read = true;
            let block = self.store.block(
                &self.group,
                &self.index,
                self.next_block,
                self.ahead.fill_first,
            )?;
            self.passed(1);
            return Ok(Some(block));
        }
        self.any_read = true;
        let count = self.next_run_blocks();
        let range = match self.direction {
            Direction::Forward => self.next_block..self.next_block + count,
            Direction::Backward => self.next_block + 1 - count..self.next_block + 1,
        };
        self.run.clear();
        self.store.block_run(
            &self.group,
            &self.index,
            range,
            self.ahead.fill,
            &mut self.run,
        )?;
        match self.direction {
            Direction::Forward => self.read.extend(self.run.drain(..)),
            Direction::Backward => self.read.extend(self.run.drain(..).rev()),
        }
        self.passed(count);
        self.next_read_bytes = self
            .next_read_bytes
            .saturating_mul(2)
            .min(self.ahead.max_bytes);
        Ok(self.read.pop_front())
    }

    /// How many blocks the next read takes: at least one, else as many as its bytes hold.
    fn next_run_blocks(&self) -> usize {
        let mut bytes = 0u64;
        let mut count = 0;
        while count < self.unread {
            let number = match self.direction {
                Direction::Forward => self.next_block + count,
                Direction::Backward => self.next_block - count,
            };
            bytes += u64::from(self.index.block_place(number).1);
            if count > 0 && bytes > u64::from(self.next_read_bytes) {
                break;
            }
            count += 1;
        }
        count
    }

    /// Counts blocks as read.
    fn passed(&mut self, count: usize) {
        self.unread -= count;
        self.next_block = match self.direction {
            Direction::Forward => self.next_block + count,
            Direction::Backward => self.next_block.wrapping_sub(count),
        };
    }
}

impl MessageCursor for GroupCursor {
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        self.current_key()
    }

    #[inline]
    fn message(&self) -> Message<'_> {
        self.current_message()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.step()
    }
}

/// The first record of a block that the lower bound lets in.
fn lower_position<K: AsRef<[u8]>>(block: &Block, lower: &Bound<K>) -> usize {
    match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => block.search(key.as_ref()).unwrap_or_else(|insert| insert),
        Bound::Excluded(key) => block
            .search(key.as_ref())
            .map_or_else(|insert| insert, |found| found + 1),
    }
}

/// The first record of a block behind those that the upper bound lets in.
fn upper_position<K: AsRef<[u8]>>(block: &Block, upper: &Bound<K>) -> usize {
    match upper {
        Bound::Unbounded => block.len(),
        Bound::Included(key) => block
            .search(key.as_ref())
            .map_or_else(|insert| insert, |found| found + 1),
        Bound::Excluded(key) => block.search(key.as_ref()).unwrap_or_else(|insert| insert),
    }
}

/// Cuts bounds to a group: a bound that lets in the group's first or last key becomes none, which is cheaper to keep and
/// spares a search; and tells the blocks from the first to behind the last that can hold a key in between.
fn cut_to_group<'a>(
    index: &GroupIndex,
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
) -> (KeyBounds<'a>, Range<usize>) {
    let lower = if lets_in_above(lower, index.first_key()) {
        Bound::Unbounded
    } else {
        lower
    };
    let upper = if lets_in_below(upper, index.last_key()) {
        Bound::Unbounded
    } else {
        upper
    };
    let nothing =
        !lets_in_above(lower, index.last_key()) || !lets_in_below(upper, index.first_key());
    let first = match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) | Bound::Excluded(key) => index.find(key),
    };
    let end = match upper {
        Bound::Unbounded => index.blocks(),
        Bound::Included(key) => index.find(key) + 1,
        Bound::Excluded(key) => {
            let block = index.find(key);
            // No key of the block is below its separator.
            if key <= index.separator(block) {
                block
            } else {
                block + 1
            }
        }
    };
    (
        (lower, upper),
        if nothing || is_empty(lower, upper) {
            0..0
        } else {
            first..end.max(first)
        },
    )
}

#[cfg(test)]
mod tests {
    use terrapin_pages::block::Compression;
    use terrapin_pages::group::{GroupBuilder, GroupOptions};

    use super::*;

    #[test]
    fn a_bound_on_a_block_s_edge_does_not_ask_for_the_block_behind_it() {
        let options = GroupOptions {
            target_bytes: 1 << 20,
            block_bytes: 512,
            unit: 512,
            compression: Compression::None,
            filter: true,
        };
        let mut builder = GroupBuilder::new(options);
        for i in 0..500u32 {
            assert!(
                builder
                    .add(format!("key{i:05}").as_bytes(), Message::Put(b"some value"))
                    .unwrap()
                    .is_none()
            );
        }
        let (group, image) = builder.finish().remove(0).place(PageId(1), 0);
        let index = image[group.index_offset as usize..][..group.index_bytes as usize].to_vec();
        let index = GroupIndex::decode(&index, group.id).unwrap();
        assert!(index.blocks() > 10);
        let blocks =
            |lower: Bound<&[u8]>, upper: Bound<&[u8]>| cut_to_group(&index, lower, upper).1;
        for block in 1..index.blocks() {
            let edge = index.separator(block);
            let behind = [edge, b"\0"].concat();
            assert_eq!(blocks(Bound::Unbounded, Bound::Excluded(edge)), 0..block);
            assert_eq!(
                blocks(Bound::Unbounded, Bound::Included(edge)),
                0..block + 1
            );
            assert_eq!(
                blocks(Bound::Unbounded, Bound::Excluded(&behind)),
                0..block + 1
            );
            assert_eq!(
                blocks(Bound::Included(edge), Bound::Unbounded),
                block..index.blocks()
            );
            assert_eq!(blocks(Bound::Included(edge), Bound::Excluded(edge)), 0..0);
        }
        assert_eq!(
            blocks(Bound::Excluded(index.last_key()), Bound::Unbounded),
            0..0
        );
        assert_eq!(
            blocks(Bound::Unbounded, Bound::Excluded(index.first_key())),
            0..0
        );
        let all = (
            Bound::Included(index.first_key()),
            Bound::Included(index.last_key()),
        );
        assert_eq!(
            cut_to_group(&index, all.0, all.1),
            ((Bound::Unbounded, Bound::Unbounded), 0..index.blocks())
        );
    }
}
