//! Which keyspaces have memtables that hold, or held lately, a record: so that whatever goes over
//! "all memtables" goes over those, and a database with 100,000 keyspaces of which ten are written
//! pays for ten.
//!
//! A keyspace enters with the first write into a memtable ([`Written::note`]), before that write is
//! in it. It leaves when a checkpoint ends and neither memtable of it was written
//! ([`Written::forget_unwritten`]). The memtable's own flag ([`LoggedMemtable::noted`]) spares
//! later writes the look. Both changes happen under one mutex: a write that finds the flag set also
//! finds its keyspace here.
//!
//! Invariant: every keyspace of the current state, and of a state that a checkpoint has frozen,
//! that has a sealed memtable or a record in its active one is here. So a checkpoint misses none.
//!
//! The limits of memtables depend on how many keyspaces write. They are set for the written ones
//! each time that changes, and for any other one as it is first written, by
//! the plan in force.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::KeyspaceId;
use terrapin_base::sync::{Mutex, Ordering};

use crate::engine::state::{KeyspaceState, LoggedMemtable, State};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Written(Mutex<BTreeSet<KeyspaceId>>);

impl Written {
    /// Their numbers, in order.
    pub fn ids(&self) -> Vec<KeyspaceId> {
        self.0.lock().iter().copied().collect()
    }
}

impl Written {
    /// A write is about to enter a memtable, of a keyspace in some state. O(log of the number of
    /// written keyspaces), once a memtable.
    #[cold]
    pub fn note(&self, id: KeyspaceId, memtable: &LoggedMemtable) {
        let mut written = self.0.lock();
        written.insert(id);
        // Under the lock: see `forget_unwritten`. Whoever loads it finds the id in the set.
        memtable.noted.store(true, Ordering::Release);
    }

    /// The written keyspaces of a state, in the order of their numbers. Some may have no record in
    /// a memtable.
    pub fn noted_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let ids = self.ids();
        ids.into_iter()
            .filter_map(|id| state.keyspaces.get(id))
            .collect()
    }

    /// Those that have a sealed memtable, or a record in the active one.
    pub fn written_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let mut written = self.noted_of(state);
        written.retain(|keyspace| keyspace.is_written());
        written
    }

    /// Forgets keyspaces of which the current state has no memtable that was written. Only the end
    /// of a checkpoint calls this, with the install lock held: a checkpoint in between relies on
    /// finding those whose memtables a clear has taken away since it froze them.
    pub fn forget_unwritten(&self, current: &State) {
        self.0.lock().retain(|id| {
            let keyspace = current.keyspaces.get(*id);
            keyspace.is_some_and(|k| k.sealed.is_some() || k.active.noted.load(Ordering::Relaxed))
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::id_map::tests::STEPS;
    use crate::{Database, KeyspaceOptions, Options};

    /// What something costs: values of maps gone over, bytes allocated.
    fn cost(work: impl FnOnce()) -> (u64, u64) {
        let before = STEPS.get();
        let allocated = allocation_counter::measure(work);
        (STEPS.get() - before, allocated.bytes_total)
    }

    fn create(database: &Database, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let options = KeyspaceOptions::default();
            let created = database.create_keyspace(&format!("tenant {number}"), options);
            created.unwrap();
        }
    }

    /// Ten thousand more took 0.85 s in an empty database and 24.6 s beside 40,000: each copied a
    /// list of all, and looked at all three times.
    #[test]
    fn what_is_done_to_one_keyspace_costs_nothing_for_the_others() {
        // More than one leaf of each map holds, so that all paths are as long.
        let (few, many) = (5000, 25_000);
        let options = Options::small().memory(64 << 20).log_bytes_max(16 << 20);
        let (database, sim) = options.open_simulated();
        let mut costs = Vec::new();
        let mut next = 0;
        for count in [few, many] {
            create(&database, next..count);
            next = count + 64;
            database.checkpoint().unwrap();
            sim.settle();
            sim.set_breathing(false);
            let one = database.open_keyspace("tenant 7").unwrap();
            costs.push([
                ("create 64", cost(|| create(&database, count..next))),
                ("put", cost(|| one.put("a", "1").unwrap())),
                ("clear", cost(|| one.clear().unwrap())),
                (
                    "drop 64",
                    cost(|| {
                        for number in count..next {
                            database.drop_keyspace(&format!("tenant {number}")).unwrap();
                        }
                    }),
                ),
                ("seal", cost(|| database.core().seal_full())),
                (
                    "checkpoint",
                    cost(|| {
                        one.put("b", "1").unwrap();
                        database.checkpoint().unwrap();
                    }),
                ),
            ]);
            sim.set_breathing(true);
        }
        let leaves = u64::from(many) / 64;
        for ((what, few), (_, many)) in costs[0].into_iter().zip(costs[1]) {
            // The catalog's root names all leaves; a leaf has 64 keyspaces.
            let (steps, bytes) = match what {
                "checkpoint" => (few.0 + 2 * leaves, few.1 + 200 * leaves),
                _ => (few.0, few.1 + few.1 / 4 + 4096),
            };
            assert!(many.0 <= steps, "{what}: {few:?} {many:?} values gone over");
            assert!(many.1 <= bytes, "{what}: {few:?} {many:?} bytes allocated");
        }
        database.close().unwrap();
    }

    /// A write that is in a memtable of a frozen state is in the checkpoint's catalog, whatever
    /// became of its keyspace since.
    #[test]
    fn a_keyspace_is_forgotten_by_the_end_of_a_checkpoint_only() {
        let (database, sim) = Options::small().open_simulated();
        sim.settle();
        sim.set_breathing(false);
        let keyspace = database.keyspace("k").unwrap();
        let core = database.core();
        assert!(core.written.ids().is_empty());
        keyspace.put("a", "1").unwrap();
        assert_eq!(core.written.ids(), [keyspace.id()]);
        keyspace.clear().unwrap();
        assert_eq!(core.written.ids(), [keyspace.id()], "cleared");
        keyspace.put("a", "2").unwrap();
        database.checkpoint().unwrap();
        assert!(core.written.ids().is_empty());
        keyspace.put("a", "3").unwrap();
        database.drop_keyspace("k").unwrap();
        assert_eq!(core.written.ids(), [keyspace.id()], "dropped");
        database.default_keyspace().put("b", "1").unwrap();
        database.checkpoint().unwrap();
        assert!(core.written.ids().is_empty());
        database.close().unwrap();
    }
}
