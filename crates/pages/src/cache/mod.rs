//! The page cache: decoded blocks, indexes, filter partitions and nodes, within the memory budget.
//!
//! Blocks are in slabs of the cache's own memory (`lanes`). Eviction takes whole slabs, the oldest
//! first, and returns their memory to the kernel. The process therefore takes as much memory as is
//! charged (decision 0008). A use gives a block *lives*. When its slab is evicted, a block with
//! lives is copied into the slab that fills now. The copy costs one life.
//!
//! Blocks of scans enter a lane of their own. Eviction takes from that lane first while it holds
//! more than an eighth of the block bytes. One in sixteen times that a scan makes room, the oldest
//! slab of either lane goes instead. A block that is used in the scans' lane moves to the lane of
//! gets when its slab is evicted. So a long scan does not displace what gets use. A scan that
//! passed more than its lane holds caches blocks only while there is room.
//!
//! Indexes, filters and nodes are worth more than data (TurtleKV §4.1). Each is allocated alone and
//! enters with many lives. Metadata ages with the blocks. While eviction passes over all blocks
//! once, a hand takes one life from each piece of metadata and evicts those without lives. If no
//! block can go, the hand evicts metadata alone, unless the blocks that readers keep leave no room
//! anyway. A purge removes the entries of pages that a checkpoint freed, then joins slabs that are
//! mostly empty.
//!
//! A merge inserts the blocks that it writes in the place of cached ones (decision 0019). They take
//! over the lives of the cached blocks, which become the first to go. If something would have to be
//! evicted for such a block, it enters only if the cached block was used.
//!
//! Blocks and metadata have 64 shards each. No lock is held across I/O, decoding, a copy of a block
//! or another lock. The cache never holds errors.

mod evict;
mod lanes;
mod purge;
mod shard;
mod table;

use std::any::Any;
use std::ops::Deref;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::{Piece, Slabs};

use lanes::Lanes;
use purge::Purge;
use shard::{Birth, Entry, Shard, Step, Use};
pub(crate) use shard::{IdHash, Key};

use crate::block::Block;
use crate::metrics::{CacheCounts, StoreMetrics};

/// Cached metadata. The kind in its key says which type it has.
pub(crate) type CachedValue = Arc<dyn Any + Send + Sync>;

const SHARDS: usize = 64;
/// Memory of an entry besides its value: slot, map entry, `Arc`.
const ENTRY_BYTES: usize = 112;
/// The allocator loses about one part in this many to fragmentation, for values that are allocated
/// one by one.
const ALLOCATOR_PART: usize = 8;

/// Lives that metadata enters with. Each use restores them.
const METADATA_LIVES: u8 = 8;
const METADATA_USE: Use = Use {
    lives: METADATA_LIVES,
    most: METADATA_LIVES,
    aged: [0; 2],
};

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Block = 0,
    Index = 1,
    Filter = 2,
    Object = 3,
}

impl Kind {
    pub(crate) const COUNT: usize = 4;
}

/// How much a block is worth. The worth also names the lane that the block enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Blocks of gets.
    Normal = 0,
    /// Blocks of scans. They are the first to go, unless they are used again.
    Low = 1,
}

impl Worth {
    fn used(self, aged: [u32; 2]) -> Use {
        let most = match self {
            Worth::Normal => 3,
            Worth::Low => 1,
        };
        Use {
            lives: 1,
            most,
            aged,
        }
    }
}

/// How a block stands in the cache: its lives and its lane, or not cached. The block that replaces
/// it in a new page enters the cache by this (decision 0019).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing(u8);

impl Standing {
    /// The block is not cached.
    pub const NONE: Standing = Standing(0);

    fn new(worth: Worth, lives: u8) -> Self {
        Standing((lives + 1) << 1 | u8::from(worth == Worth::Normal))
    }

    /// Whether the block is cached.
    #[inline]
    #[must_use]
    pub fn is_cached(self) -> bool {
        self.0 != 0
    }

    fn worth(self) -> Worth {
        if self.0 & 1 == 1 {
            Worth::Normal
        } else {
            Worth::Low
        }
    }

    fn lives(self) -> u8 {
        (self.0 >> 1).saturating_sub(1)
    }
}

type Shards<V> = Box<[Lone<V>]>;

/// A shard that shares no cache line with another.
#[repr(align(64))]
struct Lone<V>(Mutex<Shard<V>>);

impl<V> Deref for Lone<V> {
    type Target = Mutex<Shard<V>>;

    #[inline]
    fn deref(&self) -> &Mutex<Shard<V>> {
        &self.0
    }
}

impl<V> Default for Lone<V> {
    fn default() -> Self {
        Lone(Mutex::default())
    }
}

/// The cache. Lookups and inserts are O(1), plus evictions.
pub(crate) struct Cache {
    blocks: Shards<Arc<Block>>,
    metadata: Shards<CachedValue>,
    lanes: Lanes,
    budget: Arc<Budget>,
    next_victim: AtomicUsize,
    /// Ageing visits so far.
    aged: AtomicUsize,
    /// Ageing visits that are due so far, in units of 2^-16 visit.
    to_age: AtomicU64,
    scans_made_room: AtomicU64,
    evictions: AtomicU64,
    purge: Mutex<Purge>,
    purging: AtomicBool,
}

#[inline]
fn shard<V>(shards: &Shards<V>, key: Key) -> &Mutex<Shard<V>> {
    &shards[(key.hash() >> 40) as usize % SHARDS]
}

/// The bytes to charge for `bytes` allocated bytes, with the allocator's loss.
fn with_allocator(bytes: usize) -> usize {
    bytes.saturating_add(bytes / ALLOCATOR_PART)
}

impl Cache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Cache {
            blocks: (0..SHARDS).map(|_| Lone::default()).collect(),
            metadata: (0..SHARDS).map(|_| Lone::default()).collect(),
            lanes: Lanes::new(budget.clone()),
            budget,
            next_victim: AtomicUsize::new(0),
            aged: AtomicUsize::new(0),
            to_age: AtomicU64::new(0),
            scans_made_room: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            purge: Mutex::default(),
            purging: AtomicBool::new(false),
        }
    }

    /// Finds a block, and counts the use as one of `worth`.
    #[inline]
    pub(crate) fn block(&self, key: Key, worth: Worth) -> Option<Arc<Block>> {
        let used = worth.used(self.lanes.aged());
        shard(&self.blocks, key).lock().get(key, used, 0)
    }

    /// Like [`Cache::block`], but does not count a miss.
    #[inline]
    pub(crate) fn block_if_there(&self, key: Key, worth: Worth) -> Option<Arc<Block>> {
        let used = worth.used(self.lanes.aged());
        shard(&self.blocks, key).lock().get_if_there(key, used)
    }

    /// Whether a block is cached. This is no use of the block.
    pub(crate) fn has_block(&self, key: Key) -> bool {
        shard(&self.blocks, key).lock().has(key)
    }

    /// Counts a miss of a block.
    pub(crate) fn missed_block(&self, key: Key) {
        shard(&self.blocks, key).lock().misses[key.kind as usize] += 1;
    }

    /// Prefetches the memory that lookups of blocks visit, one step for all blocks at a time.
    pub(crate) fn prefetch_blocks(&self, keys: &[Key]) {
        for step in [Step::Table, Step::Slot, Step::Block] {
            self.prefetch(keys, step);
        }
    }

    /// Prefetches where blocks note the positions of their records, and the first of these records.
    /// [`Cache::prefetch_blocks`] must come first.
    pub(crate) fn prefetch_records(&self, keys: &[Key]) {
        self.prefetch(keys, Step::Records);
    }

    fn prefetch(&self, keys: &[Key], step: Step) {
        for &key in keys {
            shard(&self.blocks, key).lock().prefetch(key, step);
        }
    }

    /// Finds a block without counting the lookup or giving lives.
    pub(crate) fn peek_block(&self, key: Key) -> Option<Arc<Block>> {
        shard(&self.blocks, key).lock().peek(key)
    }

    /// The standing of a block whose page is being replaced. The block loses its lives, for the
    /// block that replaces it.
    pub(crate) fn bequeath(&self, key: Key) -> Standing {
        shard(&self.blocks, key).lock().bequeath(key)
    }

    /// The worth and the lives with which a block enters that replaces one of this standing. `None`
    /// if something would have to be evicted for it and the replaced block was not used.
    pub(crate) fn inherits(&self, standing: Standing) -> Option<(Worth, u8)> {
        let (worth, lives) = (standing.worth(), standing.lives());
        (lives > 0 || !self.is_full()).then_some((worth, lives))
    }

    /// Finds metadata of type `T`. A hit counts `more` further uses. A value of another type is not
    /// found.
    pub(crate) fn get_counting<T: Any + Send + Sync>(&self, key: Key, more: u64) -> Option<Arc<T>> {
        let held = shard(&self.metadata, key)
            .lock()
            .get(key, METADATA_USE, more);
        held.and_then(|held| held.downcast().ok())
    }

    /// Whether metadata is cached. This is no use of it.
    pub(crate) fn has_metadata(&self, key: Key) -> bool {
        shard(&self.metadata, key).lock().has(key)
    }

    /// The budget that entries are charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The slabs that blocks are allocated from.
    pub(crate) fn slabs(&self) -> &Arc<Slabs> {
        self.lanes.slabs()
    }

    fn used(&self) -> u64 {
        self.budget.used(Purpose::Blocks) + self.budget.used(Purpose::Metadata)
    }

    /// Whether metadata of `memory_bytes` fits without an eviction.
    pub(crate) fn has_room(&self, memory_bytes: usize) -> bool {
        self.used() + with_allocator(memory_bytes + ENTRY_BYTES) as u64
            <= self.budget.room_for_caches()
    }

    /// Whether another slab of blocks needs an eviction.
    pub(crate) fn is_full(&self) -> bool {
        let slab_bytes = self.slabs().slab_bytes() as u64;
        !self.has_room_for_blocks(slab_bytes + slab_bytes / 8)
    }

    /// Whether slabs of `bytes` fit without an eviction.
    pub(crate) fn has_room_for_blocks(&self, bytes: u64) -> bool {
        self.used() + bytes <= self.budget.room_for_caches()
    }

    /// Whether the caches hold more than the budget leaves them.
    pub(crate) fn over_budget(&self) -> bool {
        self.used() > self.budget.room_for_caches()
    }

    /// Charges bytes and makes room for them. Without room it returns `false` and charges nothing.
    /// While this runs, the budget is exceeded by at most these bytes and one slab.
    fn charge(&self, purpose: Purpose, bytes: u64, worth: Worth) -> bool {
        if bytes > self.budget.room_for_caches() {
            return false;
        }
        self.budget.take(purpose, bytes);
        let coming = if purpose == Purpose::Metadata {
            bytes
        } else {
            0
        };
        let fits = self.make_room(0, coming, worth);
        if !fits {
            self.budget.give(purpose, bytes);
        }
        fits
    }

    /// Adds metadata after making room for it. Without room the metadata is not cached. Returns the
    /// value that other readers see: an equal one that entered first, if there is one.
    pub(crate) fn insert<T: Any + Send + Sync>(
        &self,
        key: Key,
        value: Arc<T>,
        memory_bytes: usize,
    ) -> Arc<T> {
        let bytes = with_allocator(memory_bytes.saturating_add(ENTRY_BYTES));
        let Ok(bytes) = u32::try_from(bytes) else {
            return value;
        };
        if !self.charge(Purpose::Metadata, u64::from(bytes), Worth::Normal) {
            return value;
        }
        let held: CachedValue = value.clone();
        let before = shard(&self.metadata, key).lock().insert(
            key,
            &held,
            bytes,
            METADATA_LIVES,
            Birth::default(),
        );
        match before {
            None => value,
            Some(before) => {
                self.budget.give(Purpose::Metadata, u64::from(bytes));
                before.downcast().unwrap_or(value)
            }
        }
    }

    /// Memory in the lane of `worth` for a block to decode and insert. `None` for a block that
    /// takes memory of its own, and without room.
    pub(crate) fn memory_for(&self, bytes: usize, worth: Worth) -> Option<Piece> {
        if !self.lanes.shares(bytes) {
            return None;
        }
        let piece = self.lanes.take(worth, bytes);
        piece.or_else(|| {
            self.make_room_for_slab(worth)
                .then(|| self.another_slab(worth, bytes))?
        })
    }

    /// Makes room ahead for [`Cache::memory_for`] of as many bytes: another slab, if the one that
    /// fills is full.
    pub(crate) fn prepare_memory_for(&self, bytes: usize, worth: Worth) {
        if self.lanes.shares(bytes)
            && !self.lanes.has_room(worth, bytes)
            && self.make_room_for_slab(worth)
        {
            self.lanes.open(self.lanes.new_slab(), worth, bytes);
        }
    }

    fn make_room_for_slab(&self, worth: Worth) -> bool {
        let slab_bytes = self.slabs().slab_bytes() as u64;
        // One eighth more is for the entries of the slab's blocks.
        self.make_room(slab_bytes + slab_bytes / 8, 0, worth)
    }

    fn another_slab(&self, worth: Worth, bytes: usize) -> Option<Piece> {
        let slab = self.lanes.new_slab();
        self.lanes.take_from(slab, worth, bytes)
    }

    /// Adds a block that was decoded into [`Cache::memory_for`] of the same worth. Without room the
    /// block is not cached. Returns the block that other readers see: an equal one that entered
    /// first, if there is one.
    pub(crate) fn insert_block(
        &self,
        key: Key,
        block: Arc<Block>,
        worth: Worth,
        lives: u8,
    ) -> Arc<Block> {
        let alone = if block.payload().is_in_slab() {
            0
        } else {
            with_allocator(block.payload().len())
        };
        let Ok(bytes) = u32::try_from(ENTRY_BYTES + size_of::<Block>() + alone) else {
            return block;
        };
        if !self.charge(Purpose::Blocks, u64::from(bytes), worth) {
            return block;
        }
        let birth = self.lanes.birth(worth);
        let before = shard(&self.blocks, key)
            .lock()
            .insert(key, &block, bytes, lives, birth);
        if let Some(before) = before {
            self.budget.give(Purpose::Blocks, u64::from(bytes));
            return before;
        }
        self.enter(key, &block, bytes, worth);
        block
    }

    /// Notes in the lane that a block is in its shard. If the lane cannot note it, the block leaves
    /// the shard.
    fn enter(&self, key: Key, block: &Arc<Block>, bytes: u32, worth: Worth) {
        if !self.lanes.enter(worth, key, block, u64::from(bytes)) {
            self.remove(key, block);
        }
    }

    fn remove(&self, key: Key, block: &Arc<Block>) {
        let entry = shard(&self.blocks, key).lock().remove(key, block);
        if let Some(entry) = entry {
            self.gone(Purpose::Blocks, entry);
        }
    }

    fn gone<V>(&self, purpose: Purpose, entry: Entry<V>) {
        self.budget.give(purpose, u64::from(entry.bytes));
    }

    /// Removes everything. Readers may insert again meanwhile.
    pub(crate) fn empty(&self) {
        self.empty_shards(&self.blocks, Purpose::Blocks);
        self.empty_shards(&self.metadata, Purpose::Metadata);
        self.lanes.empty();
    }

    fn empty_shards<V: Clone>(&self, shards: &Shards<V>, purpose: Purpose) {
        for shard in shards {
            let gone = shard.lock().empty();
            self.budget.give(purpose, gone.bytes);
        }
    }

    /// Copies the counters into `metrics`.
    pub(crate) fn fill(&self, metrics: &mut StoreMetrics) {
        fill_from(&self.blocks, metrics);
        fill_from(&self.metadata, metrics);
        metrics.cache_bytes += self.lanes.slab_bytes();
        metrics.evictions = self.evictions.load(Ordering::Relaxed);
    }
}

fn fill_from<V: Clone>(shards: &Shards<V>, metrics: &mut StoreMetrics) {
    let add = |out: &mut CacheCounts, counts: &[u64; Kind::COUNT]| {
        out.blocks += counts[Kind::Block as usize];
        out.indexes += counts[Kind::Index as usize];
        out.filters += counts[Kind::Filter as usize];
        out.objects += counts[Kind::Object as usize];
    };
    for shard in shards {
        let shard = shard.lock();
        add(&mut metrics.hits, &shard.hits);
        add(&mut metrics.misses, &shard.misses);
        metrics.block_rescues += shard.rescues;
        metrics.cache_entries += shard.len() as u64;
        metrics.cache_bytes += shard.bytes;
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let of = |bytes: u64, purpose| self.budget.give(purpose, bytes);
        self.blocks
            .iter()
            .for_each(|shard| of(shard.lock().bytes, Purpose::Blocks));
        self.metadata
            .iter()
            .for_each(|shard| of(shard.lock().bytes, Purpose::Metadata));
    }
}
