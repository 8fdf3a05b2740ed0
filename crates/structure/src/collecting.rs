//! Collecting: merges without input, which give the space of dead values back.

use std::sync::Arc;

use terrapin_base::Result;

use crate::{Merge, MergeOptions, Version};

/// The part of a [`crate::Structure`] that collects the garbage of values outside of its tree.
/// Every merge collects some; these calls serve keyspaces that nobody writes to.
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
}
