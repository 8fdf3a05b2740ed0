//! Point lookups. The trie leads to the key's leaf. The leaf's table names the runs that may hold
//! the key, newest first: mostly the one that does, or none. So a lookup reads the device once, and
//! one of an absent key does not read it, with nodes and tables cached.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::PageStore;
use terrapin_pages::group::{BlockPlace, GroupRef};
use terrapin_runs::lookup::Lookup;

use crate::digits::prefix_of;
use crate::node::Loaded;
use crate::table::SlotList;
use crate::version::TrieVersion;

/// A lookup in progress.
pub(crate) struct Walk<'k> {
    key: &'k [u8],
    prefix: u64,
    /// The node above the key's leaf, and the leaf's number there; `None` without a leaf.
    at: Option<(Arc<Loaded>, usize)>,
    /// The slots of the runs to ask, once the table was asked.
    slots: Option<SlotList>,
    /// How many of the slots are done, and where in the run of the next one to go on: records of
    /// one prefix may be in several groups.
    asked: usize,
    next_group: usize,
}

impl<'k> Walk<'k> {
    pub(crate) fn new(version: &TrieVersion, key: &'k [u8]) -> Result<Self> {
        // No record has a key that is too short for a hash.
        let Ok(prefix) = prefix_of(key) else {
            return Ok(Self::at(key, 0, None));
        };
        let mut next = version.root_node()?;
        let mut at = None;
        while let Some(node) = next {
            let number = node.node.stretch.child_of(node.node.fanout, prefix);
            next = node.child(&version.store, number)?;
            if next.is_none() {
                at = node.leaf(number).is_some().then_some((node, number));
            }
        }
        Ok(Self::at(key, prefix, at))
    }

    fn at(key: &'k [u8], prefix: u64, at: Option<(Arc<Loaded>, usize)>) -> Self {
        Walk {
            key,
            prefix,
            at,
            slots: None,
            asked: 0,
            next_group: 0,
        }
    }
}

impl Lookup for Walk<'_> {
    #[inline]
    fn key(&self) -> &[u8] {
        self.key
    }

    fn next(&mut self, store: &PageStore) -> Result<Option<(GroupRef, BlockPlace)>> {
        let Some((node, number)) = &self.at else {
            return Ok(None);
        };
        let Some(leaf) = node.leaf(*number) else {
            return Ok(None);
        };
        if self.slots.is_none() {
            self.slots = Some(leaf.table(store)?.slots(self.prefix));
        }
        let slots = self.slots.as_ref().map_or(&[][..], SlotList::as_slice);
        while self.asked < slots.len() {
            let at = match mutant::active("oldest-run-asked-first") {
                true => slots.len() - 1 - self.asked,
                false => self.asked,
            };
            let runs = &leaf.leaf.runs;
            let run = runs.iter().position(|run| run.slot == slots[at]);
            let Some(run) = run else {
                self.asked += 1;
                continue;
            };
            let groups = &runs[run].groups;
            let begin = groups.partition_point(|part| part.prefixes.1 < self.prefix);
            let left = groups.iter().enumerate().skip(begin.max(self.next_group));
            for (number, part) in left {
                if part.prefixes.0 > self.prefix {
                    break;
                }
                let index = match leaf.handles(run).get(number) {
                    Some(handle) => store.index_by(&part.group, handle)?,
                    None => store.index(&part.group)?,
                };
                if self.key < index.first_key() || self.key > index.last_key() {
                    continue;
                }
                self.next_group = number + 1;
                let number = index.find(self.key);
                let (offset, bytes) = index.block_place(number);
                let place = BlockPlace {
                    number,
                    offset,
                    bytes,
                };
                return Ok(Some((part.group, place)));
            }
            self.asked += 1;
            self.next_group = 0;
        }
        Ok(None)
    }
}
