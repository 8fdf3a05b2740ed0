//! What one checkpoint is made of, and what it comes to for each keyspace: which tree the catalog
//! names, and how much of the log that holds.

use std::sync::Arc;

use terrapin_base::sync::Ordering;
use terrapin_base::{Error, KeyspaceId, Lsn, Result, mutant};
use terrapin_pages::{Changes, SpaceClass};
use terrapin_structure::Version;

use super::held::Finished;
use crate::engine::events::Merged;
use crate::engine::state::{KeyspaceState, SealedMemtable, State};
use crate::keyspaces::catalog::{Catalog, Outcome};

/// One checkpoint.
pub(super) struct Checkpoint {
    /// When it began.
    pub began_ns: u64,
    pub frozen: Arc<State>,
    pub next_id: u32,
    pub seal: Lsn,
    pub publish_to: Lsn,
    /// How much of the log is to be durable before what the checkpoint makes is.
    pub through: Lsn,
    /// Keyspaces with a sealed memtable; those before `at` are merged.
    pub parts: Vec<Part>,
    pub at: usize,
    pub changes: Changes,
    /// What could not be read of trees that are let go.
    pub unread: Vec<Error>,
    /// Memtables of it that views need no more once it is durable.
    pub spilled: Vec<Finished>,
    /// Why a part of it was left out.
    pub failed: Option<Error>,
    /// [`super::Schedule::trees_let_go`] when it began.
    pub trees_let_go: u64,
    /// The log was too long when it began.
    pub shortens_log: bool,
    /// Made of one slice, or of a memtable that may not be sliced, from the reserve.
    pub sliced: bool,
    /// What the memtables hold comes among the cached records.
    pub takes: bool,
}

/// What a checkpoint does to one keyspace.
pub(super) struct Part {
    pub keyspace: Arc<KeyspaceState>,
    /// What is merged into its tree; none where that is compacted.
    pub sealed: Option<SealedMemtable>,
    /// The tree after the merge.
    pub merged: Option<Arc<dyn Version>>,
    /// Where a slice ended, if the memtable goes on behind it.
    pub rest_from: Option<Box<[u8]>>,
    /// How many records it adds to the tree, at most.
    pub added: u64,
    /// Where a compaction of the tree goes on.
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

    /// Whether its memtable is merged in one piece however little room there is.
    pub fn is_whole(&self) -> bool {
        let memtable = self.sealed.as_ref().map(|sealed| &sealed.records);
        memtable.is_some_and(|memtable| memtable.unlogged_batch.load(Ordering::Acquire))
    }
}

impl Checkpoint {
    /// What it merged, for the event.
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

    /// Its parts in the order of their keyspaces' numbers.
    pub fn parts_by_id(&self) -> Vec<&Part> {
        let mut parts: Vec<_> = self.parts.iter().collect();
        parts.sort_unstable_by_key(|part| part.keyspace.id);
        parts
    }

    /// What it did to a keyspace of the frozen state, of which the catalog before it says how far
    /// it was. With [`Checkpoint::parts_by_id`].
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
            // The log is synced so far before this is committed (D2).
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
            // Read after everything below the seal was in its memtable (D3).
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

    /// How far something is applied after it of which no memtable has a record, and how far that
    /// was `before`. While the log is replayed it is sealed where the replay is. What was applied
    /// beyond that stays so: were it replayed again, it would go over later writes that are in
    /// trees only.
    pub fn applied(&self, before: Lsn) -> Lsn {
        match mutant::active("replay-checkpoint-lowers-lsn") {
            true => self.seal,
            false => self.seal.max(before),
        }
    }
}
