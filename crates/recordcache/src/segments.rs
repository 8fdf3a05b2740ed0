//! Segments of words, each with a stamp that is odd while somebody rewrites it from its start. Appending behind what a segment holds leaves
//! the stamp as it is: what the table leads to is written before the table says so.

use terrapin_base::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, atomic};
use terrapin_base::{Budget, Purpose};
use terrapin_disk::Words;

/// When a segment came into a queue, counted in that queue, and which.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    pub(crate) number: u64,
    pub(crate) grown: bool,
}

/// The memory of all shards.
pub(crate) struct Segments {
    words: Words,
    /// Words of a segment are two to this.
    segment_shift: u32,
    stamps: Box<[AtomicU64]>,
    /// When each came into its queue.
    births: Box<[AtomicU64]>,
    vacant: Mutex<Vec<u32>>,
    taken: AtomicUsize,
    budget: Arc<Budget>,
}

impl Segments {
    /// Address space for `bytes` in segments of `segment_bytes`, which is a power of two and at least a page of memory.
    pub(crate) fn new(budget: &Arc<Budget>, bytes: usize, segment_bytes: usize) -> Self {
        let count = bytes / segment_bytes;
        let segments = u32::try_from(count).unwrap_or(u32::MAX);
        Segments {
            words: Words::reserve(segments as usize * segment_bytes),
            segment_shift: (segment_bytes / 8).ilog2(),
            stamps: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            births: (0..segments).map(|_| AtomicU64::new(0)).collect(),
            vacant: Mutex::new((0..segments).rev().collect()),
            taken: AtomicUsize::new(0),
            budget: budget.clone(),
        }
    }

    /// Words of one.
    pub(crate) fn segment_words(&self) -> usize {
        1 << self.segment_shift
    }

    /// Bytes of all that are taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        (self.taken.load(Ordering::Relaxed) * self.segment_bytes()) as u64
    }

    pub(crate) fn segment_bytes(&self) -> usize {
        self.segment_words() * 8
    }

    /// The first word of a segment.
    pub(crate) fn start(&self, segment: u32) -> usize {
        (segment as usize) << self.segment_shift
    }

    /// Which segment a word lies in.
    pub(crate) fn segment_of(&self, word: usize) -> u32 {
        (word >> self.segment_shift) as u32
    }

    /// From a word to the end of its segment; nothing for a word beyond all.
    #[inline]
    pub(crate) fn from(&self, word: usize) -> &[AtomicU64] {
        let end = ((word >> self.segment_shift) + 1) << self.segment_shift;
        self.words.all().get(word..end).unwrap_or_default()
    }

    /// A reader's first look at the segment of a word: none while it is rewritten.
    #[inline]
    pub(crate) fn stamp(&self, word: usize) -> Option<u64> {
        let stamp = self.stamps.get(word >> self.segment_shift)?;
        let stamp = stamp.load(Ordering::Acquire);
        stamp.is_multiple_of(2).then_some(stamp)
    }

    /// A reader's last look: whether nothing was rewritten since the first.
    #[inline]
    pub(crate) fn unchanged(&self, word: usize, stamp: u64) -> bool {
        atomic::fence(Ordering::Acquire);
        self.stamps
            .get(word >> self.segment_shift)
            .is_some_and(|now| now.load(Ordering::Relaxed) == stamp)
    }

    /// When the segment of a word came into its queue; of a word beyond all, late.
    #[inline]
    pub(crate) fn birth(&self, word: usize) -> Birth {
        let birth = self.births.get(word >> self.segment_shift);
        let birth = birth.map_or(u64::MAX, |birth| birth.load(Ordering::Relaxed));
        Birth {
            number: birth >> 1,
            grown: birth & 1 == 1,
        }
    }

    /// Says when a segment came into its queue. Only its owner calls this.
    pub(crate) fn set_birth(&self, segment: u32, birth: Birth) {
        let birth = birth.number << 1 | u64::from(birth.grown);
        self.births[segment as usize].store(birth, Ordering::Relaxed);
    }

    /// Before a segment is rewritten. Only its owner calls this.
    pub(crate) fn begin(&self, segment: u32) {
        self.stamps[segment as usize].fetch_add(1, Ordering::Relaxed);
        atomic::fence(Ordering::Release);
    }

    /// After it was.
    pub(crate) fn end(&self, segment: u32) {
        self.stamps[segment as usize].fetch_add(1, Ordering::Release);
    }

    /// A segment of nobody's, charged.
    pub(crate) fn take(&self) -> Option<u32> {
        let segment = self.vacant.lock().pop()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.budget
            .take(Purpose::Records, self.segment_bytes() as u64);
        Some(segment)
    }

    /// Gives a segment back with its memory. Nothing leads to it any more.
    pub(crate) fn give(&self, segment: u32) {
        let start = self.start(segment);
        self.begin(segment);
        self.words.release(start..start + self.segment_words());
        self.end(segment);
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.budget
            .give(Purpose::Records, self.segment_bytes() as u64);
        self.vacant.lock().push(segment);
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.budget.give(Purpose::Records, self.taken_bytes());
    }
}
