//! What a read of blocks leaves in the cache, and the memory of blocks that it does not leave
//! there.

use terrapin_disk::{Filler, Piece};

use crate::cache::{Cache, Worth};
use crate::metrics::ReadFor;

/// What a read of a block leaves in the cache. The value also says what kind of reader it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The block, as one worth keeping. Gets use this.
    Normal,
    /// The block, as the first to be evicted. Scans use this.
    Low,
    /// Nothing. Merges use this: they take a cached block, but the cache does not count the use.
    No,
}

impl Fill {
    pub(super) fn worth(self) -> Worth {
        match self {
            Fill::Normal => Worth::Normal,
            Fill::Low | Fill::No => Worth::Low,
        }
    }

    pub(super) fn reader(self) -> ReadFor {
        match self {
            Fill::Normal => ReadFor::Get,
            Fill::Low => ReadFor::Scan,
            Fill::No => ReadFor::Merge,
        }
    }
}

/// Memory for blocks that do not enter the cache. Blocks of a long run share slabs, since their
/// reader drops them together.
#[derive(Default)]
pub(super) struct OwnMemory {
    filler: Filler,
    run_bytes: usize,
}

impl OwnMemory {
    /// Memory for blocks of `run_bytes` stored bytes in all.
    pub(super) fn of_run(run_bytes: usize) -> Self {
        OwnMemory {
            filler: Filler::default(),
            run_bytes,
        }
    }

    /// A piece of a slab for a block of `bytes` bytes; none if the block takes memory of its own.
    pub(super) fn memory_for(&mut self, bytes: usize, cache: &Cache) -> Option<Piece> {
        let slabs = cache.slabs();
        if self.run_bytes < slabs.slab_bytes() / 2 || bytes > slabs.slab_bytes() / 4 {
            return None;
        }
        self.filler.take(bytes).or_else(|| {
            self.filler.open(slabs.take(None));
            self.filler.take(bytes)
        })
    }
}
