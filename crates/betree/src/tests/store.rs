//! A page store on a simulated disk. Tests can empty its cache, damage its pages, and count its
//! reads.

use std::sync::Arc;

use terrapin_base::{Budget, Incarnation};
use terrapin_disk::SimDisk;
use terrapin_pages::{DATA_FILE, PageStore, StoreOptions};

pub(super) struct TestStore {
    disk: SimDisk,
    budget: Arc<Budget>,
    pages: Arc<PageStore>,
}

const CACHE_BYTES: u64 = 256 << 20;

impl TestStore {
    pub(super) fn new() -> Self {
        let disk = SimDisk::new(1);
        let budget = Budget::new(CACHE_BYTES);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 0,
            system_cache: false,
        };
        let pages = PageStore::create(&disk.handle(), options, 7).unwrap();
        pages.begin_life(Incarnation(1));
        TestStore {
            disk,
            budget,
            pages,
        }
    }

    pub(super) fn pages(&self) -> &Arc<PageStore> {
        &self.pages
    }

    /// Empties the cache.
    pub(super) fn forget_cache(&self) {
        self.budget.set_limit(0);
        while self.pages.shrink() {}
        self.budget.set_limit(CACHE_BYTES);
        assert_eq!(self.pages.metrics().cache_bytes, 0);
    }

    /// Changes a byte. A second call changes it back.
    pub(super) fn damage(&self, offset: u64) {
        assert!(self.disk.corrupt(DATA_FILE, offset, 0x40));
    }

    /// Device reads of blocks so far, by any caller.
    pub(super) fn block_reads(&self) -> u64 {
        let read = self.pages.metrics().read;
        read.get_reads + read.scan_reads + read.merge_reads
    }

    /// Bytes of these reads.
    pub(super) fn block_bytes(&self) -> u64 {
        let read = self.pages.metrics().read;
        read.get_bytes + read.scan_bytes + read.merge_bytes
    }
}
