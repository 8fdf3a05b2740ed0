//! Point lookups. The groups that wait for the key's leaf are asked first, newest first. Their
//! filters deny most keys. Then the leaf names the one page of the line that may hold the key. So a
//! lookup reads the device once at most, with the map cached.

use std::sync::Arc;

use terrapin_base::{Fold, MessageKind, PageId, Result, Slice, mutant};
use terrapin_pages::block::Block;
use terrapin_pages::group::{BlockPlace, GroupRef};
use terrapin_pages::{Fill, PageStore, Reading};
use terrapin_structure::Found;

use crate::format::ABOVE_LEAVES;
use crate::node::Node;
use crate::version::InPlaceVersion;

/// The device gets this many block reads at once, while other keys are still going down.
const BLOCKS_TOGETHER: usize = 8;

/// What the record of a block holds. Operands come without their bytes: the caller
/// [gathers](gather) them.
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
pub(crate) fn gather(version: &InPlaceVersion, key: &[u8], hash: u64) -> Result<Found> {
    let mut fold = Fold::default();
    let mut walk = Walk::new(version, key, hash)?;
    while let Some((group, place)) = walk.next(&version.store)? {
        let block = version.store.block_at(&group, place, Fill::Normal)?;
        if let Ok(at) = block.search(key)
            && fold.push(block.message(at))?
        {
            break;
        }
    }
    Ok(Found::gathered(&mut fold, key))
}

/// A lookup in progress. It yields the blocks that may hold its key, newest first.
struct Walk<'k> {
    key: &'k [u8],
    hash: u64,
    /// The node above the key's leaf, and the leaf's entry there; `None` in an empty tree.
    at: Option<(Arc<Node>, usize)>,
    /// How many waiting groups were asked.
    asked: usize,
}

impl<'k> Walk<'k> {
    fn new(version: &InPlaceVersion, key: &'k [u8], hash: u64) -> Result<Self> {
        let mut at = None;
        if let Some(mut node) = version.root_node()? {
            while node.inner.height > ABOVE_LEAVES {
                node = node.child(&version.store, node.inner.find(key))?;
            }
            let entry = node.inner.find(key);
            at = Some((node, entry));
        }
        Ok(Walk {
            key,
            hash,
            at,
            asked: 0,
        })
    }

    /// The next block to search; `None` if no further block can hold the key.
    fn next(&mut self, store: &PageStore) -> Result<Option<(GroupRef, BlockPlace)>> {
        let Some((node, entry)) = &self.at else {
            return Ok(None);
        };
        let (key, hash) = (self.key, self.hash);
        let count = node.inner.entries[*entry].waiting.len();
        while self.asked < count {
            let number = match mutant::active("newest-waiting-group-asked-last") {
                true => count - 1 - self.asked,
                false => self.asked,
            };
            let Some((group, handle)) = node.waiting(*entry).nth(number) else {
                break;
            };
            self.asked += 1;
            if store.may_contain_by(group, handle, hash)? {
                let index = store.index_by(group, handle)?;
                let number = index.find(key);
                let (offset, bytes) = index.block_place(number);
                let place = BlockPlace {
                    number,
                    offset,
                    bytes,
                };
                return Ok(Some((*group, place)));
            }
        }
        let leaf = node.leaf(store, *entry)?;
        self.at = None;
        let Some(number) = leaf.up_to(key).checked_sub(1) else {
            return Ok(None);
        };
        let segment = leaf.segment(number)?;
        let place = segment.index.find(key)?;
        Ok(place.map(|place| (segment.group, place)))
    }
}

/// Finds the newest record of a key, whatever its kind, and passes its block and position to
/// `take`. Returns `None` if there is no record.
pub(crate) fn find<R>(
    version: &InPlaceVersion,
    key: &[u8],
    hash: u64,
    take: impl FnOnce(&Arc<Block>, usize) -> R,
) -> Result<Option<R>> {
    let mut walk = Walk::new(version, key, hash)?;
    while let Some((group, place)) = walk.next(&version.store)? {
        let block = version.store.block_at(&group, place, Fill::Normal)?;
        if let Ok(at) = block.search(key) {
            return Ok(Some(take(&block, at)));
        }
    }
    Ok(None)
}

/// A key that waits for a block to be read.
struct Waiting<'k> {
    key: usize,
    walk: Walk<'k>,
    /// Another key that waits for the same block.
    other: Option<usize>,
}

/// Keys that go down together, and the blocks that they wait for.
struct Together<'k, 'o> {
    waiting: Vec<Waiting<'k>>,
    /// The blocks being read: page, block number, and the last key in `waiting` that waits for it.
    blocks: Vec<(PageId, usize, usize)>,
    /// The entries of `waiting` whose block did not have the key.
    missed: Vec<usize>,
    out: &'o mut [Found],
}

impl<'k> Together<'k, '_> {
    /// Continues with a key until it is found, is absent, or waits for a block.
    fn go(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        mut walk: Walk<'k>,
    ) -> Result<()> {
        while let Some((group, place)) = walk.next(store)? {
            let Some(block) = store.cached_block(&group, place.number) else {
                return self.wait(store, reading, key, walk, (&group, place));
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
        walk: Walk<'k>,
        (group, place): (&GroupRef, BlockPlace),
    ) -> Result<()> {
        let waiting = self.waiting.len();
        let same = |&(page, n, _): &(PageId, usize, usize)| (page, n) == (group.id, place.number);
        let other = match self.blocks.iter().rposition(same) {
            Some(block) => Some(std::mem::replace(&mut self.blocks[block].2, waiting)),
            None => {
                store.missed_block(group, place.number);
                let left = self.out.len() - key;
                let reading = reading.get_or_insert_with(|| store.reading(left, Fill::Normal));
                if store.want_at(reading, group, place)?.is_none() {
                    self.take(store, reading)?;
                    store.want_at(reading, group, place)?;
                }
                self.blocks.push((group.id, place.number, waiting));
                if self.blocks.len().is_multiple_of(BLOCKS_TOGETHER) {
                    store.start(reading)?;
                }
                None
            }
        };
        self.waiting.push(Waiting { key, walk, other });
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
                match block.search(waiter.walk.key) {
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
/// read at once. Keys whose block did not have them take part in the next round.
pub(crate) fn find_many(
    version: &InPlaceVersion,
    keys: &[(&[u8], u64)],
    out: &mut [Found],
) -> Result<()> {
    let store = &version.store;
    let mut reading = None;
    let mut together = Together {
        waiting: Vec::with_capacity(keys.len()),
        blocks: Vec::with_capacity(keys.len()),
        missed: Vec::new(),
        out,
    };
    for (i, &(key, hash)) in keys.iter().enumerate() {
        together.go(store, &mut reading, i, Walk::new(version, key, hash)?)?;
    }
    while !together.waiting.is_empty() {
        if let Some(reading) = &mut reading {
            together.take(store, reading)?;
        }
        let missed = std::mem::take(&mut together.missed);
        let waited = std::mem::take(&mut together.waiting);
        let mut waited: Vec<_> = waited.into_iter().map(Some).collect();
        for at in missed {
            if let Some(Waiting { key, walk, .. }) = waited[at].take() {
                together.go(store, &mut reading, key, walk)?;
            }
        }
    }
    for (found, &(key, hash)) in together.out.iter_mut().zip(keys) {
        if matches!(found, Found::Operands(_)) {
            *found = gather(version, key, hash)?;
        }
    }
    Ok(())
}
