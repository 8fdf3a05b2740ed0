//! What a walk over all nodes tells: the pages that a version refers to (D4), and its figures. Page groups are not read.

use std::collections::HashSet;

use terrapin_base::{Error, Result};
use terrapin_pages::{PageRef, PageStore, PageUse};
use terrapin_structure::StructureStats;

use crate::load::{LoadedNode, load_child, load_node};
use crate::node::{Child, Root};

/// Calls back for every node, parents first. A node has one parent, so one that is met twice is damage; that also keeps a
/// walk over hostile pages from taking longer than there are pages.
fn nodes(
    store: &PageStore,
    root: &Root,
    visit: &mut dyn FnMut(&PageRef, &LoadedNode) -> Result<()>,
) -> Result<()> {
    let Root::Node(page, height) = root else {
        return Ok(());
    };
    let mut seen = HashSet::new();
    let mut path = vec![(*page, load_node(store, page, *height)?, 0usize)];
    while let Some((page, node, next)) = path.last_mut() {
        if *next == 0 {
            if !seen.insert(page.id) {
                return Err(Error::corrupt("node with two parents").with("page", page.id));
            }
            visit(page, node)?;
        }
        let child = node.pivots.get(*next).map(|pivot| &pivot.child);
        *next += 1;
        match child {
            Some(Child::Node { page, .. }) => {
                let page = *page;
                let child = load_child(store, &page, node.height)?;
                path.push((page, child, 0));
            }
            Some(Child::Leaf(_)) => {}
            None => {
                path.pop();
            }
        }
    }
    Ok(())
}

/// Every page that a tree refers to, once per reference.
pub(crate) fn pages(
    store: &PageStore,
    root: &Root,
    visit: &mut dyn FnMut(PageUse) -> Result<()>,
) -> Result<()> {
    if let Root::Leaf(group) = root {
        visit(PageUse::from(group))?;
    }
    nodes(store, root, &mut |page, node| {
        visit(PageUse::from(page))?;
        for segment in node.levels.iter().flatten() {
            visit(PageUse::from(&segment.group))?;
        }
        for pivot in &node.pivots {
            if let Child::Leaf(group) = &pivot.child {
                visit(PageUse::from(group))?;
            }
        }
        Ok(())
    })
}

/// Nodes may say what they like, and figures that make no sense are no reason to stop.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// The figures of a tree.
pub(crate) fn stats(store: &PageStore, root: &Root) -> Result<StructureStats> {
    let mut stats = StructureStats::default();
    if let Root::Leaf(group) = root {
        stats.groups = 1;
        stats.leaf_records = group.records;
        stats.leaf_bytes = group.logical_bytes;
        stats.page_bytes = group.bytes;
    }
    if let Root::Node(_, height) = root {
        stats.height = u32::from(*height);
    }
    let mut groups = HashSet::new();
    nodes(store, root, &mut |page, node| {
        stats.nodes += 1;
        add(&mut stats.page_bytes, u64::from(page.bytes));
        if stats.level_bytes.len() < node.levels.len() {
            stats.level_bytes.resize(node.levels.len(), 0);
        }
        for (level, segments) in node.levels.iter().enumerate() {
            for segment in segments {
                let (records, bytes) = segment.live.iter().fold((0, 0), |(r, b), part| {
                    (r + u64::from(part.records), part.bytes.saturating_add(b))
                });
                add(&mut stats.buffered_records, records);
                add(&mut stats.buffered_bytes, bytes);
                add(&mut stats.level_bytes[level], bytes);
                if groups.insert(segment.group.id) {
                    stats.groups += 1;
                    add(&mut stats.page_bytes, segment.group.bytes);
                }
            }
        }
        for pivot in &node.pivots {
            if let Child::Leaf(group) = &pivot.child {
                add(&mut stats.leaf_records, group.records);
                add(&mut stats.leaf_bytes, group.logical_bytes);
                if groups.insert(group.id) {
                    stats.groups += 1;
                    add(&mut stats.page_bytes, group.bytes);
                }
            }
        }
        Ok(())
    })?;
    Ok(stats)
}
