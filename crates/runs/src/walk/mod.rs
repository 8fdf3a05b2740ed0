//! A walk over the blocks of one page group that can hold records of a key range, in either
//! direction. It drops blocks that it has passed, so it never holds more decoded blocks than its
//! read-ahead allows.
//!
//! Merges read every block of their range once. So they read large runs from the start, and do not
//! fill the page cache. Scans begin with the one block that they need, or get the blocks that they
//! probably need. Then they read as much again as they have passed, but no more than is wanted.
//!
//! A walk does not keep its range. The caller passes the bounds again when the walk reaches a block
//! that a bound cuts.

mod cut;
mod pace;

use std::ops::Range;
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{PageStore, Standing};
use terrapin_structure::{Direction, KeyBounds};

use crate::stream::Stream;
use cut::{cut_to_group, lower_position, upper_position};

pub use pace::{Pace, ReadAhead};

/// Most cached blocks that are prefetched together, or taken from a stream. This many stay in the
/// processor's cache until they are used.
const NEAR_BLOCKS_MAX: usize = 8;

/// The state of a walk.
pub struct BlockWalk {
    group: GroupRef,
    index: Arc<GroupIndex>,
    direction: Direction,
    ahead: ReadAhead,
    pace: Pace,
    /// Whether the lower and the upper bound exclude records of the group.
    cuts: (bool, bool),
    /// Blocks that can hold records of the range.
    blocks: Range<usize>,
    /// The unread blocks of the range, from `next_block` in the walk's direction.
    next_block: usize,
    unread: usize,
    /// How many unread blocks are in the scan's stream.
    sent: usize,
    /// The next block, if it was handed over.
    given: Option<Arc<Block>>,
    /// The records of `given` inside the range, if it was searched.
    found: Option<Range<usize>>,
    /// Blocks that were read and not reached yet, the next one last.
    read: Vec<Arc<Block>>,
    /// The number of the block that is returned next.
    next_number: usize,
    /// How many unread blocks were prefetched.
    near: usize,
}

impl BlockWalk {
    /// A walk that has read nothing yet.
    #[inline]
    pub fn new(
        group: &GroupRef,
        index: Arc<GroupIndex>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        ahead: ReadAhead,
    ) -> Self {
        let (cuts, blocks) = cut_to_group(&index, bounds.0, bounds.1);
        let next_block = match direction {
            Direction::Forward => blocks.start,
            Direction::Backward => blocks.end.saturating_sub(1),
        };
        BlockWalk {
            group: *group,
            index,
            direction,
            ahead,
            pace: Pace::default(),
            cuts,
            unread: blocks.len(),
            sent: 0,
            blocks,
            next_block,
            given: None,
            found: None,
            read: Vec::new(),
            next_number: next_block,
            near: 0,
        }
    }

    /// Continues at the pace of a walk that ended.
    #[inline]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// How far the walk went.
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// The group of the walk.
    pub fn group(&self) -> &GroupRef {
        &self.group
    }

    /// The numbers of the next `count` unread blocks. A caller can read blocks of several walks at
    /// once.
    pub fn want(
        &self,
        count: usize,
    ) -> (
        &Arc<GroupIndex>,
        impl Iterator<Item = usize> + Clone + use<>,
    ) {
        let (direction, next) = (self.direction, self.next_block);
        let numbers = (0..count.min(self.unread)).map(move |i| match direction {
            Direction::Forward => next + i,
            Direction::Backward => next - i,
        });
        (&self.index, numbers)
    }

    /// Hands over the blocks that [`BlockWalk::want`] named.
    pub fn give(&mut self, blocks: impl Iterator<Item = Arc<Block>>) {
        let before = self.ready_blocks();
        self.read.reverse();
        for block in blocks {
            if self.given.is_none() && self.read.is_empty() {
                self.given = Some(block);
            } else {
                self.read.push(block);
            }
        }
        self.read.reverse();
        match self.ready_blocks() - before {
            0 => {}
            count => self.passed(count),
        }
    }

    /// Mean number of records of a block of the group, at least one. It is rounded, because the
    /// last block of a group usually has fewer.
    pub fn records_of_block(&self) -> usize {
        let blocks = self.index.blocks();
        ((self.index.records_before(blocks) as usize + blocks / 2) / blocks).max(1)
    }

    /// How many blocks of the group fit into `bytes` bytes on average, at least one.
    pub fn blocks_of_bytes(&self, bytes: usize) -> usize {
        let blocks = self.index.blocks();
        let each = self.index.held_bytes(0..blocks) / blocks as u64;
        (bytes as u64 / each.max(1)).max(1) as usize
    }

    /// Number of blocks in memory.
    pub fn ready_blocks(&self) -> usize {
        usize::from(self.given.is_some()) + self.read.len()
    }

    /// Records of the blocks in memory.
    pub fn ready_records(&self) -> usize {
        let count = self.ready_blocks();
        if count == 0 {
            return 0;
        }
        let blocks = match self.direction {
            Direction::Forward => self.next_number..self.next_number + count,
            Direction::Backward => self.next_number + 1 - count..self.next_number + 1,
        };
        (self.index.records_before(blocks.end) - self.index.records_before(blocks.start)) as usize
    }

    /// Whether the next step needs no block from the store.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.given.is_some() || !self.read.is_empty()
    }

    /// Whether there are no further blocks.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.unread == 0 && !self.is_ready()
    }

    /// A bound in two pieces: no record of the remaining blocks comes before it. In a forward walk
    /// a record may equal it. Not called when the walk is over.
    pub fn edge(&self) -> (&[u8], &[u8]) {
        match self.direction {
            Direction::Forward => self.index.separator(self.next_number),
            Direction::Backward if self.next_number + 1 < self.index.blocks() => {
                self.index.separator(self.next_number + 1)
            }
            Direction::Backward => (self.index.last_key(), &[]),
        }
    }

    /// Takes the next block from the cache, if it is there. Returns whether the next step needs no
    /// read.
    pub fn take_cached(&mut self, store: &PageStore) -> bool {
        if self.is_ready() {
            return true;
        }
        if self.unread == 0 || self.sent > 0 {
            return false;
        }
        self.given = store.cached_block_as(&self.group, self.next_block, self.ahead.fill);
        if self.given.is_some() {
            self.passed(1);
        }
        self.given.is_some()
    }

    /// Like [`BlockWalk::take_cached`], if `records` records are wanted: prefetches the cached ones
    /// among the next blocks together.
    pub fn take_near(&mut self, store: &PageStore, records: usize) -> bool {
        if self.near == 0 && !self.is_ready() {
            let count = self.near_blocks(records).min(self.unread);
            // A single block has no other wait to overlap with.
            if count > 1 {
                store.prefetch_blocks(self.places(count));
                self.near_is(store, count);
            }
        }
        self.take_cached(store)
    }

    /// How many blocks are prefetched for `records` records, at least one.
    pub fn near_blocks(&self, records: usize) -> usize {
        records
            .div_ceil(self.records_of_block())
            .clamp(1, NEAR_BLOCKS_MAX)
    }

    /// Prefetches the first records of the next `blocks` blocks, which are prefetched already.
    pub fn near_is(&mut self, store: &PageStore, blocks: usize) {
        store.prefetch_records(self.places(blocks));
        self.near = blocks.min(self.unread);
    }

    /// The places of the next `count` unread blocks.
    pub fn places(&self, count: usize) -> impl Iterator<Item = (&GroupRef, usize)> + Clone {
        let (_, numbers) = self.want(count);
        numbers.map(|number| (&self.group, number))
    }

    /// Prefetches the memory that a search of the next block visits, if the block is in memory.
    pub fn prefetch_search(&self) {
        if let Some(block) = &self.given {
            block.prefetch_search();
        }
    }

    /// Searches the next block, if it is in memory, and prefetches its first record inside the
    /// range.
    #[inline]
    pub fn search<'k>(&mut self, bounds: impl FnOnce() -> KeyBounds<'k>) {
        if let Some(block) = &self.given {
            let found = self.records_of(block, self.next_number, bounds);
            let first = match self.direction {
                Direction::Forward => found.start,
                Direction::Backward => found.end.saturating_sub(1),
            };
            block.prefetch_record(first);
            self.found = Some(found);
        }
    }

    /// The cache standing of the block that a forward walk returned last. The block's standing
    /// passes to its successor.
    pub fn bequeath(&self, store: &PageStore) -> Standing {
        store.bequeath_block(&self.group, self.next_number - 1)
    }

    /// Bytes that the messages of the block hide that a forward walk returned last.
    pub fn block_hides(&self) -> u64 {
        match self.next_number.checked_sub(1) {
            Some(block) => self.index.block_sums(block).hidden_bytes,
            None => 0,
        }
    }

    /// Most bytes of decoded blocks that the walk may hold.
    pub fn memory_bytes_max(&self) -> u64 {
        let decoded = self.index.held_bytes(0..self.index.blocks());
        u64::from(self.ahead.max_bytes).min(self.group.bytes.max(decoded))
    }

    /// The next block, and its records inside the range. A block that a bound cuts may have none.
    /// `bounds` are those of [`BlockWalk::new`]. With a stream, the walk gets its blocks from the
    /// stream.
    pub fn next<'k>(
        &mut self,
        store: &PageStore,
        bounds: impl Fn() -> KeyBounds<'k>,
        stream: Option<&mut Stream>,
    ) -> Result<Option<(Arc<Block>, Range<usize>)>> {
        let Some(block) = self.next_block_read(store, stream)? else {
            return Ok(None);
        };
        let number = self.next_number;
        self.next_number = match self.direction {
            Direction::Forward => number + 1,
            Direction::Backward => number.wrapping_sub(1),
        };
        let found = self.found.take();
        let found = found.unwrap_or_else(|| self.records_of(&block, number, &bounds));
        Ok(Some((block, found)))
    }

    /// The records of a block inside the range.
    #[inline]
    fn records_of<'k>(
        &self,
        block: &Block,
        number: usize,
        bounds: impl FnOnce() -> KeyBounds<'k>,
    ) -> Range<usize> {
        let cuts_lower = self.cuts.0 && number == self.blocks.start;
        let cuts_upper = self.cuts.1 && number + 1 == self.blocks.end;
        if !cuts_lower && !cuts_upper {
            return 0..block.len();
        }
        let (lower, upper) = bounds();
        let from = if cuts_lower {
            lower_position(block, lower)
        } else {
            0
        };
        let to = if cuts_upper {
            upper_position(block, upper)
        } else {
            block.len()
        };
        from..to
    }

    /// The next block in the walk's direction, from memory, from the stream, or from the store.
    fn next_block_read(
        &mut self,
        store: &PageStore,
        stream: Option<&mut Stream>,
    ) -> Result<Option<Arc<Block>>> {
        if let Some(block) = self.given.take().or_else(|| self.read.pop()) {
            return Ok(Some(block));
        }
        if self.unread == 0 {
            return Ok(None);
        }
        if let Some(stream) = stream {
            return self.next_of_stream(store, stream).map(Some);
        }
        let count = self.next_run_blocks();
        if count == 1 {
            let block = store.block(&self.group, &self.index, self.next_block, self.ahead.fill)?;
            self.passed(1);
            return Ok(Some(block));
        }
        let count = self.read_run(store, count)?;
        self.passed(count);
        Ok(self.read.pop())
    }

    /// Reads `count` blocks, if none is in memory. If some cannot be read, it reads the blocks
    /// before the first of these. Returns the number of blocks read, at least one.
    fn read_run(&mut self, store: &PageStore, count: usize) -> Result<usize> {
        let range = match self.direction {
            Direction::Forward => self.next_block..self.next_block + count,
            Direction::Backward => self.next_block + 1 - count..self.next_block + 1,
        };
        let (index, fill) = (&self.index, self.ahead.fill);
        let run = store.block_run(&self.group, index, range, fill, &mut self.read);
        if let Err(error) = run {
            return self.read_up_to_damage(store, count, error);
        }
        if self.direction == Direction::Forward {
            self.read.reverse();
        }
        Ok(count)
    }

    /// Called if a read of `count` blocks failed: reads them one by one, up to the first damaged
    /// block. If that is the first one, its error is returned.
    #[cold]
    fn read_up_to_damage(
        &mut self,
        store: &PageStore,
        count: usize,
        error: Error,
    ) -> Result<usize> {
        self.read.clear();
        let mut outcome = Err(error);
        for behind in 0..count {
            let number = self.unread_block(behind);
            match store.block(&self.group, &self.index, number, self.ahead.fill) {
                Ok(block) => self.read.push(block),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.read.reverse();
        match self.read.len() {
            0 => outcome,
            read => Ok(read),
        }
    }

    /// Takes the next block from the stream, and some that have arrived behind it. Then adds
    /// further blocks to the stream.
    fn next_of_stream(&mut self, store: &PageStore, stream: &mut Stream) -> Result<Arc<Block>> {
        self.send(store, stream)?;
        // Indexes of later groups take the room.
        while self.sent == 0 && !stream.is_empty() {
            stream.take_indexes(store)?;
            self.send(store, stream)?;
        }
        let mut count = self.take_ready(store, stream);
        if count == 0 {
            // A block that was cached has been evicted, and the cached blocks behind it probably
            // too.
            let left = stream.leave_cached(self.sent.min(NEAR_BLOCKS_MAX));
            if left > 0 {
                count = self.read_run(store, left)?;
                stream.take_back(left - count);
            } else {
                stream.wait(store)?;
                count = self.take_ready(store, stream);
            }
        }
        self.sent -= count;
        self.passed(count);
        self.send(store, stream)?;
        let none = || Error::internal("a stream lost the blocks that were added to it");
        self.read.pop().ok_or_else(none)
    }

    /// Takes blocks that have arrived from a stream, up to a bound. Returns how many.
    fn take_ready(&mut self, store: &PageStore, stream: &mut Stream) -> usize {
        let most = self.sent.min(NEAR_BLOCKS_MAX);
        let mut count = 0;
        while count < most
            && let Some(block) = stream.take_ready(store, &self.group, self.unread_block(count))
        {
            self.read.push(block);
            count += 1;
        }
        self.read.reverse();
        count
    }

    /// Adds blocks of the walk to a stream and starts their reads, while there is room.
    pub fn send(&mut self, store: &PageStore, stream: &mut Stream) -> Result<()> {
        if !stream.has_room() {
            return Ok(());
        }
        while self.sent < self.unread {
            let number = self.unread_block(self.sent);
            if !stream.add(store, &self.group, &self.index, number)? {
                break;
            }
            self.sent += 1;
        }
        stream.start(store)
    }

    /// Called when the stream with this walk's blocks is dropped.
    pub fn leave_stream(&mut self) {
        self.sent = 0;
    }

    /// Whether the walk is about to read, has passed enough for a stream to pay off, and does not
    /// end soon.
    pub fn wants_stream(&self) -> bool {
        self.unread > 0
            && !self.is_ready()
            && self.pace.is_long(self.ahead)
            && self.pace.rest() > u64::from(self.ahead.max_bytes) / 4
    }

    /// The scan takes at most `records` records of the walk, and of the walks behind it, in blocks
    /// that are not in memory. So the walk reads hardly more than those need.
    pub fn ends_after(&mut self, records: usize) {
        let blocks = self.index.blocks();
        let bytes = u64::from(self.index.blocks_bytes());
        let each = bytes / self.index.records_before(blocks).max(1) + 1;
        // The walk may begin and end inside a block.
        let block = bytes / blocks as u64;
        let bytes = each.saturating_mul(records as u64).saturating_add(block);
        self.pace.ends_after(bytes);
    }

    /// Bytes of the walk's blocks that were not read.
    pub fn unread_bytes(&self) -> u64 {
        if self.unread == 0 {
            return 0;
        }
        let (a, b) = (self.next_block, self.unread_block(self.unread - 1));
        let (from, _) = self.index.block_place(a.min(b));
        let (last, bytes) = self.index.block_place(a.max(b));
        u64::from(last - from) + u64::from(bytes)
    }

    /// Whether a stream has all remaining blocks.
    pub fn is_sent(&self) -> bool {
        self.sent == self.unread
    }

    /// Number of blocks of the next read: at least one, else as many as fit into its bytes, on disk
    /// and decoded.
    pub fn next_run_blocks(&self) -> usize {
        let (least, most) = (self.ahead.first_bytes, self.ahead.max_bytes);
        let bytes_max = self
            .pace
            .passed_bytes
            .clamp(u64::from(least), u64::from(most))
            .min(self.pace.rest());
        let (mut bytes, mut held) = (0u64, 0u64);
        let mut count = 0;
        while count < self.unread {
            let number = self.unread_block(count);
            bytes += u64::from(self.index.block_place(number).1);
            held += self.index.held_bytes(number..number + 1);
            if (bytes > bytes_max || held > u64::from(most)) && count > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    /// The number of the unread block `behind` blocks after the next one.
    fn unread_block(&self, behind: usize) -> usize {
        match self.direction {
            Direction::Forward => self.next_block + behind,
            Direction::Backward => self.next_block - behind,
        }
    }

    /// Counts blocks as read.
    fn passed(&mut self, count: usize) {
        let (next, rest) = match self.direction {
            Direction::Forward => (self.next_block + count, self.next_block),
            Direction::Backward => (
                self.next_block.wrapping_sub(count),
                (self.next_block + 1).saturating_sub(count),
            ),
        };
        for number in rest..rest + count {
            self.pace.passed_bytes += u64::from(self.index.block_place(number).1);
        }
        self.unread -= count;
        self.near = self.near.saturating_sub(count);
        self.next_block = next;
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use terrapin_base::Message;
    use terrapin_base::PageId;
    use terrapin_pages::block::Compression;
    use terrapin_pages::group::{GroupBuilder, GroupOptions};

    use super::*;

    /// A group with records of a kilobyte that compress well, and its image.
    fn group_of(compression: Compression) -> (GroupRef, Vec<u8>, Arc<GroupIndex>) {
        let options = GroupOptions {
            target_bytes: 16 << 20,
            block_bytes: 4096,
            unit: 512,
            compression,
            filter_bits: 12,
            now_ms: 0,
        };
        let mut builder = GroupBuilder::new(options);
        for i in 0..2000u32 {
            let value = [i as u8; 1000];
            let added = builder.add(&i.to_be_bytes(), Message::Put(&value));
            assert!(added.unwrap().is_none());
        }
        let (group, image) = builder.finish().remove(0).place(PageId(1), 0);
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        let index = GroupIndex::decode(index, group.id).unwrap();
        (group, image.to_vec(), Arc::new(index))
    }

    #[test]
    fn a_read_of_compressed_blocks_is_bounded_by_their_decoded_bytes() {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let most = ReadAhead::MERGE.max_bytes as usize;
        let stored = |compression| {
            let (_, _, index) = group_of(compression);
            index.blocks_bytes() as usize / index.blocks()
        };
        let plain = stored(Compression::None);
        assert!(stored(Compression::Lz4) * 20 < plain);
        for compression in [Compression::None, Compression::Lz4] {
            let (group, image, index) = group_of(compression);
            let decoded = |number: usize| {
                let (start, bytes) = index.block_place(number);
                let block = &image[start as usize..][..bytes as usize];
                let block = Block::decode(block, group.id, number as u32).unwrap();
                block.bytes().len()
            };
            for direction in [Direction::Forward, Direction::Backward] {
                let ahead = ReadAhead::MERGE;
                let walk = BlockWalk::new(&group, index.clone(), all, direction, ahead);
                let (_, numbers) = walk.want(walk.next_run_blocks());
                let held: usize = numbers.map(decoded).sum();
                // Each record has some bytes of overhead.
                assert!((most / 2..=most + most / 64).contains(&held), "{held}");
                assert_eq!(walk.memory_bytes_max(), most as u64);
                let near = walk.blocks_of_bytes(most);
                // A compressed block holds as much as the target. Others hold what remains of it.
                let blocks = most / plain;
                assert!((blocks / 4 * 3..=blocks / 4 * 5).contains(&near), "{near}");
            }
        }
    }
}
