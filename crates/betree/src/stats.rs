//! A walk over all nodes. It yields the pages that a version refers to (D4), and the version's
//! figures. It reads no page groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use terrapin_base::{Error, PageId, Result};
use terrapin_pages::group::GroupRef;
use terrapin_pages::{PageRef, PageStore, PageUse};
use terrapin_structure::{Figure, StructureStats};

use crate::load::{LoadedNode, load_child, load_node};
use crate::node::{Child, Root};

/// Calls `visit` for every node, parents first. A node has one parent, so a node that is met twice
/// is damage. This also bounds a walk over hostile pages by their number. A node that cannot be
/// read is skipped, and the first such error is returned at the end.
fn nodes(
    store: &PageStore,
    root: &Root,
    root_node: Option<&Arc<LoadedNode>>,
    visit: &mut dyn FnMut(&PageRef, &LoadedNode) -> Result<()>,
) -> Result<()> {
    let Root::Node(page, height) = root else {
        return Ok(());
    };
    let mut seen = HashSet::new();
    let mut unread = Ok(());
    let first = match root_node {
        Some(node) => node.clone(),
        None => load_node(store, page, *height)?,
    };
    let mut path = vec![(*page, first, 0usize)];
    while let Some((page, node, next)) = path.last_mut() {
        if *next == 0 {
            if !seen.insert(page.id) {
                return Err(Error::corrupt("the node has two parents").with("page", page.id));
            }
            visit(page, node)?;
        }
        let child = node.pivots.get(*next).map(|pivot| &pivot.child);
        *next += 1;
        match child {
            Some(Child::Node { page, .. }) => {
                let page = *page;
                match load_child(store, &page, node.height) {
                    Ok(child) => path.push((page, child, 0)),
                    Err(error) if error.is_of_data() => unread = unread.and(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            Some(Child::Leaf(_)) => {}
            None => {
                path.pop();
            }
        }
    }
    unread
}

/// Calls `visit` for every page that a tree refers to, once for each reference.
pub(crate) fn pages(
    store: &PageStore,
    root: &Root,
    visit: &mut dyn FnMut(PageUse) -> Result<()>,
) -> Result<()> {
    if let Root::Leaf(group, _) = root {
        visit(PageUse::from(group))?;
    }
    nodes(store, root, None, &mut |page, node| {
        visit(PageUse::from(page))?;
        for segment in node.levels.iter().flatten() {
            visit(PageUse::from(&segment.group))?;
        }
        for pivot in &node.pivots {
            if let Some(maplet) = &pivot.maplet {
                visit(PageUse::from(&maplet.page))?;
            }
            if let Child::Leaf(group) = &pivot.child {
                visit(PageUse::from(group))?;
            }
        }
        Ok(())
    })
}

/// Calls `visit` for each page group and maplet, once for each reference, with the height of the
/// node that refers to it as part of its buffer; 0 for leaves.
pub(crate) fn by_height(
    store: &PageStore,
    root: &Root,
    visit: &mut dyn FnMut(u16, PageUse),
) -> Result<()> {
    if let Root::Leaf(group, _) = root {
        visit(0, PageUse::from(group));
    }
    nodes(store, root, None, &mut |_, node| {
        for segment in node.levels.iter().flatten() {
            visit(node.height, PageUse::from(&segment.group));
        }
        for pivot in &node.pivots {
            if let Some(maplet) = &pivot.maplet {
                visit(node.height, PageUse::from(&maplet.page));
            }
            if let Child::Leaf(group) = &pivot.child {
                visit(0, PageUse::from(group));
            }
        }
        Ok(())
    })
}

/// Saturating: a damaged node may claim any number, and nonsensical figures are no reason to stop.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// A page group that the walk met. Its live bytes grow with each segment that refers to it.
struct Met {
    group: GroupRef,
    live_bytes: u64,
    is_leaf: bool,
}

impl Met {
    fn count(&self, stats: &mut StructureStats) {
        let group = &self.group;
        add(&mut stats.page_bytes, group.bytes);
        let parts = &mut stats.parts;
        let blocks = u64::from(group.index_offset);
        let (index, filter) = (u64::from(group.index_bytes), u64::from(group.filter_bytes));
        if self.is_leaf {
            add(&mut parts.leaf_blocks, blocks);
        } else {
            let live = u128::from(blocks) * u128::from(self.live_bytes.min(group.logical_bytes))
                / u128::from(group.logical_bytes.max(1));
            let live = u64::try_from(live).unwrap_or(blocks);
            add(&mut parts.buffer_blocks, live);
            add(&mut parts.flushed_blocks, blocks - live);
        }
        add(&mut parts.indexes, index);
        add(&mut parts.filters, filter);
        let rest = occupied(PageUse::from(group)).saturating_sub(blocks + index + filter);
        add(&mut parts.padding, rest);
    }
}

/// Bytes of a page's extent.
fn occupied(page: PageUse) -> u64 {
    page.extent().map_or(page.bytes, |extent| extent.bytes)
}

/// Buffered bytes above leaves, and how many of them replace an equally long record on average.
/// Also the further bytes that messages of all buffers hide.
#[derive(Default)]
struct Superseded {
    above_leaves: u64,
    replaced: u64,
    hidden: u64,
}

impl Superseded {
    fn count(&mut self, node: &LoadedNode, buffered: u64) {
        if node.height == 1 {
            // Tiered buffers count it in what messages hide.
            let permille = match node.counts_replaced {
                true => 0,
                false => node.replaced_permille,
            };
            let replaced = u128::from(buffered) * u128::from(permille) / 1000;
            add(&mut self.above_leaves, buffered);
            add(
                &mut self.replaced,
                u64::try_from(replaced).unwrap_or(buffered),
            );
        }
    }

    /// The superseded bytes among `buffered` bytes. Higher nodes keep no average: they use that of
    /// the nodes above leaves.
    fn of(&self, buffered: u64) -> u64 {
        let share = u128::from(buffered) * u128::from(self.replaced);
        let share = u64::try_from(share / u128::from(self.above_leaves.max(1)));
        share.unwrap_or(buffered).saturating_add(self.hidden)
    }
}

/// The runs that reads pass.
#[derive(Default)]
struct Runs {
    /// Runs of each pivot, times the records below it.
    weighted: u128,
    most: u64,
    /// Most bytes of the runs of a pivot above a leaf.
    most_bytes: u64,
}

impl Runs {
    fn count(&mut self, node: &LoadedNode) {
        let mut runs = vec![0u64; node.pivots.len()];
        let mut bytes = vec![0u64; node.pivots.len()];
        for level in &node.levels {
            let mut last = None;
            for part in level.iter().flat_map(|segment| &segment.live) {
                add(&mut bytes[usize::from(part.pivot)], part.bytes);
                if last.replace(part.pivot) != Some(part.pivot) {
                    runs[usize::from(part.pivot)] += 1;
                }
            }
        }
        if node.height == 1 {
            let most = bytes.into_iter().max().unwrap_or(0);
            self.most_bytes = self.most_bytes.max(most);
        }
        for (runs, pivot) in runs.into_iter().zip(&node.pivots) {
            self.most = self.most.max(runs);
            let weighted = u128::from(runs) * u128::from(pivot.child.records());
            self.weighted = self.weighted.saturating_add(weighted);
        }
    }

    fn hundredths(&self, records: u64) -> u64 {
        let mean = self.weighted.saturating_mul(100) / u128::from(records.max(1));
        u64::try_from(mean).unwrap_or(u64::MAX)
    }
}

/// The figures of a tree. Its own ones are `height` (levels of nodes above the leaves; 0 for an
/// empty tree and for a tree of one leaf), `nodes`, `groups`, `buffer_level_bytes` (live bytes of
/// each buffer level, the newest level first), `buffer_runs_hundredths` (a hundred times the runs
/// that a record of a leaf has above it, on average), `buffer_runs_max` (most runs of a pivot),
/// `buffer_pivot_bytes_max` (most buffered bytes of a pivot above a leaf, which D10's reserve has
/// room for), and `maplets` (pivots that have one).
pub(crate) fn stats(
    store: &PageStore,
    root: &Root,
    root_node: Option<&Arc<LoadedNode>>,
) -> Result<StructureStats> {
    let mut stats = StructureStats::default();
    let leaf = |group: GroupRef| Met {
        group,
        live_bytes: group.logical_bytes,
        is_leaf: true,
    };
    if let Root::Leaf(group, _) = root {
        stats.leaf_records = group.records;
        stats.leaf_bytes = group.logical_bytes;
        leaf(*group).count(&mut stats);
    }
    let height = match root {
        Root::Node(_, height) => u64::from(*height),
        Root::Leaf(..) | Root::Empty => 0,
    };
    let (mut node_count, mut maplet_count, mut level_bytes) = (0, 0, Vec::new());
    let mut segments: HashMap<PageId, Met> = HashMap::new();
    let mut leaves = HashSet::new();
    let mut superseded = Superseded::default();
    let mut runs = Runs::default();
    nodes(store, root, root_node, &mut |page, node| {
        node_count += 1;
        add(&mut stats.page_bytes, u64::from(page.bytes));
        let bytes = u64::from(page.bytes);
        add(&mut stats.parts.nodes, bytes);
        let rest = occupied(PageUse::from(page)).saturating_sub(bytes);
        add(&mut stats.parts.padding, rest);
        if level_bytes.len() < node.levels.len() {
            level_bytes.resize(node.levels.len(), 0);
        }
        let mut buffered = 0;
        for (level, level_segments) in node.levels.iter().enumerate() {
            for segment in level_segments {
                let (mut records, mut bytes) = (0, 0);
                for part in &segment.live {
                    add(&mut records, u64::from(part.records));
                    add(&mut bytes, part.bytes);
                    add(&mut superseded.hidden, part.hidden_bytes);
                }
                add(&mut stats.buffered_records, records);
                add(&mut buffered, bytes);
                add(&mut level_bytes[level], bytes);
                let met = segments.entry(segment.group.id).or_insert(Met {
                    group: segment.group,
                    live_bytes: 0,
                    is_leaf: false,
                });
                add(&mut met.live_bytes, bytes);
            }
        }
        add(&mut stats.buffered_bytes, buffered);
        superseded.count(node, buffered);
        runs.count(node);
        for pivot in &node.pivots {
            if let Some(maplet) = &pivot.maplet {
                maplet_count += 1;
                add(&mut stats.page_bytes, u64::from(maplet.page.bytes));
                add(&mut stats.parts.filters, u64::from(maplet.page.bytes));
            }
            if let Child::Leaf(group) = &pivot.child {
                add(&mut stats.leaf_records, group.records);
                add(&mut stats.leaf_bytes, group.logical_bytes);
                if leaves.insert(group.id) {
                    leaf(*group).count(&mut stats);
                }
            }
        }
        Ok(())
    })?;
    for met in segments.values() {
        met.count(&mut stats);
    }
    stats.superseded_bytes = superseded.of(stats.buffered_bytes);
    let lone_leaf = usize::from(matches!(root, Root::Leaf(..)));
    let groups = segments.len() + leaves.len() + lone_leaf;
    stats.named = vec![
        ("height", Figure::Number(height)),
        ("nodes", Figure::Number(node_count)),
        ("groups", Figure::Number(groups as u64)),
        ("buffer_level_bytes", Figure::List(level_bytes)),
        (
            "buffer_runs_hundredths",
            Figure::Number(runs.hundredths(stats.leaf_records)),
        ),
        ("buffer_runs_max", Figure::Number(runs.most)),
        ("buffer_pivot_bytes_max", Figure::Number(runs.most_bytes)),
        ("maplets", Figure::Number(maplet_count)),
    ];
    Ok(stats)
}
