//! Point lookups: from the root down, newest first. In each buffer level at most one segment can
//! hold the key; the outline of its filter mostly says that it does not, at little cost, and else
//! nearly always the filter. So a lookup reads one block: that of the answer (DESIGN §5). The
//! filter of a leaf is the last thing asked, and only while such filters deny some
//! (`leaf_filters.rs`).

use std::sync::Arc;

use terrapin_base::{PageId, Result, Slice, mutant};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, GroupHandle, PageStore, Reading};

use crate::leaf_filters::LeafFilters;
use crate::load::{LoadedNode, Way, load_child_of};
use crate::node::Child;

/// The device is told of so many blocks at once, while other keys go down.
const BLOCKS_TOGETHER: usize = 8;

/// Where a lookup starts.
#[derive(Clone, Copy)]
pub(crate) enum Top<'v> {
    /// Nowhere: there are no records.
    Empty,
    /// At a lone leaf.
    Leaf(&'v GroupRef, &'v GroupHandle),
    /// At the root node.
    Node(&'v LoadedNode),
}

/// Where a lookup stands.
enum At<'v> {
    Done,
    /// At a leaf that is the whole tree.
    Leaf(&'v GroupRef, &'v GroupHandle),
    /// At the root node, which is borrowed from its version, so that lookups share no reference
    /// count there.
    Root(&'v LoadedNode),
    /// At a node further down.
    Node(Arc<LoadedNode>),
}

/// A lookup under way: yields, newest first, the blocks that may hold its key.
struct Walk<'v, 'k> {
    key: &'k [u8],
    hash: u64,
    filters: &'v LeafFilters,
    at: At<'v>,
    /// What there is for the key in the node where it stands.
    way: Way,
}

/// A block that may hold a key.
struct Place {
    group: GroupRef,
    index: Arc<GroupIndex>,
    number: usize,
    found: Found,
}

/// What is known of a block.
enum Found {
    Cached(Arc<Block>),
    /// A leaf's, that was not in the cache a moment ago.
    Missing,
    /// A segment's: nobody looked.
    Unknown,
}

impl Place {
    /// The block, if it is cached. One that is not does not count as looked for.
    fn block(&self, store: &PageStore) -> Option<Arc<Block>> {
        match &self.found {
            Found::Cached(block) => Some(block.clone()),
            Found::Missing => None,
            Found::Unknown => store.cached_block(&self.group, self.number),
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

    /// The next block to look into; none when the key has no record further down.
    fn next(&mut self, store: &PageStore) -> Result<Option<Place>> {
        let (key, hash) = (self.key, self.hash);
        loop {
            let node: &LoadedNode = match &self.at {
                At::Done => return Ok(None),
                At::Leaf(group, handle) => {
                    let place = self.in_leaf(store, group, handle)?;
                    self.at = At::Done;
                    return Ok(place);
                }
                At::Root(node) => node,
                At::Node(node) => node,
            };
            while let Some(candidate) = node.next_candidate(&mut self.way, key, hash) {
                if node.segment_may_contain(store, candidate, hash)? {
                    let (segment, at) = candidate;
                    let index = store.index_by(&segment.group, node.handle_of(at))?;
                    let number = index.find(key);
                    return Ok(Some(Place {
                        group: segment.group,
                        index,
                        number,
                        found: Found::Unknown,
                    }));
                }
            }
            let pivot = self.way.pivot;
            match &node.pivots[pivot].child {
                Child::Leaf(group) => {
                    let place = self.in_leaf(store, group, node.leaf_handle(pivot))?;
                    self.at = At::Done;
                    return Ok(place);
                }
                Child::Node { page, .. } => {
                    let child = load_child_of(store, node, pivot, page)?;
                    self.way = child.way(key);
                    self.at = At::Node(child);
                }
            }
        }
    }

    /// Most keys that get as far as a leaf are there: the filter is only asked when the block would
    /// have to be read, if at all.
    fn in_leaf(
        &self,
        store: &PageStore,
        group: &GroupRef,
        handle: &GroupHandle,
    ) -> Result<Option<Place>> {
        let index = store.index_by(group, handle)?;
        let number = index.find(self.key);
        let found = match store.cached_block(group, number) {
            Some(block) => Found::Cached(block),
            None if self.filters.are_asked()
                && !store.may_contain_by(group, handle, self.hash)? =>
            {
                self.filters.learn(false);
                return Ok(None);
            }
            None => Found::Missing,
        };
        Ok(Some(Place {
            group: *group,
            index,
            number,
            found,
        }))
    }
}

/// Finds a key's newest record and hands block and position to `take`, which says whether that is a
/// value; none when there is no record.
pub(crate) fn find<R>(
    store: &PageStore,
    (top, filters): (Top<'_>, &LeafFilters),
    key: &[u8],
    hash: u64,
    take: impl FnOnce(&Arc<Block>, usize) -> Option<R>,
) -> Result<Option<R>> {
    let mut walk = Walk::new(top, filters, key, hash);
    while let Some(place) = walk.next(store)? {
        let missed_in_leaf = matches!(place.found, Found::Missing);
        let block = match place.found {
            Found::Cached(block) => block,
            Found::Missing | Found::Unknown => {
                match store.block(&place.group, &place.index, place.number, Fill::Normal) {
                    Err(_) if mutant::active(55) => return Ok(None),
                    read => read?,
                }
            }
        };
        let at = block.search(key);
        if missed_in_leaf {
            filters.learn(at.is_ok());
        }
        if let Ok(at) = at {
            return Ok(take(&block, at));
        }
    }
    Ok(None)
}

/// A key whose next block is being read.
struct Waiting<'v, 'k> {
    key: usize,
    walk: Walk<'v, 'k>,
    /// Whether it is a leaf's.
    in_leaf: bool,
    /// Another one that waits for the same block.
    other: Option<usize>,
}

/// Keys that go down together, and the blocks that they wait for.
struct Together<'v, 'k, 'o> {
    waiting: Vec<Waiting<'v, 'k>>,
    /// The blocks that are being read, by their numbers there, and the last that waits for each.
    blocks: Vec<(PageId, usize, usize)>,
    /// Those of `waiting` whose block had not the key.
    missed: Vec<usize>,
    out: &'o mut [Option<Slice>],
}

impl<'v, 'k> Together<'v, 'k, '_> {
    /// Goes on with a key until it is found, or not there, or waits for a block.
    fn go(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        mut walk: Walk<'v, 'k>,
    ) -> Result<()> {
        while let Some(place) = walk.next(store)? {
            let Some(block) = place.block(store) else {
                return self.wait(store, reading, key, walk, &place);
            };
            if let Ok(at) = block.search(walk.key) {
                self.out[key] = block.put_slice(at);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Has a key wait for its block.
    fn wait(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        walk: Walk<'v, 'k>,
        place: &Place,
    ) -> Result<()> {
        let (group, number) = (&place.group, place.number);
        let waiting = self.waiting.len();
        let same = |&(page, n, _): &(PageId, usize, usize)| (page, n) == (group.id, number);
        let other = match self.blocks.iter().rposition(same) {
            Some(block) => Some(std::mem::replace(&mut self.blocks[block].2, waiting)),
            None => {
                store.missed_block(group, number);
                let left = self.out.len() - key;
                let reading = reading.get_or_insert_with(|| store.reading(left, Fill::Normal));
                if store.want(reading, group, &place.index, number)?.is_none() {
                    self.take(store, reading)?;
                    store.want(reading, group, &place.index, number)?;
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
            in_leaf: matches!(place.found, Found::Missing),
            other,
        });
        Ok(())
    }

    /// Takes all blocks that are being read, and looks into them.
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
                    Ok(at) => out[waiter.key] = block.put_slice(at),
                    Err(_) => missed.push(at),
                }
                next = waiter.other;
            }
        });
        blocks.clear();
        result
    }
}

/// Finds the values of many keys: all go down together, and the blocks that they want next are read
/// at once, while others go down. Those whose filter lied go on to the next round.
pub(crate) fn find_many(
    store: &PageStore,
    (top, filters): (Top<'_>, &LeafFilters),
    keys: &[(&[u8], u64)],
    out: &mut [Option<Slice>],
) -> Result<()> {
    out.fill(None);
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
    Ok(())
}
