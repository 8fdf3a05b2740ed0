//! One shard: a table, and the segments that its records lie in, oldest first. Writers hold the shard's lock; readers take none.

use std::collections::VecDeque;

use arc_swap::ArcSwap;
use terrapin_base::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, atomic};
use terrapin_base::{Budget, Purpose};

use crate::entry::{self, Key, Sizes};
use crate::segments::Segments;
use crate::table::{Place, Table};

/// Of a recycled segment, what share of its words is kept at most, in quarters: the rest is room for what comes.
const KEPT_QUARTERS: usize = 3;

/// A shard.
pub(crate) struct Shard {
    table: ArcSwap<Table>,
    writer: Mutex<Writer>,
    /// Odd while somebody writes, and another even number afterwards.
    writes: AtomicU64,
    /// Segments born before this are the oldest quarter.
    aged: AtomicU64,
    pub(crate) hits: AtomicU64,
    /// Records of the oldest quarter that were used for the first time: they would be gone already, were the cache a quarter smaller.
    pub(crate) rescues: AtomicU64,
}

/// What only writers need.
#[derive(Default)]
pub(crate) struct Writer {
    /// Oldest first; the last takes new records.
    queue: VecDeque<u32>,
    /// Words used of the last.
    used: usize,
    records: usize,
    /// Segments opened so far: the next one's birth.
    born: u64,
}

/// A shard whose lock is held.
pub(crate) struct Writing<'s> {
    table: &'s ArcSwap<Table>,
    segments: &'s Segments,
    budget: &'s Budget,
    writer: MutexGuard<'s, Writer>,
    writes: &'s AtomicU64,
    aged: &'s AtomicU64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.writes.fetch_add(1, Ordering::Release);
    }
}

impl Shard {
    pub(crate) fn new(budget: &Budget) -> Self {
        let table = Table::with_room(0);
        budget.take(Purpose::Records, table.bytes());
        Shard {
            table: ArcSwap::from_pointee(table),
            writer: Mutex::default(),
            writes: AtomicU64::new(0),
            aged: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            rescues: AtomicU64::new(0),
        }
    }

    /// Finds a record and hands it to `take`; counts a use.
    #[inline]
    pub(crate) fn get<R>(
        &self,
        segments: &Segments,
        key: &Key<'_>,
        take: impl Fn(&[AtomicU64], Sizes) -> R,
    ) -> Option<R> {
        let table = self.table.load();
        for (at, place) in table.candidates(key.hash) {
            let word = place.word();
            let Some(stamp) = segments.stamp(word) else {
                continue;
            };
            if !table.still(at, place) {
                continue;
            }
            let from = segments.from(word);
            let Some(sizes) = entry::sizes_if(from, key) else {
                continue;
            };
            let taken = take(from, sizes);
            if !segments.unchanged(word, stamp) {
                return None;
            }
            table.used(at, place);
            self.hits.fetch_add(1, Ordering::Relaxed);
            if place.uses() == 0 && segments.birth(word) < self.aged.load(Ordering::Relaxed) {
                self.rescues.fetch_add(1, Ordering::Relaxed);
            }
            return Some(taken);
        }
        None
    }

    /// Whether a record of that hash may be here; no lock. Unlike a lookup it never misses what is here: when somebody writes
    /// meanwhile, the answer is yes.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let writes = self.writes.load(Ordering::Acquire);
        if !writes.is_multiple_of(2) || self.table.load().candidates(hash).next().is_some() {
            return true;
        }
        atomic::fence(Ordering::Acquire);
        self.writes.load(Ordering::Relaxed) != writes
    }

    pub(crate) fn write<'s>(&'s self, segments: &'s Segments, budget: &'s Budget) -> Writing<'s> {
        self.writing(segments, budget, self.writer.lock())
    }

    /// As [`Shard::write`], unless somebody else writes.
    pub(crate) fn try_write<'s>(
        &'s self,
        segments: &'s Segments,
        budget: &'s Budget,
    ) -> Option<Writing<'s>> {
        let writer = self.writer.try_lock()?;
        Some(self.writing(segments, budget, writer))
    }

    fn writing<'s>(
        &'s self,
        segments: &'s Segments,
        budget: &'s Budget,
        writer: MutexGuard<'s, Writer>,
    ) -> Writing<'s> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        atomic::fence(Ordering::Release);
        Writing {
            writes: &self.writes,
            aged: &self.aged,
            table: &self.table,
            segments,
            budget,
            writer,
        }
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.load().bytes()
    }
}

impl Writing<'_> {
    /// Records here.
    pub(crate) fn records(&self) -> usize {
        self.writer.records
    }

    fn find(&self, table: &Table, key: &Key<'_>) -> Option<(usize, Place)> {
        table
            .candidates(key.hash)
            .find(|(_, place)| entry::sizes_if(self.segments.from(place.word()), key).is_some())
    }

    /// Adds a record that is not here yet. `may_grow` says whether another segment may be taken. O(1) amortised.
    pub(crate) fn fill(&mut self, key: &Key<'_>, value: &[u8], may_grow: bool) {
        let table = self.table.load();
        if self.find(&table, key).is_some() {
            return;
        }
        drop(table);
        let Some(word) = self.append(key, value, may_grow) else {
            return;
        };
        let mut table = self.table.load_full();
        if self.writer.records >= table.room() {
            table = self.resize(table.room() + 1);
        }
        table.insert(key.hash, Place::new(key.hash, word, 0));
        self.writer.records += 1;
    }

    /// If the record is here, gives it another value, or takes it out.
    pub(crate) fn refresh(&mut self, key: &Key<'_>, value: Option<&[u8]>) {
        let table = self.table.load_full();
        let Some((at, place)) = self.find(&table, key) else {
            return;
        };
        // Out first: what is recycled to make room must not lead to the old value again.
        self.remove(&table, at);
        if let Some(value) = value
            && let Some(word) = self.append(key, value, false)
        {
            table.insert(key.hash, Place::new(key.hash, word, place.uses()));
            self.writer.records += 1;
        }
    }

    fn remove(&mut self, table: &Table, at: usize) {
        table.remove(at, |place| self.hash_of(place));
        self.writer.records -= 1;
    }

    fn hash_of(&self, place: Place) -> u64 {
        let from = self.segments.from(place.word());
        from.get(1).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Writes a record behind the others; its first word.
    fn append(&mut self, key: &Key<'_>, value: &[u8], may_grow: bool) -> Option<usize> {
        let words = entry::words(key.bytes.len(), value.len())?;
        // Larger ones would not let a segment be used well.
        if words > self.segments.segment_words() / 4 {
            return None;
        }
        let word = self.room(words, may_grow)?;
        entry::write(self.segments.from(word), key, value);
        Some(word)
    }

    /// Room for so many words behind the last record; the first of them.
    fn room(&mut self, words: usize, may_grow: bool) -> Option<usize> {
        if self.writer.queue.is_empty() || self.writer.used + words > self.segments.segment_words()
        {
            self.open_segment(may_grow)?;
        }
        let segment = *self.writer.queue.back()?;
        let word = self.segments.start(segment) + self.writer.used;
        self.writer.used += words;
        // A header of zeros ends a segment that is not full.
        if let Some(next) = self.segments.from(word).get(words) {
            next.store(END, Ordering::Relaxed);
        }
        Some(word)
    }

    /// Makes the last segment one with room.
    fn open_segment(&mut self, may_grow: bool) -> Option<()> {
        let taken = may_grow.then(|| self.segments.take()).flatten();
        if let Some(segment) = taken {
            self.queue(segment);
            self.writer.used = 0;
            self.segments.from(self.segments.start(segment))[0].store(END, Ordering::Relaxed);
            return Some(());
        }
        let oldest = self.writer.queue.pop_front()?;
        let kept = self.recycle(oldest, self.segments.segment_words() / 4 * KEPT_QUARTERS);
        self.queue(oldest);
        self.writer.used = kept;
        Some(())
    }

    /// Puts a segment in as the youngest.
    fn queue(&mut self, segment: u32) {
        self.segments.set_birth(segment, self.writer.born);
        self.writer.born += 1;
        self.writer.queue.push_back(segment);
        self.age();
    }

    /// Births in the queue follow each other, so the oldest quarter is all below one.
    fn age(&self) {
        let young = self.writer.queue.len() / 4 * 3;
        self.aged
            .store(self.writer.born - young as u64, Ordering::Relaxed);
    }

    /// Moves what was used to the front of a segment, at most so many words, with a use less, and takes the rest out of the table.
    /// Returns the words that are kept.
    fn recycle(&mut self, segment: u32, kept_max: usize) -> usize {
        let table = self.table.load_full();
        let start = self.segments.start(segment);
        let memory = self.segments.from(start);
        self.segments.begin(segment);
        let mut to = 0;
        for (from, hash, words) in records(memory) {
            let Some((at, place)) = find_at(&table, hash, start + from) else {
                continue;
            };
            if place.uses() > 0 && to + words <= kept_max {
                for word in 0..words {
                    let moved = memory[from + word].load(Ordering::Relaxed);
                    memory[to + word].store(moved, Ordering::Relaxed);
                }
                table.set(at, Place::new(hash, start + to, place.uses() - 1));
                to += words;
            } else {
                self.remove(&table, at);
            }
        }
        if let Some(next) = memory.get(to) {
            next.store(END, Ordering::Relaxed);
        }
        self.segments.end(segment);
        to
    }

    /// Moves what was used out of a segment that is in the queue no more, at most so many words, with a use less, to the youngest, where others
    /// may have to go for it; and takes the rest out of the table.
    fn evacuate(&mut self, segment: u32, kept_max: usize) {
        let table = self.table.load_full();
        let start = self.segments.start(segment);
        let memory = self.segments.from(start);
        let mut kept = 0;
        for (from, hash, words) in records(memory) {
            let used = find_at(&table, hash, start + from).is_some_and(|(_, p)| p.uses() > 0);
            let room = (used && kept + words <= kept_max && !self.writer.queue.is_empty())
                .then(|| self.room(words, false))
                .flatten();
            // Making room moved places in the table.
            let Some((at, place)) = find_at(&table, hash, start + from) else {
                continue;
            };
            let Some(to) = room else {
                self.remove(&table, at);
                continue;
            };
            for (from, to) in memory[from..from + words]
                .iter()
                .zip(self.segments.from(to))
            {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            table.set(at, Place::new(hash, to, place.uses().saturating_sub(1)));
            kept += words;
        }
    }

    /// Gives the oldest segment back, and of what it held what was not used; `false` when there is none.
    pub(crate) fn give_segment(&mut self) -> bool {
        let Some(oldest) = self.writer.queue.pop_front() else {
            return false;
        };
        self.evacuate(oldest, self.segments.segment_words() / 4 * KEPT_QUARTERS);
        self.segments.give(oldest);
        self.age();
        // An empty shard holds nothing but the smallest table.
        let empty = self.writer.queue.is_empty();
        if empty {
            self.writer.used = 0;
        }
        let room = self.table.load().room();
        if empty || room > 8 * self.writer.records.max(64) {
            self.resize(self.writer.records * 2);
        }
        true
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.table.load().clear();
        self.writer.records = 0;
        self.writer.used = 0;
        for segment in self.writer.queue.drain(..) {
            self.segments.give(segment);
        }
        self.resize(0);
    }

    /// Another table with room for so many records and the same content.
    fn resize(&mut self, records: usize) -> Arc<Table> {
        let next = Arc::new(Table::with_room(records.max(self.writer.records + 1)));
        let last = self.table.load_full();
        for place in last.taken() {
            next.insert(self.hash_of(place), place);
        }
        self.budget.take(Purpose::Records, next.bytes());
        self.budget.give(Purpose::Records, last.bytes());
        self.table.store(next.clone());
        // Who still reads the last table must not believe places that nobody keeps any more.
        last.clear();
        next
    }
}

/// The header that ends a segment's records: no record is of a keyspace of that number.
const END: u64 = u64::MAX;

/// The records from the start of a segment on: where each begins there, its hash, its words.
fn records(memory: &[AtomicU64]) -> impl Iterator<Item = (usize, u64, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let header = memory.get(next)?.load(Ordering::Relaxed);
        if header == END {
            return None;
        }
        let (from, words) = (next, Sizes::of(header).words());
        next += words;
        Some((from, memory[from + 1].load(Ordering::Relaxed), words))
    })
}

/// What leads to the record at that word.
fn find_at(table: &Table, hash: u64, word: usize) -> Option<(usize, Place)> {
    table
        .candidates(hash)
        .find(|(_, place)| place.word() == word)
}
