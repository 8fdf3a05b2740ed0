//! Where a database's bytes on the disk are: what [`crate::DatabaseStat`] says of them.

use terrapin_base::Result;
use terrapin_pages::PAGES_START;
use terrapin_structure::PageParts;
use terrapin_wal::LogSpace;

use crate::engine::core::Core;

/// Bytes that a database occupies on the disk, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceUse {
    /// Pages of all keyspaces' trees.
    pub pages: PageParts,
    /// Superblocks and the catalog; besides, pages of merges under way and those that views made
    /// for themselves.
    pub other: u64,
    /// Pages that only views keep.
    pub retired: u64,
    /// The reserve that lets deletes through on a full disk; a database opened for reading counts
    /// it as free.
    pub reserve: u64,
    /// Free, and not given back to the file system.
    pub free: u64,
    /// The log's files.
    pub log: LogSpace,
}

impl SpaceUse {
    /// Of a core whose trees have these pages.
    pub(crate) fn of(core: &Core, pages: PageParts) -> Result<SpaceUse> {
        let store = &core.store;
        let (live, retired) = (store.live_bytes(), store.retired_bytes());
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

    /// All of them: about what the directory occupies.
    #[must_use]
    pub fn total(&self) -> u64 {
        let pages = self.pages.total();
        let parts = [self.other, self.retired, self.reserve, self.free];
        parts.into_iter().fold(pages, u64::saturating_add) + self.log.total()
    }
}
