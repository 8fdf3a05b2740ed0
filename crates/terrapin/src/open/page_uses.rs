//! [`PageUses`]: the pages that the catalog and all trees refer to, for the walk that derives free
//! space (D4). It refuses references that no file of this size or life can hold, before they take
//! memory (D8).

use terrapin_base::{Error, Incarnation, Result};
use terrapin_pages::{PageStore, PageUse};

/// The fewest bytes that a reference to a page takes in a node or catalog page.
const REFERENCE_BYTES_MIN: u64 = 10;

/// Uses of pages, one for each reference.
pub(crate) struct PageUses {
    pages: Vec<PageUse>,
    count_max: u64,
    newest: Incarnation,
}

impl PageUses {
    /// An empty list, for a store as its newest superblock describes it.
    pub fn new(store: &PageStore) -> PageUses {
        PageUses {
            pages: Vec::new(),
            count_max: store.file_bytes() / REFERENCE_BYTES_MIN,
            newest: store.superblock().incarnation,
        }
    }

    /// Adds a use of a page.
    pub fn add(&mut self, page: PageUse) -> Result<()> {
        if page.id.incarnation() > self.newest {
            return Err(
                Error::corrupt("a page is of a later life than the superblock")
                    .with("page", page.id)
                    .with("superblock's life", self.newest),
            );
        }
        if self.pages.len() as u64 >= self.count_max {
            // The walk visits each tree separately, so trees that share nodes lead to so high a
            // number.
            return Err(
                Error::corrupt("trees have more references than the file has room for")
                    .with("page", page.id)
                    .with("references", self.pages.len()),
            );
        }
        self.pages.push(page);
        Ok(())
    }

    /// All uses.
    pub fn into_iter(self) -> impl Iterator<Item = Result<PageUse>> {
        self.pages.into_iter().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrapin_base::{Budget, ErrorKind, PageId};
    use terrapin_disk::{Disk, SimDisk};
    use terrapin_pages::{PAGES_START, StoreOptions};

    use super::*;

    /// For keyspaces whose trees share nodes, an open used to gather each tree's pages as a whole.
    /// It gathered as many references as the product of both numbers.
    #[test]
    fn too_many_references_and_pages_of_later_lives_are_refused() {
        let disk: Arc<dyn Disk> = SimDisk::new(1).handle();
        let options = StoreOptions {
            budget: Budget::new(1 << 20),
            reserve_bytes: 0,
            system_cache: false,
        };
        let store = PageStore::create(&disk, options, 1).unwrap();
        let page = |life| PageUse::whole(PageId::new(Incarnation(life), 1), PAGES_START, 512);
        let mut uses = PageUses::new(&store);
        assert_eq!(uses.add(page(1)).unwrap_err().kind(), ErrorKind::Corrupt);
        for _ in 0..store.file_bytes() / REFERENCE_BYTES_MIN {
            uses.add(page(0)).unwrap();
        }
        assert_eq!(uses.add(page(0)).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(uses.into_iter().count() as u64, store.file_bytes() / 10);
    }
}
