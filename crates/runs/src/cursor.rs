//! A group cursor: the records of one page group inside a key range, in either direction, each key
//! in one piece. Merges use it, and code that looks at a whole segment. Scans look at the blocks of
//! a walk directly. Keys are assembled in one reused buffer, so there is no allocation per record.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Message, PageId, Result};
use terrapin_pages::block::{Block, EntryPlace};
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{PageStore, Standing};
use terrapin_structure::{Direction, KeyBounds, MessageCursor};

use crate::bounds::as_slice;
use crate::walk::{BlockWalk, ReadAhead};

/// Spare room for keys longer than the first. Other keys of a block are rarely longer by more than
/// this.
const KEY_ROOM_BYTES: usize = 24;

/// A cursor over the records of a group that are inside a range.
pub struct GroupCursor {
    store: Arc<PageStore>,
    walk: BlockWalk,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    block: Option<Arc<Block>>,
    /// The current record's number in the block, and how many records of the range follow it there.
    at: usize,
    following: usize,
    /// What the current record says, in the block.
    place: EntryPlace,
    /// The current key. Its first `prefix_bytes` are the block's prefix.
    key: Vec<u8>,
    prefix_bytes: usize,
    /// Whether a merge moves the records elsewhere. If so, `standing` is the cache standing of the
    /// current block.
    is_replaced: bool,
    standing: Standing,
    /// Bytes that the messages of the current block hide. Only forward cursors know this.
    block_hides: u64,
}

impl GroupCursor {
    /// Opens a forward cursor for a merge over `lo` (inclusive) to `hi` (exclusive), at its first
    /// record. The merge replaces the content of the range.
    pub fn for_merge(
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

    /// As [`GroupCursor::for_merge`] over the whole group, whose index the caller has.
    pub fn for_merge_by(
        store: &Arc<PageStore>,
        group: &GroupRef,
        index: Arc<GroupIndex>,
        ahead: ReadAhead,
    ) -> Result<Self> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let mut cursor = Self::over(store, group, index, all, Direction::Forward, ahead);
        cursor.is_replaced = true;
        cursor.start()?;
        Ok(cursor)
    }

    /// Opens a cursor without a position. It has read the index only. [`GroupCursor::start`] moves
    /// it to its first record.
    pub fn prepare(
        store: &Arc<PageStore>,
        group: &GroupRef,
        bounds: KeyBounds<'_>,
        direction: Direction,
        ahead: ReadAhead,
    ) -> Result<Self> {
        let index = store.index(group)?;
        Ok(Self::over(store, group, index, bounds, direction, ahead))
    }

    fn over(
        store: &Arc<PageStore>,
        group: &GroupRef,
        index: Arc<GroupIndex>,
        bounds: KeyBounds<'_>,
        direction: Direction,
        ahead: ReadAhead,
    ) -> Self {
        GroupCursor {
            store: store.clone(),
            walk: BlockWalk::new(group, index, bounds, direction, ahead),
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            block: None,
            at: 0,
            following: 0,
            place: EntryPlace::default(),
            key: Vec::new(),
            prefix_bytes: 0,
            is_replaced: false,
            standing: Standing::NONE,
            block_hides: 0,
        }
    }

    /// Moves to the first record of the range.
    pub fn start(&mut self) -> Result<()> {
        self.next_block()
    }

    /// The page of the group.
    pub fn page(&self) -> PageId {
        self.walk.group().id
    }

    /// Most bytes of decoded blocks that the cursor may hold.
    pub fn memory_bytes_max(&self) -> u64 {
        self.walk.memory_bytes_max()
    }

    /// The current key; `None` behind the last record.
    #[inline]
    pub fn current_key(&self) -> Option<&[u8]> {
        self.block.is_some().then_some(&self.key[..])
    }

    /// The current message; a delete behind the last record.
    #[inline]
    pub fn current_message(&self) -> Message<'_> {
        match &self.block {
            Some(block) => block.message_of(&self.place),
            None => Message::Delete,
        }
    }

    /// The cache standing of the current block when the merge reached it; [`Standing::NONE`] behind
    /// the last record.
    #[inline]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Bytes that the current message hides, for a forward cursor: an equal share, in whole bytes,
    /// of what all messages of its block hide.
    #[inline]
    pub fn hidden_bytes(&self) -> u64 {
        match &self.block {
            Some(block) if self.block_hides > 0 => {
                // No overflow: an index stores less than 2^45, and a block has less than 2^16
                // records.
                let before = |record: usize| self.block_hides * record as u64 / block.len() as u64;
                before(self.at + 1) - before(self.at)
            }
            _ => 0,
        }
    }

    /// Whether the next step reads nothing: it stays in the block, or the cursor is at its end.
    pub fn has_next_at_hand(&self) -> bool {
        self.block.is_none() || self.following > 0
    }

    /// Moves to the next record in the cursor's direction.
    #[inline]
    pub fn step(&mut self) -> Result<()> {
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
                self.place = entry.place;
                Ok(())
            }
            _ => self.next_block(),
        }
    }

    /// Moves to the first record of the next block that has records in the range.
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
        self.place = entry.place;
        // The cache has another reference to a cached block.
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
