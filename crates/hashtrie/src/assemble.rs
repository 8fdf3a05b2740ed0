//! Writes the trie's changed nodes, from the leaves up. A node below which nothing changed stays.

use terrapin_base::{Error, Result};
use terrapin_pages::{Changes, PageKind, PageUse};

use crate::digits::{Fanout, Stretch};
use crate::format::{Child, Leaf, Node, NodeRef, Root, RunRef, TrieRef};
use crate::node::cache;
use crate::plan::Shape;
use crate::task::{Context, Task};

/// The nodes of the next version.
pub(crate) struct Assembly<'a> {
    /// The leaves of the tasks.
    leaves: Vec<Option<Leaf>>,
    changes: &'a mut Changes,
}

/// What the root says of all nodes.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) fanout: Fanout,
    pub(crate) leaf_bytes_log2: u8,
}

impl<'a> Assembly<'a> {
    /// Takes finished tasks, by number.
    pub(crate) fn new(tasks: Vec<Task>, changes: &'a mut Changes) -> Self {
        let leaves = tasks.into_iter().map(|task| task.leaf).collect();
        Assembly { leaves, changes }
    }

    /// Writes all nodes that change, and returns the root. `base` is the root before, and `ended`
    /// are the runs that no leaf has any more.
    pub(crate) fn build(
        mut self,
        context: &Context,
        settings: Settings,
        (base, shape, ended): (&Root, &Shape, &[RunRef]),
    ) -> Result<Root> {
        for run in ended {
            let groups = run.groups.iter().map(|part| part.group.id);
            self.changes.released.extend(groups);
            self.changes.released.push(run.list.id);
        }
        if let Root::Trie(trie) = base
            && trie.is_one_leaf
        {
            self.changes.released.push(trie.node.id);
        }
        let (node, is_one_leaf) = match self.child(context, settings.fanout, shape)? {
            None => return Ok(Root::Empty),
            Some(Child::Node(node)) => (node, false),
            Some(leaf @ Child::Leaf(_)) => {
                let node = Node {
                    fanout: Fanout::ONE,
                    stretch: Stretch::ALL,
                    children: vec![Some(leaf)],
                };
                (self.write(context, node)?, true)
            }
        };
        Ok(Root::Trie(TrieRef {
            fanout: settings.fanout,
            leaf_bytes_log2: settings.leaf_bytes_log2,
            is_one_leaf,
            node: node.page,
            sums: node.sums,
        }))
    }

    fn leaf_of(&mut self, task: usize) -> Result<Option<Child>> {
        let leaf = self.leaves.get_mut(task);
        let leaf = leaf.ok_or_else(|| Error::internal("a merge lacks a task"))?;
        Ok(leaf.take().map(Child::Leaf))
    }

    fn child(&mut self, context: &Context, fanout: Fanout, shape: &Shape) -> Result<Option<Child>> {
        let shape = match shape {
            Shape::Nothing => return Ok(None),
            Shape::Kept(child) => return Ok(Some(child.clone())),
            Shape::Task(task) => return self.leaf_of(*task),
            Shape::Collapsed(old, task) => {
                self.changes.released.push(old.id);
                return self.leaf_of(*task);
            }
            Shape::Node(node) => node,
        };
        let mut children = Vec::with_capacity(shape.children.len());
        for child in &shape.children {
            children.push(self.child(context, fanout, child)?);
        }
        self.changes.released.extend(shape.old.map(|old| old.id));
        if children.iter().all(Option::is_none) {
            return Ok(None);
        }
        let node = Node {
            fanout,
            stretch: shape.stretch,
            children,
        };
        self.write(context, node)
            .map(|node| Some(Child::Node(node)))
    }

    fn write(&mut self, context: &Context, node: Node) -> Result<NodeRef> {
        let store = &context.store;
        let page = store.write_page(PageKind::TrieNode, &node.encode(), context.class)?;
        self.changes.added.push(PageUse::from(&page));
        Ok(cache(store, page, node))
    }
}
