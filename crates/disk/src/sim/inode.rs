//! One simulated file in two states: as the process sees it, and as the medium holds it. The
//! pending changes lead from the second to the first.

use std::collections::{BTreeMap, BTreeSet};

use terrapin_base::sync::Arc;

use super::image::{Image, PAGE_BYTES, pages_of};
use super::op::IoStats;
use super::random::Random;

/// A change to a file that no sync has covered.
#[derive(Clone)]
pub(super) enum Change {
    Store { offset: u64, bytes: Arc<[u8]> },
    SetBytes(u64),
    Allocate { offset: u64, bytes: u64 },
    Punch { offset: u64, bytes: u64 },
}

/// A change to the directory that no sync has covered.
#[derive(Clone)]
pub(super) enum NameChange {
    Link(String, u64),
    Unlink(String),
    Rename(String, String, u64),
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    /// The content that the process sees.
    pub(super) current: Image,
    /// The content that survives every power cut.
    pub(super) durable: Image,
    /// Changes between `durable` and `current`, oldest first, each with its sequence number on the
    /// disk.
    pub(super) pending: Vec<(u64, Change)>,
    /// Pages in which `pending` may make the two states differ.
    pub(super) touched: BTreeSet<u64>,
    /// Pages in which ring stores make the two states differ, with the last store's sequence
    /// number.
    pub(super) ring_pages: BTreeMap<u64, u64>,
    /// Whether the file was opened as a ring. No misdirected write goes there, since a real mapping
    /// would not show the write.
    pub(super) is_ring: bool,
    /// The file's birth time, which tells it from files of other disks; not 0.
    pub(super) birth: u64,
    pub(super) handles: u64,
    pub(super) locked: bool,
    /// Number of open handles that exclude writers.
    pub(super) sharers: u64,
    /// The locked slots of a table of readers, each with the number of the handle that holds it.
    pub(super) slots: BTreeMap<usize, u64>,
    pub(super) stats: IoStats,
}

impl Change {
    pub(super) fn apply(&self, image: &mut Image) {
        match self {
            Change::Store { offset, bytes } => {
                image.store(*offset, bytes);
                image.grow(offset + bytes.len() as u64);
            }
            Change::SetBytes(bytes) => image.set_bytes(*bytes),
            Change::Allocate { offset, bytes } => image.allocate(*offset, *bytes),
            Change::Punch { offset, bytes } => image.punch(*offset, *bytes),
        }
    }
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Link(name, inode) => drop(names.insert(name.clone(), *inode)),
            NameChange::Unlink(name) => drop(names.remove(name)),
            NameChange::Rename(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl Inode {
    /// Makes a change that the process sees at once and the medium holds after the next sync. `at`
    /// is its sequence number.
    pub(super) fn change(&mut self, at: u64, change: Change) {
        match &change {
            Change::Store { offset, bytes } => {
                self.touched.extend(pages_of(*offset, bytes.len() as u64));
            }
            Change::Allocate { offset, bytes } => self.touched.extend(pages_of(*offset, *bytes)),
            Change::Punch { offset, bytes } => {
                let present = self.current.present(pages_of(*offset, *bytes));
                self.touched.extend(present);
            }
            Change::SetBytes(bytes) => {
                let present = self.current.present(bytes / PAGE_BYTES..u64::MAX);
                self.touched.extend(present);
            }
        }
        change.apply(&mut self.current);
        self.pending.push((at, change));
    }

    /// Stores into this file's ring. In one call of 32 a page reaches the medium, as kernel
    /// writeback does it.
    pub(super) fn ring_store(&mut self, at: u64, offset: u64, bytes: &[u8], random: &mut Random) {
        self.current.store(offset, bytes);
        for page in pages_of(offset, bytes.len() as u64) {
            self.ring_pages.insert(page, at);
        }
        if random.below(32) == 0 && !self.ring_pages.is_empty() {
            let nth = random.below(self.ring_pages.len() as u64) as usize;
            if let Some(page) = self.ring_pages.keys().nth(nth).copied() {
                self.ring_pages.remove(&page);
                self.durable.take_page(page, &self.current);
            }
        }
    }

    /// Makes the content that the process sees durable.
    pub(super) fn settle(&mut self) {
        for page in std::mem::take(&mut self.touched) {
            self.durable.take_page(page, &self.current);
        }
        self.durable.set_bytes(self.current.bytes());
        self.pending.clear();
    }
}
