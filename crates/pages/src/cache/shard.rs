//! One shard of the cache: a map into slots; and for metadata a CLOCK hand over them. Nothing here
//! does I/O, decodes or takes a lock.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use terrapin_base::PageId;
use terrapin_disk::prefetch_all;

use super::lanes::Home;
use super::table::Table;
use super::{CachedValue, Kind, Standing, Worth};
use crate::block::Block;

/// What an entry is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) page: PageId,
    pub(crate) kind: Kind,
    /// Number of the block or filter partition in its page; else 0.
    pub(crate) number: u32,
}

impl Key {
    /// Both words, mixed so that every bit of the result depends on all of them.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        let place = u64::from(self.number) << 2 | self.kind as u64;
        let mixed = (self.page.0 ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
    /// How often it is passed over before it goes.
    lives: u8,
}

/// When a block came into its lane, in slabs, and which lane that is.
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

    /// Whether it was before the oldest quarter ends.
    fn is_in(self, ends: &[u32; 2]) -> bool {
        self.0 >> 1 < ends[(self.0 & 1) as usize]
    }
}

/// What a use is worth: so many lives more, up to a bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) lives: u8,
    pub(super) most: u8,
    /// In each lane, where the oldest quarter ends; zeros for what lies in none.
    pub(super) aged: [u32; 2],
}

/// What a visit of the hand came to.
pub(crate) enum Turn {
    /// This entry left.
    Evicted(Entry<CachedValue>),
    /// Counters went down, nothing left yet.
    Nothing,
    /// There is no entry.
    Empty,
}

/// The steps of a lookup, as far as each visits memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Table,
    Slot,
    /// What it finds.
    Block,
    /// Where that has its records.
    Records,
}

/// An entry that left the cache.
pub(crate) struct Entry<V> {
    pub(crate) bytes: u32,
    /// Dropped by whoever took it, outside of the lock.
    pub(crate) _value: V,
}

/// What is known of a block whose home is to go.
pub(super) enum Resident {
    /// It is not cached, or elsewhere.
    Gone,
    /// It was not used, and left.
    Left(Entry<Arc<Block>>),
    /// It has that many lives.
    Lives(u8, Arc<Block>),
}

/// Entries whose keys fall into one shard.
pub(crate) struct Shard<V> {
    map: Table,
    slots: Vec<Option<CachedEntry<V>>>,
    vacant: Vec<u32>,
    hand: usize,
    pub(crate) hits: [u64; Kind::COUNT],
    pub(crate) misses: [u64; Kind::COUNT],
    /// First uses in the oldest quarter: of blocks that would be gone already, were there a quarter
    /// less memory for them.
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
    /// Entries.
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

    /// Finds an entry and uses it; counts the lookup, and a hit for so many `more`. O(1).
    #[inline]
    pub(super) fn get(&mut self, key: Key, used: Use, more: u64) -> Option<V> {
        let found = self.get_if_there(key, used);
        match found {
            Some(_) => self.hits[key.kind as usize] += more,
            None => self.misses[key.kind as usize] += 1,
        }
        found
    }

    /// As [`Shard::get`], without counting what is not there.
    #[inline]
    pub(super) fn get_if_there(&mut self, key: Key, used: Use) -> Option<V> {
        let slot = self.find(key).and_then(|at| self.slots[at].as_mut())?;
        if slot.lives == 0 && slot.birth.is_in(&used.aged) {
            self.rescues += 1;
        }
        slot.lives = slot.lives.max((slot.lives + used.lives).min(used.most));
        self.hits[key.kind as usize] += 1;
        Some(slot.value.clone())
    }

    /// Whether there is an entry.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.find(key).is_some()
    }

    /// Finds an entry, and nothing else.
    pub(crate) fn peek(&self, key: Key) -> Option<V> {
        let slot = self.find(key).and_then(|at| self.slots[at].as_ref())?;
        Some(slot.value.clone())
    }

    /// Adds an entry; returns the value that was there before instead, if one was.
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

    /// Takes the entries of pages for which `dead` holds, looking at the slots from `from` on, at
    /// most `steps` of them; returns where to go on.
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

    /// Takes everything out: what was in it, to be dropped outside of the lock. Figures stay.
    pub(crate) fn empty(&mut self) -> Self {
        let empty = Shard {
            hits: self.hits,
            misses: self.misses,
            rescues: self.rescues,
            ..Shard::default()
        };
        std::mem::replace(self, empty)
    }

    /// Gives memory of an emptied shard back.
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
    /// Moves the hand over at most `steps` slots (and one round), taking so many lives from each
    /// entry that it passes; the first without one leaves.
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

    /// Takes a life from each entry in one of `parts` of the slots; those without one leave.
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
    /// Asks for the memory that a lookup of a key visits at a step, which the one before asked for
    /// must be near.
    #[inline]
    pub(super) fn prefetch(&self, key: Key, step: Step) {
        let hash = key.hash() as u32;
        if step == Step::Table {
            return self.map.prefetch(hash);
        }
        // Mostly there is one of that hash, and with another's memory nothing is lost.
        let slot = self.map.find(hash, |_| true);
        let slot = slot.and_then(|at| self.slots.get(at as usize));
        match slot {
            Some(Some(slot)) if step == Step::Block => slot.value.prefetch(),
            Some(Some(slot)) if step == Step::Records => slot.value.prefetch_ends(),
            Some(slot) => prefetch_all(slot),
            None => {}
        }
    }

    /// Takes a block's lives; how it stood.
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

    /// Looks after a block whose home is to go; one without lives leaves, unless all are `spared`.
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

    /// Takes a block out, if it is this one.
    pub(super) fn remove(&mut self, key: Key, block: &Arc<Block>) -> Option<Entry<Arc<Block>>> {
        let at = self.find(key)?;
        let slot = self.slots[at].as_ref()?;
        if !Arc::ptr_eq(&slot.value, block) {
            return None;
        }
        self.take(at)
    }

    /// Puts another in a block's place, with so many lives less; whether it was there.
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
