//! A version of the tree: a root, and all operations on it. It is immutable. The owner of a version
//! keeps its pages, by a pin of its generation or by the guard of a private root.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use terrapin_base::{Error, MessageKind, Result, Shares};
use terrapin_pages::block::Block;
use terrapin_pages::group::ExpiredPart;
use terrapin_pages::{GroupHandle, PageStore, PageUse};
use terrapin_structure::{
    Direction, Erased, Estimate, Finding, Found, KeyBounds, Ordered, Presence, Rescued, Scan,
    StructureStats, ToCompact, Version,
};

use crate::compact::find_stretch;
use crate::get::{Top, find, find_many, found_in, gather};
use crate::leaf_filters::LeafFilters;
use crate::load::{LoadedNode, load_node};
use crate::node::Root;
use crate::scan::TreeScan;
use crate::{erasable, estimate, rescue, stats, verify};

/// The content of a tree at one checkpoint.
pub(crate) struct TreeVersion {
    store: Arc<PageStore>,
    root: Root,
    /// The root node, if the root is a node. Lookups then need no visit to the cache for it.
    node: Option<Arc<LoadedNode>>,
    /// The root node, if it could not be read at first.
    late: OnceLock<Arc<LoadedNode>>,
    /// Stripes of references to the store and to the root node, for scans.
    stores: Shares<PageStore>,
    nodes: Shares<LoadedNode>,
    /// The handle of the leaf, if that is the whole tree.
    leaf: GroupHandle,
    leaf_filters: Arc<LeafFilters>,
    /// The work of a compaction of the whole tree, once computed: a version never changes.
    to_compact: OnceLock<ToCompact>,
}

impl TreeVersion {
    /// Opens the version of a root, for a tree without experience of its leaf filters. Reads the
    /// root node.
    #[cfg(test)]
    pub(crate) fn open(store: &Arc<PageStore>, root: Root) -> Result<Arc<Self>> {
        Self::next(store, root, &Arc::default())
    }

    /// Opens the version of a root that follows other versions of the same tree. `leaf_filters` is
    /// the experience of those. Reads the root node.
    pub(crate) fn next(
        store: &Arc<PageStore>,
        root: Root,
        leaf_filters: &Arc<LeafFilters>,
    ) -> Result<Arc<Self>> {
        let node = match &root {
            Root::Node(page, height) => Some(load_node(store, page, *height)?),
            Root::Empty | Root::Leaf(..) => None,
        };
        Ok(Self::new(store, root, node, leaf_filters.clone()))
    }

    /// Like [`TreeVersion::next`], if the root node is in memory: `node`, if the root is a node.
    pub(crate) fn made(
        store: &Arc<PageStore>,
        root: Root,
        node: Option<Arc<LoadedNode>>,
        leaf_filters: &Arc<LeafFilters>,
    ) -> Arc<Self> {
        Self::new(store, root, node, leaf_filters.clone())
    }

    /// The root node, if the root is a node that could be read at first.
    pub(crate) fn root_node(&self) -> Option<&Arc<LoadedNode>> {
        self.node.as_ref()
    }

    /// Like [`TreeVersion::next`], for a tree whose root is on the device since an earlier life. If
    /// the root node is damaged or cannot be read, only reads of this tree fail: other trees may be
    /// sound.
    pub(crate) fn found(store: &Arc<PageStore>, root: Root) -> Result<Arc<Self>> {
        let leaf_filters = Arc::default();
        match Self::next(store, root.clone(), &leaf_filters) {
            Err(error) if error.is_of_data() => Ok(Self::new(store, root, None, leaf_filters)),
            opened => opened,
        }
    }

    /// The version without records.
    pub(crate) fn empty(store: &Arc<PageStore>) -> Arc<Self> {
        Self::new(store, Root::Empty, None, Arc::default())
    }

    fn new(
        store: &Arc<PageStore>,
        root: Root,
        node: Option<Arc<LoadedNode>>,
        leaf_filters: Arc<LeafFilters>,
    ) -> Arc<Self> {
        Arc::new(TreeVersion {
            store: store.clone(),
            root,
            node,
            late: OnceLock::new(),
            stores: Shares::default(),
            nodes: Shares::default(),
            leaf: GroupHandle::default(),
            leaf_filters,
            to_compact: OnceLock::new(),
        })
    }

    /// The root.
    pub(crate) fn tree_root(&self) -> &Root {
        &self.root
    }

    /// What versions of this tree have learned about leaf filters.
    pub(crate) fn leaf_filters(&self) -> &Arc<LeafFilters> {
        &self.leaf_filters
    }

    /// Where lookups start.
    #[inline]
    pub(crate) fn top(&self) -> Result<Top<'_>> {
        match (&self.root, &self.node) {
            (Root::Leaf(group, _), _) => Ok(Top::Leaf(group, &self.leaf)),
            (_, Some(node)) => Ok(Top::Node(node)),
            _ => self.late_top(),
        }
    }

    /// Where lookups start, and what they learn about leaf filters.
    #[inline]
    fn way(&self) -> Result<(Top<'_>, &LeafFilters)> {
        Ok((self.top()?, &self.leaf_filters))
    }

    /// Where lookups start if there is no root node, or if it could not be read. Tries the read
    /// again.
    #[cold]
    fn late_top(&self) -> Result<Top<'_>> {
        let node = self.late_node()?;
        Ok(node.map_or(Top::Empty, |node| Top::Node(node)))
    }

    /// The work of a compaction of the whole tree.
    pub(crate) fn to_compact(&self) -> Result<ToCompact> {
        if let Some(known) = self.to_compact.get() {
            return Ok(*known);
        }
        let all = find_stretch(
            &self.store,
            &self.root,
            &[],
            None,
            (u64::MAX, ExpiredPart::NONE),
        )?;
        let holds = all.map_or_else(ToCompact::default, |all| all.holds);
        Ok(*self.to_compact.get_or_init(|| holds))
    }

    /// The share of records that have expired, in thousandths, as the root says.
    pub(crate) fn expired_permille(&self, now_ms: u64) -> Result<u64> {
        Ok(match &self.root {
            Root::Empty => 0,
            Root::Leaf(leaf, deadlines) => deadlines.expired_permille(leaf.records, now_ms),
            Root::Node(..) => {
                let Some(node) = self.late_node()? else {
                    return Ok(0);
                };
                let deadlines = node.deadlines();
                // The number of messages in buffers is not known.
                let records = node.sums().records.max(deadlines.records());
                deadlines.expired_permille(records, now_ms)
            }
        })
    }

    fn late_node(&self) -> Result<Option<&Arc<LoadedNode>>> {
        let Root::Node(page, height) = &self.root else {
            return Ok(None);
        };
        let loaded = load_node(&self.store, page, *height)?;
        Ok(Some(self.late.get_or_init(|| loaded)))
    }
}

impl Version for TreeVersion {
    fn root(&self) -> Vec<u8> {
        self.root.encode()
    }

    fn get(&self, key: &[u8], hash: u64) -> Result<Found> {
        let found = find(&self.store, self.way()?, key, hash, found_in)?;
        match found {
            Some(Found::Operands(_)) => gather(&self.store, self.way()?, key, hash),
            found => Ok(found.unwrap_or_default()),
        }
    }

    fn contains(&self, key: &[u8], hash: u64) -> Result<Presence> {
        let presence = |block: &Arc<Block>, at: usize| match block.kind(at) {
            MessageKind::Put => Presence::Present,
            MessageKind::Delete => Presence::Absent,
            MessageKind::Separated => Presence::of_handle(block.message(at)),
            MessageKind::Merge | MessageKind::Stack | MessageKind::Expiring => Presence::Unresolved,
        };
        let found = find(&self.store, self.way()?, key, hash, presence)?;
        Ok(found.unwrap_or(Presence::Absent))
    }

    fn multi_get(&self, keys: &[(&[u8], u64)], out: &mut [Found]) -> Result<()> {
        if keys.len() != out.len() {
            return Err(Error::invalid(
                "the number of result places differs from the number of keys",
            )
            .with("keys", keys.len())
            .with("places", out.len()));
        }
        find_many(&self.store, self.way()?, keys, out)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        Some(self)
    }

    fn pages(&self, visit: &mut dyn FnMut(PageUse) -> Result<()>) -> Result<()> {
        stats::pages(&self.store, &self.root, visit)
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(match self.top()? {
            Top::Empty => 0,
            Top::Leaf(leaf, _) => leaf.logical_bytes,
            Top::Node(node) => node.sums().live_bytes(),
        })
    }

    fn stored_bytes(&self) -> Result<u64> {
        Ok(match self.top()? {
            Top::Empty => 0,
            Top::Leaf(leaf, _) => leaf.logical_bytes,
            Top::Node(node) => node.sums().stored_bytes(),
        })
    }

    fn stats(&self) -> Result<StructureStats> {
        stats::stats(&self.store, &self.root, self.node.as_ref())
    }

    fn verify(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        verify::verify(&self.store, &self.root, found)
    }

    fn rescue(&self, rescued: &mut dyn Rescued) -> Result<()> {
        rescue::rescue(&self.store, &self.root, rescued)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Ordered for TreeVersion {
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>> {
        let store = self.stores.get(&self.store);
        let node = match &self.node {
            None => self.late_node()?,
            Some(node) => Some(node),
        };
        Ok(Box::new(match (&self.root, node) {
            (Root::Leaf(leaf, _), _) => {
                TreeScan::over_leaf(store, leaf, bounds, direction, expected)?
            }
            (_, Some(node)) => {
                let node = self.nodes.get(node);
                TreeScan::over_node(store, node, bounds, direction, expected)?
            }
            _ => TreeScan::nowhere(store, bounds, direction, expected),
        }))
    }

    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate> {
        estimate::estimate(&self.store, self.top()?, bounds)
    }

    fn erasable(&self, lo: &[u8], hi: Option<&[u8]>, bytes_min: u64) -> Result<Option<Erased>> {
        erasable::erasable(&self.store, self.top()?, (lo, hi), bytes_min)
    }
}
