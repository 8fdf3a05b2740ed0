//! Figures of a version for `stat`.

use terrapin_base::Result;
use terrapin_pages::PageUse;
use terrapin_structure::{Figure, StructureStats};

use crate::format::{ABOVE_LEAVES, Leaf, Root};
use crate::node::Node;
use crate::version::InPlaceVersion;

/// What a walk over the map counts.
#[derive(Default)]
struct Counts {
    stats: StructureStats,
    /// Bytes of all extents.
    occupied: u64,
    nodes: u64,
    leaves: u64,
    waiting_groups: u64,
    most_waiting: u64,
    /// Segments with a model in the place of page bounds.
    models: u64,
    /// How many segments have how many pages.
    segments: Vec<u64>,
}

pub(crate) fn stats(version: &InPlaceVersion) -> Result<StructureStats> {
    let mut counts = Counts::default();
    let mut height = 0;
    if let (Root::Map(map), Some(root)) = (&version.root, version.root_node()?) {
        height = u64::from(map.height);
        counts.node(PageUse::from(&map.page));
        counts.nodes += 1;
        walk(version, &root, &mut counts)?;
        let stats = &mut counts.stats;
        stats.leaf_records = map.sums.records;
        stats.leaf_bytes = map.sums.bytes;
        stats.buffered_records = map.sums.waiting_records;
        stats.buffered_bytes = map.sums.waiting_bytes;
        stats.superseded_bytes = map.sums.hidden_bytes;
    }
    let mut stats = counts.stats;
    stats.parts.padding = counts.occupied.saturating_sub(stats.parts.total());
    let segments: u64 = counts.segments.iter().sum();
    let pages = counts
        .segments
        .iter()
        .zip(0u64..)
        .map(|(count, pages)| count * pages);
    let mut passed = 0;
    let median = counts.segments.iter().position(|count| {
        passed += count;
        passed * 2 >= segments
    });
    let number = |name, value| (name, Figure::Number(value));
    stats.named = vec![
        number("height", height),
        number("nodes", counts.nodes),
        number("map_leaves", counts.leaves),
        number("segments", segments),
        number("pages", pages.sum()),
        number("median_segment_pages", median.unwrap_or(0) as u64),
        number("segments_with_a_model", counts.models),
        number("waiting_groups", counts.waiting_groups),
        number("most_waiting_groups_of_a_leaf", counts.most_waiting),
    ];
    Ok(stats)
}

impl Counts {
    fn page(&mut self, page: PageUse) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.stats.page_bytes, page.bytes);
        add(
            &mut self.occupied,
            page.extent().map_or(page.bytes, |extent| extent.bytes),
        );
    }

    fn node(&mut self, page: PageUse) {
        self.stats.parts.nodes = self.stats.parts.nodes.saturating_add(page.bytes);
        self.page(page);
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<()> {
        let mut scratch = Vec::new();
        for number in 0..leaf.len() {
            let segment = leaf.segment(number)?;
            let group = &segment.group;
            let blocks = segment.index.decode(group, &mut scratch)?.blocks();
            if self.segments.len() <= blocks {
                self.segments.resize(blocks + 1, 0);
            }
            self.segments[blocks] += 1;
            self.models += u64::from(segment.index.has_model());
            self.page(PageUse::from(group));
            let parts = &mut self.stats.parts;
            parts.leaf_blocks = parts
                .leaf_blocks
                .saturating_add(u64::from(group.index_offset));
            parts.indexes = parts.indexes.saturating_add(u64::from(group.index_bytes));
        }
        Ok(())
    }
}

fn walk(version: &InPlaceVersion, node: &Node, counts: &mut Counts) -> Result<()> {
    for (number, entry) in node.inner.entries.iter().enumerate() {
        counts.node(PageUse::from(&entry.page));
        if node.inner.height > ABOVE_LEAVES {
            counts.nodes += 1;
            walk(version, &*node.child(&version.store, number)?, counts)?;
            continue;
        }
        counts.leaves += 1;
        counts.waiting_groups += entry.waiting.len() as u64;
        counts.most_waiting = counts.most_waiting.max(entry.waiting.len() as u64);
        for group in &entry.waiting {
            counts.page(PageUse::from(group));
            let parts = &mut counts.stats.parts;
            parts.buffer_blocks = parts
                .buffer_blocks
                .saturating_add(u64::from(group.index_offset));
            parts.indexes = parts.indexes.saturating_add(u64::from(group.index_bytes));
            parts.filters = parts.filters.saturating_add(u64::from(group.filter_bytes));
        }
        counts.leaf(&*node.leaf(&version.store, number)?)?;
    }
    Ok(())
}
