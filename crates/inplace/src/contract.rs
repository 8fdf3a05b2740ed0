//! The contract of versions: what the engine asks of a keyspace's content.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::{PageStore, PageUse};
use terrapin_runs::bounds::is_empty;
use terrapin_runs::lookup;
use terrapin_structure::{
    Direction, Estimate, Finding, Found, KeyBounds, Ordered, Presence, Scan, StructureStats,
    Version,
};

use crate::format::{ABOVE_LEAVES, Leaf, Root};
use crate::get::Walk;
use crate::node::Node;
use crate::scan::InPlaceScan;
use crate::version::InPlaceVersion;
use crate::{stats, verify};

/// Visits pages below a node, and the node. Errors of nodes are kept, and returned at the end.
fn visit_below(
    store: &Arc<PageStore>,
    node: &Node,
    visit: &mut dyn FnMut(PageUse) -> Result<()>,
    unread: &mut Result<()>,
) -> Result<()> {
    for (number, entry) in node.inner.entries.iter().enumerate() {
        visit(PageUse::from(&entry.page))?;
        if node.inner.height > ABOVE_LEAVES {
            match node.child(store, number) {
                Ok(child) => visit_below(store, &child, visit, unread)?,
                Err(error) => *unread = Err(error),
            }
            continue;
        }
        for group in &entry.waiting {
            visit(PageUse::from(group))?;
        }
        match node.leaf(store, number) {
            Ok(leaf) => visit_segments(&leaf, visit)?,
            Err(error) => *unread = Err(error),
        }
    }
    Ok(())
}

fn visit_segments(leaf: &Leaf, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
    for number in 0..leaf.len() {
        visit(PageUse::from(&leaf.segment(number)?.group))?;
    }
    Ok(())
}

impl Version for InPlaceVersion {
    fn root(&self) -> Vec<u8> {
        self.root.encode()
    }

    fn get(&self, key: &[u8], hash: u64) -> Result<Found> {
        let lookup = || Walk::new(self, key, hash);
        match lookup::find(&self.store, lookup()?, lookup::found_in)? {
            Some(Found::Operands(_)) => lookup::gather(&self.store, lookup()?),
            found => Ok(found.unwrap_or_default()),
        }
    }

    fn contains(&self, key: &[u8], hash: u64) -> Result<Presence> {
        lookup::presence(&self.store, Walk::new(self, key, hash)?)
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        if keys.len() != out.len() {
            let message = "the number of result places differs from the number of keys";
            return Err(Error::invalid(message)
                .with("keys", keys.len())
                .with("places", out.len()));
        }
        lookup::find_many(&self.store, out, |at| {
            let (key, hash) = keys[at];
            Walk::new(self, key, hash)
        })
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        let Root::Map(map) = &self.root else {
            return Ok(());
        };
        visit(PageUse::from(&map.page))?;
        let mut unread = Ok(());
        if let Some(root) = self.root_node()? {
            visit_below(&self.store, &root, visit, &mut unread)?;
        }
        unread
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::Map(map) => self.stored_bytes()?.saturating_sub(map.sums.hidden_bytes),
        })
    }

    fn stored_bytes(&self) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::Map(map) => map.sums.bytes.saturating_add(map.sums.waiting_bytes),
        })
    }

    fn stats(&self) -> Result<StructureStats> {
        stats::stats(self)
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        verify::verify(&self.store, &self.root, found)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Ordered for InPlaceVersion {
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>> {
        let scan = InPlaceScan::begin(self, bounds, direction, expected)?;
        Ok(Box::new(scan))
    }

    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate> {
        let mut sum = Estimate::default();
        if is_empty(bounds.0, bounds.1) {
            return Ok(sum);
        }
        let key = |bound| match bound {
            Bound::Unbounded => None,
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
        };
        if let Some(root) = self.root_node()? {
            estimate_node(&self.store, &root, (key(bounds.0), key(bounds.1)), &mut sum)?;
        }
        Ok(sum)
    }
}

type Ends<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn add(sum: &mut Estimate, records: u64, bytes: u64) {
    sum.records = sum.records.saturating_add(records);
    sum.bytes = sum.bytes.saturating_add(bytes);
}

/// Adds what a node has between two keys. Entries inside count by their sums; the two at the ends
/// are looked into.
fn estimate_node(store: &PageStore, node: &Node, ends: Ends<'_>, sum: &mut Estimate) -> Result<()> {
    let first = ends.0.map_or(0, |lo| node.inner.find(lo));
    let last = ends
        .1
        .map_or(node.inner.entries.len() - 1, |hi| node.inner.find(hi));
    for number in first..=last {
        let (from, to) = (
            ends.0.filter(|_| number == first),
            ends.1.filter(|_| number == last),
        );
        let entry = &node.inner.entries[number];
        if (from, to) == (None, None) {
            let sums = &entry.sums;
            let records = sums.records.saturating_add(sums.waiting_records);
            add(sum, records, sums.bytes.saturating_add(sums.waiting_bytes));
        } else if node.inner.height > ABOVE_LEAVES {
            estimate_node(store, &*node.child(store, number)?, (from, to), sum)?;
        } else {
            for (group, handle) in node.waiting(number) {
                let part = store.index_by(group, handle)?.estimate(from, to);
                add(sum, part.records, part.bytes);
            }
            estimate_leaf(&*node.leaf(store, number)?, (from, to), sum)?;
        }
    }
    Ok(())
}

fn estimate_leaf(leaf: &Leaf, (from, to): Ends<'_>, sum: &mut Estimate) -> Result<()> {
    let first = from.map_or(0, |lo| leaf.up_to(lo).saturating_sub(1));
    let end = to.map_or(leaf.len(), |hi| leaf.up_to(hi));
    let mut scratch = Vec::new();
    for number in first..end {
        let segment = leaf.segment(number)?;
        let is_inside = number != first && number + 1 != end;
        if is_inside || (from, to) == (None, None) {
            add(sum, segment.group.records, segment.group.logical_bytes);
        } else {
            let index = segment.index.decode(&segment.group, &mut scratch)?;
            let part = index.estimate(from, to);
            add(sum, part.records, part.bytes);
        }
    }
    Ok(())
}
