//! The cache's interface: shards by hash, the epoch, and the target for memory.

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Ordering, atomic};
use terrapin_base::{Budget, Purpose, Slice};

use crate::record::{self, Collection, Key};
use crate::shard::{SealedRecord, Shard, Writing};
use crate::strips::Strips;
use crate::table::WORDS_MAX;

/// Address space of the cache as a multiple of its initial memory limit, since a budget may grow.
const GROWTH: u64 = 64;

/// Desired number of strips.
const STRIPS: u64 = 1024;
const STRIP_BYTES_MIN: u64 = 4 << 10;
const STRIP_BYTES_MAX: u64 = 256 << 10;
/// Least number of strips for a shard.
const SHARD_STRIPS: u64 = 32;
const SHARDS_MAX: u64 = 256;

/// Divisor of the part of unused memory that stays free. New blocks use it at once, and records are
/// evicted to restore it.
const SPARE_PART: u64 = 64;

/// Up to this share, in thousandths, records bring little: most are evicted before their next read.
const SPARING_SHARE: u64 = 200;
/// Up to that share, one fill in this number is accepted. Hot records are filled often enough to
/// get in.
const SPARING_PART: u64 = 4;

/// A period between two changes of the records that readers may find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// Figures of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of cached records.
    pub records: u64,
    /// Bytes of strips and tables.
    pub bytes: u64,
}

/// A cache of records.
///
/// ```
/// use terrapin_base::Budget;
/// use terrapin_recordcache::{Collection, RecordCache, SealedRecord};
/// let budget = Budget::new(64 << 20);
/// let cache = RecordCache::new(&budget, 64 << 20);
/// cache.set_share(500);
/// let (collection, hash) = (Collection(1), 0x5eed);
/// let epoch = cache.epoch();
/// cache.fill(epoch, collection, b"turtle", hash, b"slow");
/// assert_eq!(cache.get(epoch, collection, b"turtle", hash).as_deref(), Some(&b"slow"[..]));
/// // A sealed memtable says otherwise:
/// cache.begin_sweep();
/// cache.sweep(collection, b"turtle", hash, SealedRecord::default(), false);
/// assert_eq!(cache.get(cache.epoch(), collection, b"turtle", hash), None);
/// ```
pub struct RecordCache {
    // Declared before `strips`, which they refer to, so they are dropped first.
    shards: Box<[Shard]>,
    strips: Strips,
    epoch: AtomicU64,
    /// The share of what writes leave of the budget, in thousandths.
    share: AtomicU64,
    next_to_shrink: AtomicUsize,
    /// Bytes of the tables of an empty cache.
    tables_bytes_min: u64,
    budget: Arc<Budget>,
}

impl RecordCache {
    /// An empty cache with a share of 0, with a layout for `bytes_max`. It takes little memory
    /// until it is filled.
    ///
    /// If the budget grows, the cache can grow up to [`RecordCache::bytes_max`]. That is 0 if the
    /// system refuses addresses for `bytes_max`; then the cache stays empty.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, bytes_max: u64) -> Self {
        let bytes_max = bytes_max.min(8 * WORDS_MAX);
        let strip_bytes = (bytes_max / STRIPS)
            .next_power_of_two()
            .clamp(STRIP_BYTES_MIN, STRIP_BYTES_MAX);
        let strips = bytes_max / strip_bytes;
        let shards = (strips / SHARD_STRIPS)
            .checked_ilog2()
            .map_or(1, |log| 1 << log)
            .min(SHARDS_MAX);
        let grown_max = bytes_max.saturating_mul(GROWTH).min(8 * WORDS_MAX);
        let whole = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let shards: Box<[Shard]> = (0..shards).map(|_| Shard::new(budget)).collect();
        RecordCache {
            tables_bytes_min: shards.iter().map(Shard::table_bytes).sum(),
            shards,
            strips: Strips::new(
                budget,
                whole(bytes_max),
                whole(grown_max),
                strip_bytes as usize,
            ),
            epoch: AtomicU64::new(0),
            share: AtomicU64::new(0),
            next_to_shrink: AtomicUsize::new(0),
            budget: budget.clone(),
        }
    }

    /// The current epoch. A reader takes it before it loads the state with the memtables.
    #[must_use]
    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    #[inline]
    fn shard(&self, key: &Key<'_>) -> &Shard {
        self.shard_of(key.hash)
    }

    /// The shard of a hash of key and collection.
    #[inline]
    fn shard_of(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// Prefetches the memory of lookups that follow soon. `hashes` are those of their keys. All
    /// waits for memory overlap: first those for the tables, then those for the records. A lookup
    /// alone waits for one after the other. O(keys).
    pub fn prefetch(&self, collection: Collection, hashes: impl Iterator<Item = u64> + Clone) {
        let hashes = hashes.map(|hash| record::hash_in(collection, hash));
        for hash in hashes.clone() {
            self.shard_of(hash).prefetch_slot(hash);
        }
        for hash in hashes {
            self.shard_of(hash).prefetch_record(&self.strips, hash);
        }
    }

    /// The cached value of a key, if the epoch has not changed. O(1), with one allocation.
    #[must_use]
    #[inline(always)] // each lookup
    pub fn get(
        &self,
        epoch: Epoch,
        collection: Collection,
        key: &[u8],
        hash: u64,
    ) -> Option<Slice> {
        let key = Key::new(collection, key, hash)?;
        let value = self.shard(&key).get(&self.strips, &key, record::value)?;
        self.is_still(epoch).then_some(value)
    }

    /// Whether this epoch is still the current one. If so, everything found in it is consistent.
    #[must_use]
    pub fn is_still(&self, epoch: Epoch) -> bool {
        atomic::fence(Ordering::Acquire);
        self.epoch.load(Ordering::Relaxed) == epoch.0
    }

    /// Whether the value of a key is cached, under the conditions of [`RecordCache::get`].
    #[must_use]
    pub fn contains(&self, epoch: Epoch, collection: Collection, key: &[u8], hash: u64) -> bool {
        let Some(key) = Key::new(collection, key, hash) else {
            return false;
        };
        let found = self.shard(&key).get(&self.strips, &key, |_, _| ());
        found.is_some() && self.is_still(epoch)
    }

    /// Caches a record that a reader of this epoch found in the tree.
    ///
    /// Does nothing if the epoch has changed, another thread writes to the shard, or there is no
    /// room. While the share is small only some fills are accepted, since a fill costs several
    /// cache misses. O(1) amortised; only a growing table allocates.
    pub fn fill(&self, epoch: Epoch, collection: Collection, key: &[u8], hash: u64, value: &[u8]) {
        let share = self.share.load(Ordering::Relaxed);
        if share == 0 {
            return;
        }
        let Some(key) = Key::new(collection, key, hash) else {
            return;
        };
        let shard = self.shard(&key);
        if share <= SPARING_SHARE && !self.may_grow() && !shard.is_turn(SPARING_PART) {
            return;
        }
        if let Some(writing) = shard.try_write(&self.strips, &self.budget)
            && self.is_still(epoch)
        {
            self.add(writing, &key, value, false);
        }
    }

    fn may_grow(&self) -> bool {
        self.may_grow_within(self.target())
    }

    fn may_grow_within(&self, target: u64) -> bool {
        self.bytes() + self.strips.strip_bytes() as u64 <= target
    }

    fn write<'s>(&'s self, shard: &'s Shard) -> Writing<'s> {
        shard.write(&self.strips, &self.budget)
    }

    /// Begins a new epoch, so that fills of older epochs are refused.
    ///
    /// Returns `false` if the cache is empty. Then no key needs a sweep, unless the memtable's
    /// records are to be cached.
    pub fn begin_sweep(&self) -> bool {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        // A fill that saw the old epoch has ended once this thread held the lock of its shard.
        let held = self.shards.iter().map(|s| self.write(s).records());
        held.sum::<usize>() > 0
    }

    /// Applies a record of a sealed memtable. Returns whether the key was cached.
    ///
    /// - A cached record is replaced, or removed if the memtable's record is a delete.
    /// - A record that is not cached is added only with `take`. If it was read in the memtable, it
    ///   counts as used. Otherwise it is added only while no other record must be evicted for it.
    ///
    /// O(1), without a lock for a key that is neither cached nor taken.
    pub fn sweep(
        &self,
        collection: Collection,
        key: &[u8],
        hash: u64,
        sealed: SealedRecord<'_>,
        take: bool,
    ) -> bool {
        let Some(key) = Key::new(collection, key, hash) else {
            return false;
        };
        let shard = self.shard(&key);
        if shard.may_hold(key.hash) && self.write(shard).refresh(&key, sealed) {
            return true;
        }
        if let Some(value) = sealed.value.filter(|_| take)
            && self.share.load(Ordering::Relaxed) > 0
            && (sealed.was_read || self.may_grow())
        {
            self.add(self.write(shard), &key, value, sealed.was_read);
        }
        false
    }

    /// Applies range deletes of a sealed memtable to one part of the cache, given its number from 0
    /// on: removes the records of a collection whose keys are erased. Returns the number of the
    /// next part. Like [`RecordCache::sweep`], it belongs behind [`RecordCache::begin_sweep`], and
    /// before the sweeps of newer records.
    ///
    /// O(records of the part), a few milliseconds; fills of the part's records are refused
    /// meanwhile.
    pub fn sweep_erased(
        &self,
        part: usize,
        collection: Collection,
        is_erased: impl Fn(&[u8]) -> bool,
    ) -> Option<usize> {
        self.write(self.shards.get(part)?)
            .erase(collection, is_erased);
        Some(part + 1).filter(|&next| next < self.shards.len())
    }

    /// Adds a record, unless it is cached already.
    fn add(&self, mut writing: Writing<'_>, key: &Key<'_>, value: &[u8], was_read: bool) {
        // Evictions by this call do not change the target.
        let target = self.target();
        if self.is_over(target) {
            writing.give_strip();
        }
        writing.fill(key, value, was_read, self.may_grow_within(target));
    }

    /// Removes all records and releases the memory. Fills of older epochs are refused.
    pub fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            self.write(shard).clear();
        }
    }

    /// Sets the share that the cache may hold even if blocks need memory: thousandths of what
    /// memtables, merges, log and metadata leave of the budget. With 0 it holds nothing.
    /// [`RecordCache::shrink_step`] releases what exceeds the new target.
    pub fn set_share(&self, permille: u64) {
        self.share.store(permille.min(1000), Ordering::Relaxed);
    }

    /// The share in thousandths.
    #[must_use]
    pub fn share(&self) -> u64 {
        self.share.load(Ordering::Relaxed)
    }

    /// The most bytes of records that the cache can hold with any budget.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.strips.bytes_max()
    }

    /// The largest record in bytes that can be cached, with header and padding.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.strips.record_words_max() as u64 * 8
    }

    /// The memory target in bytes: the share, or the memory that blocks do not use if that is more.
    #[must_use]
    pub fn target(&self) -> u64 {
        let share = self.share();
        if share == 0 {
            return 0;
        }
        let room = self.budget.room_for_data();
        let kept = self.budget.used(Purpose::Blocks) + room / SPARE_PART;
        let target = share_of(room, share).max(room.saturating_sub(kept));
        target.min(self.bytes_max())
    }

    /// Whether [`RecordCache::shrink_step`] has work to do.
    #[must_use]
    #[inline]
    pub fn over_target(&self) -> bool {
        self.is_over(self.target())
    }

    fn is_over(&self, target: u64) -> bool {
        self.bytes() > target.max(self.tables_bytes_min)
    }

    /// Releases one strip if the cache exceeds its target. Returns whether it did.
    pub fn shrink_step(&self) -> bool {
        self.over_target() && self.give_strip()
    }

    /// Releases one strip if the cache exceeds its share, even if other memory is unused. For
    /// callers that are about to cache blocks. Returns whether it did.
    pub fn give_way(&self) -> bool {
        let share = share_of(self.budget.room_for_data(), self.share());
        self.bytes() > share.max(self.tables_bytes_min) && self.give_strip()
    }

    fn give_strip(&self) -> bool {
        (0..self.shards.len()).any(|_| {
            let next = self.next_to_shrink.fetch_add(1, Ordering::Relaxed);
            self.write(&self.shards[next % self.shards.len()])
                .give_strip()
        })
    }

    /// Number of first uses of records in the oldest quarter of the cache. With a quarter less
    /// memory, these lookups would have missed.
    #[must_use]
    pub fn rescues(&self) -> u64 {
        let rescues = |shard: &Shard| shard.rescues.load(Ordering::Relaxed);
        self.shards.iter().map(rescues).sum()
    }

    /// Bytes of strips and tables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.used(Purpose::Records)
    }

    /// Figures of the cache. Takes the lock of each shard for a moment.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            bytes: self.bytes(),
            ..Counts::default()
        };
        for shard in &self.shards {
            counts.records += self.write(shard).records() as u64;
        }
        counts
    }
}

/// A share of `room`, in thousandths.
fn share_of(room: u64, permille: u64) -> u64 {
    room / 1000 * permille
}

impl Drop for RecordCache {
    fn drop(&mut self) {
        for shard in &self.shards {
            self.budget.give(Purpose::Records, shard.table_bytes());
        }
    }
}
