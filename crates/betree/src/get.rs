//! Point lookups, from the root down, newest first.
//!
//! In each buffer level at most one segment can hold the key. The outline of its filter denies most
//! absent keys cheaply, and the filter nearly all others. So a lookup reads one block: the one with
//! the answer. Where a pivot has a maplet, one question to it stands for those to the filters of
//! all runs that it covers (`maplet.rs`). The filter of a leaf is asked last, and only while leaf
//! filters deny some keys (`leaf_filters.rs`).

use std::sync::Arc;

use terrapin_base::{Fold, MessageKind, PageId, Result, Slice, mutant};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, GroupHandle, PageStore, Reading};
use terrapin_structure::Found;

use crate::leaf_filters::LeafFilters;
use crate::load::{LoadedNode, Way, load_child_of};
use crate::node::Child;

/// The device gets this many block reads at once, while other keys are still going down.
const BLOCKS_TOGETHER: usize = 8;

/// Where a lookup starts.
#[derive(Clone, Copy)]
pub(crate) enum Top<'v> {
    /// The tree has no records.
    Empty,
    /// At the leaf that is the whole tree.
    Leaf(&'v GroupRef, &'v GroupHandle),
    /// At the root node.
    Node(&'v LoadedNode),
}

/// Where a lookup is.
enum At<'v> {
    Done,
    /// At the leaf that is the whole tree.
    Leaf(&'v GroupRef, &'v GroupHandle),
    /// At the root node. It is borrowed from the version, so that lookups do not share its
    /// reference count.
    Root(&'v LoadedNode),
    /// At a node further down.
    Node(Arc<LoadedNode>),
}

/// A lookup in progress. It yields the blocks that may hold its key, newest first.
struct Walk<'v, 'k> {
    key: &'k [u8],
    hash: u64,
    filters: &'v LeafFilters,
    at: At<'v>,
    /// The segments of the current node that may hold the key.
    way: Way,
}

/// A block that may hold a key.
struct CandidateBlock {
    group: GroupRef,
    index: Arc<GroupIndex>,
    number: usize,
    known: Known,
}

/// What a lookup knows of a block.
enum Known {
    Cached(Arc<Block>),
    /// A block of a leaf that was not cached a moment ago.
    Missing,
    /// A block of a segment. The cache was not asked yet.
    Unknown,
}

impl CandidateBlock {
    /// The block, if it is cached. A miss here does not count as a cache miss.
    fn block(&self, store: &PageStore) -> Option<Arc<Block>> {
        match &self.known {
            Known::Cached(block) => Some(block.clone()),
            Known::Missing => None,
            Known::Unknown => store.cached_block(&self.group, self.number),
        }
    }
}

impl<'v, 'k> Walk<'v, 'k> {
    fn new(top: Top<'v>, filters: &'v LeafFilters, key: &'k [u8], hash: u64) -> Self {
        let (at, way) = match top {
            Top::Empty => (At::Done, Way::default()),
            Top::Leaf(group, handle) => (At::Leaf(group, handle), Way::default()),
            Top::Node(node) => (At::Root(node), node.way(key)),
        };
        Walk {
            key,
            hash,
            filters,
            at,
            way,
        }
    }

    /// The next block to search; `None` if no block further down can hold the key.
    fn next(&mut self, store: &PageStore) -> Result<Option<CandidateBlock>> {
        let (key, hash) = (self.key, self.hash);
        loop {
            let node: &LoadedNode = match &self.at {
                At::Done => return Ok(None),
                At::Leaf(group, handle) => {
                    let candidate = self.in_leaf(store, group, handle)?;
                    self.at = At::Done;
                    return Ok(candidate);
                }
                At::Root(node) => node,
                At::Node(node) => node,
            };
            loop {
                let candidate = match node.has_maplets() {
                    false => node
                        .next_candidate(&mut self.way, key, hash)
                        .map(|c| (c, true)),
                    true => node.next_mapped(store, &mut self.way, key, hash)?,
                };
                let Some((candidate, is_asked)) = candidate else {
                    break;
                };
                if !is_asked || node.segment_may_contain(store, candidate, hash)? {
                    let (segment, at) = candidate;
                    let index = store.index_by(&segment.group, node.handle_of(at))?;
                    let number = index.find(key);
                    return Ok(Some(CandidateBlock {
                        group: segment.group,
                        index,
                        number,
                        known: Known::Unknown,
                    }));
                }
            }
            let pivot = self.way.pivot;
            match &node.pivots[pivot].child {
                Child::Leaf(group) => {
                    let candidate = self.in_leaf(store, group, node.leaf_handle(pivot))?;
                    self.at = At::Done;
                    return Ok(candidate);
                }
                Child::Node { page, .. } => {
                    let child = load_child_of(store, node, pivot, page)?;
                    self.way = child.way(key);
                    self.at = At::Node(child);
                }
            }
        }
    }

    /// The block of a leaf. Most keys that reach a leaf are there, so its filter is asked only if
    /// the block would have to be read, if at all.
    fn in_leaf(
        &self,
        store: &PageStore,
        group: &GroupRef,
        handle: &GroupHandle,
    ) -> Result<Option<CandidateBlock>> {
        let index = store.index_by(group, handle)?;
        let number = index.find(self.key);
        let known = match store.cached_block(group, number) {
            Some(block) => Known::Cached(block),
            None if self.filters.are_asked()
                && !store.may_contain_by(group, handle, self.hash)? =>
            {
                self.filters.learn(false);
                return Ok(None);
            }
            None => Known::Missing,
        };
        Ok(Some(CandidateBlock {
            group: *group,
            index,
            number,
            known,
        }))
    }
}

/// What the record of a block holds. Operands come without their bytes: the caller
/// [gathers](gather) them.
#[inline(always)] // each lookup
pub(crate) fn found_in(block: &Arc<Block>, at: usize) -> Found {
    match block.put_slice(at) {
        Ok(value) => Found::Value(value),
        Err(MessageKind::Put | MessageKind::Delete) => Found::Nothing,
        Err(MessageKind::Separated) => Found::Handle(Slice::copy(block.message(at).payload())),
        Err(MessageKind::Expiring) => Found::Expiring(Slice::copy(block.message(at).payload())),
        Err(MessageKind::Merge | MessageKind::Stack) => Found::Operands(Slice::default()),
    }
}

/// Gathers the operands of a key from all places where it has some, down to their base.
#[cold]
pub(crate) fn gather(
    store: &PageStore,
    (top, filters): (Top<'_>, &LeafFilters),
    key: &[u8],
    hash: u64,
) -> Result<Found> {
    let mut fold = Fold::default();
    let mut walk = Walk::new(top, filters, key, hash);
    while let Some(candidate) = walk.next(store)? {
        let CandidateBlock {
            group,
            index,
            number,
            known,
        } = candidate;
        let block = match known {
            Known::Cached(block) => block,
            Known::Missing | Known::Unknown => store.block(&group, &index, number, Fill::Normal)?,
        };
        if let Ok(at) = block.search(key)
            && (fold.push(block.message(at))? || mutant::active("get-takes-newest-operand"))
        {
            break;
        }
    }
    Ok(Found::gathered(&mut fold, key))
}

/// Finds the newest record of a key, whatever its kind, and passes its block and position to
/// `take`. Returns `None` if there is no record.
pub(crate) fn find<R>(
    store: &PageStore,
    (top, filters): (Top<'_>, &LeafFilters),
    key: &[u8],
    hash: u64,
    take: impl FnOnce(&Arc<Block>, usize) -> R,
) -> Result<Option<R>> {
    let mut walk = Walk::new(top, filters, key, hash);
    while let Some(candidate) = walk.next(store)? {
        let missed_in_leaf = matches!(candidate.known, Known::Missing);
        let block = match candidate.known {
            Known::Cached(block) => block,
            Known::Missing | Known::Unknown => {
                match store.block(
                    &candidate.group,
                    &candidate.index,
                    candidate.number,
                    Fill::Normal,
                ) {
                    Err(_) if mutant::active("unreadable-block-is-not-found") => return Ok(None),
                    read => read?,
                }
            }
        };
        let at = block.search(key);
        if missed_in_leaf {
            filters.learn(at.is_ok());
        }
        if let Ok(at) = at {
            return Ok(Some(take(&block, at)));
        }
    }
    Ok(None)
}

/// A key that waits for a block to be read.
struct Waiting<'v, 'k> {
    key: usize,
    walk: Walk<'v, 'k>,
    /// Whether the block belongs to a leaf.
    in_leaf: bool,
    /// Another key that waits for the same block.
    other: Option<usize>,
}

/// Keys that go down together, and the blocks that they wait for.
struct Together<'v, 'k, 'o> {
    waiting: Vec<Waiting<'v, 'k>>,
    /// The blocks being read: page, block number, and the last key in `waiting` that waits for it.
    blocks: Vec<(PageId, usize, usize)>,
    /// The entries of `waiting` whose block did not have the key.
    missed: Vec<usize>,
    out: &'o mut [Found],
}

impl<'v, 'k> Together<'v, 'k, '_> {
    /// Continues with a key until it is found, is absent, or waits for a block.
    fn go(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        mut walk: Walk<'v, 'k>,
    ) -> Result<()> {
        while let Some(candidate) = walk.next(store)? {
            let Some(block) = candidate.block(store) else {
                return self.wait(store, reading, key, walk, &candidate);
            };
            if let Ok(at) = block.search(walk.key) {
                self.out[key] = found_in(&block, at);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes a key wait for its block.
    fn wait(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        walk: Walk<'v, 'k>,
        candidate: &CandidateBlock,
    ) -> Result<()> {
        let (group, number) = (&candidate.group, candidate.number);
        let waiting = self.waiting.len();
        let same = |&(page, n, _): &(PageId, usize, usize)| (page, n) == (group.id, number);
        let other = match self.blocks.iter().rposition(same) {
            Some(block) => Some(std::mem::replace(&mut self.blocks[block].2, waiting)),
            None => {
                store.missed_block(group, number);
                let left = self.out.len() - key;
                let reading = reading.get_or_insert_with(|| store.reading(left, Fill::Normal));
                if store
                    .want(reading, group, &candidate.index, number)?
                    .is_none()
                {
                    self.take(store, reading)?;
                    store.want(reading, group, &candidate.index, number)?;
                }
                self.blocks.push((group.id, number, waiting));
                if self.blocks.len().is_multiple_of(BLOCKS_TOGETHER) {
                    store.start(reading)?;
                }
                None
            }
        };
        self.waiting.push(Waiting {
            key,
            walk,
            in_leaf: matches!(candidate.known, Known::Missing),
            other,
        });
        Ok(())
    }

    /// Waits for all blocks being read, and searches them.
    fn take(&mut self, store: &PageStore, reading: &mut Reading) -> Result<()> {
        let Together {
            waiting,
            blocks,
            missed,
            out,
        } = self;
        let result = store.finish(reading, &mut |number, block| {
            let mut next = Some(blocks[number].2);
            while let Some(at) = next {
                let waiter = &waiting[at];
                let found = block.search(waiter.walk.key);
                if waiter.in_leaf {
                    waiter.walk.filters.learn(found.is_ok());
                }
                match found {
                    Ok(at) => out[waiter.key] = found_in(&block, at),
                    Err(_) => missed.push(at),
                }
                next = waiter.other;
            }
        });
        blocks.clear();
        result
    }
}

/// Finds the values of many keys. All keys go down together, and the blocks that they need next are
/// read at once. Keys whose filter gave a false positive take part in the next round.
pub(crate) fn find_many(
    store: &PageStore,
    (top, filters): (Top<'_>, &LeafFilters),
    keys: &[(&[u8], u64)],
    out: &mut [Found],
) -> Result<()> {
    let mut reading = None;
    let mut together = Together {
        waiting: Vec::with_capacity(keys.len()),
        blocks: Vec::with_capacity(keys.len()),
        missed: Vec::new(),
        out,
    };
    for (i, &(key, hash)) in keys.iter().enumerate() {
        together.go(store, &mut reading, i, Walk::new(top, filters, key, hash))?;
    }
    while !together.waiting.is_empty() {
        if let Some(reading) = &mut reading {
            together.take(store, reading)?;
        }
        let missed = std::mem::take(&mut together.missed);
        let mut waited: Vec<_> = std::mem::take(&mut together.waiting)
            .into_iter()
            .map(Some)
            .collect();
        for at in missed {
            if let Some(Waiting { key, walk, .. }) = waited[at].take() {
                together.go(store, &mut reading, key, walk)?;
            }
        }
    }
    for (found, &(key, hash)) in together.out.iter_mut().zip(keys) {
        if matches!(found, Found::Operands(_)) {
            *found = gather(store, (top, filters), key, hash)?;
        }
    }
    Ok(())
}
