//! The structure: what the engine makes versions and merges with.

use std::sync::Arc;

use terrapin_base::{Budget, Error, Result};
use terrapin_pages::PageStore;
use terrapin_structure::{
    Compacts, Merge, MergeInput, MergeOptions, Structure, StructureId, Version,
};

use crate::digits::Fanout;
use crate::format::Root;
use crate::merge::{LEAF_GROUPS, TrieMerge};
use crate::plan::Scope;
use crate::version::TrieVersion;

/// Parameters of a lazy-trie, besides [`MergeOptions`]. A trie keeps the fan-out and the
/// sluggishness that it began with.
#[derive(Clone, Debug)]
pub struct HashTrieParams {
    /// The budget that the memory of merges is charged to.
    pub budget: Arc<Budget>,
    /// The fan-out of a new trie.
    pub fanout: Fanout,
    /// S of a new trie, the sluggishness in bytes, as a power of two from 10 to 40. `None`:
    /// sixteen page groups.
    pub leaf_bytes_log2: Option<u8>,
}

impl HashTrieParams {
    /// The parameters of a release: a fan-out of 16.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        HashTrieParams {
            budget,
            fanout: Fanout::SIXTEEN,
            leaf_bytes_log2: None,
        }
    }
}

/// The lazy-trie in a page store.
pub struct HashTrie {
    pub(crate) store: Arc<PageStore>,
    pub(crate) params: HashTrieParams,
}

impl HashTrie {
    /// Makes the structure over a store.
    #[must_use]
    pub fn new(store: Arc<PageStore>, params: HashTrieParams) -> Arc<Self> {
        Arc::new(HashTrie { store, params })
    }
}

/// The version, if it is of this structure.
pub(crate) fn own(version: &Arc<dyn Version>) -> Result<&TrieVersion> {
    let own = version.as_any().downcast_ref::<TrieVersion>();
    own.ok_or_else(|| Error::invalid("the version belongs to another structure"))
}

impl Structure for HashTrie {
    fn id(&self) -> StructureId {
        StructureId::HASHED
    }

    fn empty(&self) -> Arc<dyn Version> {
        TrieVersion::new(&self.store, Root::Empty)
    }

    /// Reads nothing: a node that cannot be read is an error of the reads, since other keyspaces
    /// may be sound.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        Ok(TrieVersion::new(&self.store, Root::decode(root)?))
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let base = own(base)?;
        let merge = TrieMerge::begin(base, input, options, &self.params, &Scope::Input)?;
        Ok(merge)
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        Some(self)
    }

    fn merges_privately(&self) -> bool {
        false
    }

    /// A full disk makes room by the rewrite of one leaf, with a run that arrives.
    fn reserve_groups(&self) -> u64 {
        LEAF_GROUPS + LEAF_GROUPS / 2
    }

    fn adopts(&self, _other: StructureId) -> bool {
        false
    }
}
