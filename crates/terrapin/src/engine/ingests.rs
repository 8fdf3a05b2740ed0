//! Sorted ingests under way: which keyspaces they hold, and which trees wait for the checkpoint
//! that makes them visible. This file holds data only. `checkpoint::ingest` builds the trees, and
//! `checkpoint::job` makes them visible.
//!
//! Invariant: while an ingest holds a keyspace, no checkpoint changes the keyspace's tree, except
//! by the ingest's own tree. A clear or a drop may take the tree away. Taking a hold and beginning
//! to merge exclude each other under one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrapin_base::sync::Mutex;
use terrapin_base::{Error, KeyspaceId};
use terrapin_pages::Changes;
use terrapin_structure::Version;
use terrapin_valuelog::large::OwnedLarge;

/// The ingests of one open database.
#[derive(Default)]
pub(crate) struct Ingests(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// The keyspaces that ingests hold, each with the number of its hold.
    held: BTreeMap<KeyspaceId, u64>,
    /// Number of holds ever taken.
    holds: u64,
    /// The keyspaces whose trees the checkpoint under way changes.
    merging: BTreeSet<KeyspaceId>,
    ready: Vec<Ready>,
    is_closed: bool,
}

/// The answer to a request for a hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The hold of this number was taken.
    Taken(u64),
    /// Another ingest holds the keyspace.
    Other,
    /// The checkpoint under way changes the tree. Its end notifies `Schedule::progress`.
    Later,
    /// The database is being closed.
    Closed,
}

/// A tree that an ingest has built.
pub(crate) struct Ready {
    /// The keyspace that takes it.
    pub keyspace: KeyspaceId,
    /// The tree that it was built upon.
    pub base: Arc<dyn Version>,
    /// The tree.
    pub version: Arc<dyn Version>,
    /// Its pages.
    pub changes: Changes,
    /// The large values that it adopts. Dropping them gives their pages back.
    pub large: Vec<OwnedLarge>,
    /// Number of records that were taken in.
    pub records: u64,
    /// Where the outcome goes.
    pub outcome: Arc<Outcome>,
}

/// What became of a tree.
#[derive(Clone, Debug)]
pub(crate) enum Grafted {
    /// It is the keyspace's tree, durably.
    Visible,
    /// It became durable just after a clear or a drop, which holds.
    Overtaken,
    /// Nothing changed, and its pages were given back. After [`terrapin_base::ErrorKind::Poisoned`]
    /// the next open may find either tree.
    Failed(Error),
}

/// The place for an outcome.
#[derive(Default)]
pub(crate) struct Outcome(Mutex<Option<Grafted>>);

impl Outcome {
    /// What became of the tree, once that is known.
    pub fn get(&self) -> Option<Grafted> {
        self.0.lock().clone()
    }

    /// Sets what became of the tree.
    pub fn set(&self, grafted: Grafted) {
        *self.0.lock() = Some(grafted);
    }
}

impl Ingests {
    /// Asks for a hold on a keyspace.
    pub fn hold(&self, id: KeyspaceId) -> Hold {
        let mut inner = self.0.lock();
        if inner.is_closed {
            return Hold::Closed;
        }
        if inner.held.contains_key(&id) {
            return Hold::Other;
        }
        if inner.merging.contains(&id) {
            return Hold::Later;
        }
        inner.holds += 1;
        let number = inner.holds;
        inner.held.insert(id, number);
        Hold::Taken(number)
    }

    /// Ends the hold of a number, if it lasts. Returns whether it did.
    pub fn release(&self, id: KeyspaceId, number: u64) -> bool {
        let mut inner = self.0.lock();
        let lasts = inner.held.get(&id) == Some(&number);
        if lasts {
            inner.held.remove(&id);
        }
        lasts
    }

    /// Whether an ingest holds a keyspace.
    pub fn holds(&self, id: KeyspaceId) -> bool {
        self.0.lock().held.contains_key(&id)
    }

    /// The keyspaces that ingests hold.
    pub fn held(&self) -> Vec<KeyspaceId> {
        self.0.lock().held.keys().copied().collect()
    }

    /// Whether the checkpoint under way changes the tree of a keyspace.
    pub fn is_merging(&self, id: KeyspaceId) -> bool {
        self.0.lock().merging.contains(&id)
    }

    /// Asks whether a checkpoint may change the tree of a keyspace. If so, the tree counts as
    /// changing until [`Ingests::merges_ended`].
    pub fn may_merge(&self, id: KeyspaceId) -> bool {
        let mut inner = self.0.lock();
        let may = !inner.held.contains_key(&id);
        if may {
            inner.merging.insert(id);
        }
        may
    }

    /// Notes that no checkpoint changes a tree now. Returns whether one did.
    pub fn merges_ended(&self) -> bool {
        let mut inner = self.0.lock();
        let did = !inner.merging.is_empty();
        inner.merging.clear();
        did
    }

    /// Hands a tree over to the next checkpoint. Returns it if the database is being closed.
    pub fn hand_over(&self, ready: Ready) -> Option<Ready> {
        let mut inner = self.0.lock();
        if inner.is_closed {
            return Some(ready);
        }
        inner.ready.push(ready);
        None
    }

    /// Whether a tree waits for a checkpoint.
    pub fn is_any_ready(&self) -> bool {
        !self.0.lock().ready.is_empty()
    }

    /// The tree that waits longest. It counts as changing its keyspace until
    /// [`Ingests::merges_ended`].
    pub fn take_ready(&self) -> Option<Ready> {
        let mut inner = self.0.lock();
        if inner.ready.is_empty() {
            return None;
        }
        let ready = inner.ready.remove(0);
        inner.merging.insert(ready.keyspace);
        Some(ready)
    }

    /// Takes a tree back that no checkpoint has taken.
    pub fn take_back(&self, outcome: &Arc<Outcome>) -> Option<Ready> {
        let mut inner = self.0.lock();
        let at = inner
            .ready
            .iter()
            .position(|ready| Arc::ptr_eq(&ready.outcome, outcome))?;
        Some(inner.ready.remove(at))
    }

    /// Ends all holds and takes no further ones, since the database is being closed. Returns the
    /// trees that wait for a checkpoint.
    pub fn close(&self) -> Vec<Ready> {
        let mut inner = self.0.lock();
        inner.is_closed = true;
        inner.held.clear();
        std::mem::take(&mut inner.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_and_a_merge_exclude_each_other() {
        let (ingests, id, other) = (Ingests::default(), KeyspaceId(1), KeyspaceId(2));
        assert!(ingests.may_merge(id));
        assert_eq!(ingests.hold(id), Hold::Later);
        assert!(ingests.merges_ended() && !ingests.merges_ended());
        let Hold::Taken(first) = ingests.hold(id) else {
            panic!("nothing is in the way");
        };
        assert!(!ingests.may_merge(id) && ingests.may_merge(other));
        assert_eq!(ingests.hold(id), Hold::Other);
        assert!(ingests.release(id, first));
        let Hold::Taken(second) = ingests.hold(id) else {
            panic!("nothing is in the way");
        };
        // A late release of an earlier hold ends no later one.
        assert!(!ingests.release(id, first) && ingests.holds(id));
        assert!(ingests.close().is_empty() && !ingests.release(id, second));
        assert_eq!(ingests.hold(id), Hold::Closed);
        assert!(ingests.may_merge(id));
    }
}
