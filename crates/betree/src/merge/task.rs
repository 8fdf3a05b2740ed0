//! The tasks of a merge. Each kind's work is in a file of its own.

use terrapin_pages::PageRef;
use terrapin_pages::group::GroupRef;

use super::frame::Frame;
use super::runs::{KeyRange, Run};
use super::slot::{Slot, Target};
use super::write::{WriteLeaves, WriteLevel};

/// A piece of work. Boxed: the stack moves them about.
pub(super) enum Task {
    Descend(Box<Descend>),
    Leaves(Box<WriteLeaves>),
    Level(Box<WriteLevel>),
    Settle(Box<Frame>),
    /// Makes the root of what stands for it, and of what height that is.
    Finish(Vec<Slot>, u16),
}

impl Task {
    pub(super) fn expected_bytes(&self) -> u64 {
        match self {
            Task::Descend(task) => task.expected_bytes,
            Task::Leaves(task) => task.expected_bytes,
            Task::Level(task) => task.expected_bytes,
            Task::Settle(_) | Task::Finish(..) => 0,
        }
    }
}

/// Where a node is that runs are merged into.
pub(super) enum Origin {
    /// On a page.
    Page(PageRef),
    /// Nowhere yet: a leaf is the whole tree. It gets a node, and a buffer, if little comes in for
    /// it.
    Leaf(GroupRef),
}

/// Merges runs into a node.
pub(super) struct Descend {
    pub(super) target: Target,
    pub(super) origin: Origin,
    pub(super) height: u16,
    pub(super) range: KeyRange,
    /// What comes in, newest first.
    pub(super) incoming: Vec<Run>,
    pub(super) expected_bytes: u64,
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
}
