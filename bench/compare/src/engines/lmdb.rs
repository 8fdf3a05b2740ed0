//! LMDB, through heed, as fast as it runs while its writes survive the death of the process:
//!
//! * The file is mapped for writing and not synced at commits (`MDB_WRITEMAP`, `MDB_NOSYNC`). A
//!   commit is a few stores into the page cache and survives the process, without a log. A power
//!   cut may damage the file. LMDB's manual says that a writable map is slower for data larger than
//!   memory; here a load was a tenth faster with it.
//! * There is no read-ahead (`MDB_NORDAHEAD`), as its documentation advises for data larger than
//!   memory.
//! * Each write, read and scan is a transaction. Its cache is the page cache, which its control
//!   group bounds.

#![allow(unsafe_code)] // heed opens its environments so

use std::ops::Bound;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{Engine, foreign};
use crate::plan::MemoryKind;
use crate::worker::{self, Job};

pub(super) const ENGINE: Engine = Engine {
    name: "lmdb",
    packages: &["heed", "lmdb-master-sys"],
    logged: false,
    memory: MemoryKind::Bounded,
    overhead_bytes: 0,
    small_only: false,
    is_data_file: None,
    how: "writable map, no log: commits survive the process, not a power cut",
    run,
};

fn run(job: &Job) -> Result<()> {
    let mut options = EnvOpenOptions::new();
    // Address space only. Pages of half-filled leaves, and those freed but not yet used again.
    options.map_size((job.plan.data_bytes() * 8).next_multiple_of(1 << 20) as usize + (1 << 30));
    let flags = EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD;
    // SAFETY: no other process opens this directory, which was made for this one. What these
    // flags risk, a file that a power cut leaves damaged, is never read again.
    let env = unsafe { options.flags(flags).open(&job.directory) }.map_err(foreign)?;
    let txn = env.write_txn().map_err(foreign)?;
    let records = env
        .create_databases_and_commit(txn, |opener, txn| {
            opener
                .create_database::<Bytes, Bytes>(txn, None)
                .map(CommitOrAbort::<_, ()>::Commit)
        })
        .map_err(foreign)?
        .unwrap_commit();
    let store = LmdbStore {
        env,
        records,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

struct LmdbStore {
    env: Env,
    records: Database<'static, Bytes, Bytes>,
    memory_bytes: u64,
}

impl Store for LmdbStore {
    type Client<'a> = &'a LmdbStore;

    fn client(&self) -> Result<&LmdbStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        self.env.force_sync().map_err(foreign)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for &LmdbStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let txn = self.env.read_txn().map_err(foreign)?;
        let Some(value) = self.records.get(&txn, key).map_err(foreign)? else {
            return Ok(false);
        };
        out.extend_from_slice(value);
        Ok(true)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn().map_err(foreign)?;
        self.records.put(&mut txn, key, value).map_err(foreign)?;
        txn.commit().map_err(foreign)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let txn = self.env.read_txn().map_err(foreign)?;
        let range = (Bound::Included(start), Bound::Unbounded);
        let records = self.records.range(&txn, &range).map_err(foreign)?;
        for record in records.take(count) {
            let (key, value) = record.map_err(foreign)?;
            show(key, value)?;
        }
        Ok(())
    }
}
