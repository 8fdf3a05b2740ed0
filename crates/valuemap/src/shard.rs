//! One shard: buckets of eight entries in one of two arrays. Readers take no lock. Whoever changes
//! the shard holds its lock.
//!
//! A shard grows and shrinks by moving all entries into the other array and then naming that array.
//! The old array is given back to the system and reads as zeros from then on. A reader that is
//! still there misses its key, which is allowed, or finds another key's entry, which is allowed
//! too.

use terrapin_base::mutant;
use terrapin_base::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use terrapin_disk::Words;

use crate::entry::{Entry, Geometry, Location, Probe};

/// Entries of a bucket: a cache line.
const SLOTS: usize = 8;
/// Buckets in a page of memory, which arrays consist of.
pub(crate) const BUCKETS_STEP: u64 = (Words::IN_PAGE / SLOTS) as u64;
/// Bytes of a bucket.
pub(crate) const BUCKET_BYTES: u64 = (SLOTS * 8) as u64;
/// A shard grows when so much of it is taken.
const FULL_PERCENT: u64 = 92;
/// A key goes to its home if so many slots are vacant there, and else to the emptier bucket. Reads
/// of a key at home need no second cache line.
const ROOM_AT_HOME: usize = 3;
/// It grows by this part (1/n) of itself.
const GROWTH_PART: u64 = 8;

/// The two arrays of all shards.
pub(crate) type Arrays = [Words; 2];

/// One shard.
pub(crate) struct Shard {
    /// Buckets << 1 | which array.
    active: AtomicU64,
    counts: Mutex<Counts>,
    /// Its first word in either array.
    base: usize,
    /// The most buckets that an array has room for.
    buckets_max: u64,
}

/// What a shard's lock guards besides its entries.
#[derive(Default)]
pub(crate) struct Counts {
    entries: u64,
    /// Which slot of a full bucket goes next.
    next_victim: usize,
    /// Entries that went because a bucket was full or growth left their bucket open.
    lost: u64,
}

/// A shard under its lock.
pub(crate) struct Locked<'a> {
    shard: &'a Shard,
    arrays: &'a Arrays,
    counts: MutexGuard<'a, Counts>,
}

impl Shard {
    pub(crate) fn new(base: usize, buckets_max: u64) -> Self {
        Shard {
            active: AtomicU64::new(0),
            counts: Mutex::default(),
            base,
            buckets_max,
        }
    }

    #[inline]
    fn load(&self) -> (Geometry, usize) {
        let active = self.active.load(Ordering::Acquire);
        let buckets = active >> 1;
        (Geometry { buckets }, (active & 1) as usize)
    }

    fn bucket<'a>(&self, arrays: &'a Arrays, array: usize, bucket: u64) -> &'a [AtomicU64] {
        let start = self.base + bucket as usize * SLOTS;
        &arrays[array].all()[start..start + SLOTS]
    }

    /// What the map says of a key.
    #[inline]
    pub(crate) fn get(&self, arrays: &Arrays, hash: u64, bits: u32) -> Option<Location> {
        let (geometry, array) = self.load();
        if geometry.buckets == 0 {
            return None;
        }
        let probe = geometry.probe(hash, bits);
        let home = geometry.home(hash);
        let find = |bucket, in_other| {
            let mut slots = self.bucket(arrays, array, bucket).iter();
            slots.find_map(|slot| {
                // Acquire: what the location's page is was stored before the entry.
                let entry = Entry(slot.load(Ordering::Acquire));
                probe.matches(entry, in_other).then(|| entry.location())
            })
        };
        find(home, false).or_else(|| find(geometry.other(home, probe.side()), true))
    }

    pub(crate) fn buckets(&self) -> u64 {
        self.load().0.buckets
    }

    pub(crate) fn lock<'a>(&'a self, arrays: &'a Arrays) -> Locked<'a> {
        Locked {
            shard: self,
            arrays,
            counts: self.counts.lock(),
        }
    }
}

/// Where one slot of the map is.
struct Slot<'a> {
    word: &'a AtomicU64,
    in_other: bool,
}

impl<'a> Locked<'a> {
    pub(crate) fn entries(&self) -> u64 {
        self.counts.entries
    }

    pub(crate) fn lost(&self) -> u64 {
        self.counts.lost
    }

    /// Whether one more entry asks for more buckets.
    pub(crate) fn is_full(&self) -> bool {
        let slots = self.shard.buckets() * SLOTS as u64;
        (self.counts.entries + 1) * 100 > slots * FULL_PERCENT
    }

    /// How many buckets the next larger size has; none where the address space ends.
    pub(crate) fn larger(&self) -> Option<u64> {
        let buckets = self.shard.buckets();
        let more = (buckets / GROWTH_PART)
            .max(1)
            .next_multiple_of(BUCKETS_STEP);
        let larger = (buckets + more).min(self.shard.buckets_max);
        (larger > buckets).then_some(larger)
    }

    /// How many the next smaller size has; none of an empty shard.
    pub(crate) fn smaller(&self) -> Option<u64> {
        let buckets = self.shard.buckets();
        let less = (buckets / GROWTH_PART)
            .max(1)
            .next_multiple_of(BUCKETS_STEP);
        buckets.checked_sub(less)
    }

    fn slots(&self, hash: u64, bits: u32) -> (Probe, impl Iterator<Item = Slot<'a>> + use<'a>) {
        let (geometry, array) = self.shard.load();
        let probe = geometry.probe(hash, bits);
        let home = geometry.home(hash);
        let other = geometry.other(home, probe.side());
        let (shard, arrays) = (self.shard, self.arrays);
        let of = move |bucket, in_other| {
            let words = shard.bucket(arrays, array, bucket).iter();
            words.map(move |word| Slot { word, in_other })
        };
        (probe, of(home, false).chain(of(other, true)))
    }

    /// Names a key's place. Whatever could be taken for the key's goes, so that no lookup finds an
    /// older place. A full bucket loses an entry.
    pub(crate) fn set(&mut self, hash: u64, bits: u32, location: Location) {
        if self.shard.buckets() == 0 {
            return;
        }
        let (probe, slots) = self.slots(hash, bits);
        let mut is_set = false;
        // Vacant slots of the home and of the other bucket: how many, and one of them.
        let mut vacant = [(0, None), (0, None)];
        for slot in slots {
            let entry = Entry(slot.word.load(Ordering::Relaxed));
            let adds = mutant::active("located-beside-its-match");
            if probe.matches(entry, slot.in_other) && !adds {
                let next = match is_set {
                    false => probe.entry(slot.in_other, location),
                    true => Entry::VACANT,
                };
                self.counts.entries -= u64::from(is_set);
                is_set = true;
                slot.word.store(next.0, Ordering::Release);
            } else if entry.is_vacant() {
                let of_bucket = &mut vacant[usize::from(slot.in_other)];
                *of_bucket = (of_bucket.0 + 1, Some(slot));
            }
        }
        if is_set {
            return;
        }
        let [(in_home, home), (in_other, other)] = vacant;
        let is_home = in_home >= in_other.min(ROOM_AT_HOME);
        let slot = match if is_home { home } else { other } {
            Some(slot) => {
                self.counts.entries += 1;
                slot
            }
            None if let Some(slot) = self.make_room(hash, bits) => {
                self.counts.entries += 1;
                slot
            }
            None => {
                self.counts.lost += 1;
                self.counts.next_victim = (self.counts.next_victim + 1) % SLOTS;
                let victim = self.slots(hash, bits).1.nth(self.counts.next_victim);
                victim.expect("a bucket has eight slots")
            }
        };
        let entry = probe.entry(slot.in_other, location);
        slot.word.store(entry.0, Ordering::Release);
    }

    /// A slot of one of a key's buckets, both of which are full: of an entry that could move to its
    /// own other bucket.
    fn make_room(&self, hash: u64, bits: u32) -> Option<Slot<'a>> {
        let (geometry, array) = self.shard.load();
        let home = geometry.home(hash);
        let other = geometry.other(home, geometry.probe(hash, bits).side());
        let buckets = [(home, false), (other, true)].into_iter();
        buckets
            .filter_map(|(bucket, in_other)| {
                let word = self.free_one(geometry, array, bucket)?;
                Some(Slot { word, in_other })
            })
            .next()
    }

    /// Moves an entry of a full bucket to the other of its two, and returns its slot, which is to
    /// be overwritten. A reader in between finds the entry in both.
    fn free_one(&self, geometry: Geometry, array: usize, bucket: u64) -> Option<&'a AtomicU64> {
        let words = self.shard.bucket(self.arrays, array, bucket);
        words.iter().find(|word| {
            let entry = Entry(word.load(Ordering::Relaxed));
            let elsewhere = geometry.elsewhere(bucket, entry);
            let mut slots = self.shard.bucket(self.arrays, array, elsewhere).iter();
            let vacant = slots.find(|slot| slot.load(Ordering::Relaxed) == 0);
            vacant.is_some_and(|vacant| {
                vacant.store(entry.swapped().0, Ordering::Release);
                true
            })
        })
    }

    /// Removes whatever a lookup of the key could find. With `expected`, only what names that
    /// place, and `next` takes its place. Whether there was any.
    pub(crate) fn change(
        &mut self,
        hash: u64,
        bits: u32,
        expected: Option<Location>,
        next: Option<Location>,
    ) -> bool {
        if self.shard.buckets() == 0 {
            return false;
        }
        let (probe, slots) = self.slots(hash, bits);
        let mut changed = false;
        for slot in slots {
            let entry = Entry(slot.word.load(Ordering::Relaxed));
            let is_meant = expected.is_none_or(|expected| entry.location() == expected);
            if probe.matches(entry, slot.in_other) && is_meant {
                let next = next.map_or(Entry::VACANT, |next| probe.entry(slot.in_other, next));
                self.counts.entries -= u64::from(next.is_vacant());
                slot.word.store(next.0, Ordering::Release);
                changed = true;
            }
        }
        changed
    }

    /// Removes all entries of pages that a caller names.
    pub(crate) fn remove_pages(&mut self, is_gone: &dyn Fn(u32) -> bool) {
        let (geometry, array) = self.shard.load();
        for bucket in 0..geometry.buckets {
            for word in self.shard.bucket(self.arrays, array, bucket) {
                let entry = Entry(word.load(Ordering::Relaxed));
                if !entry.is_vacant() && is_gone(entry.page()) {
                    word.store(0, Ordering::Release);
                    self.counts.entries -= 1;
                }
            }
        }
    }

    /// Moves all entries into an array of so many buckets. Entries that find no room go, and so do
    /// those whose bits leave their new bucket open.
    pub(crate) fn resize(&mut self, buckets: u64, bits: u32) {
        let (old, array) = self.shard.load();
        let (new, other_array) = (Geometry { buckets }, 1 - array);
        let mut entries = 0;
        for bucket in 0..old.buckets {
            for word in self.shard.bucket(self.arrays, array, bucket) {
                let entry = Entry(word.load(Ordering::Relaxed));
                if entry.is_vacant() {
                    continue;
                }
                if self.carry((old, bucket, entry), (new, other_array), bits) {
                    entries += 1;
                }
            }
        }
        self.counts.lost += self.counts.entries - entries;
        self.counts.entries = entries;
        let active = buckets << 1 | other_array as u64;
        self.shard.active.store(active, Ordering::Release);
        let words = (old.buckets.next_multiple_of(BUCKETS_STEP)) as usize * SLOTS;
        if words > 0 {
            self.arrays[array].release(self.shard.base..self.shard.base + words);
        }
    }

    fn carry(
        &self,
        (old, bucket, entry): (Geometry, u64, Entry),
        (new, array): (Geometry, usize),
        bits: u32,
    ) -> bool {
        if new.buckets == 0 {
            return false;
        }
        let prefix = old.prefix_of(bucket, entry);
        let Some((home, field)) = prefix.and_then(|prefix| new.place(prefix, bits)) else {
            return false;
        };
        let other = new.other(home, entry.side());
        let [mut vacant, in_other] = [home, other].map(|bucket| {
            let words = self.shard.bucket(self.arrays, array, bucket).iter();
            words.filter(|word| word.load(Ordering::Relaxed) == 0)
        });
        let (at_home, elsewhere) = (vacant.clone().count(), in_other.clone().count());
        let is_home = at_home >= elsewhere.min(ROOM_AT_HOME);
        if !is_home {
            vacant = in_other;
        }
        // Where both buckets are full, neither has a vacant slot, and `is_home` is true.
        let word = vacant.next().or_else(|| self.free_one(new, array, home));
        let Some(word) = word else {
            return false;
        };
        word.store(entry.moved(field, !is_home).0, Ordering::Release);
        true
    }
}
