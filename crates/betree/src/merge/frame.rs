//! A frame: a node under reconstruction. It waits for the results of its children's tasks, and then
//! settles (`settle`).
//!
//! A key range may be given to a neighbour only if the buffer has no messages for that neighbour
//! (it is *clean*). A segment may still hold messages, in the given range, that were flushed long
//! ago, and these would count again. So a neighbour that is not clean is flushed first, in a second
//! phase, from the levels that the first phase has written.

use terrapin_base::{Error, Result, mutant};
use terrapin_pages::Changes;

use super::map::FrameMaplet;
use super::runs::run_of_level;
use super::slot::{ChildSlot, ChildState, Target};
use super::write::{LevelPart, WrittenLeaves};
use crate::format::PIVOTS_MAX;
use crate::node::{Node, Segment};
use crate::plan::count;
use terrapin_runs::run::{KeyRange, Run};

/// A node under reconstruction.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) id: u64,
    pub(super) target: Target,
    pub(super) height: u16,
    pub(super) range: KeyRange,
    pub(super) slots: Vec<ChildSlot>,
    /// The buffer. Live parts refer to slots instead of pivots.
    pub(super) levels: Vec<Vec<Segment>>,
    pub(super) replaced_permille: u16,
    /// The buffer is tiered ([`Node::counts_replaced`]).
    pub(super) is_stacked: bool,
    /// Messages that were flushed to leaves, and how many of them replaced a record.
    pub(super) messages: u64,
    pub(super) replaced: u64,
    /// Number of tasks whose results are missing.
    pub(super) waiting: usize,
    /// The parts of the new level that are written so far.
    level_parts: Vec<Option<Vec<Segment>>>,
    /// The maplets of the slots (`map.rs`).
    pub(super) maplets: Vec<FrameMaplet>,
    /// Whether the tasks that make maplets were planned.
    pub(super) is_mapped: bool,
}

impl Frame {
    /// Makes a frame from a node, whose key range is `range`.
    pub(super) fn new(id: u64, target: Target, mut node: Node, range: KeyRange) -> Frame {
        let maplets = (node.pivots.iter_mut().enumerate())
            .filter_map(|(slot, pivot)| Some((slot, pivot.maplet.take()?)))
            .collect();
        let mut slots: Vec<ChildSlot> = node
            .pivots
            .into_iter()
            .map(|pivot| ChildSlot {
                lower: pivot.lower[..].into(),
                child: ChildState::Child(pivot.child),
                deadlines: pivot.deadlines,
                is_small: false,
            })
            .collect();
        if let Some(first) = slots.first_mut() {
            first.lower = range.lo.clone().unwrap_or_default();
        }
        let mut frame = Frame {
            id,
            target,
            height: node.height,
            range,
            slots,
            levels: node.levels,
            replaced_permille: node.replaced_permille,
            is_stacked: node.counts_replaced,
            messages: 0,
            replaced: 0,
            waiting: 0,
            level_parts: Vec::new(),
            maplets: Vec::new(),
            is_mapped: false,
        };
        frame.hold_maplets(maplets);
        frame
    }

    /// Makes the frame of an empty tree. Each of its slots waits for its first leaves.
    pub(super) fn of_new_leaves(id: u64, slots: Vec<ChildSlot>) -> Frame {
        Frame {
            id,
            target: Target::Root,
            height: 1,
            range: KeyRange::default(),
            waiting: slots.len(),
            slots,
            levels: Vec::new(),
            replaced_permille: 0,
            is_stacked: false,
            messages: 0,
            replaced: 0,
            level_parts: Vec::new(),
            maplets: Vec::new(),
            is_mapped: false,
        }
    }

    /// The key range of neighbouring slots.
    pub(super) fn range_of(&self, first: usize, last: usize) -> KeyRange {
        let lo = if first == 0 {
            self.range.lo.clone()
        } else {
            Some(self.slots[first].lower.clone())
        };
        let hi = self
            .slots
            .get(last + 1)
            .map(|next| next.lower.clone())
            .or_else(|| self.range.hi.clone());
        KeyRange { lo, hi }
    }

    /// The messages of the first `levels` levels for the wanted slots: one run for each level,
    /// newest first.
    pub(super) fn runs_of(&self, levels: usize, wanted: impl Fn(usize) -> bool + Copy) -> Vec<Run> {
        let levels = self.levels.iter().take(levels);
        let runs = levels
            .map(|level| run_of_level(level, wanted, |first, last| self.range_of(first, last)));
        runs.filter(|run| !run.is_empty()).collect()
    }

    /// Removes the flushed slots from the buffer.
    pub(super) fn clear(&mut self, flushed: impl Fn(usize) -> bool, changes: &mut Changes) {
        let flushed = |pivot| flushed(pivot) && !mutant::active("flushed-messages-still-count");
        for level in &mut self.levels {
            Self::clear_level(level, flushed, changes);
        }
    }

    /// Removes slots from one level.
    pub(super) fn clear_level(
        level: &mut Vec<Segment>,
        removed: impl Fn(usize) -> bool,
        changes: &mut Changes,
    ) {
        level.retain_mut(|segment| {
            segment
                .live
                .retain(|part| !removed(usize::from(part.pivot)));
            if segment.live.is_empty() {
                changes.released.push(segment.group.id);
            }
            !segment.live.is_empty()
        });
    }

    /// Makes the first level empty if possible, and returns whether it is. An empty level is moved
    /// to the front. If there is none, all levels move down by one, if a further level is allowed.
    pub(super) fn open_level(&mut self, levels_max: usize) -> bool {
        match self.levels.iter().position(Vec::is_empty) {
            Some(empty) => drop(self.levels.remove(empty)),
            None if self.levels.len() < levels_max => {}
            None => return false,
        }
        self.levels.insert(0, Vec::new());
        true
    }

    /// Prepares for the parts of a new level.
    pub(super) fn await_level(&mut self, parts: usize) {
        self.level_parts = vec![None; parts];
    }

    /// Takes over a part of a new level, which was merged from all levels down to that one; `None`
    /// if there was nothing to write. When the last part arrives, the new level replaces these
    /// levels.
    pub(super) fn take_level(
        &mut self,
        of: LevelPart,
        segments: Option<Vec<Segment>>,
        changes: &mut Changes,
    ) {
        self.waiting -= 1;
        let level = of.level;
        self.level_parts[of.part] = segments;
        if self.level_parts.iter().any(Option::is_none) {
            return;
        }
        let parts = std::mem::take(&mut self.level_parts);
        let segments = parts.into_iter().flatten().flatten().collect();
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        for old in &mut self.levels[..=level] {
            changes
                .released
                .extend(old.drain(..).map(|segment| segment.group.id));
        }
        self.levels[level] = segments;
    }

    /// Takes over the new children of a slot.
    pub(super) fn take_slots(&mut self, slot: usize, slots: Vec<ChildSlot>) {
        self.slots[slot].child = ChildState::Replaced(slots);
        self.waiting -= 1;
    }

    /// Takes over the new leaves of a slot.
    pub(super) fn take_leaves(&mut self, slot: usize, leaves: WrittenLeaves) {
        self.messages += leaves.messages;
        self.replaced += leaves.replaced;
        self.take_slots(slot, leaves.slots);
    }

    /// Bytes that the buffer has for each slot.
    pub(super) fn pending(&self) -> Vec<u64> {
        let mut pending = vec![0u64; self.slots.len()];
        for part in self
            .levels
            .iter()
            .flatten()
            .flat_map(|segment| &segment.live)
        {
            // A live part counts even if it has no bytes (the delete of an empty key).
            count(&mut pending[usize::from(part.pivot)], part.bytes.max(1));
        }
        pending
    }

    /// Replaces slots by their results, and renumbers the live parts.
    pub(super) fn expand(&mut self) -> Result<()> {
        let mut numbers = Vec::with_capacity(self.slots.len());
        let mut slots: Vec<ChildSlot> = Vec::with_capacity(self.slots.len());
        for mut slot in std::mem::take(&mut self.slots) {
            numbers.push(slots.len());
            match slot.child {
                ChildState::Swallowed => {}
                ChildState::Replaced(results) if results.is_empty() => {
                    slot.child = ChildState::Gone;
                    slots.push(slot);
                }
                ChildState::Replaced(mut results) => {
                    results[0].lower = slot.lower;
                    slots.append(&mut results);
                }
                child => {
                    slot.child = child;
                    slots.push(slot);
                }
            }
        }
        if slots.len() > PIVOTS_MAX {
            return Err(Error::new(
                terrapin_base::ErrorKind::TooLarge,
                "too many leaves for one node came in at once: open the database with its former group_bytes",
            )
            .with("pivots", slots.len())
            .with("limit", PIVOTS_MAX));
        }
        self.slots = slots;
        self.renumber(|slot| numbers[slot]);
        Ok(())
    }

    fn renumber(&mut self, number: impl Fn(usize) -> usize) {
        for part in self
            .levels
            .iter_mut()
            .flatten()
            .flat_map(|segment| &mut segment.live)
        {
            part.pivot = number(usize::from(part.pivot)) as u16;
        }
    }

    /// Replaces slots `first..=last`, for which the buffer has no messages.
    pub(super) fn splice(&mut self, first: usize, last: usize, slots: Vec<ChildSlot>) {
        let (removed, added) = (last + 1 - first, slots.len());
        self.slots.splice(first..=last, slots);
        self.renumber(|slot| {
            if slot > last {
                slot + added - removed
            } else {
                slot
            }
        });
    }
}
