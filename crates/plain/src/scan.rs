//! A scan: one block after the other, in either direction.
//!
//! What the scan has not passed is three nested ranges: groups, the blocks of the open group, and
//! the records of the open block. Each direction takes from its end of a range. A seek makes them
//! smaller. A block is read when its first possible key is next.

use std::ops::{Bound, Range};
use std::sync::Arc;

use terrapin_base::{Message, MessageKind, Result};
use terrapin_pages::block::Block;
use terrapin_pages::group::GroupIndex;
use terrapin_pages::{Fill, PageStore};
use terrapin_structure::{Batch, Direction, Filled, KeyBounds, Scan};

use crate::format::List;
use crate::version::{check_block, index_of};

/// Whether no key can be between the bounds.
pub(crate) fn is_empty((lower, upper): KeyBounds<'_>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lo), Bound::Included(hi)) => lo > hi,
        (Bound::Included(lo) | Bound::Excluded(lo), Bound::Included(hi) | Bound::Excluded(hi)) => {
            lo >= hi
        }
    }
}

/// Whether a key is inside a bound: an upper one for a forward scan, a lower one for a backward
/// scan.
fn lets_in(bound: Bound<&[u8]>, key: &[u8], direction: Direction) -> bool {
    match (bound, direction) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(end), Direction::Forward) => key <= end,
        (Bound::Excluded(end), Direction::Forward) => key < end,
        (Bound::Included(end), Direction::Backward) => key >= end,
        (Bound::Excluded(end), Direction::Backward) => key > end,
    }
}

/// The groups that may have records between the bounds.
fn groups_inside(list: &List, (lower, upper): KeyBounds<'_>) -> Range<usize> {
    let groups = &list.groups;
    let start = groups.partition_point(|g| !lets_in(lower, &g.last_key, Direction::Backward));
    let end = groups.partition_point(|g| lets_in(upper, &g.first_key, Direction::Forward));
    start..end
}

/// The blocks that may have records between the bounds.
fn blocks_inside(index: &GroupIndex, (lower, upper): KeyBounds<'_>) -> Range<usize> {
    let place = |bound| match bound {
        Bound::Unbounded => None,
        Bound::Included(key) | Bound::Excluded(key) => Some(index.find(key)),
    };
    place(lower).unwrap_or(0)..place(upper).map_or(index.blocks(), |last| last + 1)
}

/// The records between the bounds.
fn records_inside(block: &Block, (lower, upper): KeyBounds<'_>) -> Range<usize> {
    let below = |key: &[u8], or_equal: bool| match block.search(key) {
        Ok(at) => at + usize::from(or_equal),
        Err(at) => at,
    };
    let start = match lower {
        Bound::Unbounded => 0,
        Bound::Included(key) => below(key, false),
        Bound::Excluded(key) => below(key, true),
    };
    let end = match upper {
        Bound::Unbounded => block.len(),
        Bound::Included(key) => below(key, true),
        Bound::Excluded(key) => below(key, false),
    };
    start..end
}

/// The part of a range that is inside another. It may be empty with any ends.
fn common(a: &Range<usize>, b: Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// The next number of a range in a direction.
fn first(range: &Range<usize>, direction: Direction) -> Option<usize> {
    match direction {
        _ if range.is_empty() => None,
        Direction::Forward => Some(range.start),
        Direction::Backward => Some(range.end - 1),
    }
}

/// Takes the next `count` numbers out of a range that has them.
fn pass(range: &mut Range<usize>, count: usize, direction: Direction) {
    match direction {
        Direction::Forward => range.start += count,
        Direction::Backward => range.end -= count,
    }
}

/// What comes next in a scan.
enum Next {
    /// A record of the open block, perhaps outside the bound.
    Record,
    /// Nothing inside the bound.
    Reached,
    /// A read would be needed, but the caller did not want one.
    Unread,
    /// Nothing.
    End,
}

/// A group that a scan is in.
struct Open {
    group: usize,
    index: Arc<GroupIndex>,
    /// Its blocks that are not passed.
    blocks: Range<usize>,
}

/// A scan over one version.
pub(crate) struct PlainScan {
    store: Arc<PageStore>,
    list: Arc<List>,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// The groups that are not passed or open.
    groups: Range<usize>,
    open: Option<Open>,
    block: Option<Arc<Block>>,
    /// The records of the block that are not passed.
    records: Range<usize>,
    /// The end or an error was returned.
    is_done: bool,
    /// The key that [`Scan::next`] returned.
    key: Vec<u8>,
}

impl PlainScan {
    /// A scan over the groups of a list. It reads nothing yet.
    pub(crate) fn new(
        store: &Arc<PageStore>,
        list: Option<Arc<List>>,
        bounds: KeyBounds<'_>,
        direction: Direction,
    ) -> Self {
        let list = list.unwrap_or_else(|| Arc::new(List { groups: Vec::new() }));
        PlainScan {
            store: store.clone(),
            groups: groups_inside(&list, bounds),
            list,
            direction,
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            open: None,
            block: None,
            records: 0..0,
            is_done: false,
            key: Vec::new(),
        }
    }

    fn bounds(&self) -> KeyBounds<'_> {
        (
            self.lower.as_ref().map(|key| &key[..]),
            self.upper.as_ref().map(|key| &key[..]),
        )
    }

    /// Opens groups and blocks until there is a record, or until it is known that none is inside
    /// `until`. Reads nothing if `is_sparing`.
    fn find_next(&mut self, until: Bound<&[u8]>, is_sparing: bool) -> Result<Next> {
        while self.records.is_empty() {
            self.block = None;
            let next = match &self.open {
                Some(open) => first(&open.blocks, self.direction),
                None => None,
            };
            match (next, &mut self.open) {
                (Some(number), Some(open)) => {
                    let listed = &self.list.groups[open.group];
                    if is_behind(&open.index, number, until, self.direction) {
                        return Ok(Next::Reached);
                    }
                    let cached = || self.store.cached_block_as(&listed.group, number, Fill::Low);
                    let block = match is_sparing {
                        false => self
                            .store
                            .block(&listed.group, &open.index, number, Fill::Low)?,
                        true => match cached() {
                            Some(block) => block,
                            None => return Ok(Next::Unread),
                        },
                    };
                    check_block(&block, listed)?;
                    pass(&mut open.blocks, 1, self.direction);
                    self.records = records_inside(&block, self.bounds());
                    self.block = Some(block);
                }
                _ => {
                    self.open = None;
                    let Some(group) = first(&self.groups, self.direction) else {
                        return Ok(Next::End);
                    };
                    let listed = &self.list.groups[group];
                    let nearest = match self.direction {
                        Direction::Forward => &listed.first_key,
                        Direction::Backward => &listed.last_key,
                    };
                    if !lets_in(reach(until), nearest, self.direction) {
                        return Ok(Next::Reached);
                    }
                    if is_sparing && !self.store.has_index(&listed.group) {
                        return Ok(Next::Unread);
                    }
                    let index = index_of(&self.store, listed)?;
                    let blocks = blocks_inside(&index, self.bounds());
                    pass(&mut self.groups, 1, self.direction);
                    self.open = Some(Open {
                        group,
                        index,
                        blocks,
                    });
                }
            }
        }
        Ok(Next::Record)
    }

    /// Appends records of the open block that are inside `until`. Returns whether there were any.
    fn take_some(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> bool {
        let (Some(block), Some(next)) = (&self.block, first(&self.records, self.direction)) else {
            return false;
        };
        let until = match self.direction {
            Direction::Forward => (Bound::Unbounded, until),
            Direction::Backward => (until, Bound::Unbounded),
        };
        let mut count = common(&self.records, records_inside(block, until)).len();
        if block.has_extended() {
            // As far as records are puts.
            let number = |record: usize| match self.direction {
                Direction::Forward => next + record,
                Direction::Backward => next - record,
            };
            let mut records = 0..count;
            count = records
                .position(|record| block.kind(number(record)) != MessageKind::Put)
                .unwrap_or(count);
        }
        if batch.lends() && !batch.keys_only() && count > 0 {
            let lent = count.min(batch.room());
            batch.lend(block, next, lent, self.direction);
            pass(&mut self.records, lent, self.direction);
            return true;
        }
        for _ in 0..count {
            let Some(at) = first(&self.records, self.direction).filter(|_| !batch.is_full()) else {
                break;
            };
            block.key_into(at, &mut self.key);
            match batch.keys_only() {
                true => batch.push(&self.key, &[], 0),
                false => batch.push(&self.key, &block.bytes()[block.value_range(at)], 0),
            }
            pass(&mut self.records, 1, self.direction);
        }
        count > 0
    }

    /// Whether the next record is inside `until` and no put.
    fn is_unresolved(&self, until: Bound<&[u8]>) -> bool {
        let (Some(block), Some(next)) = (&self.block, first(&self.records, self.direction)) else {
            return false;
        };
        block.kind(next) != MessageKind::Put && lets_in(until, &block.key(next), self.direction)
    }

    fn fill_batch(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        loop {
            if batch.is_full() {
                return Ok(Filled::Full);
            }
            match self.find_next(until, batch.spares_reads())? {
                Next::Record if self.take_some(until, batch) => {}
                Next::Record if self.is_unresolved(until) => return Ok(Filled::Unresolved),
                Next::Record | Next::Reached => return Ok(Filled::Reached),
                Next::Unread => return Ok(Filled::Full),
                Next::End => return Ok(Filled::End),
            }
        }
    }
}

/// A bound with its key. A block that may begin with that key is opened: the caller may then step
/// over the record ([`Scan::skip`]).
fn reach(until: Bound<&[u8]>) -> Bound<&[u8]> {
    match until {
        Bound::Excluded(key) => Bound::Included(key),
        until => until,
    }
}

/// Whether all keys of a block are behind a bound and its key, as far as the index says.
fn is_behind(index: &GroupIndex, number: usize, until: Bound<&[u8]>, direction: Direction) -> bool {
    let (Bound::Included(key) | Bound::Excluded(key)) = until else {
        return false;
    };
    match direction {
        Direction::Forward => index.compare_separator(number, key).is_gt(),
        // The keys of a block are below the next separator.
        Direction::Backward if number + 1 < index.blocks() => {
            index.compare_separator(number + 1, key).is_le()
        }
        Direction::Backward => !lets_in(reach(until), index.last_key(), direction),
    }
}

impl Scan for PlainScan {
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_done {
            return Ok(None);
        }
        let found = self.find_next(Bound::Unbounded, false);
        self.is_done = !matches!(found, Ok(Next::Record));
        found?;
        let (Some(block), Some(at)) = (&self.block, first(&self.records, self.direction)) else {
            return Ok(None);
        };
        pass(&mut self.records, 1, self.direction);
        block.key_into(at, &mut self.key);
        let value = block.message(at).put_value().unwrap_or_default();
        Ok(Some((&self.key, value)))
    }

    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled> {
        if self.is_done {
            return Ok(Filled::End);
        }
        let filled = self.fill_batch(until, batch);
        self.is_done = matches!(filled, Ok(Filled::End) | Err(_));
        filled
    }

    fn unresolved(&self, key: &mut Vec<u8>) -> Option<&[u8]> {
        let (block, at) = (self.block.as_ref()?, first(&self.records, self.direction)?);
        key.extend_from_slice(block.prefix());
        key.extend_from_slice(block.key_suffix(at));
        match block.message(at) {
            Message::Separated(handle) => Some(handle),
            _ => None,
        }
    }

    fn skip(&mut self, key: &[u8]) {
        if let (Some(block), Some(at)) = (&self.block, first(&self.records, self.direction))
            && block.compare_key(at, key).is_eq()
        {
            pass(&mut self.records, 1, self.direction);
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let bound = match self.direction {
            Direction::Forward => &mut self.lower,
            Direction::Backward => &mut self.upper,
        };
        let is_passed = match &bound {
            Bound::Unbounded => false,
            Bound::Included(old) | Bound::Excluded(old) => match self.direction {
                Direction::Forward => key <= &old[..],
                Direction::Backward => key >= &old[..],
            },
        };
        if self.is_done || is_passed {
            return Ok(());
        }
        *bound = Bound::Included(key.to_vec());
        let groups = groups_inside(&self.list, self.bounds());
        self.groups = common(&self.groups, groups.clone());
        if let Some(open) = &self.open {
            let blocks = match groups.contains(&open.group) {
                true => common(&open.blocks, blocks_inside(&open.index, self.bounds())),
                false => 0..0,
            };
            let block = self.block.as_ref();
            let inside = block.map_or(0..0, |block| records_inside(block, self.bounds()));
            self.records = common(&self.records, inside);
            if let Some(open) = &mut self.open {
                open.blocks = blocks;
            }
        }
        Ok(())
    }

    fn runs(&self) -> usize {
        0
    }

    fn take_passed(&mut self) -> u64 {
        0
    }
}
