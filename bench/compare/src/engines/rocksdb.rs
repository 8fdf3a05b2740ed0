//! RocksDB, tuned as its own guides say for a known memory:
//!
//! * direct I/O for reads, flushes and compactions; no compression; 10-bit bloom filters; 2
//!   background jobs;
//! * one budget: the block cache has all of the memory, memtables are charged to it, and so are
//!   indexes and filters. A quarter of it may be memtables, at most 64 MiB each: with 101 and with
//!   512 MiB it wrote less, and was slower;
//! * where everything fits into the cache it is the newer one, of clocks, and indexes and filters
//!   stay in it; where not, it is the older one, of least recent use, which found more, and only
//!   those of new files stay;
//! * two writers' log and memtables are written side by side (`enable_pipelined_write`), and C++ is
//!   compiled for this processor (`.cargo/config.toml`), without which its checksums are slow;
//! * the first level holds as much as the four files that trigger its compaction, and files are at
//!   most 64 MiB;
//! * where memory is less than a third of the data, indexes and filters are in partitions, so that
//!   parts of them can be cached;
//! * the log is on and not synced for each write.
//!
//! The variant for transactions is `OptimisticTransactionDB`, which finds conflicts at the commit,
//! as Terrapin does. The variant with universal compaction has that compaction's defaults. The one
//! with values in blob files collects their garbage, and caches them in the block cache.

mod optimistic;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BlockBasedTablePinningTier, Cache, DB, DBAccess,
    DBCompactionStyle, DBCompressionType, DBRawIteratorWithThreadMode, Options, ReadOptions,
    WaitForCompactOptions, WriteBufferManager, WriteOptions,
};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{Engine, SEPARATE_BYTES_MIN, copied, foreign};
use crate::plan::{Memory, MemoryKind};
use crate::worker::{self, Job};

const ENGINE: Engine = Engine {
    name: "rocksdb",
    packages: &["rocksdb", "librocksdb-sys"],
    logged: true,
    memory: MemoryKind::Fragmented,
    overhead_bytes: 0,
    small_only: false,
    is_data_file: Some(|path| path.extension().is_some_and(|e| e == "sst" || e == "blob")),
    how: "direct I/O, buffered log",
    run: |job| run(job, |_, _| ()),
};

pub(super) const ENGINES: &[Engine] = &[
    ENGINE,
    Engine {
        name: "rocksdb-universal",
        how: "as rocksdb, with universal compaction",
        run: |job| {
            run(job, |options, _| {
                options.set_compaction_style(DBCompactionStyle::Universal);
            })
        },
        ..ENGINE
    },
    Engine {
        name: "rocksdb-optimistic",
        how: "as rocksdb, with optimistic transactions",
        run: optimistic::run,
        ..ENGINE
    },
    Engine {
        name: "rocksdb-blob",
        how: "as rocksdb, with values of 512 bytes or more in blob files",
        run: |job| {
            run(job, |options, cache| {
                options.set_enable_blob_files(true);
                options.set_min_blob_size(SEPARATE_BYTES_MIN.into());
                options.set_blob_cache(cache);
                options.set_enable_blob_gc(true);
            })
        },
        ..ENGINE
    },
    Engine {
        name: "rocksdb-blob-tight",
        how: "as rocksdb-blob, held to space: collects blob files of any age with a fifth of garbage",
        run: |job| {
            run(job, |options, cache| {
                options.set_enable_blob_files(true);
                options.set_min_blob_size(SEPARATE_BYTES_MIN.into());
                options.set_blob_cache(cache);
                options.set_enable_blob_gc(true);
                options.set_blob_gc_age_cutoff(1.0);
                options.set_blob_gc_force_threshold(0.2);
            })
        },
        ..ENGINE
    },
];

/// The options for `memory` bytes in all, and the block cache among them.
pub(crate) fn options(memory: usize, share: Memory) -> (Options, Cache) {
    let memtable = (memory / 8).clamp(1 << 20, 64 << 20);
    let (cache, pinned) = match share {
        Memory::All => (
            Cache::new_hyper_clock_cache(memory, 0),
            BlockBasedTablePinningTier::All,
        ),
        _ => (
            Cache::new_lru_cache(memory),
            BlockBasedTablePinningTier::FlushAndSimilar,
        ),
    };

    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_unpartitioned_pinning_tier(pinned);
    if !matches!(share, Memory::Third | Memory::All) {
        table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        table.set_partition_filters(true);
    }

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_max_background_jobs(2);
    options.set_enable_pipelined_write(true);
    options.set_write_buffer_size(memtable);
    options.set_max_write_buffer_number(2);
    options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
        memory / 4,
        false,
        cache.clone(),
    ));
    let level_base = 4 * memtable as u64;
    options.set_max_bytes_for_level_base(level_base);
    options.set_target_file_size_base((level_base / 4).clamp(2 << 20, 64 << 20));
    (options, cache)
}

/// Runs a job with options that `vary` changes last. It gets the block cache too.
fn run(job: &Job, vary: fn(&mut Options, &Cache)) -> Result<()> {
    let memory = job.plan.memory_bytes as usize;
    let (mut options, cache) = options(memory, job.plan.cell.memory);
    vary(&mut options, &cache);

    let store = RocksStore {
        db: DB::open(&options, &job.directory).map_err(foreign)?,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

struct RocksStore {
    db: DB,
    memory_bytes: u64,
}

struct RocksClient<'a> {
    db: &'a DB,
    reads: ReadOptions,
    writes: WriteOptions,
}

impl Store for RocksStore {
    type Client<'a> = RocksClient<'a>;

    fn client(&self) -> Result<RocksClient<'_>> {
        Ok(RocksClient {
            db: &self.db,
            reads: ReadOptions::default(),
            writes: WriteOptions::default(),
        })
    }

    fn settle(&self) -> Result<()> {
        self.db.wait_for_compact(&flushed()).map_err(foreign)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for RocksClient<'_> {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(copied(
            self.db.get_pinned_opt(key, &self.reads).map_err(foreign)?,
            out,
        ))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put_opt(key, value, &self.writes).map_err(foreign)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        scan(self.db.raw_iterator(), start, count, show)
    }
}

/// What [`Store::settle`] waits for: a flush of all memtables, and compactions.
fn flushed() -> WaitForCompactOptions {
    let mut wait = WaitForCompactOptions::default();
    wait.set_flush(true);
    wait
}

/// Shows up to `count` records from the first key at or above `start`.
fn scan<D: DBAccess>(
    mut cursor: DBRawIteratorWithThreadMode<'_, D>,
    start: &[u8],
    count: usize,
    mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    cursor.seek(start);
    let mut left = count;
    while left > 0
        && let Some((key, value)) = cursor.item()
    {
        show(key, value)?;
        left -= 1;
        if left > 0 {
            cursor.next();
        }
    }
    cursor.status().map_err(foreign)
}
