//! Compactions: merges without input, which make ranges cheaper.

use std::sync::Arc;

use terrapin_base::Result;

use crate::{Merge, MergeOptions, Version};

/// What a compaction of a span of keys is worth while nobody writes: waste that it frees, or
/// records that wait and make reads dearer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaimable {
    /// Bytes of waste in the whole tree: messages that newer ones replace or delete, dead parts of
    /// page groups, or records that wait.
    pub waste_bytes: u64,
    /// Key and value bytes that the compaction of the span merges, counted against the caller's
    /// limit. 0 if the structure keeps no such limit.
    pub merged_bytes: u64,
    /// The lower bound of the span. Empty: below all keys.
    pub from: Box<[u8]>,
    /// Its exclusive upper bound. `None`: the end of all keys.
    pub to: Option<Box<[u8]>>,
}

/// The part of a [`crate::Structure`] that makes ranges cheaper by merging its sorted runs.
pub trait Compacts: Send + Sync {
    /// The work of compactions from the first key to the last. Reads nodes only.
    fn to_compact(&self, version: &Arc<dyn Version>) -> Result<ToCompact>;
    /// The span of keys to compact next while nobody writes, to free space or to make gets cheaper;
    /// `None` while that gains little. A compaction that only makes reads cheaper merges at most
    /// `bytes_max` key and value bytes. Reads nodes only.
    fn to_reclaim(
        &self,
        version: &Arc<dyn Version>,
        bytes_max: u64,
    ) -> Result<Option<Reclaimable>> {
        let _ = (version, bytes_max);
        Ok(None)
    }
    /// The share of records that have expired at a moment, in milliseconds since 1970: an estimate,
    /// in thousandths. A compaction rewrites the parts that are expired by
    /// [`MergeOptions::expired`]. Reads the root node at most. 0 if the structure does not know.
    fn expired_permille(&self, version: &Arc<dyn Version>, now_ms: u64) -> Result<u64> {
        let _ = (version, now_ms);
        Ok(0)
    }
    /// Plans a compaction of the first stretch at or above `keys.0` that has work to do. The
    /// stretch holds about `bytes_max` key and value bytes, and ends soon after `keys.1`, if given.
    /// Returns `None` if no stretch has work to do.
    fn begin_compaction(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>>;
}

/// The work of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToCompact {
    /// Key and value bytes that it merges; 0 if it has nothing to do.
    pub merged_bytes: u64,
    /// The part of those bytes that is in buffers.
    pub buffered_bytes: u64,
}

/// A merge without input. It makes ranges over one stretch of keys cheaper: afterwards one sorted
/// run holds the stretch.
pub struct Compaction {
    /// The merge.
    pub merge: Arc<dyn Merge>,
    /// The end of the stretch, where the next stretch may begin. `None` at the end of all keys, or
    /// of the keys that were asked for.
    pub next: Option<Box<[u8]>>,
}
