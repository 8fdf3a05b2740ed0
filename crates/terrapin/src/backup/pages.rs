//! The pages of a backup: which the last backup has already, and copies of all of them.

use std::sync::Arc;

use terrapin_base::{Budget, Charge, Error, Incarnation, PageId, Purpose, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions};
use terrapin_pages::{
    DATA_FILE, Extent, PAGES_START, PageStore, PageUse, StoreOptions, Superblock,
};
use terrapin_structure::StructureId;

use crate::engine::structures::Structures;
use crate::keyspaces::catalog::Catalog;
use crate::keyspaces::catalog::format::Life;
use crate::open::base::Base;
use crate::open::page_uses::PageUses;
use crate::types::structures::{StructureMaker, StructureParts};

/// Most bytes that one step of a copy reads.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// The pages of one generation, by place, each once.
pub(super) struct PageList {
    pages: Vec<Placed>,
    _memory: Charge,
}

/// A page and its place in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Placed {
    offset: u64,
    bytes: u64,
    id: PageId,
}

impl PageList {
    /// The pages to which a catalog leads, and those of large values that the log names. Fails with
    /// the error of a tree that cannot be walked.
    pub fn of(
        store: &PageStore,
        catalog: &Catalog,
        logged: &[PageUse],
        budget: &Arc<Budget>,
    ) -> Result<PageList> {
        let mut memory = budget.charge(Purpose::Merge, 0);
        let mut uses = PageUses::new(store);
        let unread = catalog.all_pages(&mut |page| uses.add(page))?;
        if let Some((_, error)) = unread {
            return Err(error);
        }
        let mut pages = Vec::new();
        for page in uses.into_iter().chain(logged.iter().copied().map(Ok)) {
            let page = page?;
            let extent = page_extent(&page)?;
            pages.push(Placed {
                offset: extent.offset,
                bytes: extent.bytes,
                id: page.id,
            });
        }
        pages.sort_unstable_by_key(|page| (page.offset, page.id));
        pages.dedup();
        memory.resize((pages.capacity() * size_of::<Placed>()) as u64);
        let mut end = PAGES_START;
        for page in &pages {
            if page.offset < end {
                return Err(Error::corrupt("two pages overlap").with("page", page.id));
            }
            end = page.offset + page.bytes;
        }
        Ok(PageList {
            pages,
            _memory: memory,
        })
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Where the last page ends.
    pub fn end(&self) -> u64 {
        let last = self.pages.last();
        last.map_or(PAGES_START, |page| page.offset + page.bytes)
    }

    fn has(&self, page: &Placed) -> bool {
        let found = self
            .pages
            .binary_search_by_key(&(page.offset, page.id), |p| (p.offset, p.id));
        found.is_ok_and(|at| self.pages[at] == *page)
    }
}

fn page_extent(page: &PageUse) -> Result<Extent> {
    page.extent()
        .ok_or_else(|| Error::corrupt("a page lies nowhere").with("page", page.id))
}

/// The last backup of the same database, as a source of pages.
pub(super) struct Present {
    file: Arc<dyn File>,
    pages: PageList,
    lives: Vec<Life>,
}

impl Present {
    /// Reads which pages a backup has. Fails if it is damaged.
    pub fn read(
        disk: &Arc<dyn Disk>,
        budget: &Arc<Budget>,
        further: &[StructureMaker],
    ) -> Result<Present> {
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 0,
            system_cache: false,
        };
        let (store, superblock): (_, Superblock) = PageStore::open(disk, options, true)?;
        let parts = StructureParts {
            store: &store,
            budget,
            fanout: None,
        };
        let structures = Structures::new(&parts, further)?;
        let (catalog, _) =
            Base::read_catalog(&store, &superblock, &structures, StructureId::LEVELED)?;
        let options = OpenOptions {
            direct: true,
            ..OpenOptions::default()
        };
        Ok(Present {
            file: disk.open(DATA_FILE, options)?,
            pages: PageList::of(&store, &catalog, &[], budget)?,
            lives: catalog.lives().to_vec(),
        })
    }

    /// The newest life in which both databases were one. Pages of that life and of earlier ones are
    /// equal if their ids are (decision 0032).
    fn common_life(&self, lives: &[Life]) -> Option<Incarnation> {
        let common = |life: &&Life| {
            let is_near = |own: &Life| own.incarnation == life.incarnation;
            self.lives.contains(life)
                || mutant::active("backup-ignores-branches") && self.lives.iter().any(is_near)
        };
        Some(lives.iter().rev().find(common)?.incarnation)
    }
}

/// What a copy of pages has done.
#[derive(Clone, Copy, Default)]
pub(super) struct Copied {
    /// Bytes read from the database.
    pub source_bytes: u64,
    /// Bytes of pages that the last backup had.
    pub kept_bytes: u64,
}

/// A copy of pages into a new data file.
pub(super) struct PageCopy<'a> {
    pub store: &'a PageStore,
    pub lives: &'a [Life],
    pub pages: &'a PageList,
    pub present: Option<&'a Present>,
}

/// A step of the copy of one piece.
pub(super) enum Step {
    /// This many bytes were read from the database.
    Read(u64),
    /// The piece is copied, whose copy began at this time of the clock.
    Written { began_ns: u64 },
}

/// Where the bytes of a run of pages come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Database,
    Present,
}

impl PageCopy<'_> {
    /// Copies the pages into an empty file, each to its own place. The slots stay empty. `step`
    /// runs twice for each piece; its error ends the copy.
    pub fn copy(
        &self,
        file: &dyn File,
        now_ns: &dyn Fn() -> u64,
        step: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        let common = self.present.and_then(|p| p.common_life(self.lives));
        let present = self.present.filter(|_| common.is_some());
        let from = |page: &Placed| {
            let is_common = common.is_some_and(|life| page.id.incarnation() <= life);
            match present {
                Some(present) if is_common && present.pages.has(page) => From::Present,
                _ => From::Database,
            }
        };
        let is_shared = match present {
            Some(present) => file.share_content(&*present.file)?,
            None => false,
        };
        file.set_bytes(self.pages.end())?;
        if let Some(present) = present.filter(|_| is_shared) {
            self.free_others(file, present)?;
        }
        let mut buffer = AlignedBuf::new();
        let mut pages = self.pages.pages.iter().peekable();
        while let Some(first) = pages.next() {
            let source = from(first);
            let (start, mut end) = (first.offset, first.offset + first.bytes);
            while let Some(next) =
                pages.next_if(|n| n.offset == end && end - start < PIECE_BYTES && from(n) == source)
            {
                end += next.bytes;
            }
            if source == From::Present {
                copied.kept_bytes += end - start;
                if is_shared {
                    continue;
                }
            }
            let mut at = start;
            while at < end {
                let began_ns = now_ns();
                let bytes = PIECE_BYTES.min(end - at);
                buffer.resize(bytes as usize, 0);
                match (source, present) {
                    (From::Present, Some(present)) => present.file.read_at(&mut buffer, at)?,
                    _ => self.store.read_bytes(&mut buffer, at)?,
                }
                let read = match source {
                    From::Database => bytes,
                    From::Present => 0,
                };
                copied.source_bytes += read;
                // A pin that was taken back during the read makes the bytes worthless.
                step(Step::Read(read))?;
                file.write_at(&buffer, at)?;
                step(Step::Written { began_ns })?;
                at += bytes;
            }
        }
        Ok(copied)
    }

    /// Frees the space of pages that only the last backup has.
    fn free_others(&self, file: &dyn File, present: &Present) -> Result<()> {
        let end = self.pages.end();
        for page in &present.pages.pages {
            let page_end = (page.offset + page.bytes).min(end);
            if page.offset < page_end && !self.pages.has(page) {
                file.punch_hole(page.offset, page_end - page.offset)?;
            }
        }
        Ok(())
    }
}
