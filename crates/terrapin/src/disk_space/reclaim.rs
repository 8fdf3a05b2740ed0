//! Two jobs that clean up. [`Reclaim`] returns free space of the data file to the file system,
//! shrinks the caches to their shares, and gives spare memtable memory to reads while no memtable
//! is merged. [`Watch`] reports at once when the log fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, Job, KeyspaceId, Result, Step, mutant};

use crate::engine::compactions::{Stretches, Work};
use crate::engine::core::Core;
use crate::engine::locations::Locations;

/// The rest after a failure to return space, in nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// After the job returned space for one nanosecond, it rests for this many, since reads of the data
/// file wait while space is returned. Without reads there is no rest: only merges wait then, and
/// the next merge takes less additional space if the job is done early.
const REST_SHARE: u64 = 32;

/// After this time without a commit, no free space is kept for the next checkpoint, in nanoseconds.
const QUIET_NS: u64 = 2_000_000_000;

/// Time between two looks at readers in other processes, in nanoseconds.
const READERS_NS: u64 = 1_000_000_000;

/// After this many looks at the cache split without a checkpoint, the next memtable keeps no memory
/// that caches want.
const QUIET_LOOKS: u32 = 8;

/// The job that returns free space and spare memory.
pub(crate) struct Reclaim {
    core: Arc<Core>,
    /// The number of checkpoints at the last step.
    checkpoints: u64,
    /// Looks at the cache split ([`crate::planning::cache_split`]) since the last checkpoint.
    looks: u32,
    /// The time from which the absence of checkpoints counts as quiet. None once it did.
    quiet_at: Option<u64>,
    /// The job returns no space before this time.
    resting_until: u64,
    /// Number of gets and ranges when the job last returned space.
    reads: u64,
    waste: Waste,
}

/// What trees keep until nobody writes: waste, or records that wait
/// ([`Compacts::to_reclaim`](terrapin_structure::Compacts::to_reclaim)).
///
/// Compactions that only make reads cheaper merge no more bytes than users wrote into the keyspace
/// since the open. So a writer that pauses often pays at most one byte more for each of its own.
#[derive(Default)]
struct Waste {
    asked: BTreeMap<KeyspaceId, Asked>,
}

/// The compactions of a tree that were asked for.
#[derive(Default)]
struct Asked {
    /// The tree's waste at the last one; `None` if there was little since.
    waste_bytes: Option<u64>,
    /// Bytes that all of them merged for reads.
    merged_bytes: u64,
}

impl Waste {
    /// Asks for a compaction where a tree has much waste. A tree whose last compaction freed
    /// nothing, because of damage for example, waits until its waste changes.
    fn ask(&mut self, core: &Core) {
        let is_busy = core.schedule.sealed_count() > 0 || core.compactions.is_any_asked();
        if is_busy || mutant::active("idle-trees-keep-waste") {
            return;
        }
        let state = core.state.load_full();
        self.asked
            .retain(|id, _| state.keyspaces.get(*id).is_some());
        for keyspace in state.keyspaces.iter() {
            let Some(compacts) = keyspace.structure.compacts() else {
                continue;
            };
            let asked = self.asked.entry(keyspace.id).or_default();
            let written = keyspace.shared.counters.user_bytes_written();
            let bytes_max = written.saturating_sub(asked.merged_bytes);
            // A compaction or a read that meets the damage reports it.
            let Ok(Some(found)) = compacts.to_reclaim(&keyspace.version, bytes_max) else {
                asked.waste_bytes = None;
                continue;
            };
            if asked.waste_bytes.replace(found.waste_bytes) == Some(found.waste_bytes) {
                continue;
            }
            let stretches = Stretches {
                keyspace: keyspace.id,
                span: (found.from, found.to),
                work: Work::Buffers,
            };
            if core.compactions.ask(stretches) {
                asked.merged_bytes = asked.merged_bytes.saturating_add(found.merged_bytes);
                core.schedule.work().notify();
            }
            return;
        }
    }
}

impl Reclaim {
    /// The job of a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Reclaim::new(core))
    }

    fn new(core: &Arc<Core>) -> Self {
        Reclaim {
            core: core.clone(),
            checkpoints: core.counters.checkpoints.get(),
            looks: 0,
            quiet_at: None,
            resting_until: 0,
            reads: 0,
            waste: Waste::default(),
        }
    }

    /// Gives the pool's memory to the caches, as far as they want it, once users only read for some
    /// looks and no memtable was merged.
    fn release_pool(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks == QUIET_LOOKS {
            self.core.release_pool();
        }
    }

    /// Notes new checkpoints. After two seconds without one, frees the space that was kept for the
    /// next checkpoint, and the log's spare files.
    fn listen(&mut self, now_ns: u64) {
        let core = &self.core;
        let checkpoints = core.counters.checkpoints.get();
        if self.checkpoints != checkpoints {
            self.checkpoints = checkpoints;
            self.looks = 0;
            self.quiet_at = Some(now_ns.saturating_add(QUIET_NS));
        }
        if self.quiet_at.is_some_and(|at| now_ns >= at) {
            if core.schedule.running().is_some() {
                self.quiet_at = Some(now_ns.saturating_add(QUIET_NS));
            } else {
                self.quiet_at = None;
                core.store.begin_reclaim();
                self.waste.ask(core);
                if let Some(Err(error)) = core.log.as_ref().map(|log| log.rest()) {
                    core.health.report(&error);
                }
            }
        }
    }

    /// Returns one piece of space to the file system, unless the job rests. Returns whether there
    /// may be more to do at once.
    fn give_back(&mut self, now_ns: u64) -> Result<bool> {
        let core = &self.core;
        if now_ns < self.resting_until {
            // No read waits for this step. Cached blocks of freed pages would otherwise keep
            // memory from other blocks.
            return Ok(core.store.purge_step());
        }
        let before = core.store.reclaimed_bytes();
        let more = core.store.reclaim_step()?;
        if core.store.reclaimed_bytes() != before {
            let ended_ns = core.env.now_ns();
            let took = ended_ns.saturating_sub(now_ns);
            let reads = core.counters.gets.get() + core.counters.scans.get();
            if std::mem::replace(&mut self.reads, reads) != reads {
                self.resting_until = ended_ns.saturating_add(took.saturating_mul(REST_SHARE));
            }
        }
        Ok(more)
    }

    /// The condition that ends a pause without work.
    fn rest(&self) -> Step {
        let core = self.core.clone();
        let now_ns = core.env.now_ns();
        let (checkpoints, resting) = (self.checkpoints, self.resting_until > now_ns);
        let has_readers = core.readers.is_any();
        let signal = core.store.reclaim_signal().clone();
        let condition = Condition::new(&signal, move || {
            core.schedule.is_stopping()
                || core.store.purge_needed()
                || !resting && core.store.reclaim_needed()
                || core.counters.checkpoints.get() != checkpoints
                || core.records.over_target()
                || core.locations.get().is_some_and(Locations::wants_step)
                || core.settings.record_cache && core.cache_split.is_due()
        });
        let resting_until = resting.then_some(self.resting_until);
        let readers_at = has_readers.then(|| now_ns.saturating_add(READERS_NS));
        let until = [self.quiet_at, resting_until, readers_at];
        let until = until.into_iter().flatten().min();
        Step::Pending(match until {
            Some(until_ns) => condition.until(until_ns),
            None => condition,
        })
    }
}

impl Job for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn step(&mut self) -> Step {
        let core = self.core.clone();
        if core.schedule.is_stopping() {
            return Step::Done;
        }
        let now_ns = core.env.now_ns();
        self.listen(now_ns);
        let age_ns_max = core.settings.reader_age_ns_max;
        core.readers.look(&core.store, now_ns, age_ns_max);
        if core.split_caches() {
            self.release_pool();
            return Step::Again;
        }
        if core.records.shrink_step() {
            return Step::Again;
        }
        if core
            .locations
            .get()
            .is_some_and(|map| map.wants_step() && map.step())
        {
            return Step::Again;
        }
        match self.give_back(now_ns) {
            Ok(true) => Step::Again,
            Ok(false) => self.rest(),
            Err(error) if error.kind() == ErrorKind::Poisoned => self.rest(),
            Err(error) => {
                core.health.report(&error);
                let schedule = core.schedule.clone();
                let stopped =
                    Condition::new(core.store.reclaim_signal(), move || schedule.is_stopping());
                Step::Pending(stopped.until(now_ns.saturating_add(REST_NS)))
            }
        }
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

/// The job that waits for a failure of the log and reports it.
pub(crate) struct Watch {
    core: Arc<Core>,
}

impl Watch {
    /// The job of a core.
    pub fn job(core: &Arc<Core>) -> Box<dyn Job> {
        Box::new(Watch { core: core.clone() })
    }

    fn failure(core: &Core) -> Option<Error> {
        core.log.as_ref().and_then(|log| log.failed())
    }
}

impl Job for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn step(&mut self) -> Step {
        if self.core.schedule.is_stopping() {
            return Step::Done;
        }
        if let Some(error) = Self::failure(&self.core) {
            self.core.health.log_failed(&error);
            self.core.schedule.failed(&error);
            // Writers that wait for a merge look again and get the error.
            self.core.schedule.released();
            return Step::Done;
        }
        let Some(log) = &self.core.log else {
            return Step::Done;
        };
        let core = self.core.clone();
        Step::Pending(Condition::new(log.failure_signal(), move || {
            core.schedule.is_stopping() || Self::failure(&core).is_some()
        }))
    }

    fn panicked(&mut self, error: Error) {
        self.core.health.job_died(&error);
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Purpose;

    use super::*;
    use crate::Options;

    /// The job rests between pieces of space. The cache used to keep blocks of freed pages for as
    /// long.
    #[test]
    fn blocks_of_freed_pages_leave_the_cache_while_the_job_rests() {
        let (database, sim) = Options::new().memory(8 << 20).open_simulated();
        let keyspace = database.default_keyspace();
        let core = &database.owner.core;
        let overwrite = |value: u8| {
            for number in 0..2000_u32 {
                keyspace.put(number.to_be_bytes(), [value; 500]).unwrap();
            }
            database.checkpoint().unwrap();
        };
        overwrite(0);
        let snapshot = database.snapshot().unwrap();
        overwrite(1);
        assert_eq!(snapshot.iter(&keyspace).count(), 2000);
        sim.settle();
        sim.set_breathing(false);
        drop(snapshot);
        core.store.begin_reclaim();
        assert!(core.store.purge_needed());
        let mut reclaim = Reclaim {
            resting_until: u64::MAX,
            ..Reclaim::new(core)
        };
        let before = core.budget.used(Purpose::Blocks);
        let given_back = core.store.reclaimed_bytes();
        while reclaim.give_back(core.env.now_ns()).unwrap() {}
        assert!(!core.store.purge_needed());
        let after = core.budget.used(Purpose::Blocks);
        assert!(after < before, "{after} of {before} bytes");
        assert_eq!(core.store.reclaimed_bytes(), given_back);
        database.close().unwrap();
    }
}
