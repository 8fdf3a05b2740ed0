//! Sorted ingest: a merge whose input comes record by record.
//!
//! An ordinary merge plans a node from what its input has for each child. An ingest knows one
//! record. It goes down to the leaf that the record belongs to. There it merges the leaf, all that
//! buffers hold for it, and the records that come, as a merge writes leaves. A record beyond the
//! leaf ends it, and each node whose keys are all below the record. A node that ends is settled as
//! in other merges. The messages that came down with a flushed child, and are for pivots that no
//! record touched, become a level of the child.
//!
//! So an ingest reads and writes each leaf that it touches once, and leaves all others alone. Keys
//! that no leaf has cost no read.
//!
//! References to new leaves wait until their node ends. After [`PART_LEAVES`] leaves per pivot of a
//! full node, the ingest therefore ends all nodes, and goes on in the tree that this makes.

use std::sync::Arc;

use terrapin_base::{Error, Message, Result, mutant};
use terrapin_pages::Changes;
use terrapin_runs::run::KeyRange;
use terrapin_structure::{Ingest, Merge, Merged};

use super::descend::{ranges, take_child};
use super::frame::Frame;
use super::runs::Context;
use super::slot::Target;
use super::task::{Descend, NodeOrigin, Task};
use super::write::WriteLeaves;
use super::{Graph, Outcome, TreeMerge, frame_of};
use crate::load::LoadedNode;
use crate::node::{Node, Root};
use crate::version::TreeVersion;

/// An ingest ends a part after this many leaves for each pivot of a full node: 1,024 leaves at a
/// fan-out of 64. The last leaf of a part is written again by the next part.
const PART_LEAVES: usize = 16;

/// An ingest into a tree.
pub(crate) struct TreeIngest {
    /// The part under way. Its frames are the open nodes, and each waits for the ingest, too.
    merge: Arc<TreeMerge>,
    /// The tree before that part, until its first record.
    root: Option<Root>,
    /// The nodes on the way to the leaf, the root first.
    path: Vec<OpenNode>,
    leaf: Option<Box<WriteLeaves>>,
    /// Leaves of this part that ended.
    leaves: usize,
    /// Changes of parts that ended, and those that the ingest made itself.
    changes: Changes,
}

/// A node that records go through.
struct OpenNode {
    frame: u64,
    node: Arc<LoadedNode>,
    descend: Box<Descend>,
    ranges: Vec<KeyRange>,
    /// The pivots that records went to.
    touched: Vec<bool>,
}

impl TreeIngest {
    /// Begins an ingest below a root. `context` has an input without messages.
    pub(crate) fn begin(mut context: Context, root: Root) -> Self {
        context.brings = context.group_bytes();
        context.policy.flush_what_comes = true;
        TreeIngest {
            merge: TreeMerge::over(Arc::new(context), Graph::default(), 0),
            root: Some(root),
            path: Vec::new(),
            leaf: None,
            leaves: 0,
            changes: Changes::default(),
        }
    }

    fn context(&self) -> &Arc<Context> {
        &self.merge.0.context
    }

    /// Ends what has no keys at or above `key`, and opens the leaf that has the key.
    #[cold]
    fn go_to(&mut self, key: &[u8]) -> Result<()> {
        self.end_leaf()?;
        while let Some(open) = self.path.last()
            && !is_within(&open.descend.range, key)
        {
            self.end_node()?;
        }
        if let Some(root) = self.root.take() {
            let (range, base) = match root {
                Root::Node(page, height) => {
                    let (target, origin) = (Target::Root, NodeOrigin::Page(page));
                    let (range, incoming) = (KeyRange::default(), Vec::new());
                    let descend = Descend::new(target, origin, height, range, incoming, 0);
                    return self.go_down(Box::new(descend), key);
                }
                Root::Leaf(leaf, deadlines) => (KeyRange::default(), vec![(leaf, deadlines)]),
                Root::Empty => (KeyRange::default(), Vec::new()),
            };
            let leaf = WriteLeaves::new(Target::Root, range, base, Vec::new(), true, 0);
            self.leaf = Some(Box::new(leaf));
            return Ok(());
        }
        match self.take_child(key)? {
            Some(descend) => self.go_down(descend, key),
            None => Ok(()),
        }
    }

    /// Opens a node and those below it on the way to a key.
    fn go_down(&mut self, mut descend: Box<Descend>, key: &[u8]) -> Result<()> {
        loop {
            let node = descend.load(&self.merge.0.context, &mut self.changes)?;
            let ranges = ranges(&node, &descend.range);
            let id = self.merge.0.new_frame();
            let range = descend.range.clone();
            let mut frame = Frame::new(id, descend.target, Node::clone(&node), range);
            frame.waiting = 1; // for the ingest
            self.merge.0.graph.lock().frames.insert(id, frame);
            self.path.push(OpenNode {
                frame: id,
                touched: vec![false; ranges.len()],
                node,
                descend,
                ranges,
            });
            match self.take_child(key)? {
                Some(child) => descend = child,
                None => return Ok(()),
            }
        }
    }

    /// Takes the child that has a key out of the last open node. Returns it if it is a node, and
    /// opens it if it is a leaf.
    fn take_child(&mut self, key: &[u8]) -> Result<Option<Box<Descend>>> {
        let open = self.path.last_mut();
        let open = open.ok_or_else(|| Error::internal("an ingest goes down from no node"))?;
        let pivot = open.node.pivot_of(key);
        let mut graph = self.merge.0.graph.lock();
        let frame = frame_of(&mut graph.frames, open.frame)?;
        let range = &open.ranges[pivot];
        let incoming = open.descend.all_for(frame, pivot, range);
        let task = take_child(frame, pivot, range, incoming, 0);
        frame.waiting += 1;
        open.touched[pivot] = true;
        match task {
            Some(Task::Descend(child)) => Ok(Some(child)),
            Some(Task::Leaves(mut leaf)) => {
                leaf.always = true;
                if mutant::active("ingest-leaves-buffers-above") {
                    leaf.incoming.clear();
                    open.touched[pivot] = false;
                }
                self.leaf = Some(leaf);
                Ok(None)
            }
            _ => Err(Error::internal("an ingest goes to a child twice")),
        }
    }

    /// Writes the rest of the leaf's range, and hands its leaves to the node.
    fn end_leaf(&mut self) -> Result<()> {
        let Some(mut leaf) = self.leaf.take() else {
            return Ok(());
        };
        let context = self.context().clone();
        let mut consumed = 0;
        let leaves = loop {
            if let Some(leaves) = leaf.step(&context, &mut self.changes, &mut consumed)? {
                break leaves;
            }
        };
        self.leaves += leaves.slots.len();
        self.apply(Outcome::Leaves(leaf.target, leaves))
    }

    /// Settles the last open node. Its result goes to the node above, or becomes the root.
    fn end_node(&mut self) -> Result<()> {
        let Some(open) = self.path.pop() else {
            return Ok(());
        };
        let frame = self.merge.0.graph.lock().frames.remove(&open.frame);
        let mut frame = frame.ok_or_else(|| Error::internal("an open node has no frame"))?;
        let parts = (&open.ranges[..], &open.touched[..]);
        let context = self.context().clone();
        let tasks =
            open.descend
                .keep(&context, &mut frame, &open.node, parts, &mut self.changes)?;
        frame.clear(|pivot| open.touched[pivot], &mut self.changes);
        frame.waiting += tasks.len();
        frame.waiting -= 1;
        self.apply(Outcome::Waits(frame, tasks))
    }

    /// Applies an outcome, and does the work that it makes possible.
    fn apply(&mut self, outcome: Outcome) -> Result<()> {
        let merge = &self.merge;
        merge.0.apply(&mut merge.0.graph.lock(), outcome, 0)?;
        while !merge.0.graph.lock().ready.is_empty() {
            merge.step()?;
        }
        Ok(())
    }

    /// Ends the part under way. Returns the tree that it makes.
    fn end_part(&mut self) -> Result<Arc<dyn terrapin_structure::Version>> {
        self.end_leaf()?;
        while !self.path.is_empty() {
            self.end_node()?;
        }
        let merged = self.merge.finish()?;
        self.changes.merge(merged.changes);
        Ok(merged.version)
    }

    /// Ends the part under way, and goes on in the tree that it makes.
    #[cold]
    fn next_part(&mut self) -> Result<()> {
        let version = self.end_part()?;
        let made = version.as_any().downcast_ref::<TreeVersion>();
        let made = made.ok_or_else(|| Error::internal("a tree is of another structure"))?;
        let context = Context {
            root_node: made.root_node().cloned(),
            ..Context::clone(self.context())
        };
        self.merge = TreeMerge::over(Arc::new(context), Graph::default(), 0);
        self.root = Some(made.tree_root().clone());
        self.leaves = 0;
        Ok(())
    }
}

impl Ingest for TreeIngest {
    fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<()> {
        let is_open = |leaf: &WriteLeaves| is_within(&leaf.range, key);
        if !self.leaf.as_deref().is_some_and(is_open) {
            self.go_to(key)?;
        }
        let context = &self.merge.0.context;
        let Some(leaf) = &mut self.leaf else {
            return Err(Error::internal("an ingest has no leaf for a key"));
        };
        leaf.add(context, &mut self.changes, key, message)?;
        if self.leaves + leaf.leaves() >= PART_LEAVES * context.policy.fanout {
            self.next_part()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Merged> {
        let context = self.context().clone();
        let version = match self.root.take() {
            // Nothing came in since the last part.
            Some(root) => {
                let node = context.root_node.clone();
                TreeVersion::made(&context.store, root, node, &context.leaf_filters)
            }
            None => self.end_part()?,
        };
        Ok(Merged {
            version,
            changes: std::mem::take(&mut self.changes),
        })
    }
}

impl Drop for TreeIngest {
    fn drop(&mut self) {
        self.merge.abandon();
        let changes = std::mem::take(&mut self.changes);
        if !changes.is_empty() && !mutant::active("dropped-ingest-keeps-pages") {
            self.context().store.abandon(changes);
        }
    }
}

/// Whether a key is below the end of a range. Keys ascend, so it is not below its start.
fn is_within(range: &KeyRange, key: &[u8]) -> bool {
    range.hi.as_deref().is_none_or(|hi| key < hi)
}
