//! Point lookups: from the root down, newest first. In each buffer level at most one segment can hold the key; its filter
//! mostly says that it does not. So a lookup reads one block: that of the answer (DESIGN §5).

use std::sync::Arc;

use terrapin_base::{Error, Result, Slice, mutant};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef};
use terrapin_pages::{Fill, GroupHandle, PageStore};

use crate::load::{LoadedNode, load_child_of};
use crate::node::Child;

/// Most blocks that are read at once: far more than a device does in parallel, and a megabyte of buffers.
const BLOCKS_AT_ONCE: usize = 256;

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

/// A node on the way: the root is borrowed from its version, so that lookups share no reference count there.
enum Hold<'v> {
    Root(&'v LoadedNode),
    Cached(Arc<LoadedNode>),
}

impl std::ops::Deref for Hold<'_> {
    type Target = LoadedNode;

    #[inline]
    fn deref(&self) -> &LoadedNode {
        match self {
            Hold::Root(node) => node,
            Hold::Cached(node) => node,
        }
    }
}

enum At<'v> {
    Done,
    /// At a leaf that is the whole tree.
    Leaf(&'v GroupRef, &'v GroupHandle),
    Node {
        node: Hold<'v>,
        pivot: usize,
        /// The next level to look at.
        level: usize,
        /// What to look for there.
        head: u64,
    },
}

impl<'v> At<'v> {
    /// Before the first level of a node; behind the last when none of its segments can hold the key.
    #[inline]
    fn node(node: Hold<'v>, key: &[u8]) -> Self {
        let head = node.segment_head(key);
        At::Node {
            pivot: node.pivot_of(key),
            level: if head.is_some() { 0 } else { node.levels.len() },
            head: head.unwrap_or(0),
            node,
        }
    }
}

/// A lookup under way: yields, newest first, the blocks that may hold its key.
struct Walk<'v, 'k> {
    key: &'k [u8],
    hash: u64,
    at: At<'v>,
}

/// A block that may hold a key.
struct Place {
    group: GroupRef,
    index: Arc<GroupIndex>,
    number: usize,
    /// Given when it was in the cache and looking there first was the cheaper thing.
    block: Option<Arc<Block>>,
}

impl<'v, 'k> Walk<'v, 'k> {
    fn new(top: Top<'v>, key: &'k [u8], hash: u64) -> Self {
        let at = match top {
            Top::Empty => At::Done,
            Top::Leaf(group, handle) => At::Leaf(group, handle),
            Top::Node(node) => At::node(Hold::Root(node), key),
        };
        Walk { key, hash, at }
    }

    /// The next block to look into; none when the key has no record further down.
    fn next(&mut self, store: &PageStore) -> Result<Option<Place>> {
        loop {
            match &mut self.at {
                At::Done => return Ok(None),
                At::Leaf(group, handle) => {
                    let place = in_leaf(store, group, handle, self.key, self.hash)?;
                    self.at = At::Done;
                    return Ok(place);
                }
                At::Node {
                    node,
                    pivot,
                    level,
                    head,
                } => {
                    while *level < node.levels.len() {
                        let candidate = node.candidate(*level, *pivot, self.key, *head);
                        *level += 1;
                        let Some((segment, handle)) = candidate else {
                            continue;
                        };
                        if store.may_contain_by(&segment.group, handle, self.hash)? {
                            let index = store.index_by(&segment.group, handle)?;
                            let number = index.find(self.key);
                            return Ok(Some(Place {
                                group: segment.group,
                                index,
                                number,
                                block: None,
                            }));
                        }
                    }
                    match &node.pivots[*pivot].child {
                        Child::Leaf(group) => {
                            let handle = node.leaf_handle(*pivot);
                            let place = in_leaf(store, group, handle, self.key, self.hash)?;
                            self.at = At::Done;
                            return Ok(place);
                        }
                        Child::Node { page, .. } => {
                            let node = load_child_of(store, node, *pivot, page)?;
                            self.at = At::node(Hold::Cached(node), self.key);
                        }
                    }
                }
            }
        }
    }
}

/// Most keys that get as far as a leaf are there: the filter is only asked when the block would have to be read.
fn in_leaf(
    store: &PageStore,
    group: &GroupRef,
    handle: &GroupHandle,
    key: &[u8],
    hash: u64,
) -> Result<Option<Place>> {
    let index = store.index_by(group, handle)?;
    let number = index.find(key);
    let block = store.cached_block(group, number);
    if block.is_none() && !store.may_contain_by(group, handle, hash)? {
        return Ok(None);
    }
    Ok(Some(Place {
        group: *group,
        index,
        number,
        block,
    }))
}

/// Finds a key's newest record and hands block and position to `take`, which says whether that is a value; none when there
/// is no record.
pub(crate) fn find<R>(
    store: &PageStore,
    top: Top<'_>,
    key: &[u8],
    hash: u64,
    take: impl FnOnce(&Arc<Block>, usize) -> Option<R>,
) -> Result<Option<R>> {
    let mut walk = Walk::new(top, key, hash);
    while let Some(place) = walk.next(store)? {
        let block = match place.block {
            Some(block) => block,
            None => match store.block(&place.group, &place.index, place.number, Fill::Normal) {
                Err(_) if mutant::active(55) => return Ok(None),
                read => read?,
            },
        };
        if let Ok(at) = block.search(key) {
            return Ok(take(&block, at));
        }
    }
    Ok(None)
}

/// Finds the values of many keys: all go down together, and the blocks that they want next are read at once. Those whose
/// filter lied go on to the next round.
pub(crate) fn find_many(
    store: &PageStore,
    top: Top<'_>,
    keys: &[(&[u8], u64)],
    out: &mut [Option<Slice>],
) -> Result<()> {
    let mut walks: Vec<(usize, Walk<'_, '_>)> = keys
        .iter()
        .enumerate()
        .map(|(i, &(key, hash))| (i, Walk::new(top, key, hash)))
        .collect();
    out.fill(None);
    while !walks.is_empty() {
        let mut waiting = Vec::with_capacity(walks.len());
        for (i, mut walk) in walks {
            while let Some(place) = walk.next(store)? {
                let cached = place
                    .block
                    .clone()
                    .or_else(|| store.cached_block(&place.group, place.number));
                let Some(block) = cached else {
                    waiting.push((i, walk, place));
                    break;
                };
                if let Ok(at) = block.search(walk.key) {
                    out[i] = block.put_slice(at);
                    break;
                }
            }
        }
        // Keys that want the same block stand together, and blocks lie in the order of the file.
        waiting.sort_unstable_by_key(|(_, _, place)| (place.group.offset, place.number));
        let mut wants: Vec<(GroupRef, Arc<GroupIndex>, usize)> = Vec::with_capacity(waiting.len());
        for (_, _, place) in &waiting {
            if wants.last().is_none_or(|(group, _, number)| {
                (group.id, *number) != (place.group.id, place.number)
            }) {
                wants.push((place.group, place.index.clone(), place.number));
            }
        }
        let mut blocks = Vec::with_capacity(wants.len());
        for wants in wants.chunks(BLOCKS_AT_ONCE) {
            blocks.extend(store.blocks(wants, Fill::Normal)?);
        }
        let mut read = wants.iter().zip(&blocks).peekable();
        walks = Vec::new();
        for (i, walk, place) in waiting {
            while read
                .next_if(|((g, _, n), _)| (g.id, *n) != (place.group.id, place.number))
                .is_some()
            {}
            let Some((_, block)) = read.peek() else {
                return Err(Error::internal("fewer blocks than were asked for"));
            };
            match block.search(walk.key) {
                Ok(at) => out[i] = block.put_slice(at),
                Err(_) => walks.push((i, walk)),
            }
        }
    }
    Ok(())
}
