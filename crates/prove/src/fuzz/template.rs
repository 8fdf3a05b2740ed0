//! The small stores of the corpus of which targets change parts. [`super::seeds`] made them, and
//! they are committed, so inputs keep their meaning when the engine's output changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::archive::{File, unpack};
use super::repair::{u32_at, u64_at};

/// The folder of the corpus and the finds.
#[must_use]
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz"))
}

/// The files of a committed store; none if the corpus lacks it.
#[must_use]
pub fn files(name: &'static str) -> Vec<File> {
    static READ: Mutex<BTreeMap<&str, Vec<File>>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    read.entry(name)
        .or_insert_with(|| {
            let path = folder().join("corpus/directory").join(name);
            let input = fs::read(path).unwrap_or_default();
            unpack(input.get(1..).unwrap_or_default())
        })
        .clone()
}

/// A page of a data file, found by its magic where pages may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Node 1, catalog root 2, catalog leaf 3, map node 6, trie node 8, list of hashes 10.
    pub kind: u8,
    /// Its id.
    pub id: u64,
    /// Where it starts in the file.
    pub offset: usize,
    /// Bytes of its content.
    pub content_bytes: usize,
    /// The most bytes it may take: up to the next place where pages may start.
    pub room_bytes: usize,
}

/// Bytes of a page's header.
const HEADER_BYTES: usize = 24;

/// The pages of a kind, newest first. Pages of a store that was checkpointed once are all live.
#[must_use]
pub fn pages(data: &[u8], kind: u8) -> Vec<Page> {
    let mut pages: Vec<Page> = (8192..data.len())
        .step_by(4096)
        .filter(|&at| data[at..].starts_with(b"TpPg") && data.get(at + 4) == Some(&kind))
        .filter_map(|offset| {
            let content_bytes = u32_at(data, offset + 16)? as usize;
            let id = u64_at(data, offset + 8)?;
            let used = HEADER_BYTES + content_bytes;
            Some(Page {
                kind,
                id,
                offset,
                content_bytes,
                // A page's reference gives its length: whole sectors.
                room_bytes: used.next_multiple_of(512) - HEADER_BYTES,
            })
        })
        .collect();
    pages.sort_by_key(|page| std::cmp::Reverse(page.id));
    pages
}

impl Page {
    /// The content in its file.
    #[must_use]
    pub fn content<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        let from = self.offset + HEADER_BYTES;
        data.get(from..from + self.content_bytes)
            .unwrap_or_default()
    }

    /// Puts other content there, cut to the available room, and repairs the checksum.
    pub fn replace(&self, data: &mut [u8], content: &[u8]) {
        let content = &content[..content.len().min(self.room_bytes)];
        let Some(page) = data.get_mut(self.offset..self.offset + HEADER_BYTES + self.room_bytes)
        else {
            return;
        };
        page[HEADER_BYTES..].fill(0);
        page[HEADER_BYTES..HEADER_BYTES + content.len()].copy_from_slice(content);
        page[16..20].copy_from_slice(&(content.len() as u32).to_le_bytes());
        super::repair::page(page);
    }
}
