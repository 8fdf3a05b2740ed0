//! The page cache: decoded blocks, indexes, filter partitions and nodes, as much as the memory
//! budget leaves room for.
//!
//! Blocks lie in slabs of our own memory (`lanes`), and leave by slabs, the oldest first: so what
//! they leave goes back to the kernel, and the process takes as much memory as is charged (decision
//! 0008). A block that was used since it came has *lives*: when its slab is to go it is copied into
//! the one that fills now, for a life. Blocks of scans come in a lane of their own, the first to
//! give beyond a part of the memory, and fifteen of sixteen times that a scan needs room; who is
//! used there moves to the lane of gets. So a long scan does not wash out what gets use; one that
//! is longer than its lane leaves no more where others would have to go.
//!
//! Indexes, filters and nodes are worth more than data (TurtleKV §4.1): they are allocated one by
//! one and come with many lives. They age as blocks do: a hand takes a life from all of them in the
//! time in which all blocks are passed over once, and takes out those without. Without any blocks
//! left the hand goes by itself, unless what readers keep of blocks leaves no room anyway. Pages
//! that a checkpoint freed are purged instead of ageing out, since a dead index would live long;
//! slabs that are mostly empty then are joined.
//!
//! What a merge writes in the place of cached blocks comes in as it is written, with the lives of
//! those, which are the first to go then (decision 0019); where others would have to go for it only
//! if those were used.
//!
//! 64 shards for each; no lock is held across I/O, decoding, a copy of a block or another lock.
//! Errors are never cached.

mod lanes;
mod purge;
mod shard;
mod table;

use std::any::Any;
use std::cmp::Reverse;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::{Piece, Slabs};

use lanes::{Home, Lanes, Record};
use purge::Purge;
use shard::{Birth, Entry, Resident, Shard, Step, Turn, Use};
pub(crate) use shard::{IdHash, Key};

use crate::block::Block;
use crate::metrics::{CacheCounts, StoreMetrics};

/// Cached metadata; the kind in its key says what it is.
pub(crate) type CachedValue = Arc<dyn Any + Send + Sync>;

const SHARDS: usize = 64;
/// Slots that the hand over metadata passes in one visit of a shard.
const VISIT_SLOTS: usize = 32;
/// Visits of a shard in which all of its metadata is aged by a life.
const AGE_PARTS: usize = 16;
/// Most visits for one slab that left.
const AGE_VISITS_MAX: u64 = 64;
/// One of so many times that a scan makes room it takes its turn with gets; else from other scans.
const SCAN_AGEING: u64 = 16;
/// Quarters of a slab's blocks that are kept when it goes, at most: so every slab that goes makes
/// room.
const KEPT_QUARTERS: u64 = 3;
/// Whoever must make room and did not with so many slabs keeps nothing more.
const PATIENCE: usize = 32;
/// Memory of an entry besides its value: slot, map entry, `Arc`.
const ENTRY_BYTES: usize = 112;
/// Of what is allocated one by one, the allocator loses about one part in so many between what
/// lives and what was freed.
const ALLOCATOR_PART: usize = 8;

/// Lives that metadata comes with, and has again after a use.
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

/// How much a block is worth, which is also the lane that it comes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Blocks of gets.
    Normal = 0,
    /// Blocks of scans: the first to go, unless they are used again.
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

/// How a block stands in the cache: by its lives and its lane, or not at all. What takes its place
/// in a new page comes in for that (decision 0019).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing(u8);

impl Standing {
    /// Not cached.
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

type Shards<V> = Box<[Mutex<Shard<V>>]>;

/// The cache. Lookups and inserts are O(1), plus evictions.
pub(crate) struct Cache {
    blocks: Shards<Arc<Block>>,
    metadata: Shards<CachedValue>,
    lanes: Lanes,
    budget: Arc<Budget>,
    next_victim: AtomicUsize,
    /// Visits that ageing did.
    aged: AtomicUsize,
    /// Parts of visits that it owes, in 2^16.
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

/// What is charged for so many bytes that the allocator gives.
fn with_allocator(bytes: usize) -> usize {
    bytes.saturating_add(bytes / ALLOCATOR_PART)
}

impl Cache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Cache {
            blocks: (0..SHARDS).map(|_| Mutex::default()).collect(),
            metadata: (0..SHARDS).map(|_| Mutex::default()).collect(),
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

    /// Finds a block, and counts its use as one of that worth.
    #[inline]
    pub(crate) fn block(&self, key: Key, worth: Worth) -> Option<Arc<Block>> {
        let used = worth.used(self.lanes.aged());
        shard(&self.blocks, key).lock().get(key, used, 0)
    }

    /// As [`Cache::block`], but a lookup in vain does not count.
    #[inline]
    pub(crate) fn block_if_there(&self, key: Key, worth: Worth) -> Option<Arc<Block>> {
        let used = worth.used(self.lanes.aged());
        shard(&self.blocks, key).lock().get_if_there(key, used)
    }

    /// Whether a block is there; leaves no trace.
    pub(crate) fn has_block(&self, key: Key) -> bool {
        shard(&self.blocks, key).lock().has(key)
    }

    /// Counts a lookup in vain.
    pub(crate) fn missed_block(&self, key: Key) {
        shard(&self.blocks, key).lock().misses[key.kind as usize] += 1;
    }

    /// Asks for the memory that lookups of blocks visit, step by step.
    pub(crate) fn prefetch_blocks(&self, keys: &[Key]) {
        for step in [Step::Table, Step::Slot, Step::Block] {
            self.prefetch(keys, step);
        }
    }

    /// Asks for the memory in which blocks say where their records are, and where the first of
    /// those is, once what lookups visit is near.
    pub(crate) fn prefetch_records(&self, keys: &[Key]) {
        self.prefetch(keys, Step::Records);
    }

    fn prefetch(&self, keys: &[Key], step: Step) {
        for &key in keys {
            shard(&self.blocks, key).lock().prefetch(key, step);
        }
    }

    /// Finds a block without a trace: neither counted nor worth more afterwards.
    pub(crate) fn peek_block(&self, key: Key) -> Option<Arc<Block>> {
        shard(&self.blocks, key).lock().peek(key)
    }

    /// How a block stands whose page is being replaced; it leaves its lives to what takes its
    /// place.
    pub(crate) fn bequeath(&self, key: Key) -> Standing {
        shard(&self.blocks, key).lock().bequeath(key)
    }

    /// How what takes such a block's place comes in: with its worth and its lives. Where others
    /// would have to go, only if it was used.
    pub(crate) fn inherits(&self, standing: Standing) -> Option<(Worth, u8)> {
        let (worth, lives) = (standing.worth(), standing.lives());
        (lives > 0 || !self.is_full()).then_some((worth, lives))
    }

    /// Finds metadata of a known type, for one of many uses: a hit counts for so many more. A value
    /// of another type is not found.
    pub(crate) fn get_counting<T: Any + Send + Sync>(&self, key: Key, more: u64) -> Option<Arc<T>> {
        let held = shard(&self.metadata, key)
            .lock()
            .get(key, METADATA_USE, more);
        held.and_then(|held| held.downcast().ok())
    }

    /// Whether metadata is there; leaves no trace.
    pub(crate) fn has_metadata(&self, key: Key) -> bool {
        shard(&self.metadata, key).lock().has(key)
    }

    /// The budget that entries are charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Where slabs come from.
    pub(crate) fn slabs(&self) -> &Arc<Slabs> {
        self.lanes.slabs()
    }

    fn used(&self) -> u64 {
        self.budget.used(Purpose::Blocks) + self.budget.used(Purpose::Metadata)
    }

    /// Whether so much more metadata fits without an eviction.
    pub(crate) fn has_room(&self, memory_bytes: usize) -> bool {
        self.used() + with_allocator(memory_bytes + ENTRY_BYTES) as u64
            <= self.budget.room_for_caches()
    }

    /// Whether another slab of blocks does not fit without an eviction.
    pub(crate) fn is_full(&self) -> bool {
        let slab_bytes = self.slabs().slab_bytes() as u64;
        !self.has_room_for_blocks(slab_bytes + slab_bytes / 8)
    }

    /// Whether so many bytes of slabs more fit without an eviction.
    pub(crate) fn has_room_for_blocks(&self, bytes: u64) -> bool {
        self.used() + bytes <= self.budget.room_for_caches()
    }

    /// Whether the caches hold more than the budget leaves them.
    pub(crate) fn over_budget(&self) -> bool {
        self.used() > self.budget.room_for_caches()
    }

    /// Makes room for so many bytes more than is charged, if the cache can come to leave them; so
    /// many of what is charged are of metadata that is yet to come in.
    fn make_room(&self, bytes: u64, coming: u64, worth: Worth) -> bool {
        if bytes > self.budget.room_for_caches() {
            return false;
        }
        let mut tries = 0;
        while self.used() + bytes > self.budget.room_for_caches() {
            let for_scan = worth == Worth::Low;
            let evenly = for_scan && tries == 0 && self.is_turn_of_all();
            if !self.evict_blocks(evenly, for_scan && !evenly, tries) {
                // Readers keep the blocks that are left. Where these alone are too much, metadata
                // would go for nothing.
                let stays = self.budget.used(Purpose::Blocks) + coming;
                if stays + bytes > self.budget.room_for_caches() || !self.evict_metadata() {
                    return false;
                }
            }
            tries += 1;
        }
        true
    }

    fn is_turn_of_all(&self) -> bool {
        let before = self.scans_made_room.fetch_add(1, Ordering::Relaxed);
        before % SCAN_AGEING == SCAN_AGEING - 1
    }

    /// Charges bytes, and makes room for them; `false` and nothing charged when there can be none.
    /// While this runs, the budget is exceeded by these bytes and a slab at most.
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

    /// Adds metadata after making room for it, unless there is no room at all. Returns the value
    /// that others see: an equal one that came first, if there is one.
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

    /// Memory for a block that is to be decoded and inserted, in the lane of its worth; none for
    /// one that is to lie alone.
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

    /// Does ahead what [`Cache::memory_for`] of so many bytes would have to: makes room for another
    /// slab if the one that fills is full.
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
        // And for the entries of its blocks.
        self.make_room(slab_bytes + slab_bytes / 8, 0, worth)
    }

    fn another_slab(&self, worth: Worth, bytes: usize) -> Option<Piece> {
        let slab = self.lanes.new_slab();
        self.lanes.take_from(slab, worth, bytes)
    }

    /// Adds a block with so many lives, which was decoded into [`Cache::memory_for`] of the same
    /// worth, unless there is no room at all. Returns the block that others see: an equal one that
    /// came first, if there is one.
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

    /// Notes where a block lies that was put into its shard, or takes it out again.
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

    fn evicted<V>(&self, purpose: Purpose, entry: Entry<V>) {
        self.gone(purpose, entry);
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }

    /// Evicts the blocks whose turn it is, and lets metadata age by as much unless that is to be
    /// `gentle`. `false` when there are none. After too many `tries` no block is kept.
    fn evict_blocks(&self, evenly: bool, gentle: bool, tries: usize) -> bool {
        let Some((record, all_bytes)) = self.lanes.pop(evenly) else {
            return false;
        };
        let bytes = record.bytes();
        let kept = if tries < PATIENCE {
            bytes / 4 * KEPT_QUARTERS
        } else {
            0
        };
        self.recycle(record, Worth::Normal, 1, kept);
        if !gentle {
            // Where records hold most of the memory, blocks pass quickly, and metadata serves
            // records' misses as well as theirs.
            let held = self.budget.used(Purpose::Records) + self.budget.used(Purpose::Metadata);
            self.age(bytes, all_bytes + held);
        }
        true
    }

    /// Moves what is worth it out of a record's home and so many lives from it, at most so many
    /// bytes, that with the most lives first; the rest leaves the cache. All may stay that lose no
    /// life.
    fn recycle(&self, record: Record, worth: Worth, lives: u8, kept_max: u64) {
        let mut kept = Vec::new();
        // They came in together long ago, and lie anywhere.
        self.prefetch_blocks(&record.keys);
        for &key in &record.keys {
            let resident = shard(&self.blocks, key)
                .lock()
                .resident(key, &record.home, lives == 0);
            match resident {
                Resident::Gone => {}
                Resident::Left(entry) => self.evicted(Purpose::Blocks, entry),
                Resident::Lives(lives, block) => kept.push((lives, key, block)),
            }
        }
        kept.sort_by_key(|(lives, _, _)| Reverse(*lives));
        let mut kept_bytes = 0;
        for (_, key, block) in kept {
            kept_bytes += block.payload().len() as u64;
            let fits =
                kept_bytes <= kept_max || matches!(record.home, Home::Alone(_)) && kept_max > 0;
            let moved = fits.then(|| self.move_block(&block, worth)).flatten();
            match moved {
                Some(next) => {
                    let replaced = shard(&self.blocks, key).lock().replace(
                        key,
                        &block,
                        &next,
                        lives,
                        self.lanes.birth(worth),
                    );
                    if replaced {
                        self.enter(key, &next, record.bytes() as u32, worth);
                    }
                }
                None => {
                    let entry = shard(&self.blocks, key).lock().remove(key, &block);
                    if let Some(entry) = entry {
                        self.evicted(Purpose::Blocks, entry);
                    }
                }
            }
        }
    }

    /// The block in the slab that fills now, or as it is when it lies alone.
    fn move_block(&self, block: &Arc<Block>, worth: Worth) -> Option<Arc<Block>> {
        if !block.payload().is_in_slab() {
            return Some(block.clone());
        }
        let bytes = block.payload().len();
        let piece = self.lanes.take(worth, bytes);
        let piece = piece.or_else(|| self.another_slab(worth, bytes))?;
        Some(Arc::new(block.copied_to(piece)))
    }

    /// Takes lives from metadata in proportion to the blocks that were passed over.
    fn age(&self, bytes: u64, all_bytes: u64) {
        const ROUND: u64 = ((SHARDS * AGE_PARTS) as u64) << 16;
        let owed = (u128::from(bytes) * u128::from(ROUND) / u128::from(all_bytes.max(1))) as u64;
        let before = self.to_age.fetch_add(owed, Ordering::Relaxed);
        let visits = ((before + owed) >> 16) - (before >> 16);
        let mut gone = Vec::new();
        for _ in 0..visits.min(AGE_VISITS_MAX) {
            let visit = self.aged.fetch_add(1, Ordering::Relaxed);
            let part = visit / SHARDS % AGE_PARTS;
            self.metadata[visit % SHARDS]
                .lock()
                .age(part, AGE_PARTS, &mut gone);
            for entry in gone.drain(..) {
                self.evicted(Purpose::Metadata, entry);
            }
        }
    }

    /// Evicts the metadata that the hand reaches first; `false` when there is none. The hand visits
    /// shard after shard, a few slots each, so that none loses all while others keep what nobody
    /// uses.
    fn evict_metadata(&self) -> bool {
        let (mut empty, mut visits) = (0, 0);
        while empty < SHARDS {
            let at = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // The longer it takes, the more lives the hand takes, so that one insert never walks a
            // large cache often.
            visits += 1;
            let lives = 1 << (visits / (2 * SHARDS)).min(3);
            let turn = self.metadata[at].lock().turn(VISIT_SLOTS, lives);
            match turn {
                Turn::Evicted(entry) => {
                    self.evicted(Purpose::Metadata, entry);
                    return true;
                }
                Turn::Nothing => empty = 0,
                Turn::Empty => empty += 1,
            }
        }
        false
    }

    /// Evicts at most so many slabs, or else pieces of metadata, while over budget; whether there
    /// is more to do.
    pub(crate) fn shrink(&self, slabs: usize) -> bool {
        for tries in 0..slabs {
            if !self.over_budget() {
                return false;
            }
            if !self.evict_blocks(false, false, tries) && !self.evict_metadata() {
                self.compact();
                return false;
            }
        }
        self.over_budget()
    }

    fn compact(&self) {
        self.compact_shards(&self.blocks);
        self.compact_shards(&self.metadata);
    }

    /// Leaves them to a purge while there is one: it has a place among the slots of a shard, below
    /// which it would not look for what is moved there, and compacts each when it is through with
    /// it.
    fn compact_shards<V: Clone>(&self, shards: &Shards<V>) {
        for shard in shards {
            // Asked under the lock: a purge that has been here is known by now.
            let mut shard = shard.lock();
            if !self.purge_needed() {
                shard.compact();
            }
        }
    }

    /// Lets everything go. Who reads meanwhile may bring in something again.
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
