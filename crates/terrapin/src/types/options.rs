//! How a database is opened ([`Options`]). The engine checks the options, fills in the defaults,
//! and works with the result ([`settings`]).

pub mod format;
pub mod keyspace;
pub mod operators;
pub mod settings;

use std::time::Duration;

pub use keyspace::{KeyspaceOptions, SpaceAmplification};
pub use operators::OperatorName;
use operators::Operators;
pub use terrapin_pages::block::Compression;
use terrapin_pages::group::FILTER_BITS_DEFAULT;
use terrapin_structure::StructureId;

use crate::types::structures::StructureMaker;

/// The default memory budget, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// The smallest memory budget, in bytes. It needs a ring ([`Options::ring_bytes`]) of at most 256
/// KiB, since the ring may take a quarter of the budget. With the default ring the smallest budget
/// is 8 MiB.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The failures that a write survives once it returned. Creating, clearing and dropping keyspaces
/// and setting their options is always logged. Such a change is synced if the durability of the
/// database is `Sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The write survives the death of the process, also by `kill -9`. It makes no system call. A
    /// power cut loses at most the writes of the sync interval ([`Options::sync_interval`]).
    #[default]
    Process,
    /// The write is on stable storage before it returns, with all writes before it: also if it
    /// changes nothing, as an empty batch does. Writers share syncs. Readers see the write before
    /// it is synced. After an error, whether the write survives is unknown.
    Sync,
    /// The write is not in the log. It becomes durable with the next checkpoint of its keyspace, or
    /// with a `flush`. Use it for bulk loads that you can repeat. End a load with
    /// [`crate::Database::flush`] or [`crate::Database::close`], because dropping the handles makes
    /// no such write durable.
    ///
    /// A batch with this durability writes to one keyspace, and becomes durable as a whole or not
    /// at all. On a nearly full disk a batch of several operations goes into the log nevertheless.
    ///
    /// Other programs may use up the space that was kept for an earlier batch. The keyspace of that
    /// batch then waits for space. Reads go on. Deletes from this keyspace go on until a memtable
    /// is full, and deletes from others until the log's files are full. Later deletes then fail
    /// with [`ErrorKind::Stalled`](crate::ErrorKind::Stalled) or
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace).
    None,
}

/// χ: the amount of data that a keyspace collects in memory before the engine merges it into the
/// tree. The unit is [`Options::group_bytes`]. A larger χ writes less to the disk. A smaller χ
/// leaves more memory for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointDistance {
    /// The engine chooses χ from the memory budget and the workload: larger while data is loaded,
    /// smaller while it is read or overwritten.
    #[default]
    Auto,
    /// A fixed number of units: at least 1, at most 16,384, and at most as many as a quarter of the
    /// memory budget holds.
    Fixed(u32),
}

/// How to open a database. Every option has a default; [`Options::open`] checks them all.
///
/// The database does not store options, so state them at each open. **Each option may change from
/// one open to the next.** Compression and the sizes of groups, blocks and log files apply to later
/// writes. Older data stays readable as it is. The only stored setting is the χ of a keyspace
/// ([`KeyspaceOptions`]).
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-options-{}", std::process::id()));
/// use terrapin::{Compression, Options};
/// let database = Options::new()
///     .memory(64 << 20)
///     .compression(Compression::Lz4)
///     .open(&directory)?;
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    create_if_missing: bool,
    error_if_exists: bool,
    read_only: bool,
    memory: Option<u64>,
    system_cache: Option<bool>,
    durability: Durability,
    checkpoint_distance: CheckpointDistance,
    space_amplification: Option<f64>,
    group_bytes: Option<u64>,
    block_bytes: u32,
    compression: Compression,
    filter_bits: u32,
    sync_interval: Duration,
    record_cache: bool,
    range_compaction: bool,
    background_threads: Option<usize>,
    stall_limit: Duration,
    recovery_target: Option<Duration>,
    reader_age_max: Duration,
    log_segment_bytes: Option<u64>,
    log_bytes_max: Option<u64>,
    ring_bytes: Option<u64>,
    fanout: Option<usize>,
    further_structures: Vec<StructureMaker>,
    default_structure: StructureId,
    separate_from: Option<u32>,
    large_above: Option<u32>,
    always_maplets: bool,
    operators: Operators,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create_if_missing: true,
            error_if_exists: false,
            read_only: false,
            memory: None,
            system_cache: None,
            durability: Durability::Process,
            checkpoint_distance: CheckpointDistance::Auto,
            space_amplification: Some(1.3),
            group_bytes: None,
            block_bytes: 4096,
            compression: Compression::None,
            filter_bits: FILTER_BITS_DEFAULT,
            sync_interval: Duration::from_millis(100),
            record_cache: true,
            range_compaction: true,
            background_threads: None,
            stall_limit: Duration::from_secs(60),
            recovery_target: None,
            reader_age_max: Duration::from_secs(3600),
            log_segment_bytes: None,
            log_bytes_max: None,
            ring_bytes: None,
            fanout: None,
            further_structures: Vec::new(),
            separate_from: None,
            large_above: None,
            always_maplets: false,
            default_structure: StructureId::LEVELED,
            operators: Operators::default(),
        }
    }
}

/// # Mostly needed
impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Small sizes, for simulated disks.
    #[cfg(any(test, terrapin_mutants))]
    pub(crate) fn small() -> Self {
        Options::new()
            .memory(2 << 20)
            .ring_bytes(64 << 10)
            .log_segment_bytes(64 << 10)
            .log_bytes_max(512 << 10)
            .group_bytes(4 << 10)
            .block_bytes(512)
    }

    /// Opens the database without writing anything. The open replays the log in memory, and the log
    /// must fit there. Several readers may share a database. Readers exclude writers, and a writer
    /// excludes readers ([`ErrorKind::Locked`](crate::ErrorKind::Locked)).
    /// [`Options::open_reader`] reads beside a writer. Default false.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-read-only-{}", std::process::id()));
    /// terrapin::Database::open(&directory)?.close()?;
    /// let database = terrapin::Options::new().read_only(true).open(&directory)?;
    /// let refused = database.default_keyspace().put("apple", "sweet").unwrap_err();
    /// assert_eq!(refused.kind(), terrapin::ErrorKind::ReadOnly);
    /// database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn read_only(mut self, on: bool) -> Self {
        self.read_only = on;
        self
    }

    /// The memory budget in bytes, for all data that the database keeps in memory. Default 256 MiB.
    /// At least 8 MiB. With a smaller [`Options::ring_bytes`], the minimum is four times the ring,
    /// but 1 MiB ([`MEMORY_BYTES_MIN`]) in any case. [`crate::Database::set_memory`] changes the
    /// budget while the database is open.
    ///
    /// Setting this option, even to the default value, also turns off the system's page cache for
    /// reads. The budget is then the limit. [`Options::system_cache`] turns the page cache on
    /// again.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Whether reads that miss the caches of the budget go through the system's page cache. That
    /// memory belongs to the system. It comes on top of [`Options::memory`], counts for no process,
    /// and any program may reclaim it. Merges, the log and all writes bypass it.
    ///
    /// Turn it off if the budget must be the limit. Turn it on if the system has free memory,
    /// though a larger budget serves reads faster. Default: on, unless [`Options::memory`] is set.
    #[must_use]
    pub fn system_cache(mut self, on: bool) -> Self {
        self.system_cache = Some(on);
        self
    }

    /// The durability of writes that name none. Default [`Durability::Process`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-durability-{}", std::process::id()));
    /// use terrapin::{Durability, Options};
    /// // Every write survives a power cut once it returned.
    /// let database = Options::new().durability(Durability::Sync).open(&directory)?;
    /// database.default_keyspace().put("apple", "sweet")?;
    /// database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// χ of keyspaces that have no own χ. Default [`CheckpointDistance::Auto`].
    /// [`crate::Database::set_checkpoint_distance`] changes it while the database is open.
    #[must_use]
    pub fn checkpoint_distance(mut self, distance: CheckpointDistance) -> Self {
        self.checkpoint_distance = distance;
        self
    }

    /// The compression of blocks that are written from now on. Existing blocks stay readable as
    /// they are. In a build without the feature `zstd`, an open with [`Compression::Zstd`] fails
    /// with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). Default
    /// [`Compression::None`]. A keyspace may have its own ([`KeyspaceOptions::compression`]).
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }
}

/// # Rarely needed
///
/// The defaults suit most databases. Most defaults follow from the memory budget.
impl Options {
    /// Whether the open creates a database in a directory that has none. Default true.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-create-if-missing-{}", std::process::id()));
    /// let missing = terrapin::Options::new().create_if_missing(false).open(&directory).unwrap_err();
    /// assert_eq!(missing.kind(), terrapin::ErrorKind::DatabaseNotFound);
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn create_if_missing(mut self, on: bool) -> Self {
        self.create_if_missing = on;
        self
    }

    /// Whether the open fails if the database exists
    /// ([`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists)). Default false.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-error-if-exists-{}", std::process::id()));
    /// terrapin::Database::open(&directory)?.close()?;
    /// let exists = terrapin::Options::new().error_if_exists(true).open(&directory).unwrap_err();
    /// assert_eq!(exists.kind(), terrapin::ErrorKind::AlreadyExists);
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn error_if_exists(mut self, on: bool) -> Self {
        self.error_if_exists = on;
        self
    }

    /// The interval between syncs of the log. A power cut may lose the [`Durability::Process`]
    /// writes of one interval and of the duration of a sync. Default 100 ms, at least 1 µs. To sync
    /// every write, use [`Durability::Sync`].
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval;
        self
    }

    /// The longest time that one write waits in all, for merges, memory and the log's disk. After
    /// that, the write fails with [`ErrorKind::Stalled`](crate::ErrorKind::Stalled) and has no
    /// effect. Default 60 s.
    ///
    /// After one write has waited for the whole limit, other writes do not wait for the same cause
    /// but fail at once. They wait again after progress: a memtable is sealed or merged, the log's
    /// ring is drained further, or a checkpoint shortens the log. A series of writes therefore
    /// waits for the limit once, not once for each write. Pause before you retry.
    ///
    /// The limit does not bound the sync of a [`Durability::Sync`] write, which has taken effect.
    /// The sync takes as long as the device needs. There is one exception, a delete on a disk
    /// without room for the log. Its error is [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace).
    #[must_use]
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.stall_limit = limit;
        self
    }

    /// The longest time that the next open may take to replay the log after this process is killed,
    /// whatever the size of the database. The engine then checkpoints so early that less log is
    /// kept than a replay reads in this time. Smaller memtables are the price: more bytes are
    /// written for each overwritten byte. `None` sets no bound: a replay then takes as long as two
    /// full memtables need. Default none.
    ///
    /// The rate is that of the replay at this open, if it read at least 1 MiB. Otherwise 64 MiB of
    /// log a second are assumed. At least eight page groups ([`Options::group_bytes`]) of log may
    /// be kept in any case. [`crate::Metrics::replay_bytes_max`] is the bound in bytes.
    ///
    /// Writers wait for a checkpoint where nothing else holds the bound, up to
    /// [`Options::stall_limit`]. They do not wait, and the bound may be exceeded: on a full disk,
    /// while checkpoints fail, and while a sorted ingest runs. No write fails because of the bound.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-recovery-target-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// use std::time::Duration;
    /// let target = Duration::from_millis(500);
    /// let database = terrapin::Options::new().recovery_target(target).open(&directory)?;
    /// let metrics = database.metrics();
    /// assert!(metrics.replay_bytes <= metrics.replay_bytes_max);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn recovery_target(mut self, target: impl Into<Option<Duration>>) -> Self {
        self.recovery_target = target.into();
        self
    }

    /// Bits of filter for each record that is written from now on: 6 to 20, or 0 for no filters. A
    /// filter tells a get that a page group lacks its key, without a read of a block. More bits
    /// make fewer errors, and take more memory and space. Default 12. A keyspace may have its own
    /// ([`KeyspaceOptions::filter_bits`]).
    #[must_use]
    pub fn filter_bits(mut self, bits: u32) -> Self {
        self.filter_bits = bits;
        self
    }

    /// The size to which the data file may grow under overwriting, as a multiple of the data: 1.1
    /// to 100. A keyspace may have its own bound ([`KeyspaceOptions::space_amplification`]). Pages
    /// that a checkpoint replaces come on top until the checkpoint ends. `None` sets no bound. The
    /// file then grew to about 1.9 times the data in our measurements, and the engine wrote fewer
    /// bytes. Default 1.3.
    #[must_use]
    pub fn space_amplification(mut self, factor: impl Into<Option<f64>>) -> Self {
        self.space_amplification = factor.into();
        self
    }

    /// Whether background jobs rewrite often scanned data in key order. Scans become faster, at the
    /// price of one rewrite. The rewrite begins once the scans of a keyspace have cost as much as
    /// it will. While a snapshot holds the old form, both forms take space. Turn it off if bytes
    /// written matter more than the speed of scans. Default true.
    #[must_use]
    pub fn range_compaction(mut self, on: bool) -> Self {
        self.range_compaction = on;
        self
    }

    /// Whether the database caches often read records one by one, beside the cached blocks. Turn it
    /// off if reads hardly repeat. Default true.
    #[must_use]
    pub fn record_cache(mut self, on: bool) -> Self {
        self.record_cache = on;
        self
    }

    /// Number of threads that merge into the trees: 1 to 256. Default: the number of processors, at
    /// most 4.
    ///
    /// Each thread takes memory for up to one and a half page groups ([`Options::group_bytes`]) and
    /// for 3 MiB of blocks that it reads ahead. Caches shrink for that memory, but no thread waits
    /// for it. Many threads, or page groups that are large for the budget, may therefore exceed it.
    #[must_use]
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.background_threads = Some(threads);
        self
    }

    /// L: bytes of a page group, 1 KiB to 64 MiB. The engine writes sorted data in page groups, and
    /// χ counts in this unit. Default: a 128th of the memory, as a power of two from 256 KiB to 4
    /// MiB.
    ///
    /// Existing groups keep their size until a merge rewrites them. Do not make L smaller by a
    /// factor of more than a few hundred from one open to the next. One merge may then make more
    /// groups than a node holds. It fails with `TooLarge`, and an open with the former L continues.
    #[must_use]
    pub fn group_bytes(mut self, bytes: u64) -> Self {
        self.group_bytes = Some(bytes);
        self
    }

    /// Bytes of a block, the unit of a point read: 512 to 32,768. Default 4096. A longer record
    /// gets a block of its own. Existing blocks keep their size. The open refuses a size below the
    /// unit of the data file, which is the block size of the device on which the database was
    /// created.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// How long a reader in another process ([`Options::open_reader`]) may keep a checkpoint that
    /// this writer has replaced. Older readers get
    /// [`ErrorKind::Overtaken`](crate::ErrorKind::Overtaken), and the space of what they saw is
    /// reused. Default one hour.
    #[must_use]
    pub fn reader_age_max(mut self, age: Duration) -> Self {
        self.reader_age_max = age;
        self
    }

    /// Bytes of a log file: 16 KiB to 4 GiB. Default: a sixteenth of the memory, as a power of two
    /// from 4 MiB to 64 MiB. Existing files keep their size. New files also have the old size while
    /// the disk is too full for larger ones.
    #[must_use]
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_segment_bytes = Some(bytes);
        self
    }

    /// The size of the log, in bytes, above which the engine checkpoints the keyspaces that keep
    /// the log long. At least two log files. Default: the memory budget, at least 8 log files.
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> Self {
        self.log_bytes_max = Some(bytes);
        self
    }

    /// Bytes of the ring that has the log's newest records, a power of two from 64 KiB to 1 GiB. A
    /// batch may take a quarter of it. Default: a sixteenth of the memory, from 2 MiB to 16 MiB.
    /// The open replaces a ring of another size, and keeps it if the disk is too full for that.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u64) -> Self {
        self.ring_bytes = Some(bytes);
        self
    }

    /// ρ: the maximum number of children of a node, 4 to 1024. For tests, which need high trees
    /// with few records. It hardly matters otherwise.
    #[doc(hidden)]
    #[must_use]
    pub fn fanout(mut self, children: usize) -> Self {
        self.fanout = Some(children);
        self
    }

    /// Registers a structure besides those of a release, for tests. Keyspaces choose it by its
    /// number ([`KeyspaceOptions::structure`]).
    #[doc(hidden)]
    #[must_use]
    pub fn structure_for_tests(mut self, maker: StructureMaker) -> Self {
        self.further_structures.push(maker);
        self
    }

    /// The structure of the keyspace "default" of a new database, for tests. Until the first
    /// checkpoint only the options say it, so later opens must say the same.
    #[doc(hidden)]
    #[must_use]
    pub fn default_structure_for_tests(mut self, structure: StructureId) -> Self {
        self.default_structure = structure;
        self
    }

    /// The threshold of separation of keyspaces that name none, for tests: any number of bytes.
    #[doc(hidden)]
    #[must_use]
    pub fn separate_from_for_tests(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.separate_from = bytes.into();
        self
    }

    /// Values of more than this many bytes are large, for tests: at most
    /// [`crate::VALUE_BYTES_MAX`], which is the default. Keyspaces that take no large values keep
    /// them in records.
    #[doc(hidden)]
    #[must_use]
    pub fn large_above_for_tests(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.large_above = bytes.into();
        self
    }

    /// Tiered keyspaces get maplets although nobody reads and memory is ample, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn always_maplets_for_tests(mut self, always: bool) -> Self {
        self.always_maplets = always;
        self
    }

    /// The merge operator of keyspaces that name none, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn default_operator_for_tests(mut self, name: &str) -> Self {
        self.operators.set_default(name);
        self
    }
}

impl Options {
    /// Whether the open creates a database if there is none.
    pub(crate) fn creates(&self) -> bool {
        self.create_if_missing && !self.read_only
    }

    /// Whether the open fails if the database exists.
    pub(crate) fn refuses_existing(&self) -> bool {
        self.error_if_exists
    }
}
