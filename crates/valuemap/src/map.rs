//! The map: shards, epochs, memory.

use terrapin_base::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use terrapin_base::{Budget, Purpose, mutant};
use terrapin_disk::Words;

use crate::entry::{FINGERPRINT_BITS, Location};
use crate::pages::{Page, Pages};
use crate::shard::{Arrays, BUCKET_BYTES, BUCKETS_STEP, Shard};

/// Few shards cost little where there is little memory, many keep each growth short.
const SHARDS_MIN: usize = 64;
const SHARDS_MAX: usize = 4096;
/// Bytes that a shard has room for, about.
const SHARD_BYTES: u64 = 512 << 10;

/// A moment of the map. What a reader learns from a state counts only while the map is still at the
/// moment that the reader took before it loaded that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// A key as the map knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

/// What the map says of a key: where a record is that may be the key's. Compare the record's own
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The page.
    pub page: Page,
    /// The place in it.
    pub location: Location,
}

/// The location map. See the [crate's page](crate).
pub struct LocationMap {
    arrays: Arrays,
    shards: Box<[Shard]>,
    pages: Pages,
    budget: Arc<Budget>,
    /// Nobody can aim at a bucket who does not know it.
    seed: u64,
    fingerprint_bits: u32,
    epoch: AtomicU64,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    /// The part of `bytes` that pages take. It never shrinks.
    page_bytes: AtomicU64,
    /// The shard that a shrinking map looks at next.
    next_shrunk: AtomicUsize,
    /// The shard that a growing map looks at next.
    next_grown: AtomicUsize,
    /// Whether a fill found its shard full since the map last grew as far as it may.
    is_short: AtomicBool,
    pass: Mutex<()>,
}

/// Figures of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that the map names a place of.
    pub entries: u64,
    /// Bytes of memory for entries.
    pub bytes: u64,
    /// Entries that went without being removed, since the map was made: to full buckets, to memory
    /// that was taken away, to growth that left their bucket open.
    pub lost: u64,
}

impl LocationMap {
    /// An empty map without memory, which may take `bytes_cap` bytes at most, ever. It takes some
    /// once [`LocationMap::set_bytes_max`] allows it. The seed is drawn at random for each life of
    /// a database.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, bytes_cap: u64, seed: u64) -> Self {
        Self::with_fingerprints(budget, bytes_cap, seed, FINGERPRINT_BITS)
    }

    /// A map with shorter fingerprints, which takes one key for another much more often.
    #[doc(hidden)]
    #[must_use]
    pub fn with_fingerprints(budget: &Arc<Budget>, bytes_cap: u64, seed: u64, bits: u32) -> Self {
        let wanted = (bytes_cap / SHARD_BYTES) as usize;
        let shards = wanted.clamp(SHARDS_MIN, SHARDS_MAX).next_power_of_two();
        let step_bytes = BUCKETS_STEP * BUCKET_BYTES;
        let shard_bytes = (bytes_cap / shards as u64).max(step_bytes) / step_bytes * step_bytes;
        let bytes = shard_bytes as usize * shards;
        let arrays = [Words::reserve(bytes, 0), Words::reserve(bytes, 0)];
        // A system that spares no addresses leaves the map without room.
        let is_whole = arrays.iter().all(|words| words.all().len() * 8 >= bytes);
        let buckets_max = if is_whole {
            shard_bytes / BUCKET_BYTES
        } else {
            0
        };
        let base = |shard| shard * shard_bytes as usize / 8;
        LocationMap {
            arrays,
            shards: (0..shards)
                .map(|shard| Shard::new(base(shard), buckets_max))
                .collect(),
            pages: Pages::default(),
            budget: budget.clone(),
            seed,
            fingerprint_bits: bits,
            epoch: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(0),
            page_bytes: AtomicU64::new(0),
            next_shrunk: AtomicUsize::new(0),
            next_grown: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            pass: Mutex::default(),
        }
    }

    /// How the map knows a key: `hash` is `base::checksum::hash64(key)`, `collection` the number of
    /// the keyspace's collection, which a clear changes.
    #[inline]
    #[must_use]
    pub fn key(&self, collection: u64, hash: u64) -> Key {
        Key(mixed(hash ^ mixed(collection ^ self.seed)))
    }

    #[inline]
    fn shard(&self, key: Key) -> (&Shard, u64) {
        let bits = self.shards.len().trailing_zeros();
        (
            &self.shards[(key.0 >> (u64::BITS - bits)) as usize],
            key.0 << bits,
        )
    }

    /// The moment: a reader takes it before it loads the state that it reads.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Where a record is that may be the key's, for a reader of a checkpoint's state. O(1), without
    /// a lock: two cache lines of entries and one of the page.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key, generation: u64) -> Option<Found> {
        let epoch = self.epoch();
        let (shard, hash) = self.shard(key);
        let location = shard.get(&self.arrays, hash, self.fingerprint_bits)?;
        let page = self.pages.get(location.page, generation)?;
        // An index that got another page in between was freed in a later epoch.
        (self.epoch() == epoch).then_some(Found { page, location })
    }

    /// From now on places that readers learned before do not enter the map ([`LocationMap::fill`]).
    /// Call it before [`LocationMap::set`] and [`LocationMap::remove`] go over a memtable's keys,
    /// and before that memtable leaves the state.
    pub fn begin_sweep(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// The newest version of a key is there now. Grows the map where that is due and allowed.
    pub fn set(&self, key: Key, location: Location) {
        let (shard, hash) = self.shard(key);
        let mut locked = shard.lock(&self.arrays);
        if locked.is_full()
            && let Some(larger) = locked.larger()
        {
            let more = (larger - shard.buckets()) * BUCKET_BYTES;
            if self.take(more) {
                locked.resize(larger, self.fingerprint_bits);
            }
        }
        locked.set(hash, self.fingerprint_bits, location);
    }

    /// The newest version of a key is not in a value page.
    pub fn remove(&self, key: Key) {
        let (shard, hash) = self.shard(key);
        let mut locked = shard.lock(&self.arrays);
        locked.change(hash, self.fingerprint_bits, None, None);
    }

    /// A value was moved: what names its old place names the new one. A key whose entry is gone or
    /// names another place is left alone.
    pub fn moved(&self, key: Key, from: Location, to: Location) -> bool {
        let (shard, hash) = self.shard(key);
        let mut locked = shard.lock(&self.arrays);
        locked.change(hash, self.fingerprint_bits, Some(from), Some(to))
    }

    /// A reader found a key's newest version by way of the tree, in a state that it loaded after it
    /// took `epoch`. It does nothing in a later epoch, nor in a full shard that may grow: the map
    /// then asks for [`LocationMap::grow_step`]. In a full shard that may not, another key goes.
    pub fn fill(&self, key: Key, location: Location, epoch: Epoch) -> bool {
        let (shard, hash) = self.shard(key);
        let mut locked = shard.lock(&self.arrays);
        if self.epoch() != epoch && !mutant::active("place-enters-after-a-sweep") {
            return false;
        }
        if locked.is_full()
            && let Some(larger) = locked.larger()
            && self.may_take((larger - shard.buckets()) * BUCKET_BYTES)
        {
            self.is_short.store(true, Ordering::Relaxed);
            return false;
        }
        locked.set(hash, self.fingerprint_bits, location);
        true
    }

    /// An index for a page that a checkpoint adds. None while all indexes are in use: then nothing
    /// can be said of the page's values.
    pub fn add_page(&self, page: Page) -> Option<u32> {
        let (index, taken) = self.pages.add(page)?;
        self.budget.take(Purpose::Locations, taken);
        self.bytes.fetch_add(taken, Ordering::Relaxed);
        self.page_bytes.fetch_add(taken, Ordering::Relaxed);
        Some(index)
    }

    /// A checkpoint gave a page up: readers of `generation` and later ones do not find it.
    pub fn end_page(&self, index: u32, generation: u64) {
        self.pages.end(index, generation);
    }

    /// How many indexes [`LocationMap::free_pages`] would free.
    #[must_use]
    pub fn ended_pages(&self) -> usize {
        self.pages.ended()
    }

    /// Removes the entries of all pages that ended, so that their indexes can be used again.
    /// Locks one shard at a time. O(entries).
    pub fn free_pages(&self) {
        let _one = self.pass.lock();
        let mut ended = self.pages.take_ended();
        ended.sort_unstable();
        // Before: readers that know a page which ended add nothing behind the pass.
        self.begin_sweep();
        let passes = !mutant::active("page-indexes-are-reused-at-once");
        for shard in self.shards.iter().filter(|_| passes) {
            let is_gone = |page| ended.binary_search(&page).is_ok();
            shard.lock(&self.arrays).remove_pages(&is_gone);
        }
        // After: readers that hold an entry from before do not take another page for its own.
        self.begin_sweep();
        self.pages.free(ended);
    }

    /// How many bytes the map may take from now on. Less than it has is given back by
    /// [`LocationMap::shrink_step`].
    pub fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Gives back an eighth of one shard if the map has more than it may. Whether there is more to
    /// give back.
    pub fn shrink_step(&self) -> bool {
        let has_too_much =
            || self.bytes.load(Ordering::Relaxed) > self.bytes_max.load(Ordering::Relaxed);
        for _ in 0..self.shards.len() {
            if !has_too_much() {
                return false;
            }
            let next = self.next_shrunk.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let mut locked = self.shards[next].lock(&self.arrays);
            if let Some(smaller) = locked.smaller() {
                let less = (self.shards[next].buckets() - smaller) * BUCKET_BYTES;
                locked.resize(smaller, self.fingerprint_bits);
                self.give(less);
                return has_too_much();
            }
        }
        false
    }

    /// Grows one full shard by an eighth, if the map may take that much more. Whether it grew.
    /// Readers go on in the old buckets meanwhile, and fills of this shard wait.
    pub fn grow_step(&self) -> bool {
        for _ in 0..self.shards.len() {
            let next = self.next_grown.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let mut locked = self.shards[next].lock(&self.arrays);
            if locked.is_full()
                && let Some(larger) = locked.larger()
                && self.take((larger - self.shards[next].buckets()) * BUCKET_BYTES)
            {
                locked.resize(larger, self.fingerprint_bits);
                return true;
            }
        }
        self.is_short.store(false, Ordering::Relaxed);
        false
    }

    /// Whether [`LocationMap::grow_step`] or [`LocationMap::shrink_step`] has something to do: a
    /// fill found no room, and the map may take more; or the map has more than it may, and buckets
    /// to give back.
    #[must_use]
    pub fn wants_step(&self) -> bool {
        let (bytes, max) = (self.bytes(), self.bytes_max());
        let has_buckets = bytes > self.page_bytes.load(Ordering::Relaxed);
        bytes > max && has_buckets || self.is_short.load(Ordering::Relaxed) && bytes < max
    }

    /// Bytes of memory that the map takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The part of [`LocationMap::bytes`] that entries take. Pages take the rest.
    #[must_use]
    pub fn entry_bytes(&self) -> u64 {
        self.bytes()
            .saturating_sub(self.page_bytes.load(Ordering::Relaxed))
    }

    /// The bytes that the map may take.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn may_take(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.bytes_max()
    }

    fn take(&self, bytes: u64) -> bool {
        let max = self.bytes_max.load(Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > max {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.budget.take(Purpose::Locations, bytes);
        true
    }

    fn give(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.give(Purpose::Locations, bytes);
    }

    /// Figures. Locks each shard for a moment.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            bytes: self.bytes.load(Ordering::Relaxed),
            ..Counts::default()
        };
        for shard in &self.shards {
            let locked = shard.lock(&self.arrays);
            counts.entries += locked.entries();
            counts.lost += locked.lost();
        }
        counts
    }
}

impl Drop for LocationMap {
    fn drop(&mut self) {
        self.give(self.bytes.load(Ordering::Relaxed));
    }
}

/// Each bit of the result depends on each bit of the word (the finisher of SplitMix64).
#[inline]
fn mixed(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
