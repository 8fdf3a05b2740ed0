//! A version: a root, and what readers find below it. The owner of a version keeps its pages.

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::{Handle, PageStore};

use crate::format::Root;
use crate::node::{Loaded, load_by, root_place};

/// The content of a keyspace at one checkpoint.
pub(crate) struct TrieVersion {
    pub(crate) store: Arc<PageStore>,
    pub(crate) root: Root,
    handle: Handle<Loaded>,
}

impl TrieVersion {
    pub(crate) fn new(store: &Arc<PageStore>, root: Root) -> Arc<Self> {
        Arc::new(TrieVersion {
            store: store.clone(),
            root,
            handle: Handle::default(),
        })
    }

    /// The root node; `None` without records.
    #[inline]
    pub(crate) fn root_node(&self) -> Result<Option<Arc<Loaded>>> {
        match &self.root {
            Root::Empty => Ok(None),
            Root::Trie(trie) => {
                load_by(&self.store, &trie.node, root_place(trie), &self.handle).map(Some)
            }
        }
    }
}
