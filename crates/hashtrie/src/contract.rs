//! The contract of versions: what the engine asks of a keyspace's content.

use std::any::Any;
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::{PageStore, PageUse};
use terrapin_runs::bounds::is_empty;
use terrapin_runs::lookup;
use terrapin_structure::{
    Direction, Estimate, Finding, Found, KeyBounds, Ordered, Presence, Rescued, Scan,
    StructureStats, Version,
};

use crate::format::{Child, Leaf, Root, Sums};
use crate::get::Walk;
use crate::node::Loaded;
use crate::scan::{TrieScan, children_inside};
use crate::version::TrieVersion;
use crate::{rescue, stats, verify};

/// Visits pages below a node. Errors of nodes are kept, and returned at the end.
fn visit_below(
    store: &Arc<PageStore>,
    node: &Loaded,
    visit: &mut dyn FnMut(PageUse) -> Result<()>,
    unread: &mut Result<()>,
) -> Result<()> {
    for (number, child) in node.node.children.iter().enumerate() {
        match child {
            None => {}
            Some(Child::Leaf(leaf)) => visit_leaf(leaf, visit)?,
            Some(Child::Node(own)) => {
                visit(PageUse::from(&own.page))?;
                match node.child(store, number) {
                    Ok(Some(child)) => visit_below(store, &child, visit, unread)?,
                    Ok(None) => {}
                    Err(error) => *unread = Err(error),
                }
            }
        }
    }
    Ok(())
}

fn visit_leaf(leaf: &Leaf, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
    for run in &leaf.runs {
        visit(PageUse::from(&run.list))?;
        for part in &run.groups {
            visit(PageUse::from(&part.group))?;
        }
    }
    Ok(())
}

impl Version for TrieVersion {
    fn root(&self) -> Vec<u8> {
        self.root.encode()
    }

    fn get(&self, key: &[u8], _hash: u64) -> Result<Found> {
        match lookup::find(&self.store, Walk::new(self, key)?, lookup::found_in)? {
            Some(Found::Operands(_)) => lookup::gather(&self.store, Walk::new(self, key)?),
            found => Ok(found.unwrap_or_default()),
        }
    }

    fn contains(&self, key: &[u8], _hash: u64) -> Result<Presence> {
        lookup::presence(&self.store, Walk::new(self, key)?)
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        if keys.len() != out.len() {
            let message = "the number of result places differs from the number of keys";
            return Err(Error::invalid(message)
                .with("keys", keys.len())
                .with("places", out.len()));
        }
        lookup::find_many(&self.store, out, |at| Walk::new(self, keys[at].0))
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        let Root::Trie(trie) = &self.root else {
            return Ok(());
        };
        visit(PageUse::from(&trie.node))?;
        let mut unread = Ok(());
        if let Some(root) = self.root_node()? {
            visit_below(&self.store, &root, visit, &mut unread)?;
        }
        unread
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::Trie(trie) => trie.sums.live_bytes(),
        })
    }

    fn stored_bytes(&self) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::Trie(trie) => trie.sums.bytes,
        })
    }

    fn stats(&self) -> Result<StructureStats> {
        stats::stats(self)
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        verify::verify(&self.store, &self.root, found)
    }

    fn rescue(&self, rescued: &mut dyn Rescued) -> Result<()> {
        rescue::rescue(&self.store, &self.root, rescued)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Order keys have an order, although users' keys have none.
impl Ordered for TrieVersion {
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        _expected: usize,
    ) -> Result<Box<dyn Scan>> {
        Ok(Box::new(TrieScan::begin(self, bounds, direction)?))
    }

    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate> {
        let mut sum = Estimate::default();
        if is_empty(bounds.0, bounds.1) {
            return Ok(sum);
        }
        if let Some(root) = self.root_node()? {
            estimate_node(&self.store, &root, bounds, &mut sum)?;
        }
        Ok(sum)
    }
}

/// Adds what some runs hold, less what their newer messages hide, as far as that is known.
fn add(sum: &mut Estimate, sums: Sums) {
    let live = sums.live_bytes();
    let records = u128::from(sums.records) * u128::from(live) / u128::from(sums.bytes.max(1));
    let records = u64::try_from(records).unwrap_or(u64::MAX);
    sum.records = sum.records.saturating_add(records);
    sum.bytes = sum.bytes.saturating_add(live);
}

/// Adds what a node has inside bounds. Children inside count by their sums; the two at the ends are
/// looked into.
fn estimate_node(
    store: &PageStore,
    node: &Loaded,
    bounds: KeyBounds<'_>,
    sum: &mut Estimate,
) -> Result<()> {
    let inside = children_inside(node, bounds);
    for number in inside.clone() {
        let Some(child) = &node.node.children[number] else {
            continue;
        };
        let cuts = (
            bounds.0 != Bound::Unbounded && number == inside.start,
            bounds.1 != Bound::Unbounded && number + 1 == inside.end,
        );
        match child {
            _ if cuts == (false, false) => {
                add(sum, child.sums());
            }
            Child::Node(_) => {
                if let Some(child) = node.child(store, number)? {
                    estimate_node(store, &child, bounds, sum)?;
                }
            }
            Child::Leaf(leaf) => {
                let key = |bound| match bound {
                    Bound::Unbounded => None,
                    Bound::Included(key) | Bound::Excluded(key) => Some(key),
                };
                let mut sums = Sums::default();
                for part in leaf.runs.iter().flat_map(|run| &run.groups) {
                    let index = store.index(&part.group)?;
                    let own = index.estimate(key(bounds.0), key(bounds.1));
                    sums.add(Sums {
                        records: own.records,
                        bytes: own.bytes,
                        hidden: own.hidden_bytes,
                    });
                }
                add(sum, sums);
            }
        }
    }
    Ok(())
}
