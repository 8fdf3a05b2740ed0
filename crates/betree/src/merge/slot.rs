//! What a merge has made of a node's children so far, and where a task's result goes.

use super::runs::Key;
use crate::node::{Child, Node};

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
