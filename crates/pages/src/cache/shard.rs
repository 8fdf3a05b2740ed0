//! One shard of the cache: a table of slots and, for metadata, a CLOCK hand over the slots. A shard
//! does no I/O, decodes nothing and takes no lock.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use terrapin_base::PageId;
use terrapin_disk::prefetch_all;

use super::lanes::Home;
use super::table::Table;
use super::{CachedValue, Kind, Standing, Worth};
use crate::block::Block;

/// The key of a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) page: PageId,
    pub(crate) kind: Kind,
    /// Number of the block or filter partition in its page. 0 for other kinds.
    pub(crate) number: u32,
}

impl Key {
    /// A hash of both words. Every bit of it depends on all bits of the key.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        let part = u64::from(self.number) << 2 | self.kind as u64;
        let mixed = (self.page.0 ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    }
}

/// A hasher for ids: one multiplication, the same in every run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHash;

/// The state of [`IdHash`].
pub(crate) struct IdHasher(u64);

impl BuildHasher for IdHash {
    type Hasher = IdHasher;
    fn build_hasher(&self) -> IdHasher {
        IdHasher(0)
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct CachedEntry<V> {
    key: Key,
    value: V,
    bytes: u32,
    birth: Birth,
    /// How often eviction passes over the entry before it goes.
    lives: u8,
}

/// The lane that a block entered, and the lane's newest cohort at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Birth(u32);

impl Birth {
    pub(super) fn new(number: u32, worth: Worth) -> Self {
        Birth(number << 1 | worth as u32)
    }

    fn worth(self) -> Worth {
        if self.0 & 1 == Worth::Low as u32 {
            Worth::Low
        } else {
            Worth::Normal
        }
    }

    /// Whether the block entered before the end of its lane's oldest quarter.
    fn is_in(self, ends: &[u32; 2]) -> bool {
        self.0 >> 1 < ends[(self.0 & 1) as usize]
    }
}

/// What a use is worth: this many more lives, up to a bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) lives: u8,
    pub(super) most: u8,
    /// In each lane, the number at which the oldest quarter ends. Zeros for metadata.
    pub(super) aged: [u32; 2],
}

/// The result of a visit of the hand.
pub(crate) enum Turn {
    /// This entry left.
    Evicted(Entry<CachedValue>),
    /// Entries lost lives, and none left.
    Nothing,
    /// The shard has no entries.
    Empty,
}

/// The steps of a lookup, each of which visits memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Table,
    Slot,
    /// The block that the slot holds.
    Block,
    /// Where the block notes its records.
    Records,
}

/// An entry that left the cache.
pub(crate) struct Entry<V> {
    pub(crate) bytes: u32,
    /// The thread that took the entry drops the value, outside of the lock.
    pub(crate) _value: V,
}

/// The state of a block whose home is being evicted.
pub(super) enum Resident {
    /// The block is not cached, or it is in another home.
    Gone,
    /// The block had no lives and left.
    Left(Entry<Arc<Block>>),
    /// The block has this many lives.
    Lives(u8, Arc<Block>),
}

/// The entries whose keys hash to one shard.
#[repr(C)]
pub(crate) struct Shard<V> {
    /// First, so that it is in the cache line of the shard's lock, which each lookup writes.
    pub(crate) hits: [u64; Kind::COUNT],
    map: Table,
    slots: Vec<Option<CachedEntry<V>>>,
    vacant: Vec<u32>,
    hand: usize,
    pub(crate) misses: [u64; Kind::COUNT],
    /// First uses of blocks in the oldest quarter. With a quarter less memory, each would have been
    /// a miss.
    pub(crate) rescues: u64,
    pub(crate) bytes: u64,
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Shard {
            map: Table::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            hand: 0,
            hits: [0; Kind::COUNT],
            misses: [0; Kind::COUNT],
            rescues: 0,
            bytes: 0,
        }
    }
}

impl<V: Clone> Shard<V> {
    /// Entries in the shard.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The slot of a key.
    #[inline]
    fn find(&self, key: Key) -> Option<usize> {
        let is_it = |at: u32| {
            let slot = self.slots.get(at as usize).and_then(Option::as_ref);
            slot.is_some_and(|slot| slot.key == key)
        };
        self.map
            .find(key.hash() as u32, is_it)
            .map(|at| at as usize)
    }

    /// Finds an entry and uses it. Counts the lookup; a hit counts `more` further uses. O(1).
    #[inline]
    pub(super) fn get(&mut self, key: Key, used: Use, more: u64) -> Option<V> {
        let found = self.get_if_there(key, used);
        match found {
            Some(_) => self.hits[key.kind as usize] += more,
            None => self.misses[key.kind as usize] += 1,
        }
        found
    }

    /// Like [`Shard::get`], but does not count a miss.
    #[inline]
    pub(super) fn get_if_there(&mut self, key: Key, used: Use) -> Option<V> {
        let slot = self.find(key).and_then(|at| self.slots[at].as_mut())?;
        if slot.lives == 0 && slot.birth.is_in(&used.aged) {
            self.rescues += 1;
        }
        let lives = slot.lives.max((slot.lives + used.lives).min(used.most));
        // A write takes the slot's cache line from other readers.
        if lives != slot.lives {
            slot.lives = lives;
        }
        self.hits[key.kind as usize] += 1;
        Some(slot.value.clone())
    }

    /// Whether there is an entry of this key.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.find(key).is_some()
    }

    /// Finds an entry without using it.
    pub(crate) fn peek(&self, key: Key) -> Option<V> {
        let slot = self.find(key).and_then(|at| self.slots[at].as_ref())?;
        Some(slot.value.clone())
    }

    /// Adds an entry. If the key has one already, returns that value instead.
    pub(super) fn insert(
        &mut self,
        key: Key,
        value: &V,
        bytes: u32,
        lives: u8,
        birth: Birth,
    ) -> Option<V> {
        if let Some(before) = self.peek(key) {
            return Some(before);
        }
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                // A shard of 2^32 entries would hold at least 2^38 bytes.
                let at = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                self.slots.push(None);
                at
            }
        };
        self.slots[at as usize] = Some(CachedEntry {
            key,
            value: value.clone(),
            bytes,
            birth,
            lives,
        });
        self.map.insert(key.hash() as u32, at);
        self.bytes += u64::from(bytes);
        None
    }

    fn take(&mut self, at: usize) -> Option<Entry<V>> {
        let slot = self.slots[at].take()?;
        self.map.remove(slot.key.hash() as u32, at as u32);
        self.vacant.push(at as u32);
        self.bytes -= u64::from(slot.bytes);
        Some(Entry {
            bytes: slot.bytes,
            _value: slot.value,
        })
    }

    /// Removes the entries of pages for which `dead` returns true. Looks at no more than `steps`
    /// slots from `from` on. Returns the next slot to look at.
    pub(crate) fn purge(
        &mut self,
        from: usize,
        steps: usize,
        dead: &dyn Fn(PageId) -> bool,
        out: &mut Vec<Entry<V>>,
    ) -> Option<usize> {
        let end = self.slots.len().min(from.saturating_add(steps));
        for at in from..end {
            if self.slots[at]
                .as_ref()
                .is_some_and(|slot| dead(slot.key.page))
            {
                out.extend(self.take(at));
            }
        }
        (end < self.slots.len()).then_some(end)
    }

    /// Empties the shard and keeps its counters. Returns what it held, for the caller to drop
    /// outside of the lock.
    pub(crate) fn empty(&mut self) -> Self {
        let empty = Shard {
            hits: self.hits,
            misses: self.misses,
            rescues: self.rescues,
            ..Shard::default()
        };
        std::mem::replace(self, empty)
    }

    /// Frees the memory of vacant slots if most slots are vacant.
    pub(crate) fn compact(&mut self) {
        if self.slots.len() > 64 && self.map.len() < self.slots.len() / 4 {
            let kept: Vec<CachedEntry<V>> = self.slots.drain(..).flatten().collect();
            *self = Shard {
                slots: Vec::with_capacity(kept.len()),
                hits: self.hits,
                misses: self.misses,
                rescues: self.rescues,
                bytes: self.bytes,
                ..Shard::default()
            };
            for slot in kept {
                self.map
                    .insert(slot.key.hash() as u32, self.slots.len() as u32);
                self.slots.push(Some(slot));
            }
        }
    }
}

impl Shard<CachedValue> {
    /// Moves the hand over at most `steps` slots, and at most once around. The hand takes `lives`
    /// lives from each entry. The first entry without lives leaves.
    pub(crate) fn turn(&mut self, steps: usize, lives: u8) -> Turn {
        if self.map.len() == 0 {
            return Turn::Empty;
        }
        for _ in 0..steps.min(self.slots.len()) {
            let at = self.hand;
            self.hand = if at + 1 >= self.slots.len() {
                0
            } else {
                at + 1
            };
            let Some(slot) = &mut self.slots[at] else {
                continue;
            };
            if slot.lives > 0 {
                slot.lives = slot.lives.saturating_sub(lives);
            } else if let Some(entry) = self.take(at) {
                return Turn::Evicted(entry);
            }
        }
        Turn::Nothing
    }

    /// Takes a life from each entry in one of `parts` equal parts of the slots. Entries without
    /// lives leave.
    pub(super) fn age(&mut self, part: usize, parts: usize, out: &mut Vec<Entry<CachedValue>>) {
        let slots = self.slots.len();
        for at in slots * part / parts..slots * (part + 1) / parts {
            match &mut self.slots[at] {
                Some(slot) if slot.lives > 0 => slot.lives -= 1,
                _ => out.extend(self.take(at)),
            }
        }
    }
}

impl Shard<Arc<Block>> {
    /// Prefetches the memory that one step of a lookup visits. The step before must have been
    /// prefetched.
    #[inline]
    pub(super) fn prefetch(&self, key: Key, step: Step) {
        let hash = key.hash() as u32;
        if step == Step::Table {
            return self.map.prefetch(hash);
        }
        // The first entry with this hash is mostly the right one. Prefetching another one does no
        // harm.
        let slot = self.map.find(hash, |_| true);
        let slot = slot.and_then(|at| self.slots.get(at as usize));
        match slot {
            Some(Some(slot)) if step == Step::Block => slot.value.prefetch(),
            Some(Some(slot)) if step == Step::Records => slot.value.prefetch_ends(),
            Some(slot) => prefetch_all(slot),
            None => {}
        }
    }

    /// Takes a block's lives. Returns its standing before.
    pub(super) fn bequeath(&mut self, key: Key) -> Standing {
        let slot = self.find(key).and_then(|at| self.slots[at].as_mut());
        slot.map_or(Standing::NONE, |slot| {
            Standing::new(slot.birth.worth(), std::mem::take(&mut slot.lives))
        })
    }

    fn find_in(&self, key: Key, home: &Home) -> Option<usize> {
        let at = self.find(key)?;
        let slot = self.slots[at].as_ref()?;
        home.holds(&slot.value).then_some(at)
    }

    /// The state of a block whose home is being evicted. A block without lives leaves, unless
    /// `spared`.
    pub(super) fn resident(&mut self, key: Key, home: &Home, spared: bool) -> Resident {
        let Some(at) = self.find_in(key, home) else {
            return Resident::Gone;
        };
        match &self.slots[at] {
            Some(slot) if slot.lives > 0 || spared => {
                Resident::Lives(slot.lives, slot.value.clone())
            }
            _ => self.take(at).map_or(Resident::Gone, Resident::Left),
        }
    }

    /// Removes `block` if it is the key's entry.
    pub(super) fn remove(&mut self, key: Key, block: &Arc<Block>) -> Option<Entry<Arc<Block>>> {
        let at = self.find(key)?;
        let slot = self.slots[at].as_ref()?;
        if !Arc::ptr_eq(&slot.value, block) {
            return None;
        }
        self.take(at)
    }

    /// Replaces a block by `next` and takes `lives` lives. Returns whether `block` was the key's
    /// entry.
    pub(super) fn replace(
        &mut self,
        key: Key,
        block: &Arc<Block>,
        next: &Arc<Block>,
        lives: u8,
        birth: Birth,
    ) -> bool {
        let slot = self.find(key).and_then(|at| self.slots[at].as_mut());
        match slot.filter(|slot| Arc::ptr_eq(&slot.value, block)) {
            Some(slot) => {
                slot.value = next.clone();
                slot.birth = birth;
                slot.lives = slot.lives.saturating_sub(lives);
                true
            }
            None => false,
        }
    }
}
