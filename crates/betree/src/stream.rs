//! What a long scan reads ahead: blocks of the leaf that it stands in, and of those behind it, are under way while it goes over those before them, so that the
//! device and the reader work at once.

use std::collections::VecDeque;
use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, PageStore, Reading};

/// Most blocks that are held ahead because they were cached.
const CACHED_AHEAD_MAX: usize = 128;

/// Blocks in the order in which a scan comes to them.
pub(crate) struct Stream {
    reading: Reading,
    fill: Fill,
    /// Those that nobody took; none for what is read.
    blocks: VecDeque<Option<Arc<Block>>>,
    /// How many of these were cached.
    cached: usize,
    /// The first of those that are read, as far as they came.
    read: VecDeque<Arc<Block>>,
}

impl Stream {
    /// An empty one, of which so many bytes are under way at most, for a scan that passed so many; none when memory is short.
    pub(crate) fn new(store: &PageStore, fill: Fill, bytes: usize, passed: u64) -> Option<Self> {
        Some(Stream {
            reading: store.stream(fill, bytes, passed)?,
            fill,
            blocks: VecDeque::new(),
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
        let cached = store.cached_block_as(group, number, self.fill);
        let added = match &cached {
            Some(_) => self.cached < CACHED_AHEAD_MAX,
            None => {
                let wanted = store.want(&mut self.reading, group, index, number)?;
                if wanted.is_some() {
                    store.missed_block(group, number);
                }
                wanted.is_some()
            }
        };
        if added {
            self.cached += usize::from(cached.is_some());
            self.blocks.push_back(cached);
        }
        Ok(added)
    }

    /// Has the index of a group cached when the blocks that were added are; `false` when there is no room.
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

    /// Whether the next block can be taken without waiting for the device.
    pub(crate) fn is_ready(&self) -> bool {
        match self.blocks.front() {
            Some(Some(_)) => true,
            Some(None) => !self.read.is_empty(),
            None => false,
        }
    }

    /// The next block; none when nothing was added.
    pub(crate) fn take(&mut self, store: &PageStore) -> Result<Option<Arc<Block>>> {
        match self.blocks.pop_front() {
            None => Ok(None),
            Some(Some(cached)) => {
                self.cached -= 1;
                Ok(Some(cached))
            }
            Some(None) => {
                // Some reads are of indexes only.
                while self.read.is_empty() && !self.reading.is_empty() {
                    store.take_oldest(&mut self.reading, &mut self.read)?;
                }
                Ok(self.read.pop_front())
            }
        }
    }
}
