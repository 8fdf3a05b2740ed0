//! The messages that flow down the tree in a merge: sorted runs, described by where they are. They
//! are not copied on the way.
//!
//! A run is the memtable, or one buffer level of one node. Its pieces are key ranges of page groups
//! in which all messages are live. A child gets the runs of its parent's incoming stream, newest
//! first, and then those of the parent's levels. All are narrowed to the child's range. They are
//! read only when a leaf or a level is written from them (`terrapin_runs::run`).

use std::sync::Arc;

use terrapin_base::{Budget, Result};
use terrapin_pages::group::{GroupOptions, GroupSums};
use terrapin_pages::{PageStore, SpaceClass};
use terrapin_runs::run::{KeyRange, Run, RunMerge};
use terrapin_runs::writing;
use terrapin_structure::{MergeInput, MergeOptions};

use super::erase::ErasedRanges;
use crate::leaf_filters::LeafFilters;
use crate::load::LoadedNode;
use crate::node::Segment;
use crate::plan::Policy;

/// The context that all tasks of a merge share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) store: Arc<PageStore>,
    pub(crate) input: Arc<dyn MergeInput>,
    pub(crate) options: MergeOptions,
    pub(crate) policy: Policy,
    pub(crate) budget: Arc<Budget>,
    /// What lookups have learned about leaf filters.
    pub(crate) leaf_filters: Arc<LeafFilters>,
    /// The root node of the base version, if it is in memory.
    pub(crate) root_node: Option<Arc<LoadedNode>>,
    /// Ranges whose content in the base version goes.
    pub(crate) erased: ErasedRanges,
    /// Approximate bytes that the merge brings to the tree.
    /// [`TreeMerge::begin`](super::TreeMerge::begin) sets it.
    pub(crate) brings: u64,
    /// For a compaction: all buffered messages for these keys go to their leaves, and nothing comes
    /// in. `None` for other merges.
    pub(crate) stretch: Option<KeyRange>,
}

impl Context {
    /// The options of new page groups.
    pub(super) fn group_options(&self) -> GroupOptions {
        writing::group_options(&self.options, self.store.unit())
    }

    /// Where new pages are allocated.
    pub(super) fn class(&self) -> SpaceClass {
        writing::space_class(&self.options)
    }

    /// Opens a merge of runs inside a range ([`terrapin_runs::run::open_stream`]). `is_last` says
    /// that nothing older than the runs exists.
    pub(super) fn open_stream(
        &self,
        range: &KeyRange,
        newer: Vec<Run>,
        older: Vec<Run>,
        always: bool,
        is_last: bool,
    ) -> Result<Option<RunMerge>> {
        let from = (&self.store, &self.input);
        let folding = (&self.options, is_last);
        terrapin_runs::run::open_stream(from, range, newer, older, always, folding)
    }

    /// Estimates the content of a run inside a range.
    pub(super) fn estimate(&self, run: &Run, range: &KeyRange) -> Result<GroupSums> {
        run.estimate(&self.store, &self.input, range)
    }

    /// L: target bytes of a page group.
    pub(super) fn group_bytes(&self) -> u64 {
        self.options.group_bytes
    }
}

/// The messages of a buffer level for the pivots for which `wanted` is true. `range` returns
/// the key range of a span of pivots, both ends included.
pub(super) fn run_of_level(
    segments: &[Segment],
    wanted: impl Fn(usize) -> bool,
    range: impl Fn(usize, usize) -> KeyRange,
) -> Run {
    let mut run = Run::default();
    for segment in segments {
        let mut live = segment
            .live
            .iter()
            .map(|part| usize::from(part.pivot))
            .filter(|&p| wanted(p))
            .peekable();
        let mut own = None;
        while let Some(first) = live.next() {
            let mut last = first;
            while live.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            let own = own.get_or_insert_with(|| KeyRange {
                lo: Some(segment.min[..].into()),
                hi: Some(segment.max.iter().copied().chain([0]).collect()),
            });
            if let Some(range) = range(first, last).intersection(own) {
                run.push(segment.group, range);
            }
        }
    }
    run
}
