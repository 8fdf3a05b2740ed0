//! The value table of a keyspace: which page has the values of each birth.
//!
//! The table is a tree of two levels in the data file: a root page lists leaf pages, and a leaf
//! lists parts. Both are copied on write. A checkpoint's superblock reaches tree and table
//! together, so each handle of the tree resolves in the table (D13). Each part is one reference to
//! its value page (D4).
//!
//! Nothing of a table is in memory except what the page store caches.

mod edit;
mod format;

pub use edit::TableEdit;
pub use format::{LEAF_BYTES_MAX, PartRef, TableRef};

use std::ops::Range;

use format::{Leaf, Leaves, Listed};
use terrapin_base::sync::Arc;
use terrapin_base::{Error, Result, Slice};
use terrapin_pages::{PageKind, PageStore, PageUse, ReadFor};
use terrapin_structure::ValuePlace;

use crate::PLACE_BYTES;
use crate::handle::{Handle, dangling};
use crate::large::LargeValues;
use crate::page::{Directory, record_at, value_of_key};
use crate::record::HEADER_BYTES;

/// The table of one checkpoint. The owner keeps its pages.
#[derive(Clone)]
pub struct ValueTable {
    store: Arc<PageStore>,
    root: Option<TableRef>,
}

impl ValueTable {
    /// The table without parts.
    #[must_use]
    pub fn empty(store: &Arc<PageStore>) -> Self {
        Self::open(store, None)
    }

    /// The table of a root; `None`: without parts. Reads nothing.
    #[must_use]
    pub fn open(store: &Arc<PageStore>, root: Option<TableRef>) -> Self {
        ValueTable {
            store: store.clone(),
            root,
        }
    }

    /// The root; `None` without parts.
    #[must_use]
    pub fn root(&self) -> Option<&TableRef> {
        self.root.as_ref()
    }

    pub(crate) fn store(&self) -> &Arc<PageStore> {
        &self.store
    }

    fn leaves(&self) -> Result<Option<Arc<Leaves>>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let decode = |content: &[u8]| {
            let leaves = Leaves::decode(content, root)?;
            let memory_bytes = leaves.memory_bytes();
            Ok((leaves, memory_bytes))
        };
        self.store
            .object(&root.page, PageKind::ValueTableRoot, &decode)
            .map(Some)
    }

    fn leaf(&self, listed: &Listed) -> Result<Arc<Leaf>> {
        let decode = |content: &[u8]| {
            let leaf = Leaf::decode(content, listed)?;
            let memory_bytes = leaf.memory_bytes();
            Ok((leaf, memory_bytes))
        };
        self.store
            .object(&listed.page, PageKind::ValueTableLeaf, &decode)
    }

    /// The part of a birth. Logarithmic; at most two reads of metadata.
    ///
    /// # Errors
    ///
    /// Those of reads; [`terrapin_base::ErrorKind::Corrupt`] for a damaged table.
    pub fn part(&self, birth: u64) -> Result<Option<PartRef>> {
        let Some(leaves) = self.leaves()? else {
            return Ok(None);
        };
        let Some(at) = leaves.find(birth) else {
            return Ok(None);
        };
        Ok(self.leaf(&leaves.leaves[at])?.find(birth).copied())
    }

    /// The value of a handle that belongs to `key`. One device read for a value that did not move,
    /// if the table is cached; for a moved value, the directory of its page must be cached, too.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the value cannot be found or is damaged; those of
    /// reads.
    pub fn get(&self, handle: Handle, key: &[u8], purpose: ReadFor) -> Result<Slice> {
        if handle.is_large() {
            return self.get_large(handle, key, purpose);
        }
        let (part, piece) = self.piece(handle, key)?;
        self.store.read_piece(&part.page, piece, purpose, |bytes| {
            record_at(bytes, part.born_in, handle, key)
        })
    }

    /// The value of the handle of a large value. In private versions, the table does not list it.
    fn get_large(&self, handle: Handle, key: &[u8], purpose: ReadFor) -> Result<Slice> {
        let large = LargeValues::new(&self.store);
        match self.part(handle.birth)? {
            Some(part) => large.get_in(&part.page, handle, key, purpose),
            None => large.get(handle, key, purpose),
        }
    }

    /// The values of many handles, each of its key, as [`ValueTable::get`] finds one. The device
    /// reads them in parallel, and neighbours in one read. `found` gets the number of each in
    /// `wants`, with its value or error, in any order. Returns the number of reads. O(n log n).
    ///
    /// # Errors
    ///
    /// Those that concern no single value. Some of `wants` were not found then.
    pub fn get_many(
        &self,
        wants: &[(Handle, &[u8])],
        purpose: ReadFor,
        found: &mut dyn FnMut(usize, Result<Slice>),
    ) -> Result<u64> {
        let mut parts = Vec::with_capacity(wants.len());
        let mut pieces = Vec::with_capacity(wants.len());
        let mut large_reads = 0;
        for (number, &(handle, key)) in wants.iter().enumerate() {
            if handle.is_large() {
                large_reads += 1;
                found(number, self.get_large(handle, key, purpose));
                continue;
            }
            match self.piece(handle, key) {
                Ok((part, piece)) => {
                    parts.push((number, part.born_in));
                    pieces.push((part.page, piece));
                }
                Err(error) => found(number, Err(error)),
            }
        }
        let reads = self
            .store
            .read_pieces(&pieces, purpose, &mut |piece, bytes| {
                let (number, born_in) = parts[piece];
                let (handle, key) = wants[number];
                let value = bytes.and_then(|bytes| {
                    record_at(bytes, born_in, handle, key)
                        .map_err(|error| error.with("page", pieces[piece].0.id))
                });
                found(number, value);
            })?;
        Ok(reads + large_reads)
    }

    /// Where the value of a handle of `key` is. The handle is of no large value.
    ///
    /// # Errors
    ///
    /// As for [`ValueTable::get`].
    pub fn place(&self, handle: Handle, key: &[u8]) -> Result<ValuePlace> {
        let (part, piece) = self.piece(handle, key)?;
        let place = piece.start / PLACE_BYTES as u64;
        Ok(ValuePlace {
            page: part.page,
            place: u32::try_from(place).unwrap_or(u32::MAX),
            bytes: u32::try_from(piece.end - piece.start).unwrap_or(u32::MAX),
        })
    }

    /// The value at a place, if the record there is the key's.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if no sound record is there; those of the read.
    pub fn read_at(&self, place: &ValuePlace, key: &[u8]) -> Result<Option<Slice>> {
        let start = u64::from(place.place) * PLACE_BYTES as u64;
        let end = (start + u64::from(place.bytes)).min(place.page.bytes);
        self.store
            .read_piece(&place.page, start..end, ReadFor::Get, |bytes| {
                value_of_key(bytes, key)
            })
    }

    /// The part and the piece of its page that has the record of a handle.
    fn piece(&self, handle: Handle, key: &[u8]) -> Result<(PartRef, Range<u64>)> {
        let part = self.part(handle.birth)?.ok_or_else(|| dangling(handle))?;
        let position = self.position(&part, handle)?;
        let start = u64::from(position) * PLACE_BYTES as u64;
        let longest = (HEADER_BYTES + key.len()) as u64 + u64::from(handle.value_bytes);
        let end = start
            .saturating_add(longest)
            .min(u64::from(part.record_bytes));
        Ok((part, start..end))
    }

    fn position(&self, part: &PartRef, handle: Handle) -> Result<u32> {
        if part.page.id == part.born_in {
            return Ok(handle.place);
        }
        let directory = self.directory(part)?;
        directory
            .part(part.birth)
            .and_then(|entry| entry.position(handle.place))
            .ok_or_else(|| dangling(handle))
    }

    /// The directory of a part's page, through the cache. Linear in the directory if it is not
    /// cached.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] for a damaged directory; those of reads.
    pub fn directory(&self, part: &PartRef) -> Result<Arc<Directory>> {
        let decode = |bytes: &[u8]| {
            let directory = Directory::decode(bytes, part.page.id)?;
            let memory_bytes = directory.memory_bytes();
            Ok((directory, memory_bytes))
        };
        self.store
            .piece_object(&part.page, part.directory(), &decode)
    }

    /// Calls `visit` for each part, births ascending. Linear.
    ///
    /// # Errors
    ///
    /// Those of reads and of `visit`.
    pub fn parts(&self, visit: &mut dyn FnMut(&PartRef) -> Result<()>) -> Result<()> {
        let Some(leaves) = self.leaves()? else {
            return Ok(());
        };
        for listed in &leaves.leaves {
            self.leaf(listed)?.parts.iter().try_for_each(&mut *visit)?;
        }
        Ok(())
    }

    /// Calls `visit` for each reference to a page: root, leaves, and the value page of each part.
    /// Pages of several parts come once for each.
    ///
    /// # Errors
    ///
    /// Those of reads and of `visit`.
    pub fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        let (Some(root), Some(leaves)) = (&self.root, self.leaves()?) else {
            return Ok(());
        };
        visit(PageUse::from(&root.page))?;
        for listed in &leaves.leaves {
            visit(PageUse::from(&listed.page))?;
        }
        self.parts(&mut |part| visit(part.page))
    }
}

/// The error for an edit that contradicts the table.
fn contradiction(message: &'static str, birth: u64) -> Error {
    Error::internal(message).with("birth", birth)
}
