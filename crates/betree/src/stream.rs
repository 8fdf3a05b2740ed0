//! What a long scan reads ahead: blocks of the leaf that it stands in, and of those behind it, are
//! under way while it goes over those before them, so that the device and the reader work at once.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, Reading};

/// Most cached blocks among those that are to come.
const CACHED_AHEAD_MAX: usize = 128;

/// Blocks in the order in which a scan comes to them. It holds none of the cache's, which may go
/// meanwhile: only those of the oldest read, once that is over.
pub(crate) struct Stream {
    reading: Reading,
    fill: Fill,
    /// Of those that nobody took, whether each is read here; else it was cached when it was added.
    coming: VecDeque<bool>,
    /// How many of these were cached.
    cached: usize,
    /// The first of those that are read, as far as they came; what is wrong with one is told to who
    /// comes to it.
    read: VecDeque<Result<Arc<Block>>>,
}

impl Stream {
    /// An empty one, of which so many bytes are under way at most, for a scan that passed so many;
    /// none when memory is short.
    pub(crate) fn new(store: &PageStore, fill: Fill, bytes: usize, passed: u64) -> Option<Self> {
        Some(Stream {
            reading: store.stream(fill, bytes, passed)?,
            fill,
            coming: VecDeque::new(),
            cached: 0,
            read: VecDeque::new(),
        })
    }

    /// Whether it is worth while to add blocks.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reading.has_room() && self.cached < CACHED_AHEAD_MAX
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.reading.is_empty()
    }

    /// Bytes that may be under way.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.reading.bytes_allowed() as u64
    }

    /// Adds a block; `false` when there is no room.
    pub(crate) fn add(
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

    /// Has the index of a group cached when the blocks that were added are; `false` when there is
    /// no room.
    pub(crate) fn add_index(&mut self, store: &PageStore, group: &GroupRef) -> Result<bool> {
        store.want_index(&mut self.reading, group)
    }

    /// Has the device begin what was added.
    pub(crate) fn start(&mut self, store: &PageStore) -> Result<()> {
        store.start(&mut self.reading)
    }

    /// Where no block is under way: takes the indexes of one read.
    pub(crate) fn take_indexes(&mut self, store: &PageStore) -> Result<()> {
        store.take_oldest(&mut self.reading, &mut self.read)
    }

    /// The next block, which was added as that one, if it is at hand and sound.
    pub(crate) fn take_ready(
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

    /// Waits until the next block is at hand, if it is read here. An error is what is wrong with
    /// it.
    pub(crate) fn wait(&mut self, store: &PageStore) -> Result<()> {
        // Some reads are of indexes only.
        while self.read.is_empty() && !self.reading.is_empty() {
            store.take_oldest(&mut self.reading, &mut self.read)?;
        }
        match self.read.front() {
            Some(Err(_)) => self.read.pop_front().map_or(Ok(()), |read| read.map(drop)),
            _ => Ok(()),
        }
    }

    /// Leaves blocks that were cached when they were added to the caller: how many are next, up to
    /// so many.
    pub(crate) fn leave_cached(&mut self, most: usize) -> usize {
        let next = self.coming.iter().take(most);
        let count = next.take_while(|is_read| !**is_read).count();
        self.coming.drain(..count);
        self.cached -= count;
        count
    }

    /// The last so many of these are to come as before.
    pub(crate) fn take_back(&mut self, count: usize) {
        (0..count).for_each(|_| self.coming.push_front(false));
        self.cached += count;
    }
}
