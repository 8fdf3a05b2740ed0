//! fjall: leveled compaction, its default filters (10 bits, more for the newest level), no
//! compression, 2 worker threads, no direct I/O.
//!
//! Its cache gets a quarter of the memory, as its documentation advises, or three quarters if all
//! data fits. Memtables get an eighth each; up to four wait for their flushes beside the active
//! one, and no option bounds their sum. The page cache gets the rest. With a small memory it was
//! killed at its limit, so it may have 96 MiB more. Its journal goes to the page cache with each
//! write, as by default, and is not synced.
//!
//! The variant with separated values has that mode's defaults, except for the smallest value that
//! it separates. The variant for transactions is `OptimisticTxDatabase`, which finds conflicts at
//! the commit, as Terrapin does.

mod optimistic;

use std::time::Duration;

use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{Engine, SEPARATE_BYTES_MIN, copied, foreign};
use crate::plan::{Memory, MemoryKind};
use crate::worker::{self, Job};

const ENGINE: Engine = Engine {
    name: "fjall",
    packages: &["fjall", "lsm-tree"],
    logged: true,
    memory: MemoryKind::Allocated,
    overhead_bytes: 96 << 20,
    small_only: false,
    is_data_file: Some(|path| {
        path.parent()
            .is_some_and(|p| p.ends_with("tables") || p.ends_with("blobs"))
    }),
    how: "buffered I/O, buffered log",
    run: |job| run(job, KeyspaceCreateOptions::default()),
};

pub(super) const ENGINES: &[Engine] = &[
    ENGINE,
    Engine {
        name: "fjall-optimistic",
        how: "as fjall, with optimistic transactions",
        run: optimistic::run,
        ..ENGINE
    },
    Engine {
        name: "fjall-kv",
        how: "as fjall, with values of 512 bytes or more apart from keys",
        run: |job| {
            let apart = KvSeparationOptions::default()
                .separation_threshold(SEPARATE_BYTES_MIN)
                .compression(CompressionType::None);
            let options = KeyspaceCreateOptions::default();
            run(job, options.with_kv_separation(Some(apart)))
        },
        ..ENGINE
    },
];

/// fjall has no call that waits for compactions. It counts as done when it was idle in this many
/// checks in a row.
const IDLE_LOOKS: u32 = 5;
/// Time between two checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

fn run(job: &Job, options: KeyspaceCreateOptions) -> Result<()> {
    let builder = Database::builder(&job.directory);
    let database = builder.cache_size(cache_bytes(job)).worker_threads(2);
    let database = database.open().map_err(foreign)?;
    let records = database.keyspace("records", || tree(job, options));
    let store = FjallStore {
        records: records.map_err(foreign)?,
        database,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

fn cache_bytes(job: &Job) -> u64 {
    let memory = job.plan.memory_bytes;
    match job.plan.cell.memory {
        Memory::All => memory / 4 * 3,
        _ => memory / 4,
    }
}

/// Options of the records' tree.
fn tree(job: &Job, options: KeyspaceCreateOptions) -> KeyspaceCreateOptions {
    options
        .max_memtable_size((job.plan.memory_bytes / 8).clamp(1 << 20, 64 << 20))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
}

struct FjallStore {
    database: Database,
    records: Keyspace,
    memory_bytes: u64,
}

impl Store for FjallStore {
    type Client<'a> = &'a FjallStore;

    fn client(&self) -> Result<&FjallStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        settle(&self.database, &self.records)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for &FjallStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(copied(self.records.get(key).map_err(foreign)?, out))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records.insert(key, value).map_err(foreign)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        scan(&self.records, start, count, show)
    }
}

/// Flushes the memtable, waits for compactions, and syncs.
fn settle(database: &Database, records: &Keyspace) -> Result<()> {
    records.rotate_memtable_and_wait().map_err(foreign)?;
    let mut idle = 0;
    while idle < IDLE_LOOKS {
        std::thread::sleep(LOOK_INTERVAL);
        let busy = database.outstanding_flushes() > 0 || database.active_compactions() > 0;
        idle = if busy { 0 } else { idle + 1 };
    }
    database.persist(PersistMode::SyncAll).map_err(foreign)
}

/// Shows up to `count` records from the first key at or above `start`.
fn scan(
    records: &Keyspace,
    start: &[u8],
    count: usize,
    mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    for record in records.range(start..).take(count) {
        let (key, value) = record.into_inner().map_err(foreign)?;
        show(&key, &value)?;
    }
    Ok(())
}
