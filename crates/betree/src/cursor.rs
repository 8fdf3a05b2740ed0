//! A group cursor walks the records of one page group inside a key range, in either direction, and
//! shows each key in one piece: what merges, and who looks at a whole segment, need. (Scans look at
//! the blocks of a walk themselves.) Keys are put together in one reused buffer; there is no
//! allocation per record.

use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{Message, PageId, Result};
use terrapin_pages::block::Block;
use terrapin_pages::group::GroupRef;
use terrapin_pages::{PageStore, Standing};
use terrapin_structure::{Direction, KeyBounds, MessageCursor};

use crate::bounds::as_slice;
use crate::walk::{BlockWalk, ReadAhead};

/// Room that a cursor's key gets beyond its first: the others of a block are rarely so much longer.
const KEY_ROOM_BYTES: usize = 24;

/// Walks the records of a group that lie inside a range.
pub(crate) struct GroupCursor {
    store: Arc<PageStore>,
    walk: BlockWalk,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    block: Option<Arc<Block>>,
    /// The current record, and how many follow it in the block, inside the range.
    at: usize,
    following: usize,
    /// Where the current value lies in the block; none for a delete.
    value: Option<Range<usize>>,
    /// The current key; its first `prefix_bytes` are the block's prefix.
    key: Vec<u8>,
    prefix_bytes: usize,
    /// Whether a merge moves the records elsewhere, and then how the current block stands in the
    /// cache.
    is_replaced: bool,
    standing: Standing,
    /// Bytes that the messages of the current block hide, going forward.
    block_hides: u64,
}

impl GroupCursor {
    /// A forward cursor for a merge over `lo` (inclusive) to `hi` (exclusive), on its first record.
    /// The merge replaces what lies in the range.
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
        cursor.is_replaced = true;
        cursor.start()?;
        Ok(cursor)
    }

    /// A cursor that stands nowhere yet and has read the index only: [`GroupCursor::start`] moves
    /// it to its first record.
    pub(crate) fn prepare(
        store: &Arc<PageStore>,
        group: &GroupRef,
        bounds: KeyBounds<'_>,
        direction: Direction,
        ahead: ReadAhead,
    ) -> Result<Self> {
        let index = store.index(group)?;
        Ok(GroupCursor {
            store: store.clone(),
            walk: BlockWalk::new(group, index, bounds, direction, ahead),
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            block: None,
            at: 0,
            following: 0,
            value: None,
            key: Vec::new(),
            prefix_bytes: 0,
            is_replaced: false,
            standing: Standing::NONE,
            block_hides: 0,
        })
    }

    /// Moves to the first record of the range.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.next_block()
    }

    /// The group that it goes over.
    pub(crate) fn page(&self) -> PageId {
        self.walk.group().id
    }

    /// Bytes of decoded blocks that the cursor may come to hold.
    pub(crate) fn memory_bytes_max(&self) -> u64 {
        self.walk.memory_bytes_max()
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

    /// How the current block stood in the cache when a merge came to it; behind the last record, as
    /// nothing.
    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Bytes that the current message hides, going forward: its part of what all of its block do,
    /// as far as whole bytes go.
    #[inline]
    pub(crate) fn hidden_bytes(&self) -> u64 {
        match &self.block {
            Some(block) if self.block_hides > 0 => {
                // An index says less than 2^45, and a block has less than 2^16 records.
                let before = |record: usize| self.block_hides * record as u64 / block.len() as u64;
                before(self.at + 1) - before(self.at)
            }
            _ => 0,
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
                self.key.truncate(self.prefix_bytes);
                self.key.extend_from_slice(entry.suffix);
                self.value = (!entry.is_delete).then_some(entry.value);
                Ok(())
            }
            _ => self.next_block(),
        }
    }

    /// Goes on to the first record of the next block that has one in the range.
    fn next_block(&mut self) -> Result<()> {
        self.block = None;
        self.standing = Standing::NONE;
        let bounds = (as_slice(&self.lower), as_slice(&self.upper));
        let (block, records) = loop {
            match self.walk.next(&self.store, || bounds, None)? {
                Some((_, records)) if records.is_empty() => {}
                Some(found) => break found,
                None => return Ok(()),
            }
        };
        self.at = match self.direction {
            Direction::Forward => records.start,
            Direction::Backward => records.end - 1,
        };
        self.following = records.len() - 1;
        let entry = block.entry(self.at);
        self.key.clear();
        self.key
            .reserve(block.prefix().len() + entry.suffix.len() + KEY_ROOM_BYTES);
        self.key.extend_from_slice(block.prefix());
        self.prefix_bytes = self.key.len();
        self.key.extend_from_slice(entry.suffix);
        self.value = (!entry.is_delete).then_some(entry.value);
        // Of a block that is cached the cache has another reference.
        if self.is_replaced && Arc::strong_count(&block) > 1 {
            self.standing = self.walk.bequeath(&self.store);
        }
        if self.direction == Direction::Forward {
            self.block_hides = self.walk.block_hides();
        }
        self.block = Some(block);
        Ok(())
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
