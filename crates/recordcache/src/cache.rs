//! The cache as its users see it: shards by hash, the epoch, and the target that memory is held to.

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Ordering, atomic};
use terrapin_base::{Budget, Purpose, Slice};

use crate::record::{self, Collection, Key};
use crate::shard::{SealedRecord, Shard, Writing};
use crate::strips::Strips;
use crate::table::WORDS_MAX;

/// There are addresses for so many times the memory there may be, since a budget may grow.
const GROWTH: u64 = 64;

/// A strip is about this part of the memory there may be.
const STRIPS: u64 = 1024;
const STRIP_BYTES_MIN: u64 = 4 << 10;
const STRIP_BYTES_MAX: u64 = 256 << 10;
/// So many strips to a shard at least.
const SHARD_STRIPS: u64 = 32;
const SHARDS_MAX: u64 = 256;

/// Of what blocks leave unused, this part stays so: blocks that come find it, and records go for
/// those that follow.
const SPARE_PART: u64 = 64;

/// With no larger share, in thousandths, records bring little: most of what is read will not be
/// read again before it goes.
const SPARING_SHARE: u64 = 200;
/// Then one of so many fills comes in. What is read often comes often, so it gets in as well.
const SPARING_PART: u64 = 4;

/// A moment between changes of what the cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// Figures since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records there are.
    pub records: u64,
    /// Bytes that the cache holds, tables included.
    pub bytes: u64,
}

/// A cache of records. See the crate.
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
    // Shards go before the memory that they refer to.
    shards: Box<[Shard]>,
    strips: Strips,
    epoch: AtomicU64,
    /// Of what writes leave of the budget, in thousandths.
    share: AtomicU64,
    next_to_shrink: AtomicUsize,
    /// What the tables of an empty cache take.
    tables_bytes_min: u64,
    budget: Arc<Budget>,
}

impl RecordCache {
    /// An empty cache with a share of 0, laid out for `bytes_max`; costs little until it is filled.
    /// Should the budget grow, it can come to hold many times that: [`RecordCache::bytes_max`],
    /// which is 0 where the system refuses addresses for `bytes_max`: then it holds nothing.
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

    /// The epoch that a reader goes by; to be taken before it looks which memtables there are.
    #[must_use]
    #[inline]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    #[inline]
    fn shard(&self, key: &Key<'_>) -> &Shard {
        &self.shards[(key.hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// The value of a key, if it is here and no memtable of that epoch holds the key. O(1); one
    /// allocation.
    #[must_use]
    #[inline]
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

    /// Whether that epoch is still the present one: then everything that was found in it goes
    /// together.
    #[must_use]
    pub fn is_still(&self, epoch: Epoch) -> bool {
        atomic::fence(Ordering::Acquire);
        self.epoch.load(Ordering::Relaxed) == epoch.0
    }

    /// Whether the value of a key is here; as [`RecordCache::get`].
    #[must_use]
    pub fn contains(&self, epoch: Epoch, collection: Collection, key: &[u8], hash: u64) -> bool {
        let Some(key) = Key::new(collection, key, hash) else {
            return false;
        };
        let found = self.shard(&key).get(&self.strips, &key, |_, _| ());
        found.is_some() && self.is_still(epoch)
    }

    /// Keeps what a reader of that epoch found in the tree, unless the epoch is over, somebody else
    /// writes to that shard now, or there is no room. While the share is small only some come in,
    /// since a fill costs several cache misses. O(1) amortised; no allocation but for a growing
    /// table.
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

    /// Begins another epoch: fills of older ones come too late from now on. `false` when the cache
    /// is empty and stays so for what was read before: then nothing needs to be swept, unless to be
    /// taken.
    pub fn begin_sweep(&self) -> bool {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        // A fill that saw the last epoch is over once its shard's lock was held by us.
        let held = self.shards.iter().map(|s| self.write(s).records());
        held.sum::<usize>() > 0
    }

    /// A sealed memtable says this of a key: if the record is here it is replaced, or taken out; if
    /// it is not, it comes in where the memtable's records are to be taken (`take`): if it was read
    /// there, as one that was used, otherwise as far as nothing has to go for it. Whether the
    /// record was here. O(1), and no lock for a key that is not here and not taken.
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

    /// Adds a record that may be here already, and was read before or not.
    fn add(&self, mut writing: Writing<'_>, key: &Key<'_>, value: &[u8], was_read: bool) {
        // Records that go leave it as it is.
        let target = self.target();
        if self.is_over(target) {
            writing.give_strip();
        }
        writing.fill(key, value, was_read, self.may_grow_within(target));
    }

    /// Gives everything back; what readers of before find comes in too late.
    pub fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        for shard in &self.shards {
            self.write(shard).clear();
        }
    }

    /// Sets what the cache may hold though blocks want it: so many thousandths of what memtables,
    /// merges, log and metadata leave of the budget; 0 for nothing at all. What it holds beyond its
    /// target goes by [`RecordCache::shrink_step`].
    pub fn set_share(&self, permille: u64) {
        self.share.store(permille.min(1000), Ordering::Relaxed);
    }

    /// The share, in thousandths.
    #[must_use]
    pub fn share(&self) -> u64 {
        self.share.load(Ordering::Relaxed)
    }

    /// The most bytes of records that the cache can hold, whatever the budget.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.strips.bytes_max()
    }

    /// The most bytes that a record may take in the cache, header and padding included; a larger
    /// one does not come in.
    #[must_use]
    pub fn record_bytes_max(&self) -> u64 {
        self.strips.record_words_max() as u64 * 8
    }

    /// What the cache may hold now: its share, or what blocks leave unused if that is more.
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

    /// Whether [`RecordCache::shrink_step`] would find something to do.
    #[must_use]
    #[inline]
    pub fn over_target(&self) -> bool {
        self.is_over(self.target())
    }

    fn is_over(&self, target: u64) -> bool {
        self.bytes() > target.max(self.tables_bytes_min)
    }

    /// Gives one strip back if the cache holds more than its target; whether it did.
    pub fn shrink_step(&self) -> bool {
        self.over_target() && self.give_strip()
    }

    /// Gives one strip back if the cache holds more than its share, whatever blocks leave unused
    /// now: for who is about to bring in blocks. Whether it did.
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

    /// How often a record of the oldest quarter of the cache was used for the first time: so many
    /// lookups more would have failed, were the cache a quarter smaller.
    #[must_use]
    pub fn rescues(&self) -> u64 {
        let rescues = |shard: &Shard| shard.rescues.load(Ordering::Relaxed);
        self.shards.iter().map(rescues).sum()
    }

    /// Bytes that the cache holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.used(Purpose::Records)
    }

    /// Figures. Takes each shard's lock for a moment.
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

/// So many thousandths of the room there is.
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
