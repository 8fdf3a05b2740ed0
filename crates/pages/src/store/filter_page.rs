//! A filter partition in the cache, with its outline if one is known.

use terrapin_base::Charge;
use terrapin_base::sync::{Arc, OnceLock};
use terrapin_filter::Outline;

/// An outline, charged until its last holder drops it.
#[derive(Clone, Debug)]
pub(super) struct KeptOutline {
    pub(super) outline: Outline,
    /// One charge to the store's budget, one to the budget of all outlines.
    pub(super) _charges: Arc<[Charge; 2]>,
}

/// One partition of a filter, whose checksum was checked.
#[derive(Debug)]
pub(crate) struct FilterPage {
    pub(super) bytes: Box<[u8]>,
    /// The outline of a buffer segment's partition, once the partition was written or first asked.
    pub(super) outline: OnceLock<KeptOutline>,
}

impl FilterPage {
    /// Bytes of memory that a partition takes in the cache.
    pub(super) fn memory_bytes(partition_bytes: usize) -> usize {
        partition_bytes + size_of::<Self>()
    }

    pub(super) fn copy(partition: &[u8]) -> Self {
        FilterPage {
            bytes: partition.into(),
            outline: OnceLock::new(),
        }
    }
}
