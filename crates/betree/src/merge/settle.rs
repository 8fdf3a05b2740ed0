//! Settling: the work on a frame when all results for its slots have arrived. Children that are
//! empty or less than half full are given to their neighbours. Pages of new child nodes are
//! written. The node's own result goes to the frame above.

use terrapin_base::{Error, Result};
use terrapin_disk::LongBox;
use terrapin_pages::Changes;

use super::frame::Frame;
use super::nodes::{concatenate, load_open, split, write_node};
use super::runs::Context;
use super::slot::{ChildSlot, ChildState, OpenNode, Target};
use super::task::{Descend, NodeOrigin, Task};
use super::write::WriteLeaves;
use crate::node::{Child, Node, Pivot};
use crate::plan::replaced_permille;

/// The result of settling.
pub(super) enum Settled {
    /// The frame waits for these tasks of a second phase.
    Waits(Frame, Vec<Task>),
    /// The node's result.
    Done(Target, Vec<ChildSlot>),
}

impl Frame {
    /// Does all that is possible with the results at hand. It leaves merges of leaves and flushes
    /// to tasks. It does the rest at once, with reads of some blocks and writes of some node pages.
    pub(super) fn settle(
        mut self,
        context: &Context,
        new_id: &mut dyn FnMut() -> u64,
        changes: &mut Changes,
    ) -> Result<Settled> {
        self.expand()?;
        self.drop_empty();
        if let [
            ChildSlot {
                child: ChildState::Gone,
                ..
            },
        ] = &self.slots[..]
        {
            if self.levels.iter().any(|level| !level.is_empty()) {
                return Err(Error::internal(
                    "a node lost its children before its buffer",
                ));
            }
            self.give_maplets(changes);
            return Ok(Settled::Done(self.target, Vec::new()));
        }
        let tasks = if self.slots.len() == 1 || context.options.around.adds_only {
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
        if context.options.around.is_any() && self.slots.iter().any(ChildSlot::is_gone) {
            let message = "a leaf became empty, and its neighbours cannot take its range: they need \
                           damaged pages";
            return Err(Error::corrupt(message));
        }
        let tasks = self.map_runs(context);
        if !tasks.is_empty() {
            self.waiting = tasks.len();
            return Ok(Settled::Waits(self, tasks));
        }
        let target = self.target;
        Ok(Settled::Done(target, self.finish(context, changes)?))
    }

    /// The slots that need a damaged page. They are not united with others.
    fn damaged(&self, context: &Context) -> Vec<bool> {
        let around = &context.options.around;
        let mut damaged = vec![false; self.slots.len()];
        if around.pages.is_empty() {
            return damaged;
        }
        for segment in self.levels.iter().flatten() {
            for part in segment.live.iter().filter(|_| around.has(segment.group.id)) {
                damaged[usize::from(part.pivot)] = true;
            }
        }
        for (slot, damaged) in self.slots.iter().zip(&mut damaged) {
            if let ChildState::Child(child) = &slot.child {
                *damaged |= around.has(child.page());
            }
        }
        damaged
    }

    /// Gives empty ranges to clean neighbours.
    fn drop_empty(&mut self) {
        if !self.slots.iter().any(ChildSlot::is_gone) {
            return;
        }
        let mut pending = self.pending();
        let mut slot = 0;
        while slot < self.slots.len() {
            let is_gone = self.slots[slot].is_gone();
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
            // The slot before, if also empty, may have a clean neighbour now.
            slot = slot.saturating_sub(1);
        }
    }

    /// Whether a slot must be united with a neighbour.
    fn needs_neighbour(&self, slot: usize) -> bool {
        self.slots[slot].is_small || self.slots[slot].is_gone()
    }

    /// The neighbour to unite a slot with: one that must be united too, else the lighter one.
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

    /// Unites leaves that are less than half full with neighbours, together with the buffer's
    /// messages for them.
    fn unite_leaves(&mut self, context: &Context, changes: &mut Changes) -> Vec<Task> {
        let pending = self.pending();
        let mut taken = self.damaged(context);
        let weight = |frame: &Self, slot: usize| match &frame.slots[slot].child {
            ChildState::Child(child) => child.leaf_bytes() + pending[slot],
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
            let leaf = |slot: &ChildSlot| match slot.child {
                ChildState::Child(Child::Leaf(leaf)) => Some((leaf, slot.deadlines.clone())),
                _ => None,
            };
            let target = Target::Child {
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
            self.slots[first].child = ChildState::Pending;
            for slot in &mut self.slots[first + 1..=last] {
                slot.child = ChildState::Swallowed;
            }
        }
        tasks
    }

    /// Unites child nodes that are less than half full with clean neighbours. Returns tasks that
    /// must run before that.
    fn unite_nodes(
        &mut self,
        context: &Context,
        new_id: &mut dyn FnMut() -> u64,
        changes: &mut Changes,
    ) -> Result<Vec<Task>> {
        let mut tasks = Vec::new();
        loop {
            let pending = self.pending();
            let is_busy = |slot: &ChildSlot| {
                matches!(slot.child, ChildState::Pending | ChildState::Swallowed)
            };
            let damaged = self.damaged(context);
            let busy: Vec<bool> = (self.slots.iter().zip(damaged))
                .map(|(slot, is_damaged)| is_damaged || is_busy(slot))
                .collect();
            // If a neighbour is in work, its result comes first.
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
            // Check both. On a damaged page, a node's buffer may have messages for an only child,
            // which counts as small.
            if let Some(first) = [other, slot].into_iter().find(|&slot| pending[slot] > 0) {
                tasks.push(self.flush(first, pending[first], changes)?);
                continue;
            }
            if self.slots[slot].is_gone() {
                // The neighbour has become clean by being united with another.
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
            let target = Target::Child {
                frame: self.id,
                slot: first,
            };
            let mut frame = Frame::new(new_id(), target, node, self.range_of(first, last));
            for small in small.into_iter().flatten() {
                frame.slots[small].is_small = true;
            }
            tasks.push(Task::Settle(Box::new(frame)));
            self.slots[first].child = ChildState::Pending;
            self.slots[last].child = ChildState::Swallowed;
        }
    }

    /// Flushes the buffer's messages for a slot to its child.
    fn flush(&mut self, slot: usize, pending: u64, changes: &mut Changes) -> Result<Task> {
        let range = self.range_of(slot, slot);
        let incoming = self.runs_of(usize::MAX, |other| other == slot);
        self.clear(|other| other == slot, changes);
        let target = Target::Child {
            frame: self.id,
            slot,
        };
        let child = std::mem::replace(&mut self.slots[slot].child, ChildState::Pending);
        let ChildState::Child(Child::Node { page, .. }) = child else {
            return Err(Error::internal(
                "the buffer holds messages for a child that was just flushed",
            ));
        };
        Ok(Task::Descend(Box::new(Descend::new(
            target,
            NodeOrigin::Page(page),
            self.height - 1,
            range,
            incoming,
            pending,
        ))))
    }

    /// Takes the node out of a slot, and loads it from its page if it was written.
    fn open(&mut self, context: &Context, slot: usize, changes: &mut Changes) -> Result<OpenNode> {
        match std::mem::replace(&mut self.slots[slot].child, ChildState::Pending) {
            ChildState::Open(open) => Ok(*open),
            ChildState::Child(Child::Node { page, .. }) => {
                let node = load_open(context, &page, self.height - 1, changes)?;
                // An only child never had a neighbour.
                let has_small_child = node.pivots.len() == 1;
                Ok(OpenNode {
                    node,
                    has_small_child,
                })
            }
            _ => Err(Error::internal("a child of a frame is not a node")),
        }
    }

    /// Writes the new child nodes, and makes the node's result.
    fn finish(mut self, context: &Context, changes: &mut Changes) -> Result<Vec<ChildSlot>> {
        if self.is_stacked {
            self.sink();
        }
        let has_small_child = self.slots.len() == 1 && self.slots[0].is_small;
        let maplets = self.give_maplets(changes);
        let mut pivots = Vec::with_capacity(self.slots.len());
        for (slot, maplet) in self.slots.into_iter().zip(maplets) {
            let (child, deadlines) = match slot.child {
                ChildState::Child(child) => (child, slot.deadlines),
                ChildState::Open(open) => write_node(context, &open.node, changes)?,
                _ => return Err(Error::internal("a node was finished before its children")),
            };
            pivots.push(Pivot {
                lower: slot.lower[..].into(),
                child,
                deadlines,
                pending_bytes: 0,
                maplet,
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
            counts_replaced: self.is_stacked,
            pivots,
            levels: self.levels,
        };
        let mut slots = split(context, node, lower, changes)?;
        if let [
            ChildSlot {
                child: ChildState::Open(open),
                ..
            },
        ] = &mut slots[..]
        {
            open.has_small_child = has_small_child;
        }
        Ok(slots)
    }
}
