//! The table that finds records by hash: linear probing over slots, each an atomic word.
//!
//! A slot is vacant or holds an [`Entry`]: the first bits of the hash, the number of uses, and the
//! record's location. The first bits determine where a search begins, so the table never reads a
//! record. There is one writer at a time, and any number of readers.
//!
//! A reader may miss an entry that a writer is moving. It never finds a wrong record: after the
//! strip's stamp it checks the slot again, and needs both checks.

use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_disk::prefetch_all;

const LOCATION_BITS: u32 = 38;
/// Words of memory that entries can refer to: 2 TiB. An entry of zero is a vacant slot.
pub(crate) const WORDS_MAX: u64 = (1 << LOCATION_BITS) - 1;
const USES_BITS: u32 = 2;
/// An entry has the bits of the hash from this one on.
pub(crate) const TAG_SHIFT: u32 = LOCATION_BITS + USES_BITS;
const USES_MASK: u64 = ((1 << USES_BITS) - 1) << LOCATION_BITS;
/// The most uses that an entry counts.
pub(crate) const USES_MAX: u64 = (1 << USES_BITS) - 1;
const TAG_BITS: u32 = u64::BITS - TAG_SHIFT;
const SLOTS_MIN: usize = 64;
/// Most slots: as many as the hash bits of an entry can tell apart.
const SLOTS_MAX: usize = 1 << TAG_BITS;

/// The content of a slot that is not vacant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) fn new(hash: u64, word: usize, uses: u64) -> Self {
        Entry(
            hash >> TAG_SHIFT << TAG_SHIFT
                | uses.min(USES_MAX) << LOCATION_BITS
                | (word as u64 + 1),
        )
    }

    /// The first word of the record.
    #[inline]
    pub(crate) fn word(self) -> usize {
        ((self.0 & ((1 << LOCATION_BITS) - 1)) as usize).wrapping_sub(1)
    }

    pub(crate) fn uses(self) -> u64 {
        (self.0 & USES_MASK) >> LOCATION_BITS
    }

    /// The same entry with another number of uses.
    pub(crate) fn with_uses(self, uses: u64) -> Self {
        Entry(self.0 & !USES_MASK | uses.min(USES_MAX) << LOCATION_BITS)
    }

    #[inline]
    fn has_tag_of(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == hash >> TAG_SHIFT
    }
}

/// The table. At most three quarters of its slots hold entries.
pub(crate) struct Table {
    slots: Box<[AtomicU64]>,
}

impl Table {
    /// Most records of a table.
    pub(crate) const ROOM_MAX: usize = SLOTS_MAX * 3 / 4;

    /// A table with room for `records`, or the largest table.
    pub(crate) fn with_room(records: usize) -> Self {
        let slots = (records * 4 / 3 + 1).clamp(SLOTS_MIN, SLOTS_MAX);
        Table {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Number of records that the table has room for.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() * 3 / 4
    }

    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    /// The slot where the search for a hash begins. Its position in the table is in proportion to
    /// the hash's first bits, which the [`Entry`] has too.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> TAG_SHIFT) * self.slots.len() as u64) >> TAG_BITS) as usize
    }

    /// Prefetches the slot where the search for a hash begins.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_all(&self.slots[self.home(hash)]);
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// Number of steps from a slot to a later one.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }

    /// The entry of a slot; `None` if the slot is vacant.
    #[inline]
    fn at(&self, at: usize) -> Option<Entry> {
        let entry = self.slots[at].load(Ordering::Acquire);
        (entry != 0).then_some(Entry(entry))
    }

    /// The entries that may have that hash, with their slots, in the order of probing.
    #[inline]
    pub(crate) fn candidates(&self, hash: u64) -> impl Iterator<Item = (usize, Entry)> {
        let mut next = self.home(hash);
        (0..self.slots.len())
            .map_while(move |_| {
                let at = next;
                next = self.next(at);
                self.at(at).map(|entry| (at, entry))
            })
            .filter(move |(_, entry)| entry.has_tag_of(hash))
    }

    /// Whether a slot still refers to the same record.
    ///
    /// An entry may be removed and inserted again with the same bits. Then this load orders the
    /// reads of the record after the new record's writes: the strip's stamp does not change with
    /// appends. A processor that keeps loads in order needs no such load. The model checker keeps
    /// them in order too, so it cannot find a fault here.
    #[inline]
    pub(crate) fn still(&self, at: usize, entry: Entry) -> bool {
        (self.slots[at].load(Ordering::Acquire) ^ entry.0) & !USES_MASK == 0
    }

    /// Counts a use, unless the slot changed or the count is at its maximum.
    #[inline]
    pub(crate) fn used(&self, at: usize, entry: Entry) {
        let uses = entry.uses();
        if uses < USES_MAX {
            let next = entry.with_uses(uses + 1);
            let _ = self.slots[at].compare_exchange(
                entry.0,
                next.0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Replaces the entry of a slot. Only for writers.
    pub(crate) fn set(&self, at: usize, entry: Entry) {
        self.slots[at].store(entry.0, Ordering::Release);
    }

    /// Adds an entry. The table must have room. Only for writers.
    pub(crate) fn insert(&self, entry: Entry) {
        let mut at = self.home(entry.0);
        while self.at(at).is_some() {
            at = self.next(at);
        }
        self.set(at, entry);
    }

    /// Removes the entry of a slot, and moves later entries up. Only for writers.
    pub(crate) fn remove(&self, mut vacant: usize) {
        let mut at = vacant;
        loop {
            at = self.next(at);
            let Some(entry) = self.at(at) else { break };
            let home = self.home(entry.0);
            // The entry may move if its search passes the vacant slot.
            if self.steps(home, at) >= self.steps(vacant, at) {
                self.set(vacant, entry);
                vacant = at;
            }
        }
        self.slots[vacant].store(0, Ordering::Release);
    }

    /// All entries. Only for writers.
    pub(crate) fn taken(&self) -> impl Iterator<Item = Entry> {
        (0..self.slots.len()).filter_map(|at| self.at(at))
    }

    /// Removes all entries, for readers that still use the table. Only for writers.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            slot.store(0, Ordering::Release);
        }
    }
}
