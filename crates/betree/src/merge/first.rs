//! What a merge into an empty tree begins with. There is no node whose children could be written
//! side by side, and much may come in, all of a load's first memtable: so the keys are cut, and
//! every part's leaves are a task of their own, under a frame that becomes the root.

use super::frame::Frame;
use super::runs::{Context, Key, KeyRange, Run};
use super::slot::{Slot, SlotChild, Target};
use super::task::Task;
use super::write::WriteLeaves;

/// Most parts: enough for workers that begin late, and few last leaves that are not full.
pub(super) const PARTS_MAX: u64 = 8;
/// A part comes to so many leaves at least: the last of each may be half empty.
const PART_LEAVES_MIN: u64 = 16;

/// The tasks, and the frame that waits for them if there are several.
pub(super) fn first_tasks(context: &Context, id: u64) -> (Option<Frame>, Vec<Task>) {
    let bytes = context.input.estimate(None, None).bytes;
    let parts = match context.options.space_is_short {
        true => 1,
        false => bytes / (PART_LEAVES_MIN * context.group_bytes()),
    };
    let cuts = match parts.min(PARTS_MAX) {
        parts @ 2.. => context.input.cuts(parts as usize),
        _ => Vec::new(),
    };
    if cuts.is_empty() {
        let task = leaves(context, Target::Root, KeyRange::default());
        return (None, vec![task]);
    }
    let lowers = std::iter::once(Key::default()).chain(cuts.into_iter().map(Key::from));
    let slots: Vec<Slot> = lowers
        .map(|lower| Slot {
            lower,
            child: SlotChild::Pending,
            is_small: false,
        })
        .collect();
    let frame = Frame::of_new_leaves(id, slots);
    let tasks = (0..frame.waiting).map(|slot| {
        let target = Target::Slot { frame: id, slot };
        leaves(context, target, frame.range_of(slot, slot))
    });
    let tasks = tasks.collect();
    (Some(frame), tasks)
}

/// Writes leaves of what comes in for a range.
fn leaves(context: &Context, target: Target, range: KeyRange) -> Task {
    let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
    let expected = context.input.estimate(lo, hi).bytes;
    let incoming = vec![Run::memtable(range.clone())];
    let task = WriteLeaves::new(target, range, Vec::new(), incoming, false, expected);
    Task::Leaves(Box::new(task))
}
