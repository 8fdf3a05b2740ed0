//! [`Written`]: the keyspaces whose memtables hold a record, or held one lately. Code that visits
//! "all memtables" visits only these. A database with 100,000 keyspaces, ten of them written, then
//! pays for ten.
//!
//! A keyspace is added by the first write into a memtable ([`Written::note`]), before that write
//! enters. The end of a checkpoint removes it if neither of its memtables was written
//! ([`Written::forget_unwritten`]). The memtable's own flag ([`LoggedMemtable::noted`]) spares
//! later writes the lookup. Both changes happen under one mutex. A write that finds the flag set
//! therefore finds its keyspace listed.
//!
//! Invariant: a keyspace with a sealed memtable, or with a record in its active one, is listed.
//! This holds for the current state and for a state that a checkpoint froze. A checkpoint therefore
//! misses none.
//!
//! The limits of memtables depend on the number of keyspaces that write. The plan in force sets
//! them for all listed keyspaces when that number changes, and for any other keyspace at its first
//! write.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrapin_base::KeyspaceId;
use terrapin_base::sync::{Mutex, Ordering};

use crate::engine::state::{KeyspaceState, LoggedMemtable, State};

/// The ids of keyspaces whose memtables hold or lately held a record.
#[derive(Default)]
pub(crate) struct Written(Mutex<BTreeSet<KeyspaceId>>);

impl Written {
    /// The listed ids, ascending.
    pub fn ids(&self) -> Vec<KeyspaceId> {
        self.0.lock().iter().copied().collect()
    }
}

impl Written {
    /// Lists a keyspace before a write enters its memtable. O(log of the number of written
    /// keyspaces), once per memtable.
    #[cold]
    pub fn note(&self, id: KeyspaceId, memtable: &LoggedMemtable) {
        let mut written = self.0.lock();
        written.insert(id);
        // Set under the lock, as `forget_unwritten` requires. A thread that loads `true` finds the
        // id in the set.
        memtable.noted.store(true, Ordering::Release);
    }

    /// The listed keyspaces of a state, in the order of their ids. Some may have no record in a
    /// memtable.
    pub fn noted_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let ids = self.ids();
        ids.into_iter()
            .filter_map(|id| state.keyspaces.get(id))
            .collect()
    }

    /// The keyspaces that have a sealed memtable, or a record in the active one.
    pub fn written_of<'a>(&self, state: &'a State) -> Vec<&'a Arc<KeyspaceState>> {
        let mut written = self.noted_of(state);
        written.retain(|keyspace| keyspace.is_written());
        written
    }

    /// Removes keyspaces without a written memtable in the current state. Only the end of a
    /// checkpoint calls this, under the install lock. A checkpoint relies on finding keyspaces
    /// whose memtables a clear removed after it froze them.
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

    /// The cost of some work: map values visited, and bytes allocated.
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

    /// Creating ten thousand keyspaces took 0.85 s in an empty database and 24.6 s beside 40,000
    /// others. Each creation copied a list of all keyspaces and visited all of them three times.
    #[test]
    fn the_cost_of_one_keyspace_does_not_grow_with_their_number() {
        // Both counts exceed what one leaf of each map holds, so all paths are equally long.
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

    /// A write in a memtable of a frozen state is in the checkpoint's catalog, even if its keyspace
    /// was dropped or cleared since.
    #[test]
    fn only_the_end_of_a_checkpoint_removes_a_written_keyspace() {
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
