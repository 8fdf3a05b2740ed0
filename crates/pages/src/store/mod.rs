//! The page store: one data file, its superblocks, its space, and the cache in front of it.
//!
//! [`PageStore::sync`] makes written pages durable, and [`PageStore::write_superblock`] makes them
//! reachable. [`PageStore::commit`] gives up the pages that a checkpoint replaced, after both slots
//! hold its generation (D2, D5). The engine orders these calls. This crate ensures that no write
//! lands on a page that a reader may still read.

mod fill;
mod filter_page;
mod handle;
mod large;
mod maplet;
mod open;
mod outlines;
mod pieces;
mod read;
mod reading;
mod scratch;
mod write;

use terrapin_base::sync::{Arc, AtomicU32, AtomicU64, AtomicUsize, Mutex, OnceLock};
use terrapin_base::{
    Budget, Error, ErrorKind, Generation, Incarnation, PageId, Result, Signal, mutant,
};
use terrapin_disk::{File, FileIdentity};

use crate::cache::Cache;
use crate::metrics::{Counters, ReadFor, StoreMetrics};
use crate::page::{Changes, Extent, PageUse};
use crate::space::{Pin, Space};
use crate::superblock::Superblock;

pub use fill::Fill;
pub use handle::{GroupHandle, Handle};
pub use maplet::{MapletHandle, check_maplet_partition};
pub use open::Presence;
pub use outlines::{KnownOutlines, OutlinePlaces, SegmentOutlines};
pub use read::DecodePage;
pub use reading::Reading;

/// Name of the data file.
pub const DATA_FILE: &str = "data";

/// Name of the mark file that exists while the data file is created.
pub const UNFINISHED_FILE: &str = "data-unfinished";
/// Slabs that one call of [`PageStore::shrink`] evicts at most.
const SHRINK_SLABS: usize = 64;

/// How a page store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The budget that cached pages are charged to and limited by.
    pub budget: Arc<Budget>,
    /// Bytes of the file that stay allocated and free for [`crate::SpaceClass::Reserve`] (D10).
    pub reserve_bytes: u64,
    /// Whether reads that miss this store's cache use the system's page cache. Reads of merges
    /// always bypass the system's page cache.
    pub system_cache: bool,
}

/// A data file with everything that reads and writes it. Any thread may read. The engine orders the
/// writes of a checkpoint: pages, sync, superblock, commit.
pub struct PageStore {
    file: Arc<dyn File>,
    space: Arc<Space>,
    cache: Cache,
    counters: Counters,
    unit: u32,
    /// Alignment of direct writes in bytes: at least the unit.
    write_alignment: u32,
    read_only: bool,
    /// The slot that was not valid when the file was opened, and the reason.
    damaged: Option<(usize, Error)>,
    /// This life, once it began: incarnation + 1; 0 before.
    life: AtomicU32,
    /// The first counter of this life's page ids.
    first_page: AtomicU64,
    /// Page ids given out in this life.
    next_page: AtomicU64,
    /// The identity of the open file.
    home: FileIdentity,
    /// Whether a rebuild has found the free space.
    rebuilt: terrapin_base::sync::AtomicBool,
    /// Set by the first failed sync or superblock write; nothing durable is written afterwards.
    poison: OnceLock<Error>,
    roots: Mutex<Roots>,
    outlines: outlines::Outlines,
    large: large::LargeSyncs,
    /// Bytes of memory that all streams together hold.
    streams: Arc<AtomicUsize>,
}

/// What the superblock slots hold.
struct Roots {
    newest: Superblock,
    /// The slot that does not hold `newest`, while both slots are as the open found them.
    unsettled: Option<usize>,
}

impl PageStore {
    /// Bytes that lengths and offsets of pages and their parts are multiples of. Blocks are not
    /// aligned.
    #[must_use]
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// The superblock slot that held no valid superblock when the file was opened. The store uses
    /// the other slot, and [`PageStore::settle_slots`] rewrites this one. A power cut during a slot
    /// write can cause this on a device that does not write sectors whole.
    #[must_use]
    pub fn damaged_slot(&self) -> Option<(usize, &Error)> {
        self.damaged.as_ref().map(|(slot, error)| (*slot, error))
    }

    /// The newest superblock that was read or written.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.roots.lock().newest
    }

    /// Whether the open file is a copy. It is one if the newest superblock names another file
    /// identity than the file system gives for this file.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        !self.superblock().home.is_of(&self.home)
    }

    /// Sets the incarnation for the ids of new pages. Call this before the first write, once the
    /// superblock holds this life's branch. No page in the file may have this incarnation. The
    /// branch chooses the first counter of page ids. Two copies of a database can use equal
    /// incarnations, and the branch then gives their pages different ids.
    pub fn begin_life(&self, incarnation: Incarnation) {
        let first = match terrapin_base::mutant::active("page-ids-begin-at-zero") {
            true => 0,
            false => self.superblock().branch & PageId::COUNTER_MAX,
        };
        self.first_page
            .store(first, terrapin_base::sync::Ordering::Release);
        self.life.store(
            incarnation.0.saturating_add(1),
            terrapin_base::sync::Ordering::Release,
        );
    }

    /// Applies a checkpoint's changes once both superblock slots hold `generation`. Added pages
    /// become live, and released pages lose a reference. A page without references is retired. It
    /// is freed when no pin is left on a generation from its birth up to `generation`. Each
    /// generation must be higher than the one before. O(changes).
    pub fn commit(&self, generation: Generation, changes: Changes) {
        self.space.commit(generation, &changes);
        self.forget_gone();
    }

    /// Frees at once the pages that no pin keeps any more. [`PageStore::commit`] and
    /// [`PageStore::reclaim_step`] do this, too.
    pub fn free_unpinned(&self) {
        self.space.sweep();
        self.forget_gone();
    }

    /// Frees at once the pages that a failed or dropped merge added.
    pub fn abandon(&self, changes: Changes) {
        if mutant::active("failed-checkpoint-frees-large-pages") {
            changes
                .adopted
                .iter()
                .for_each(|&id| self.abandon_large(id, false));
        }
        self.abandon_pages(&changes.added);
    }

    fn abandon_pages(&self, added: &[PageUse]) {
        self.space.abandon(added);
        self.forget_gone();
    }

    /// Whether parts of a page that no tree of the newest generation reads may be returned to the
    /// file system now: no pin keeps an older generation in which the page was there. O(log n).
    #[must_use]
    pub fn may_punch(&self, id: PageId) -> bool {
        self.space.may_punch(id)
    }

    /// Returns parts of a live page to the file system. `holes`: whole extents of the file within
    /// the page, ascending. The caller vouches that no tree of the newest generation, which both
    /// slots hold, reads them (D14). Returns how many bytes of the page are holes now: 0 if readers
    /// of older generations may see the page, or if the file system makes no holes. Punching a
    /// hole again changes nothing. One call of the file system for each hole.
    ///
    /// # Errors
    ///
    /// Those of settling the slots. A file system that makes no holes is not asked again.
    pub fn punch(&self, page: &PageUse, holes: &[Extent]) -> Result<u64> {
        self.check_writable()?;
        self.settle_slots()?;
        let extent = page.extent();
        let extent = extent.ok_or_else(|| Error::internal("holes in a page that lies nowhere"))?;
        Ok(self.space.punch_page(page.id, extent, holes))
    }

    /// Bytes of holes in pages that trees refer to, and in pages that only pins keep. The file
    /// system has taken them back.
    #[must_use]
    pub fn hole_bytes(&self) -> (u64, u64) {
        self.space.hole_bytes()
    }

    /// Makes the cache forget the pages whose space was freed, then notifies the purge job. The job
    /// may have handled the notice of the freeing before the cache knew these pages.
    fn forget_gone(&self) {
        let gone = self.space.take_gone();
        if !gone.is_empty() {
            self.cache.forget(gone);
            self.space.signal().notify();
        }
    }

    /// Keeps every page of a generation readable. The generation must be the newest committed one,
    /// a later one, or one that is pinned already.
    #[must_use]
    pub fn pin(&self, generation: Generation) -> Pin {
        self.space.pin(generation)
    }

    /// Pins the generation of the newest superblock, and returns that superblock. Every page that
    /// the superblock leads to stays readable while the pin lives.
    #[must_use]
    pub fn pin_newest(&self) -> (Superblock, Pin) {
        loop {
            let superblock = self.superblock();
            let later = u64::from(terrapin_base::mutant::active(
                "backup-pins-later-generation",
            ));
            let pin = self.space.pin(Generation(superblock.generation.0 + later));
            // Pages of a generation are freed after a later superblock was written.
            if self.superblock().generation == superblock.generation {
                return (superblock, pin);
            }
        }
    }

    /// Reads bytes of the data file as they are, past the cache and without a check. For copies of
    /// pages that a pin keeps. Bytes behind the file's end are zeros.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn read_bytes(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let there = self.space.file_bytes().saturating_sub(offset);
        let there = usize::try_from(there).map_or(buffer.len(), |b| b.min(buffer.len()));
        let (head, tail) = buffer.split_at_mut(there);
        tail.fill(0);
        self.file.read_at(head, offset).map_err(|e| self.place(e))
    }

    /// Ties the added pages of a side root to a guard, which frees them when it is dropped. No
    /// superblock will reach these pages. The base's pin keeps the pages that the side root shares
    /// with its base. This call ignores `retained` and `released`.
    #[must_use]
    pub fn private(self: &Arc<Self>, changes: Changes) -> PrivatePages {
        PrivatePages {
            store: self.clone(),
            added: changes.added,
        }
    }

    /// Learns the free space from a walk over the trees of `generation` (D4). `uses` names every
    /// page once per reference, catalog pages too. Call this once after [`PageStore::open`], before
    /// anything is written.
    ///
    /// The call first writes both superblock slots if they may differ
    /// ([`PageStore::settle_slots`]), because a full disk lets it punch holes in free space.
    /// O(pages · log pages).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`], naming the pages, if two pages overlap, if a page is outside of the
    /// file, or if two references to a page differ. Any error of `uses` and of writing the slots.
    pub fn rebuild(
        &self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        generation: Generation,
    ) -> Result<()> {
        self.rebuild_with(uses, &[], generation, true)
    }

    /// Like [`PageStore::rebuild`], after a walk that could not read all of a tree. Pages that the
    /// walk did not name may belong to that tree. Until the next open, no space of the present file
    /// is taken as free or given up, whatever later changes say. New pages go behind it.
    pub fn rebuild_partly(
        &self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        generation: Generation,
    ) -> Result<()> {
        self.rebuild_with(uses, &[], generation, false)
    }

    /// [`PageStore::rebuild`], or [`PageStore::rebuild_partly`] unless the walk `is_whole`, with
    /// the large pages that the log names. Trees may have some of these.
    ///
    /// # Errors
    ///
    /// As for [`PageStore::rebuild`].
    pub fn rebuild_with(
        &self,
        uses: &mut dyn Iterator<Item = Result<PageUse>>,
        logged: &[PageUse],
        generation: Generation,
        is_whole: bool,
    ) -> Result<()> {
        if !self.read_only {
            self.settle_slots()?;
        }
        self.space
            .rebuild(uses, logged, generation, is_whole, !self.read_only)
            .map_err(|e| self.place(e))?;
        self.rebuilt
            .store(true, terrapin_base::sync::Ordering::Release);
        Ok(())
    }

    /// One bounded step of housekeeping; returns whether there is more to do at once. The step
    /// frees pages that pins no longer keep. It returns free space beyond the slack to the file
    /// system. It removes cache entries of dead pages. The slack is what a checkpoint needs, within
    /// bounds; at rest it is the reserve alone. Reads wait while space is returned.
    pub fn reclaim_step(&self) -> Result<bool> {
        self.purge_step();
        if self.read_only
            || !self.rebuilt.load(terrapin_base::sync::Ordering::Acquire)
            || self.poison.get().is_some()
        {
            return Ok(self.cache.purge_needed());
        }
        if self.space.reclaim_needed() {
            self.settle_slots()?;
            let done = self.space.reclaim_step().map_err(|e| self.place(e))?;
            self.counters.reclaimed(done.bytes);
            self.forget_gone();
            return Ok(done.more || self.cache.purge_needed());
        }
        Ok(self.cache.purge_needed())
    }

    /// The part of [`PageStore::reclaim_step`] that reads do not wait for: removes some cache
    /// entries of dead pages. Returns whether there are more.
    pub fn purge_step(&self) -> bool {
        if self.cache.purge_needed() {
            self.cache.purge_step();
        }
        self.cache.purge_needed()
    }

    /// Whether [`PageStore::purge_step`] has something to do. Cheap enough to be a
    /// [`terrapin_base::Condition`]'s test. [`PageStore::reclaim_signal`] is notified when this may
    /// have become true.
    #[must_use]
    pub fn purge_needed(&self) -> bool {
        self.cache.purge_needed()
    }

    /// Whether [`PageStore::reclaim_step`] has something to do. Cheap enough to be a
    /// [`terrapin_base::Condition`]'s test.
    #[must_use]
    pub fn reclaim_needed(&self) -> bool {
        let may_write = !self.read_only && self.poison.get().is_none();
        self.cache.purge_needed() || (may_write && self.space.reclaim_needed())
    }

    /// The signal that is notified when [`PageStore::reclaim_needed`] may have become true.
    #[must_use]
    pub fn reclaim_signal(&self) -> &Arc<Signal> {
        self.space.signal()
    }

    /// Lets the next [`PageStore::reclaim_step`]s reclaim down to the reserve, until the next
    /// [`PageStore::commit`]. Call this for an idle store, a flush or a close. Without this call,
    /// reclaiming begins only a whole growth step above the slack. A busy store then keeps the
    /// space that it will use soon.
    pub fn begin_reclaim(&self) {
        if !self.read_only {
            self.space.begin_reclaim();
            self.forget_gone();
        }
    }

    /// Evicts some cache entries while the caches hold more than the budget leaves them. Returns
    /// whether there is more to do. Inserts make room themselves. This call serves a budget that
    /// shrinks while no insert comes.
    pub fn shrink(&self) -> bool {
        self.cache.shrink(SHRINK_SLABS)
    }

    /// Calls [`PageStore::shrink`] until the caches hold no more than the budget leaves them, or
    /// until eviction finds nothing more.
    pub fn shrink_fully(&self) {
        while self.shrink_needed() && self.shrink() {}
    }

    /// Frees all memory of the caches, except what readers hold. For a store that will not be read
    /// any more.
    pub fn empty_caches(&self) {
        self.cache.empty();
    }

    /// Whether [`PageStore::shrink`] has something to do.
    #[must_use]
    pub fn shrink_needed(&self) -> bool {
        self.cache.over_budget()
    }

    /// Whether `bytes` more of blocks can be cached without an eviction.
    #[must_use]
    pub fn has_room_for_blocks(&self, bytes: u64) -> bool {
        self.cache.has_room_for_blocks(bytes)
    }

    /// Reads of blocks for scans since the store was opened.
    #[must_use]
    pub fn scan_reads(&self) -> u64 {
        self.counters.reads(ReadFor::Scan)
    }

    /// As [`PageStore::scan_reads`], but a read counts in proportion to what it lacks of 32 KiB:
    /// that of a block fully, and one of 32 KiB not at all.
    #[must_use]
    pub fn short_scan_reads(&self) -> u64 {
        self.counters.short_scan_reads()
    }

    /// Bytes on disk of pages that trees refer to. Pages of side roots and of unfinished merges are
    /// included.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.space.live_bytes()
    }

    /// Bytes on disk of pages that only pins keep.
    #[must_use]
    pub fn retired_bytes(&self) -> u64 {
        self.space.retired_bytes()
    }

    /// Free bytes in the file: allocated space, holes and the reserve.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Raises the size of the reserve to `bytes`, if the store has a reserve and it is smaller. It
    /// fills from free space, and as the file grows and commits free pages.
    pub fn raise_reserve(&self, bytes: u64) {
        self.space.raise_reserve(bytes);
    }

    /// Bytes that the reserve is to hold: [`StoreOptions::reserve_bytes`], or what
    /// [`PageStore::raise_reserve`] made of them; 0 after [`PageStore::rebuild_partly`].
    #[must_use]
    pub fn reserve_wanted_bytes(&self) -> u64 {
        self.space.reserve_wanted_bytes()
    }

    /// Bytes that the reserve holds now. They are fewer than [`PageStore::reserve_wanted_bytes`]
    /// when space is short.
    #[must_use]
    pub fn reserve_held_bytes(&self) -> u64 {
        self.space.reserve_held_bytes()
    }

    /// Whether the reserve is not full: [`crate::SpaceClass::Normal`] allocations will fail unless
    /// the disk got space again.
    #[must_use]
    pub fn space_is_short(&self) -> bool {
        self.space.is_short()
    }

    /// The file's length in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.space.file_bytes()
    }

    /// Bytes that the file occupies on the disk, as the file system says.
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.file.allocated_bytes()
    }

    /// Bytes given back to the file system since the store was opened.
    #[must_use]
    pub fn reclaimed_bytes(&self) -> u64 {
        self.counters.reclaimed_bytes()
    }

    /// Counts of the store's work since it was opened.
    #[must_use]
    pub fn metrics(&self) -> StoreMetrics {
        let mut metrics = StoreMetrics::default();
        self.cache.fill(&mut metrics);
        self.counters.fill(&mut metrics);
        metrics
    }

    /// Names the file in an error.
    fn place(&self, error: Error) -> Error {
        error.with("file", self.file.describe())
    }

    /// Names the file and a page in an error.
    fn place_page(&self, error: Error, page: PageId) -> Error {
        error.with("page", page).with("file", self.file.describe())
    }

    /// Returns an error if the store is read-only or poisoned.
    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "the database is open for reading only: open it for writing to change it",
            ));
        }
        match self.poison.get() {
            None => Ok(()),
            Some(cause) => Err(Error::new(
                ErrorKind::Poisoned,
                "an earlier sync of the data file failed: reopen the database to write again",
            )
            .with("cause", cause)),
        }
    }
}

impl std::fmt::Debug for PageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageStore")
            .field("file", &self.file.describe())
            .finish_non_exhaustive()
    }
}

/// Pages of a side root. Dropping this guard frees them.
pub struct PrivatePages {
    store: Arc<PageStore>,
    added: Vec<PageUse>,
}

impl PrivatePages {
    /// Bytes of the pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.added.iter().map(|page| page.bytes).sum()
    }
}

impl Drop for PrivatePages {
    fn drop(&mut self) {
        self.store.abandon_pages(&self.added);
    }
}

impl std::fmt::Debug for PrivatePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivatePages({} pages)", self.added.len())
    }
}
