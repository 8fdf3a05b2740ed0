//! The handle on an open database.

use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Error, KeyspaceId, Result};

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::checkpoint::request;
use crate::engine::core::Core;
use crate::engine::owner::Owner;
use crate::engine::state::KeyspaceShared;
use crate::figures::metrics::metrics;
use crate::figures::stat::{DatabaseStat, stat};
use crate::keyspaces::schema::{find, find_or_create};
use crate::metrics::Metrics;
use crate::types::options::{CheckpointDistance, Durability, KeyspaceOptions, Options};

/// An open database: a handle that is cheap to clone and usable from any thread.
///
/// A [`Keyspace`], a [`crate::Snapshot`] and a [`crate::Range`] are handles, too. The drop of the
/// last handle syncs the log and waits for the background threads, and the next open replays the
/// log. Without [`Database::close`], only writes of [`Durability::None`] since the last checkpoint
/// or [`Database::flush`] are lost. Errors of that drop reach listeners only
/// ([`Database::on_background_error`]). Call `close` to get them.
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
    /// The structure that has its records on disk: `leveled`.
    pub structure: &'static str,
    /// Its options.
    pub options: KeyspaceOptions,
}

impl Database {
    /// Opens the database in a directory with the default options, or creates it. See [`Options`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-open-{}", std::process::id()));
    /// let database = terrapin::Database::open(&directory)?; // created if it does not exist
    /// let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Options::new().open(path)
    }

    /// The directory of the database. None on a disk that the caller provided.
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

    /// The keyspace of a name, created if it does not exist. A name has 1 to 255 bytes of UTF-8 and
    /// no control characters ([`Keyspace::check_name`]).
    ///
    /// Errors: `InvalidArgument` for any other name; `KeyspaceNotFound` for a missing keyspace of a
    /// read-only database; otherwise as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-keyspace-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let users = database.keyspace("users")?; // created if it does not exist
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
        Ok(self.handle(find_or_create(self.core(), name)?))
    }

    /// Creates a keyspace. Errors: `AlreadyExists` if the name is taken; `InvalidArgument` for an
    /// invalid name (see [`Database::keyspace`]) or an option out of its bounds; `OutOfMemory` for
    /// a χ that the memory budget does not hold; `Unsupported` for a compression that this build
    /// lacks; otherwise as for [`Keyspace::put`].
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

    /// The keyspace of a name. Errors: `KeyspaceNotFound` if it does not exist; `Closed`.
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
        Ok(self.handle(find(self.core(), name)?))
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
        let info = observed.state.keyspaces.iter().map(|k| KeyspaceInfo {
            name: k.shared.name.to_string(),
            id: k.id,
            structure: k.structure.name(),
            options: k.options,
        });
        Ok(info.collect())
    }

    /// Drops a keyspace and its records. Existing snapshots keep them. Handles on the keyspace get
    /// `KeyspaceNotFound`. An unreadable node of its tree is a background error, and the space
    /// below that node becomes free with the next open.
    ///
    /// Errors: `KeyspaceNotFound` if the keyspace does not exist; `InvalidArgument` for the default
    /// keyspace, which cannot be dropped; otherwise as for [`Keyspace::clear`].
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

    /// The limit of [`Batch::bytes`]: a little less than a quarter of the log's ring. 0 in a
    /// read-only database.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.core()
            .log
            .as_ref()
            .map_or(0, |log| log.record_bytes_max() as usize)
    }

    /// Writes a batch as a whole or not at all, with the durability of the database
    /// ([`Options::durability`]).
    ///
    /// Errors: those of its operations ([`Batch::error`]); `InvalidArgument` for a batch that
    /// another database made, and for a batch over several keyspaces with [`Durability::None`];
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

    /// Writes a batch with the given durability. With [`Durability::None`], a batch writes to one
    /// keyspace only. Errors as for [`Database::write`].
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
        self.core().env.breathe();
        request::flush(self.core())
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
        request::checkpoint(self.core())
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

    /// Sets χ of every keyspace for this and later opens, as [`Keyspace::set_checkpoint_distance`]
    /// does. Until the database is closed, it is also the χ of keyspaces that are created later.
    /// With `None`, all keyspaces follow [`Options::checkpoint_distance`] again.
    ///
    /// After an error, some keyspaces may already have the new χ. Keyspaces that are created later
    /// do not.
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

    /// Metrics since the open, for programs and collectors ([`Metrics::openmetrics`]). The call
    /// takes microseconds, and some hundred for thousands of keyspaces. It reads nothing from the
    /// device. It works on a closed database, too.
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

    /// Statistics for people, keyspace by keyspace. Reads every node of the trees that is not
    /// cached. Errors are of these reads, or `Closed`.
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
        stat(self.core())
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
