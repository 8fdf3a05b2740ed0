//! Which page an index means, for how long. An index means one page until a pass over the map has
//! removed all entries that name it; only then does another page get it.

use terrapin_base::mutant;
use terrapin_base::sync::{AtomicU64, Mutex, OnceLock, Ordering};

use crate::entry::PAGES_MAX;

/// Indexes that are allocated together.
const CHUNK: usize = 1024;
const CHUNKS: usize = PAGES_MAX as usize / CHUNK;
const WORDS: usize = 6;
/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: u64 = (CHUNK * WORDS * 8) as u64;
/// A page that nothing has given up.
const ALIVE: u64 = u64::MAX;

/// A page with values, and which reads may use what the map says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The page's number in the data file.
    pub id: u64,
    /// Where the page begins in the data file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whose values it holds. A clear of a keyspace begins another collection.
    pub collection: u64,
    /// The first checkpoint whose readers may read it.
    pub born: u64,
}

type Words = [AtomicU64; WORDS];

/// The pages by index.
pub(crate) struct Pages {
    chunks: Box<[OnceLock<Box<[Words]>>]>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Indexes below this were given out.
    used: u32,
    free: Vec<u32>,
    /// Given up, but the map may still name them.
    ended: Vec<u32>,
}

impl Default for Pages {
    fn default() -> Self {
        Pages {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            state: Mutex::default(),
        }
    }
}

impl Pages {
    fn words(&self, index: u32) -> Option<&Words> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.get()?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// An index for a page, and bytes that this took; none while all are in use.
    pub(crate) fn add(&self, page: Page) -> Option<(u32, u64)> {
        let mut state = self.state.lock();
        let index = match state.free.pop() {
            Some(index) => index,
            None if state.used < PAGES_MAX => {
                state.used += 1;
                state.used - 1
            }
            None => return None,
        };
        let chunk = &self.chunks[index as usize / CHUNK];
        let taken = if chunk.get().is_none() {
            CHUNK_BYTES
        } else {
            0
        };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| Words::default()).collect());
        let values = [
            page.id,
            page.offset,
            page.bytes,
            page.collection,
            page.born,
            ALIVE,
        ];
        for (word, value) in chunk[index as usize % CHUNK].iter().zip(values) {
            word.store(value, Ordering::Release);
        }
        Some((index, taken))
    }

    /// Readers of this checkpoint and later ones no longer use a page.
    pub(crate) fn end(&self, index: u32, generation: u64) {
        let mut state = self.state.lock();
        if let Some(words) = self.words(index)
            && words[WORDS - 1].swap(generation, Ordering::Release) == ALIVE
        {
            state.ended.push(index);
        }
    }

    /// The page of an index, for a reader of a checkpoint: none before its birth and after its end.
    #[inline]
    pub(crate) fn get(&self, index: u32, generation: u64) -> Option<Page> {
        let words = self.words(index)?;
        let [id, offset, bytes, collection, born, died] =
            [0, 1, 2, 3, 4, 5].map(|i| words[i].load(Ordering::Acquire));
        let is_of_time = born <= generation && generation < died;
        (is_of_time || mutant::active("ended-pages-answer")).then_some(Page {
            id,
            offset,
            bytes,
            collection,
            born,
        })
    }

    /// How many indexes wait for a pass over the map.
    pub(crate) fn ended(&self) -> usize {
        self.state.lock().ended.len()
    }

    /// The indexes that a pass may free.
    pub(crate) fn take_ended(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().ended)
    }

    /// No entry names these any more.
    pub(crate) fn free(&self, indexes: Vec<u32>) {
        self.state.lock().free.extend(indexes);
    }
}
