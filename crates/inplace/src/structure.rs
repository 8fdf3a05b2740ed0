//! The structure: what the engine makes versions and merges with.

use std::sync::Arc;

use terrapin_base::{Budget, Error, Result};
use terrapin_pages::PageStore;
use terrapin_structure::{
    Compacts, Merge, MergeInput, MergeOptions, Structure, StructureId, Version,
};

use crate::format::Root;
use crate::merge::InPlaceMerge;
use crate::plan::Scope;
use crate::version::InPlaceVersion;

/// Parameters of a page-grouped tree, besides [`MergeOptions`].
#[derive(Clone, Debug)]
pub struct InPlaceParams {
    /// The budget that the memory of merges is charged to.
    pub budget: Arc<Budget>,
    /// Target bytes of a node of the map, header included.
    pub node_bytes: usize,
    /// Pages of a segment. Trees of another number can be read and merged all the same.
    pub segment_pages: u64,
}

impl InPlaceParams {
    /// The parameters of a release.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        InPlaceParams {
            budget,
            node_bytes: 16 << 10,
            segment_pages: 16,
        }
    }
}

/// The page-grouped tree in a page store.
pub struct InPlace {
    pub(crate) store: Arc<PageStore>,
    pub(crate) params: InPlaceParams,
}

impl InPlace {
    /// Makes the structure over a store.
    #[must_use]
    pub fn new(store: Arc<PageStore>, params: InPlaceParams) -> Arc<Self> {
        Arc::new(InPlace { store, params })
    }
}

/// The version, if it is of this structure.
pub(crate) fn own(version: &Arc<dyn Version>) -> Result<&InPlaceVersion> {
    let own = version.as_any().downcast_ref::<InPlaceVersion>();
    own.ok_or_else(|| Error::invalid("the version belongs to another structure"))
}

impl Structure for InPlace {
    fn id(&self) -> StructureId {
        StructureId::IN_PLACE
    }

    fn empty(&self) -> Arc<dyn Version> {
        InPlaceVersion::new(&self.store, Root::Empty)
    }

    /// Reads nothing: a map that cannot be read is an error of the reads, since other keyspaces may
    /// be sound.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        Ok(InPlaceVersion::new(&self.store, Root::decode(root)?))
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let base = own(base)?;
        let merge = InPlaceMerge::begin(base, input, options, &self.params, &Scope::Input)?;
        Ok(merge)
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        Some(self)
    }

    fn merges_privately(&self) -> bool {
        false
    }

    fn merges_around_damage(&self) -> bool {
        true
    }

    fn adopts(&self, _other: StructureId) -> bool {
        false
    }
}
