//! Nodes in memory: loaded through the page store's cache, with direct pointers to the nodes,
//! tables and groups that they refer to.

use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::{GroupHandle, Handle, PageKind, PageRef, PageStore};

use crate::digits::{Fanout, Stretch};
use crate::format::{Child, Leaf, Node, NodeRef, RunRef, TrieRef};
use crate::list;
use crate::table::Table;

/// A node with handles.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) node: Node,
    below: Vec<Below>,
}

#[derive(Debug)]
enum Below {
    Nothing,
    Node(Handle<Loaded>),
    Leaf(Box<LeafHandles>),
}

#[derive(Debug, Default)]
struct LeafHandles {
    table: Handle<Table>,
    /// For each run, one for each group.
    groups: Vec<Vec<GroupHandle>>,
}

/// A leaf of a loaded node.
#[derive(Clone, Copy)]
pub(crate) struct LeafOf<'a> {
    pub(crate) leaf: &'a Leaf,
    pub(crate) stretch: Stretch,
    handles: &'a LeafHandles,
}

impl Loaded {
    fn new(node: Node) -> (Loaded, usize) {
        let mut memory_bytes = node.memory_bytes() + size_of::<Self>();
        let mut handles = |run: &RunRef| {
            let of = |_: &_| GroupHandle::default();
            memory_bytes += run.groups.len() * size_of::<GroupHandle>();
            run.groups.iter().map(of).collect()
        };
        let below = node.children.iter().map(|child| match child {
            None => Below::Nothing,
            Some(Child::Node(_)) => Below::Node(Handle::default()),
            Some(Child::Leaf(leaf)) => Below::Leaf(Box::new(LeafHandles {
                table: Handle::default(),
                groups: leaf.runs.iter().map(&mut handles).collect(),
            })),
        });
        let below: Vec<_> = below.collect();
        memory_bytes += below.len() * (size_of::<Below>() + size_of::<LeafHandles>());
        (Loaded { node, below }, memory_bytes)
    }

    /// The stretch of a child.
    pub(crate) fn stretch_of(&self, number: usize) -> Stretch {
        self.node.stretch.child(self.node.fanout, number)
    }

    /// The leaf of a child, if it is one.
    #[inline]
    pub(crate) fn leaf(&self, number: usize) -> Option<LeafOf<'_>> {
        match (self.node.children.get(number)?, self.below.get(number)?) {
            (Some(Child::Leaf(leaf)), Below::Leaf(handles)) => Some(LeafOf {
                leaf,
                stretch: self.stretch_of(number),
                handles,
            }),
            _ => None,
        }
    }

    /// The node of a child, if it is one.
    #[inline]
    pub(crate) fn child(&self, store: &PageStore, number: usize) -> Result<Option<Arc<Loaded>>> {
        match (self.node.children.get(number), self.below.get(number)) {
            (Some(Some(Child::Node(node))), Some(Below::Node(handle))) => {
                let (fanout, stretch) = (self.node.fanout, self.stretch_of(number));
                load_by(store, &node.page, (fanout, stretch), handle).map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl<'a> LeafOf<'a> {
    /// The leaf's table, which is built from the lists of hashes unless it is cached.
    #[inline]
    pub(crate) fn table(&self, store: &PageStore) -> Result<Arc<Table>> {
        // The list of the newest run is new whenever the chain changes.
        let newest = &newest(self.leaf)?.list;
        store.derived_by(newest, &self.handles.table, &|| {
            let table = build_table(store, self.leaf, self.stretch)?;
            let memory_bytes = table.memory_bytes();
            Ok((table, memory_bytes))
        })
    }

    /// The handles of the groups of a run.
    pub(crate) fn handles(&self, run: usize) -> &'a [GroupHandle] {
        self.handles.groups.get(run).map_or(&[], Vec::as_slice)
    }
}

/// The newest run of a leaf.
pub(crate) fn newest(leaf: &Leaf) -> Result<&RunRef> {
    let first = leaf.runs.first();
    first.ok_or_else(|| Error::internal("a leaf without runs"))
}

/// The prefixes of a run, from its list.
pub(crate) fn prefixes_of(store: &PageStore, run: &RunRef) -> Result<Vec<u64>> {
    decode_list(run, &store.read_page(&run.list, PageKind::HashList)?)
}

/// The prefixes of a run, from the content of its list.
fn decode_list(run: &RunRef, content: &[u8]) -> Result<Vec<u64>> {
    let prefixes = list::decode(content).map_err(|error| error.with("page", run.list.id))?;
    // A list of another run would hide records.
    let groups = &run.groups;
    let ends = groups.first().zip(groups.last());
    let ends = ends.map(|(first, last)| (first.prefixes.0, last.prefixes.1));
    let found = prefixes.first().copied().zip(prefixes.last().copied());
    match ends == found && prefixes.len() as u64 == run.sums().records {
        true => Ok(prefixes),
        false => {
            let message = "a list of hashes and its run contradict each other";
            Err(Error::corrupt(message).with("page", run.list.id))
        }
    }
}

/// Builds a leaf's table from the lists of its runs, which are read together.
pub(crate) fn build_table(store: &PageStore, leaf: &Leaf, stretch: Stretch) -> Result<Table> {
    let pages = leaf.runs.iter().map(|run| run.list);
    let contents = store.read_pages(pages, PageKind::HashList)?;
    let lists = leaf.runs.iter().zip(&contents);
    let lists = lists.map(|(run, content)| decode_list(run, content));
    let lists = lists.collect::<Result<Vec<_>>>()?;
    let slots = leaf.runs.iter().map(|run| run.slot);
    let runs: Vec<_> = slots.zip(lists.iter().map(|list| &list[..])).collect();
    Ok(Table::build(stretch, &runs))
}

type Place = (Fanout, Stretch);

fn decode(content: &[u8], (fanout, stretch): Place) -> Result<(Loaded, usize)> {
    Ok(Loaded::new(Node::decode(content, fanout, stretch)?))
}

/// A node, through the cache.
pub(crate) fn load(store: &PageStore, page: &PageRef, place: Place) -> Result<Arc<Loaded>> {
    let node = store.object(page, PageKind::TrieNode, &|content| decode(content, place))?;
    checked(node, place, page)
}

/// As [`load`], through a handle.
#[inline]
pub(crate) fn load_by(
    store: &PageStore,
    page: &PageRef,
    place: Place,
    handle: &Handle<Loaded>,
) -> Result<Arc<Loaded>> {
    let node = store.object_by(page, PageKind::TrieNode, handle, &|content| {
        decode(content, place)
    })?;
    checked(node, place, page)
}

/// The node, if it is of this place. In a damaged trie, two parents may name one page, which the
/// cache has for the first.
#[inline]
fn checked(node: Arc<Loaded>, place: Place, page: &PageRef) -> Result<Arc<Loaded>> {
    match (node.node.fanout, node.node.stretch) == place {
        true => Ok(node),
        false => Err(Error::corrupt("a node of another place").with("page", page.id)),
    }
}

/// The place of the root node.
pub(crate) fn root_place(trie: &TrieRef) -> Place {
    (trie.root_fanout(), Stretch::ALL)
}

/// Caches a node that was just written, and returns the reference to it.
pub(crate) fn cache(store: &PageStore, page: PageRef, node: Node) -> NodeRef {
    let (sums, deadlines) = (node.sums(), node.deadlines());
    let (loaded, memory_bytes) = Loaded::new(node);
    store.cache_object(&page, Arc::new(loaded), memory_bytes);
    NodeRef {
        page,
        sums,
        deadlines,
    }
}
