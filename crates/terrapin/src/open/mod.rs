//! Opening and creating a database. An open reads the log's tail and the nodes of the trees, but
//! not their leaves. Its steps:
//!
//! superblock → catalog → roots → the log's prefix → the branch of the new life, durable → free
//! space from a walk over the nodes (D4) → a new incarnation of the log, durable → replay → serve.
//!
//! *Branches.* Each open for writing draws a random number, the branch of the life. The superblock
//! names it before anything else uses it: log segments, their records, and ids of pages. The
//! superblock also names the branch of the log that the open found. Wherever an open dies, the log
//! that belongs to a superblock therefore has one of its two branches. Files of another copy of the
//! database drew other numbers, so they have neither.
//!
//! *Copies.* The superblock names the file that it was written to. An open may find it in another
//! file, and not closed. Then the data file is a copy of an open database, or a crash image that
//! was moved. The open checks all pages that the trees reach before it serves calls. Only then does
//! it write that the database is in this file.
//!
//! *Creation.* A new database exists once a superblock names an incarnation other than 0. The
//! creation writes that superblock after the log exists. An open makes anew whatever an interrupted
//! creation left.

pub mod closing;
pub mod page_uses;
pub mod recovery;
pub mod verify;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrapin_base::{
    Budget, Env, Error, ErrorKind, Incarnation, KeyspaceId, Lsn, Purpose, Result, mutant,
};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_disk::{Disk, RealDisk};
use terrapin_memtable::{Memtable, Pool};
use terrapin_pages::{DATA_FILE, PageStore, Presence, StoreOptions, Superblock, UNFINISHED_FILE};
use terrapin_recordcache::{Collection, RecordCache};
use terrapin_structure::Structure;
use terrapin_wal::{Log, LogOptions, LogSpace, Recovery, Replay, is_log_file};

use crate::api::database::Database;
use crate::checkpoint::compaction::Compactor;
use crate::checkpoint::fold::FoldJob;
use crate::checkpoint::job::Coordinator;
use crate::checkpoint::merges::Worker;
use crate::disk_space::reclaim::{Reclaim, Watch};
use crate::engine::core::{Core, Install, Parts};
use crate::engine::events;
use crate::engine::gate::Gate;
use crate::engine::owner::Owner;
use crate::keyspaces::catalog::Catalog;
use crate::keyspaces::catalog::format::Stored;
use crate::planning::plan::pool_floor_bytes;
use crate::types::options::{KeyspaceOptions, Options, Settings};

use crate::engine::state::{KeyspaceShared, KeyspaceState, Keyspaces, LoggedMemtable, State};
use crate::keyspaces::schema::DEFAULT_KEYSPACE;
use crate::memory::prefault::Prefault;
use crate::memory::warm_up::WarmUp;
use crate::open::page_uses::PageUses;
use crate::open::verify::check_copy;
use crate::planning::tree_size::TreeSizes;

/// The most lives of the log that an open leaves as they are. Each life costs an open one file and
/// a few reads.
const LIVES_MAX: usize = 8;

/// # Opening
impl Options {
    /// Opens the database in a directory. Errors:
    ///
    /// - [`ErrorKind::InvalidArgument`]: options contradict each other or are out of bounds.
    /// - [`ErrorKind::OutOfMemory`]: the budget cannot hold the requested χ, or a log that is to be
    ///   replayed for reading only; or the system refuses addresses for so much memory.
    /// - [`ErrorKind::Locked`]: the database is open elsewhere. Fails at once if this process has
    ///   it open, and after 5 s if another process has.
    /// - [`ErrorKind::DatabaseNotFound`], [`ErrorKind::AlreadyExists`]: as
    ///   [`Options::create_if_missing`] and [`Options::error_if_exists`] say.
    /// - [`ErrorKind::NotADatabase`]: the directory, or the data file, holds something else. The
    ///   open creates nothing there.
    /// - [`ErrorKind::NewerFormat`]: a newer Terrapin wrote the database.
    /// - [`ErrorKind::Unsupported`]: an older Terrapin wrote it in a format that this one does not
    ///   read; or this build lacks the compression; or the database was opened for writing
    ///   16,777,215 times, which is the limit. In the last case, export it and import it into a new
    ///   one.
    /// - [`ErrorKind::Corrupt`], with file and place.
    /// - [`ErrorKind::NoSpace`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Io`]: the error of
    ///   the system. `Io` also if the system starts no thread.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Database> {
        open_path(self, path.as_ref())
    }

    /// Opens the database on a disk and in an environment of the caller, such as simulated ones.
    /// For tests. Fails as [`Options::open`] does.
    #[doc(hidden)]
    pub fn open_on(&self, env: Env, disk: Arc<dyn Disk>) -> Result<Database> {
        open_on(self, env, disk)
    }

    /// Opens a new database on a simulated disk. Returns the simulation, too, with its clock and
    /// jobs.
    #[cfg(test)]
    pub(crate) fn open_simulated(&self) -> (crate::Database, terrapin_base::Sim) {
        let (env, sim) = Env::simulated(1);
        let disk = terrapin_disk::SimDisk::new(1).handle();
        (self.open_on(env, disk).unwrap(), sim)
    }
}

/// Opens the database of a directory.
pub(crate) fn open_path(options: &Options, path: &Path) -> Result<Database> {
    options.settle()?;
    if options.creates() {
        refuse_foreign(path)?;
    }
    let env = Env::threads();
    let disk = open_directory(&env, path, options.creates())?;
    open(options, env, disk, Some(path.to_path_buf()))
}

/// Opens the directory of a database. Fails with [`ErrorKind::DatabaseNotFound`] if it does not
/// exist and `create` is false.
pub(crate) fn open_directory(env: &Env, path: &Path, create: bool) -> Result<Arc<dyn Disk>> {
    match RealDisk::open(env.clone(), path, create) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
            ErrorKind::DatabaseNotFound,
            "there is no database: the directory does not exist",
        )
        .with("directory", path.display())),
        Err(error) => Err(error),
    }
}

/// Refuses to create a database in a directory of other files, so that a mistyped path does no
/// harm.
fn refuse_foreign(path: &Path) -> Result<()> {
    // If the directory cannot be listed, the open fails with the reason.
    let Ok(entries) = std::fs::read_dir(path) else {
        return Ok(());
    };
    let names = entries.filter_map(std::io::Result::ok);
    let names: BTreeSet<OsString> = names.map(|entry| entry.file_name()).collect();
    // Hidden files, and files of a fresh file system, do not count.
    let passes = |name: &str| {
        is_log_file(name)
            || [UNFINISHED_FILE, "lost+found"].contains(&name)
            || name.starts_with('.')
    };
    let foreign = |name: &&OsString| !name.to_str().is_some_and(passes);
    let Some(name) = names.iter().find(foreign) else {
        return Ok(());
    };
    if names.contains(OsStr::new(DATA_FILE)) {
        return Ok(());
    }
    let message = "the directory holds other files and no Terrapin database; a new database needs a directory of its own";
    Err(Error::new(ErrorKind::NotADatabase, message)
        .with("directory", path.display())
        .with("first of them", name.display()))
}

/// Opens a database on a disk of the caller.
pub(crate) fn open_on(options: &Options, env: Env, disk: Arc<dyn Disk>) -> Result<Database> {
    open(options, env, disk, None)
}

fn open(
    options: &Options,
    env: Env,
    disk: Arc<dyn Disk>,
    path: Option<PathBuf>,
) -> Result<Database> {
    let settings = options.settle()?;
    let memory = settings.memory;
    let began_ns = env.now_ns();
    let directory = disk.describe();
    let _span = tracing::info_span!("open", directory).entered();
    let gate = Gate::new(disk);
    let opened = open_gated(options, settings, env, &gate, path).map_err(|error| {
        gate.shut();
        match error.kind() {
            ErrorKind::NoSpace => advise_less_memory(error, memory),
            _ => error,
        }
    })?;
    events::opened(opened.core(), began_ns);
    Ok(opened)
}

/// The memory budget that [`advise_less_memory`] suggests: the smallest one that needs no other
/// option.
const SMALL_MEMORY_BYTES: u64 = 8 << 20;

/// Adds advice to an error of allocating the log's files, whose size follows from the memory
/// budget.
fn advise_less_memory(error: Error, memory: u64) -> Error {
    let advice = match memory > SMALL_MEMORY_BYTES {
        true => {
            "free space, or open with a smaller Options::memory (--memory 8MiB): \
             the files of the log are then smaller"
        }
        false => "free space",
    };
    error.with("memory", memory).with("what to do", advice)
}

fn open_gated(
    options: &Options,
    mut settings: Settings,
    env: Env,
    gate: &Arc<Gate>,
    path: Option<PathBuf>,
) -> Result<Database> {
    let disk: Arc<dyn Disk> = gate.clone();
    let budget = Budget::new(settings.memory);
    let mut present = PageStore::presence(&disk)? == Presence::Present;
    if !present && !options.creates() {
        return Err(absent(&disk)?);
    }
    let records = record_cache(&budget)?;
    let mut made = None;
    if !present {
        match Files::create(&env, &disk, &settings, &budget) {
            Ok(files) => made = Some(files),
            // The last write of a creation that was killed landed before this open got the lock
            // (D9). The database exists after all.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => present = true,
            Err(error) => return Err(error),
        }
    }
    let mut files = match made {
        Some(files) => files,
        None => {
            let files = Files::open(&disk, &settings, &budget)?;
            if files.superblock.incarnation != Incarnation(0) && options.refuses_existing() {
                let error = Error::new(ErrorKind::AlreadyExists, "there is a database already");
                return Err(error.with("directory", disk.describe()));
            }
            files
        }
    };
    if present && files.superblock.incarnation == Incarnation(0) {
        if !options.creates() {
            return Err(never_was(&disk));
        }
        files.create_log(&env, &disk, &settings)?;
    }
    let mut base = Base::read(&files.store, &files.superblock, &budget, settings.fanout)?;
    let mut lives = 1;
    let (log, replay) = match files.log.take() {
        Some(log) => {
            base.find_space(&files, &settings)?;
            (Some(log), None)
        }
        None => {
            let branch = draw_branch(&env);
            let options = log_options(&settings, &files.superblock, branch);
            let needed_from = base.catalog.durable_through();
            let found = scan_log(&env, &disk, options, needed_from)?;
            check_log(&found, &files.superblock, &base.catalog)?;
            check_copy(&files.store, &base)?;
            lives = found.lives();
            if settings.read_only {
                base.find_space(&files, &settings)?;
                (None, Some(found.read_only()))
            } else {
                // The names that the scan saw may not be durable, and the superblock will rely on
                // them.
                disk.sync_directory()?;
                files.begin_branch(branch, found.branch())?;
                base.find_space(&files, &settings)?;
                let (log, replay) = found.begin()?;
                settings.set_segment_bytes(log.segment_bytes());
                (Some(log), Some(replay))
            }
        }
    };
    start(Start {
        settings,
        env,
        gate,
        path,
        budget,
        records,
        files,
        base,
        log,
        replay,
        lives,
    })
}

/// The record cache for a memory budget. Only this cache takes addresses for all of the memory at
/// once. If the system refuses them, the open fails here, and the process does not end later when
/// caches have grown.
fn record_cache(budget: &Arc<Budget>) -> Result<RecordCache> {
    // The model checker makes an object of every word.
    let bytes_max = match cfg!(terrapin_shuttle) {
        true => 64 << 10,
        false => budget.limit(),
    };
    let records = RecordCache::new(budget, bytes_max);
    if records.bytes_max() == 0 {
        let message = "the system refuses addresses for so much memory (see `ulimit -v`): open with less of it";
        return Err(Error::new(ErrorKind::OutOfMemory, message).with("memory", budget.limit()));
    }
    Ok(records)
}

/// The error for a missing or unfinished data file. A log proves that a data file existed, unless
/// another process has just created both.
pub(crate) fn absent(disk: &Arc<dyn Disk>) -> Result<Error> {
    let error = match has_log(disk)? && PageStore::presence(disk)? != Presence::Present {
        true => data_file_is_lost(),
        false => Error::new(ErrorKind::DatabaseNotFound, "there is no database"),
    };
    Ok(error.with("directory", disk.describe()))
}

/// Reads the log that belongs to a data file, from an LSN on. Every data file has a log, so a
/// missing log was lost.
pub(crate) fn scan_log(
    env: &Env,
    disk: &Arc<dyn Disk>,
    options: LogOptions,
    needed_from: Lsn,
) -> Result<Recovery> {
    Recovery::scan(env, disk, options, needed_from).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::corrupt("the log is missing, but there is a data file")
            .with("file", "log-*")
            .with("directory", disk.describe()),
        _ => error,
    })
}

/// Whether a directory has a file of a database's log.
pub(crate) fn has_log(disk: &Arc<dyn Disk>) -> Result<bool> {
    Ok(disk.list()?.iter().any(|name| is_log_file(name)))
}

fn data_file_is_lost() -> Error {
    Error::corrupt("the data file is missing or empty, but there is a log").with("file", DATA_FILE)
}

/// The error for a creation that was interrupted before the log existed.
pub(crate) fn never_was(disk: &Arc<dyn Disk>) -> Error {
    let message = "there is no database: its creation was interrupted";
    Error::new(ErrorKind::DatabaseNotFound, message).with("directory", disk.describe())
}

/// The files that an open found or made.
struct Files {
    store: Arc<PageStore>,
    superblock: Superblock,
    /// A log that this open has just created.
    log: Option<Log>,
}

fn store_options(settings: &Settings, budget: &Arc<Budget>) -> StoreOptions {
    StoreOptions {
        budget: budget.clone(),
        reserve_bytes: settings.reserve_bytes,
        system_cache: settings.system_cache,
    }
}

/// Draws the branch of a new life. No life has branch 0.
fn draw_branch(env: &Env) -> u64 {
    env.random().max(1)
}

/// Options of the log that belongs to a superblock. `branch` is that of the new life, if one
/// begins.
pub(crate) fn log_options(settings: &Settings, superblock: &Superblock, branch: u64) -> LogOptions {
    LogOptions {
        ring_bytes: settings.ring_bytes,
        segment_bytes: settings.segment_bytes,
        sync_interval_ns: settings.sync_interval_ns,
        database_id: superblock.database_id,
        branch,
        known_branches: superblock.branches(),
    }
}

/// Checks the log against what the data file says about it.
pub(crate) fn check_log(
    found: &Recovery,
    superblock: &Superblock,
    catalog: &Catalog,
) -> Result<()> {
    // Every applied LSN was synced before a superblock led to it (D3). If the log ended below one,
    // that tree would be ahead of the others. It would ignore later writes as already applied.
    if found.end() < catalog.applied_through() {
        return Err(found
            .corrupt_at_end("the log ends before records that the trees already hold")
            .with("applied", catalog.applied_through()));
    }
    // A life of the log is durable before any superblock names it. If the log were behind, its next
    // life would not be new.
    if found.incarnation() < superblock.incarnation {
        return Err(found
            .corrupt_at_end("the log is of an earlier life than the superblock")
            .with("log's life", found.incarnation())
            .with("superblock's life", superblock.incarnation));
    }
    Ok(())
}

impl Files {
    fn open(disk: &Arc<dyn Disk>, settings: &Settings, budget: &Arc<Budget>) -> Result<Files> {
        let (store, superblock) = PageStore::open(
            disk,
            store_options(settings, budget),
            settings.read_only && !mutant::active("read-only-opens-for-writing"),
        )?;
        check_blocks(&store, settings)?;
        Ok(Files {
            store,
            superblock,
            log: None,
        })
    }

    /// Begins a life with this branch. The superblock that was found may not have been durable. It
    /// is durable afterwards (D2).
    fn begin_branch(&mut self, branch: u64, log_branch: u64) -> Result<()> {
        let incarnation = self.superblock.incarnation;
        self.superblock = self.store.begin_branch(incarnation, branch, log_branch)?;
        Ok(())
    }

    fn create(
        env: &Env,
        disk: &Arc<dyn Disk>,
        settings: &Settings,
        budget: &Arc<Budget>,
    ) -> Result<Files> {
        let database_id = env.random() | 1;
        // A log without its data file is a damaged database. It is no place for a new one.
        let options = LogOptions::new(database_id);
        Log::check_absent(env, disk, options).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => data_file_is_lost().with("directory", disk.describe()),
            _ => error,
        })?;
        let store = PageStore::create(disk, store_options(settings, budget), database_id)?;
        check_blocks(&store, settings)?;
        let superblock = store.superblock();
        let mut files = Files {
            store,
            superblock,
            log: None,
        };
        files.create_log(env, disk, settings)?;
        Ok(files)
    }

    /// The second half of a creation: the log, then superblocks that name it.
    fn create_log(&mut self, env: &Env, disk: &Arc<dyn Disk>, settings: &Settings) -> Result<()> {
        let branch = draw_branch(env);
        let log = Log::create(env, disk, log_options(settings, &self.superblock, branch))?;
        let incarnation = log.incarnation();
        self.superblock = self.store.begin_branch(incarnation, branch, branch)?;
        self.log = Some(log);
        Ok(())
    }
}

/// Checks that blocks of the tree are at least one unit of the data file long, since merges refuse
/// smaller ones. The device on which the file was created determined the unit.
fn check_blocks(store: &PageStore, settings: &Settings) -> Result<()> {
    if settings.read_only || settings.merge.block_bytes >= store.unit() {
        return Ok(());
    }
    Err(
        Error::invalid("the requested block size is smaller than a unit of the data file")
            .with("block bytes", settings.merge.block_bytes)
            .with("smallest", store.unit()),
    )
}

/// The database as of its last checkpoint.
pub(crate) struct Base {
    pub catalog: Catalog,
    pub stored: Vec<Stored>,
    pub structure: Arc<dyn Structure>,
    /// Why a tree was not fully read. If set, the space in use is not fully known.
    pub unread: Option<Error>,
}

impl Base {
    /// Reads the catalog and opens every root. A damaged root is an error of reads of its keyspace
    /// only.
    pub fn read(
        store: &Arc<PageStore>,
        superblock: &Superblock,
        budget: &Arc<Budget>,
        fanout: Option<usize>,
    ) -> Result<Base> {
        let mut params = BeTreeParams::new(budget.clone());
        params.fanout = fanout.unwrap_or(params.fanout);
        let structure: Arc<dyn Structure> = BeTree::new(store.clone(), params);
        let (mut catalog, mut stored) = Catalog::read(store, superblock.catalog)?;
        for keyspace in &stored {
            let version = structure.open(&keyspace.root).map_err(|e| {
                catalog
                    .place(e, keyspace.id)
                    .with("keyspace", &keyspace.name)
            })?;
            catalog.adopt(keyspace, version);
        }
        if superblock.catalog.is_none() {
            stored.push(Stored {
                id: KeyspaceId::DEFAULT,
                name: DEFAULT_KEYSPACE.into(),
                options: KeyspaceOptions::default(),
                applied: None,
                root: Vec::new(),
            });
        }
        Ok(Base {
            catalog,
            stored,
            structure,
            unread: None,
        })
    }

    /// Finds the free space. A damaged tree must not block the others. Space that may belong to it
    /// stays in use until an open reads all trees.
    fn find_space(&mut self, files: &Files, settings: &Settings) -> Result<()> {
        let Files {
            store, superblock, ..
        } = files;
        let base = self;
        let mut pages = PageUses::new(store);
        let unread = base.catalog.all_pages(&mut |page| pages.add(page))?;
        base.unread = unread.map(|(id, error)| {
            let stored = base.stored.iter().find(|stored| stored.id == id);
            error.with("keyspace", stored.map_or("", |stored| &*stored.name))
        });
        let uses = &mut pages.into_iter();
        let rebuilt = match base.unread {
            None => store.rebuild(uses, superblock.generation),
            Some(_) => store.rebuild_partly(uses, superblock.generation),
        };
        match rebuilt {
            // A read-only database needs no free space.
            Err(error) if settings.read_only && error.is_of_data() => {
                base.unread.get_or_insert(error);
            }
            rebuilt => rebuilt?,
        }
        Ok(())
    }
}

/// What an open has found and made, for [`start`].
struct Start<'a> {
    settings: Settings,
    env: Env,
    gate: &'a Arc<Gate>,
    path: Option<PathBuf>,
    budget: Arc<Budget>,
    records: RecordCache,
    files: Files,
    base: Base,
    log: Option<Log>,
    replay: Option<Replay>,
    /// Number of lives of which the log has files.
    lives: usize,
}

fn start(start: Start<'_>) -> Result<Database> {
    let Start {
        settings,
        env,
        gate,
        path,
        budget,
        records,
        files,
        base,
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
    }
    let pool = Pool::new(&budget, pool_floor_bytes(budget.limit()));
    let mut keyspaces = Keyspaces::default();
    let mut names = std::collections::BTreeMap::new();
    let tree_sizes = Arc::<TreeSizes>::default();
    let mut changed = BTreeSet::new();
    for (number, stored) in (0..).zip(&base.stored) {
        let tree = base.catalog.tree(stored.id);
        if tree.is_none() {
            changed.insert(stored.id);
        }
        let start = base.catalog.applied_of(stored.id);
        let start = start.unwrap_or(base.catalog.applied);
        names.insert(stored.name.clone(), stored.id);
        let unit = settings.merge.group_bytes;
        let shared = KeyspaceShared::new(stored.id, &stored.name, unit, (&tree_sizes, &budget));
        if let Some(tree) = tree {
            // The size serves metrics only. A read that needs an unreadable node reports it.
            let _ = shared.tree_size.begin(&**tree);
        }
        keyspaces.insert(Arc::new(KeyspaceState {
            id: stored.id,
            shared,
            collection: Collection(number),
            options: stored.options,
            active: LoggedMemtable::new(start, Memtable::with_pool(&budget, &pool)),
            sealed: None,
            version: tree.map_or_else(|| base.structure.empty(), Arc::clone),
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
        structure: base.structure.clone(),
        log: log.clone(),
        state,
        tree_sizes,
        install,
    });
    core.plan_memory(&core.install.lock());
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
        owner.run(Box::new(FoldJob::new(core.clone())))?;
    }
    if log.is_none() {
        let _ = core.log_space.set(LogSpace::of(&*core.disk)?);
    }
    if let Some(replay) = replay {
        recovery::replay(&core, replay, schema_from)?;
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
        if let Err(error) = core.checkpoint_through(log.end()) {
            tracing::warn!(%error, lives, "the log keeps the files of earlier lives, since a checkpoint failed");
        }
    } else if is_long && core.has_room() {
        // On a full disk, a later open that finds room, or writers, shorten the log. A checkpoint
        // would first take room.
        core.schedule.shorten_log();
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Job;

    use super::*;

    /// Most jobs used to report nothing. Their work was not done any more, and only a close
    /// returned the error.
    #[test]
    fn the_panic_of_any_job_is_a_lasting_background_error() {
        let jobs = |core: &Arc<Core>| -> [Box<dyn Job>; 7] {
            [
                Worker::job(core),
                Reclaim::job(core),
                Prefault::job(core),
                WarmUp::job(core),
                Compactor::job(core),
                Watch::job(core),
                Box::new(FoldJob::new(core.clone())),
            ]
        };
        for number in 0..7 {
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
