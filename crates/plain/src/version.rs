//! A version: a root, and all that readers ask it. The owner of a version keeps its pages.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Fold, Message, MessageKind, Result, Slice};
use terrapin_pages::block::Block;
use terrapin_pages::group::GroupIndex;
use terrapin_pages::{Fill, PageKind, PageStore, PageUse};
use terrapin_structure::{
    Direction, Estimate, Figure, Finding, Found, KeyBounds, Ordered, Presence, Scan,
    StructureStats, Version,
};

use crate::format::{List, Listed, Root};
use crate::scan::{PlainScan, is_empty};
use crate::verify;

/// The content of a keyspace at one checkpoint.
#[derive(Clone)]
pub(crate) struct PlainVersion {
    pub(crate) store: Arc<PageStore>,
    pub(crate) root: Root,
    pub(crate) is_ordered: bool,
}

impl PlainVersion {
    pub(crate) fn new(store: &Arc<PageStore>, root: Root, is_ordered: bool) -> Arc<Self> {
        Arc::new(PlainVersion {
            store: store.clone(),
            root,
            is_ordered,
        })
    }

    /// The list, through the cache; `None` without records.
    pub(crate) fn list(&self) -> Result<Option<Arc<List>>> {
        let Root::List(root) = &self.root else {
            return Ok(None);
        };
        let decode = |content: &[u8]| {
            let list = List::decode(content, root)?;
            let memory_bytes = list.memory_bytes();
            Ok((list, memory_bytes))
        };
        let list = self.store.object(&root.page, PageKind::Node, &decode);
        list.map(Some)
            .map_err(|error| error.with("page", root.page.id))
    }

    /// Where a key must be, if it is anywhere: the group, its index, and the number of the block.
    fn place(&self, list: &List, key: &[u8]) -> Result<Option<(usize, Arc<GroupIndex>, usize)>> {
        let at = list
            .groups
            .partition_point(|listed| listed.last_key[..] < *key);
        match list.groups.get(at) {
            Some(listed) if listed.first_key[..] <= *key => {
                let index = index_of(&self.store, listed)?;
                let block = index.find(key);
                Ok(Some((at, index, block)))
            }
            _ => Ok(None),
        }
    }

    fn find<R>(&self, key: &[u8], take: impl Fn(&Arc<Block>, usize) -> R) -> Result<Option<R>> {
        let Some(list) = self.list()? else {
            return Ok(None);
        };
        let Some((at, index, number)) = self.place(&list, key)? else {
            return Ok(None);
        };
        let group = &list.groups[at].group;
        let block = self.store.block(group, &index, number, Fill::Normal)?;
        check_block(&block, &list.groups[at])?;
        Ok(block.search(key).ok().map(|at| take(&block, at)))
    }
}

/// The index of a group, through the cache. An index that contradicts the list is an error: a
/// lookup would not find what is there.
pub(crate) fn index_of(store: &PageStore, listed: &Listed) -> Result<Arc<GroupIndex>> {
    let index = store.index(&listed.group)?;
    if index.first_key() != listed.first_key || index.last_key() != listed.last_key {
        return Err(
            Error::corrupt("list and index contradict each other").with("page", listed.group.id)
        );
    }
    Ok(index)
}

/// Refuses a block with tombstones: this structure writes none.
pub(crate) fn check_block(block: &Block, listed: &Listed) -> Result<()> {
    match block.has_deletes() {
        true => Err(Error::corrupt("a tombstone in its last place").with("page", listed.group.id)),
        false => Ok(()),
    }
}

fn found(block: &Arc<Block>, at: usize) -> Result<Found> {
    match block.message(at) {
        Message::Put(_) => Ok(Found::Value(block.value_slice(at))),
        Message::Delete => Ok(Found::Nothing),
        Message::Separated(handle) => Ok(Found::Handle(Slice::copy(handle))),
        Message::Expiring(payload) => Ok(Found::Expiring(Slice::copy(payload))),
        message @ (Message::Merge(_) | Message::Stack(_)) => {
            let mut fold = Fold::default();
            fold.push(message)?;
            Ok(Found::gathered(&mut fold, &block.key(at)))
        }
    }
}

fn named(nodes: u64, groups: u64) -> Vec<(&'static str, Figure)> {
    vec![
        ("nodes", Figure::Number(nodes)),
        ("groups", Figure::Number(groups)),
    ]
}

impl Version for PlainVersion {
    fn root(&self) -> Vec<u8> {
        self.root.encode()
    }

    fn get(&self, key: &[u8], _hash: u64) -> Result<Found> {
        self.find(key, found)?.unwrap_or(Ok(Found::Nothing))
    }

    fn contains(&self, key: &[u8], _hash: u64) -> Result<Presence> {
        let presence = |block: &Arc<Block>, at: usize| match block.kind(at) {
            MessageKind::Put => Presence::Present,
            MessageKind::Delete => Presence::Absent,
            MessageKind::Separated => Presence::of_handle(block.message(at)),
            MessageKind::Merge | MessageKind::Stack | MessageKind::Expiring => Presence::Unresolved,
        };
        Ok(self.find(key, presence)?.unwrap_or(Presence::Absent))
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        if keys.len() != out.len() {
            return Err(Error::invalid(
                "the number of result places differs from the number of keys",
            )
            .with("keys", keys.len())
            .with("places", out.len()));
        }
        let Some(list) = self.list()? else {
            return Ok(());
        };
        let (mut wants, mut places) = (Vec::new(), Vec::new());
        for (number, (key, _)) in keys.iter().enumerate() {
            if let Some((at, index, block)) = self.place(&list, key)? {
                wants.push((list.groups[at].group, index, block));
                places.push((number, at));
            }
        }
        let blocks = self.store.blocks(&wants, Fill::Normal)?;
        for ((number, at), block) in places.into_iter().zip(&blocks) {
            check_block(block, &list.groups[at])?;
            if let Ok(record) = block.search(keys[number].0) {
                out[number] = found(block, record)?;
            }
        }
        Ok(())
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.is_ordered.then_some(self)
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        if let Root::List(root) = &self.root {
            visit(PageUse::from(&root.page))?;
        }
        let list = self.list()?;
        for listed in list.iter().flat_map(|list| &list.groups) {
            visit(PageUse::from(&listed.group))?;
        }
        Ok(())
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::List(list) => list.bytes,
        })
    }

    fn stats(&self) -> Result<StructureStats> {
        let mut stats = StructureStats::default();
        let (Root::List(root), Some(list)) = (&self.root, self.list()?) else {
            stats.named = named(0, 0);
            return Ok(stats);
        };
        let mut occupied = 0u64;
        // A hostile list may claim any number: figures saturate.
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        let mut count = |page: PageUse| {
            add(&mut stats.page_bytes, page.bytes);
            add(
                &mut occupied,
                page.extent().map_or(page.bytes, |extent| extent.bytes),
            );
        };
        count(PageUse::from(&root.page));
        stats.parts.nodes = u64::from(root.page.bytes);
        for Listed { group, .. } in &list.groups {
            count(PageUse::from(group));
            add(&mut stats.parts.leaf_blocks, u64::from(group.index_offset));
            add(&mut stats.parts.indexes, u64::from(group.index_bytes));
            add(&mut stats.parts.filters, u64::from(group.filter_bytes));
        }
        stats.parts.padding = occupied.saturating_sub(stats.parts.total());
        stats.leaf_records = root.records;
        stats.leaf_bytes = root.bytes;
        stats.named = named(1, root.groups);
        Ok(stats)
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        verify::verify(&self.store, &self.root, found)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Ordered for PlainVersion {
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        _expected: usize,
    ) -> Result<Box<dyn Scan>> {
        let list = match is_empty(bounds) {
            true => None,
            false => self.list()?,
        };
        Ok(Box::new(PlainScan::new(
            &self.store,
            list,
            bounds,
            direction,
        )))
    }

    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate> {
        let mut sum = Estimate::default();
        let list = match is_empty(bounds) {
            true => None,
            false => self.list()?,
        };
        let key = |bound| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
        };
        let (lo, hi): (Option<&[u8]>, Option<&[u8]>) = (key(bounds.0), key(bounds.1));
        for listed in list.iter().flat_map(|list| &list.groups) {
            let (first, last) = (&listed.first_key[..], &listed.last_key[..]);
            let (records, bytes) =
                if lo.is_some_and(|lo| lo > last) || hi.is_some_and(|hi| hi < first) {
                    (0, 0)
                } else if lo.is_none_or(|lo| lo <= first) && hi.is_none_or(|hi| hi > last) {
                    (listed.group.records, listed.group.logical_bytes)
                } else {
                    let sums = index_of(&self.store, listed)?.estimate(lo, hi);
                    (sums.records, sums.bytes)
                };
            sum.records = sum.records.saturating_add(records);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
        Ok(sum)
    }
}
