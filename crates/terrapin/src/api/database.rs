//! The handle on an open database.

use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::{Condition, Error, ErrorKind, KeyspaceId, Lsn, Result};
use terrapin_structure::{PageParts, StructureStats};
use terrapin_wal::LogMetrics;

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::disk_space::usage::SpaceUse;
use crate::engine::core::Core;
use crate::engine::owner::Owner;
use crate::engine::state::{KeyspaceShared, LoggedMemtable};
use crate::metrics::{MemoryUse, Metrics};
use crate::types::options::{CheckpointDistance, Durability, KeyspaceOptions, Options};

/// An open database: a handle that is cheap to clone and usable from any thread.
///
/// Dropping the last handle ([`Keyspace`], [`crate::Snapshot`] and [`crate::Range`] included)
/// without [`Database::close`] loses nothing but writes of [`Durability::None`] since the last
/// checkpoint or [`Database::flush`]; the next open replays the log. That last drop syncs the log
/// and waits for the background threads; what fails then only listeners learn
/// ([`Database::on_background_error`]), so call `close` to know.
#[derive(Clone)]
#[doc(alias("db", "env", "environment", "store"))]
pub struct Database {
    pub(crate) owner: Arc<Owner>,
}

/// A keyspace, as [`Database::keyspaces`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: KeyspaceId,
    /// The structure that its records lie in on disk; there is one so far.
    pub structure: &'static str,
    /// Its options.
    pub options: KeyspaceOptions,
}

/// Figures of one keyspace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeyspaceStat {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: KeyspaceId,
    /// The structure that its records lie in.
    pub structure: &'static str,
    /// About how many records it holds; see [`Keyspace::approximate_count`].
    pub records: u64,
    /// The tree.
    pub tree: StructureStats,
    /// Live bytes in the active and the sealed memtable.
    pub memtable_bytes: u64,
    /// Memory of both memtables.
    pub memtable_memory_bytes: u64,
    /// Live bytes at which the memtable is sealed: χ·L.
    pub memtable_bytes_max: u64,
    /// χ in force.
    pub checkpoint_distance: u32,
    /// χ as it was set; none means the database's.
    pub checkpoint_distance_set: Option<CheckpointDistance>,
}

/// Figures of a database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatabaseStat {
    /// Every keyspace.
    pub keyspaces: Vec<KeyspaceStat>,
    /// L: bytes of a page group and batch unit.
    pub group_bytes: u64,
    /// Bytes on disk, by what they are.
    pub space: SpaceUse,
    /// Bytes on disk of live pages.
    pub data_live_bytes: u64,
    /// Free bytes in the data file, those included that the file system has back.
    pub data_free_bytes: u64,
    /// Bytes of log that a recovery would read; after a close some KiB without records.
    pub log_kept_bytes: u64,
    /// Bytes of live pages for each key and value byte that readers see in the trees: what newer
    /// messages hide does not count, nor do deletes. 0 when there are none.
    pub space_amplification: f64,
    /// Memory, by purpose.
    pub memory: MemoryUse,
    /// The checkpoint that both superblocks hold.
    pub generation: u64,
    /// Registered views: snapshots and iterators.
    pub views: u64,
}

impl Database {
    /// Opens the database in a directory with the default options, or makes one. See [`Options`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-open-{}", std::process::id()));
    /// let database = terrapin::Database::open(&directory)?; // made if it is not there
    /// let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Options::new().open(path)
    }

    /// Where it lies; none on a disk of the caller's.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.owner.path.as_deref()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }

    fn handle(&self, shared: Arc<KeyspaceShared>) -> Keyspace {
        Keyspace::of(&self.owner, shared)
    }

    /// The keyspace of a name; created if there is none (in a read-only database that is
    /// `KeyspaceNotFound`). Names have 1 to 255 bytes of UTF-8 and no control characters; others
    /// are `InvalidArgument` ([`Keyspace::check_name`]). Otherwise errors are as for
    /// [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-keyspace-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let users = database.keyspace("users")?; // made if it is not there
    /// users.put("1", "Ann")?;
    /// assert!(database.keyspace("orders")?.get("1")?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias(
        "open_tree",
        "open_table",
        "open_partition",
        "column_family",
        "cf_handle",
        "create_if_missing"
    ))]
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        loop {
            if let Some(shared) = self.core().find_keyspace(name)? {
                return Ok(self.handle(shared));
            }
            if self.core().log.is_none() {
                return Err(no_such_keyspace(name));
            }
            match self
                .core()
                .create_keyspace(name, KeyspaceOptions::default())
            {
                // Somebody else made it in between.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => return created.map(|shared| self.handle(shared)),
            }
        }
    }

    /// A new keyspace. Errors: `AlreadyExists` if there is one of that name; `InvalidArgument` for
    /// an invalid name (see [`Database::keyspace`]), or a χ of 0; `OutOfMemory` for a χ that memory
    /// does not hold; otherwise as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-create-keyspace-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{ErrorKind, KeyspaceOptions};
    /// database.create_keyspace("users", KeyspaceOptions::default())?;
    /// let again = database.create_keyspace("users", KeyspaceOptions::default());
    /// assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn create_keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        Ok(self.handle(self.core().create_keyspace(name, options)?))
    }

    /// The keyspace of a name. `KeyspaceNotFound` if there is none.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-open-keyspace-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let missing = database.open_keyspace("users").unwrap_err();
    /// assert_eq!(missing.kind(), terrapin::ErrorKind::KeyspaceNotFound);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn open_keyspace(&self, name: &str) -> Result<Keyspace> {
        match self.core().find_keyspace(name)? {
            Some(shared) => Ok(self.handle(shared)),
            None => Err(no_such_keyspace(name)),
        }
    }

    /// The keyspace `default`, which every database has.
    #[must_use]
    pub fn default_keyspace(&self) -> Keyspace {
        self.handle(self.owner.default_keyspace.clone())
    }

    /// All keyspaces, in the order of their creation. Errors: `Closed`.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-keyspaces-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// database.keyspace("users")?;
    /// let names: Vec<String> = database.keyspaces()?.into_iter().map(|k| k.name).collect();
    /// assert_eq!(names, ["default", "users"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("tree_names", "list_tables", "list_cf", "list_partitions"))]
    pub fn keyspaces(&self) -> Result<Vec<KeyspaceInfo>> {
        let observed = self.core().observe()?;
        self.core().health.check_open()?; // or the state may be the one that a close left
        let structure = self.core().structure.name();
        let info = observed.state.keyspaces.iter().map(|k| KeyspaceInfo {
            name: k.shared.name.to_string(),
            id: k.id,
            structure,
            options: k.options,
        });
        Ok(info.collect())
    }

    /// Drops a keyspace and its records. Snapshots taken before keep theirs; handles on it get
    /// `KeyspaceNotFound`. The default keyspace cannot be dropped. A node of its tree that cannot
    /// be read is a background error; the space below it comes back with the next open. Errors:
    /// `KeyspaceNotFound` if there is none of that name; `InvalidArgument` for the default one;
    /// otherwise as for [`Keyspace::clear`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-drop-keyspace-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.drop_keyspace("fruit")?;
    /// let gone = fruit.get("apple").unwrap_err();
    /// assert_eq!(gone.kind(), terrapin::ErrorKind::KeyspaceNotFound);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("drop_tree", "delete_table", "drop_cf", "delete_partition"))]
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.core().drop_keyspace(name)
    }

    /// An empty batch.
    #[must_use]
    #[doc(alias("transaction", "write_batch", "begin", "begin_write"))]
    pub fn batch(&self) -> Batch {
        Batch::new(self.owner.number)
    }

    /// The most that [`Batch::bytes`] may be: a quarter of the log's ring, a little less; 0 in a
    /// read-only database.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.core()
            .log
            .as_ref()
            .map_or(0, |log| log.record_bytes_max() as usize)
    }

    /// Writes a batch, whole or not at all, with the durability that the database was opened with.
    /// Errors: those of its operations ([`Batch::error`]); `InvalidArgument` for a batch that
    /// another database made, and for one over several keyspaces with [`Durability::None`];
    /// otherwise as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-write-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// let stock = database.keyspace("stock")?;
    /// let mut batch = database.batch();
    /// batch.put(&fruit, "apple", "sweet");
    /// batch.put(&stock, "apple", "12");
    /// database.write(&batch)?; // both or neither
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("commit", "apply_batch"))]
    pub fn write(&self, batch: impl Borrow<Batch>) -> Result<()> {
        self.write_with(batch, self.core().settings.durability)
    }

    /// Writes a batch with a durability of its own. [`Durability::None`] takes batches that touch
    /// one keyspace only. Errors as for [`Database::write`].
    pub fn write_with(&self, batch: impl Borrow<Batch>, durability: Durability) -> Result<()> {
        let batch = batch.borrow();
        if batch.database() != self.owner.number {
            return Err(Error::invalid("the batch was made by another database"));
        }
        self.core().write_batch(batch.prepared()?, durability)
    }

    /// Makes every earlier write durable. Syncs the log, and checkpoints keyspaces that hold writes
    /// of [`Durability::None`]. Writes nothing if all is durable already.
    ///
    /// This is not RocksDB's flush: memtables stay in memory. Errors: `Poisoned` when the log
    /// cannot be written; the error of a checkpoint that the call waits for (on a full disk as
    /// [`Database::checkpoint`]); `Closed`.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-flush-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?; // survives kill -9
    /// database.flush()?; // survives a power cut, too
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("sync", "fsync", "persist", "flush_wal", "sync_wal"))]
    pub fn flush(&self) -> Result<()> {
        let core = self.core();
        core.env.breathe();
        core.health.check_open()?;
        let log = core.log()?;
        // Also where all is synced: later checkpoints fail.
        if let Some(error) = log.failed() {
            return Err(error);
        }
        let through = log.end();
        log.sync(through)?;
        core.checkpoint_unlogged(through)
    }

    /// Merges every memtable into its tree, makes the trees durable, and returns free space to the
    /// file system.
    ///
    /// This is not RocksDB's checkpoint: it makes no copy of the database. Errors: the error of an
    /// attempt that failed during the call (the engine retries in the background); `NoSpace` on a
    /// full disk, after 64 checkpoints that freed no memtable. Unmerged writes stay in the log
    /// then, and another call continues. Free space that cannot be returned is a background error.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-checkpoint-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.checkpoint()?;
    /// assert_eq!(database.metrics().memtable_bytes, 0);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("compact", "compact_range", "flush_memtable"))]
    pub fn checkpoint(&self) -> Result<()> {
        self.core().env.breathe();
        self.core().checkpoint()
    }

    /// Changes the memory budget, in bytes. Caches shrink to the new budget in the background.
    /// Memtables above their new share are sealed at once.
    ///
    /// Errors: `InvalidArgument` below four times the log's ring, which keeps its size until the
    /// next open. So 64 MiB is the least for a database that was opened with 256 MiB or more,
    /// unless [`Options::ring_bytes`] was smaller. `OutOfMemory` if a fixed χ does not fit any
    /// more.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-set-memory-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// database.set_memory(512 << 20)?; // bytes
    /// assert_eq!(database.metrics().memory.limit_bytes, 512 << 20);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.core().set_memory(bytes)
    }

    /// Sets χ of every keyspace, as [`Keyspace::set_checkpoint_distance`] does, also for later
    /// opens. Keyspaces that are created later go by it until the database is closed. None:
    /// keyspaces go by what the database is opened with ([`Options::checkpoint_distance`]) again,
    /// now and later. After an error, some keyspaces may go by it already; those that are created
    /// later do not.
    pub fn set_checkpoint_distance(
        &self,
        distance: impl Into<Option<CheckpointDistance>>,
    ) -> Result<()> {
        self.core().set_distance_of_all(distance.into())
    }

    /// The last error of a background job, until a later attempt of that job succeeds. The error of
    /// a job that panicked stays, because no thread does the job's work any more.
    ///
    /// It is also the reason why an open could not read all of a tree. Sound parts are served then,
    /// and no space is reused until an open reads everything.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-background-error-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// if let Some(error) = database.background_error() {
    ///     eprintln!("the database cannot do its background work: {error}");
    /// }
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn background_error(&self) -> Option<Error> {
        self.core().health.background_error()
    }

    /// Registers a function that runs whenever a background job fails, until the database is
    /// closed.
    ///
    /// The function runs on the thread of the job. If a [`Database::checkpoint`] or
    /// [`Database::close`] cannot return space, or the last sync of the log fails, it runs on the
    /// thread of that call, or of the drop of the last handle. Keep it short, wait for no lock, and
    /// do not call the database. A panic of the function is caught. It must not own a handle of
    /// this database: the database would stay open, because only [`Database::close`] drops
    /// listeners.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-on-background-error-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// database.on_background_error(|error| eprintln!("background work failed: {error}"));
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn on_background_error(&self, listener: impl Fn(&Error) + Send + Sync + 'static) {
        self.core().health.listen(Arc::new(listener));
    }

    /// What was done since the database was opened, and how things stand, for programs and
    /// collectors ([`Metrics::openmetrics`]). Costs microseconds, for thousands of keyspaces some
    /// hundred, and reads nothing from the device. Works on a closed database, too.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-metrics-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// let metrics = database.metrics();
    /// println!("{} puts, {} bytes of memory in use", metrics.puts, metrics.memory.total_bytes());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        metrics(self.core())
    }

    /// Figures for people, keyspace by keyspace. Reads every node of the trees that is not cached;
    /// errors are of these reads, or `Closed`.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-stat-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// for keyspace in database.stat()?.keyspaces {
    ///     println!("{}: about {} records", keyspace.name, keyspace.records);
    /// }
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn stat(&self) -> Result<DatabaseStat> {
        let core = self.core();
        let observed = core.observe()?;
        core.health.check_open()?; // as in `keyspaces`
        let mut keyspaces = Vec::new();
        for keyspace in observed.state.keyspaces.iter() {
            let named = |error: Error| error.with("keyspace", &keyspace.shared.name);
            let tree = keyspace.version.stats().map_err(named)?;
            let memtables = memtables(
                &keyspace.active,
                keyspace.sealed.as_ref().map(|s| &s.records),
            );
            keyspaces.push(KeyspaceStat {
                name: keyspace.shared.name.to_string(),
                id: keyspace.id,
                structure: core.structure.name(),
                records: crate::read::estimate::count(keyspace, observed.before).map_err(named)?,
                tree,
                memtable_bytes: memtables.clone().map(|w| w.memtable.live_bytes()).sum(),
                memtable_memory_bytes: memtables.map(|w| w.memtable.arena_bytes()).sum(),
                memtable_bytes_max: keyspace.shared.memtable_bytes.load(Ordering::Relaxed),
                checkpoint_distance: core.distance_in_force(&keyspace.shared),
                checkpoint_distance_set: keyspace.options.checkpoint_distance,
            });
        }
        let metrics = metrics(core);
        let mut pages = PageParts::default();
        for keyspace in &keyspaces {
            pages.add(&keyspace.tree.parts);
        }
        Ok(DatabaseStat {
            keyspaces,
            space: SpaceUse::of(core, pages)?,
            group_bytes: core.settings.merge.group_bytes,
            data_live_bytes: metrics.data_live_bytes,
            data_free_bytes: metrics.data_free_bytes,
            log_kept_bytes: metrics.log_kept_bytes,
            space_amplification: metrics.space_amplification,
            memory: metrics.memory,
            generation: observed.state.generation.0,
            views: metrics.views,
        })
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

fn no_such_keyspace(name: &str) -> Error {
    Error::new(ErrorKind::KeyspaceNotFound, "there is no such keyspace").with("keyspace", name)
}

fn memtables<'a>(
    active: &'a Arc<LoggedMemtable>,
    sealed: Option<&'a Arc<LoggedMemtable>>,
) -> impl Iterator<Item = &'a Arc<LoggedMemtable>> + Clone {
    std::iter::once(active).chain(sealed)
}

impl Core {
    /// Checkpoints the keyspaces with writes below `through` that the log does not hold.
    fn checkpoint_unlogged(&self, through: Lsn) -> Result<()> {
        let mut failures = self.schedule.failures();
        let mut failure = None;
        let begun = self.schedule.tight_checkpoints();
        loop {
            let releases = self.schedule.releases();
            {
                let mut install = self.install.lock();
                self.seal(&mut install, |k| {
                    k.active.start < through && k.active.unlogged.load(Ordering::Acquire)
                });
            }
            let state = self.state.load();
            let waits = self.written.noted_of(&state).iter().any(|k| {
                memtables(&k.active, k.sealed.as_ref().map(|s| &s.records))
                    .any(|w| w.start < through && w.unlogged.load(Ordering::Acquire))
            });
            drop(state);
            if !waits {
                return Ok(());
            }
            // A checkpoint that failed may have merged these memtables, and left out others.
            if let Some(error) = failure.take() {
                return Err(error);
            }
            // Read after `failures`, as in `recovery::make_room`.
            if let Some(error) = self.log()?.failed() {
                return Err(error);
            }
            if self.schedule.is_too_tight(begun) {
                return Err(self.too_tight(through));
            }
            let schedule = self.schedule.clone();
            self.env
                .wait(&Condition::new(self.schedule.progress(), move || {
                    schedule.releases() != releases
                        || schedule.failures() != failures
                        || schedule.is_too_tight(begun)
                }))?;
            self.health.check_open()?;
            let failed = self.schedule.failures();
            if failed != failures {
                // None if the next checkpoint committed.
                failure = self.schedule.last_error();
            }
            failures = failed;
        }
    }
}

/// What is known of the log of a database that is read only, and does not have it open.
fn kept_log(core: &Core) -> LogMetrics {
    let replayed = core.replayed.load(Ordering::Acquire);
    let files = core.log_space.get().copied().unwrap_or_default();
    let mut log = LogMetrics::default();
    log.kept_bytes = replayed.saturating_sub(core.schedule.durable_through().0);
    log.disk_bytes = files.segment_bytes + files.spare_bytes;
    log
}

fn metrics(core: &Core) -> Metrics {
    let counters = &core.counters;
    let store = core.store.metrics();
    let log = core.log.as_ref().map(|log| log.metrics());
    let log = log.unwrap_or_else(|| kept_log(core));
    let state = core.state.load();
    let user_bytes_written = counters.user_bytes_written.get();
    let log_bytes_written = log.drained_bytes + log.ahead_bytes;
    let written = store.written.total() + log_bytes_written;
    let live_bytes = core.store.live_bytes();
    let tree_bytes = core.tree_sizes.live_bytes();
    let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let holders = core.written.written_of(&state);
    let debt = holders.iter().filter_map(|k| {
        let sealed = k.sealed.as_ref()?.records.memtable.live_bytes();
        Some(k.shared.forecast.left_of(sealed))
    });
    let records = core.records.counts();
    let used = state.keyspaces.iter().filter_map(|k| {
        let memtables = memtables(&k.active, k.sealed.as_ref().map(|s| &s.records));
        let bytes = memtables.map(|w| w.memtable.live_bytes()).sum();
        k.shared.counters.read(&k.shared.name, k.id, bytes)
    });
    Metrics {
        keyspaces: used.collect(),
        puts: counters.puts.get(),
        gets: counters.gets.get(),
        deletes: counters.deletes.get(),
        scans: counters.scans.get(),
        scanned_records: counters.scanned_records.get(),
        scanned_deletes: counters.scanned_deletes.get(),
        batches: counters.batches.get(),
        user_bytes_written,
        record_hits: core.counters.record_hits.get(),
        cached_records: records.records,
        cache_hits: store.hits,
        cache_misses: store.misses,
        device_reads: store.read,
        device_written: store.written,
        log_bytes_written,
        write_amplification: ratio(written, user_bytes_written),
        space_amplification: ratio(live_bytes, tree_bytes),
        checkpoint_debt_bytes: debt.sum(),
        memtable_bytes: core.memtable_live_bytes(&state),
        checkpoints: counters.checkpoints.get(),
        checkpoints_failed: counters.checkpoints_failed.get(),
        compactions: counters.compactions.get(),
        is_compacting: core.compactions.is_any_asked() && !core.schedule.space_is_short(),
        replayed_records: counters.replayed_records.get(),
        put_latency: counters.put_latency.latency(),
        get_latency: counters.get_latency.latency(),
        sync_latency: counters.sync_latency.latency(),
        writes_refused: counters.writes_refused.get(),
        write_wait_ns: counters.write_wait_ns.get(),
        waits: counters.waits.read(),
        log_syncs: log.syncs,
        log_kept_bytes: log.kept_bytes,
        log_disk_bytes: log.disk_bytes,
        data_live_bytes: live_bytes,
        data_free_bytes: core.store.free_bytes(),
        data_allocated_bytes: core.store.allocated_bytes().unwrap_or(0),
        data_reserve_bytes: core.store.reserve_held_bytes(),
        memory: MemoryUse::of(&core.budget),
        views: core.views.len() as u64,
        folds: counters.folds.get(),
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::{Env, Job, Step};
    use terrapin_disk::SimDisk;

    use super::*;

    /// Once a memtable is sealed, a checkpoint that fails and one that commits, before anybody
    /// looks.
    struct Between(Arc<Core>);

    impl Job for Between {
        fn name(&self) -> &'static str {
            "between"
        }

        fn step(&mut self) -> Step {
            let begun = |core: &Core| {
                core.schedule.sealed_count() > 0 || core.counters.checkpoints.get() > 0
            };
            let schedule = &self.0.schedule;
            if !begun(&self.0) {
                let core = self.0.clone();
                return Step::Pending(Condition::new(schedule.work(), move || begun(&core)));
            }
            schedule.failed(&Error::internal("on purpose"));
            schedule.committed(Lsn(0));
            Step::Done
        }
    }

    /// This found that the flush waited no more from then on: it went round and round, here for
    /// ever.
    #[test]
    fn a_flush_waits_on_after_a_failure_that_is_overcome() {
        for seed in 0..10 {
            let (env, sim) = Env::simulated(seed);
            let options = Options::new()
                .memory(2 << 20)
                .ring_bytes(64 << 10)
                .log_segment_bytes(64 << 10)
                .log_bytes_max(512 << 10)
                .block_bytes(512);
            let disk = SimDisk::new(seed);
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            sim.set_breathing(false);
            let job = env
                .spawn(Box::new(Between(database.core().clone())))
                .unwrap();
            let keyspace = database.default_keyspace();
            keyspace.put_with("a", "1", Durability::None).unwrap();
            database.flush().unwrap();
            job.join().unwrap();
            database.close().unwrap();
        }
    }

    /// It waited for ever when the checkpoint that found the log failed had ended before.
    #[test]
    fn a_flush_learns_at_once_of_a_log_that_failed() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = Options::small().open_on(env, disk.handle()).unwrap();
        sim.set_breathing(false);
        let keyspace = database.default_keyspace();
        keyspace.put_with("a", "1", Durability::None).unwrap();
        let core = database.core();
        let log = core.log().unwrap();
        log.poison(Error::internal("on purpose"));
        core.schedule.ask(log.end());
        sim.settle();
        assert!(core.schedule.failures() > 0);
        let error = core.checkpoint_unlogged(log.end()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        let error = database.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert!(database.close().is_err());
    }
}
