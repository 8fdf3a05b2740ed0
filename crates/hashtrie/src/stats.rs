//! Figures of a version for `stat`.

use terrapin_base::Result;
use terrapin_pages::PageUse;
use terrapin_structure::{Figure, StructureStats};

use crate::digits::Stretch;
use crate::format::{Child, Leaf, Root};
use crate::node::Loaded;
use crate::table::SLOTS;
use crate::version::TrieVersion;

/// What a walk over the trie counts.
#[derive(Default)]
struct Counts {
    stats: StructureStats,
    /// Bytes of all extents.
    occupied: u64,
    nodes: u64,
    leaves: u64,
    /// Nodes on the way to leaves, in all and on the longest way.
    path: u64,
    path_max: u64,
    /// Leaves by their number of runs, from one on.
    chains: Vec<u64>,
    leaf_bytes_max: u64,
    /// Leaves of more than S bytes that no digit divides.
    overfull: u64,
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

pub(crate) fn stats(version: &TrieVersion) -> Result<StructureStats> {
    let mut counts = Counts {
        chains: vec![0; SLOTS],
        ..Counts::default()
    };
    let (mut fanout, mut leaf_bytes) = (0, 0);
    if let (Root::Trie(trie), Some(root)) = (&version.root, version.root_node()?) {
        counts.node(PageUse::from(&trie.node));
        counts.walk(version, &root, 1, 1 << trie.leaf_bytes_log2)?;
        counts.stats.superseded_bytes = trie.sums.hidden;
        fanout = trie.fanout.children() as u64;
        leaf_bytes = 1 << trie.leaf_bytes_log2;
    }
    let mut stats = counts.stats;
    stats.parts.padding = counts.occupied.saturating_sub(stats.parts.total());
    let number = |name, value| (name, Figure::Number(value));
    stats.named = vec![
        number("fanout", fanout),
        number("sluggishness_bytes", leaf_bytes),
        number("height", counts.path_max),
        number("path_permille", counts.path * 1000 / counts.leaves.max(1)),
        number("nodes", counts.nodes),
        number("leaves", counts.leaves),
        number("overfull_leaves", counts.overfull),
        number("largest_leaf_bytes", counts.leaf_bytes_max),
        ("leaves_by_runs", Figure::List(counts.chains)),
    ];
    Ok(stats)
}

impl Counts {
    fn page(&mut self, page: PageUse) {
        add(&mut self.stats.page_bytes, page.bytes);
        let occupied = page.extent().map_or(page.bytes, |extent| extent.bytes);
        add(&mut self.occupied, occupied);
    }

    fn node(&mut self, page: PageUse) {
        self.nodes += 1;
        add(&mut self.stats.parts.nodes, page.bytes);
        self.page(page);
    }

    fn walk(
        &mut self,
        version: &TrieVersion,
        node: &Loaded,
        depth: u64,
        leaf_bytes: u64,
    ) -> Result<()> {
        for (number, child) in node.node.children.iter().enumerate() {
            match child {
                None => {}
                Some(Child::Leaf(leaf)) => {
                    self.path += depth;
                    self.path_max = self.path_max.max(depth);
                    self.leaf(leaf, node.stretch_of(number), leaf_bytes);
                }
                Some(Child::Node(own)) => {
                    self.node(PageUse::from(&own.page));
                    if let Some(child) = node.child(&version.store, number)? {
                        self.walk(version, &child, depth + 1, leaf_bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf, stretch: Stretch, leaf_bytes: u64) {
        self.leaves += 1;
        let bytes = leaf.sums().bytes;
        self.leaf_bytes_max = self.leaf_bytes_max.max(bytes);
        self.overfull += u64::from(stretch.is_single() && bytes > leaf_bytes);
        if let Some(count) = self.chains.get_mut(leaf.runs.len().saturating_sub(1)) {
            *count += 1;
        }
        for run in &leaf.runs {
            // Lists take the place of filters.
            add(&mut self.stats.parts.filters, u64::from(run.list.bytes));
            self.page(PageUse::from(&run.list));
            let sums = run.sums();
            let (records, bytes) = match run.is_base {
                true => (&mut self.stats.leaf_records, &mut self.stats.leaf_bytes),
                false => (
                    &mut self.stats.buffered_records,
                    &mut self.stats.buffered_bytes,
                ),
            };
            add(records, sums.records);
            add(bytes, sums.bytes);
            for part in &run.groups {
                let group = &part.group;
                self.page(PageUse::from(group));
                let parts = &mut self.stats.parts;
                let blocks = match run.is_base {
                    true => &mut parts.leaf_blocks,
                    false => &mut parts.buffer_blocks,
                };
                add(blocks, u64::from(group.index_offset));
                add(&mut parts.indexes, u64::from(group.index_bytes));
            }
        }
    }
}
