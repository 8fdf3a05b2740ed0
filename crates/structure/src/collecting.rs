//! Collecting: merges without input, which give the space of dead values back.

use std::sync::Arc;

use terrapin_base::Result;

use crate::{Compaction, Merge, MergeOptions, Version};

/// The part of a [`crate::Structure`] that collects the garbage of values outside of its tree.
/// Every merge collects some; these calls serve keyspaces that nobody writes to, and ranges.
pub trait Collects: Send + Sync {
    /// Whether dead values take more space than the options accept. Reads nothing.
    fn has_garbage(&self, version: &Arc<dyn Version>, options: &MergeOptions) -> bool;
    /// Begins to give up garbage beyond what the options accept, but not much more than `bytes_max`
    /// bytes of dead values. Returns `None` if there is no such garbage.
    fn begin_collecting(
        &self,
        base: &Arc<dyn Version>,
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Arc<dyn Merge>>>;
    /// Bytes of values that an ordering of all keys may write. Reads nothing.
    fn bytes_to_order(&self, version: &Arc<dyn Version>) -> u64;
    /// Begins to bring values that lie scattered back into the order of keys, from `keys.0` on, and
    /// writes about `bytes_max` bytes of them. It ends soon after `keys.1`, if given. Returns
    /// `None` if no value behind `keys.0` is scattered.
    fn begin_ordering(
        &self,
        base: &Arc<dyn Version>,
        keys: (&[u8], Option<&[u8]>),
        bytes_max: u64,
        options: &MergeOptions,
    ) -> Result<Option<Compaction>>;
}
