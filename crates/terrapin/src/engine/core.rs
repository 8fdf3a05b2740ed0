//! What every handle, job and view shares: [`Core`].
//!
//! Locks: `install` comes before the log's append lock; nothing else is taken under the latter, and
//! no wait happens under it. Under the former a change of the set of keyspaces waits for earlier
//! writers to publish, who need no lock for that. Reads of records take neither, and writes the
//! append lock only: they load the state, which is replaced as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use terrapin_base::sync::{AtomicBool, AtomicU64, Backoff, Ordering, atomic::fence};

use arc_swap::Guard;
use terrapin_base::sync::Mutex;
use terrapin_base::{Budget, Env, Error, ErrorKind, KeyspaceId, Lsn, Result, mutant};
use terrapin_disk::Disk;
use terrapin_memtable::{Memtable, Pool};
use terrapin_pages::PageStore;
use terrapin_recordcache::{Collection, Epoch, RecordCache};
use terrapin_structure::Structure;
use terrapin_wal::{Log, LogSpace};

use crate::checkpoint::Schedule;
use crate::checkpoint::compaction::Compactions;
use crate::engine::health::Health;
use crate::engine::state::{KeyspaceState, LoggedMemtable, SealedMemtable, State};
use crate::engine::swap::ArcSwap;
use crate::engine::view::Views;
use crate::keyspaces::written::Written;
use crate::memory::cache_split::{CacheSplit, FIRST_PERMILLE};
use crate::memory::plan::{Facts, Plan, plan};
use crate::memory::tree_size::TreeSizes;
use crate::memory::workload::Workload;
use crate::metrics::Counters;
use crate::metrics::stalls::Stalls;
use crate::types::options::{CheckpointDistance, Settings};
use crate::write::patience::Marks;
use crate::write::yielding::Turns;

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
    /// The first number that no keyspace's cached records had yet.
    next_collection: AtomicU64,
    /// How cached records and cached blocks share memory.
    pub cache_split: CacheSplit,
    /// Of trees, for ranges.
    pub compactions: Compactions,
    /// Memory of memtables that are gone, for the next ones.
    pub pool: Arc<Pool>,
    /// The structure of every keyspace.
    pub structure: Arc<dyn Structure>,
    /// The log; none when the database is open for reading only.
    pub log: Option<Log>,
    /// Where a read-only replay ended; what [`Core::visible`] says without a log.
    pub replayed: AtomicU64,
    /// The current state. Replaced by [`Core::replace_state`] only.
    pub state: ArcSwap<State>,
    /// Odd while the state is being replaced, and another even number afterwards.
    state_epoch: AtomicU64,
    /// Held by whoever replaces the state.
    pub install: Mutex<Install>,
    /// What the jobs are asked for, and how far they are.
    pub schedule: Arc<Schedule>,
    /// Registered views: snapshots and iterators.
    pub views: Views,
    /// Which keyspaces have memtables that were written.
    pub written: Written,
    /// What all trees hold.
    pub tree_sizes: Arc<TreeSizes>,
    /// What views have in the place of memtables that are gone. It is always empty.
    pub no_memtable: Arc<Memtable>,
    /// What users mostly do.
    pub workload: Workload,
    /// The plan that memory is shared by.
    pub plan_in_force: Mutex<Plan>,
    /// Whose turn it is among writers.
    pub turns: Turns,
    /// What [`Core::memtable_memory_high`] says: set as memtables are given their limits.
    pub memtable_memory_high: AtomicU64,
    /// Bytes that small memtables of all who wrote would have come to when puts were refused last.
    pub refused_memtable_bytes: AtomicU64,
    /// [`Core::room`] when the disk was found full last.
    pub refused_room_bytes: AtomicU64,
    /// What puts are refused for is a quota, not a full disk.
    pub meets_quota: AtomicBool,
    /// What writes waited for in vain.
    pub marks: Marks,
    /// Writes that have stopped, for events.
    pub stalls: Stalls,
    /// Counters and histograms behind `metrics()`.
    pub counters: Counters,
    /// Closed, failed, and whom to tell.
    pub health: Health,
    /// Of a database that is read only, what the files of its log take: nobody changes them
    /// meanwhile.
    pub log_space: OnceLock<LogSpace>,
}

/// What only changes of the state need.
pub(crate) struct Install {
    /// The keyspaces by name.
    pub names: BTreeMap<Box<str>, KeyspaceId>,
    /// Keyspaces that were created, dropped, cleared or given options since a checkpoint took this:
    /// what the next catalog says anew, besides what the checkpoint merges.
    pub changed: BTreeSet<KeyspaceId>,
    /// The next keyspace's number; numbers below belong, or belonged, to some keyspace.
    pub next_id: u32,
    /// While the log is replayed: everything below is in the memtables. Seals are made here, not at
    /// the log's end.
    pub replay: Option<Lsn>,
    /// χ of keyspaces without one of their own.
    pub checkpoint_distance: CheckpointDistance,
}

/// A state, and when it was loaded: see [`Core::still_current`].
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

/// A state, and the bound below which it covers every published record.
pub(crate) struct Observed {
    /// The state; dropping it may free memtables and let pages go.
    pub state: Guard<Arc<State>>,
    /// Exclusive LSN bound of what this view sees.
    pub before: Lsn,
}

impl Core {
    /// A core in its first state.
    #[allow(clippy::too_many_arguments)] // called in one place, and every argument is a field
    pub fn new(
        env: Env,
        settings: Settings,
        budget: Arc<Budget>,
        records: RecordCache,
        pool: Arc<Pool>,
        disk: Arc<dyn Disk>,
        store: Arc<PageStore>,
        structure: Arc<dyn Structure>,
        log: Option<Log>,
        state: State,
        tree_sizes: Arc<TreeSizes>,
        install: Install,
    ) -> Arc<Self> {
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
        Arc::new(Core {
            env,
            settings,
            budget,
            disk,
            store,
            records,
            next_collection: AtomicU64::new(next_collection),
            cache_split: CacheSplit::default(),
            compactions: Compactions::default(),
            pool,
            structure,
            log,
            replayed: AtomicU64::new(0),
            state: ArcSwap::from_pointee(state),
            state_epoch: AtomicU64::new(0),
            install: Mutex::new(install),
            schedule: Arc::default(),
            views: Views::default(),
            written: Written::default(),
            tree_sizes,
            no_memtable,
            workload: Workload::default(),
            plan_in_force: Mutex::new(plan),
            turns: Turns::default(),
            memtable_memory_high: AtomicU64::new(plan.seal_early_bytes),
            refused_memtable_bytes: AtomicU64::new(0),
            refused_room_bytes: AtomicU64::new(0),
            meets_quota: AtomicBool::new(false),
            marks: Marks::default(),
            stalls: Stalls::default(),
            counters: Counters::default(),
            health: Health::default(),
            log_space: OnceLock::new(),
        })
    }

    /// What the cached records of a keyspace that is new, or empty from now on, go by.
    pub fn new_collection(&self) -> Collection {
        let next = self.next_collection.fetch_add(1, Ordering::Relaxed);
        Collection(u32::try_from(next).unwrap_or(u32::MAX))
    }

    /// A read was not served by cached records.
    #[inline]
    pub fn missed_records(&self) {
        if self.cache_split.missed() {
            self.store.reclaim_signal().notify();
        }
    }

    /// Keeps what a get found in a tree. Records that come in take the memory of blocks, which
    /// would learn of it at their next insert only.
    pub fn keep(&self, epoch: Epoch, collection: Collection, key: &[u8], hash: u64, value: &[u8]) {
        self.counters.tree_gets.add(1);
        self.records.fill(epoch, collection, key, hash, value);
        if self.store.shrink_needed() {
            self.store.shrink();
        }
    }

    /// A range begins, which asks no cached records.
    pub fn range_begins(&self) {
        self.counters.scans.add(1);
        // Blocks may have come to want what records have beyond their share.
        if self.cache_split.ranged() || self.records.over_target() {
            self.store.reclaim_signal().notify();
        }
    }

    /// An empty memtable, in recycled memory as far as there is any.
    pub fn new_memtable(&self) -> Memtable {
        Memtable::with_pool(&self.budget, &self.pool)
    }

    /// Every record that starts below is published.
    #[inline]
    pub fn visible(&self) -> Lsn {
        match &self.log {
            Some(log) => log.visible(),
            None => Lsn(self.replayed.load(Ordering::Acquire)),
        }
    }

    /// The log, or [`ErrorKind::ReadOnly`].
    #[inline]
    pub fn log(&self) -> Result<&Log> {
        self.log
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the database is open for reading only"))
    }

    /// A state and a bound such that the state's memtables and versions hold every published record
    /// below the bound: the state was still current when the bound was read, so what a later
    /// state's memtables own starts at or above it. Lock-free; repeats when a seal or commit comes
    /// in between.
    #[inline]
    pub fn observe(&self) -> Result<Observed> {
        self.health.check_open()?;
        let mut backoff = Backoff::default();
        loop {
            let epoch = self.state_epoch.load(Ordering::Acquire);
            let state = self.state.load();
            let before = self.visible();
            fence(Ordering::Acquire);
            let unchanged =
                epoch.is_multiple_of(2) && self.state_epoch.load(Ordering::Relaxed) == epoch;
            if unchanged && before >= state.floor {
                return Ok(Observed { state, before });
            }
            // A state is being stored, or a clear is between its append and its publication, which
            // waits for writers before it only.
            backoff.pause();
        }
    }

    /// The current state, for who will want it again soon.
    #[inline]
    pub fn load_state(&self) -> Loaded {
        let epoch = self.state_epoch.load(Ordering::Acquire);
        Loaded {
            state: self.state.load(),
            epoch,
        }
    }

    /// A state that was loaded before, if no other has replaced it, or the one that did. A seal
    /// that the caller has come after is seen: its epoch was stored under the append lock, which
    /// the caller has held since.
    #[inline]
    pub fn still_current(&self, loaded: Loaded) -> Guard<Arc<State>> {
        let epoch = self.state_epoch.load(Ordering::Acquire);
        if epoch == loaded.epoch && epoch.is_multiple_of(2) {
            return loaded.state;
        }
        drop(loaded);
        self.state.load()
    }

    /// Why a keyspace is not in the state: it was dropped, or the database was closed, which
    /// empties the state.
    #[cold]
    pub fn dropped(&self) -> Error {
        match self.health.check_open() {
            Ok(()) => Error::new(ErrorKind::KeyspaceNotFound, "the keyspace was dropped"),
            Err(closed) => closed,
        }
    }

    /// Makes a state the current one and returns the last, whose end may free much: drop it where
    /// that does no harm. The caller holds `install`.
    pub fn replace_state(&self, state: State) -> Arc<State> {
        self.state_epoch.fetch_add(1, Ordering::SeqCst);
        let last = self.state.swap(Arc::new(state));
        self.state_epoch.fetch_add(1, Ordering::SeqCst);
        last
    }

    /// Seals the active memtables of the keyspaces that `choose` names and that have no sealed one,
    /// all at one LSN. Returns the state that this makes (the current one if nothing was chosen),
    /// the LSN, and how much of the log must be visible for everything below the LSN to be in its
    /// memtable.
    pub fn seal(&self, install: &mut Install, choose: impl Fn(&KeyspaceState) -> bool) -> SealMade {
        let current = self.state.load_full();
        let chosen: Vec<_> = self
            .noted_of(&current)
            .into_iter()
            .filter(|k| k.sealed.is_none() && choose(k))
            .map(|k| (k.clone(), self.new_memtable()))
            .collect();
        let sealed: Vec<_> = chosen
            .iter()
            .map(|(k, _)| (k.shared.clone(), k.active.clone()))
            .collect();
        let count = chosen.len();
        let store = |lsn: Lsn| {
            if count == 0 {
                return None;
            }
            let mut keyspaces = current.keyspaces.clone();
            for (keyspace, memtable) in chosen {
                let mut next = (*keyspace).clone();
                next.sealed = Some(SealedMemtable {
                    records: next.active,
                    seal: lsn,
                });
                next.active = LoggedMemtable::new(lsn, memtable);
                keyspaces.insert(Arc::new(next));
            }
            let next = State {
                generation: current.generation,
                pin: current.pin.clone(),
                floor: current.floor,
                keyspaces,
            };
            Some(self.replace_state(next))
        };
        let (last, lsn, publish_to) = match (install.replay, &self.log) {
            (None, Some(log)) => {
                let (last, mut seal) = log.boundary(store);
                if mutant::active("applied-lsn-past-seal") {
                    seal.lsn = Lsn(seal.lsn.0 + 1);
                }
                (last, seal.lsn, seal.publish_to)
            }
            (Some(position), _) => (store(position), position, Lsn(0)),
            (None, None) => {
                let end = self.visible();
                (store(end), end, end)
            }
        };
        drop(last);
        let now_ns = self.env.now_ns();
        for (shared, _) in &sealed {
            shared.forecast.sealed(now_ns);
        }
        if count > 0 {
            self.learn_from_sealed(sealed.into_iter());
            self.schedule.sealed(count);
        }
        SealMade {
            state: self.state.load_full(),
            lsn,
            publish_to,
        }
    }
}

/// What [`Core::seal`] came to.
pub(crate) struct SealMade {
    /// The state right after the seal.
    pub state: Arc<State>,
    /// Where the seal is: every record below it is in `state`'s sealed memtables or versions, or in
    /// memtables that were not sealed.
    pub lsn: Lsn,
    /// Once this much of the log is visible, every record below the seal is in its memtable.
    pub publish_to: Lsn,
}
