//! The names of pages. A page is a node or a catalog page. It has a checksum, and one read fetches
//! it whole. Its reference says where it is in the data file. A tree walk reports lists of such
//! names, and so does a merge for the pages that it changed.

pub(crate) mod format;

use terrapin_base::{EXTENT_ALIGNMENT, PageId};

use crate::group::GroupRef;

/// A range of bytes in the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Extent {
    /// The first byte behind the extent. Extents are inside files, so the sum does not overflow.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// What a page holds. The checksum covers the kind, so a node is never read as a catalog page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum PageKind {
    /// A node of a tree.
    Node = 1,
    /// The catalog's root.
    CatalogRoot = 2,
    /// A catalog leaf: some keyspaces.
    CatalogLeaf = 3,
    /// The root of a keyspace's value table.
    ValueTableRoot = 4,
    /// A leaf of a value table: some parts.
    ValueTableLeaf = 5,
    /// A node of the map of a page-grouped tree.
    MapNode = 6,
    /// A node of a lazy-trie.
    TrieNode = 8,
    /// The hashes of the records of a run of a lazy-trie.
    HashList = 10,
}

impl PageKind {
    /// The kind's name in errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::name_of(self as u8)
    }

    /// The name of any number in a page's header. The format numbers more kinds of pages than this
    /// version reads.
    pub(crate) fn name_of(number: u8) -> &'static str {
        match number {
            1 => "node",
            2 => "catalog root",
            3 => "catalog leaf",
            4 => "value table root",
            5 => "value table leaf",
            6 => "map node",
            7 => "runs page",
            8 => "trie node",
            9 => "maplet",
            10 => "list of hashes",
            _ => "unknown",
        }
    }
}

/// Where a checksummed page, a node or a catalog page, is in the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// The page's id, which no other page of this database ever has.
    pub id: PageId,
    /// The page's first byte in the data file.
    pub offset: u64,
    /// The page's length on disk with header and padding: a multiple of the store's unit.
    pub bytes: u32,
}

/// A page that a tree refers to, or that a merge wrote: node, catalog page or page group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageUse {
    /// The page's id.
    pub id: PageId,
    /// The page's first byte in the data file: a multiple of [`EXTENT_ALIGNMENT`].
    pub offset: u64,
    /// Bytes that the page uses. The space behind them up to the next multiple of
    /// [`EXTENT_ALIGNMENT`] belongs to the page too.
    pub bytes: u64,
    /// Bytes of the page that are known to be holes in the file: whole extents that nobody reads
    /// any more. Several references to a page have a share each.
    pub hole_bytes: u64,
    /// Whether the page may have more holes than that: a crash may have hidden some.
    pub may_have_holes: bool,
}

impl PageUse {
    /// A page without holes.
    #[must_use]
    pub fn whole(id: PageId, offset: u64, bytes: u64) -> PageUse {
        PageUse {
            id,
            offset,
            bytes,
            hole_bytes: 0,
            may_have_holes: false,
        }
    }

    /// The space that the page occupies. `None` if offset and length cannot be an extent: hostile
    /// bytes may name any numbers.
    #[must_use]
    pub fn extent(&self) -> Option<Extent> {
        let bytes = self.bytes.checked_next_multiple_of(EXTENT_ALIGNMENT)?;
        self.offset.checked_add(bytes)?;
        (bytes > 0 && self.offset.is_multiple_of(EXTENT_ALIGNMENT)).then_some(Extent {
            offset: self.offset,
            bytes,
        })
    }
}

impl From<&PageRef> for PageUse {
    fn from(page: &PageRef) -> Self {
        PageUse::whole(page.id, page.offset, u64::from(page.bytes))
    }
}

impl From<&GroupRef> for PageUse {
    fn from(group: &GroupRef) -> Self {
        PageUse::whole(group.id, group.offset, group.bytes)
    }
}

/// What a merge did to pages. [`Changes::merge`] joins the changes of one checkpoint's merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Pages that the merge wrote. Each starts with one reference.
    pub added: Vec<PageUse>,
    /// Pages that gained a reference, named once for each.
    pub retained: Vec<PageId>,
    /// Pages that lost a reference, named once for each. Pages in `added` or `adopted` may be among
    /// them.
    pub released: Vec<PageId>,
    /// Large pages that a memtable owned until now. Each starts with one reference. A failure of
    /// the checkpoint leaves them to the memtable.
    pub adopted: Vec<PageId>,
}

impl Changes {
    /// Appends another merge's changes.
    pub fn merge(&mut self, mut other: Changes) {
        self.added.append(&mut other.added);
        self.retained.append(&mut other.retained);
        self.released.append(&mut other.released);
        self.adopted.append(&mut other.adopted);
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let pages = [&self.retained, &self.released, &self.adopted];
        self.added.is_empty() && pages.iter().all(|pages| pages.is_empty())
    }
}
