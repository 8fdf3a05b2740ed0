//! A structure that keeps long values of another structure out of it.
//!
//! [`Separating`] stands before a structure (the *inner* one). Its merges write values from the
//! keyspace's threshold on into value pages and hand the inner structure handles instead. Its
//! versions answer with values. The inner structure stores handles like values and reports which
//! handles its merges drop.
//!
//! A version is the inner version, a value table, and a tree of the places that are dead. One root
//! names all three, so a checkpoint commits them together (D13), and an abandoned merge gives all
//! of them up together.
//!
//! A keyspace without separated values has versions of the inner structure: its reads take no
//! detour and its root has no other bytes. The first merge with a threshold begins the rest.

mod births;
mod collecting;
mod ingest;
mod input;
mod merge;
mod ordering;
mod root;
mod verify;
mod version;

use std::sync::Arc;

use terrapin_base::{Budget, Result};
use terrapin_pages::PageStore;
use terrapin_structure::{
    Collects, Compaction, Compacts, Ingest, Ingests, Merge, MergeInput, MergeOptions, Reclaimable,
    Structure, StructureId, ToCompact, Version,
};

use ingest::LargeIngest;
use merge::SeparatingMerge;
use merge::inner_options;
use root::SeparatedRoot;
use version::SeparatedVersion;

/// A structure that keeps long values out of another one. See the module.
#[derive(Clone)]
pub struct Separating {
    inner: Arc<dyn Structure>,
    /// The structure of the trees of dead places: ordered.
    places: Arc<dyn Structure>,
    store: Arc<PageStore>,
    budget: Arc<Budget>,
}

impl Separating {
    /// Stands before `inner`. `places` is an ordered structure over the same store.
    pub fn new(
        inner: Arc<dyn Structure>,
        places: Arc<dyn Structure>,
        store: Arc<PageStore>,
        budget: Arc<Budget>,
    ) -> Arc<Self> {
        Arc::new(Separating {
            inner,
            places,
            store,
            budget,
        })
    }

    /// The inner version of any version of this structure.
    fn inner_of(version: &Arc<dyn Version>) -> &Arc<dyn Version> {
        match separated(version) {
            Some(separated) => &separated.inner,
            None => version,
        }
    }
}

/// The version, if it has separated values.
fn separated(version: &Arc<dyn Version>) -> Option<&SeparatedVersion> {
    version.as_any().downcast_ref()
}

impl Structure for Separating {
    fn id(&self) -> StructureId {
        self.inner.id()
    }

    fn empty(&self) -> Arc<dyn Version> {
        self.inner.empty()
    }

    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>> {
        match SeparatedRoot::decode(root)? {
            None => self.inner.open(root),
            Some(root) => Ok(Arc::new(SeparatedVersion::open(
                self.inner.open(&root.inner)?,
                &self.store,
                &root,
                self.places.open(&root.dead)?,
            ))),
        }
    }

    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>> {
        let is_plain = separated(base).is_none() && options.separate_from.is_none();
        if is_plain && !input.has_handles() {
            return self.inner.begin_merge(base, input, options);
        }
        let base = match separated(base) {
            Some(separated) => separated.clone(),
            None => SeparatedVersion::around(base.clone(), &self.store, self.places.empty()),
        };
        SeparatingMerge::of_input(self, base, input, options)
    }

    fn compacts(&self) -> Option<&dyn Compacts> {
        self.inner.compacts().map(|_| self as &dyn Compacts)
    }

    fn collects(&self) -> Option<&dyn Collects> {
        Some(self)
    }

    fn ingests(&self) -> Option<&dyn Ingests> {
        self.inner.ingests().map(|_| self as &dyn Ingests)
    }

    fn merges_privately(&self) -> bool {
        self.inner.merges_privately()
    }

    fn merges_around_damage(&self) -> bool {
        self.inner.merges_around_damage()
    }

    fn reserve_groups(&self) -> u64 {
        self.inner.reserve_groups()
    }

    fn adopts(&self, other: StructureId) -> bool {
        self.inner.adopts(other)
    }
}

impl Ingests for Separating {
    /// Only for keyspaces without separated values and without a threshold. Large values may come.
    fn begin_ingest(
        &self,
        base: &Arc<dyn Version>,
        options: &MergeOptions,
    ) -> Result<Option<Box<dyn Ingest>>> {
        match self.inner.ingests() {
            Some(ingests) if separated(base).is_none() && options.separate_from.is_none() => {
                let (inner, values) = LargeIngest::options(self, options);
                let begun = ingests.begin_ingest(base, &inner)?;
                let around = |inner| Box::new(LargeIngest::new(self, inner, values, options));
                Ok(begun.map(|inner| around(inner) as Box<dyn Ingest>))
            }
            _ => Ok(None),
        }
    }
}

impl Collects for Separating {
    fn has_garbage(&self, version: &Arc<dyn Version>, options: &MergeOptions) -> bool {
        separated(version).is_some_and(|version| collecting::has_garbage(version, options))
    }

    fn begin_collecting(
        &self,
        base: &Arc<dyn Version>,
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Arc<dyn Merge>>> {
        match separated(base) {
            Some(base) => SeparatingMerge::at_rest(self, base.clone(), bytes_max, options),
            None => Ok(None),
        }
    }

    fn bytes_to_order(&self, version: &Arc<dyn Version>) -> u64 {
        match separated(version) {
            Some(version) if version.inner.ordered().is_some() => version.live_record_bytes(),
            _ => 0,
        }
    }

    fn begin_ordering(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>> {
        let Some(base) = separated(base).filter(|base| base.inner.ordered().is_some()) else {
            return Ok(None);
        };
        let (reordered, next) = ordering::look(self, base, keys, bytes_max)?;
        if reordered.is_empty() && next.is_none() {
            return Ok(None);
        }
        let merge = SeparatingMerge::of_input(self, base.clone(), reordered, options)?;
        Ok(Some(Compaction { merge, next }))
    }
}

impl Compacts for Separating {
    fn to_compact(&self, version: &Arc<dyn Version>) -> Result<ToCompact> {
        match self.inner.compacts() {
            Some(compacts) => compacts.to_compact(Self::inner_of(version)),
            None => Ok(ToCompact::default()),
        }
    }

    fn to_reclaim(
        &self,
        version: &Arc<dyn Version>,
        bytes_max: u64,
    ) -> Result<Option<Reclaimable>> {
        match self.inner.compacts() {
            Some(compacts) => compacts.to_reclaim(Self::inner_of(version), bytes_max),
            None => Ok(None),
        }
    }

    fn expired_permille(&self, version: &Arc<dyn Version>, now_ms: u64) -> Result<u64> {
        match self.inner.compacts() {
            Some(compacts) => compacts.expired_permille(Self::inner_of(version), now_ms),
            None => Ok(0),
        }
    }

    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>> {
        let Some(compacts) = self.inner.compacts() else {
            return Ok(None);
        };
        let Some(base) = separated(base) else {
            return compacts.begin_compaction(base, keys, bytes_max, options);
        };
        let values = base.values();
        let inner = inner_options(options, base, &values);
        let begun = compacts.begin_compaction(&base.inner, keys, bytes_max, &inner)?;
        Ok(begun.map(|begun| Compaction {
            merge: SeparatingMerge::of_tree(self, base.clone(), begun.merge, values, options),
            next: begun.next,
        }))
    }
}
