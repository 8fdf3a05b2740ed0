//! Sorted ingest: records that come in key order become a part of a version without a memtable.

use std::sync::Arc;

use terrapin_base::{Message, Result};

use crate::{MergeOptions, Merged, Version};

/// The part of a [`crate::Structure`] that takes in sorted records directly. The engine gives the
/// records for a structure without it to a merge ([`crate::Structure::begin_merge`]).
pub trait Ingests: Send + Sync {
    /// Begins an ingest into a version, whose pages the caller keeps. The ingest writes pages and
    /// leaves the version as it is. `None` if records for this version and these options need a
    /// merge.
    fn begin_ingest(
        &self,
        base: &Arc<dyn Version>,
        options: &MergeOptions,
    ) -> Result<Option<Box<dyn Ingest>>>;
}

/// An ingest under way. Dropping it gives back the pages that it wrote.
///
/// It holds about one page group in memory, and a reference to each group that it wrote lately.
pub trait Ingest: Send {
    /// Takes in a record that is newer than all of the base version. Keys ascend, each once. The
    /// call may write a page group. After an error the ingest can only be dropped.
    fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<()>;
    /// Writes the rest and returns the next version. The pages are not synced.
    fn finish(self: Box<Self>) -> Result<Merged>;
}
