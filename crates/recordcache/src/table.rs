//! Finds records by hash: linear probing over atomic words, each the first bits of the hash, how
//! often the record was used, and where it lies. Where a search begins follows from those bits
//! alone, so nothing here visits a record. One writer at a time; readers at any time. A reader may
//! miss what a writer is moving, and never finds what is not there: it looks at the place again
//! after it has looked at the strip's stamp, and then believes neither without the other.

use terrapin_base::sync::{AtomicU64, Ordering};

const LOCATION_BITS: u32 = 38;
/// Words of memory that places can lead to: 2 TiB. A place of zero is a vacant one.
pub(crate) const WORDS_MAX: u64 = (1 << LOCATION_BITS) - 1;
const USES_BITS: u32 = 2;
/// A place has the bits of the hash from this one on.
pub(crate) const TAG_SHIFT: u32 = LOCATION_BITS + USES_BITS;
const USES_MASK: u64 = ((1 << USES_BITS) - 1) << LOCATION_BITS;
/// The most uses that count.
pub(crate) const USES_MAX: u64 = (1 << USES_BITS) - 1;
const TAG_BITS: u32 = u64::BITS - TAG_SHIFT;
const SLOTS_MIN: usize = 64;
/// As many as the tag can tell apart.
const SLOTS_MAX: usize = 1 << TAG_BITS;

/// What stands at a place that is taken.
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

    /// Where the record lies.
    #[inline]
    pub(crate) fn word(self) -> usize {
        ((self.0 & ((1 << LOCATION_BITS) - 1)) as usize).wrapping_sub(1)
    }

    pub(crate) fn uses(self) -> u64 {
        (self.0 & USES_MASK) >> LOCATION_BITS
    }

    /// The same record with so many uses.
    pub(crate) fn with_uses(self, uses: u64) -> Self {
        Entry(self.0 & !USES_MASK | uses.min(USES_MAX) << LOCATION_BITS)
    }

    #[inline]
    fn has_tag_of(self, hash: u64) -> bool {
        self.0 >> TAG_SHIFT == hash >> TAG_SHIFT
    }
}

/// The table. At most three quarters of its places are taken.
pub(crate) struct Table {
    slots: Box<[AtomicU64]>,
}

impl Table {
    /// Most records that a table has room for.
    pub(crate) const ROOM_MAX: usize = SLOTS_MAX * 3 / 4;

    /// With room for so many records, or as many as a table can have.
    pub(crate) fn with_room(records: usize) -> Self {
        let slots = (records * 4 / 3 + 1).clamp(SLOTS_MIN, SLOTS_MAX);
        Table {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// How many records it has room for.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() * 3 / 4
    }

    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    /// Where the search for a hash begins: as far into the table as its first bits, which its
    /// [`Entry`] has too, are into all that there are.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> TAG_SHIFT) * self.slots.len() as u64) >> TAG_BITS) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    /// Steps from a place to a later one.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.slots.len() - from
        }
    }

    /// What stands at a place.
    #[inline]
    fn at(&self, at: usize) -> Option<Entry> {
        let entry = self.slots[at].load(Ordering::Acquire);
        (entry != 0).then_some(Entry(entry))
    }

    /// The places of records that may have that hash, in the order of probing.
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

    /// Whether a place still leads to the same record. One that was taken out and put in again with
    /// the same bits does: then the record's words are those that were written before this look,
    /// not before the first one, since a strip's stamp does not tell of what is appended. (A
    /// processor that keeps loads in order does so without being asked; so does the checker of
    /// interleavings, which therefore cannot miss this.)
    #[inline]
    pub(crate) fn still(&self, at: usize, entry: Entry) -> bool {
        (self.slots[at].load(Ordering::Acquire) ^ entry.0) & !USES_MASK == 0
    }

    /// Counts a use of what stands there, unless it changed, or was used often already.
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

    /// Replaces what stands at a place. Writers only.
    pub(crate) fn set(&self, at: usize, entry: Entry) {
        self.slots[at].store(entry.0, Ordering::Release);
    }

    /// Adds a record; there is room. Writers only.
    pub(crate) fn insert(&self, entry: Entry) {
        let mut at = self.home(entry.0);
        while self.at(at).is_some() {
            at = self.next(at);
        }
        self.set(at, entry);
    }

    /// Empties a place; what stood behind it moves up. Writers only.
    pub(crate) fn remove(&self, mut vacant: usize) {
        let mut at = vacant;
        loop {
            at = self.next(at);
            let Some(entry) = self.at(at) else { break };
            let home = self.home(entry.0);
            // It may stand at the vacant place if its search comes by there.
            if self.steps(home, at) >= self.steps(vacant, at) {
                self.set(vacant, entry);
                vacant = at;
            }
        }
        self.slots[vacant].store(0, Ordering::Release);
    }

    /// Everything in it. Writers only.
    pub(crate) fn taken(&self) -> impl Iterator<Item = Entry> {
        (0..self.slots.len()).filter_map(|at| self.at(at))
    }

    /// Empties it, for the readers that still have it. Writers only.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            slot.store(0, Ordering::Release);
        }
    }
}
