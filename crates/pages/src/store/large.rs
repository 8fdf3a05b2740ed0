//! Large pages: each holds one long value, and a user's write writes it, piece by piece.
//!
//! A large page belongs to the write until the write's record is in the log, then to a memtable,
//! and to a tree once a checkpoint adopts it ([`Changes::adopted`](crate::Changes::adopted)). So a
//! failed checkpoint never frees one.
//!
//! **Order of syncs.** A writer calls [`PageStore::large_is_written`] before it appends the record
//! that names the page. Before the log is synced, [`PageStore::sync_large`] makes durable what was
//! written until then. All syncs of the file take one lock, and look at the poison behind it: a
//! sync that follows a failed one proves nothing.

use terrapin_base::sync::{Arc, AtomicU64, Mutex, Ordering};
use terrapin_base::{Error, Generation, PageId, Result, mutant};
use terrapin_disk::AlignedBuf;

use super::PageStore;
use crate::metrics::WriteOf;
use crate::page::{Extent, PageUse};
use crate::space::{HeldPage, SpaceClass};

/// How many large pages were written, and how many of them are known to be synced.
#[derive(Debug, Default)]
pub(super) struct LargeSyncs {
    written: AtomicU64,
    synced: AtomicU64,
    /// Held over each sync of the file.
    syncing: Mutex<()>,
}

impl PageStore {
    /// Allocates a large page of `bytes` bytes, a multiple of an extent. `born`: a generation that
    /// was committed before this call, and that each later view pins or follows.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::NoSpace`] without room outside of the reserve; those of
    /// [`PageStore::write_group`].
    pub fn begin_large(&self, bytes: u64, born: Generation) -> Result<PageUse> {
        let id = self.begin_page()?;
        let extent = self.space.allocate(bytes, SpaceClass::Normal)?;
        let born = match mutant::active("large-pages-are-born-late") {
            true => Generation(u64::MAX),
            false => born,
        };
        self.space.add_large(id, extent, born);
        Ok(PageUse::whole(id, extent.offset, bytes))
    }

    /// Writes a piece of a large page at `at` bytes from its start: a multiple of an extent, as is
    /// the length of `image` after padding. Not durable before [`PageStore::sync_large`].
    ///
    /// # Errors
    ///
    /// Those of the device. The caller then calls [`PageStore::abandon_large`].
    pub fn write_large(&self, page: &PageUse, at: u64, image: &mut AlignedBuf) -> Result<()> {
        self.check_writable()?;
        image.resize(
            image.len().next_multiple_of(self.write_alignment as usize),
            0,
        );
        if at.saturating_add(image.len() as u64) > page.bytes {
            return Err(Error::internal("a piece behind the end of its large page"));
        }
        self.file
            .write_at(image, page.offset + at)
            .map_err(|error| self.place_page(error, page.id))?;
        self.counters.written(WriteOf::Values, image.len() as u64);
        Ok(())
    }

    /// Frees a large page that no record names. `is_bad`: its space could not be written.
    pub fn abandon_large(&self, id: PageId, is_bad: bool) {
        if mutant::active("given-up-large-pages-stay") {
            return;
        }
        self.space.abandon_large(id, is_bad);
        self.forget_gone();
    }

    /// Notes that a large page was written whole. Its record may be appended now.
    pub fn large_is_written(&self) {
        self.large.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes all large pages durable that were noted as written before this call. Costs nothing if
    /// they are.
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::sync`].
    pub fn sync_large(&self) -> Result<()> {
        let written = self.large.written.load(Ordering::SeqCst);
        let forgets = mutant::active("large-values-unsynced-before-log");
        if forgets || self.large.synced.load(Ordering::SeqCst) >= written {
            return Ok(());
        }
        self.sync()
    }

    /// Makes all writes so far durable. A failure poisons the store: the content of the device is
    /// then unknown, and a second sync can succeed although writes were lost.
    pub fn sync(&self) -> Result<()> {
        let _syncing = self.large.syncing.lock();
        self.check_writable()?;
        let written = self.large.written.load(Ordering::SeqCst);
        let synced = match self.file.sync() {
            Err(_) if mutant::active("page-sync-retried") => self.file.sync(),
            synced => synced,
        };
        synced.map_err(|error| self.poisoned(error))?;
        // A slot whose write failed meanwhile poisons, too.
        self.check_writable()?;
        self.large.synced.fetch_max(written, Ordering::SeqCst);
        Ok(())
    }

    /// The limit of the memory budget in bytes.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.cache.budget().limit()
    }

    /// The large pages that no checkpoint has adopted. Linear.
    #[must_use]
    pub fn large_pages(&self) -> Vec<PageId> {
        self.space.large_pages()
    }

    /// Where a page is that is in use, with its whole extent. `None` if its space was freed.
    #[must_use]
    pub fn place_of(&self, id: PageId) -> Option<PageUse> {
        let Extent { offset, bytes } = self.space.extent_of(id)?;
        Some(PageUse::whole(id, offset, bytes))
    }

    /// Keeps one page until the result is dropped. `None` if its space was freed.
    #[must_use]
    pub fn hold_page(self: &Arc<Self>, id: PageId) -> Option<HeldPage> {
        self.space.hold_page(id)
    }

    /// Writes a large page again, the same bytes in the same place, for a recovery: bytes that can
    /// be read need not be durable. Not durable before [`PageStore::sync`].
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn write_again(&self, page: &PageUse) -> Result<()> {
        self.check_writable()?;
        let mut at = 0;
        while at < page.bytes {
            let bytes = (page.bytes - at).min(1 << 20);
            let mut image = AlignedBuf::zeroed(bytes as usize);
            self.file
                .read_at(&mut image, page.offset + at)
                .and_then(|()| self.file.write_at(&image, page.offset + at))
                .map_err(|error| self.place_page(error, page.id))?;
            at += bytes;
        }
        Ok(())
    }
}
