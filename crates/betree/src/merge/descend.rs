//! The first task at a node: decides what goes down and which level takes the rest, and turns the node into a frame that
//! waits for both.

use std::sync::Arc;

use terrapin_base::{Result, mutant};
use terrapin_pages::group::GroupRef;
use terrapin_pages::{Changes, PageRef};
use terrapin_structure::Estimate;

use super::Task;
use super::first::PARTS_MAX;
use super::frame::{Frame, SlotChild, Target};
use super::nodes::load_open;
use super::runs::{Context, Key, KeyRange, Run};
use super::write::{LevelPart, WriteLeaves, WriteLevel};
use crate::load::load_child;
use crate::node::{Child, Node, Segment};
use crate::plan::{Below, count};

/// A part of a level comes to so many segments of full size at least.
const PART_GROUPS_MIN: u64 = 4;

/// Where a node is that runs are merged into.
pub(super) enum Origin {
    /// On a page.
    Page(PageRef),
    /// Nowhere yet: a leaf is the whole tree. It gets a node, and a buffer, if little comes in for it.
    Leaf(GroupRef),
}

/// Merges runs into a node.
pub(super) struct Descend {
    target: Target,
    origin: Origin,
    height: u16,
    range: KeyRange,
    /// What comes in, newest first.
    incoming: Vec<Run>,
    pub(super) expected_bytes: u64,
}

/// What comes in for a pivot, and what that counts for with what is there.
struct Load {
    arriving: Estimate,
    counted: u64,
    /// What of `counted` was added because messages are smaller than the records below: deletes.
    raised: u64,
}

impl Load {
    /// Counts messages that have so many bytes in all, each for `least` at least.
    fn count(&mut self, records: u64, bytes: u64, least: u64) {
        let counted = bytes.max(records.saturating_mul(least));
        count(&mut self.counted, counted);
        count(&mut self.raised, counted - bytes);
    }
}

impl Descend {
    pub(super) fn new(
        target: Target,
        origin: Origin,
        height: u16,
        range: KeyRange,
        incoming: Vec<Run>,
        expected_bytes: u64,
    ) -> Self {
        Descend {
            target,
            origin,
            height,
            range,
            incoming,
            expected_bytes,
        }
    }

    /// Plans. The tasks are in key order.
    pub(super) fn plan(
        self,
        context: &Context,
        id: u64,
        changes: &mut Changes,
    ) -> Result<(Frame, Vec<Task>)> {
        let node = match &self.origin {
            Origin::Page(page) => match (&self.target, &context.root_node) {
                (Target::Root, Some(root)) => {
                    changes.released.push(page.id);
                    Node::clone(root)
                }
                _ => load_open(context, page, self.height, changes)?,
            },
            Origin::Leaf(leaf) => Node::above(*leaf),
        };
        let ranges = ranges(&node, &self.range);
        let loads = self.loads(context, &node, &ranges)?;
        let counted: Vec<u64> = loads.iter().map(|load| load.counted).collect();
        let arriving = loads.iter().map(|load| load.arriving.bytes).sum();
        // Deletes replace something by their nature, and what they delete will not be there to take a share of: the average of
        // past flushes would learn of that too late.
        let raised: u64 = loads.iter().map(|load| load.raised).sum();
        let deletes = raised.saturating_mul(1000) / counted.iter().sum::<u64>().max(1);
        let below = (node.height == 1).then(|| Below {
            leaf_bytes: node.leaf_bytes().saturating_sub(raised),
            replaced_permille: node
                .replaced_permille
                .max(deletes.min(1000) as u16)
                .max(context.input.replacing_permille()),
        });
        let bound = match (&self.origin, node.lone_leaf()) {
            (Origin::Leaf(_), Some(leaf)) => {
                let least = u64::from(context.options.block_bytes);
                (context.policy).first_buffer_bytes_max(leaf.logical_bytes, arriving, least)
            }
            (Origin::Page(_), Some(leaf)) => {
                context.policy.lone_buffer_bytes_max(leaf.logical_bytes)
            }
            (_, None) => context.policy.buffer_bytes_max(node.pivots.len(), below),
        };
        let flush = if let Some(stretch) = &context.stretch {
            self.stretch_set(context, stretch, &node, &ranges)?
        } else if context.policy.flush_what_comes {
            self.window_set(context, &ranges)
        } else {
            let dead = dead_bytes(context, &node)?;
            context.policy.flush_set(&counted, &dead, arriving, bound)
        };

        let mut frame = Frame::new(id, self.target, node, self.range.clone());
        let mut tasks = Vec::new();
        tasks.extend(self.write_level(context, &mut frame, &flush, &loads, bound));
        for pivot in (0..flush.len()).filter(|&pivot| flush[pivot]) {
            let range = &ranges[pivot];
            let mut incoming: Vec<Run> = self
                .incoming
                .iter()
                .map(|run| run.narrowed(range))
                .collect();
            incoming.retain(|run| !run.is_empty());
            incoming.extend(frame.runs_of(usize::MAX, |other| other == pivot));
            let target = Target::Slot {
                frame: id,
                slot: pivot,
            };
            let slot = &mut frame.slots[pivot];
            match std::mem::replace(&mut slot.child, SlotChild::Pending) {
                SlotChild::Child(Child::Leaf(leaf)) => {
                    let expected = counted[pivot] + leaf.logical_bytes;
                    let task = WriteLeaves::new(
                        target,
                        range.clone(),
                        vec![leaf],
                        incoming,
                        false,
                        expected,
                    );
                    tasks.push(Task::Leaves(Box::new(task)));
                }
                SlotChild::Child(Child::Node { page, .. }) => {
                    let height = self.height - 1;
                    let task = Descend::new(
                        target,
                        Origin::Page(page),
                        height,
                        range.clone(),
                        incoming,
                        counted[pivot],
                    );
                    tasks.push(Task::Descend(Box::new(task)));
                }
                other => slot.child = other,
            }
        }
        frame.clear(|pivot| flush[pivot], changes);
        frame.waiting = tasks.len();
        Ok((frame, tasks))
    }

    /// What is flushed while space is short: where the window brings a record, and nothing that only a node above had. A slice of a window is
    /// small, and its estimates say nothing of where it lies.
    fn window_set(&self, context: &Context, ranges: &[KeyRange]) -> Vec<bool> {
        let brings = |range| self.incoming.iter().any(|run| run.brings(context, range));
        ranges.iter().map(brings).collect()
    }

    /// What a compaction of a stretch flushes: whole pivots, as ever, where any of it lies and something comes in, or buffers hold something,
    /// here or below. An estimate of what comes in may be none where there is a record.
    fn stretch_set(
        &self,
        context: &Context,
        stretch: &KeyRange,
        node: &Node,
        ranges: &[KeyRange],
    ) -> Result<Vec<bool>> {
        let comes_in = |range| {
            self.incoming
                .iter()
                .any(|run| !run.narrowed(range).is_empty())
        };
        let is_flushed = |pivot: usize| {
            let range = &ranges[pivot];
            if stretch.intersection(range).is_none() {
                return Ok(false);
            }
            let pivot = &node.pivots[pivot];
            if pivot.pending_bytes > 0 || comes_in(range) {
                return Ok(true);
            }
            match &pivot.child {
                Child::Leaf(_) => Ok(false),
                Child::Node { page, .. } => {
                    let child = load_child(&context.store, page, node.height)?;
                    Ok(child.height > 1 || !child.is_buffer_empty())
                }
            }
        };
        (0..ranges.len()).map(is_flushed).collect()
    }

    /// What there is for each pivot. A message counts at least the mean record of the leaves below: deletes are small, and
    /// would never reach the records that they delete.
    fn loads(&self, context: &Context, node: &Node, ranges: &[KeyRange]) -> Result<Vec<Load>> {
        let mean = |pivot: usize| {
            let child = &node.pivots[pivot].child;
            child.leaf_bytes().checked_div(child.records()).unwrap_or(0)
        };
        let mut loads = Vec::with_capacity(ranges.len());
        for (pivot, range) in ranges.iter().enumerate() {
            let mut arriving = Estimate::default();
            for run in &self.incoming {
                let part = run.estimate(context, range)?;
                arriving.records = arriving.records.saturating_add(part.records);
                count(&mut arriving.bytes, part.bytes);
            }
            let mut load = Load {
                arriving,
                counted: 0,
                raised: 0,
            };
            load.count(arriving.records, arriving.bytes, mean(pivot));
            loads.push(load);
        }
        for part in node
            .levels
            .iter()
            .flatten()
            .flat_map(|segment| &segment.live)
        {
            let pivot = usize::from(part.pivot);
            let records = u64::from(part.records);
            // A live part counts even if its bytes are none.
            loads[pivot].count(records, part.bytes, mean(pivot).max(1));
        }
        Ok(loads)
    }

    /// The tasks for what came in and is not flushed: one for each part of the level; none if nothing can have come in there.
    fn write_level(
        &self,
        context: &Context,
        frame: &mut Frame,
        flush: &[bool],
        loads: &[Load],
        bound: u64,
    ) -> Vec<Task> {
        if self.kept(context, frame, flush).is_empty() {
            return Vec::new();
        }
        let is_short = context.policy.flush_what_comes;
        if is_short {
            frame.open_level(context.policy.levels_max());
        }
        let mut weights: Vec<u64> = loads
            .iter()
            .zip(flush)
            .map(|(load, flushed)| if *flushed { 0 } else { load.arriving.bytes })
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
        let mut tasks = Vec::with_capacity(parts.len());
        for (number, &(first, last)) in parts.iter().enumerate() {
            let elsewhere = |pivot: usize| flush[pivot] || !(first..=last).contains(&pivot);
            let left_out: Vec<bool> = (0..flush.len()).map(elsewhere).collect();
            let older = frame.runs_of(level + usize::from(!mutant::active(58)), |pivot| {
                !left_out[pivot]
            });
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
            );
            tasks.push(Task::Level(Box::new(task)));
        }
        frame.await_level(parts.len());
        tasks
    }

    /// What comes in for pivots that are not left out. While space is short all that the window brings is flushed.
    fn kept(&self, context: &Context, frame: &Frame, left_out: &[bool]) -> Vec<Run> {
        let kept = spans(left_out)
            .map(|(first, last)| frame.range_of(first, last))
            .collect::<Vec<_>>();
        let stays = |run: &&Run| !(context.policy.flush_what_comes && run.is_window());
        let runs = self.incoming.iter().filter(stays);
        let runs = runs.map(|run| run.narrowed_to_all(&kept));
        runs.filter(|run| !run.is_empty()).collect()
    }
}

/// Cuts pivots of these weights into neighbouring parts for workers to write side by side: first and last of each, no part much lighter
/// than `least` unless it is the only one.
fn parts(weights: &[u64], least: u64) -> Vec<(usize, usize)> {
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

/// The bytes that segments hold besides what is alive, laid on the pivots that keep them there: a segment goes with its last
/// live part. Only for nodes above leaves, whose buffers are bounded for the sake of space.
fn dead_bytes(context: &Context, node: &Node) -> Result<Vec<u64>> {
    let mut dead = vec![0; node.pivots.len()];
    // A segment for one pivot goes with that, whatever else it holds.
    let is_lone = node.pivots.len() == 1;
    if node.height > 1 || is_lone || context.policy.share_permille.is_none() {
        return Ok(dead);
    }
    for segment in node.levels.iter().flatten() {
        let live: u64 = segment.live.iter().map(|part| part.bytes).sum();
        let index = context.store.index(&segment.group)?;
        let (_, own) = index.estimate_bytes(Some(&segment.min), Some(&segment.max));
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
fn ranges(node: &Node, range: &KeyRange) -> Vec<KeyRange> {
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

/// Spans of pivots that are not flushed: first and last.
fn spans(flush: &[bool]) -> impl Iterator<Item = (usize, usize)> {
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
