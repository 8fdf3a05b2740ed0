//! A structure in a page store on a simulated disk, for examples that merge many memtables into it.

use std::sync::Arc;

use terrapin_base::{Budget, Generation, Incarnation, Result};
use terrapin_disk::SimDisk;
use terrapin_pages::{Changes, PageStore, StoreOptions};
use terrapin_structure::{MergeInput, MergeOptions, MergeStep, Structure, Version};

/// A structure and its newest version.
pub struct Simulated<S> {
    pub store: Arc<PageStore>,
    pub structure: Arc<S>,
    pub version: Arc<dyn Version>,
    generation: u64,
}

impl<S: Structure> Simulated<S> {
    /// An empty structure.
    pub fn new(
        budget: &Arc<Budget>,
        make: impl FnOnce(Arc<PageStore>, Arc<Budget>) -> Arc<S>,
    ) -> Result<Self> {
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 1 << 20,
            system_cache: false,
        };
        let store = PageStore::create(&SimDisk::new(1).handle(), options, 1)?;
        store.begin_life(Incarnation(1));
        let structure = make(store.clone(), budget.clone());
        Ok(Simulated {
            version: structure.empty(),
            store,
            structure,
            generation: 1,
        })
    }

    /// Merges a memtable, as a checkpoint does. Returns the pages that it added and removed.
    pub fn merge(
        &mut self,
        input: impl MergeInput + 'static,
        options: &MergeOptions,
    ) -> Result<Changes> {
        let merge = (self.structure).begin_merge(&self.version, Arc::new(input), options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        self.version = merged.version;
        self.generation += 1;
        let changes = merged.changes.clone();
        self.store
            .commit(Generation(self.generation), merged.changes);
        while self.store.reclaim_step()? {}
        Ok(changes)
    }
}
