//! [`Core`]: the data that every handle, job and view shares.
//!
//! Lock order: `install`, then the log's append lock. Under the append lock, the engine takes no
//! other lock and does not wait. Under `install`, a change of the set of keyspaces waits until
//! earlier writers published. Publishing needs no lock. Reads take neither lock: they load the
//! state, which is replaced as a whole. Writes take the append lock only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use terrapin_base::sync::{AtomicU64, Backoff, Ordering, atomic::fence};

use arc_swap::Guard;
use terrapin_base::sync::Mutex;
use terrapin_base::{Budget, Env, Error, ErrorKind, KeyspaceId, Lsn, Result};
use terrapin_disk::Disk;
use terrapin_memtable::{Memtable, Pool};
use terrapin_pages::PageStore;
use terrapin_recordcache::{Collection, Epoch, RecordCache};
use terrapin_structure::MergeOptions;
use terrapin_wal::{Log, LogSpace};

use crate::engine::backups::Backups;
use crate::engine::clock::{Clock, Ends, Moment};
use crate::engine::compactions::Compactions;
use crate::engine::health::{Health, closed};
use crate::engine::ingests::{Grafted, Ingests};
use crate::engine::large::Orphans;
use crate::engine::locations::Locations;
use crate::engine::readers::Readers;
use crate::engine::schedule::Schedule;
use crate::engine::state::State;
use crate::engine::structures::Structures;
use crate::engine::views::Views;
use crate::engine::written::Written;
use crate::metrics::Counters;
use crate::metrics::stalls::Stalls;
use crate::pacing::patience::Marks;
use crate::pacing::replay::ReplayBound;
use crate::pacing::yielding::Turns;
use crate::planning::cache_split::{CacheSplit, FIRST_PERMILLE};
use crate::planning::disk_state::Refusal;
use crate::planning::plan::{Facts, Plan, plan};
use crate::planning::tree_size::TreeSizes;
use crate::planning::workload::Workload;
use crate::types::options::settings::{RESERVE_GROUPS_MIN, Settings};
use crate::types::options::{CheckpointDistance, KeyspaceOptions};
use terrapin_base::sync::ArcSwap;

/// The engine behind all handles of one open database.
pub(crate) struct Core {
    /// Clock, randomness, jobs.
    pub env: Env,
    /// Options with every default filled in.
    pub settings: Settings,
    /// The one memory budget.
    pub budget: Arc<Budget>,
    /// The database's files.
    pub disk: Arc<dyn Disk>,
    /// The data file.
    pub store: Arc<PageStore>,
    /// Hot records of the trees.
    pub records: RecordCache,
    /// Where separated values are. None while no keyspace has any.
    pub locations: OnceLock<Locations>,
    /// The lowest number that no keyspace's cached records used yet.
    next_collection: AtomicU64,
    /// The division of memory between cached records and cached blocks.
    pub cache_split: CacheSplit,
    /// Compactions of trees, for which ranges pay.
    pub compactions: Compactions,
    /// Sorted ingests.
    pub ingests: Arc<Ingests>,
    /// Memory of freed memtables, for new memtables.
    pub pool: Arc<Pool>,
    /// The structures of keyspaces, by number.
    pub structures: Structures,
    /// The most page groups that a keyspace ever needed in the reserve.
    reserve_groups: AtomicU64,
    /// The log. None when the database is open for reading only.
    pub log: Option<Log>,
    /// The LSN at which a read-only replay ended. [`Core::visible`] returns it when there is no
    /// log.
    pub replayed: AtomicU64,
    /// The current state. Only [`Core::replace_state`] replaces it.
    pub state: ArcSwap<State>,
    /// Now, for deadlines.
    pub clock: Clock,
    /// Odd while a thread replaces the state. Each replacement ends with a new even number.
    state_epoch: AtomicU64,
    /// The lock of threads that replace the state, and the data that only they need.
    pub install: Mutex<Install>,
    /// Requests to the jobs, and the jobs' progress.
    pub schedule: Arc<Schedule>,
    /// Registered views: snapshots and iterators.
    pub views: Views,
    /// What running backups keep from reuse.
    pub backups: Backups,
    /// Readers in other processes.
    pub readers: Readers,
    /// Large pages that the next checkpoint releases.
    pub orphans: Orphans,
    /// The keyspaces whose memtables were written.
    pub written: Written,
    /// The sizes of all trees.
    pub tree_sizes: Arc<TreeSizes>,
    /// An always empty memtable. Views hold it in place of memtables that left memory.
    pub no_memtable: Arc<Memtable>,
    /// The kind of workload that users run.
    pub workload: Workload,
    /// The plan by which memory is shared now.
    pub plan_in_force: Mutex<Plan>,
    /// The order in which paced writers take turns.
    pub turns: Turns,
    /// The value of [`Core::memtable_memory_high`]. The engine sets it when it sets memtable
    /// limits.
    pub memtable_memory_high: AtomicU64,
    /// What was true when the disk last became full.
    pub refusal: Mutex<Refusal>,
    /// Deadlines that writes missed, and the progress that they missed it for.
    pub marks: Marks,
    /// How much log the next open may have to replay.
    pub replay_bound: ReplayBound,
    /// Writes that have stalled, for events.
    pub stalls: Stalls,
    /// Counters and histograms behind `metrics()`.
    pub counters: Counters,
    /// Whether the database is open, its background errors, and their listeners.
    pub health: Health,
    /// Disk space of the log's files, for a database that is open for reading only. The files do
    /// not change meanwhile.
    pub log_space: OnceLock<LogSpace>,
}

/// Data that only changes of the state need, under the install lock.
pub(crate) struct Install {
    /// Ids of the keyspaces by name.
    pub names: BTreeMap<Box<str>, KeyspaceId>,
    /// Keyspaces that were created, dropped, cleared or reconfigured since a checkpoint last took
    /// this set. The next catalog writes their entries, besides those of merged keyspaces.
    pub changed: BTreeSet<KeyspaceId>,
    /// The next keyspace's number. Every lower number belongs, or belonged, to a keyspace.
    pub next_id: u32,
    /// Set during replay: every record below this LSN is in the memtables. Seals use this LSN
    /// instead of the log's end.
    pub replay: Option<Lsn>,
    /// χ of keyspaces that have no χ of their own.
    pub checkpoint_distance: CheckpointDistance,
}

/// The parts from which an open builds a [`Core`]. The fields are those of [`Core`].
pub(crate) struct Parts {
    pub env: Env,
    pub settings: Settings,
    pub budget: Arc<Budget>,
    pub records: RecordCache,
    pub pool: Arc<Pool>,
    pub disk: Arc<dyn Disk>,
    pub store: Arc<PageStore>,
    pub structures: Structures,
    pub log: Option<Log>,
    pub state: State,
    pub tree_sizes: Arc<TreeSizes>,
    pub install: Install,
    pub readers: Readers,
    pub clock: Clock,
}

/// A state and the epoch at which it was loaded, for [`Core::still_current`].
pub(crate) struct Loaded {
    state: Guard<Arc<State>>,
    epoch: u64,
}

impl std::ops::Deref for Loaded {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

/// A state, and an LSN bound below which the state covers every published record.
pub(crate) struct Observed {
    /// The state. Dropping it may free memtables and release pages.
    pub state: Guard<Arc<State>>,
    /// Exclusive LSN bound of what the reader sees.
    pub before: Lsn,
    /// Now, for deadlines. It was taken first.
    pub now_ms: u64,
}

impl Observed {
    /// What a read of the state sees. `ends` learns the deadlines that it meets.
    #[inline]
    pub fn moment<'a>(&self, ends: Option<&'a Ends>) -> Moment<'a> {
        Moment::of(self.before, (self.now_ms, ends))
    }
}

impl Core {
    /// Builds a core in its first state.
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            env,
            settings,
            budget,
            records,
            pool,
            disk,
            store,
            structures,
            log,
            state,
            tree_sizes,
            install,
            readers,
            clock,
        } = parts;
        let collections = state
            .keyspaces
            .iter()
            .map(|k| u64::from(k.collection.0) + 1);
        let next_collection = collections.max().unwrap_or(0);
        let distance = install.checkpoint_distance;
        let facts = Facts::at_open(budget.limit(), settings.merge.group_bytes, distance);
        let plan = plan(&facts);
        if settings.record_cache {
            records.set_share(FIRST_PERMILLE);
        }
        let no_memtable = Arc::new(Memtable::new(&budget));
        let replay_bound = ReplayBound::new(
            settings.recovery_target_ns,
            settings.merge.group_bytes,
            settings.log_bytes_max,
        );
        Arc::new(Core {
            env,
            settings,
            budget,
            disk,
            store,
            records,
            locations: OnceLock::new(),
            next_collection: AtomicU64::new(next_collection),
            cache_split: CacheSplit::default(),
            compactions: Compactions::default(),
            ingests: Arc::default(),
            pool,
            structures,
            reserve_groups: AtomicU64::new(RESERVE_GROUPS_MIN),
            log,
            replayed: AtomicU64::new(0),
            state: ArcSwap::from_pointee(state),
            clock,
            state_epoch: AtomicU64::new(0),
            install: Mutex::new(install),
            schedule: Arc::default(),
            views: Views::default(),
            backups: Backups::default(),
            readers,
            orphans: Orphans::default(),
            written: Written::default(),
            tree_sizes,
            no_memtable,
            workload: Workload::default(),
            plan_in_force: Mutex::new(plan),
            turns: Turns::default(),
            memtable_memory_high: AtomicU64::new(plan.seal_early_bytes),
            refusal: Mutex::default(),
            marks: Marks::default(),
            replay_bound,
            stalls: Stalls::default(),
            counters: Counters::default(),
            health: Health::default(),
            log_space: OnceLock::new(),
        })
    }

    /// How a merge of a keyspace's tree writes. `space_is_short`: whether it writes from the
    /// reserve. It drops what has expired by now.
    pub fn merge_of(&self, options: &KeyspaceOptions, space_is_short: bool) -> MergeOptions {
        MergeOptions {
            now_ms: self.clock.now(&self.env),
            ..self.settings.merge_of(options, space_is_short)
        }
    }

    /// The map of separated values, which is made now.
    pub fn located(&self) -> &Locations {
        let new = || Locations::new(&self.budget, self.env.random());
        self.locations.get_or_init(new)
    }

    /// A new number for the cached records of a keyspace that is new or was just emptied.
    pub fn new_collection(&self) -> Collection {
        let next = self.next_collection.fetch_add(1, Ordering::Relaxed);
        Collection(u32::try_from(next).unwrap_or(u32::MAX))
    }

    /// Notes that cached records did not serve a read.
    #[inline]
    pub fn missed_records(&self) {
        if self.cache_split.missed() {
            self.store.reclaim_signal().notify();
        }
    }

    /// Offers a record that a get found in a tree to the record cache. New records take memory from
    /// the block cache. This call shrinks the block cache, which would otherwise notice at its next
    /// insert only.
    pub fn keep(&self, epoch: Epoch, collection: Collection, key: &[u8], hash: u64, value: &[u8]) {
        self.counters.tree_gets.add(1);
        self.records.fill(epoch, collection, key, hash, value);
        if self.store.shrink_needed() {
            self.store.shrink();
        }
    }

    /// Notes that a range begins. Ranges do not use the record cache.
    pub fn range_begins(&self) {
        self.counters.scans.add(1);
        // The block cache may need memory that the record cache holds beyond its share.
        if self.cache_split.ranged() || self.records.over_target() {
            self.store.reclaim_signal().notify();
        }
    }

    /// Creates an empty memtable, in pooled memory as far as the pool has any.
    pub fn new_memtable(&self) -> Memtable {
        Memtable::with_pool(&self.budget, &self.pool)
    }

    /// The most page groups that a keyspace ever needed in the reserve.
    pub fn reserve_groups(&self) -> u64 {
        self.reserve_groups.load(Ordering::Relaxed)
    }

    /// Keeps a reserve of at least `groups` page groups from now on (D10).
    pub fn keep_reserve(&self, groups: u64) {
        self.reserve_groups.fetch_max(groups, Ordering::Relaxed);
        self.store
            .raise_reserve(self.settings.reserve_bytes(groups));
    }

    /// The bound below which every record is published.
    #[inline]
    pub fn visible(&self) -> Lsn {
        match &self.log {
            Some(log) => log.visible(),
            None => Lsn(self.replayed.load(Ordering::Acquire)),
        }
    }

    /// Bytes of log that an open would replay now: from the smallest applied LSN on.
    #[inline]
    pub fn replay_bytes(&self) -> u64 {
        let end = match &self.log {
            Some(log) => log.tail().0,
            None => self.replayed.load(Ordering::Acquire),
        };
        end.saturating_sub(self.schedule.durable_through().0)
    }

    /// The log. Fails with [`ErrorKind::ReadOnly`] if the database is open for reading only.
    #[inline]
    pub fn log(&self) -> Result<&Log> {
        self.log
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the database is open for reading only"))
    }

    /// [`Core::observe`], out of line: for callers whose own copy would keep the compiler from
    /// inlining it in gets.
    #[inline(never)]
    pub fn observe_apart(&self) -> Result<Observed> {
        self.observe()
    }

    /// Loads a state and a bound such that the state holds every published record below the bound.
    /// The state is still current after the bound was read. Memtables of later states therefore own
    /// LSNs at or above the bound only. Lock-free. Repeats if a seal or a commit intervenes.
    #[inline(always)]
    pub fn observe(&self) -> Result<Observed> {
        self.health.check_open()?;
        // First: a value that was put later may count as live although its deadline has come, as
        // it did in between. The other way round, one that was replaced in time would be missing.
        let now_ms = self.clock.now(&self.env);
        let mut backoff = Backoff::default();
        loop {
            let epoch = self.state_epoch.load(Ordering::Acquire);
            let state = self.state.load();
            let before = self.visible();
            fence(Ordering::Acquire);
            let unchanged =
                epoch.is_multiple_of(2) && self.state_epoch.load(Ordering::Relaxed) == epoch;
            if unchanged && before >= state.floor {
                return Ok(Observed {
                    state,
                    before,
                    now_ms,
                });
            }
            // Another thread is storing a state, or a clear is between its append and its
            // publication. The clear waits only for writers before its LSN.
            backoff.pause();
        }
    }

    /// Loads the current state together with its epoch, for a later [`Core::still_current`].
    #[inline]
    pub fn load_state(&self) -> Loaded {
        let epoch = self.state_epoch.load(Ordering::Acquire);
        Loaded {
            state: self.state.load(),
            epoch,
        }
    }

    /// Returns the loaded state if it is still current, otherwise the state that replaced it. A
    /// seal stores its epoch under the append lock. A caller that held the append lock after the
    /// seal therefore sees the seal.
    #[inline]
    pub fn still_current(&self, loaded: Loaded) -> Guard<Arc<State>> {
        let epoch = self.state_epoch.load(Ordering::Acquire);
        if epoch == loaded.epoch && epoch.is_multiple_of(2) {
            return loaded.state;
        }
        drop(loaded);
        self.state.load()
    }

    /// Ends all ingests with [`ErrorKind::Closed`], before a close merges all memtables.
    pub fn end_ingests(&self) {
        for ready in self.ingests.close() {
            self.store.abandon(ready.changes);
            ready.outcome.set(Grafted::Failed(closed()));
        }
        self.schedule.end_rest();
        self.schedule.progress().notify();
    }

    /// The error for a keyspace that is missing from the state. Either the keyspace was dropped, or
    /// the database was closed, which empties the state.
    #[cold]
    pub fn dropped(&self) -> Error {
        match self.health.check_open() {
            Ok(()) => Error::new(ErrorKind::KeyspaceNotFound, "the keyspace was dropped"),
            Err(closed) => closed,
        }
    }

    /// Makes `state` the current state and returns the previous one. Dropping the previous state
    /// may free much memory, so the caller drops it outside locks. The caller holds `install`.
    pub fn replace_state(&self, state: State) -> Arc<State> {
        self.state_epoch.fetch_add(1, Ordering::SeqCst);
        let last = self.state.swap(Arc::new(state));
        self.state_epoch.fetch_add(1, Ordering::SeqCst);
        last
    }
}
