//! Nodes of the map in memory: loaded through the page store's cache, with direct pointers to what
//! they refer to.

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::group::GroupRef;
use terrapin_pages::{GroupHandle, Handle, PageKind, PageRef, PageStore};

use crate::format::{ABOVE_LEAVES, Entry, Inner, Leaf};

/// A node above the leaves, with handles.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inner: Inner,
    below: Vec<Below>,
    /// Of all waiting groups: entry by entry, newest first.
    waiting: Vec<GroupHandle>,
    /// Where the handles of each entry's groups begin.
    first_waiting: Vec<u32>,
}

#[derive(Debug)]
enum Below {
    Leaf(Handle<Leaf>),
    Node(Handle<Node>),
}

impl Node {
    fn new(inner: Inner) -> (Node, usize) {
        let below = |_: &Entry| match inner.height {
            ABOVE_LEAVES => Below::Leaf(Handle::default()),
            _ => Below::Node(Handle::default()),
        };
        let below: Vec<_> = inner.entries.iter().map(below).collect();
        let (mut waiting, mut first_waiting) = (Vec::new(), Vec::new());
        let mut handle_bytes = 0;
        for entry in &inner.entries {
            first_waiting.push(waiting.len() as u32);
            for group in &entry.waiting {
                waiting.push(GroupHandle::default());
                handle_bytes += GroupHandle::memory_bytes(group);
            }
        }
        let memory_bytes = inner.memory_bytes()
            + handle_bytes
            + below.len() * (size_of::<Below>() + size_of::<u32>());
        let node = Node {
            inner,
            below,
            waiting,
            first_waiting,
        };
        (node, memory_bytes)
    }

    /// The groups that wait for the leaf of an entry, newest first.
    #[inline]
    pub(crate) fn waiting(&self, entry: usize) -> impl Iterator<Item = (&GroupRef, &GroupHandle)> {
        let first = self.first_waiting[entry] as usize;
        self.inner.entries[entry]
            .waiting
            .iter()
            .zip(&self.waiting[first..])
    }

    /// The node of an entry. The caller knows that this node is further up than that.
    pub(crate) fn child(&self, store: &PageStore, entry: usize) -> Result<Arc<Node>> {
        let (page, height) = (&self.inner.entries[entry].page, self.inner.height - 1);
        match &self.below[entry] {
            Below::Node(handle) => load_by(store, page, height, handle),
            Below::Leaf(_) => load(store, page, height),
        }
    }

    /// The leaf of an entry of a node just above the leaves.
    #[inline]
    pub(crate) fn leaf(&self, store: &PageStore, entry: usize) -> Result<Arc<Leaf>> {
        let page = &self.inner.entries[entry].page;
        match &self.below[entry] {
            Below::Leaf(handle) => store.object_by(page, PageKind::MapNode, handle, &decode_leaf),
            Below::Node(_) => load_leaf(store, page),
        }
    }
}

fn decode_leaf(content: &[u8]) -> Result<(Leaf, usize)> {
    let leaf = Leaf::decode(content)?;
    let memory_bytes = leaf.memory_bytes();
    Ok((leaf, memory_bytes))
}

fn decode_node(content: &[u8], height: u8) -> Result<(Node, usize)> {
    Ok(Node::new(Inner::decode(content, height)?))
}

/// A node above the leaves, through the cache.
pub(crate) fn load(store: &PageStore, page: &PageRef, height: u8) -> Result<Arc<Node>> {
    store.object(page, PageKind::MapNode, &|content| {
        decode_node(content, height)
    })
}

/// As [`load`], through a handle.
#[inline]
pub(crate) fn load_by(
    store: &PageStore,
    page: &PageRef,
    height: u8,
    handle: &Handle<Node>,
) -> Result<Arc<Node>> {
    store.object_by(page, PageKind::MapNode, handle, &|content| {
        decode_node(content, height)
    })
}

/// A leaf, through the cache.
pub(crate) fn load_leaf(store: &PageStore, page: &PageRef) -> Result<Arc<Leaf>> {
    store.object(page, PageKind::MapNode, &decode_leaf)
}

/// Caches a leaf that was just written.
pub(crate) fn cache_leaf(store: &PageStore, page: &PageRef, content: &[u8]) -> Result<()> {
    let (leaf, memory_bytes) = decode_leaf(content)?;
    store.cache_object(page, Arc::new(leaf), memory_bytes);
    Ok(())
}

/// Caches a node that was just written.
pub(crate) fn cache_node(store: &PageStore, page: &PageRef, inner: Inner) {
    let (node, memory_bytes) = Node::new(inner);
    store.cache_object(page, Arc::new(node), memory_bytes);
}
