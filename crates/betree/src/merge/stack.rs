//! Size-tiered buffers in a merge (SplinterDB): what a node's plan needs to know of its runs, and
//! the level that it writes.
//!
//! The new level has one run for each pivot that stays: what came in, merged with the newest of the
//! pivot's runs that the plan names. The new level is the newest. So for each pivot the order of
//! ages stays as it is, whatever other pivots do. Before the node is written, [`sink`] moves
//! segments into the oldest level that has room for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::Changes;
use terrapin_pages::group::GroupRef;
use terrapin_runs::run::{Key, KeyRange};

use super::descend::{Load, PART_GROUPS_MIN, parts};
use super::erase::Coverage;
use super::frame::Frame;
use super::hidden::Hiding;
use super::runs::{Context, run_of_level};
use super::slot::{ChildState, Target};
use super::task::{Descend, NodeOrigin, Task};
use super::write::{LevelPart, WriteLeaves, WriteLevel};
use crate::node::{Child, Node, Segment, Sums};
use crate::plan::count;
use crate::tiered::{Fate, PivotRun, PivotRuns, Tiered};

/// What a plan does with a node that has tiered buffers.
pub(super) struct Stacking {
    /// For each pivot that stays, how many of its newest runs what comes in is merged with.
    pub(super) taken: Vec<usize>,
    /// Pivots for which what comes in becomes leaves behind their leaf, and the last key of that
    /// leaf.
    pub(super) appended: Vec<Option<Vec<u8>>>,
    /// This many of a thousand messages of the memtable replace a record.
    pub(super) replaced_permille: u16,
}

impl Stacking {
    /// Nothing is merged, and nothing appended.
    pub(super) fn plain(pivots: usize, replaced_permille: u16) -> Self {
        Stacking {
            taken: vec![0; pivots],
            appended: vec![None; pivots],
            replaced_permille,
        }
    }
}

/// The rules of a node with tiered buffers; `None` for a node with leveled ones.
///
/// A tree of one leaf has leveled buffers, whatever the policy. A node that has more levels or far
/// more bytes than leveled buffers allow is planned as a tiered one until it has not: its keyspace
/// was tiered before.
pub(super) fn rules(context: &Context, node: &Node, origin: &NodeOrigin) -> Option<Tiered> {
    let policy = &context.policy;
    let is_lone = matches!(origin, NodeOrigin::Leaf(..)) || node.lone_leaf().is_some();
    // The half of a split node may keep what the whole node kept.
    let most = 2 * policy.buffer_bytes_max(policy.fanout + 1);
    let mut pending = 0;
    for pivot in &node.pivots {
        count(&mut pending, pivot.pending_bytes);
    }
    let is_leveled = node.levels.len() <= policy.levels_max() && (pending <= most || is_lone);
    let (runs_wanted, buffer_bytes_max) = match policy.runs_wanted {
        Some(runs) if !is_lone || !is_leveled => (runs, None),
        None if !is_leveled && !mutant::active("leveled-keeps-many-runs") => {
            (policy.levels_max(), Some(most))
        }
        _ => return None,
    };
    Some(Tiered {
        group_bytes: policy.group_bytes,
        runs_wanted: runs_wanted.max(2),
        buffer_bytes_max,
        waste_bytes_max: None,
    })
}

/// The share of the memtable's messages that replace a record, at a node.
pub(super) fn replaced_permille(context: &Context, node: &Node) -> u16 {
    let of_memtable = context.input.replacing_permille();
    match node.height {
        1 => node.replaced_permille.max(of_memtable),
        _ => of_memtable,
    }
}

impl Descend {
    /// Adds the records that messages that come in replace to what they hide. A node that did not
    /// count them adds those of its own buffer.
    pub(super) fn count_replaced(
        &self,
        context: &Context,
        node: &Node,
        ranges: &[KeyRange],
        loads: &mut [Load],
    ) -> Result<()> {
        let permille = replaced_permille(context, node);
        for (range, load) in ranges.iter().zip(loads) {
            let mut bytes = match node.counts_replaced {
                true => 0,
                false => load.bytes.saturating_sub(load.arriving),
            };
            for run in &self.incoming {
                let sums = context.estimate(run, range)?;
                // Of a run from above, nothing was known there.
                if run.is_input() || sums.hidden_bytes == 0 {
                    count(&mut bytes, sums.bytes);
                }
            }
            let replaced = u128::from(bytes) * u128::from(permille) / 1000;
            count(&mut load.hidden, u64::try_from(replaced).unwrap_or(0));
        }
        Ok(())
    }

    /// Decides what is flushed, and what becomes of the rest.
    pub(super) fn stacking(
        &self,
        context: &Context,
        (node, mut rules): (&Node, Tiered),
        loads: &[Load],
        (ranges, coverage): (&[KeyRange], &[Coverage]),
    ) -> Result<(Vec<bool>, Stacking)> {
        let mut pivots = runs_of_pivots(context, node, loads);
        let (mut below, mut kept, mut hidden) = (Sums::default(), 0, 0);
        for (pivot, runs) in node.pivots.iter().zip(&pivots) {
            below.add(&pivot.child.sums());
            count(&mut kept, runs.arriving);
            count(&mut kept, pivot.pending_bytes);
            count(&mut hidden, runs.waste);
        }
        let live = below
            .live_bytes()
            .saturating_add(kept)
            .saturating_sub(hidden);
        rules.waste_bytes_max = context.policy.stacked_waste_max(live, node.height == 1);
        let mut stacking = Stacking::plain(pivots.len(), replaced_permille(context, node));
        for number in 0..pivots.len() {
            let child = &node.pivots[number].child;
            if let Child::Leaf(leaf) = child
                && coverage[number] == Coverage::Nothing
                && rules.may_append(&pivots[number])
            {
                let last = self.append_behind(context, node, (number, leaf), &ranges[number])?;
                if last.is_some() {
                    // Nothing comes in for what is there.
                    pivots[number].arriving = 0;
                }
                stacking.appended[number] = last;
            }
        }
        let fates = rules.plan(&pivots, node.levels.len());
        let mut flush = vec![false; pivots.len()];
        for (number, fate) in fates.into_iter().enumerate() {
            match fate {
                // Its leaf takes part in an append.
                _ if stacking.appended[number].is_some() => {}
                Fate::GoesDown => flush[number] = true,
                Fate::Stays(runs) => stacking.taken[number] = runs,
            }
        }
        Ok((flush, stacking))
    }

    /// The last key of the leaf below a pivot, if all that comes in is behind it and behind all
    /// that the node has for the pivot. Runs from above count like the memtable.
    fn append_behind(
        &self,
        context: &Context,
        node: &Node,
        (number, leaf): (usize, &GroupRef),
        range: &KeyRange,
    ) -> Result<Option<Vec<u8>>> {
        let mut last = context.store.index(leaf)?.last_key().to_vec();
        for segment in node.levels.iter().flatten() {
            let is_live = |part: &crate::node::LivePart| usize::from(part.pivot) == number;
            if !segment.live.iter().any(is_live) {
                continue;
            }
            let ends_here = segment.live.last().is_some_and(is_live);
            let reaches_on = range
                .hi
                .as_ref()
                .is_some_and(|hi| segment.max[..] >= hi[..]);
            if !ends_here || reaches_on {
                return Ok(None);
            }
            if segment.max[..] > last[..] {
                last = segment.max.to_vec();
            }
        }
        for run in &self.incoming {
            if run.is_input() || !mutant::active("append-looks-at-memtable-only") {
                let run = run.narrowed(range);
                if !run.is_behind(&context.store, &context.input, &last)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(last))
    }

    /// Plans the tasks that write the new level. There are none if nothing stays.
    pub(super) fn write_stack(
        &self,
        context: &Context,
        frame: &mut Frame,
        (elsewhere, stacking): (&[bool], &Stacking),
        (loads, hiding): (&[Load], &Hiding),
        changes: &mut Changes,
    ) -> Vec<Task> {
        let taken = Taken::new(&frame.levels, elsewhere, &stacking.taken);
        let kept = self.kept(context, frame, elsewhere);
        if kept.is_empty() && taken.is_empty() {
            return Vec::new();
        }
        let mut weights: Vec<u64> = loads
            .iter()
            .zip(elsewhere)
            .map(|(load, elsewhere)| if *elsewhere { 0 } else { load.arriving })
            .collect();
        taken.weigh(&frame.levels, &mut weights);
        let parts = match context.policy.flush_what_comes {
            true => vec![(0, elsewhere.len() - 1)],
            false => parts(&weights, PART_GROUPS_MIN * context.group_bytes()),
        };
        let lowers: Arc<[Key]> = frame
            .slots
            .iter()
            .skip(1)
            .map(|slot| slot.lower.clone())
            .collect();
        let is_whole = parts.len() == 1 && taken.is_empty();
        let hiding = Arc::new(hiding.by_pivots(&taken.below));
        let mut tasks = Vec::with_capacity(parts.len());
        for (number, &(first, last)) in parts.iter().enumerate() {
            let left_out: Vec<bool> = (0..elsewhere.len())
                .map(|pivot| elsewhere[pivot] || !(first..=last).contains(&pivot))
                .collect();
            let mut older = Vec::new();
            for (level, wanted) in frame.levels.iter().zip(&taken.of_levels) {
                let wanted = |pivot: usize| wanted[pivot] && !left_out[pivot];
                let run = run_of_level(level, wanted, |a, b| frame.range_of(a, b));
                if !run.is_empty() && !mutant::active("stack-forgets-older-runs") {
                    older.push(run);
                }
            }
            let mut comes_in = left_out.clone();
            if mutant::active("stack-forgets-what-comes-in") {
                let merges = stacking.taken.iter().map(|&runs| runs > 0);
                comes_in
                    .iter_mut()
                    .zip(merges)
                    .for_each(|(out, m)| *out |= m);
            }
            let task = WriteLevel::new(
                LevelPart {
                    frame: frame.id,
                    level: 0,
                    part: number,
                    is_whole,
                },
                lowers.clone(),
                frame.range_of(first, last),
                self.kept(context, frame, &comes_in),
                older,
                weights[first..=last].iter().sum(),
                hiding.clone(),
            );
            let task = task.counting_replaced(stacking.replaced_permille);
            tasks.push(Task::Level(Box::new(task)));
        }
        for (level, wanted) in frame.levels.iter_mut().zip(&taken.of_levels) {
            Frame::clear_level(level, |pivot| wanted[pivot], changes);
        }
        frame.levels.insert(0, Vec::new());
        frame.await_level(parts.len());
        tasks
    }

    /// The tasks that write leaves behind leaves that stay.
    pub(super) fn appends(
        &self,
        frame: &mut Frame,
        stacking: &Stacking,
        (ranges, loads): (&[KeyRange], &[Load]),
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (pivot, last) in stacking.appended.iter().enumerate() {
            let Some(last) = last else { continue };
            let (range, target) = (
                &ranges[pivot],
                Target::Child {
                    frame: frame.id,
                    slot: pivot,
                },
            );
            let slot = &mut frame.slots[pivot];
            let leaf = match std::mem::replace(&mut slot.child, ChildState::Pending) {
                ChildState::Child(Child::Leaf(leaf)) => leaf,
                other => {
                    slot.child = other;
                    continue;
                }
            };
            let kept = (leaf, std::mem::take(&mut slot.deadlines));
            let incoming = self.incoming.iter().map(|run| run.narrowed(range));
            let incoming = incoming.filter(|run| !run.is_empty()).collect();
            let bytes = loads[pivot].arriving;
            let task = WriteLeaves::new(target, range.clone(), Vec::new(), incoming, false, bytes);
            tasks.push(Task::Leaves(Box::new(task.behind(kept, last.clone()))));
        }
        tasks
    }
}

/// What the plan needs of each pivot.
fn runs_of_pivots(context: &Context, node: &Node, loads: &[Load]) -> Vec<PivotRuns> {
    let around = &context.options.around;
    let mut pivots: Vec<PivotRuns> = node
        .pivots
        .iter()
        .zip(loads)
        .map(|(pivot, load)| PivotRuns {
            arriving: load.arriving,
            runs: Vec::new(),
            leaf_bytes: match &pivot.child {
                Child::Leaf(leaf) => Some(leaf.logical_bytes),
                Child::Node { .. } => None,
            },
            waste: load.hidden,
            mergeable: 0,
            may_go_down: (!around.adds_only || mutant::active("second-try-merges-runs"))
                && !around.has(pivot.child.page()),
        })
        .collect();
    // For pivots with damaged runs: the newest one.
    let mut damaged: BTreeMap<u16, usize> = BTreeMap::new();
    for (number, level) in node.levels.iter().enumerate() {
        for segment in level {
            let live: u64 = segment.live.iter().map(|part| part.bytes).sum();
            // The dead bytes of a group count in each segment that names it.
            let dead = segment.group.logical_bytes.saturating_sub(live);
            for part in &segment.live {
                let share = u128::from(dead) * u128::from(part.bytes) / u128::from(live.max(1));
                let Some(pivot) = pivots.get_mut(usize::from(part.pivot)) else {
                    continue;
                };
                count(&mut pivot.waste, u64::try_from(share).unwrap_or(0));
                let bytes = part.bytes.max(1);
                let (first, last) = span_of(segment).into_inner();
                match pivot.runs.last_mut() {
                    Some(run) if run.level == number => {
                        count(&mut run.bytes, bytes);
                        run.span.1 = last;
                    }
                    _ => pivot.runs.push(PivotRun {
                        level: number,
                        bytes,
                        span: (first, last),
                    }),
                }
                if around.has(segment.group.id) && !mutant::active("damaged-runs-are-merged") {
                    pivot.may_go_down = false;
                    let damaged = damaged.entry(part.pivot).or_insert(pivot.runs.len() - 1);
                    *damaged = (*damaged).min(pivot.runs.len() - 1);
                }
            }
        }
    }
    for (number, pivot) in (0..).zip(&mut pivots) {
        let sound = damaged.get(&number).copied().unwrap_or(pivot.runs.len());
        let adds_only = around.adds_only && !mutant::active("second-try-merges-runs");
        pivot.mergeable = if adds_only { 0 } else { sound };
    }
    pivots
}

/// The pivots that cannot be flushed, since a page that they need is damaged.
pub(super) fn damaged(context: &Context, node: &Node) -> Vec<bool> {
    if !context.options.around.is_any() {
        return vec![false; node.pivots.len()];
    }
    let loads = vec![Load::default(); node.pivots.len()];
    let pivots = runs_of_pivots(context, node, &loads);
    pivots.iter().map(|pivot| !pivot.may_go_down).collect()
}

/// The runs that a new level takes in.
struct Taken {
    /// For each level and pivot, whether the pivot's run there is taken in.
    of_levels: Vec<Vec<bool>>,
    /// For each pivot, the newest level that stays as it is.
    below: Vec<usize>,
}

impl Taken {
    fn new(levels: &[Vec<Segment>], elsewhere: &[bool], taken: &[usize]) -> Self {
        let mut left: Vec<usize> = taken.to_vec();
        let mut below = vec![0; taken.len()];
        let mut of_levels = Vec::with_capacity(levels.len());
        for (number, level) in levels.iter().enumerate() {
            let mut wanted = vec![false; taken.len()];
            for part in level.iter().flat_map(|segment| &segment.live) {
                let pivot = usize::from(part.pivot);
                wanted[pivot] = left[pivot] > 0 && !elsewhere[pivot];
            }
            for pivot in (0..taken.len()).filter(|&pivot| wanted[pivot]) {
                left[pivot] -= 1;
                below[pivot] = number + 1;
            }
            of_levels.push(wanted);
        }
        Taken { of_levels, below }
    }

    fn is_empty(&self) -> bool {
        self.below.iter().all(|&below| below == 0)
    }

    fn weigh(&self, levels: &[Vec<Segment>], weights: &mut [u64]) {
        for (level, wanted) in levels.iter().zip(&self.of_levels) {
            for part in level.iter().flat_map(|segment| &segment.live) {
                let pivot = usize::from(part.pivot);
                if wanted[pivot] {
                    count(&mut weights[pivot], part.bytes);
                }
            }
        }
    }
}

impl Frame {
    /// Trims segments to the ranges of their live pivots, and moves each into the oldest level that
    /// has nothing for the pivots that it spans. For each pivot, the order of levels stays.
    pub(super) fn sink(&mut self) {
        self.trim();
        let mut depths = vec![0usize; self.slots.len()];
        let mut rows: Vec<Vec<Segment>> = Vec::new();
        for level in std::mem::take(&mut self.levels).into_iter().rev() {
            let before = depths.clone();
            for segment in level {
                let span = span_of(&segment);
                let row = match mutant::active("sink-looks-at-ends-only") {
                    true => before[*span.start()].max(before[*span.end()]),
                    false => before[span.clone()].iter().copied().max().unwrap_or(0),
                };
                depths[span]
                    .iter_mut()
                    .for_each(|depth| *depth = (*depth).max(row + 1));
                if rows.len() <= row {
                    rows.resize_with(row + 1, Vec::new);
                }
                rows[row].push(segment);
            }
        }
        for row in &mut rows {
            row.sort_by(|a, b| (span_of(a).start(), &a.min).cmp(&(span_of(b).start(), &b.min)));
        }
        rows.reverse();
        self.levels = rows;
    }

    /// Cuts the bounds of segments at the ends of their outermost live pivots. An upper bound may
    /// be the first key of the next pivot: readers stay within the live pivots.
    fn trim(&mut self) {
        for number in 0..self.levels.len() {
            for at in 0..self.levels[number].len() {
                let span = span_of(&self.levels[number][at]);
                let KeyRange { lo, hi } = self.range_of(*span.start(), *span.end());
                self.levels[number][at].trim(lo.as_deref(), hi.as_deref());
            }
        }
    }
}

/// From a segment's first live pivot to its last one.
fn span_of(segment: &Segment) -> std::ops::RangeInclusive<usize> {
    let pivot = |part: Option<&crate::node::LivePart>| part.map_or(0, |p| usize::from(p.pivot));
    pivot(segment.live.first())..=pivot(segment.live.last())
}
