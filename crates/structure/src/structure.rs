//! A kind of structure: its number and name, how its versions open, and how they change.

use std::fmt;
use std::sync::Arc;

use terrapin_base::Result;

use crate::{Collects, Compacts, Ingests, Merge, MergeInput, MergeOptions, Version};

/// The number of a kind of structure, as the catalog and the log store it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StructureId(pub u8);

impl StructureId {
    /// The TurtleTree.
    pub const LEVELED: StructureId = StructureId(0);
    /// The TurtleTree with size-tiered buffers (SplinterDB).
    pub const TIERED: StructureId = StructureId(1);
    /// The page-grouped tree (TreeLine).
    pub const IN_PLACE: StructureId = StructureId(2);
    /// The lazy-trie over hashes (CedrusDB).
    pub const HASHED: StructureId = StructureId(3);
    /// The plain structure of the tests. No release opens it.
    pub const PLAIN: StructureId = StructureId(255);

    /// The name that `stat` shows and that options take; `None` for a number that is not given.
    ///
    /// ```
    /// use terrapin_structure::StructureId;
    /// assert_eq!(StructureId::LEVELED.name(), Some("leveled"));
    /// assert_eq!(StructureId(9).name(), None);
    /// ```
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            StructureId::LEVELED => Some("leveled"),
            StructureId::TIERED => Some("tiered"),
            StructureId::IN_PLACE => Some("inplace"),
            StructureId::HASHED => Some("hashed"),
            StructureId::PLAIN => Some("plain"),
            _ => None,
        }
    }
}

impl fmt::Display for StructureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("unknown"), self.0)
    }
}

impl fmt::Debug for StructureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A kind of structure, bound to a page store.
///
/// All structures look keys up, merge sealed memtables, list their pages and verify themselves.
/// What else a structure does, it declares: [`Version::ordered`], [`Structure::compacts`],
/// [`Structure::ingests`], [`Structure::merges_privately`], [`Structure::adopts`]. The engine asks
/// for these and never for the structure's name.
pub trait Structure: Send + Sync {
    /// The structure's number.
    fn id(&self) -> StructureId;
    /// The name of that number, for people.
    fn name(&self) -> &'static str {
        self.id().name().unwrap_or("unknown")
    }
    /// The version without records.
    fn empty(&self) -> Arc<dyn Version>;
    /// Opens the version that [`Version::root`] described.
    fn open(&self, root: &[u8]) -> Result<Arc<dyn Version>>;
    /// Plans a merge of `input` into `base`.
    fn begin_merge(
        &self,
        base: &Arc<dyn Version>,
        input: Arc<dyn MergeInput>,
        options: &MergeOptions,
    ) -> Result<Arc<dyn Merge>>;
    /// Compactions, if the structure has sorted runs that a merge without input makes fewer.
    fn compacts(&self) -> Option<&dyn Compacts>;
    /// Collecting the garbage of values outside of the tree, if there may be any.
    fn collects(&self) -> Option<&dyn Collects> {
        None
    }
    /// Sorted ingests, if the structure takes in sorted records directly. For a structure that says
    /// `None`, the engine writes the records twice: as a run, which it then merges.
    fn ingests(&self) -> Option<&dyn Ingests> {
        None
    }
    /// Whether a merge into the empty version writes the sorted run that replaces a memtable of a
    /// view. For a structure that says no, the engine writes such runs with one that says yes.
    fn merges_privately(&self) -> bool;
    /// Whether merges can stay away from damaged pages ([`crate::Around`]), so that damage in a
    /// page group keeps no memtable from being durable.
    fn merges_around_damage(&self) -> bool {
        false
    }
    /// Page groups ([`MergeOptions::group_bytes`]) that the shortest merge on a full disk may write
    /// before it frees any: one message, and what goes on with it to where it stays. The store
    /// keeps a reserve of this size (D10). 20 suffice for pivots of 16 groups (decision 0061).
    fn reserve_groups(&self) -> u64 {
        20
    }
    /// Whether this structure opens and goes on with roots of another one, so that a keyspace
    /// changes to it without rewriting a page.
    fn adopts(&self, other: StructureId) -> bool;
}
