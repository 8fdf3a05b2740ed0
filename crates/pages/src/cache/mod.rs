//! The page cache: decoded blocks, indexes, filter partitions and nodes, as much as the memory budget leaves room for.
//!
//! Replacement is CLOCK with priorities (TurtleKV §4.1: metadata is worth more than data, and a hand that passes takes a
//! priority level rather than one bit): an entry has *lives*; an index, filter or node comes with many, a block with one
//! and gets more when it is used again, a scan's block with none. Beyond the paper: a long scan would pass the hands over
//! everything again and again and wash out what gets use, so seven of eight times the hand that makes room for a scanned
//! block takes no lives; 64 shards; a budget in bytes that other users of memory shrink at run time; and pages that a
//! checkpoint freed are purged instead of ageing out, since a dead index would live long.
//!
//! The hands take turns: whoever must make room visits shard after shard, a few slots each, so that a shard that happens
//! to hold only metadata does not lose it while others hold scanned blocks. No lock is held across I/O, decoding or
//! another lock. Errors are never cached.

mod shard;
mod table;

use std::any::Any;
use std::collections::HashSet;

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, yield_now};
use terrapin_base::{Budget, PageId, Purpose};

pub(crate) use shard::{IdHash, Key};
use shard::{Shard, Turn};

use crate::metrics::{CacheCounts, StoreMetrics};

/// A cached value; the kind in its key says what it is.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

const SHARDS: usize = 64;
/// Slots that the hand passes in one visit of a shard.
const VISIT_SLOTS: usize = 32;
/// One of so many inserts for scans takes lives from what its hand passes; the others replace what no one used.
const SCAN_AGEING: u64 = 8;
/// Slots that one step of a purge looks at.
const PURGE_SLOTS: usize = 4096;
/// Memory of an entry besides its value: slot, map entry, `Arc`.
const ENTRY_BYTES: usize = 112;

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

    fn purpose(self) -> Purpose {
        match self {
            Kind::Block => Purpose::Blocks,
            Kind::Index | Kind::Filter | Kind::Object => Purpose::Metadata,
        }
    }
}

/// How much an entry is worth: lives when it comes, and at least so many after it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Indexes, filters, nodes.
    High,
    /// Blocks of gets.
    Normal,
    /// Blocks of scans: the first to go, unless they are used again.
    Low,
}

impl Worth {
    fn first_lives(self) -> u8 {
        match self {
            Worth::High => 8,
            Worth::Normal => 1,
            Worth::Low => 0,
        }
    }

    fn used_lives(self) -> u8 {
        match self {
            Worth::High => 8,
            Worth::Normal => 3,
            Worth::Low => 1,
        }
    }
}

/// Pages whose entries are to go, and how far the purge is.
#[derive(Default)]
struct Purge {
    /// Somebody works on it, without the lock; what is left here meanwhile is `waiting`.
    busy: bool,
    waiting: Vec<PageId>,
    dead: HashSet<PageId, IdHash>,
    shard: usize,
    slot: usize,
}

/// The cache. Lookups and inserts are O(1), plus evictions.
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    budget: Arc<Budget>,
    next_victim: AtomicUsize,
    low_inserts: AtomicU64,
    evictions: AtomicU64,
    purge: Mutex<Purge>,
    purging: AtomicBool,
}

impl Cache {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            budget,
            next_victim: AtomicUsize::new(0),
            low_inserts: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            purge: Mutex::default(),
            purging: AtomicBool::new(false),
        }
    }

    #[inline]
    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[(key.hash() >> 40) as usize % SHARDS]
    }

    /// Finds an entry, and counts its use as one of that worth.
    #[inline]
    pub(crate) fn get(&self, key: Key, worth: Worth) -> Option<Held> {
        self.shard(key).lock().get(key, worth.used_lives(), 0)
    }

    /// As [`Cache::get`], for a value of a known type. A value of another type is not found.
    #[inline]
    pub(crate) fn get_as<T: Any + Send + Sync>(&self, key: Key, worth: Worth) -> Option<Arc<T>> {
        self.get(key, worth).and_then(|held| held.downcast().ok())
    }

    /// As [`Cache::get_as`], for one of many uses: a hit counts for so many more.
    pub(crate) fn get_counting<T: Any + Send + Sync>(
        &self,
        key: Key,
        worth: Worth,
        more: u64,
    ) -> Option<Arc<T>> {
        let held = self.shard(key).lock().get(key, worth.used_lives(), more);
        held.and_then(|held| held.downcast().ok())
    }

    /// As [`Cache::get_as`], but a lookup in vain does not count.
    pub(crate) fn get_if_there<T: Any + Send + Sync>(
        &self,
        key: Key,
        worth: Worth,
    ) -> Option<Arc<T>> {
        let held = self.shard(key).lock().get_if_there(key, worth.used_lives());
        held.and_then(|held| held.downcast().ok())
    }

    /// Finds an entry without a trace: neither counted nor worth more afterwards.
    pub(crate) fn peek<T: Any + Send + Sync>(&self, key: Key) -> Option<Arc<T>> {
        let held = self.shard(key).lock().peek(key);
        held.and_then(|held| held.downcast().ok())
    }

    /// The budget that entries are charged to.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Whether so much more fits without an eviction.
    pub(crate) fn has_room(&self, memory_bytes: usize) -> bool {
        let used = self.budget.used(Purpose::Blocks) + self.budget.used(Purpose::Metadata);
        used + (memory_bytes + ENTRY_BYTES) as u64 <= self.budget.room_for_caches()
    }

    /// Whether the caches hold more than the budget leaves them.
    pub(crate) fn over_budget(&self) -> bool {
        let used = self.budget.used(Purpose::Blocks) + self.budget.used(Purpose::Metadata);
        used > self.budget.room_for_caches()
    }

    /// Adds a value after making room for it, unless there is no room at all. Returns the value that others see: an equal
    /// one that came first, if there is one. While this runs, the budget is exceeded by this one entry at most.
    pub(crate) fn insert<T: Any + Send + Sync>(
        &self,
        key: Key,
        value: Arc<T>,
        memory_bytes: usize,
        worth: Worth,
    ) -> Arc<T> {
        let Ok(bytes) = u32::try_from(memory_bytes.saturating_add(ENTRY_BYTES)) else {
            return value;
        };
        if u64::from(bytes) > self.budget.room_for_caches() {
            return value;
        }
        let purpose = key.kind.purpose();
        self.budget.take(purpose, u64::from(bytes));
        let gentle = worth == Worth::Low
            && !self
                .low_inserts
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(SCAN_AGEING);
        while self.over_budget() {
            if !self.evict_one(gentle) {
                self.budget.give(purpose, u64::from(bytes));
                return value;
            }
        }
        let held: Held = value.clone();
        let before = self
            .shard(key)
            .lock()
            .insert(key, &held, bytes, worth.first_lives());
        match before {
            None => value,
            Some(before) => {
                self.budget.give(purpose, u64::from(bytes));
                before.downcast().unwrap_or(value)
            }
        }
    }

    /// Evicts the entry that the hands reach first; `false` when the cache is empty. A `gentle` hand goes round once taking
    /// only entries without lives, and no lives.
    fn evict_one(&self, gentle: bool) -> bool {
        let (mut empty, mut visits) = (0, 0);
        let mut gentle_visits = if gentle { SHARDS } else { 0 };
        while empty < SHARDS {
            let at = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let lives = if gentle_visits > 0 {
                gentle_visits -= 1;
                0
            } else {
                // The longer it takes, the more lives the hand takes, so that one insert never walks a large cache often.
                visits += 1;
                1 << (visits / (2 * SHARDS)).min(3)
            };
            let turn = self.shards[at].lock().turn(VISIT_SLOTS, lives);
            match turn {
                Turn::Evicted(entry) => {
                    self.budget
                        .give(entry.kind.purpose(), u64::from(entry.bytes));
                    self.evictions.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Turn::Nothing => empty = 0,
                Turn::Empty => empty += 1,
            }
        }
        false
    }

    /// Evicts at most `entries` while over budget; whether there is more to do.
    pub(crate) fn shrink(&self, entries: usize) -> bool {
        for _ in 0..entries {
            if !self.over_budget() {
                return false;
            }
            if !self.evict_one(false) {
                for shard in &self.shards {
                    shard.lock().compact();
                }
                return false;
            }
        }
        self.over_budget()
    }

    /// Notes pages that are gone for good: [`Cache::purge_step`] takes their entries out.
    pub(crate) fn forget(&self, pages: Vec<PageId>) {
        if pages.is_empty() {
            return;
        }
        let mut purge = self.purge.lock();
        purge.waiting.extend(pages);
        self.purging.store(true, Ordering::Relaxed);
    }

    /// Whether a purge has more to do.
    pub(crate) fn purge_needed(&self) -> bool {
        self.purging.load(Ordering::Relaxed)
    }

    /// One bounded step of taking out the entries of pages that are gone: some thousand slots of one shard.
    pub(crate) fn purge_step(&self) {
        // Taken out, not held: the shard's lock is never taken under another.
        let mut purge = {
            let mut shared = self.purge.lock();
            if shared.busy {
                drop(shared);
                // Who purges until nothing is left (a job, and a close beside it) would spin while the other has lost its processor.
                yield_now();
                return;
            }
            std::mem::replace(
                &mut *shared,
                Purge {
                    busy: true,
                    ..Purge::default()
                },
            )
        };
        if purge.dead.is_empty() {
            purge.dead.extend(purge.waiting.drain(..));
            (purge.shard, purge.slot) = (0, 0);
        }
        let mut gone = Vec::new();
        if let Some(shard) = self
            .shards
            .get(purge.shard)
            .filter(|_| !purge.dead.is_empty())
        {
            let dead = &purge.dead;
            let mut shard = shard.lock();
            match shard.purge(
                purge.slot,
                PURGE_SLOTS,
                &|page| dead.contains(&page),
                &mut gone,
            ) {
                Some(slot) => purge.slot = slot,
                None => {
                    shard.compact();
                    (purge.shard, purge.slot) = (purge.shard + 1, 0);
                }
            }
        }
        for entry in gone {
            self.budget
                .give(entry.kind.purpose(), u64::from(entry.bytes));
        }
        if purge.shard >= SHARDS {
            purge.dead.clear();
        }
        let mut now = self.purge.lock();
        purge.waiting.append(&mut now.waiting);
        self.purging.store(
            !purge.dead.is_empty() || !purge.waiting.is_empty(),
            Ordering::Relaxed,
        );
        *now = purge;
    }

    /// Copies the counters into `metrics`.
    pub(crate) fn fill(&self, metrics: &mut StoreMetrics) {
        let add = |out: &mut CacheCounts, counts: &[u64; Kind::COUNT]| {
            out.blocks += counts[Kind::Block as usize];
            out.indexes += counts[Kind::Index as usize];
            out.filters += counts[Kind::Filter as usize];
            out.objects += counts[Kind::Object as usize];
        };
        for shard in &self.shards {
            let shard = shard.lock();
            add(&mut metrics.hits, &shard.hits);
            add(&mut metrics.misses, &shard.misses);
            metrics.cache_entries += shard.len() as u64;
            metrics.cache_bytes += shard.bytes;
        }
        metrics.evictions = self.evictions.load(Ordering::Relaxed);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for shard in &self.shards {
            let mut gone = Vec::new();
            shard.lock().purge(0, usize::MAX, &|_| true, &mut gone);
            for entry in gone {
                self.budget
                    .give(entry.kind.purpose(), u64::from(entry.bytes));
            }
        }
    }
}
