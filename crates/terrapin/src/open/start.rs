//! The start of the engine over what an open found: the first state, the jobs, the replay.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use terrapin_base::{Budget, Env, Error, KeyspaceId, Lsn, Purpose, Result};
use terrapin_disk::Disk;
use terrapin_memtable::{Memtable, Pool};
use terrapin_recordcache::{Collection, RecordCache};
use terrapin_wal::{Log, LogSpace, Replay};

use crate::api::database::Database;
use crate::checkpoint::compaction::Compactor;
use crate::checkpoint::expiry::Expiry;
use crate::checkpoint::fold::FoldJob;
use crate::checkpoint::job::Coordinator;
use crate::checkpoint::merges::Worker;
use crate::checkpoint::request::checkpoint_through;
use crate::disk_space::reclaim::{Reclaim, Watch};
use crate::disk_space::room;
use crate::engine::clock::Clock;
use crate::engine::core::{Core, Install, Parts};
use crate::engine::gate::Gate;
use crate::engine::owner::Owner;
use crate::engine::readers::Readers;
use crate::engine::state::{KeyspaceShared, KeyspaceState, Keyspaces, LoggedMemtable, State};
use crate::keyspaces::schema::DEFAULT_KEYSPACE;
use crate::memory::prefault::Prefault;
use crate::memory::warm_up::WarmUp;
use crate::open::base::Base;
use crate::open::files::Files;
use crate::open::recovery;
use crate::planning::plan::pool_floor_bytes;
use crate::planning::tree_size::TreeSizes;
use crate::types::options::settings::Settings;

/// The most lives of the log that an open leaves as they are. Each life costs an open one file and
/// a few reads.
const LIVES_MAX: usize = 8;

/// What an open has found and made, for [`start`].
pub(super) struct Start<'a> {
    pub(super) settings: Settings,
    pub(super) env: Env,
    pub(super) gate: &'a Arc<Gate>,
    pub(super) path: Option<PathBuf>,
    pub(super) budget: Arc<Budget>,
    pub(super) records: RecordCache,
    pub(super) files: Files,
    pub(super) base: Base,
    /// The readers beside this writer.
    pub(super) readers: Readers,
    pub(super) log: Option<Log>,
    pub(super) replay: Option<Replay>,
    /// Number of lives of which the log has files.
    pub(super) lives: usize,
}

pub(super) fn start(start: Start<'_>) -> Result<Database> {
    let Start {
        settings,
        env,
        gate,
        path,
        budget,
        records,
        files,
        base,
        readers,
        log,
        replay,
        lives,
    } = start;
    let Files {
        store, superblock, ..
    } = files;
    if let Some(log) = &log {
        store.begin_life(log.incarnation());
        budget.take(Purpose::Log, log.memory_bytes());
        log.charge_to(&budget);
        let values = store.clone();
        log.before_sync(move || values.sync_large());
    }
    let pool = Pool::new(&budget, pool_floor_bytes(budget.limit()));
    let mut keyspaces = Keyspaces::default();
    let mut names = std::collections::BTreeMap::new();
    let tree_sizes = Arc::<TreeSizes>::default();
    let mut changed = BTreeSet::new();
    let reserve_groups = base.reserve_groups()?;
    for (number, stored) in (0..).zip(&base.stored) {
        let tree = base.catalog.tree(stored.id);
        if tree.is_none() {
            changed.insert(stored.id);
        }
        let start = base.catalog.applied_of(stored.id);
        let start = start.unwrap_or(base.catalog.applied);
        names.insert(stored.name.clone(), stored.id);
        let unit = settings.merge.group_bytes;
        let named = (&*stored.name, &stored.options);
        let shared = KeyspaceShared::new(stored.id, named, unit, (&tree_sizes, &budget, &store));
        if let Some(tree) = tree {
            // The size serves metrics only. A read that needs an unreadable node reports it.
            let _ = shared.tree_size.begin(&**tree);
        }
        let structure = base.structures.get(stored.options.structure.id())?;
        keyspaces.insert(Arc::new(KeyspaceState {
            id: stored.id,
            shared,
            collection: Collection(number),
            options: stored.options,
            operator: settings.operator_of(&stored.options),
            active: LoggedMemtable::new(start, Memtable::with_pool(&budget, &pool)),
            sealed: None,
            structure: structure.clone(),
            version: tree.map_or_else(|| structure.empty(), Arc::clone),
            spilled: None,
        }));
    }
    let default_keyspace = names
        .get(DEFAULT_KEYSPACE)
        .and_then(|&id| keyspaces.get(id))
        .map(|k| k.shared.clone())
        .ok_or_else(|| {
            let error = Error::corrupt("the catalog lacks the default keyspace");
            base.catalog.place(error, KeyspaceId::DEFAULT)
        })?;
    let position = replay.as_ref().map(|_| base.catalog.durable_through());
    let install = Install {
        names,
        changed,
        next_id: base.catalog.next_id,
        replay: position,
        checkpoint_distance: settings.checkpoint_distance,
    };
    let pin = Some(store.pin(superblock.generation));
    let state = State {
        generation: superblock.generation,
        pin,
        floor: Lsn(0),
        keyspaces,
    };
    let disk: Arc<dyn Disk> = gate.clone();
    let threads = settings.background_threads;
    let core = Core::new(Parts {
        env,
        settings,
        budget,
        records,
        pool,
        disk,
        store,
        structures: base.structures,
        log: log.clone(),
        state,
        tree_sizes,
        install,
        readers,
        clock: Clock::at(base.catalog.last_now_ms),
    });
    core.keep_reserve(reserve_groups);
    core.plan_memory(&core.install.lock());
    let state = core.state.load_full();
    let mut versions = state.keyspaces.iter().map(|keyspace| &keyspace.version);
    if versions.any(|version| version.stored_values().is_some()) {
        core.located();
    }
    core.schedule.committed(base.catalog.durable_through());
    if let Some(error) = &base.unread {
        core.health.damaged(error);
    }
    let owner = Owner::new(core.clone(), gate.clone(), path, default_keyspace);
    let schema_from = base.catalog.applied;
    if let Some(log) = &log {
        owner.run(log.drain_job())?;
        owner.run(Coordinator::job(&core, superblock, base.catalog))?;
        for _ in 1..threads {
            owner.run(Worker::job(&core))?;
        }
        owner.run(Reclaim::job(&core))?;
        owner.run(Prefault::job(&core))?;
        owner.run(WarmUp::job(&core))?;
        if core.settings.range_compaction {
            owner.run(Compactor::job(&core))?;
        }
        owner.run(Watch::job(&core))?;
        owner.run(Expiry::job(&core))?;
        owner.run(Box::new(FoldJob::new(core.clone())))?;
    }
    if log.is_none() {
        let _ = core.log_space.set(LogSpace::of(&*core.disk)?);
    }
    match replay {
        Some(replay) => {
            recovery::replay(&core, replay, schema_from)?;
            if core.has_range_deletes() {
                core.schedule.ask_for_seal();
            }
        }
        None => {
            core.replay_bound.begin(0, 0);
            core.plan_memory(&core.install.lock());
        }
    }
    if let Some(log) = &log {
        shorten_log(&core, log, lives);
    }
    Ok(Database { owner })
}

/// Asks a checkpoint to free the files of the log's earlier lives, if there are many. Processes
/// that end soon never checkpoint. An open therefore waits for that checkpoint if the previous
/// process did not live to do it (decision 0031). The coordinator reports why a checkpoint fails.
/// The database serves calls without it.
fn shorten_log(core: &Core, log: &Log, lives: usize) {
    let is_long = log.metrics().disk_bytes > core.settings.log_bytes_max;
    if lives > LIVES_MAX || (is_long && lives > 1) {
        if let Err(error) = checkpoint_through(core, log.end()) {
            tracing::warn!(%error, lives, "the log keeps the files of earlier lives, since a checkpoint failed");
        }
    } else if is_long && room::has_room(core) {
        // On a full disk, a later open that finds room, or writers, shorten the log. A checkpoint
        // would first take room.
        core.schedule.shorten_log();
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{ErrorKind, Job};

    use super::*;
    use crate::Options;

    /// Most jobs used to report nothing. Their work was not done any more, and only a close
    /// returned the error.
    #[test]
    fn the_panic_of_any_job_is_a_lasting_background_error() {
        let jobs = |core: &Arc<Core>| -> [Box<dyn Job>; 8] {
            [
                Worker::job(core),
                Reclaim::job(core),
                Prefault::job(core),
                WarmUp::job(core),
                Compactor::job(core),
                Watch::job(core),
                Expiry::job(core),
                Box::new(FoldJob::new(core.clone())),
            ]
        };
        for number in 0..8 {
            let (database, _sim) = Options::small().open_simulated();
            let mut all = jobs(database.core());
            let job = &mut all[number];
            job.panicked(Error::internal("on purpose"));
            let is_told = || {
                let error = database.background_error();
                let kind = error.map(|error| error.kind());
                assert_eq!(kind, Some(ErrorKind::Internal), "{}", job.name());
            };
            is_told();
            // A success of other jobs does not clear the error.
            database.default_keyspace().put("a", "1").unwrap();
            database.checkpoint().unwrap();
            is_told();
        }
    }
}
