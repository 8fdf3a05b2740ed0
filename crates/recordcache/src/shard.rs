//! One shard: a table, and two queues of strips that its records lie in, oldest first. Records
//! come into the *young* queue, a fifth of all; what was used by the time its strip's turn comes
//! moves to the *grown* one, where what memtables held and readers asked for comes at once; the
//! rest leaves: most of what is read once is not read again soon, and would keep others out for a
//! whole round. (S3-FIFO, Yang et al., SOSP 2023, without its ghosts: with zipfian requests and
//! room for a fifth of the records 6 % fewer misses than one queue.) Writers hold the shard's lock;
//! readers take none.

use std::collections::VecDeque;

use arc_swap::ArcSwap;
use terrapin_base::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, atomic};
use terrapin_base::{Budget, Purpose};

use crate::record::{self, Key, Sizes};
use crate::strips::{Birth, Strips};
use crate::table::{Entry, Table};

/// Of a recycled strip, what share of its words is kept at most, in quarters: the rest is room
/// for what comes.
const KEPT_QUARTERS: usize = 3;
/// One in so many strips is young.
const YOUNG_PART: usize = 5;

/// What a sealed memtable says of a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct SealedRecord<'v> {
    /// Its value; none when it was deleted.
    pub value: Option<&'v [u8]>,
    /// Whether somebody read it there.
    pub was_read: bool,
}

/// A shard.
pub(crate) struct Shard {
    table: ArcSwap<Table>,
    writer: Mutex<Writer>,
    /// Odd while somebody writes, and another even number afterwards.
    writes: AtomicU64,
    /// In each queue, strips born before this are the oldest quarter.
    aged: [AtomicU64; 2],
    /// Fills that were asked for while few of them come in.
    sparing: AtomicU64,
    /// Records of the oldest quarter that were used for the first time: they would be gone already,
    /// were the cache a quarter smaller.
    pub(crate) rescues: AtomicU64,
}

/// The queues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Young = 0,
    Grown = 1,
}

/// What only writers need.
#[derive(Default)]
pub(crate) struct Writer {
    queues: [Queue; 2],
    records: usize,
}

#[derive(Default)]
struct Queue {
    /// Oldest first; the last takes records.
    strips: VecDeque<u32>,
    /// Words used of the last.
    used: usize,
    /// Strips that came so far: the next one's birth.
    born: u64,
}

impl Writer {
    fn queue(&mut self, age: Age) -> &mut Queue {
        &mut self.queues[age as usize]
    }

    fn strips(&self, age: Age) -> usize {
        self.queues[age as usize].strips.len()
    }

    /// Strips that should be young: one at least.
    fn young_part(&self) -> usize {
        let all = self.strips(Age::Young) + self.strips(Age::Grown);
        all.div_ceil(YOUNG_PART)
    }
}

/// A shard whose lock is held.
pub(crate) struct Writing<'s> {
    table: &'s ArcSwap<Table>,
    strips: &'s Strips,
    budget: &'s Budget,
    writer: MutexGuard<'s, Writer>,
    writes: &'s AtomicU64,
    aged: &'s [AtomicU64; 2],
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
            aged: Default::default(),
            sparing: AtomicU64::new(0),
            rescues: AtomicU64::new(0),
        }
    }

    /// Finds a record and hands it to `take`; counts a use.
    #[inline]
    pub(crate) fn get<R>(
        &self,
        strips: &Strips,
        key: &Key<'_>,
        take: impl Fn(&[AtomicU64], Sizes) -> R,
    ) -> Option<R> {
        let table = self.table.load();
        for (at, entry) in table.candidates(key.hash) {
            let word = entry.word();
            let Some(stamp) = strips.stamp(word) else {
                continue;
            };
            if !table.still(at, entry) {
                continue;
            }
            let from = strips.from(word);
            let Some(sizes) = record::sizes_if(from, key) else {
                continue;
            };
            let taken = take(from, sizes);
            if !strips.unchanged(word, stamp) {
                return None;
            }
            table.used(at, entry);
            if entry.uses() == 0 && self.is_aged(strips, word) {
                self.rescues.fetch_add(1, Ordering::Relaxed);
            }
            return Some(taken);
        }
        None
    }

    fn is_aged(&self, strips: &Strips, word: usize) -> bool {
        let birth = strips.birth(word);
        birth.number < self.aged[usize::from(birth.grown)].load(Ordering::Relaxed)
    }

    /// Whether a record of that hash may be here; no lock. Unlike a lookup it never misses what is
    /// here: when somebody writes meanwhile, the answer is yes.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let writes = self.writes.load(Ordering::Acquire);
        if !writes.is_multiple_of(2) || self.table.load().candidates(hash).next().is_some() {
            return true;
        }
        atomic::fence(Ordering::Acquire);
        self.writes.load(Ordering::Relaxed) != writes
    }

    pub(crate) fn write<'s>(&'s self, strips: &'s Strips, budget: &'s Budget) -> Writing<'s> {
        self.writing(strips, budget, self.writer.lock())
    }

    /// As [`Shard::write`], unless somebody else writes.
    pub(crate) fn try_write<'s>(
        &'s self,
        strips: &'s Strips,
        budget: &'s Budget,
    ) -> Option<Writing<'s>> {
        let writer = self.writer.try_lock()?;
        Some(self.writing(strips, budget, writer))
    }

    fn writing<'s>(
        &'s self,
        strips: &'s Strips,
        budget: &'s Budget,
        writer: MutexGuard<'s, Writer>,
    ) -> Writing<'s> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        atomic::fence(Ordering::Release);
        Writing {
            writes: &self.writes,
            aged: &self.aged,
            table: &self.table,
            strips,
            budget,
            writer,
        }
    }

    /// One of so many calls says yes, about: two at once may count as one.
    pub(crate) fn is_turn(&self, of: u64) -> bool {
        let turn = self.sparing.load(Ordering::Relaxed);
        self.sparing.store(turn.wrapping_add(1), Ordering::Relaxed);
        turn.is_multiple_of(of)
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

    fn find(&self, table: &Table, key: &Key<'_>) -> Option<(usize, Entry, Sizes)> {
        table.candidates(key.hash).find_map(|(at, entry)| {
            let sizes = record::sizes_if(self.strips.from(entry.word()), key)?;
            Some((at, entry, sizes))
        })
    }

    /// Adds a record that is not here yet; one that `was_read` before is not tried out first.
    /// `may_grow` says whether another strip may be taken. O(1) amortised.
    pub(crate) fn fill(&mut self, key: &Key<'_>, value: &[u8], was_read: bool, may_grow: bool) {
        // It is the table until the end: making room for a record replaces none.
        let table = self.table.load();
        if self.find(&table, key).is_some() || self.writer.records >= Table::ROOM_MAX {
            return;
        }
        // While the cache grows all that comes is young.
        let age = match was_read && !may_grow {
            true => Age::Grown,
            false => Age::Young,
        };
        let Some(word) = self.append(age, key, value, may_grow) else {
            return;
        };
        let uses = u64::from(was_read && age == Age::Young);
        let entry = Entry::new(key.hash, word, uses);
        if self.writer.records >= table.room() {
            self.resize(table.room() / 4 * 5 + 1).insert(entry);
        } else {
            table.insert(entry);
        }
        self.writer.records += 1;
    }

    /// If the record is here, gives it the value that a memtable has, in its place if that is as
    /// long, or takes it out; whether it was. One that was read in the memtable counts as used.
    pub(crate) fn refresh(&mut self, key: &Key<'_>, sealed: SealedRecord<'_>) -> bool {
        let table = self.table.load();
        let Some((at, entry, held)) = self.find(&table, key) else {
            return false;
        };
        if let Some(value) = sealed.value
            && record::words(key, value.len()) == Some(held.words())
        {
            self.rewrite(entry, key, value);
            if sealed.was_read && entry.uses() == 0 {
                table.used(at, entry);
            }
            return true;
        }
        // Out first: what is recycled to make room must not lead to the old value again.
        self.remove(&table, at);
        if let Some(value) = sealed.value
            && let Some(word) = self.append(Age::Young, key, value, false)
        {
            let uses = entry.uses().max(u64::from(sealed.was_read));
            table.insert(Entry::new(key.hash, word, uses));
            self.writer.records += 1;
        }
        true
    }

    /// Writes a value over one that takes as many words. Readers of the strip miss meanwhile.
    fn rewrite(&self, entry: Entry, key: &Key<'_>, value: &[u8]) {
        let strip = self.strips.strip_of(entry.word());
        self.strips.begin(strip);
        record::write(self.strips.from(entry.word()), key, value);
        self.strips.end(strip);
    }

    fn remove(&mut self, table: &Table, at: usize) {
        table.remove(at);
        self.writer.records -= 1;
    }

    /// Writes a record behind the others of a queue; its first word.
    fn append(&mut self, age: Age, key: &Key<'_>, value: &[u8], may_grow: bool) -> Option<usize> {
        let words = record::words(key, value.len())?;
        if words > self.strips.record_words_max() {
            return None;
        }
        let word = self.room(age, words, may_grow)?;
        record::write(self.strips.from(word), key, value);
        Some(word)
    }

    /// Room for so many words behind the last record of a queue; the first of them.
    fn room(&mut self, age: Age, words: usize, may_grow: bool) -> Option<usize> {
        let queue = self.writer.queue(age);
        if queue.strips.is_empty() || queue.used + words > self.strips.strip_words() {
            match age {
                Age::Young => self.open_young(may_grow)?,
                Age::Grown => self.open_grown()?,
            }
        }
        let queue = self.writer.queue(age);
        let word = self.strips.start(*queue.strips.back()?) + queue.used;
        queue.used += words;
        // A header of ones ends a strip that is not full.
        if let Some(next) = self.strips.from(word).get(words) {
            next.store(record::END, Ordering::Relaxed);
        }
        Some(word)
    }

    /// Makes the last young strip one with room: another, or the oldest after what was used there
    /// has moved.
    fn open_young(&mut self, may_grow: bool) -> Option<()> {
        let taken = may_grow.then(|| self.strips.take()).flatten();
        let (strip, kept) = match taken {
            Some(strip) => {
                self.strips.from(self.strips.start(strip))[0].store(record::END, Ordering::Relaxed);
                (strip, 0)
            }
            None => self.vacate()?,
        };
        self.enqueue(Age::Young, strip, kept);
        Some(())
    }

    /// Takes a strip out of its queue for the young ones, and says how many of its words are
    /// still used.
    fn vacate(&mut self) -> Option<(u32, usize)> {
        self.come_of_age();
        let few = self.writer.strips(Age::Young) < self.writer.young_part();
        let from = if few { Age::Grown } else { Age::Young };
        let oldest = self.writer.queue(from).strips.pop_front()?;
        // A lone strip keeps what was used: there is no other to move it to.
        if self.writer.strips(Age::Grown) == 0 {
            return Some((oldest, self.recycle(oldest, self.kept_max())));
        }
        self.evacuate(oldest, self.kept_max());
        // Nothing leads there any more.
        self.strips.begin(oldest);
        self.strips.from(self.strips.start(oldest))[0].store(record::END, Ordering::Relaxed);
        self.strips.end(oldest);
        Some((oldest, 0))
    }

    /// While the cache grew, all that came was young: the oldest of what is too much of it are
    /// grown now.
    fn come_of_age(&mut self) {
        while self.writer.strips(Age::Young) > self.writer.young_part() {
            let Some(oldest) = self.writer.queue(Age::Young).strips.pop_front() else {
                return;
            };
            self.enqueue(Age::Grown, oldest, self.strips.strip_words());
        }
    }

    /// Words of a strip that are kept at most.
    fn kept_max(&self) -> usize {
        self.strips.strip_words() / 4 * KEPT_QUARTERS
    }

    /// Makes the last grown strip one with room: the oldest, where what was used stays.
    fn open_grown(&mut self) -> Option<()> {
        self.come_of_age();
        let oldest = self.writer.queue(Age::Grown).strips.pop_front()?;
        let kept = self.recycle(oldest, self.kept_max());
        self.enqueue(Age::Grown, oldest, kept);
        Some(())
    }

    /// Puts a strip, of which so many words are used, in as the youngest of a queue.
    fn enqueue(&mut self, age: Age, strip: u32, used: usize) {
        let queue = self.writer.queue(age);
        let birth = Birth {
            number: queue.born,
            grown: age == Age::Grown,
        };
        queue.born += 1;
        queue.used = used;
        queue.strips.push_back(strip);
        self.strips.set_birth(strip, birth);
        self.tell_age(age);
    }

    /// Births in a queue follow each other, so its oldest quarter is all below one.
    fn tell_age(&self, age: Age) {
        let queue = &self.writer.queues[age as usize];
        let younger = queue.strips.len() * 3 / 4;
        let aged = queue.born.saturating_sub(younger as u64);
        self.aged[age as usize].store(aged, Ordering::Relaxed);
    }

    /// Moves what was used to the front of a strip, at most so many words, with a use less, and
    /// takes the rest out of the table. Returns the words that are kept.
    fn recycle(&mut self, strip: u32, kept_max: usize) -> usize {
        let table = self.table.load_full();
        let start = self.strips.start(strip);
        let memory = self.strips.from(start);
        self.strips.begin(strip);
        let mut to = 0;
        for (from, hash, words) in records(memory) {
            let Some((at, entry)) = find_at(&table, hash, start + from) else {
                continue;
            };
            if entry.uses() > 0 && to + words <= kept_max {
                for word in 0..words {
                    let moved = memory[from + word].load(Ordering::Relaxed);
                    memory[to + word].store(moved, Ordering::Relaxed);
                }
                table.set(at, Entry::new(hash, start + to, entry.uses() - 1));
                to += words;
            } else {
                self.remove(&table, at);
            }
        }
        if let Some(next) = memory.get(to) {
            next.store(record::END, Ordering::Relaxed);
        }
        self.strips.end(strip);
        to
    }

    /// Moves what was used out of a strip that is in no queue any more, at most so many words,
    /// with a use less, to the grown ones, where others may have to go for it; and takes the rest
    /// out of the table.
    fn evacuate(&mut self, strip: u32, kept_max: usize) {
        let table = self.table.load_full();
        let start = self.strips.start(strip);
        let memory = self.strips.from(start);
        let mut kept = 0;
        for (from, hash, words) in records(memory) {
            let used = find_at(&table, hash, start + from).is_some_and(|(_, p)| p.uses() > 0);
            let room = (used && kept + words <= kept_max)
                .then(|| self.room(Age::Grown, words, false))
                .flatten();
            // Making room moved places in the table.
            let Some((at, entry)) = find_at(&table, hash, start + from) else {
                continue;
            };
            let Some(to) = room else {
                self.remove(&table, at);
                continue;
            };
            for (from, to) in memory[from..from + words].iter().zip(self.strips.from(to)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            table.set(at, Entry::new(hash, to, entry.uses().saturating_sub(1)));
            kept += words;
        }
    }

    /// Gives the oldest strip back, and of what it held what was not used; `false` when there is
    /// none.
    pub(crate) fn give_strip(&mut self) -> bool {
        let many = self.writer.strips(Age::Young) > self.writer.young_part();
        let none = self.writer.strips(Age::Grown) == 0;
        let age = if many || none { Age::Young } else { Age::Grown };
        let Some(oldest) = self.writer.queue(age).strips.pop_front() else {
            return false;
        };
        self.evacuate(oldest, self.kept_max());
        self.strips.give(oldest);
        self.tell_age(age);
        // An empty shard holds nothing but the smallest table.
        let empty = self.writer.queues.iter().all(|q| q.strips.is_empty());
        let room = self.table.load().room();
        if empty || room > 2 * self.writer.records.max(64) {
            self.resize(self.writer.records / 4 * 5);
        }
        true
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.table.load().clear();
        self.writer.records = 0;
        for queue in &mut self.writer.queues {
            for strip in queue.strips.drain(..) {
                self.strips.give(strip);
            }
        }
        self.resize(0);
    }

    /// Another table with room for so many records and the same content.
    fn resize(&mut self, records: usize) -> Arc<Table> {
        let next = Arc::new(Table::with_room(records.max(self.writer.records + 1)));
        let last = self.table.load_full();
        for entry in last.taken() {
            next.insert(entry);
        }
        self.budget.take(Purpose::Records, next.bytes());
        self.budget.give(Purpose::Records, last.bytes());
        self.table.store(next.clone());
        // Who still reads the last table must not believe places that nobody keeps any more.
        last.clear();
        next
    }
}

/// The records from the start of a strip on: where each begins there, its hash, its words.
fn records(memory: &[AtomicU64]) -> impl Iterator<Item = (usize, u64, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let header = memory.get(next)?.load(Ordering::Relaxed);
        if header == record::END {
            return None;
        }
        let (from, words) = (next, Sizes::of(header).words());
        next += words;
        Some((from, record::hash(&memory[from..]), words))
    })
}

/// What leads to the record at that word.
fn find_at(table: &Table, hash: u64, word: usize) -> Option<(usize, Entry)> {
    table
        .candidates(hash)
        .find(|(_, entry)| entry.word() == word)
}
