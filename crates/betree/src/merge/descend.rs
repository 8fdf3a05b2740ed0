//! Planning at a node, the first task there. It decides which pivots are flushed and which level
//! takes the rest. Then it turns the node into a frame that waits for the tasks of both.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::Changes;
use terrapin_pages::group::GroupSums;

use super::erase::{Coverage, Erase};
use super::first::PARTS_MAX;
use super::frame::Frame;
use super::hidden::Hiding;
use super::runs::Context;
use super::slot::{ChildState, Target};
use super::stack::{self, Stacking};
use super::task::{Descend, NodeOrigin, Task};
use super::write::{LevelPart, WriteLeaves, WriteLevel};
use crate::load::{LoadedNode, load_child, load_node};
use crate::node::{Child, Node, Pivot, Segment, Sums};
use crate::plan::{Bounds, Pending, count};
use terrapin_runs::run::{Key, KeyRange, Run};

/// A part of a level has at least this many segments of full size.
pub(super) const PART_GROUPS_MIN: u64 = 4;

/// The messages for a pivot: incoming ones, and those of its node's buffer.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    /// Key and value bytes that come in.
    pub(super) arriving: u64,
    /// All key and value bytes. A live part counts at least one byte.
    pub(super) bytes: u64,
    /// Bytes that all these messages hide.
    pub(super) hidden: u64,
}

impl Load {
    fn add(&mut self, sums: GroupSums) {
        count(&mut self.bytes, sums.bytes);
        if !mutant::active("merge-ignores-hidden-bytes") {
            count(&mut self.hidden, sums.hidden_bytes);
        }
    }
}

/// Key and value bytes of what comes in.
fn arriving(loads: &[Load]) -> u64 {
    let mut bytes = 0;
    loads
        .iter()
        .for_each(|load| count(&mut bytes, load.arriving));
    bytes
}

impl Descend {
    /// Plans the node. Returns its frame and its tasks in key order.
    pub(super) fn plan(
        self,
        context: &Context,
        id: u64,
        changes: &mut Changes,
    ) -> Result<(Frame, Vec<Task>)> {
        let loaded = self.load(context, changes)?;
        let node = Node::clone(&loaded);
        let ranges = ranges(&node, &self.range);
        let mut hiding = Hiding::by_all_of(context, &loaded);
        if !context.policy.flush_what_comes {
            hiding.sample(context, &self.incoming, &ranges)?;
        }
        let coverage = self.coverage(context, &ranges);
        let rules = stack::rules(context, &node, &self.origin);
        let mut loads = self.loads(context, &node, &ranges, &hiding)?;
        if rules.is_some() {
            self.count_replaced(context, &node, &ranges, &mut loads)?;
        }
        for (load, coverage) in loads.iter_mut().zip(&coverage) {
            // Of the messages, only the memtable's stay, and they go to the leaves.
            if *coverage == Coverage::Whole {
                *load = Load::default();
            }
        }
        let bounds = self.bounds(context, &node, &loads);
        let mut stacking =
            rules.map(|_| Stacking::plain(ranges.len(), stack::replaced_permille(context, &node)));
        let mut flush = if let Some(stretch) = &context.stretch {
            self.stretch_set(context, stretch, &node, &ranges)?
        } else if context.policy.flush_what_comes {
            self.memtable_set(context, &ranges)?
        } else if let Some(rules) = rules {
            let keys = (&ranges[..], &coverage[..]);
            let (flush, decided) = self.stacking(context, (&node, rules), &loads, keys)?;
            stacking = Some(decided);
            flush
        } else {
            self.flush_set(context, &node, &loads, &bounds)?
        };
        for (flush, coverage) in flush.iter_mut().zip(&coverage) {
            *flush |= *coverage != Coverage::Nothing;
        }

        let mut frame = Frame::new(id, self.target, node, self.range.clone());
        frame.is_stacked = stacking.is_some();
        let mut tasks = Vec::new();
        if let Some(stacking) = &stacking {
            let mut elsewhere = flush.clone();
            for (elsewhere, last) in elsewhere.iter_mut().zip(&stacking.appended) {
                *elsewhere |= last.is_some();
            }
            let what = (&loads[..], &hiding);
            let level = (&elsewhere[..], stacking);
            tasks.extend(self.write_stack(context, &mut frame, level, what, changes));
            tasks.extend(self.appends(&mut frame, stacking, (&ranges, &loads)));
        } else {
            let bound = bounds.bytes_max();
            tasks.extend(self.write_level(context, &mut frame, &flush, &loads, (bound, &hiding)));
        }
        let passes_runs = stacking.is_some() && mutant::active("flush-passes-older-runs");
        for pivot in (0..flush.len()).filter(|&pivot| flush[pivot]) {
            let range = &ranges[pivot];
            let erased = coverage[pivot];
            let mut incoming: Vec<Run> = self
                .incoming
                .iter()
                .filter(|run| erased != Coverage::Whole || run.is_input())
                .map(|run| run.narrowed(range))
                .collect();
            if erased != Coverage::Whole {
                let mut older = frame.runs_of(usize::MAX, |other| other == pivot);
                if erased == Coverage::Part && !mutant::active("erased-messages-flow-down") {
                    let kept = context.erased.kept_of(range);
                    older
                        .iter_mut()
                        .for_each(|run| *run = run.narrowed_to_all(&kept));
                }
                if !passes_runs {
                    incoming.extend(older);
                }
            }
            incoming.retain(|run| !run.is_empty());
            let is_given_up = erased == Coverage::Whole
                && (!self.brings(context, range)?
                    || mutant::active("erased-child-takes-newer-puts-along"));
            let erases = erased != Coverage::Nothing;
            if is_given_up {
                let target = Target::Child {
                    frame: id,
                    slot: pivot,
                };
                let slot = &mut frame.slots[pivot];
                match std::mem::replace(&mut slot.child, ChildState::Pending) {
                    ChildState::Child(Child::Leaf(leaf)) => {
                        changes.released.push(leaf.id);
                        slot.child = ChildState::Gone;
                    }
                    ChildState::Child(Child::Node { page, .. }) => {
                        let task = Erase::new(target, page, self.height - 1);
                        tasks.push(Task::Erase(Box::new(task)));
                    }
                    other => slot.child = other,
                }
                continue;
            }
            let bytes = loads[pivot].bytes;
            tasks.extend(
                match take_child(&mut frame, pivot, range, incoming, bytes) {
                    Some(Task::Leaves(task)) => Some(Task::Leaves(Box::new(task.erasing(erases)))),
                    Some(Task::Descend(task)) => {
                        Some(Task::Descend(Box::new(task.erasing(erases))))
                    }
                    other => other,
                },
            );
        }
        frame.clear(|pivot| flush[pivot] && !passes_runs, changes);
        frame.waiting = tasks.len();
        Ok((frame, tasks))
    }

    /// How much of each pivot is erased.
    fn coverage(&self, context: &Context, ranges: &[KeyRange]) -> Vec<Coverage> {
        let coverage = |range| match self.erases {
            true => context.erased.coverage(range),
            false => Coverage::Nothing,
        };
        ranges.iter().map(coverage).collect()
    }

    /// Whether the memtable has a record in a range.
    fn brings(&self, context: &Context, range: &KeyRange) -> Result<bool> {
        for run in &self.incoming {
            if run.brings(&context.input, range)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Loads the node, and releases its page.
    pub(super) fn load(&self, context: &Context, changes: &mut Changes) -> Result<Arc<LoadedNode>> {
        Ok(match &self.origin {
            NodeOrigin::Page(page) => {
                let loaded = match (&self.target, &context.root_node) {
                    (Target::Root, Some(root)) => root.clone(),
                    _ => load_node(&context.store, page, self.height)?,
                };
                changes.released.push(page.id);
                loaded
            }
            NodeOrigin::Leaf(leaf, deadlines) => {
                Arc::new(LoadedNode::new(Node::above(*leaf, deadlines.clone()))?)
            }
        })
    }

    /// What comes in for a pivot, and what the buffer holds for it.
    pub(super) fn all_for(&self, frame: &Frame, pivot: usize, range: &KeyRange) -> Vec<Run> {
        let incoming = self.incoming.iter().map(|run| run.narrowed(range));
        let mut all: Vec<Run> = incoming.collect();
        all.extend(frame.runs_of(usize::MAX, |other| other == pivot));
        all.retain(|run| !run.is_empty());
        all
    }

    /// The tasks that write what came in for pivots that an ingest did not touch.
    pub(super) fn keep(
        &self,
        context: &Context,
        frame: &mut Frame,
        node: &Arc<LoadedNode>,
        (ranges, touched): (&[KeyRange], &[bool]),
        changes: &mut Changes,
    ) -> Result<Vec<Task>> {
        if self.incoming.is_empty() {
            return Ok(Vec::new());
        }
        let mut loads = vec![Load::default(); ranges.len()];
        for (pivot, load) in loads.iter_mut().enumerate().filter(|(at, _)| !touched[*at]) {
            for run in &self.incoming {
                load.add(context.estimate(run, &ranges[pivot])?);
            }
            load.arriving = load.bytes;
        }
        let hiding = Hiding::by_all_of(context, node);
        if stack::rules(context, node, &self.origin).is_some() {
            frame.is_stacked = true;
            let stacking = Stacking::plain(ranges.len(), 0);
            let (level, what) = ((touched, &stacking), (&loads[..], &hiding));
            return Ok(self.write_stack(context, frame, level, what, changes));
        }
        Ok(self.write_level(context, frame, touched, &loads, (0, &hiding)))
    }

    /// The pivots that an ordinary merge flushes, as [`crate::plan`] decides.
    fn flush_set(
        &self,
        context: &Context,
        node: &Node,
        loads: &[Load],
        bounds: &Bounds,
    ) -> Result<Vec<bool>> {
        let dead = dead_bytes(context, node)?;
        let pivots: Vec<Pending> = loads
            .iter()
            .zip(dead)
            .map(|(load, dead)| Pending {
                bytes: load.bytes,
                hidden: load.hidden,
                dead,
            })
            .collect();
        Ok(context.policy.flush_set(&pivots, arriving(loads), bounds))
    }

    /// The bounds of the node's buffer.
    fn bounds(&self, context: &Context, node: &Node, loads: &[Load]) -> Bounds {
        let policy = &context.policy;
        let mut hidden = 0;
        loads
            .iter()
            .for_each(|load| count(&mut hidden, load.hidden));
        let mut below = Sums::default();
        for pivot in &node.pivots {
            below.add(&pivot.child.sums());
        }
        let replaced = match node.height {
            1 => Some(
                node.replaced_permille
                    .max(context.input.replacing_permille()),
            ),
            _ => None,
        };
        let buffer_bytes = match (&self.origin, node.lone_leaf()) {
            (NodeOrigin::Leaf(..), Some(leaf)) => {
                let least = u64::from(context.options.block_bytes);
                policy.first_buffer_bytes_max(leaf.logical_bytes, arriving(loads), least)
            }
            (NodeOrigin::Page(_), Some(leaf)) => policy.lone_buffer_bytes_max(leaf.logical_bytes),
            (_, None) => policy.buffer_bytes_max(node.pivots.len()),
        };
        Bounds {
            buffer_bytes,
            waste: policy.waste_max(below.live_bytes().saturating_sub(hidden), replaced),
        }
    }

    /// The pivots that are flushed while disk space is short: those for which the memtable has a
    /// record. What only came from a node above stays. A slice of a memtable is small, so its
    /// estimates do not tell where its records are.
    fn memtable_set(&self, context: &Context, ranges: &[KeyRange]) -> Result<Vec<bool>> {
        ranges
            .iter()
            .map(|range| self.brings(context, range))
            .collect()
    }

    /// The pivots that a compaction of a stretch flushes. These are whole pivots that overlap the
    /// stretch. Something must come in for them, a buffer here or below must have messages for
    /// them, or a leaf must have expired. It does not use estimates of what comes in, which may be
    /// 0 though there is a record.
    fn stretch_set(
        &self,
        context: &Context,
        stretch: &KeyRange,
        node: &Node,
        ranges: &[KeyRange],
    ) -> Result<Vec<bool>> {
        let damaged = stack::damaged(context, node);
        let expired = context.options.expired();
        let comes_in = |range| {
            self.incoming
                .iter()
                .any(|run| !run.narrowed(range).is_empty())
        };
        let is_flushed = |pivot: usize| {
            let range = &ranges[pivot];
            if stretch.intersection(range).is_none() || damaged[pivot] {
                return Ok(false);
            }
            let pivot = &node.pivots[pivot];
            if pivot.pending_bytes > 0 || comes_in(range) {
                return Ok(true);
            }
            match &pivot.child {
                Child::Leaf(leaf) => Ok(pivot.deadlines.is_due(leaf.records, expired)),
                Child::Node { page, .. } => {
                    let child = load_child(&context.store, page, node.height)?;
                    let is_due = |pivot: &Pivot| match &pivot.child {
                        Child::Leaf(leaf) => pivot.deadlines.is_due(leaf.records, expired),
                        Child::Node { .. } => false,
                    };
                    let is_due = || child.pivots.iter().any(is_due);
                    Ok(child.height > 1 || !child.is_buffer_empty() || is_due())
                }
            }
        };
        (0..ranges.len()).map(is_flushed).collect()
    }

    /// The messages for each pivot, and how much they hide. Buffers store these sums. The
    /// memtable's messages are estimated or counted.
    fn loads(
        &self,
        context: &Context,
        node: &Node,
        ranges: &[KeyRange],
        hiding: &Hiding,
    ) -> Result<Vec<Load>> {
        let mut loads = Vec::with_capacity(ranges.len());
        for (pivot, range) in ranges.iter().enumerate() {
            let mut load = Load::default();
            for run in &self.incoming {
                load.add(match run.is_input() {
                    true => sums_of_memtable(context, run, range, (hiding, pivot))?,
                    false => context.estimate(run, range)?,
                });
            }
            load.arriving = load.bytes;
            loads.push(load);
        }
        for part in node
            .levels
            .iter()
            .flatten()
            .flat_map(|segment| &segment.live)
        {
            let pivot = usize::from(part.pivot);
            let mut sums = GroupSums {
                records: u64::from(part.records),
                bytes: part.bytes.max(1),
                hidden_bytes: part.hidden_bytes,
                separated_bytes: part.separated_bytes,
            };
            if !hiding.is_counted(pivot) {
                // Nothing tells whether each short put replaces a longer record.
                let shorter = hiding.shorter_than_records(pivot, sums);
                sums.hidden_bytes = sums.hidden_bytes.max(shorter);
            }
            loads[pivot].add(sums);
        }
        Ok(loads)
    }

    /// Plans the tasks that write what came in and is not flushed, one for each part of the level.
    /// There are none if nothing came in for these pivots.
    fn write_level(
        &self,
        context: &Context,
        frame: &mut Frame,
        flush: &[bool],
        loads: &[Load],
        (bound, hiding): (u64, &Hiding),
    ) -> Vec<Task> {
        if self.kept(context, frame, flush).is_empty() {
            return Vec::new();
        }
        let is_short = context.policy.flush_what_comes;
        let is_opened = is_short && frame.open_level(context.policy.levels_max());
        let mut weights: Vec<u64> = loads
            .iter()
            .zip(flush)
            .map(|(load, flushed)| if *flushed { 0 } else { load.arriving })
            .collect();
        let kept_of = |segments: &[Segment]| -> Vec<(usize, u64)> {
            let live = segments.iter().flat_map(|segment| &segment.live);
            live.map(|part| (usize::from(part.pivot), part.bytes))
                .filter(|&(pivot, _)| !flush[pivot])
                .collect()
        };
        let there: Vec<_> = frame.levels.iter().map(|level| kept_of(level)).collect();
        let sum = |parts: &Vec<(usize, u64)>| {
            let mut sum = 0;
            parts.iter().for_each(|&(_, bytes)| count(&mut sum, bytes));
            sum
        };
        let levels: Vec<u64> = there.iter().map(sum).collect();
        let level = match is_short {
            true => 0,
            false => {
                let rest = weights.iter().sum();
                let unit = context.policy.level_unit(context.brings, rest, bound);
                context.policy.level_for(rest, &levels, unit)
            }
        };
        for &(pivot, bytes) in there.iter().take(level + 1).flatten() {
            count(&mut weights[pivot], bytes);
        }
        let parts = match is_short {
            true => vec![(0, flush.len() - 1)],
            false => parts(&weights, PART_GROUPS_MIN * context.group_bytes()),
        };
        let lowers: Arc<[Key]> = frame
            .slots
            .iter()
            .skip(1)
            .map(|slot| slot.lower.clone())
            .collect();
        let is_whole = parts.len() == 1;
        // The old levels that are not merged into the new one are below it.
        let hiding = Arc::new(hiding.by_levels_from(if is_opened { 0 } else { level + 1 }));
        let mut tasks = Vec::with_capacity(parts.len());
        for (number, &(first, last)) in parts.iter().enumerate() {
            let elsewhere = |pivot: usize| flush[pivot] || !(first..=last).contains(&pivot);
            let left_out: Vec<bool> = (0..flush.len()).map(elsewhere).collect();
            let older = frame.runs_of(
                level + usize::from(!mutant::active("level-written-without-older-runs")),
                |pivot| !left_out[pivot],
            );
            let task = WriteLevel::new(
                LevelPart {
                    frame: frame.id,
                    level,
                    part: number,
                    is_whole,
                },
                lowers.clone(),
                frame.range_of(first, last),
                self.kept(context, frame, &left_out),
                older,
                weights[first..=last].iter().sum(),
                hiding.clone(),
            );
            tasks.push(Task::Level(Box::new(task)));
        }
        frame.await_level(parts.len());
        tasks
    }

    /// What comes in for pivots that are not left out. While disk space is short, all messages of
    /// the memtable are flushed, so they do not count.
    pub(super) fn kept(&self, context: &Context, frame: &Frame, left_out: &[bool]) -> Vec<Run> {
        let kept = spans(left_out)
            .map(|(first, last)| frame.range_of(first, last))
            .collect::<Vec<_>>();
        let stays = |run: &&Run| !(context.policy.flush_what_comes && run.is_input());
        let runs = self.incoming.iter().filter(stays);
        let runs = runs.map(|run| run.narrowed_to_all(&kept));
        runs.filter(|run| !run.is_empty()).collect()
    }
}

/// Takes the child of a pivot out of the node's frame. Returns the task that merges `incoming` into
/// it, about `bytes`. The caller then clears the buffer of that pivot.
pub(super) fn take_child(
    frame: &mut Frame,
    pivot: usize,
    range: &KeyRange,
    incoming: Vec<Run>,
    bytes: u64,
) -> Option<Task> {
    let target = Target::Child {
        frame: frame.id,
        slot: pivot,
    };
    let slot = &mut frame.slots[pivot];
    match std::mem::replace(&mut slot.child, ChildState::Pending) {
        ChildState::Child(Child::Leaf(leaf)) => {
            let task = WriteLeaves::new(
                target,
                range.clone(),
                vec![(leaf, std::mem::take(&mut slot.deadlines))],
                incoming,
                false,
                bytes + leaf.logical_bytes,
            );
            Some(Task::Leaves(Box::new(task)))
        }
        ChildState::Child(Child::Node { page, .. }) => {
            let (origin, height) = (NodeOrigin::Page(page), frame.height - 1);
            let task = Descend::new(target, origin, height, range.clone(), incoming, bytes);
            Some(Task::Descend(Box::new(task)))
        }
        other => {
            slot.child = other;
            None
        }
    }
}

/// Divides pivots of these weights into neighbouring parts, which workers write in parallel.
/// Returns the first and last pivot of each part. No part is much lighter than `least`, unless it
/// is the only one.
pub(super) fn parts(weights: &[u64], least: u64) -> Vec<(usize, usize)> {
    let total: u64 = weights.iter().sum();
    let count = (total / least.max(1)).clamp(1, PARTS_MAX);
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let (mut first, mut sum) = (0, 0);
    for (pivot, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= total / count * (parts.len() as u64 + 1) && (parts.len() as u64) < count - 1 {
            parts.push((first, pivot));
            first = pivot + 1;
        }
    }
    if first < weights.len() {
        parts.push((first, weights.len() - 1));
    }
    parts
}

/// The memtable's messages for a pivot. If all records below are short, this is an estimate in
/// which each message hides the mean record. Otherwise each message is counted.
fn sums_of_memtable(
    context: &Context,
    run: &Run,
    range: &KeyRange,
    (hiding, pivot): (&Hiding, usize),
) -> Result<GroupSums> {
    // On a full disk nothing depends on this count.
    if !hiding.is_walked(pivot) || context.policy.flush_what_comes {
        let mut sums = context.estimate(run, range)?;
        sums.hidden_bytes = hiding.shorter_than_records(pivot, sums);
        return Ok(sums);
    }
    let mut sums = GroupSums::default();
    for messages in run.messages_of_input(&context.input, range) {
        let mut messages = messages?;
        while let Some(key) = messages.key() {
            let message = messages.message();
            let hidden = hiding.of(&context.store, (pivot, key), message, || None)?;
            sums.records += 1;
            count(&mut sums.bytes, (key.len() + message.value_bytes()) as u64);
            count(&mut sums.hidden_bytes, hidden);
            count(&mut sums.separated_bytes, message.separated_bytes());
            messages.advance()?;
        }
    }
    if !hiding.is_counted(pivot) {
        let shorter = hiding.shorter_than_records(pivot, sums);
        sums.hidden_bytes = sums.hidden_bytes.max(shorter);
    }
    Ok(sums)
}

/// The dead bytes of segments, divided among the pivots that keep them. A segment is freed with its
/// last live part. Only nodes above leaves count dead bytes: only their buffers are bounded to save
/// space.
fn dead_bytes(context: &Context, node: &Node) -> Result<Vec<u64>> {
    let mut dead = vec![0; node.pivots.len()];
    // A segment of a single pivot is freed with that pivot, however much of it is dead.
    let is_lone = node.pivots.len() == 1;
    if node.height > 1 || is_lone || context.policy.share_permille.is_none() {
        return Ok(dead);
    }
    for segment in node.levels.iter().flatten() {
        let live: u64 = segment.live.iter().map(|part| part.bytes).sum();
        let index = context.store.index(&segment.group)?;
        let own = index.estimate(Some(&segment.min), Some(&segment.max)).bytes;
        let rest = u128::from(own.saturating_sub(live));
        for part in &segment.live {
            let share = rest * u128::from(part.bytes) / u128::from(live.max(1));
            count(
                &mut dead[usize::from(part.pivot)],
                u64::try_from(share).unwrap_or(0),
            );
        }
    }
    Ok(dead)
}

/// The key range of each pivot.
pub(super) fn ranges(node: &Node, range: &KeyRange) -> Vec<KeyRange> {
    let mut lo = range.lo.clone();
    let mut ranges = Vec::with_capacity(node.pivots.len());
    for next in node.pivots.iter().skip(1) {
        let lower = Some(Arc::from(&next.lower[..]));
        ranges.push(KeyRange {
            lo: std::mem::replace(&mut lo, lower.clone()),
            hi: lower,
        });
    }
    ranges.push(KeyRange {
        lo,
        hi: range.hi.clone(),
    });
    ranges
}

/// The first and last pivot of each span that is not flushed.
pub(super) fn spans(flush: &[bool]) -> impl Iterator<Item = (usize, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = next + flush[next..].iter().position(|&flushed| !flushed)?;
        let end = flush[first..]
            .iter()
            .position(|&flushed| flushed)
            .map_or(flush.len(), |count| first + count);
        next = end;
        Some((first, end - 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_are_about_equal() {
        assert_eq!(parts(&[5; 10], 51), [(0, 9)]);
        assert_eq!(parts(&[5; 10], 25), [(0, 4), (5, 9)]);
        assert_eq!(parts(&[0; 3], 1), [(0, 2)]);
        assert_eq!(parts(&[0, 100, 0], 10), [(0, 1), (2, 2)]);
        let weights: Vec<u64> = (0..100).map(|i| i * 7919 % 100).collect();
        let parts = parts(&weights, 100);
        assert_eq!(parts.len() as u64, PARTS_MAX);
        assert_eq!((parts[0].0, parts[parts.len() - 1].1), (0, 99));
        assert!(parts.windows(2).all(|two| two[0].1 + 1 == two[1].0));
        for (first, last) in parts {
            let sum: u64 = weights[first..=last].iter().sum();
            assert!((500..740).contains(&sum), "{sum}");
        }
    }
}
