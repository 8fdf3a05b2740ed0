//! [`Checkpoint`]: the parts of one checkpoint, and its result for each keyspace: the tree that the
//! catalog names, and the applied LSN.

use std::sync::Arc;

use terrapin_base::sync::Ordering;
use terrapin_base::{Error, KeyspaceId, Lsn, PageId, Result, mutant};
use terrapin_pages::{Changes, PageStore, SpaceClass};
use terrapin_structure::Version;

use super::held::Finished;
use crate::engine::events::Merged;
use crate::engine::large::release;
use crate::engine::state::{KeyspaceState, SealedMemtable, State};
use crate::keyspaces::catalog::{Catalog, Outcome};

/// One checkpoint.
pub(super) struct Checkpoint {
    /// Time at which the checkpoint began, in nanoseconds.
    pub began_ns: u64,
    pub frozen: Arc<State>,
    pub next_id: u32,
    pub seal: Lsn,
    pub publish_to: Lsn,
    /// The log must be durable below this LSN before the checkpoint commits.
    pub through: Lsn,
    /// Keyspaces with a sealed memtable. Those before `at` are merged.
    pub parts: Vec<Part>,
    pub at: usize,
    pub changes: Changes,
    /// Large pages that no memtable of `frozen` has, and no tree.
    pub orphans: Vec<PageId>,
    /// Errors of nodes that could not be read, of trees that were let go.
    pub unread: Vec<Error>,
    /// Memtables that views need no more once the checkpoint is durable.
    pub spilled: Vec<Finished>,
    /// The error because of which a part was left out.
    pub failed: Option<Error>,
    /// `Schedule::trees_let_go` when the checkpoint began.
    pub trees_let_go: u64,
    /// Whether the log was too long when the checkpoint began.
    pub shortens_log: bool,
    /// Whether the checkpoint consists of one slice, or of a memtable that may not be sliced, and
    /// writes from the reserve.
    pub sliced: bool,
    /// Whether records of the memtables are added to the record cache.
    pub takes: bool,
    /// Whether the part under way met damage, and only adds its memtable now.
    pub adds_only: bool,
}

/// The work of a checkpoint on one keyspace.
pub(super) struct Part {
    pub keyspace: Arc<KeyspaceState>,
    /// The memtable that is merged into the tree. None for a compaction.
    pub sealed: Option<SealedMemtable>,
    /// The tree after the merge.
    pub merged: Option<Arc<dyn Version>>,
    /// The key at which the rest of the memtable begins, if this part is a slice.
    pub rest_from: Option<Box<[u8]>>,
    /// The most records that the part adds to the tree.
    pub added: u64,
    /// The key at which the compaction of the tree continues.
    pub next_stretch: Option<Box<[u8]>>,
}

impl Part {
    pub fn new(keyspace: &Arc<KeyspaceState>, sealed: Option<SealedMemtable>) -> Self {
        Part {
            keyspace: keyspace.clone(),
            sealed,
            merged: None,
            rest_from: None,
            added: 0,
            next_stretch: None,
        }
    }

    /// Whether the memtable is merged in one piece, however little room there is. A slice would be
    /// replayed after a kill, and its operands would apply again. The later merge of all
    /// would adopt a slice's large values again.
    pub fn is_whole(&self) -> bool {
        let memtable = self.sealed.as_ref().map(|sealed| &sealed.records);
        memtable.is_some_and(|memtable| {
            let has_operands = memtable.memtable.has_operands()
                && !mutant::active("operands-are-merged-in-slices");
            has_operands
                || memtable.large.is_any()
                || memtable.unlogged_batch.load(Ordering::Acquire)
        })
    }
}

impl Checkpoint {
    /// What the checkpoint merged, for the event.
    pub fn merged(&self) -> Merged {
        let memtables = self.parts.iter().filter(|part| part.merged.is_some());
        let memtables = memtables.filter_map(|part| part.sealed.as_ref());
        Merged {
            began_ns: self.began_ns,
            keyspaces: memtables.clone().count(),
            bytes: memtables.map(|s| s.records.memtable.live_bytes()).sum(),
        }
    }

    pub fn class(&self) -> SpaceClass {
        if self.sliced {
            SpaceClass::Reserve
        } else {
            SpaceClass::Normal
        }
    }

    /// Releases the large pages that no tree took: of versions that were overwritten in the merged
    /// memtables, and of memtables that were removed.
    pub fn release_large(&mut self, store: &PageStore) {
        let mut pages = self.orphans.clone();
        for part in self.parts.iter().filter(|part| part.rest_from.is_none()) {
            let sealed = part.sealed.as_ref().filter(|_| part.merged.is_some());
            if let Some(sealed) = sealed.filter(|sealed| sealed.records.large.is_any()) {
                pages.extend(sealed.records.large.ids());
            }
        }
        release(store, &pages, &mut self.changes);
    }

    /// The parts in the order of their keyspaces' ids.
    pub fn parts_by_id(&self) -> Vec<&Part> {
        let mut parts: Vec<_> = self.parts.iter().collect();
        parts.sort_unstable_by_key(|part| part.keyspace.id);
        parts
    }

    /// The result for a keyspace of the frozen state. `catalog` is the previous catalog, and
    /// `parts` comes from [`Checkpoint::parts_by_id`].
    pub fn outcome(&self, catalog: &Catalog, id: KeyspaceId, parts: &[&Part]) -> Result<Outcome> {
        let before = catalog.applied_of(id).unwrap_or(Lsn(0));
        let part = parts.binary_search_by_key(&id, |part| part.keyspace.id);
        let part = part.ok().map(|at| parts[at]);
        let merged = part
            .map(|part| {
                let merged = part.merged.clone();
                merged.ok_or_else(|| Error::internal("a part of a checkpoint was not merged"))
            })
            .transpose()?;
        if let (Some(version), Some(part)) = (merged.clone(), part)
            && let Some(sealed) = &part.sealed
        {
            let applied = match part.rest_from {
                Some(_) => before.max(sealed.records.start),
                None => sealed.seal,
            };
            // The log is synced through the applied LSN before this checkpoint commits (D2).
            debug_assert!(applied <= before.max(self.through));
            return Ok(Outcome {
                version,
                applied,
                quiet: false,
            });
        }
        let keyspace = self
            .frozen
            .keyspaces
            .get(id)
            .ok_or_else(|| Error::internal("a keyspace vanished from a frozen state"))?;
        let version = merged.unwrap_or_else(|| keyspace.version.clone());
        Ok(match &keyspace.sealed {
            Some(sealed) => Outcome {
                version,
                applied: before.max(sealed.records.start),
                quiet: false,
            },
            // Read after every record below the seal was in its memtable (D3).
            None if keyspace.active.memtable.is_empty()
                || mutant::active("written-keyspace-counts-as-quiet") =>
            {
                let applied = self.applied(before);
                Outcome {
                    version,
                    applied,
                    quiet: applied == self.applied(catalog.applied),
                }
            }
            None => Outcome {
                version,
                applied: before.max(keyspace.active.start),
                quiet: false,
            },
        })
    }

    /// The applied LSN after this checkpoint, of a keyspace whose memtables hold no record. Before
    /// the checkpoint, it was `before`. During replay, the seal is at the replay's LSN and may be
    /// lower. The applied LSN never goes back: replaying records again would overwrite later writes
    /// that only trees hold.
    pub fn applied(&self, before: Lsn) -> Lsn {
        match mutant::active("replay-checkpoint-lowers-lsn") {
            true => self.seal,
            false => self.seal.max(before),
        }
    }
}
