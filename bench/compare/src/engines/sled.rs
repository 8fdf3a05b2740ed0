//! sled: its throughput mode, no compression, synced every 100 ms as Terrapin is. It takes far more
//! memory than its cache setting, so the cache gets a quarter of the memory and the process may
//! have 256 MiB more than others.

use sled::{Config, Db, Mode};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{Engine, copied, foreign};
use crate::plan::MemoryKind;
use crate::worker::{self, Job};

pub(super) const ENGINE: Engine = Engine {
    name: "sled",
    packages: &["sled"],
    logged: true,
    memory: MemoryKind::Bounded,
    overhead_bytes: 256 << 20,
    small_only: true,
    is_data_file: None,
    how: "buffered I/O, the log is the database; takes up to 256 MiB more than told",
    run,
};

fn run(job: &Job) -> Result<()> {
    let db = Config::new()
        .path(&job.directory)
        .mode(Mode::HighThroughput)
        .cache_capacity(job.plan.memory_bytes / 4)
        .flush_every_ms(Some(100))
        .open()
        .map_err(foreign)?;
    let store = SledStore {
        db,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

struct SledStore {
    db: Db,
    memory_bytes: u64,
}

impl Store for SledStore {
    type Client<'a> = &'a SledStore;

    fn client(&self) -> Result<&SledStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        self.db.flush().map(|_| ()).map_err(foreign)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for &SledStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(copied(self.db.get(key).map_err(foreign)?, out))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.insert(key, value).map(|_| ()).map_err(foreign)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        for record in self.db.range(start..).take(count) {
            let (key, value) = record.map_err(foreign)?;
            show(&key, &value)?;
        }
        Ok(())
    }
}
