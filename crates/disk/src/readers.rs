//! The table of readers beside a writer: which generation of the data file each reader reads.
//!
//! The file holds a header and 64 slots, one word each. A process maps it and works on the words
//! with sequentially consistent atomics. A reader owns a slot while it holds the lock of the slot.
//! The kernel frees that lock when the reader's process dies.
//!
//! | word | who stores it | value |
//! | --- | --- | --- |
//! | header | the writer | the generation in both superblock slots, or [`OPENING`] |
//! | slot | its reader, when it takes or leaves the slot; the writer, to revoke it | 0, or the generation, with [`LOG`] while the reader copies the log |
//!
//! **Taking a slot.** The reader locks the slot, stores its generation, and tests the header again.
//! If the header differs, it leaves the slot. The writer stores a new generation in the header, and
//! then looks at the slots. So either the writer sees the slot, or the reader sees the new header.
//!
//! **Revoking.** The writer exchanges the slot's word for 0, and then reuses space. The reader
//! tests the word after each read of the device. If the word is still its own, the bytes that it
//! read are from before the reuse.
//!
//! A word without its lock is what a dead reader left. A lock without a word is a reader that has
//! not stored yet; it will see the new header.

use terrapin_base::sync::Ordering;
use terrapin_base::sync::atomic::fence;
use terrapin_base::{Error, ErrorKind, Result, mutant};

use crate::Process;

/// Number of readers that can read beside a writer at a time.
pub const READER_SLOTS: usize = 64;
/// Length of the file in bytes.
pub const READERS_BYTES: u64 = 4096;

/// The first word: "TERRARDR".
const MAGIC: u64 = u64::from_le_bytes(*b"TERRARDR");
const WORD_MAGIC: usize = 0;
const WORD_DATABASE: usize = 1;
const WORD_HEADER: usize = 2;
/// The first slot's word. A slot has two words: its generation and its process.
const WORD_SLOTS: usize = 64;
/// The header while a writer opens: no reader may take a slot.
const OPENING: u64 = u64::MAX;
/// In a slot's word: the reader still copies the log.
const LOG: u64 = 1 << 63;

/// The words of a table, and the locks of its slots.
pub(crate) trait ReaderWords: Send + Sync {
    /// Loads a word, sequentially consistent.
    fn load(&self, word: usize) -> u64;
    /// Stores a word, sequentially consistent.
    fn store(&self, word: usize, value: u64);
    /// Exchanges a word if it is `from`, sequentially consistent. Returns whether it was.
    fn exchange(&self, word: usize, from: u64, to: u64) -> bool;
    /// Locks a slot. False if another handle has it locked.
    fn try_lock(&self, slot: usize) -> Result<bool>;
    /// Unlocks a slot that this handle has locked.
    fn unlock(&self, slot: usize);
}

/// A slot that a reader holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    word: u64,
    /// The number of the reader's process, for messages. The process may be in another namespace.
    pub process: u64,
}

impl Taken {
    /// The generation that the reader reads.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.word & !LOG
    }

    /// Whether the reader still copies the log.
    #[must_use]
    pub fn copies_log(&self) -> bool {
        self.word & LOG != 0
    }

    /// Whether both are one stay of a reader, whether or not it copied the log in between.
    #[must_use]
    pub fn is_of(&self, other: &Taken) -> bool {
        self.generation() == other.generation() && self.process == other.process
    }
}

/// An open table of readers.
pub struct ReaderTable {
    words: Box<dyn ReaderWords>,
    name: String,
}

fn slot_word(slot: usize) -> usize {
    WORD_SLOTS + 2 * slot
}

impl ReaderTable {
    /// A table of these words. `name` names the file in errors.
    pub(crate) fn new(words: Box<dyn ReaderWords>, name: String) -> Self {
        ReaderTable { words, name }
    }

    /// Whether a writer of this database made the table.
    #[must_use]
    pub fn is_of(&self, database_id: u64) -> bool {
        self.words.load(WORD_MAGIC) == MAGIC && self.words.load(WORD_DATABASE) == database_id
    }

    /// Begins a writer's life: no reader can take a slot from here on, until
    /// [`ReaderTable::announce`]. Call this before the writer changes any file.
    ///
    /// Revokes all slots, except those whose reader reads the generation `found`. Returns these.
    pub fn begin(&self, database_id: u64, found: u64) -> Vec<(usize, Taken)> {
        self.words.store(WORD_HEADER, OPENING);
        self.words.store(WORD_DATABASE, database_id);
        self.words.store(WORD_MAGIC, MAGIC);
        fence(Ordering::SeqCst);
        let mut kept = Vec::new();
        for (slot, taken) in self.taken() {
            let is_kept = taken.word == found || mutant::active("open-keeps-old-readers");
            if is_kept {
                kept.push((slot, taken));
            } else {
                self.revoke(slot, taken);
            }
        }
        kept
    }

    /// Says that both superblock slots durably hold a generation. Then call [`ReaderTable::taken`]
    /// before anything is freed.
    pub fn announce(&self, generation: u64) {
        self.words.store(WORD_HEADER, generation);
        fence(Ordering::SeqCst);
    }

    /// The slots that readers hold. Clears the words that dead readers left. A system call for each
    /// word that is not 0.
    #[must_use]
    pub fn taken(&self) -> Vec<(usize, Taken)> {
        let slots = 0..READER_SLOTS;
        slots
            .filter_map(|slot| Some((slot, self.look(slot)?)))
            .collect()
    }

    fn look(&self, slot: usize) -> Option<Taken> {
        let at = slot_word(slot);
        let word = self.words.load(at);
        if word == 0 {
            return None;
        }
        // An error says nothing about the reader, so the slot counts as held.
        if let Ok(true) = self.words.try_lock(slot) {
            self.words.store(at, 0);
            self.words.unlock(slot);
            return None;
        }
        let process = self.words.load(at + 1);
        Some(Taken { word, process })
    }

    /// Takes a slot's generation away. Returns false if the reader left, or copied the log
    /// meanwhile: look again then. What the reader reads from here on does not count.
    pub fn revoke(&self, slot: usize, taken: Taken) -> bool {
        let revoked = self.words.exchange(slot_word(slot), taken.word, 0);
        fence(Ordering::SeqCst);
        revoked
    }

    /// The generation that readers may take; none while a writer opens.
    #[must_use]
    pub fn current(&self) -> Option<u64> {
        match self.words.load(WORD_HEADER) {
            OPENING => None,
            generation => Some(generation),
        }
    }

    /// Takes a slot for a reader of this generation, which begins to copy the log. A handle takes
    /// one slot, because two locks of one handle do not exclude each other.
    ///
    /// [`ErrorKind::Overtaken`] if the writer announces another generation: read the superblock
    /// again. [`ErrorKind::Locked`] if all slots are taken.
    pub fn take(self, generation: u64) -> Result<ReaderSlot> {
        let process = Process::hold()?;
        let slot = ReaderSlot {
            slot: self.lock_one().inspect_err(|_| process.let_go())?,
            table: self,
            generation,
            process,
        };
        let words = &slot.table.words;
        words.store(slot_word(slot.slot) + 1, u64::from(std::process::id()));
        words.store(slot_word(slot.slot), generation | LOG);
        fence(Ordering::SeqCst);
        if slot.table.current() == Some(generation)
            || mutant::active("reader-slot-not-tested-again")
        {
            return Ok(slot);
        }
        Err(overtaken(&slot.table.name))
    }

    fn lock_one(&self) -> Result<usize> {
        for slot in 0..READER_SLOTS {
            if self.words.try_lock(slot)? {
                return Ok(slot);
            }
        }
        Err(Error::new(
            ErrorKind::Locked,
            "too many processes read the database beside its writer",
        )
        .with("file", &self.name)
        .with("at most", READER_SLOTS))
    }
}

/// The error of a reader whose slot was revoked.
#[cold]
fn overtaken(name: &str) -> Error {
    Error::new(
        ErrorKind::Overtaken,
        "overtaken: the writer reused the space of what this reader sees; refresh it, or open it again",
    )
    .with("file", name)
}

/// A reader's slot: the writer keeps what the reader sees. The drop gives it back.
pub struct ReaderSlot {
    table: ReaderTable,
    slot: usize,
    generation: u64,
    process: Process,
}

impl ReaderSlot {
    /// The generation that the reader reads.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Says that the log is copied: the writer may trim it.
    ///
    /// [`ErrorKind::Overtaken`] if the slot was revoked meanwhile. The copy may be wrong then.
    pub fn log_is_copied(&self) -> Result<()> {
        let words = &self.table.words;
        let at = slot_word(self.slot);
        match words.exchange(at, self.generation | LOG, self.generation) {
            true => Ok(()),
            false => Err(overtaken(&self.table.name)),
        }
    }

    /// Tests that the writer kept everything that the reader has read so far. Call this after each
    /// read of the device, before the bytes are judged. One load.
    ///
    /// [`ErrorKind::Overtaken`] after the slot was revoked; [`ErrorKind::Closed`] in a forked
    /// child.
    pub fn check(&self) -> Result<()> {
        self.process.check()?;
        // The read is over before the word is loaded.
        fence(Ordering::SeqCst);
        let word = self.table.words.load(slot_word(self.slot));
        match word & !LOG == self.generation || mutant::active("revoked-reader-goes-on") {
            true => Ok(()),
            false => Err(overtaken(&self.table.name)),
        }
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        // A forked child has no mapping, and its parent goes on.
        if !self.process.is_this() {
            return;
        }
        self.table.words.store(slot_word(self.slot), 0);
        self.table.words.unlock(self.slot);
        self.process.let_go();
    }
}
