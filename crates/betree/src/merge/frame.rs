//! A frame is a node under reconstruction. It waits for what its children become, then settles:
//! children that came out empty or less than half full are given to their neighbours, pages of new
//! child nodes are written, and what the node itself becomes goes to the frame above.
//!
//! A key range may only be given to a neighbour for which the buffer holds nothing (it is *clean*):
//! a segment may hold, in the range that is given away, records that were flushed long ago, and
//! they would count again. So an unclean neighbour is flushed first, in a second phase, from the
//! levels that the first phase has written.

use terrapin_base::{Error, Result, mutant};
use terrapin_disk::LongBox;
use terrapin_pages::Changes;

use super::Task;
use super::descend::{Descend, Origin};
use super::nodes::{concatenate, load_open, split, write_node};
use super::runs::{Context, Key, KeyRange, Run};
use super::write::{LevelPart, WriteLeaves, WrittenLeaves};
use crate::format::PIVOTS_MAX;
use crate::node::{Child, Node, Pivot, Segment};
use crate::plan::{count, replaced_permille};

/// Where a task's result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It is the new tree.
    Root,
    /// It takes the place of a slot of a frame.
    Slot { frame: u64, slot: usize },
}

/// A node that is not written yet.
#[derive(Debug)]
pub(super) struct OpenNode {
    pub(super) node: Node,
    /// Its only child is too small and had no neighbour; once it has one, this must be put right.
    pub(super) has_small_child: bool,
}

/// What stands in a slot.
#[derive(Debug)]
pub(super) enum SlotChild {
    /// A leaf, or a node's page.
    Child(Child),
    /// A node that is not written yet.
    Open(Box<OpenNode>),
    /// Nothing: the range holds no records below.
    Gone,
    /// A task is at work on it.
    Pending,
    /// A task is at work on it, together with the slot before.
    Swallowed,
    /// What a task has made of it, and of the swallowed ones behind it.
    Replaced(Vec<Slot>),
}

/// A pivot of a frame.
#[derive(Debug)]
pub(super) struct Slot {
    /// Where its key range begins; for the first slot, where the frame's does.
    pub(super) lower: Key,
    pub(super) child: SlotChild,
    /// Whether it is known to be less than half full.
    pub(super) is_small: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) id: u64,
    pub(super) target: Target,
    pub(super) height: u16,
    pub(super) range: KeyRange,
    pub(super) slots: Vec<Slot>,
    /// The buffer; live parts count slots.
    pub(super) levels: Vec<Vec<Segment>>,
    pub(super) replaced_permille: u16,
    /// Messages that were flushed to leaves, and how many of them replaced something.
    pub(super) messages: u64,
    pub(super) replaced: u64,
    /// Tasks whose results are missing.
    pub(super) waiting: usize,
    /// What was written of the parts of a level.
    level_parts: Vec<Option<Vec<Segment>>>,
}

/// What settling comes to.
pub(super) enum Settled {
    /// More has to be done; the frame waits for these tasks.
    Waits(Frame, Vec<Task>),
    /// What the node has become.
    Done(Target, Vec<Slot>),
}

impl Frame {
    /// A frame of a node's content. `lower` is where its range begins.
    pub(super) fn new(id: u64, target: Target, node: Node, range: KeyRange) -> Frame {
        let mut slots: Vec<Slot> = node
            .pivots
            .into_iter()
            .map(|pivot| Slot {
                lower: pivot.lower[..].into(),
                child: SlotChild::Child(pivot.child),
                is_small: false,
            })
            .collect();
        if let Some(first) = slots.first_mut() {
            first.lower = range.lo.clone().unwrap_or_default();
        }
        Frame {
            id,
            target,
            height: node.height,
            range,
            slots,
            levels: node.levels,
            replaced_permille: node.replaced_permille,
            messages: 0,
            replaced: 0,
            waiting: 0,
            level_parts: Vec::new(),
        }
    }

    /// A frame over everything in an empty tree, whose slots wait for their first leaves.
    pub(super) fn of_new_leaves(id: u64, slots: Vec<Slot>) -> Frame {
        Frame {
            id,
            target: Target::Root,
            height: 1,
            range: KeyRange::default(),
            waiting: slots.len(),
            slots,
            levels: Vec::new(),
            replaced_permille: 0,
            messages: 0,
            replaced: 0,
            level_parts: Vec::new(),
        }
    }

    /// The key range of some neighbouring slots.
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

    /// What the levels hold for some slots: one run a level, newest first.
    pub(super) fn runs_of(&self, levels: usize, wanted: impl Fn(usize) -> bool + Copy) -> Vec<Run> {
        let levels = self.levels.iter().take(levels);
        let runs =
            levels.map(|level| Run::level(level, wanted, |first, last| self.range_of(first, last)));
        runs.filter(|run| !run.is_empty()).collect()
    }

    /// Forgets what the buffer holds for some slots: it has been sent down.
    pub(super) fn clear(&mut self, flushed: impl Fn(usize) -> bool, changes: &mut Changes) {
        let flushed = |pivot| flushed(pivot) && !mutant::active(21);
        for level in &mut self.levels {
            level.retain_mut(|segment| {
                segment
                    .live
                    .retain(|part| !flushed(usize::from(part.pivot)));
                if segment.live.is_empty() {
                    changes.released.push(segment.group.id);
                }
                !segment.live.is_empty()
            });
        }
    }

    /// Makes the first level an empty one, if that can be, and says whether: what is above an empty
    /// level, or where there is room for one more all there is, moves down by one.
    pub(super) fn open_level(&mut self, levels_max: usize) -> bool {
        match self.levels.iter().position(Vec::is_empty) {
            Some(empty) => drop(self.levels.remove(empty)),
            None if self.levels.len() < levels_max => {}
            None => return false,
        }
        self.levels.insert(0, Vec::new());
        true
    }

    /// So many parts of a level are going to be written.
    pub(super) fn await_level(&mut self, parts: usize) {
        self.level_parts = vec![None; parts];
    }

    /// Takes over a part of a level that was written from all levels down to it; none if nothing
    /// was to be written. The level takes their place with its last part.
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

    /// Takes over what became of a slot.
    pub(super) fn take_slots(&mut self, slot: usize, slots: Vec<Slot>) {
        self.slots[slot].child = SlotChild::Replaced(slots);
        self.waiting -= 1;
    }

    /// Takes over what became of leaves.
    pub(super) fn take_leaves(&mut self, slot: usize, leaves: WrittenLeaves) {
        self.messages += leaves.messages;
        self.replaced += leaves.replaced;
        self.take_slots(slot, leaves.slots);
    }

    /// Bytes that the buffer holds for each slot.
    fn pending(&self) -> Vec<u64> {
        let mut pending = vec![0u64; self.slots.len()];
        for part in self
            .levels
            .iter()
            .flatten()
            .flat_map(|segment| &segment.live)
        {
            // A live part counts even if its bytes are none (an empty key's delete).
            count(&mut pending[usize::from(part.pivot)], part.bytes.max(1));
        }
        pending
    }

    /// Puts results in the places of the slots that they are for, and numbers live parts anew.
    fn expand(&mut self) -> Result<()> {
        let mut numbers = Vec::with_capacity(self.slots.len());
        let mut slots: Vec<Slot> = Vec::with_capacity(self.slots.len());
        for mut slot in std::mem::take(&mut self.slots) {
            numbers.push(slots.len());
            match slot.child {
                SlotChild::Swallowed => {}
                SlotChild::Replaced(results) if results.is_empty() => {
                    slot.child = SlotChild::Gone;
                    slots.push(slot);
                }
                SlotChild::Replaced(mut results) => {
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
                "too much came in at once for one node: open with the group_bytes that the database had before",
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

    /// Replaces slots `first..=last`, for which the buffer holds nothing.
    fn splice(&mut self, first: usize, last: usize, slots: Vec<Slot>) {
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

    /// Does what is possible with all results at hand. A merge of two leaves or a flush is left to
    /// tasks; everything else happens here, with the reads of some blocks and the writes of some
    /// node pages.
    pub(super) fn settle(
        mut self,
        context: &Context,
        new_id: &mut dyn FnMut() -> u64,
        changes: &mut Changes,
    ) -> Result<Settled> {
        self.expand()?;
        self.drop_empty();
        if let [
            Slot {
                child: SlotChild::Gone,
                ..
            },
        ] = &self.slots[..]
        {
            if self.levels.iter().any(|level| !level.is_empty()) {
                return Err(Error::internal(
                    "a node lost its children before its buffer",
                ));
            }
            return Ok(Settled::Done(self.target, Vec::new()));
        }
        let tasks = if self.slots.len() == 1 {
            Vec::new()
        } else if self.height == 1 {
            self.unite_leaves(context, changes)
        } else {
            self.unite_nodes(context, new_id, changes)?
        };
        if !tasks.is_empty() {
            self.waiting = tasks.len();
            return Ok(Settled::Waits(self, tasks));
        }
        let target = self.target;
        Ok(Settled::Done(target, self.finish(context, changes)?))
    }

    /// Gives empty ranges to clean neighbours.
    fn drop_empty(&mut self) {
        if !self
            .slots
            .iter()
            .any(|slot| matches!(slot.child, SlotChild::Gone))
        {
            return;
        }
        let mut pending = self.pending();
        let mut slot = 0;
        while slot < self.slots.len() {
            let is_gone = matches!(self.slots[slot].child, SlotChild::Gone);
            let left_takes = slot > 0 && pending[slot - 1] == 0;
            let right_takes = pending.get(slot + 1) == Some(&0);
            if !is_gone || !left_takes && !right_takes {
                slot += 1;
                continue;
            }
            if !left_takes {
                self.slots[slot + 1].lower = self.slots[slot].lower.clone();
            }
            self.splice(slot, slot, Vec::new());
            pending.remove(slot);
            // The neighbour before, if empty too, may have found its taker now.
            slot = slot.saturating_sub(1);
        }
    }

    /// Whether a slot needs a neighbour.
    fn needs_neighbour(&self, slot: usize) -> bool {
        self.slots[slot].is_small || matches!(self.slots[slot].child, SlotChild::Gone)
    }

    /// The neighbour that a slot is united with: one that needs it too, else the lighter one.
    fn neighbour_of(
        &self,
        slot: usize,
        weight: impl Fn(usize) -> u64,
        taken: &[bool],
    ) -> Option<usize> {
        let neighbours = [
            slot.checked_sub(1),
            Some(slot + 1).filter(|&next| next < self.slots.len()),
        ];
        let free = neighbours
            .into_iter()
            .flatten()
            .filter(|&other| !taken[other]);
        free.min_by_key(|&other| (!self.needs_neighbour(other), weight(other)))
    }

    /// Unites leaves that are less than half full with neighbours. What the buffer has for those
    /// goes along.
    fn unite_leaves(&mut self, context: &Context, changes: &mut Changes) -> Vec<Task> {
        let pending = self.pending();
        let mut taken = vec![false; self.slots.len()];
        let weight = |frame: &Self, slot: usize| match &frame.slots[slot].child {
            SlotChild::Child(child) => child.leaf_bytes() + pending[slot],
            _ => pending[slot],
        };
        let mut spans = Vec::new();
        for slot in 0..self.slots.len() {
            if taken[slot] || !self.needs_neighbour(slot) {
                continue;
            }
            let Some(other) = self.neighbour_of(slot, |other| weight(self, other), &taken) else {
                continue;
            };
            let (first, mut last) = (slot.min(other), slot.max(other));
            let mut bytes: u64 = weight(self, first) + weight(self, last);
            while bytes < context.group_bytes() / 2 && taken.get(last + 1) == Some(&false) {
                last += 1;
                bytes += weight(self, last);
            }
            taken[first..=last].fill(true);
            spans.push((first, last, bytes));
        }
        let mut tasks = Vec::with_capacity(spans.len());
        for (first, last, bytes) in spans {
            let within = |slot: usize| (first..=last).contains(&slot);
            let leaf = |slot: &Slot| match slot.child {
                SlotChild::Child(Child::Leaf(leaf)) => Some(leaf),
                _ => None,
            };
            let target = Target::Slot {
                frame: self.id,
                slot: first,
            };
            let incoming = self.runs_of(usize::MAX, within);
            let base = self.slots[first..=last].iter().filter_map(leaf).collect();
            let task = WriteLeaves::new(
                target,
                self.range_of(first, last),
                base,
                incoming,
                true,
                bytes,
            );
            tasks.push(Task::Leaves(Box::new(task)));
            self.clear(within, changes);
            self.slots[first].child = SlotChild::Pending;
            for slot in &mut self.slots[first + 1..=last] {
                slot.child = SlotChild::Swallowed;
            }
        }
        tasks
    }

    /// Unites child nodes that are less than half full with clean neighbours, and sends off what
    /// must happen before.
    fn unite_nodes(
        &mut self,
        context: &Context,
        new_id: &mut dyn FnMut() -> u64,
        changes: &mut Changes,
    ) -> Result<Vec<Task>> {
        let mut tasks = Vec::new();
        loop {
            let pending = self.pending();
            let busy: Vec<bool> = self
                .slots
                .iter()
                .map(|slot| matches!(slot.child, SlotChild::Pending | SlotChild::Swallowed))
                .collect();
            // Where a neighbour is being worked on already, its result is awaited first.
            let is_free = |slot: usize| {
                !busy[slot.saturating_sub(1)..self.slots.len().min(slot + 2)].contains(&true)
            };
            let found = (0..self.slots.len())
                .filter(|&slot| is_free(slot) && self.needs_neighbour(slot))
                .find_map(|slot| {
                    Some((
                        slot,
                        self.neighbour_of(slot, |other| pending[other], &busy)?,
                    ))
                });
            let Some((slot, other)) = found else {
                return Ok(tasks);
            };
            // Both: a page may say that an only child, which is taken to be small, has something in
            // its node's buffer.
            if let Some(first) = [other, slot].into_iter().find(|&slot| pending[slot] > 0) {
                tasks.push(self.flush(first, pending[first], changes)?);
                continue;
            }
            if matches!(self.slots[slot].child, SlotChild::Gone) {
                // Its neighbour has become clean by being united with another.
                if slot < other {
                    self.slots[other].lower = self.slots[slot].lower.clone();
                }
                self.splice(slot, slot, Vec::new());
                continue;
            }
            let (first, last) = (slot.min(other), slot.max(other));
            let lower = self.slots[first].lower.clone();
            let middle = self.slots[last].lower.clone();
            let left = self.open(context, first, changes)?;
            let right = self.open(context, last, changes)?;
            let small = [
                left.has_small_child.then_some(0),
                right.has_small_child.then_some(left.node.pivots.len()),
            ];
            let node = concatenate(left.node, right.node, &middle)?;
            if small == [None, None] {
                self.splice(first, last, split(context, node, lower, changes)?);
                continue;
            }
            let target = Target::Slot {
                frame: self.id,
                slot: first,
            };
            let mut frame = Frame::new(new_id(), target, node, self.range_of(first, last));
            for small in small.into_iter().flatten() {
                frame.slots[small].is_small = true;
            }
            tasks.push(Task::Settle(Box::new(frame)));
            self.slots[first].child = SlotChild::Pending;
            self.slots[last].child = SlotChild::Swallowed;
        }
    }

    /// Sends what the buffer has for a slot to its child.
    fn flush(&mut self, slot: usize, pending: u64, changes: &mut Changes) -> Result<Task> {
        let range = self.range_of(slot, slot);
        let incoming = self.runs_of(usize::MAX, |other| other == slot);
        self.clear(|other| other == slot, changes);
        let target = Target::Slot {
            frame: self.id,
            slot,
        };
        let child = std::mem::replace(&mut self.slots[slot].child, SlotChild::Pending);
        let SlotChild::Child(Child::Node { page, .. }) = child else {
            return Err(Error::internal(
                "the buffer holds messages for a child that was just flushed",
            ));
        };
        Ok(Task::Descend(Box::new(Descend::new(
            target,
            Origin::Page(page),
            self.height - 1,
            range,
            incoming,
            pending,
        ))))
    }

    /// Takes the node out of a slot, from its page if it was written.
    fn open(&mut self, context: &Context, slot: usize, changes: &mut Changes) -> Result<OpenNode> {
        match std::mem::replace(&mut self.slots[slot].child, SlotChild::Pending) {
            SlotChild::Open(open) => Ok(*open),
            SlotChild::Child(Child::Node { page, .. }) => {
                let node = load_open(context, &page, self.height - 1, changes)?;
                // An only child never had a neighbour.
                let has_small_child = node.pivots.len() == 1;
                Ok(OpenNode {
                    node,
                    has_small_child,
                })
            }
            _ => Err(Error::internal("a node was expected among children")),
        }
    }

    /// Writes new child nodes, and makes what the node has become.
    fn finish(self, context: &Context, changes: &mut Changes) -> Result<Vec<Slot>> {
        let has_small_child = self.slots.len() == 1 && self.slots[0].is_small;
        let mut pivots = Vec::with_capacity(self.slots.len());
        for slot in self.slots {
            let child = match slot.child {
                SlotChild::Child(child) => child,
                SlotChild::Open(open) => write_node(context, &open.node, changes)?,
                _ => return Err(Error::internal("a node was finished before its children")),
            };
            pivots.push(Pivot {
                lower: slot.lower[..].into(),
                child,
                pending_bytes: 0,
            });
        }
        let lower = self.range.lo.clone().unwrap_or_default();
        if let Some(first) = pivots.first_mut() {
            first.lower = LongBox::default();
        }
        let records = pivots.iter().map(|pivot| pivot.child.records()).sum();
        let replaced_permille = replaced_permille(
            self.replaced_permille,
            self.messages,
            self.replaced,
            records,
        );
        let node = Node {
            height: self.height,
            replaced_permille,
            pivots,
            levels: self.levels,
        };
        let mut slots = split(context, node, lower, changes)?;
        if let [
            Slot {
                child: SlotChild::Open(open),
                ..
            },
        ] = &mut slots[..]
        {
            open.has_small_child = has_small_child;
        }
        Ok(slots)
    }
}
