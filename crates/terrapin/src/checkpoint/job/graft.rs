//! Grafts: the checkpoint that makes the tree of a sorted ingest durable and visible.
//!
//! Such a checkpoint has one part, which is merged already. Its pages are the ingest's. It leaves
//! all memtables alone, so writes that came meanwhile stay above the new tree, in memory as in the
//! log. If it fails before a slot is written, the pages are given back and the tree stays as it is.
//! The pages of large values are the ingest's until the tree is durable, and the tree's then.

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, KeyspaceId, mutant};
use terrapin_pages::Changes;
use terrapin_structure::Version;
use terrapin_valuelog::large::OwnedLarge;

use super::Coordinator;
use crate::checkpoint::outcome::Part;
use crate::engine::core::Core;
use crate::engine::ingests::{Grafted, Outcome, Ready};
use crate::engine::state::{KeyspaceState, State};

/// A graft under way.
pub(super) struct Graft {
    keyspace: KeyspaceId,
    outcome: Arc<Outcome>,
    /// The large values that the tree adopts. They have their pages until it is durable.
    large: Vec<OwnedLarge>,
}

impl Coordinator {
    /// Begins the graft of the tree that waits longest, if one waits. Gives back trees whose
    /// keyspace was cleared or dropped since.
    pub(super) fn begin_graft(&mut self, state: &State) -> Option<(Part, Changes)> {
        while let Some(ready) = self.core.ingests.take_ready() {
            let Some(keyspace) = state.keyspaces.get(ready.keyspace) else {
                give_back(&self.core, ready, self.core.dropped());
                continue;
            };
            if !is_of(keyspace, &ready.base) {
                give_back(&self.core, ready, cleared(keyspace));
                continue;
            }
            let mut part = Part::new(keyspace, None);
            part.merged = Some(ready.version);
            part.added = ready.records;
            self.graft = Some(Graft {
                keyspace: keyspace.id,
                outcome: ready.outcome,
                large: ready.large,
            });
            return Some((part, ready.changes));
        }
        None
    }

    /// Reports what became of the graft under way, if any. Returns whether there was one.
    pub(super) fn end_graft(&mut self, grafted: Grafted) -> bool {
        let Some(graft) = self.graft.take() else {
            return false;
        };
        if let Grafted::Overtaken = grafted {
            // The catalog names a tree that the keyspace does not have.
            self.core.schedule.let_tree_go();
        }
        // After `Poisoned`, the next open may find the tree.
        let stays = match &grafted {
            Grafted::Visible | Grafted::Overtaken => true,
            Grafted::Failed(error) => error.kind() == ErrorKind::Poisoned,
        };
        if stays {
            graft.large.iter().for_each(OwnedLarge::give);
        }
        drop(graft.large);
        graft.outcome.set(grafted);
        self.core.schedule.progress().notify();
        true
    }

    /// Whether the graft under way is that of a keyspace.
    pub(super) fn grafts(&self, id: KeyspaceId) -> bool {
        self.graft
            .as_ref()
            .is_some_and(|graft| graft.keyspace == id)
    }
}

/// Gives back the pages of a tree that no keyspace takes.
pub(crate) fn give_back(core: &Core, ready: Ready, error: Error) {
    core.store.abandon(ready.changes);
    drop(ready.large);
    ready.outcome.set(Grafted::Failed(error));
    core.schedule.progress().notify();
}

/// Whether a keyspace still has the tree that an ingest goes on from.
pub(crate) fn is_of(keyspace: &KeyspaceState, base: &Arc<dyn Version>) -> bool {
    Arc::ptr_eq(&keyspace.version, base) || mutant::active("ingest-grafts-onto-another-tree")
}

/// The error of an ingest into a keyspace that was cleared meanwhile.
pub(crate) fn cleared(keyspace: &KeyspaceState) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "the keyspace was cleared while records were taken in: none of them stays; ingest again",
    )
    .with("keyspace", &keyspace.shared.name)
}

#[cfg(test)]
mod tests {
    use terrapin_base::{Condition, Env, Job, Step};
    use terrapin_disk::SimDisk;
    use terrapin_disk::sim::CrashMode;

    use super::*;
    use crate::engine::state::KeyspaceShared;
    use crate::keyspaces::schema::Attempt;
    use crate::types::options::Options;

    /// Clears a keyspace once the checkpoint that grafts its tree has begun.
    struct ClearsDuringGraft(Arc<Core>, Arc<KeyspaceShared>);

    impl Job for ClearsDuringGraft {
        fn name(&self) -> &'static str {
            "clears-during-graft"
        }

        fn step(&mut self) -> Step {
            let ClearsDuringGraft(core, shared) = self;
            let id = shared.id;
            if !core.ingests.is_merging(id) {
                let (signal, core) = (core.schedule.work().clone(), core.clone());
                let begun = move || core.ingests.is_merging(id) || core.schedule.is_stopping();
                return Step::Pending(Condition::new(&signal, begun));
            }
            let log = core.log().unwrap();
            let mut install = core.install.lock();
            let attempt = core.try_clear(log, &mut install, shared);
            let Attempt::Done(appended, _, replaced) = attempt.unwrap() else {
                panic!("the ring is full");
            };
            log.publish(&appended);
            drop((install, replaced));
            Step::Done
        }
    }

    /// The clear comes before the tree is durable or just after, and holds in both cases, also
    /// after a power cut right behind the ingest's error.
    #[test]
    fn a_clear_during_a_graft_holds() {
        let mut overtaken = 0;
        for seed in 0..60 {
            let (env, sim) = Env::simulated(seed);
            let disk = SimDisk::new(seed);
            let options = Options::small();
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            sim.settle();
            let keyspace = database.keyspace("k").unwrap();
            let core = database.core();
            let clears = ClearsDuringGraft(core.clone(), keyspace.shared.clone());
            let job = env.spawn(Box::new(clears)).unwrap();
            let before = core.counters.checkpoints.get();
            let live = core.store.live_bytes();
            let records = (0..200u64).map(|number| (number.to_be_bytes(), [1; 50]));
            let taken = keyspace.ingest(records);
            let is_taken = taken.is_ok();
            match taken {
                // The clear came after the tree was visible.
                Ok(count) => assert_eq!(count, 200),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    overtaken += core.counters.checkpoints.get() - before;
                }
            }
            job.join().unwrap();
            assert!(keyspace.is_empty().unwrap(), "seed {seed}");
            if seed % 2 == 0 {
                sim.settle();
                assert!(core.store.live_bytes() <= live + (16 << 10), "pages stay");
                database.close().unwrap();
                continue;
            }
            drop(keyspace);
            sim.kill();
            disk.crash_power(CrashMode::LoseUnsynced);
            drop(database);
            sim.kill();
            let database = options.open_on(env, disk.handle()).unwrap();
            // A later clear of no error may be lost with the log's end.
            let keyspace = database.keyspace("k").unwrap();
            assert!(is_taken || keyspace.is_empty().unwrap(), "seed {seed}");
            database.close().unwrap();
        }
        assert!(overtaken > 5, "{overtaken}");
    }
}
