//! Point lookups of structures that ask one block after the other, newest first: of one key, and of
//! many keys whose blocks are read together.

use std::sync::Arc;

use terrapin_base::{Fold, MessageKind, PageId, Result, Slice};
use terrapin_pages::block::Block;
use terrapin_pages::group::{BlockPlace, GroupRef};
use terrapin_pages::{Fill, PageStore, Reading};
use terrapin_structure::{Found, Presence};

/// The device gets this many block reads at once, while other keys are still going down.
const BLOCKS_TOGETHER: usize = 8;

/// A lookup in progress.
pub trait Lookup {
    /// The key.
    fn key(&self) -> &[u8];
    /// The next block to search, newest first; `None` if no further block can hold the key.
    fn next(&mut self, store: &PageStore) -> Result<Option<(GroupRef, BlockPlace)>>;
}

/// What the record of a block holds. Operands come without their bytes: the caller gathers them
/// ([`gather`]).
#[must_use]
pub fn found_in(block: &Arc<Block>, at: usize) -> Found {
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
pub fn gather(store: &PageStore, mut lookup: impl Lookup) -> Result<Found> {
    let mut fold = Fold::default();
    while let Some((group, place)) = lookup.next(store)? {
        let block = store.block_at(&group, place, Fill::Normal)?;
        if let Ok(at) = block.search(lookup.key())
            && fold.push(block.message(at))?
        {
            break;
        }
    }
    Ok(Found::gathered(&mut fold, lookup.key()))
}

/// Finds the newest record of a key, whatever its kind, and passes its block and position to
/// `take`. Returns `None` if there is no record.
#[inline]
pub fn find<R>(
    store: &PageStore,
    mut lookup: impl Lookup,
    take: impl FnOnce(&Arc<Block>, usize) -> R,
) -> Result<Option<R>> {
    while let Some((group, place)) = lookup.next(store)? {
        let block = store.block_at(&group, place, Fill::Normal)?;
        if let Ok(at) = block.search(lookup.key()) {
            return Ok(Some(take(&block, at)));
        }
    }
    Ok(None)
}

/// Whether a key has a value.
pub fn presence(store: &PageStore, lookup: impl Lookup) -> Result<Presence> {
    let found = find(store, lookup, |block, at| match block.kind(at) {
        MessageKind::Put => Presence::Present,
        MessageKind::Separated => Presence::of_handle(block.message(at)),
        MessageKind::Delete => Presence::Absent,
        MessageKind::Merge | MessageKind::Stack | MessageKind::Expiring => Presence::Unresolved,
    })?;
    Ok(found.unwrap_or(Presence::Absent))
}

/// A key that waits for a block to be read.
struct Waiting<L> {
    key: usize,
    lookup: L,
    /// Another key that waits for the same block.
    other: Option<usize>,
}

/// Keys that go down together, and the blocks that they wait for.
struct Together<'o, L> {
    waiting: Vec<Waiting<L>>,
    /// The blocks being read: page, block number, and the last key in `waiting` that waits for it.
    blocks: Vec<(PageId, usize, usize)>,
    /// The entries of `waiting` whose block did not have the key.
    missed: Vec<usize>,
    out: &'o mut [Found],
}

impl<L: Lookup> Together<'_, L> {
    /// Continues with a key until it is found, is absent, or waits for a block.
    fn go(
        &mut self,
        store: &PageStore,
        reading: &mut Option<Reading>,
        key: usize,
        mut lookup: L,
    ) -> Result<()> {
        while let Some((group, place)) = lookup.next(store)? {
            let Some(block) = store.cached_block(&group, place.number) else {
                return self.wait(store, reading, key, lookup, (&group, place));
            };
            if let Ok(at) = block.search(lookup.key()) {
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
        lookup: L,
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
        self.waiting.push(Waiting { key, lookup, other });
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
                match block.search(waiter.lookup.key()) {
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

/// Finds the values of many keys, one for each place in `out`. All keys go down together, and the
/// blocks that they need next are read at once. Keys whose block did not have them take part in the
/// next round. `begin` begins the lookup of a key.
pub fn find_many<L: Lookup>(
    store: &PageStore,
    out: &mut [Found],
    begin: impl Fn(usize) -> Result<L>,
) -> Result<()> {
    let mut reading = None;
    let count = out.len();
    let mut together = Together {
        waiting: Vec::with_capacity(count),
        blocks: Vec::with_capacity(count),
        missed: Vec::new(),
        out,
    };
    for key in 0..count {
        together.go(store, &mut reading, key, begin(key)?)?;
    }
    while !together.waiting.is_empty() {
        if let Some(reading) = &mut reading {
            together.take(store, reading)?;
        }
        let missed = std::mem::take(&mut together.missed);
        let waited = std::mem::take(&mut together.waiting);
        let mut waited: Vec<_> = waited.into_iter().map(Some).collect();
        for at in missed {
            if let Some(Waiting { key, lookup, .. }) = waited[at].take() {
                together.go(store, &mut reading, key, lookup)?;
            }
        }
    }
    for (key, found) in together.out.iter_mut().enumerate() {
        if matches!(found, Found::Operands(_)) {
            *found = gather(store, begin(key)?)?;
        }
    }
    Ok(())
}
