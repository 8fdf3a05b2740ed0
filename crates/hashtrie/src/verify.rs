//! The full check of a version: every byte of every page, and the rules between pages. Pages are
//! read from the device, not from the cache. Hashes themselves are checked by the engine, which
//! knows their seed.

use terrapin_base::{Error, Result};
use terrapin_pages::block::Block;
use terrapin_pages::group::{Deadlines, GroupIndex, GroupRef, check_group};
use terrapin_pages::{PageKind, PageRef, PageStore, PageUse};
use terrapin_structure::Finding;

use crate::digits::{Fanout, Stretch, prefix_of};
use crate::format::{Child, Leaf, Node, Part, Root, RunRef, Sums};
use crate::node::{prefixes_of, root_place};
use crate::table::Table;

/// A check in progress.
struct Check<'a> {
    store: &'a PageStore,
    found: &'a mut dyn FnMut(Finding),
    pages: Vec<PageUse>,
}

/// Checks everything below a root. Damage and device errors are findings; other errors end the
/// check.
pub(crate) fn verify(store: &PageStore, root: &Root, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let Root::Trie(trie) = root else {
        return Ok(());
    };
    let mut check = Check {
        store,
        found,
        pages: Vec::new(),
    };
    let sums = (&trie.sums, None);
    check.node(&trie.node, root_place(trie), trie.fanout, sums)?;
    check.extents();
    Ok(())
}

impl Check<'_> {
    /// Reports damage, and passes other errors on.
    fn survive<T>(&mut self, page: PageUse, checked: Result<T>) -> Result<Option<T>> {
        match checked {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_of_data() => {
                let place = format!("page {}", page.id);
                (self.found)(Finding::new(place, error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn report(&mut self, page: PageUse, message: &str) {
        (self.found)(Finding::new(format!("page {}", page.id), message));
    }

    /// Checks a node and all below it. The root has no sum of deadlines.
    fn node(
        &mut self,
        page: &PageRef,
        (own, stretch): (Fanout, Stretch),
        fanout: Fanout,
        (sums, deadlines): (&Sums, Option<&Deadlines>),
    ) -> Result<()> {
        let used = PageUse::from(page);
        self.pages.push(used);
        let content = self.store.read_page(page, PageKind::TrieNode);
        let read = content.and_then(|content| Node::decode(&content, own, stretch));
        let Some(node) = self.survive(used, read)? else {
            return Ok(());
        };
        let expire = node.deadlines();
        if node.sums() != *sums || deadlines.is_some_and(|deadlines| expire != *deadlines) {
            self.report(used, "sums and children contradict each other");
        }
        for (number, child) in node.children.iter().enumerate() {
            let stretch = stretch.child(own, number);
            match child {
                None => {}
                Some(Child::Leaf(leaf)) => self.leaf(used, leaf, stretch)?,
                Some(Child::Node(child)) => {
                    let sums = (&child.sums, Some(&child.deadlines));
                    self.node(&child.page, (fanout, stretch), fanout, sums)?;
                }
            }
        }
        Ok(())
    }

    fn leaf(&mut self, node: PageUse, leaf: &Leaf, stretch: Stretch) -> Result<()> {
        let mut lists = Vec::new();
        for run in &leaf.runs {
            let list = self.run(run, stretch)?;
            lists.extend(list.map(|list| (run.slot, list)));
        }
        if !leaf.runs.last().is_some_and(|run| run.is_base) {
            self.report(node, "a leaf without a base");
        }
        let runs: Vec<_> = lists
            .iter()
            .map(|(slot, list)| (*slot, &list[..]))
            .collect();
        let table = Table::build(stretch, &runs);
        let is_named = |slot: &u8, prefix: &u64| table.slots(*prefix).as_slice().contains(slot);
        let all_named = lists
            .iter()
            .all(|(slot, list)| list.iter().all(|prefix| is_named(slot, prefix)));
        if !all_named {
            self.report(node, "the table of a leaf misses a record");
        }
        Ok(())
    }

    /// Checks a run, and returns its prefixes if they can be read.
    fn run(&mut self, run: &RunRef, stretch: Stretch) -> Result<Option<Vec<u64>>> {
        let used = PageUse::from(&run.list);
        self.pages.push(used);
        let list = prefixes_of(self.store, run);
        let list = self.survive(used, list)?;
        let mut prefixes = Vec::new();
        let mut is_whole = true;
        let mut before: Option<Vec<u8>> = None;
        for part in &run.groups {
            let used = PageUse::from(&part.group);
            self.pages.push(used);
            let start = prefixes.len();
            let checked = self.group(part, &mut prefixes, &mut before);
            if self.survive(used, checked)?.is_none() {
                is_whole = false;
                continue;
            }
            let own = &prefixes[start..];
            let ends = own.first().copied().zip(own.last().copied());
            if ends != Some(part.prefixes) || !own.iter().all(|own| stretch.contains(*own)) {
                self.report(
                    used,
                    "hashes outside of the leaf, or other ones than it says",
                );
            }
        }
        if is_whole && list.as_ref().is_some_and(|list| *list != prefixes) {
            self.report(
                used,
                "the list of hashes and the records contradict each other",
            );
        }
        Ok(list)
    }

    /// Checks a group, and appends the prefixes of its records. `before` is the last key so far.
    fn group(
        &self,
        part: &Part,
        prefixes: &mut Vec<u64>,
        before: &mut Option<Vec<u8>>,
    ) -> Result<()> {
        let group: &GroupRef = &part.group;
        let image = self.store.read_whole_group(group)?;
        check_group(&image, group)?;
        // A sound group has its index and blocks where the references say.
        let index = &image[group.index_offset as usize..][..group.index_bytes as usize];
        let index = GroupIndex::decode(index, group.id)?;
        if index.deadlines() != part.deadlines {
            return Err(Error::corrupt("index and reference contradict each other"));
        }
        if before
            .as_ref()
            .is_some_and(|before| before[..] >= *index.first_key())
        {
            return Err(Error::corrupt("keys of a run's groups do not ascend"));
        }
        let mut key = Vec::new();
        for number in 0..index.blocks() {
            let (offset, bytes) = index.block_place(number);
            let stored = &image[offset as usize..][..bytes as usize];
            let block = Block::decode(stored, group.id, number as u32)?;
            for record in 0..block.len() {
                block.key_into(record, &mut key);
                prefixes.push(prefix_of(&key)?);
            }
        }
        *before = Some(index.last_key().to_vec());
        Ok(())
    }

    /// Reports pages whose extents overlap.
    fn extents(&mut self) {
        let mut pages = std::mem::take(&mut self.pages);
        pages.sort_unstable_by_key(|page| page.offset);
        let mut end = 0;
        for page in pages {
            match page.extent() {
                None => self.report(page, "an impossible place"),
                Some(extent) => {
                    if extent.offset < end {
                        self.report(page, "overlaps the page before");
                    }
                    end = end.max(extent.end());
                }
            }
        }
    }
}
