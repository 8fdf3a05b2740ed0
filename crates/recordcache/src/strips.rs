//! Strips of words, each with a stamp that is odd while somebody rewrites it from its start.
//! Appending behind what a strip holds leaves the stamp as it is: what the table leads to is
//! written before the table says so.

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, atomic};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::Words;

/// When a strip came into a queue, counted in that queue, and which.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub(crate) number: u64,
    pub(crate) grown: bool,
}

/// The memory of all shards.
pub(crate) struct Strips {
    words: Words,
    /// Words of a strip are two to this.
    strip_shift: u32,
    /// Of each strip its stamp, and when it came into its queue.
    notes: Words,
    /// How many there are addresses for.
    most: u32,
    vacant: Mutex<Vacant>,
    taken: AtomicUsize,
    budget: Arc<Budget>,
}

/// Strips that are nobody's.
struct Vacant {
    /// Those that were given back.
    given: Vec<u32>,
    /// From this one on none was ever taken.
    fresh: u32,
}

/// Words of a strip's notes.
const NOTES: usize = 2;

impl Strips {
    /// Memory for `bytes` in strips of `strip_bytes`, which is a power of two and at least a
    /// page of memory; and addresses for `bytes_max`, as far as the system spares them; no strips
    /// where it refuses the former.
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

    /// The most bytes that all can have together.
    pub(crate) fn bytes_max(&self) -> u64 {
        u64::from(self.most) * self.strip_bytes() as u64
    }

    /// Words of one.
    pub(crate) fn strip_words(&self) -> usize {
        1 << self.strip_shift
    }

    /// The most words of a record: larger ones would not let a strip be used well.
    pub(crate) fn record_words_max(&self) -> usize {
        self.strip_words() / 4
    }

    /// Bytes of all that are taken.
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

    /// Which strip a word lies in.
    pub(crate) fn strip_of(&self, word: usize) -> u32 {
        (word >> self.strip_shift) as u32
    }

    /// From a word to the end of its strip; nothing for a word beyond all.
    #[inline]
    pub(crate) fn from(&self, word: usize) -> &[AtomicU64] {
        let end = ((word >> self.strip_shift) + 1) << self.strip_shift;
        self.words.all().get(word..end).unwrap_or_default()
    }

    /// A note of the strip of a word; none beyond all.
    #[inline]
    fn note(&self, word: usize, which: usize) -> Option<&AtomicU64> {
        self.notes
            .all()
            .get((word >> self.strip_shift) * NOTES + which)
    }

    /// A reader's first look at the strip of a word: none while it is rewritten.
    #[inline]
    pub(crate) fn stamp(&self, word: usize) -> Option<u64> {
        let stamp = self.note(word, 0)?.load(Ordering::Acquire);
        stamp.is_multiple_of(2).then_some(stamp)
    }

    /// A reader's last look: whether nothing was rewritten since the first.
    #[inline]
    pub(crate) fn unchanged(&self, word: usize, stamp: u64) -> bool {
        atomic::fence(Ordering::Acquire);
        self.note(word, 0)
            .is_some_and(|now| now.load(Ordering::Relaxed) == stamp)
    }

    /// When the strip of a word came into its queue; of a word beyond all, late.
    #[inline]
    pub(crate) fn birth(&self, word: usize) -> Birth {
        let birth = self.note(word, 1);
        let birth = birth.map_or(u64::MAX, |birth| birth.load(Ordering::Relaxed));
        Birth {
            number: birth >> 1,
            grown: birth & 1 == 1,
        }
    }

    /// Says when a strip came into its queue. Only its owner calls this.
    pub(crate) fn set_birth(&self, strip: u32, birth: Birth) {
        let birth = birth.number << 1 | u64::from(birth.grown);
        self.notes_of(strip)[1].store(birth, Ordering::Relaxed);
    }

    fn notes_of(&self, strip: u32) -> &[AtomicU64; NOTES] {
        &self.notes.all().as_chunks().0[strip as usize]
    }

    /// Before a strip is rewritten. Only its owner calls this.
    pub(crate) fn begin(&self, strip: u32) {
        self.notes_of(strip)[0].fetch_add(1, Ordering::Relaxed);
        atomic::fence(Ordering::Release);
    }

    /// After it was.
    pub(crate) fn end(&self, strip: u32) {
        self.notes_of(strip)[0].fetch_add(1, Ordering::Release);
    }

    /// A strip of nobody's, charged.
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
        // Whoever sees what is written here from now on sees the number that who gave the strip
        // up had raised, too.
        atomic::fence(Ordering::Release);
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.budget
            .take(Purpose::Records, self.strip_bytes() as u64);
        Some(strip)
    }

    /// Sees to it that a strip has memory, twice as much as there is where it has none: the
    /// budget has grown. None when there are no more addresses, or the system refuses.
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

    /// Gives a strip back with its memory. Nothing leads to it any more.
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
