//! The kinds of tasks of a merge. The work of each kind is in a file of its own.

use terrapin_pages::PageRef;
use terrapin_pages::group::{Deadlines, GroupRef};

use super::erase::Erase;
use super::frame::Frame;
use super::map::MapRuns;
use super::slot::{ChildSlot, Target};
use super::write::{WriteLeaves, WriteLevel};
use terrapin_runs::run::{KeyRange, Run};

/// A task. Its parts are boxed because the stack moves tasks.
pub(super) enum Task {
    Descend(Box<Descend>),
    Erase(Box<Erase>),
    Leaves(Box<WriteLeaves>),
    Level(Box<WriteLevel>),
    Map(Box<MapRuns>),
    Settle(Box<Frame>),
    /// Makes the root from these slots, which have this height.
    Finish(Vec<ChildSlot>, u16),
}

impl Task {
    pub(super) fn expected_bytes(&self) -> u64 {
        match self {
            Task::Descend(task) => task.expected_bytes,
            Task::Leaves(task) => task.expected_bytes,
            Task::Level(task) => task.expected_bytes,
            Task::Map(task) => task.expected_bytes,
            Task::Erase(_) | Task::Settle(_) | Task::Finish(..) => 0,
        }
    }
}

/// Where the node is that a task plans.
pub(super) enum NodeOrigin {
    /// On a page.
    Page(PageRef),
    /// Nowhere yet: a leaf is the whole tree. It gets a node above it, and a buffer if little comes
    /// in.
    Leaf(GroupRef, Deadlines),
}

/// Merges runs into a node.
pub(super) struct Descend {
    pub(super) target: Target,
    pub(super) origin: NodeOrigin,
    pub(super) height: u16,
    pub(super) range: KeyRange,
    /// The incoming runs, newest first.
    pub(super) incoming: Vec<Run>,
    /// Whether erased ranges are still in the node or below it.
    pub(super) erases: bool,
    pub(super) expected_bytes: u64,
}

impl Descend {
    pub(super) fn new(
        target: Target,
        origin: NodeOrigin,
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
            erases: false,
            expected_bytes,
        }
    }

    /// Gives up what is erased of the node and below it.
    pub(super) fn erasing(mut self, erases: bool) -> Self {
        self.erases = erases;
        self
    }
}
