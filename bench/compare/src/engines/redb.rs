//! redb. It has no log, and a commit either syncs or is lost with the process. Writes here are
//! transactions that do not sync (`Durability::None`). Once a second one syncs, or the file would
//! grow with every write.
//!
//! Its cache gets all of the memory, or half with everything in memory, where it was killed at its
//! limit: its file also goes through the page cache. Its process may have 32 MiB more than others,
//! since it was killed in a load with a small memory.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use terrapin_base::{Error, Result};
use terrapin_bench::{Client, Store};

use super::{Engine, foreign};
use crate::plan::{Memory, MemoryKind};
use crate::worker::{self, Job};

pub(super) const ENGINE: Engine = Engine {
    name: "redb",
    packages: &["redb"],
    logged: false,
    memory: MemoryKind::Bounded,
    overhead_bytes: 32 << 20,
    small_only: true,
    is_data_file: None,
    how: "buffered I/O, no log: a write is durable within a second",
    run,
};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// Time between commits that sync.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

fn run(job: &Job) -> Result<()> {
    let mut builder = Database::builder();
    let memory = job.plan.memory_bytes;
    let cache = match job.plan.cell.memory {
        Memory::All => memory / 2,
        _ => memory,
    };
    builder.set_cache_size(cache as usize);
    let store = RedbStore {
        database: builder
            .create(job.directory.join("records.redb"))
            .map_err(foreign)?,
        synced: Mutex::new(Instant::now()),
        memory_bytes: job.plan.memory_bytes,
    };
    store.commit(Durability::Immediate, None)?;
    worker::drive(job, &store)
}

struct RedbStore {
    database: Database,
    synced: Mutex<Instant>,
    memory_bytes: u64,
}

impl RedbStore {
    fn commit(&self, durability: Durability, record: Option<(&[u8], &[u8])>) -> Result<()> {
        let mut txn = self.database.begin_write().map_err(foreign)?;
        txn.set_durability(durability).map_err(foreign)?;
        {
            let mut table = txn.open_table(RECORDS).map_err(foreign)?;
            if let Some((key, value)) = record {
                table.insert(key, value).map_err(foreign)?;
            }
        }
        txn.commit().map_err(foreign)
    }

    /// Whether the next commit syncs.
    fn due(&self) -> Result<bool> {
        let mut synced = self
            .synced
            .lock()
            .map_err(|_| Error::internal("a writer panicked"))?;
        let due = synced.elapsed() >= SYNC_INTERVAL;
        if due {
            *synced = Instant::now();
        }
        Ok(due)
    }
}

impl Store for RedbStore {
    type Client<'a> = &'a RedbStore;

    fn client(&self) -> Result<&RedbStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        self.commit(Durability::Immediate, None)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for &RedbStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let txn = self.database.begin_read().map_err(foreign)?;
        let table = txn.open_table(RECORDS).map_err(foreign)?;
        let Some(value) = table.get(key).map_err(foreign)? else {
            return Ok(false);
        };
        out.extend_from_slice(value.value());
        Ok(true)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let durability = if self.due()? {
            Durability::Immediate
        } else {
            Durability::None
        };
        self.commit(durability, Some((key, value)))
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let txn = self.database.begin_read().map_err(foreign)?;
        let table = txn.open_table(RECORDS).map_err(foreign)?;
        for record in table.range(start..).map_err(foreign)?.take(count) {
            let (key, value) = record.map_err(foreign)?;
            show(key.value(), value.value())?;
        }
        Ok(())
    }
}
