//! The last task of a merge: it makes the new root. It puts nodes on top while there are several. A
//! root with one child and an empty buffer is replaced by the child.

use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_disk::LongBox;
use terrapin_pages::Changes;
use terrapin_pages::group::Deadlines;

use super::nodes::{split, write_node};
use super::runs::Context;
use super::slot::{ChildSlot, ChildState};
use crate::load::{HEIGHT_MAX, LoadedNode, load_node};
use crate::node::{Child, Node, Pivot, Root};
use terrapin_runs::run::Key;

/// A new root, and its node in memory, if the root is a node.
pub(super) type Made = (Root, Option<Arc<LoadedNode>>);

/// Makes the new root. `height` is the height of the slots: 0 for leaves.
pub(super) fn make_root(
    context: &Context,
    mut slots: Vec<ChildSlot>,
    mut height: u16,
    changes: &mut Changes,
) -> Result<Made> {
    while slots.len() > 1 {
        height += 1;
        if height > HEIGHT_MAX {
            return Err(Error::internal("the tree would become too high").with("height", height));
        }
        let mut pivots = Vec::with_capacity(slots.len());
        for slot in slots {
            let (child, deadlines) = match slot.child {
                ChildState::Child(child) => (child, slot.deadlines),
                ChildState::Open(open) => write_node(context, &open.node, changes)?,
                _ => return Err(Error::internal("the root was made before its children")),
            };
            pivots.push(Pivot {
                lower: slot.lower[..].into(),
                child,
                deadlines,
                pending_bytes: 0,
                maplet: None,
            });
        }
        pivots[0].lower = LongBox::default();
        let node = Node {
            height,
            replaced_permille: 0,
            counts_replaced: false,
            pivots,
            levels: Vec::new(),
        };
        slots = split(context, node, Key::default(), changes)?;
    }
    let Some(slot) = slots.pop() else {
        return Ok((Root::Empty, None));
    };
    let child = match slot.child {
        ChildState::Child(child) => (child, slot.deadlines),
        ChildState::Open(open) => match lone_child(&open.node) {
            Some(child) => {
                height -= 1;
                child
            }
            None => {
                let mut node = open.node;
                node.tidy();
                if let (Child::Node { page, .. }, _) = write_node(context, &node, changes)? {
                    let made = LoadedNode::new(node)?;
                    return Ok((Root::Node(page, height), Some(Arc::new(made))));
                }
                return Err(Error::internal("a node was written as a leaf"));
            }
        },
        _ => return Err(Error::internal("the root was made before its children")),
    };
    shrink(context, child, height, changes)
}

/// Goes down while a node has one child and an empty buffer.
fn shrink(
    context: &Context,
    (mut child, mut deadlines): (Child, Deadlines),
    mut height: u16,
    changes: &mut Changes,
) -> Result<Made> {
    loop {
        let page = match child {
            Child::Leaf(leaf) => return Ok((Root::Leaf(leaf, deadlines), None)),
            Child::Node { page, .. } => page,
        };
        let node = load_node(&context.store, &page, height)?;
        let Some(only) = lone_child(&node) else {
            return Ok((Root::Node(page, height), Some(node)));
        };
        changes.released.push(page.id);
        (child, deadlines) = only;
        height -= 1;
    }
}

fn lone_child(node: &Node) -> Option<(Child, Deadlines)> {
    match &node.pivots[..] {
        [pivot] if node.is_buffer_empty() => Some((pivot.child, pivot.deadlines.clone())),
        _ => None,
    }
}
