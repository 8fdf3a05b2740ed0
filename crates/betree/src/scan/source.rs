//! The sources of a scan: the current item of each, and the records that it may show.

use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::mutant;
use terrapin_pages::PageStore;
use terrapin_pages::block::{Block, RecordPlace};
use terrapin_structure::{Batch, Direction};

use super::ahead::Ahead;
use super::path::{Edge, LEAF, LiveRange, Path, Pieces, in_order};
use terrapin_runs::walk::{BlockWalk, Pace};

/// The next item of a source. [`Source::rank`] orders different kinds at one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// Nothing was read. The first key is not known at all.
    Start,
    /// Nothing was read. No record comes before the start of the range.
    Pending,
    /// A record.
    Record,
    /// The next block was not read. None of its records comes before the edge of the walk.
    Between,
    /// The leaf is used up: its key range ends here.
    Boundary,
    /// No more records.
    End,
}

/// Records of at least this mean length are lent from their block. Decoding a record again costs as
/// much as copying a quarter of these bytes.
const LENT_BYTES_MIN: usize = 512;

/// A sorted run of records: the current leaf, or one buffer level of a node on the path.
pub(super) struct Source {
    pub(super) item: Item,
    pub(super) walk: Option<BlockWalk>,
    /// How far the walks before the current one went.
    pub(super) pace: Pace,
    /// The block of the current record.
    pub(super) block: Option<Arc<Block>>,
    /// The number of the current record in its block, its place there, and the head of its key as
    /// [`Path::in_order`] returns it. `following` counts the records behind it in the block, inside
    /// the range.
    pub(super) at: usize,
    pub(super) place: RecordPlace,
    pub(super) key_head: u64,
    pub(super) following: usize,
    pub(super) range: LiveRange,
    /// Index in the segment's live parts from which the next live range is searched. It counts
    /// passed parts in a forward scan, and remaining parts in a backward scan.
    pub(super) part: usize,
    /// What the source reads ahead, once it has returned much.
    pub(super) ahead: Option<Box<Ahead>>,
}

impl Source {
    pub(super) fn new(frame: usize, level: usize, segment: usize, part: usize) -> Self {
        Source {
            item: Item::End,
            walk: None,
            pace: Pace::default(),
            block: None,
            at: 0,
            place: RecordPlace::default(),
            key_head: 0,
            following: 0,
            range: LiveRange {
                lower: Edge::Open,
                upper: Edge::Open,
                frame,
                level,
                segment,
            },
            part,
            ahead: None,
        }
    }

    /// Starts reading ahead, if the scan is long enough and memory is not short.
    pub(super) fn go_ahead(&mut self, source_index: u16, path: &Path, store: &PageStore) {
        let Some(walk) = &self.walk else {
            return;
        };
        if let Some(ahead) = &mut self.ahead {
            ahead.ends_after(walk);
        } else if walk.wants_stream() {
            let ahead = match source_index {
                LEAF => Ahead::of_leaf(path, walk, store),
                _ => Ahead::of_range(path, self.range, self.part, walk, store),
            };
            self.ahead = ahead.map(Box::new);
        }
    }

    /// Reads ahead in the groups behind the current one, if all of the current one is being read
    /// and there is room.
    pub(super) fn read_ahead(&mut self, path: &Path, store: &PageStore) {
        if let (Some(ahead), Some(walk)) = (&mut self.ahead, &self.walk)
            && walk.is_sent()
            && ahead.stream.has_room()
        {
            // Ignores errors: the damage is ahead, and is reported when the scan reaches it.
            let _ = ahead.go_on(path, store);
        }
    }

    /// Starts reads of this group's blocks, if the source reads ahead.
    pub(super) fn send(&mut self, store: &PageStore) {
        if let (Some(ahead), Some(walk)) = (&mut self.ahead, &mut self.walk) {
            // Ignores errors, as in `read_ahead`.
            let _ = walk.send(store, &mut ahead.stream);
        }
    }

    /// Ends the walk over a group.
    pub(super) fn end_walk(&mut self) {
        if let Some(walk) = self.walk.take() {
            self.pace = walk.pace();
        }
    }

    /// Whether the current record is operands of merges.
    #[inline]
    pub(super) fn is_at_operands(&self) -> bool {
        !self.place.is_put() && !self.place.is_delete()
    }

    /// The current record; `None` if the source is at another item.
    #[inline]
    pub(super) fn record(&self) -> Option<(&Block, RecordPlace)> {
        match (self.item, &self.block) {
            (Item::Record, Some(block)) => Some((block, self.place)),
            _ => None,
        }
    }

    /// Moves to the first of these records of a block.
    #[inline]
    pub(super) fn enter(&mut self, block: Arc<Block>, records: Range<usize>, direction: Direction) {
        let at = match direction {
            Direction::Forward => records.start,
            Direction::Backward => records.end - 1,
        };
        (self.place, self.key_head) = look(&block, at, direction);
        self.block = Some(block);
        self.item = Item::Record;
        self.at = at;
        self.following = records.len() - 1;
    }

    /// Moves to the next record of the block, if there is one.
    #[inline]
    pub(super) fn step(&mut self, direction: Direction) -> bool {
        let (Item::Record, Some(block), 1..) = (self.item, &self.block, self.following) else {
            return false;
        };
        self.at = step(direction, self.at);
        (self.place, self.key_head) = look(block, self.at, direction);
        self.following -= 1;
        true
    }

    /// Appends the current record to a batch, and the records behind it in the block whose heads
    /// are below `limit`. It passes deletes, and leaves values out if `KEYS` is set.
    ///
    /// Returns true if it stopped at a record with a head at or above the limit, or at operands of
    /// merges. Otherwise the current record is the last one appended. It is a function of its own
    /// so that the loop gets the registers.
    #[inline(never)]
    pub(super) fn copy_run<const KEYS: bool>(
        &mut self,
        limit: u64,
        direction: Direction,
        batch: &mut Batch,
    ) -> bool {
        let Some(block) = &self.block else {
            return false;
        };
        let mut prefix = block.prefix();
        if mutant::active("scan-prefix-one-byte-short") {
            prefix = &prefix[..prefix.len().saturating_sub(1)];
        }
        let (word, bytes) = (block.prefix_word(), block.bytes());
        let (mut place, mut head) = (self.place, self.key_head);
        let (mut at, mut following) = (self.at, self.following);
        let came = loop {
            if place.is_put() {
                let record = match KEYS {
                    true => &bytes[place.suffix()],
                    false => &bytes[place.suffix_and_value()],
                };
                batch.push_behind(prefix, word, record, place.suffix().len());
            } else if !place.is_delete() {
                break true;
            }
            if following == 0 || batch.is_full() {
                break false;
            }
            following -= 1;
            at = step(direction, at);
            (place, head) = look(block, at, direction);
            if head >= limit {
                break true;
            }
        };
        (self.place, self.key_head) = (place, head);
        (self.at, self.following) = (at, following);
        came
    }

    /// Like [`Source::copy_run`], but the records stay in their block. Returns `None` if copies are
    /// cheaper: for small records, because the reader decodes lent ones again, and for a block with
    /// deletes or operands.
    pub(super) fn lend_run(
        &mut self,
        limit: u64,
        direction: Direction,
        batch: &mut Batch,
    ) -> Option<bool> {
        let block = self.block.as_ref()?;
        let are_large = block.bytes().len() >= LENT_BYTES_MIN * block.len();
        if !are_large || !block.is_plain() {
            return None;
        }
        let most = batch.room().min(self.following + 1);
        let (first, mut count) = (self.at, 1);
        let came = loop {
            if self.following == 0 || count == most {
                break false;
            }
            self.following -= 1;
            self.at = step(direction, self.at);
            (self.place, self.key_head) = look(block, self.at, direction);
            if self.key_head >= limit {
                break true;
            }
            count += 1;
        };
        batch.lend(block, first, count, direction);
        Some(came)
    }

    /// The order of different items at one key. A source that may begin at a key must be opened
    /// before the record there is returned. A leaf's range ends before its upper bound, which is
    /// exclusive, and behind its lower bound, which is inclusive.
    #[inline]
    pub(super) fn rank(&self, direction: Direction) -> u8 {
        match (self.item, direction) {
            (Item::Start | Item::Pending | Item::Between, _) => 0,
            (Item::Boundary, Direction::Forward) => 1,
            (Item::Record, _) => 2,
            (Item::Boundary, Direction::Backward) => 3,
            (Item::End, _) => 4,
        }
    }

    /// The next key of the source.
    pub(super) fn key<'a>(&'a self, source_index: u16, path: &'a Path) -> Pieces<'a> {
        match self.item {
            Item::Record => match self.record() {
                Some((block, place)) => (block.prefix(), &block.bytes()[place.suffix()]),
                None => (&[], &[]),
            },
            Item::Between => self.walk.as_ref().map_or((&[], &[]), BlockWalk::edge),
            Item::Boundary => (path.leaf_end().unwrap_or_default(), &[]),
            Item::Start | Item::Pending | Item::End => {
                let (lower, upper) = path.bounds_of(source_index, self.range);
                let begin = match path.direction {
                    Direction::Forward => lower,
                    Direction::Backward => upper,
                };
                match begin {
                    Bound::Included(key) | Bound::Excluded(key) => (key, &[]),
                    Bound::Unbounded => (&[], &[]),
                }
            }
        }
    }
}

/// The next index in a direction. The caller makes sure that there is one.
#[inline]
fn step(direction: Direction, at: usize) -> usize {
    match direction {
        Direction::Forward => at + 1,
        Direction::Backward => at - 1,
    }
}

/// The place of a record of a block, and the head of its key.
#[inline(always)]
fn look(block: &Block, at: usize, direction: Direction) -> (RecordPlace, u64) {
    let (place, head) = block.look(at);
    (place, in_order(direction, head))
}
