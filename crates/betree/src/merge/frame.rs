//! A frame is a node under reconstruction. It waits for what its children become, then settles:
//! children that came out empty or less than half full are given to their neighbours, pages of new
//! child nodes are written, and what the node itself becomes goes to the frame above.
//!
//! A key range may only be given to a neighbour for which the buffer holds nothing (it is *clean*):
//! a segment may hold, in the range that is given away, records that were flushed long ago, and
//! they would count again. So an unclean neighbour is flushed first, in a second phase, from the
//! levels that the first phase has written.

use terrapin_base::{Error, Result, mutant};
use terrapin_pages::Changes;

use super::runs::{KeyRange, Run};
use super::slot::{Slot, SlotChild, Target};
use super::write::{LevelPart, WrittenLeaves};
use crate::format::PIVOTS_MAX;
use crate::node::{Node, Segment};
use crate::plan::count;

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
    pub(super) fn pending(&self) -> Vec<u64> {
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
    pub(super) fn expand(&mut self) -> Result<()> {
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
    pub(super) fn splice(&mut self, first: usize, last: usize, slots: Vec<Slot>) {
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
