//! A version: a root, and what readers find below it. The owner of a version keeps its pages.

use std::sync::Arc;

use terrapin_base::Result;
use terrapin_pages::{Handle, PageStore};

use crate::format::{MapRef, Root};
use crate::node::{Node, load_by};

/// The content of a keyspace at one checkpoint.
pub(crate) struct InPlaceVersion {
    pub(crate) store: Arc<PageStore>,
    pub(crate) root: Root,
    handle: Handle<Node>,
}

impl InPlaceVersion {
    pub(crate) fn new(store: &Arc<PageStore>, root: Root) -> Arc<Self> {
        Arc::new(InPlaceVersion {
            store: store.clone(),
            root,
            handle: Handle::default(),
        })
    }

    /// The root node; `None` without records.
    #[inline]
    pub(crate) fn root_node(&self) -> Result<Option<Arc<Node>>> {
        match &self.root {
            Root::Empty => Ok(None),
            Root::Map(MapRef { page, height, .. }) => {
                load_by(&self.store, page, *height, &self.handle).map(Some)
            }
        }
    }
}
