//! The content of one simulated file: pages that clones share until one of them writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The unit in bytes that a power cut keeps or loses as a whole.
pub const SECTOR_BYTES: u64 = 512;
/// The unit in bytes of allocation, and of ring stores that reach the medium.
pub const PAGE_BYTES: u64 = 4096;

/// A file's bytes and its allocation.
///
/// An absent page is a hole. A page without content was allocated and never written. Both read as
/// zeros.
#[derive(Clone, Default)]
pub(super) struct Image {
    bytes: u64,
    pages: BTreeMap<u64, Option<Arc<[u8; PAGE_BYTES as usize]>>>,
}

/// Numbers of the pages that a range touches.
pub(super) fn pages_of(offset: u64, bytes: u64) -> Range<u64> {
    if bytes == 0 {
        return 0..0;
    }
    offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES)
}

/// Splits a range at page boundaries: page number, offset in the page, length.
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    pages_of(offset, bytes).map(move |page| {
        let start = offset.max(page * PAGE_BYTES);
        let end = (offset + bytes).min((page + 1) * PAGE_BYTES);
        (page, (start % PAGE_BYTES) as usize, (end - start) as usize)
    })
}

impl Image {
    /// The file's size.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the file occupies.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// Numbers of the allocated pages in a range.
    pub(super) fn present(&self, pages: Range<u64>) -> Vec<u64> {
        self.pages.range(pages).map(|(&page, _)| page).collect()
    }

    /// Number of pages in the range that are holes.
    pub(super) fn holes(&self, pages: Range<u64>) -> u64 {
        let all = pages.end - pages.start;
        all - self.pages.range(pages).count() as u64
    }

    /// Fills `out` from `offset`. Bytes that were never written are zeros.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut out = out;
        for (page, start, len) in pieces(offset, out.len() as u64) {
            let (head, tail) = out.split_at_mut(len);
            match self.pages.get(&page) {
                Some(Some(content)) => head.copy_from_slice(&content[start..start + len]),
                _ => head.fill(0),
            }
            out = tail;
        }
    }

    /// Fills `out` from `offset`. Returns `false`, and leaves `out`, if the file ends before that.
    pub(super) fn read_within(&self, offset: u64, out: &mut [u8]) -> bool {
        let fits = (offset.checked_add(out.len() as u64)).is_some_and(|end| end <= self.bytes);
        if fits {
            self.read(offset, out);
        }
        fits
    }

    /// Whether a range has equal content in both images, and ends within both.
    pub(super) fn agrees(&self, other: &Image, range: Range<u64>) -> bool {
        let bytes = range.end.saturating_sub(range.start);
        range.end <= self.bytes.min(other.bytes)
            && pieces(range.start, bytes).all(|(page, start, len)| {
                match (self.pages.get(&page), other.pages.get(&page)) {
                    (Some(Some(mine)), Some(Some(theirs))) => {
                        Arc::ptr_eq(mine, theirs)
                            || mine[start..start + len] == theirs[start..start + len]
                    }
                    (Some(Some(content)), _) | (_, Some(Some(content))) => {
                        content[start..start + len].iter().all(|&b| b == 0)
                    }
                    _ => true,
                }
            })
    }

    /// Stores bytes. The file's size does not change.
    pub(super) fn store(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, len) in pieces(offset, bytes.len() as u64) {
            let (head, tail) = rest.split_at(len);
            let content = self.pages.entry(page).or_default();
            let content = content.get_or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(content)[start..start + len].copy_from_slice(head);
            rest = tail;
        }
    }

    /// Extends the file to `bytes`, unless it is longer.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
    }

    /// Truncates or extends the file.
    pub(super) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.clip();
    }

    /// Clears everything beyond the file's end, so that a later extension reads as zeros.
    pub(super) fn clip(&mut self) {
        drop(self.pages.split_off(&self.bytes.div_ceil(PAGE_BYTES)));
        let cut = (self.bytes % PAGE_BYTES) as usize;
        if cut > 0
            && let Some(Some(last)) = self.pages.get_mut(&(self.bytes / PAGE_BYTES))
        {
            Arc::make_mut(last)[cut..].fill(0);
        }
    }

    /// Allocates a range and grows the file to its end.
    pub(super) fn allocate(&mut self, offset: u64, bytes: u64) {
        for page in pages_of(offset, bytes) {
            self.pages.entry(page).or_default();
        }
        self.grow(offset + bytes);
    }

    /// Makes a range read as zeros, and frees each page that lies wholly inside. The size stays.
    pub(super) fn punch(&mut self, offset: u64, bytes: u64) {
        for page in self.present(pages_of(offset, bytes)) {
            let start = offset.max(page * PAGE_BYTES) - page * PAGE_BYTES;
            let end = (offset + bytes).min((page + 1) * PAGE_BYTES) - page * PAGE_BYTES;
            if end - start == PAGE_BYTES {
                self.pages.remove(&page);
            } else if let Some(Some(content)) = self.pages.get_mut(&page) {
                Arc::make_mut(content)[start as usize..end as usize].fill(0);
            }
        }
    }

    /// Copies one page from another image, or makes it a hole if it is one there.
    pub(super) fn take_page(&mut self, page: u64, from: &Image) {
        match from.pages.get(&page) {
            Some(content) => drop(self.pages.insert(page, content.clone())),
            None => drop(self.pages.remove(&page)),
        }
    }

    /// Stores bytes into allocated pages only. Holes stay holes.
    pub(super) fn store_present(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, len) in pieces(offset, bytes.len() as u64) {
            let (head, tail) = rest.split_at(len);
            if self.pages.contains_key(&page) {
                self.store(page * PAGE_BYTES + start as u64, head);
            }
            rest = tail;
        }
    }

    /// Flips bits of one byte, if the byte was written before.
    pub(super) fn flip(&mut self, offset: u64, mask: u8) {
        if let Some(Some(content)) = self.pages.get_mut(&(offset / PAGE_BYTES)) {
            Arc::make_mut(content)[(offset % PAGE_BYTES) as usize] ^= mask;
        }
    }
}

/// Splits bytes at sector boundaries. A power cut keeps or loses each piece as a whole.
pub(super) fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let (mut offset, mut rest) = (offset, bytes);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let to_bound = SECTOR_BYTES - offset % SECTOR_BYTES;
        let (head, tail) = rest.split_at(rest.len().min(to_bound as usize));
        let at = offset;
        offset += head.len() as u64;
        rest = tail;
        Some((at, head))
    })
}
