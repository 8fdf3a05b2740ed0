//! A walk over the blocks of one page group that can hold records of a key range, in either
//! direction. It never holds more decoded blocks than its read-ahead allows: blocks that it has
//! passed are let go.
//!
//! Merges read every block of their range once, so they ask for large runs from the start and leave
//! the page cache alone. Scans begin with the one block that they need, or are given those that
//! they are expected to, and read as much again as they have passed, but no more than is wanted.
//!
//! The range is not kept: who walks knows it, and shows it again where the walk comes to a block
//! that a bound falls into.

use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, Standing};
use terrapin_structure::{Direction, KeyBounds};

use crate::bounds::{is_empty, lets_in_above, lets_in_below};
use crate::stream::Stream;

/// Cached blocks that are brought near at once, or taken from a stream: as much as stays near until
/// it is read.
const NEAR_BLOCKS_MAX: usize = 8;

/// How far a walk reads ahead, and what it leaves in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// Bytes of the first read, at least one block; every further one is as long as all before it.
    pub(crate) first_bytes: u32,
    /// Most bytes of one read, and of its blocks once they are decoded.
    pub(crate) max_bytes: u32,
    /// What becomes of blocks in the cache.
    pub(crate) fill: Fill,
}

impl ReadAhead {
    /// For merges: the whole range is going to be read, once. A dozen cursors of this kind hold 3
    /// MiB.
    pub(crate) const MERGE: ReadAhead = ReadAhead {
        first_bytes: 256 << 10,
        max_bytes: 256 << 10,
        fill: Fill::No,
    };
    /// For scans: nobody knows how far they go.
    pub(crate) const SCAN: ReadAhead = ReadAhead {
        first_bytes: 1,
        max_bytes: 512 << 10,
        fill: Fill::Low,
    };
}

/// How far a walk came, for the walk that goes on in the next group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Bytes of the blocks that were passed.
    passed_bytes: u64,
    /// Bytes that the scan had passed elsewhere when the first of them came.
    before_bytes: u64,
}

impl Pace {
    /// That of a walk beside this one, over so large a part of what this one goes over.
    pub(crate) fn part(self, part: f64) -> Self {
        Pace {
            passed_bytes: (self.passed_bytes as f64 * part) as u64,
            before_bytes: self.before_bytes + self.passed_bytes,
        }
    }

    /// This one, or the other if that came farther.
    pub(crate) fn or_faster(self, other: Self) -> Self {
        if other.passed_bytes > self.passed_bytes {
            other
        } else {
            self
        }
    }

    /// Bytes that the scan passed.
    pub(crate) fn scan_bytes(self) -> u64 {
        self.before_bytes + self.passed_bytes
    }

    /// Whether as much was passed as is read at once at most.
    pub(crate) fn is_long(self, ahead: ReadAhead) -> bool {
        self.passed_bytes >= u64::from(ahead.max_bytes)
    }
}

/// Where a walk is.
pub(crate) struct BlockWalk {
    group: GroupRef,
    index: Arc<GroupIndex>,
    direction: Direction,
    ahead: ReadAhead,
    pace: Pace,
    /// Whether the lower and the upper bound leave out records of the group.
    cuts: (bool, bool),
    /// Blocks that can hold records of the range.
    blocks: Range<usize>,
    /// Blocks of the range that are not yet read, from `next_block` in the walk's direction.
    next_block: usize,
    unread: usize,
    /// How many of these are in the scan's stream.
    sent: usize,
    /// The next block, when it was handed over,
    given: Option<Arc<Block>>,
    /// and its records of the range, when they were looked for.
    found: Option<Range<usize>>,
    /// Blocks read and not yet reached, the next one last.
    read: Vec<Arc<Block>>,
    /// The number of the next block that is returned.
    next_number: usize,
    /// So many of the blocks that are not yet read were asked to come near.
    near: usize,
}

impl BlockWalk {
    /// A walk that has read nothing yet.
    #[inline]
    pub(crate) fn new(
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

    /// Goes on as fast as a walk that ended.
    #[inline]
    pub(crate) fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// How far it came.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// The group that it goes over.
    pub(crate) fn group(&self) -> &GroupRef {
        &self.group
    }

    /// So many of the blocks that it has not read, in its direction, so that a caller can read
    /// those of many walks at once.
    pub(crate) fn want(
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
    pub(crate) fn give(&mut self, blocks: impl Iterator<Item = Arc<Block>>) {
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

    /// Records of a block of the group, on average: at least one. Rounded, since the last block of
    /// a group mostly has less.
    pub(crate) fn records_of_block(&self) -> usize {
        let blocks = self.index.blocks();
        ((self.index.records_before(blocks) as usize + blocks / 2) / blocks).max(1)
    }

    /// How many blocks of the group so many bytes hold, on average: at least one.
    pub(crate) fn blocks_of_bytes(&self, bytes: usize) -> usize {
        let blocks = self.index.blocks();
        let each = self.index.held_bytes(0..blocks) / blocks as u64;
        (bytes as u64 / each.max(1)).max(1) as usize
    }

    /// Blocks that are at hand.
    pub(crate) fn ready_blocks(&self) -> usize {
        usize::from(self.given.is_some()) + self.read.len()
    }

    /// Records of the blocks that are at hand.
    pub(crate) fn ready_records(&self) -> usize {
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

    /// Whether the next step asks for no block.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.given.is_some() || !self.read.is_empty()
    }

    /// Whether there is no further block.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.unread == 0 && !self.is_ready()
    }

    /// What no record of the blocks that were not returned comes before; forward, they may be at
    /// it. In two pieces. Not called when the walk is over.
    pub(crate) fn edge(&self) -> (&[u8], &[u8]) {
        match self.direction {
            Direction::Forward => self.index.separator(self.next_number),
            Direction::Backward if self.next_number + 1 < self.index.blocks() => {
                self.index.separator(self.next_number + 1)
            }
            Direction::Backward => (self.index.last_key(), &[]),
        }
    }

    /// Makes sure, without a read, that the next step need not ask for a block; whether that is so.
    pub(crate) fn take_cached(&mut self, store: &PageStore) -> bool {
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

    /// As [`BlockWalk::take_cached`], where so many records are wanted: those of the blocks to come
    /// that are cached are brought near together.
    pub(crate) fn take_near(&mut self, store: &PageStore, records: usize) -> bool {
        if self.near == 0 && !self.is_ready() {
            let count = self.near_blocks(records).min(self.unread);
            // One has nobody to share its waits with.
            if count > 1 {
                store.prefetch_blocks(self.places(count));
                self.near_is(store, count);
            }
        }
        self.take_cached(store)
    }

    /// How many blocks are brought near where so many records are wanted: one at least.
    pub(crate) fn near_blocks(&self, records: usize) -> usize {
        records
            .div_ceil(self.records_of_block())
            .clamp(1, NEAR_BLOCKS_MAX)
    }

    /// So many of the next blocks are near: brings near where their records begin.
    pub(crate) fn near_is(&mut self, store: &PageStore, blocks: usize) {
        store.prefetch_records(self.places(blocks));
        self.near = blocks.min(self.unread);
    }

    /// The places of so many of the blocks that it has not read.
    pub(crate) fn places(&self, count: usize) -> impl Iterator<Item = (&GroupRef, usize)> + Clone {
        let (_, numbers) = self.want(count);
        numbers.map(|number| (&self.group, number))
    }

    /// Asks the processor to bring near what a search of the next block looks at, if that is at
    /// hand.
    pub(crate) fn prefetch_search(&self) {
        if let Some(block) = &self.given {
            block.prefetch_search();
        }
    }

    /// Searches the next block, if that is at hand, and asks the processor to bring near the record
    /// with which it begins.
    pub(crate) fn search<'k>(&mut self, bounds: impl FnOnce() -> KeyBounds<'k>) {
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

    /// How the block that was returned last, going forward, stands in the cache; it leaves its
    /// lives to its successor.
    pub(crate) fn bequeath(&self, store: &PageStore) -> Standing {
        store.bequeath_block(&self.group, self.next_number - 1)
    }

    /// Bytes that the messages hide of the block that was returned last, going forward.
    pub(crate) fn block_hides(&self) -> u64 {
        match self.next_number.checked_sub(1) {
            Some(block) => self.index.block_sums(block).hidden_bytes,
            None => 0,
        }
    }

    /// Bytes of decoded blocks that the walk may come to hold.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        let decoded = self.index.held_bytes(0..self.index.blocks());
        u64::from(self.ahead.max_bytes).min(self.group.bytes.max(decoded))
    }

    /// The next block, and which of its records are of the range; of a block that a bound falls
    /// into, none may be. The bounds are those that the walk was made for. With a stream, it comes
    /// to its blocks by way of that.
    pub(crate) fn next<'k>(
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

    /// The records of a block that the range lets in.
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

    /// The next block in the walk's direction, from what was read ahead or from the store.
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

    /// Reads so many blocks where none is at hand, or those before the first that cannot be read;
    /// how many, one at least.
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

    /// So many blocks could not be read at once: reads them one by one, as far as they are sound.
    /// What is wrong with the first is an error.
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

    /// The next block from the stream, and some that are at hand behind it; others are begun
    /// instead of them.
    fn next_of_stream(&mut self, store: &PageStore, stream: &mut Stream) -> Result<Arc<Block>> {
        self.send(store, stream)?;
        // What takes the room is indexes of groups behind.
        while self.sent == 0 && !stream.is_empty() {
            stream.take_indexes(store)?;
            self.send(store, stream)?;
        }
        let mut count = self.take_ready(store, stream);
        if count == 0 {
            // What was cached has left, and what lies behind it mostly has, too.
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
        let none = || Error::internal("a stream without the blocks that were added");
        self.read.pop().ok_or_else(none)
    }

    /// Takes what is at hand of a stream, up to a bound, where nothing else is; how many blocks
    /// those are.
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

    /// Adds blocks of the walk to a stream, and has the device begin them; nothing while there is
    /// no room.
    pub(crate) fn send(&mut self, store: &PageStore, stream: &mut Stream) -> Result<()> {
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

    /// The stream that has blocks of it is no more.
    pub(crate) fn leave_stream(&mut self) {
        self.sent = 0;
    }

    /// Whether it is about to read, and passed so much that a stream is worth it.
    pub(crate) fn wants_stream(&self) -> bool {
        self.unread > 0 && !self.is_ready() && self.pace.is_long(self.ahead)
    }

    /// Whether a stream has all blocks that are to come.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.unread
    }

    /// How many blocks the next read takes: at least one, else as many as its bytes hold, and as
    /// the walk may hold decoded.
    pub(crate) fn next_run_blocks(&self) -> usize {
        let (least, most) = (self.ahead.first_bytes, self.ahead.max_bytes);
        let bytes_max = self
            .pace
            .passed_bytes
            .clamp(u64::from(least), u64::from(most));
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

    /// The number of a block that is not yet read, so many behind the next.
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

/// The first record of a block that the lower bound lets in.
fn lower_position(block: &Block, lower: Bound<&[u8]>) -> usize {
    match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => block.search(key).unwrap_or_else(|insert| insert),
        Bound::Excluded(key) => block
            .search(key)
            .map_or_else(|insert| insert, |found| found + 1),
    }
}

/// The first record of a block behind those that the upper bound lets in.
fn upper_position(block: &Block, upper: Bound<&[u8]>) -> usize {
    match upper {
        Bound::Unbounded => block.len(),
        Bound::Included(key) => block
            .search(key)
            .map_or_else(|insert| insert, |found| found + 1),
        Bound::Excluded(key) => block.search(key).unwrap_or_else(|insert| insert),
    }
}

/// Cuts bounds to a group: whether each of them leaves out any of its records, which spares a
/// search where it does not; and the blocks from the first to behind the last that can hold a key
/// in between.
fn cut_to_group(
    index: &GroupIndex,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
) -> ((bool, bool), Range<usize>) {
    let blocks = index.blocks();
    // The group's first and last key are looked at only where its separators do not tell.
    let first = match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) | Bound::Excluded(key) => index.find(key),
    };
    let cuts_lower = first > 0 || !lets_in_above(lower, index.first_key());
    let cuts_upper = !lets_in_below(upper, index.last_key());
    let end = match upper {
        Bound::Included(key) if cuts_upper => index.find(key) + 1,
        Bound::Excluded(key) if cuts_upper => {
            let block = index.find(key);
            // No key of the block is below its separator.
            if index.compare_separator(block, key).is_ge() {
                block
            } else {
                block + 1
            }
        }
        _ => blocks,
    };
    let nothing = cuts_lower && first + 1 == blocks && !lets_in_above(lower, index.last_key())
        || cuts_upper && end <= 1 && !lets_in_below(upper, index.first_key())
        || cuts_lower && cuts_upper && is_empty(lower, upper);
    let blocks = if nothing { 0..0 } else { first..end.max(first) };
    ((cuts_lower, cuts_upper), blocks)
}

#[cfg(test)]
mod tests {
    use terrapin_base::Message;
    use terrapin_base::PageId;
    use terrapin_pages::block::Compression;
    use terrapin_pages::group::{GroupBuilder, GroupOptions};

    use super::*;

    /// A group of records of a kilobyte that compress well, and its image.
    fn group_of(compression: Compression) -> (GroupRef, Vec<u8>, Arc<GroupIndex>) {
        let options = GroupOptions {
            target_bytes: 16 << 20,
            block_bytes: 4096,
            unit: 512,
            compression,
            filter: true,
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
    fn a_read_of_compressed_blocks_is_no_longer_than_may_be_held_of_it() {
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
                // But for some bytes a record.
                assert!((most / 2..=most + most / 64).contains(&held), "{held}");
                assert_eq!(walk.memory_bytes_max(), most as u64);
                let near = walk.blocks_of_bytes(most);
                // A compressed block holds as much as the target, others what is left to it.
                let blocks = most / plain;
                assert!((blocks / 4 * 3..=blocks / 4 * 5).contains(&near), "{near}");
            }
        }
    }

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
            let (front, rest) = index.separator(block);
            let edge = &[front, rest].concat()[..];
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
            ((false, false), 0..index.blocks())
        );
    }
}
