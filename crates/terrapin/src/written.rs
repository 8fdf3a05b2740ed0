//! Which keyspaces have memtables that hold, or held lately, a record: so that whatever goes over "all memtables" goes over those,
//! and a database with 100,000 keyspaces of which ten are written pays for ten.
//!
//! A keyspace enters with the first write into a memtable ([`Core::note_written`]), before that write is in it. It leaves when a
//! checkpoint ends and neither memtable of it was written ([`Core::forget_unwritten`]). The memtable's own flag
//! ([`WriteWindow::noted`]) spares later writes the look. Both changes happen under one mutex: a write that finds the flag set also
//! finds its keyspace here.
//!
//! Invariant: every keyspace of the current state, and of a state that a round has frozen, that has a sealed memtable or a record in
//! its active one is here. So a round misses none.
//!
//! The limits of memtables depend on how many keyspaces write. They are set for the written ones each time that changes
//! ([`Core::rebalance`]), and for any other one as it is first written, from the [`Basis`] of the last time.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::KeyspaceId;
use terrapin_base::sync::{Mutex, Ordering};

use crate::core::{Core, Install};
use crate::cut::is_written;
use crate::options::CheckpointDistance;
use crate::state::{KeyspaceState, State, WriteWindow};

/// What the limits of memtables were last computed from.
#[derive(Clone, Copy)]
pub(crate) struct Basis {
    /// How many keyspaces write.
    pub writers: usize,
    /// Whether data grows and hardly anybody reads.
    pub is_loaded: bool,
    /// Bytes of arenas that stay beside what is read, if all of it is to be cached.
    pub beside_all: Option<u64>,
    /// χ of keyspaces without one of their own.
    pub distance: CheckpointDistance,
}

/// See the head of this file.
pub(crate) struct Written(Mutex<Inner>);

struct Inner {
    ids: BTreeSet<KeyspaceId>,
    basis: Basis,
}

impl Written {
    /// None is written yet.
    pub fn new(distance: CheckpointDistance) -> Self {
        Written(Mutex::new(Inner {
            ids: BTreeSet::new(),
            basis: Basis {
                writers: 0,
                is_loaded: false,
                beside_all: None,
                distance,
            },
        }))
    }

    /// Their numbers, in order.
    pub fn ids(&self) -> Vec<KeyspaceId> {
        self.0.lock().ids.iter().copied().collect()
    }

    /// What limits are computed from.
    pub fn basis(&self) -> Basis {
        self.0.lock().basis
    }

    /// Sets that.
    pub fn set_basis(&self, basis: Basis) {
        self.0.lock().basis = basis;
    }
}

impl Core {
    /// A write is about to enter a memtable, of a keyspace in some state. O(log of the number of written keyspaces), once a memtable.
    #[cold]
    pub fn note_written(&self, keyspace: &KeyspaceState, window: &WriteWindow) {
        let basis = {
            let mut written = self.written.0.lock();
            written.ids.insert(keyspace.id);
            // Under the lock: see `forget_unwritten`. Whoever loads it finds the id in the set.
            window.noted.store(true, Ordering::Release);
            written.basis
        };
        self.set_limits(keyspace, &basis);
    }

    /// The written keyspaces of a state, in the order of their numbers. Some may have no record in a memtable.
    pub fn noted_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let ids = self.written.ids();
        ids.into_iter()
            .filter_map(|id| state.keyspaces.get(id))
            .collect()
    }

    /// Those that have a sealed memtable, or a record in the active one.
    pub fn written_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let mut written = self.noted_of(state);
        written.retain(|keyspace| is_written(keyspace));
        written
    }

    /// Forgets keyspaces of which no memtable was written. Only the end of a round calls this, with the install lock held: a round in
    /// between relies on finding those whose memtables a clear has taken away since it froze them.
    pub fn forget_unwritten(&self, _: &Install) {
        let state = self.state.load();
        self.written.0.lock().ids.retain(|id| {
            let keyspace = state.keyspaces.get(*id);
            keyspace.is_some_and(|k| k.sealed.is_some() || k.active.noted.load(Ordering::Relaxed))
        });
    }
}
