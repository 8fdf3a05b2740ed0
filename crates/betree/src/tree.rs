//! The tree as a structure: the engine makes versions and merges with it.

use std::sync::Arc;

use terrapin_base::{Budget, Error, Result};
use terrapin_pages::{PageStore, PageUse};
use terrapin_structure::{
    Compaction, Compacts, Ingest, Ingests, Merge, MergeInput, MergeOptions, NoInput, Reclaimable,
    Structure, StructureId, ToCompact, Version,
};

use crate::compact::{find_stretch, find_waste};
use crate::merge::{Context, ErasedRanges, TreeIngest, TreeMerge};
use crate::node::Root;
use crate::plan::Policy;
use crate::stats::by_height;
use crate::tiered::RUNS_WANTED;
use crate::version::TreeVersion;
use terrapin_runs::run::KeyRange;
use terrapin_runs::writing::check_sizes;

/// Parameters of a tree, besides [`MergeOptions`].
#[derive(Clone, Debug)]
pub struct BeTreeParams {
    /// ρ: most pivots of a node, from 4 to 1024. Its effect on speed is small. Tests use a small
    /// fan-out to make high trees. It may differ from one opening to the next.
    pub fanout: usize,
    /// The budget that the memory of merges is charged to.
    pub budget: Arc<Budget>,
    /// How nodes buffer messages. Trees of either kind read and write on trees of the other one.
    pub buffers: Buffers,
}

/// How nodes buffer messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffers {
    /// Levels, each at most half as large as the next (TurtleKV).
    #[default]
    Leveled,
    /// Sorted runs that lie on one another until they are many (SplinterDB). Fewer bytes are
    /// written, and reads visit more runs.
    Tiered,
}

impl BeTreeParams {
    /// Parameters with the default fan-out of 64, and leveled buffers.
    #[must_use]
    pub fn new(budget: Arc<Budget>) -> Self {
        BeTreeParams {
            fanout: 64,
            budget,
            buffers: Buffers::Leveled,
        }
    }
}

/// The TurtleTree in a page store.
pub struct BeTree {
    store: Arc<PageStore>,
    params: BeTreeParams,
}

impl BeTree {
    /// Makes the structure over a store. Panics if the fan-out is out of bounds.
    #[must_use]
    pub fn new(store: Arc<PageStore>, params: BeTreeParams) -> Arc<Self> {
        assert!(
            (4..=1024).contains(&params.fanout),
            "fan-out {}",
            params.fanout
        );
        Arc::new(BeTree { store, params })
    }

    /// Calls `visit` for each page group of a version, with the height of its node; 0 for leaves.
    /// For measurements. Reads all nodes.
    ///
    /// Errors: those of reading nodes.
    #[doc(hidden)]
    pub fn groups_by_height(
        &self,
        version: &Arc<dyn Version>,
        visit: &mut dyn FnMut(u16, PageUse),
    ) -> Result<()> {
        by_height(&self.store, own(version)?.tree_root(), visit)
    }

    /// The context that all tasks of a merge into a version share.
    fn context(
        &self,
        base: &TreeVersion,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
        stretch: Option<KeyRange>,
    ) -> Result<Context> {
        check_sizes(options, self.store.unit())?;
        let policy = Policy {
            group_bytes: options.group_bytes,
            fanout: self.params.fanout,
            share_permille: options
                .space_amplification_percent
                .map(Policy::share_permille_of),
            flush_what_comes: options.space_is_short,
            runs_wanted: match self.params.buffers {
                Buffers::Leveled => None,
                Buffers::Tiered => Some(options.runs.map_or(RUNS_WANTED, |runs| runs as usize)),
            },
        };
        Ok(Context {
            store: self.store.clone(),
            erased: ErasedRanges::new(input.erased()),
            input,
            options: options.clone(),
            policy,
            budget: self.params.budget.clone(),
            leaf_filters: base.leaf_filters().clone(),
            stretch,
            brings: 0,
            root_node: base.root_node().cloned(),
        })
    }
}

impl Structure for BeTree {
    fn id(&self) -> StructureId {
        match self.params.buffers {
            Buffers::Leveled => StructureId::LEVELED,
            Buffers::Tiered => StructureId::TIERED,
        }
    }

    fn empty(&self) -> Arc<dyn Version> {
        TreeVersion::empty(&self.store)
    }

    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        Ok(TreeVersion::found(&self.store, Root::decode(root)?)?)
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let base = own(base)?;
        let context = self.context(base, input, options, None)?;
        Ok(TreeMerge::begin(context, base.tree_root().clone())?)
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        Some(self)
    }

    fn ingests(&self) -> Option<&dyn Ingests> {
        Some(self)
    }

    fn merges_privately(&self) -> bool {
        true
    }

    fn merges_around_damage(&self) -> bool {
        self.params.buffers == Buffers::Tiered
    }

    /// Leveled buffers flush a group or two of each node on the way, and rewrite a leaf or two.
    fn reserve_groups(&self) -> u64 {
        match self.params.buffers {
            Buffers::Leveled => 8,
            Buffers::Tiered => 20,
        }
    }

    fn adopts(&self, other: StructureId) -> bool {
        matches!(other, StructureId::LEVELED | StructureId::TIERED)
    }
}

impl Compacts for BeTree {
    fn to_compact(&self, version: &Arc<dyn Version>) -> Result<ToCompact> {
        own(version)?.to_compact()
    }

    fn to_reclaim(
        &self,
        version: &Arc<dyn Version>,
        _bytes_max: u64,
    ) -> Result<Option<Reclaimable>> {
        match self.params.buffers {
            Buffers::Leveled => Ok(None),
            Buffers::Tiered => find_waste(&self.store, own(version)?.tree_root()),
        }
    }

    fn expired_permille(&self, version: &Arc<dyn Version>, now_ms: u64) -> Result<u64> {
        own(version)?.expired_permille(now_ms)
    }

    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        (from, to): (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>> {
        let base = own(base)?;
        let root = base.tree_root().clone();
        let Some(stretch) =
            find_stretch(&self.store, &root, from, to, (bytes_max, options.expired()))?
        else {
            return Ok(None);
        };
        let end = stretch.range.hi.as_deref();
        let next = end
            .filter(|end| to.is_none_or(|to| *end <= to))
            .map(Box::from);
        let context = self.context(base, Arc::new(NoInput), options, Some(stretch.range))?;
        let merge = TreeMerge::begin(context, root)?;
        Ok(Some(Compaction { merge, next }))
    }
}

impl Ingests for BeTree {
    fn begin_ingest(
        &self,
        base: &Arc<dyn Version>,
        options: &MergeOptions,
    ) -> Result<Option<Box<dyn Ingest>>> {
        let base = own(base)?;
        let context = self.context(base, Arc::new(NoInput), options, None)?;
        let root = base.tree_root().clone();
        Ok(Some(Box::new(TreeIngest::begin(context, root))))
    }
}

fn own(version: &Arc<dyn Version>) -> Result<&TreeVersion> {
    let own = version.as_any().downcast_ref::<TreeVersion>();
    own.ok_or_else(|| Error::invalid("the version belongs to another structure"))
}
