//! The structure: what the engine makes versions and merges with.

use std::sync::Arc;

use terrapin_base::{Budget, Error, Result};
use terrapin_pages::PageStore;
use terrapin_structure::{
    Compacts, Merge, MergeInput, MergeOptions, Structure, StructureId, Version,
};

use crate::format::Root;
use crate::merge::PlainMerge;
use crate::version::PlainVersion;

/// Parameters of a plain structure, besides [`MergeOptions`].
#[derive(Clone, Debug)]
pub struct PlainParams {
    /// The budget that the memory of merges is charged to.
    pub budget: Arc<Budget>,
    /// Whether versions serve scans and estimates. If not, keyspaces refuse ranges.
    pub is_ordered: bool,
    /// Whether the structure writes the runs that replace memtables of views. The engine scans
    /// runs, so a structure without order cannot write them.
    pub merges_privately: bool,
}

impl PlainParams {
    /// Parameters of a structure that does all that a plain structure can.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        PlainParams {
            budget,
            is_ordered: true,
            merges_privately: true,
        }
    }
}

/// The plain structure in a page store.
pub struct Plain {
    store: Arc<PageStore>,
    params: PlainParams,
}

impl Plain {
    /// Makes the structure over a store. Panics if it is to merge privately without order.
    #[must_use]
    pub fn new(store: Arc<PageStore>, params: PlainParams) -> Arc<Self> {
        assert!(
            params.is_ordered || !params.merges_privately,
            "a structure without order writes no runs"
        );
        Arc::new(Plain { store, params })
    }

    fn version(&self, root: Root) -> Arc<dyn Version> {
        PlainVersion::new(&self.store, root, self.params.is_ordered)
    }
}

impl Structure for Plain {
    fn id(&self) -> StructureId {
        StructureId::PLAIN
    }

    fn empty(&self) -> Arc<dyn Version> {
        self.version(Root::Empty)
    }

    /// Reads nothing: a list that cannot be read is an error of the reads, since other keyspaces
    /// may be sound.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        Ok(self.version(Root::decode(root)?))
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let base = base.as_any().downcast_ref::<PlainVersion>();
        let base =
            base.ok_or_else(|| Error::invalid("the version belongs to another structure"))?;
        Ok(PlainMerge::begin(
            base,
            input,
            options,
            &self.params.budget,
        )?)
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        None
    }

    fn merges_privately(&self) -> bool {
        self.params.merges_privately
    }

    fn adopts(&self, _other: StructureId) -> bool {
        false
    }
}
