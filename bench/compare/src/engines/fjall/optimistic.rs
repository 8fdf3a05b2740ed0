//! fjall with optimistic transactions, which are serializable. A compare-and-swap is a transaction
//! of one read and an insert. Writes of phases without transactions go to the tree directly.

use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, OptimisticWriteTx, Readable,
};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{cache_bytes, scan, settle, tree};
use crate::engines::{copied, foreign};
use crate::worker::{self, Job};

pub(super) fn run(job: &Job) -> Result<()> {
    let builder = OptimisticTxDatabase::builder(&job.directory);
    let database = builder.cache_size(cache_bytes(job)).worker_threads(2);
    let database = database.open().map_err(foreign)?;
    let options = || tree(job, KeyspaceCreateOptions::default());
    let records = database.keyspace("records", options).map_err(foreign)?;
    let store = OptimisticStore {
        database,
        records,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

struct OptimisticStore {
    database: OptimisticTxDatabase,
    records: OptimisticTxKeyspace,
    memory_bytes: u64,
}

impl Store for OptimisticStore {
    type Client<'a> = &'a OptimisticStore;

    fn client(&self) -> Result<&OptimisticStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        settle(self.database.inner(), self.records.inner())
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Whether a commit found no conflict.
fn committed(transaction: OptimisticWriteTx) -> Result<bool> {
    Ok(transaction.commit().map_err(foreign)?.is_ok())
}

impl Client for &OptimisticStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(copied(self.records.get(key).map_err(foreign)?, out))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records.inner().insert(key, value).map_err(foreign)
    }

    fn swap(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<bool> {
        loop {
            let mut transaction = self.database.write_tx().map_err(foreign)?;
            let found = transaction.get(&self.records, key).map_err(foreign)?;
            if found.as_deref() != Some(expected) {
                return Ok(false);
            }
            transaction.insert(&self.records, key, new);
            if committed(transaction)? {
                return Ok(true);
            }
        }
    }

    fn transact(
        &mut self,
        reads: &[Vec<u8>],
        writes: &[(&[u8], Vec<u8>)],
        mut show: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        loop {
            let mut transaction = self.database.write_tx().map_err(foreign)?;
            for key in reads {
                let found = transaction.get(&self.records, key).map_err(foreign)?;
                show(key, found.as_deref())?;
            }
            for (key, value) in writes {
                transaction.insert(&self.records, *key, value.as_slice());
            }
            if committed(transaction)? {
                return Ok(());
            }
        }
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        scan(self.records.inner(), start, count, show)
    }
}
