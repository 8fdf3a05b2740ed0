//! Blocks that a long scan reads ahead. They are being read while the scan uses earlier blocks, so
//! that the device and the reader work at the same time.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, Reading};

/// Most cached blocks among those to come.
const CACHED_AHEAD_MAX: usize = 128;

/// Blocks in the order in which a scan reaches them. A stream does not hold cached blocks, which
/// may be evicted meanwhile. It holds only the blocks of its oldest read, once that read is
/// complete.
pub struct Stream {
    reading: Reading,
    fill: Fill,
    /// For each block that was not taken yet: whether this stream reads it. If not, it was cached
    /// when it was added.
    coming: VecDeque<bool>,
    /// How many of these blocks were cached.
    cached: usize,
    /// The first blocks that were read. An error is returned when the scan reaches its block.
    read: VecDeque<Result<Arc<Block>>>,
    /// Mean bytes of these blocks in the file.
    block_bytes: u64,
}

impl Stream {
    /// An empty stream with at most `bytes` bytes in flight, for a scan that passed `passed` bytes;
    /// `None` if memory is short.
    pub fn new(store: &PageStore, fill: Fill, bytes: usize, passed: u64) -> Option<Self> {
        Some(Stream {
            reading: store.stream(fill, bytes, passed)?,
            fill,
            coming: VecDeque::new(),
            cached: 0,
            read: VecDeque::new(),
            block_bytes: 0,
        })
    }

    /// Whether adding blocks is worthwhile.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.reading.has_room()
            && self.cached < CACHED_AHEAD_MAX
            && (self.reading.wants_more() || self.coming.is_empty())
    }

    /// The scan probably takes `bytes` further bytes of the stream, and it reads hardly more.
    /// `u64::MAX` if that is unknown.
    pub fn ends_after(&mut self, bytes: u64) {
        let at_hand = (self.read.len() + self.cached) as u64 * self.block_bytes;
        self.reading.wants(match bytes {
            u64::MAX => u64::MAX,
            bytes => bytes.saturating_sub(at_hand),
        });
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.reading.is_empty()
    }

    /// Bytes that may be in flight.
    pub fn bytes_ahead(&self) -> u64 {
        self.reading.bytes_allowed() as u64
    }

    fn take_oldest(&mut self, store: &PageStore) -> Result<()> {
        let (flown, blocks) = (self.reading.bytes(), self.read.len());
        store.take_oldest(&mut self.reading, &mut self.read)?;
        let taken = (flown - self.reading.bytes()) as u64;
        let blocks = (self.read.len() - blocks) as u64;
        self.block_bytes = taken.checked_div(blocks).unwrap_or(self.block_bytes);
        Ok(())
    }

    /// Adds a block; returns `false` if there is no room.
    pub fn add(
        &mut self,
        store: &PageStore,
        group: &GroupRef,
        index: &GroupIndex,
        number: usize,
    ) -> Result<bool> {
        let is_read = !store.has_block(group, number);
        let added = match is_read {
            true => {
                let wanted = store.want(&mut self.reading, group, index, number)?;
                if wanted.is_some() {
                    store.missed_block(group, number);
                }
                wanted.is_some()
            }
            false => self.cached < CACHED_AHEAD_MAX,
        };
        if added {
            self.cached += usize::from(!is_read);
            self.coming.push_back(is_read);
        }
        Ok(added)
    }

    /// Adds the index of a group, which is cached when the blocks before it have arrived. Returns
    /// `false` if there is no room.
    pub fn add_index(&mut self, store: &PageStore, group: &GroupRef) -> Result<bool> {
        store.want_index(&mut self.reading, group)
    }

    /// Starts the reads that were added.
    pub fn start(&mut self, store: &PageStore) -> Result<()> {
        store.start(&mut self.reading)
    }

    /// Takes the indexes of one read. Called if no block is in flight.
    pub fn take_indexes(&mut self, store: &PageStore) -> Result<()> {
        self.take_oldest(store)
    }

    /// Takes the next block, which was added with this group and number, if it has arrived and is
    /// sound.
    pub fn take_ready(
        &mut self,
        store: &PageStore,
        group: &GroupRef,
        number: usize,
    ) -> Option<Arc<Block>> {
        let is_read = *self.coming.front()?;
        let block = match is_read {
            true if matches!(self.read.front(), Some(Err(_))) => None,
            true => self.read.pop_front().and_then(Result::ok),
            false => store.cached_block_as(group, number, self.fill),
        }?;
        self.coming.pop_front();
        self.cached -= usize::from(!is_read);
        Some(block)
    }

    /// Waits until the next block has arrived, if this stream reads it. Returns the block's error,
    /// if any.
    pub fn wait(&mut self, store: &PageStore) -> Result<()> {
        // Some reads have only indexes.
        while self.read.is_empty() && !self.reading.is_empty() {
            self.take_oldest(store)?;
        }
        match self.read.front() {
            Some(Err(_)) => self.read.pop_front().map_or(Ok(()), |read| read.map(drop)),
            _ => Ok(()),
        }
    }

    /// Removes the next blocks that were cached when they were added, up to `most`, and returns how
    /// many. The caller reads them.
    pub fn leave_cached(&mut self, most: usize) -> usize {
        let next = self.coming.iter().take(most);
        let count = next.take_while(|is_read| !**is_read).count();
        self.coming.drain(..count);
        self.cached -= count;
        count
    }

    /// Puts the last `count` of these blocks back.
    pub fn take_back(&mut self, count: usize) {
        (0..count).for_each(|_| self.coming.push_front(false));
        self.cached += count;
    }
}
