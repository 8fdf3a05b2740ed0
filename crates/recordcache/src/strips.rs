//! Strips of atomic words. Each strip has a stamp that is odd while a thread rewrites the strip.
//!
//! An append does not change the stamp: a record is written before the table refers to it.

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, atomic};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::{Words, prefetch_all};

/// When a strip entered a queue, as a number in that queue, and which queue.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub(crate) number: u64,
    pub(crate) grown: bool,
}

/// The strips of all shards.
pub(crate) struct Strips {
    words: Words,
    /// Logarithm to base 2 of a strip's words.
    strip_shift: u32,
    /// For each strip its stamp and its birth.
    notes: Words,
    /// Number of strips that the address space has room for.
    most: u32,
    vacant: Mutex<Vacant>,
    taken: AtomicUsize,
    budget: Arc<Budget>,
}

/// Strips that belong to no shard.
struct Vacant {
    /// Strips that were released.
    given: Vec<u32>,
    /// The first strip that was never taken.
    fresh: u32,
}

/// Words of a strip's notes.
const NOTES: usize = 2;

impl Strips {
    /// Memory for `bytes` and address space for `bytes_max`, in strips of `strip_bytes`, a power of
    /// two of at least a page.
    ///
    /// The address space may be smaller if the system refuses. If the system refuses even `bytes`,
    /// there are no strips.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        bytes: usize,
        bytes_max: usize,
        strip_bytes: usize,
    ) -> Self {
        let notes = |strips: usize| strips * NOTES * 8;
        let count = |bytes: usize| bytes / strip_bytes;
        let words = Words::reserve(count(bytes) * strip_bytes, count(bytes_max) * strip_bytes);
        let notes = Words::reserve(notes(count(bytes)), notes(count(bytes_max)));
        let most = count(words.bytes_max()).min(notes.bytes_max() / (NOTES * 8));
        Strips {
            words,
            strip_shift: (strip_bytes / 8).ilog2(),
            notes,
            most: u32::try_from(most).unwrap_or(u32::MAX),
            vacant: Mutex::new(Vacant {
                given: Vec::new(),
                fresh: 0,
            }),
            taken: AtomicUsize::new(0),
            budget: budget.clone(),
        }
    }

    /// Most bytes that all strips together can have.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.most) * self.strip_bytes() as u64
    }

    /// Words of a strip.
    pub(crate) fn strip_words(&self) -> usize {
        1 << self.strip_shift
    }

    /// Most words of a record. Longer records would waste too much of a strip.
    pub(crate) fn record_words_max(&self) -> usize {
        self.strip_words() / 4
    }

    /// Bytes of all strips that are taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        (self.taken.load(Ordering::Relaxed) * self.strip_bytes()) as u64
    }

    pub(crate) fn strip_bytes(&self) -> usize {
        self.strip_words() * 8
    }

    /// The first word of a strip.
    pub(crate) fn start(&self, strip: u32) -> usize {
        (strip as usize) << self.strip_shift
    }

    /// The strip of a word.
    pub(crate) fn strip_of(&self, word: usize) -> u32 {
        (word >> self.strip_shift) as u32
    }

    /// The words from `word` to the end of its strip; none beyond the memory.
    #[inline]
    pub(crate) fn from(&self, word: usize) -> &[AtomicU64] {
        let end = ((word >> self.strip_shift) + 1) << self.strip_shift;
        self.words.all().get(word..end).unwrap_or_default()
    }

    /// Prefetches some words of a record, and the notes on its strip.
    #[inline]
    pub(crate) fn prefetch(&self, word: usize, words: usize) {
        if let Some(note) = self.note(word, 0) {
            prefetch_all(note);
        }
        let from = self.from(word);
        prefetch_all(&from[..words.min(from.len())]);
    }

    /// One of the notes on a word's strip; `None` beyond the memory.
    #[inline]
    fn note(&self, word: usize, which: usize) -> Option<&AtomicU64> {
        self.notes
            .all()
            .get((word >> self.strip_shift) * NOTES + which)
    }

    /// The stamp of a word's strip, before a read. `None` while a thread rewrites the strip.
    #[inline]
    pub(crate) fn stamp(&self, word: usize) -> Option<u64> {
        let stamp = self.note(word, 0)?.load(Ordering::Acquire);
        stamp.is_multiple_of(2).then_some(stamp)
    }

    /// Whether the strip was not rewritten since `stamp`, after a read.
    #[inline]
    pub(crate) fn unchanged(&self, word: usize, stamp: u64) -> bool {
        atomic::fence(Ordering::Acquire);
        self.note(word, 0)
            .is_some_and(|now| now.load(Ordering::Relaxed) == stamp)
    }

    /// The birth of a word's strip. A word beyond the memory has the highest number.
    #[inline]
    pub(crate) fn birth(&self, word: usize) -> Birth {
        let birth = self.note(word, 1);
        let birth = birth.map_or(u64::MAX, |birth| birth.load(Ordering::Relaxed));
        Birth {
            number: birth >> 1,
            grown: birth & 1 == 1,
        }
    }

    /// Sets the birth of a strip. Only the strip's owner calls this.
    pub(crate) fn set_birth(&self, strip: u32, birth: Birth) {
        let birth = birth.number << 1 | u64::from(birth.grown);
        self.notes_of(strip)[1].store(birth, Ordering::Relaxed);
    }

    fn notes_of(&self, strip: u32) -> &[AtomicU64; NOTES] {
        &self.notes.all().as_chunks().0[strip as usize]
    }

    /// Begins a rewrite of a strip. Only the strip's owner calls this.
    pub(crate) fn begin(&self, strip: u32) {
        self.notes_of(strip)[0].fetch_add(1, Ordering::Relaxed);
        atomic::fence(Ordering::Release);
    }

    /// Ends a rewrite of a strip.
    pub(crate) fn end(&self, strip: u32) {
        self.notes_of(strip)[0].fetch_add(1, Ordering::Release);
    }

    /// Takes a free strip and charges the budget.
    pub(crate) fn take(&self) -> Option<u32> {
        let strip = {
            let mut vacant = self.vacant.lock();
            match vacant.given.pop() {
                Some(strip) => strip,
                None => {
                    let fresh = vacant.fresh;
                    self.reach(fresh)?;
                    vacant.fresh += 1;
                    fresh
                }
            }
        };
        // A thread that sees words written from now on also sees the stamp that the previous owner
        // raised.
        atomic::fence(Ordering::Release);
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.budget
            .take(Purpose::Records, self.strip_bytes() as u64);
        Some(strip)
    }

    /// Provides memory for a strip. If it has none, the memory doubles, since the budget has grown.
    /// `None` without more addresses, or if the system refuses.
    fn reach(&self, strip: u32) -> Option<()> {
        let there = (self.words.all().len() >> self.strip_shift).min(self.most as usize);
        if (strip as usize) < there {
            return Some(());
        }
        let count = (2 * there).max(1).min(self.most as usize);
        let grown = (strip as usize) < count
            && self.notes.grow(count * NOTES * 8)
            && self.words.grow(count * self.strip_bytes());
        grown.then_some(())
    }

    /// Releases a strip and its memory. No table entry may refer to it.
    pub(crate) fn give(&self, strip: u32) {
        let start = self.start(strip);
        self.begin(strip);
        self.words.release(start..start + self.strip_words());
        self.end(strip);
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.budget
            .give(Purpose::Records, self.strip_bytes() as u64);
        self.vacant.lock().given.push(strip);
    }
}

impl Drop for Strips {
    fn drop(&mut self) {
        self.budget.give(Purpose::Records, self.taken_bytes());
    }
}
