//! The children of a frame while their tasks run, and the targets of tasks.

use terrapin_pages::group::Deadlines;
use terrapin_runs::run::Key;

use crate::node::{Child, Node};

/// Where the result of a task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The result is the new tree.
    Root,
    /// The result replaces a slot of a frame.
    Child { frame: u64, slot: usize },
}

/// A node that is not written yet.
#[derive(Debug)]
pub(super) struct OpenNode {
    pub(super) node: Node,
    /// The only child is too small and had no neighbour. It must be united when it gets one.
    pub(super) has_small_child: bool,
}

/// The state of a slot's child.
#[derive(Debug)]
pub(super) enum ChildState {
    /// A leaf, or the page of a node.
    Child(Child),
    /// A node that is not written yet.
    Open(Box<OpenNode>),
    /// No child: the range has no records below.
    Gone,
    /// A task works on the child.
    Pending,
    /// A task works on the child, together with the slot before.
    Swallowed,
    /// The result of a task for this slot and the swallowed slots behind it.
    Replaced(Vec<ChildSlot>),
}

/// A child of a frame and its lower bound.
#[derive(Debug)]
pub(super) struct ChildSlot {
    /// The lower bound of the key range. The first slot has that of the frame.
    pub(super) lower: Key,
    pub(super) child: ChildState,
    /// Of a leaf or a written node: how many records of the child and all below it expire when.
    pub(super) deadlines: Deadlines,
    /// Whether the child is known to be less than half full.
    pub(super) is_small: bool,
}

impl ChildSlot {
    /// Whether the range has no records below.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.child, ChildState::Gone)
    }
}
