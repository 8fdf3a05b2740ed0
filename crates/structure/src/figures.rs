//! Figures of a version for `stat`, and the faults that `verify` finds.

use std::fmt;

/// Figures of one version, for `stat`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StructureStats {
    /// Records in their last place, including those that waiting messages supersede.
    pub leaf_records: u64,
    /// Messages that wait in buffers or runs for their last place.
    pub buffered_records: u64,
    /// Key and value bytes of records in their last place.
    pub leaf_bytes: u64,
    /// Live key and value bytes of waiting messages.
    pub buffered_bytes: u64,
    /// Approximate bytes that a merge down to the last place would free: records that newer
    /// messages replace or delete, and the deletes.
    pub superseded_bytes: u64,
    /// Bytes of all pages on disk. A page counts once, however often it is referred to.
    pub page_bytes: u64,
    /// The same bytes, by what they hold.
    pub parts: PageParts,
    /// Figures that only this structure has, by name: `height`, `nodes`, `groups`. `stat` shows
    /// them as they are.
    pub named: Vec<(&'static str, Figure)>,
}

impl StructureStats {
    /// The named figure, if the structure has it as a single number.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<u64> {
        let found = self.named.iter().find(|(own, _)| *own == name);
        found.and_then(|(_, figure)| match figure {
            Figure::Number(number) => Some(*number),
            Figure::List(_) => None,
        })
    }
}

/// The value of a named figure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Figure {
    /// One number.
    Number(u64),
    /// Numbers in an order that the figure's name explains.
    List(Vec<u64>),
}

/// The bytes of pages on disk, by what they hold. The parts add up to all space that the pages
/// occupy, including the ends of their extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageParts {
    /// Blocks of leaves.
    pub leaf_blocks: u64,
    /// Blocks of buffer segments, in proportion to the messages that are still live.
    pub buffer_blocks: u64,
    /// The rest of those blocks. Flushed messages occupy space until the last part of their segment
    /// is flushed.
    pub flushed_blocks: u64,
    /// Indexes of page groups.
    pub indexes: u64,
    /// Filters of page groups.
    pub filters: u64,
    /// Nodes.
    pub nodes: u64,
    /// Pages of separated values.
    pub values: u64,
    /// Footers, and the padding that fills pages up to whole extents.
    pub padding: u64,
}

impl PageParts {
    /// Adds the bytes of `other`, saturating.
    pub fn add(&mut self, other: &PageParts) {
        self.leaf_blocks = self.leaf_blocks.saturating_add(other.leaf_blocks);
        self.buffer_blocks = self.buffer_blocks.saturating_add(other.buffer_blocks);
        self.flushed_blocks = self.flushed_blocks.saturating_add(other.flushed_blocks);
        self.indexes = self.indexes.saturating_add(other.indexes);
        self.filters = self.filters.saturating_add(other.filters);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.values = self.values.saturating_add(other.values);
        self.padding = self.padding.saturating_add(other.padding);
    }

    /// The sum of all parts in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let groups = [
            self.leaf_blocks,
            self.buffer_blocks,
            self.flushed_blocks,
            self.indexes,
            self.filters,
        ];
        let sum = groups.into_iter().fold(self.nodes, u64::saturating_add);
        sum.saturating_add(self.values).saturating_add(self.padding)
    }
}

/// A fault that `verify` found. It is displayed as place and message in one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Where the fault is: page, block, or key range.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

impl Finding {
    /// Makes a finding.
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Finding {
            place: place.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
