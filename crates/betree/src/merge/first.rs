//! The start of a merge into an empty tree. There is no node whose children could be written in
//! parallel, and a load's first memtable may be large. So the keys are divided into parts. The
//! leaves of each part are a task, under a frame that becomes the root.

use terrapin_pages::group::Deadlines;

use super::frame::Frame;
use super::runs::Context;
use super::slot::{ChildSlot, ChildState, Target};
use super::task::Task;
use super::write::WriteLeaves;
use terrapin_runs::run::{Key, KeyRange, Run};

/// Most parts. This is enough for workers that start late, and leaves few last leaves that are not
/// full.
pub(super) const PARTS_MAX: u64 = 8;
/// A part has at least this many leaves, because its last leaf may be half empty.
const PART_LEAVES_MIN: u64 = 16;

/// Plans the tasks, and the frame that waits for them if there are several.
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
    let slots: Vec<ChildSlot> = lowers
        .map(|lower| ChildSlot {
            lower,
            child: ChildState::Pending,
            deadlines: Deadlines::default(),
            is_small: false,
        })
        .collect();
    let frame = Frame::of_new_leaves(id, slots);
    let tasks = (0..frame.waiting).map(|slot| {
        let target = Target::Child { frame: id, slot };
        leaves(context, target, frame.range_of(slot, slot))
    });
    let tasks = tasks.collect();
    (Some(frame), tasks)
}

/// A task that writes the leaves of a range.
fn leaves(context: &Context, target: Target, range: KeyRange) -> Task {
    let (lo, hi) = (range.lo.as_deref(), range.hi.as_deref());
    let expected = context.input.estimate(lo, hi).bytes;
    let incoming = vec![Run::input(range.clone())];
    let task = WriteLeaves::new(target, range, Vec::new(), incoming, false, expected);
    Task::Leaves(Box::new(task))
}
