//! [`SpaceUse`]: what each byte of a database on the disk is for. [`crate::DatabaseStat`] has it.

use terrapin_base::Result;
use terrapin_pages::PAGES_START;
use terrapin_structure::PageParts;
use terrapin_wal::LogSpace;

use crate::engine::core::Core;

/// Bytes that a database occupies on the disk, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceUse {
    /// Pages of all keyspaces' trees.
    pub pages: PageParts,
    /// Superblocks, the catalog, pages of merges under way, and runs that were written for views.
    pub other: u64,
    /// Pages that only snapshots and iterators keep.
    pub retired: u64,
    /// The reserve that lets deletes through on a full disk. A database that is open for reading
    /// only counts the reserve as free.
    pub reserve: u64,
    /// Free bytes of the data file that were not returned to the file system.
    pub free: u64,
    /// The log's files.
    pub log: LogSpace,
}

impl SpaceUse {
    /// The use of a core whose trees have these pages. Errors: those of listing the directory and
    /// of asking for file sizes.
    pub(crate) fn of(core: &Core, pages: PageParts) -> Result<SpaceUse> {
        let store = &core.store;
        let holes = store.hole_bytes();
        let live = store.live_bytes().saturating_sub(holes.0);
        let retired = store.retired_bytes().saturating_sub(holes.1);
        let reserve = store.reserve_held_bytes();
        let free = store
            .allocated_bytes()?
            .saturating_sub(PAGES_START + live + retired + reserve);
        Ok(SpaceUse {
            pages,
            other: PAGES_START + live.saturating_sub(pages.total()),
            retired,
            reserve,
            free,
            log: LogSpace::of(&*core.disk)?,
        })
    }

    /// The sum of all parts: about what the directory occupies.
    #[must_use]
    pub fn total(&self) -> u64 {
        let pages = self.pages.total();
        let parts = [self.other, self.retired, self.reserve, self.free];
        parts.into_iter().fold(pages, u64::saturating_add) + self.log.total()
    }
}
