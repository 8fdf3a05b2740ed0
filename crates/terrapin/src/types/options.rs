//! How a database is opened ([`Options`]), and what the engine makes of it ([`Settings`]: every
//! default filled in, every figure checked).

use std::time::Duration;

use terrapin_base::{Error, ErrorKind, Result};
use terrapin_structure::MergeOptions;

pub use terrapin_pages::block::Compression;

/// Memory of a database that names none, in bytes.
pub const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// The smallest memory budget, in bytes, of a database with a ring of 256 KiB at most
/// ([`Options::ring_bytes`]): the ring may take a quarter of the budget. With the default ring the
/// smallest budget is 8 MiB.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The largest χ. One merge makes of a memtable at most some two leaves for each L, of records that
/// are a little more than half a leaf; these, and those that were there, come under one node while
/// it is written, which counts to 65,535.
pub(crate) const DISTANCE_MAX: u64 = 16_384;

/// What the reserve holds for nodes and catalog pages, beside 8 L for leaves and levels: a slice of
/// a memtable that is merged from it, of one record if need be, makes of each node on its way one
/// level of what the node above held for it (an L or two), and a leaf or two.
const RESERVE_NODES_BYTES: u64 = 128 << 10;

/// What a write waits for before it returns. A keyspace that is created, cleared or dropped, and
/// options that are set, are in the log in any case, and synced where the database's own durability
/// is `Sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Survives the death of the process (`kill -9` included) without a system call; a power cut
    /// costs at most the sync interval ([`Options::sync_interval`]).
    #[default]
    Process,
    /// On stable storage before the write returns; writers share their syncs. Others see the write
    /// before that. An error means that the outcome is unknown.
    Sync,
    /// Not in the log: durable at the next checkpoint of its keyspace (or `flush`). For bulk loads
    /// that can be repeated. End a load with [`crate::Database::flush`] or
    /// [`crate::Database::close`]: dropping the handles makes nothing of it durable. A batch of it
    /// touches one keyspace.
    ///
    /// It becomes durable whole or not at all, too. On a nearly full disk a batch of several
    /// operations goes into the log after all. If others use up the space that was kept for an
    /// earlier one, its keyspace waits for space: reads go on, deletes from it go on until a
    /// memtable is full, and deletes from others until the log's files are; then they are
    /// [`ErrorKind::Stalled`] or [`ErrorKind::NoSpace`].
    None,
}

/// χ: how much a keyspace collects in memory before it is merged into its tree, in units of
/// [`Options::group_bytes`]. A larger χ writes less to the disk; a smaller one leaves more memory
/// for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointDistance {
    /// The engine chooses χ from the memory budget and the workload: larger while data is loaded,
    /// smaller while it is read or overwritten.
    #[default]
    Auto,
    /// This many units: at least 1, at most as many as fit into a quarter of the memory budget, and
    /// at most 16,384.
    Fixed(u32),
}

/// Options of one keyspace. The database stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// χ; `None` follows the database's ([`Options::checkpoint_distance`]).
    /// [`Keyspace::set_checkpoint_distance`] changes it.
    ///
    /// [`Keyspace::set_checkpoint_distance`]: crate::Keyspace::set_checkpoint_distance
    pub checkpoint_distance: Option<CheckpointDistance>,
}

impl KeyspaceOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// χ; `None` (the default) follows the database's ([`Options::checkpoint_distance`]).
    #[must_use]
    pub fn checkpoint_distance(mut self, distance: impl Into<Option<CheckpointDistance>>) -> Self {
        self.checkpoint_distance = distance.into();
        self
    }
}

/// How to open a database. Every option has a default; [`Options::open`] checks them all.
///
/// Options are not stored: state them at each open. **Each option may change from one open to the
/// next.** Compression and the sizes of groups, blocks and log files hold for later writes; older
/// data is read as it is. The database stores one setting: the χ of a keyspace
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
    sync_interval: Duration,
    record_cache: bool,
    range_compaction: bool,
    background_threads: Option<usize>,
    stall_limit: Duration,
    log_segment_bytes: Option<u64>,
    log_bytes_max: Option<u64>,
    ring_bytes: Option<u64>,
    fanout: Option<usize>,
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
            sync_interval: Duration::from_millis(100),
            record_cache: true,
            range_compaction: true,
            background_threads: None,
            stall_limit: Duration::from_secs(60),
            log_segment_bytes: None,
            log_bytes_max: None,
            ring_bytes: None,
            fanout: None,
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

    /// Small in everything, for simulated disks.
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

    /// Opens without writing anything: the log is replayed in memory only, and must fit there.
    /// Readers share the database; they keep writers out, and a writer keeps them out
    /// ([`ErrorKind::Locked`]). Default false.
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

    /// The one memory budget in bytes, for everything the database keeps in memory. At least 8 MiB;
    /// with a smaller [`Options::ring_bytes`] four times the ring, and never less than 1 MiB
    /// ([`MEMORY_BYTES_MIN`]). Default 256 MiB. [`crate::Database::set_memory`] changes it while
    /// the database is open.
    ///
    /// Naming it, be it with the default's value, also turns the system's page cache off for reads,
    /// so that the budget is all that there is; [`Options::system_cache`] turns it on again.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Whether reads that miss the budget's caches go through the system's page cache. That memory
    /// belongs to the system: it comes on top of [`Options::memory`], counts for no process, and
    /// gives way to any program. Merges, the log and all writes bypass it.
    ///
    /// Turn it off if the budget must be the limit. Turn it on if the system has memory to spare; a
    /// larger budget serves reads faster. Default: on, unless [`Options::memory`] is set.
    #[must_use]
    pub fn system_cache(mut self, on: bool) -> Self {
        self.system_cache = Some(on);
        self
    }

    /// Durability of writes that do not name theirs. Default [`Durability::Process`].
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

    /// χ of keyspaces that have none of their own. Default [`CheckpointDistance::Auto`].
    /// [`crate::Database::set_checkpoint_distance`] changes it while the database is open.
    #[must_use]
    pub fn checkpoint_distance(mut self, distance: CheckpointDistance) -> Self {
        self.checkpoint_distance = distance;
        self
    }

    /// How blocks are compressed that are written from now on; others are read as they are. In a
    /// build without the feature `zstd`, an open with [`Compression::Zstd`] is
    /// [`ErrorKind::Unsupported`]. Default [`Compression::None`].
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }
}

/// # Rarely needed
///
/// The defaults suit most stores; most of them follow from the memory budget.
impl Options {
    /// Whether a directory without a database gets one. Default true.
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

    /// Whether a database that is there already is an error ([`ErrorKind::AlreadyExists`]). Default
    /// false.
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

    /// How often the log is synced: a power cut may cost the [`Durability::Process`] writes of so
    /// long, and of the time that a sync takes. Default 100 ms, at least a microsecond; for a sync
    /// with every write there is [`Durability::Sync`].
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = interval;
        self
    }

    /// How long one write waits in all, for merges, memory and the log's disk, before it fails with
    /// [`ErrorKind::Stalled`]; it is not done then. Default 60 s.
    ///
    /// After a write has waited for the whole limit, writes that would wait for the same thing fail
    /// at once, until it makes progress: a memtable is sealed or merged, the log's ring is drained
    /// further, or a checkpoint shortens the log. So many writes in a row wait for the limit once,
    /// not once each. Pause before you try again.
    ///
    /// The limit does not bound how long a [`Durability::Sync`] write, which is done, waits for its
    /// sync: that takes what the device takes. (It does for a delete on a disk without room for the
    /// log; the error is [`ErrorKind::NoSpace`] then.)
    #[must_use]
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.stall_limit = limit;
        self
    }

    /// The data file may grow to this many times the data while it is overwritten: 1.1 to 100.
    /// Pages that a checkpoint is replacing come on top until it is over. `None`: no bound, about
    /// 1.9 times in our measurements, and fewer bytes written. Default 1.3.
    #[must_use]
    pub fn space_amplification(mut self, factor: impl Into<Option<f64>>) -> Self {
        self.space_amplification = factor.into();
        self
    }

    /// Whether data that is often scanned is rewritten in key order in the background. Scans get
    /// faster; a one-time rewrite is the price. It comes once the scans of a keyspace have cost as
    /// much as the rewrite does. While a snapshot holds the old form, both take space. Turn it off
    /// where bytes written count for more than the speed of scans. Default true.
    #[must_use]
    pub fn range_compaction(mut self, on: bool) -> Self {
        self.range_compaction = on;
        self
    }

    /// Whether records that are read again and again are cached one by one, beside the cached
    /// blocks. Turn it off where reads hardly repeat. Default true.
    #[must_use]
    pub fn record_cache(mut self, on: bool) -> Self {
        self.record_cache = on;
        self
    }

    /// Threads that merge into the trees: 1 to 256. Default: the number of processors, at most 4.
    ///
    /// Each thread takes up to one and a half page groups ([`Options::group_bytes`]) and 3 MiB of
    /// blocks that it reads ahead. Caches give way to that memory, but no thread waits for it. So
    /// many threads, or groups that are large for the memory, may exceed the budget.
    #[must_use]
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.background_threads = Some(threads);
        self
    }

    /// L: bytes of a page group, the piece in which sorted data is written, and the unit in which χ
    /// counts: 1 KiB to 64 MiB. Default: a 128th of the memory, as a power of two from 256 KiB to 4
    /// MiB. Groups that are there already stay as they are until they are merged into; smaller by
    /// more than a factor of a few hundred from one open to the next, more may come of one merge
    /// than a node holds (`TooLarge`, and an open with the former size goes on).
    #[must_use]
    pub fn group_bytes(mut self, bytes: u64) -> Self {
        self.group_bytes = Some(bytes);
        self
    }

    /// Bytes of a block, the unit of a point read: 512 to 32,768. A record that is longer has a
    /// block of its own. Default
    /// 4096. Blocks that are there already stay as they are. Less than the data file's unit, which
    ///       is the device's block where the database was made, is refused at open.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Bytes of a log file: 16 KiB to 4 GiB. Default: a sixteenth of the memory, as a power of two
    /// from 4 MiB to 64 MiB. Files that are there already stay as they are, and so do new ones
    /// where the disk is too full for larger ones.
    #[must_use]
    pub fn log_segment_bytes(mut self, bytes: u64) -> Self {
        self.log_segment_bytes = Some(bytes);
        self
    }

    /// When the log keeps more bytes than this, the keyspaces that hold it up are checkpointed: two
    /// log files at least. Default: the memory, at least 8 log files.
    #[must_use]
    pub fn log_bytes_max(mut self, bytes: u64) -> Self {
        self.log_bytes_max = Some(bytes);
        self
    }

    /// Bytes of the ring that the log's newest records lie in, a power of two from 64 KiB to 1 GiB;
    /// a batch may take a quarter of it. Default: a sixteenth of the memory, from 2 MiB to 16 MiB.
    /// A ring of another size is replaced by the open; where the disk is too full for that, the old
    /// one serves on.
    #[must_use]
    pub fn ring_bytes(mut self, bytes: u64) -> Self {
        self.ring_bytes = Some(bytes);
        self
    }

    /// ρ: most children of a tree's node, 4 to 1024. For tests, which want high trees of few
    /// records; it hardly matters otherwise.
    #[doc(hidden)]
    #[must_use]
    pub fn fanout(mut self, children: usize) -> Self {
        self.fanout = Some(children);
        self
    }
}

impl Options {
    pub(crate) fn creates(&self) -> bool {
        self.create_if_missing && !self.read_only
    }

    pub(crate) fn refuses_existing(&self) -> bool {
        self.error_if_exists
    }

    /// Checks everything and fills in the defaults.
    pub(crate) fn settle(&self) -> Result<Settings> {
        let memory = self.memory.unwrap_or(MEMORY_BYTES_DEFAULT);
        let pow2 = |bytes: u64| 1u64 << (63 - bytes.max(1).leading_zeros());
        let ring_bytes = self
            .ring_bytes
            .unwrap_or_else(|| pow2(memory / 16).clamp(2 << 20, 16 << 20));
        check(
            ring_bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(&ring_bytes),
            "the log's ring must be a power of two from 64 KiB to 1 GiB (Options::ring_bytes)",
            ring_bytes,
        )?;
        check_memory(memory, ring_bytes)?;
        let group_bytes = self
            .group_bytes
            .unwrap_or_else(|| pow2(memory / 128).clamp(256 << 10, 4 << 20));
        check(
            (1 << 10..=64 << 20).contains(&group_bytes),
            "a page group takes 1 KiB to 64 MiB (Options::group_bytes)",
            group_bytes,
        )?;
        check(
            (512..=32 << 10).contains(&self.block_bytes),
            "a block takes 512 to 32768 bytes (Options::block_bytes)",
            u64::from(self.block_bytes),
        )?;
        self.compression.check()?;
        let segment_bytes = self
            .log_segment_bytes
            .unwrap_or_else(|| pow2(memory / 16).clamp(4 << 20, 64 << 20));
        check(
            (16 << 10..=4 << 30).contains(&segment_bytes),
            "a log file takes 16 KiB to 4 GiB (Options::log_segment_bytes)",
            segment_bytes,
        )?;
        let log_bytes_max = self
            .log_bytes_max
            .unwrap_or_else(|| memory.max(8 * segment_bytes));
        check(
            log_bytes_max >= 2 * segment_bytes,
            "the log must have room for two of its files (Options::log_bytes_max, twice Options::log_segment_bytes)",
            log_bytes_max,
        )?;
        let space_amplification_percent = match self.space_amplification {
            None => None,
            Some(factor) if (1.1..=100.0).contains(&factor) => {
                Some((factor * 100.0).round() as u32)
            }
            Some(factor) => {
                return Err(Error::invalid(
                    "space amplification goes from 1.1 to 100 (Options::space_amplification)",
                )
                .with("factor", factor));
            }
        };
        let threads = self
            .background_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get().min(4)));
        check(
            (1..=256).contains(&threads),
            "background threads go from 1 to 256 (Options::background_threads)",
            threads as u64,
        )?;
        let nanoseconds = |d: Duration| {
            u64::try_from(d.as_nanos())
                .unwrap_or(u64::MAX / 4)
                .min(u64::MAX / 4)
        };
        check(
            self.fanout.is_none_or(|n| (4..=1024).contains(&n)),
            "a node has 4 to 1024 children",
            self.fanout.unwrap_or(0) as u64,
        )?;
        let settings = Settings {
            fanout: self.fanout,
            read_only: self.read_only,
            durability: self.durability,
            checkpoint_distance: self.checkpoint_distance,
            merge: MergeOptions {
                group_bytes,
                block_bytes: self.block_bytes,
                compression: self.compression,
                space_amplification_percent,
                space_is_short: false,
            },
            sync_interval_ns: nanoseconds(self.sync_interval).max(1_000),
            record_cache: self.record_cache,
            range_compaction: self.range_compaction,
            background_threads: threads,
            stall_limit_ns: nanoseconds(self.stall_limit),
            segment_bytes,
            log_bytes_max,
            log_check_shift: log_check_shift(segment_bytes),
            ring_bytes,
            memory,
            system_cache: self.system_cache.unwrap_or(self.memory.is_none()),
            reserve_bytes: 8 * group_bytes + RESERVE_NODES_BYTES,
        };
        settings.check_distance(self.checkpoint_distance, memory)?;
        Ok(settings)
    }
}

/// The largest fixed χ that a budget holds, with units of `unit_bytes`: a quarter of it as the
/// memtable, since a second one is sealed meanwhile and arenas take about 1.6 times what they hold.
/// Never above [`DISTANCE_MAX`]; 0 where it holds not even one unit.
pub(crate) fn distance_max(memory: u64, unit_bytes: u64) -> u64 {
    (memory / 4 / unit_bytes).min(DISTANCE_MAX)
}

/// Refuses a budget that the log's ring, which keeps the size that it has at the open, would take
/// more than a quarter of.
pub(crate) fn check_memory(bytes: u64, ring_bytes: u64) -> Result<()> {
    let smallest = MEMORY_BYTES_MIN.max(ring_bytes.saturating_mul(4));
    if bytes >= smallest {
        return Ok(());
    }
    Err(Error::invalid(
        "the memory budget is too small: it is 1 MiB at least, and four times the log's ring, which is as large as the open asked for (8 MiB hold the default)",
    )
    .with("memory", bytes)
    .with("smallest", smallest)
    .with("ring", ring_bytes))
}

fn check(holds: bool, message: &'static str, got: u64) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::invalid(message).with("got", got))
    }
}

fn log_check_shift(segment_bytes: u64) -> u32 {
    (segment_bytes / 8).ilog2()
}

/// [`Options`] with every default filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub read_only: bool,
    pub durability: Durability,
    /// ρ, if it is not the structure's own choice.
    pub fanout: Option<usize>,
    /// χ of keyspaces without one of their own, as the database was opened.
    pub checkpoint_distance: CheckpointDistance,
    /// How merges write, L among it.
    pub merge: MergeOptions,
    pub sync_interval_ns: u64,
    /// Whether hot records are cached as records.
    pub record_cache: bool,
    /// Whether trees are compacted for ranges.
    pub range_compaction: bool,
    pub background_threads: usize,
    pub stall_limit_ns: u64,
    pub segment_bytes: u64,
    pub log_bytes_max: u64,
    /// Whenever an LSN passes a multiple of two to this power, a few times a segment, the log's
    /// room is looked at.
    pub log_check_shift: u32,
    pub ring_bytes: u64,
    /// As opened; the budget has the current figure.
    pub memory: u64,
    /// Whether the system's page cache serves reads, too.
    pub system_cache: bool,
    /// Bytes of the data file that only merges on a full disk may use (D10).
    pub reserve_bytes: u64,
}

impl Settings {
    /// As large as log files really are: on a disk that is full already they are no larger than
    /// those that were there (D10).
    pub fn set_segment_bytes(&mut self, bytes: u64) {
        self.segment_bytes = bytes;
        self.log_check_shift = log_check_shift(bytes);
    }

    /// The largest fixed χ that a budget holds.
    pub fn distance_max(&self, memory: u64) -> u64 {
        distance_max(memory, self.merge.group_bytes)
    }

    /// Whether memory can hold a χ.
    pub fn check_distance(&self, distance: CheckpointDistance, memory: u64) -> Result<()> {
        let largest = self.distance_max(memory).max(1);
        match distance {
            CheckpointDistance::Auto => Ok(()),
            CheckpointDistance::Fixed(0) => {
                Err(Error::invalid("the checkpoint distance is at least 1"))
            }
            CheckpointDistance::Fixed(chi) if u64::from(chi) <= largest => Ok(()),
            CheckpointDistance::Fixed(chi) if largest == DISTANCE_MAX => {
                Err(Error::invalid("the checkpoint distance is too large")
                    .with("checkpoint distance", chi)
                    .with("largest possible", largest))
            }
            CheckpointDistance::Fixed(chi) => Err(Error::new(
                ErrorKind::OutOfMemory,
                "the memory budget cannot hold a memtable of that checkpoint distance",
            )
            .with("checkpoint distance", chi)
            .with("largest possible", largest)
            .with("memory", memory)
            .with("batch unit bytes", self.merge.group_bytes)),
        }
    }
}
