//! RocksDB with optimistic transactions. Each key that a transaction reads is one of
//! `get_for_update`, so that a commit fails if another writer changed it: that is what makes
//! transactions serializable. A compare-and-swap is a transaction of one such read and a put.

use rocksdb::{ErrorKind, OptimisticTransactionDB, ReadOptions, Transaction};
use terrapin_base::Result;
use terrapin_bench::{Client, Store};

use super::{flushed, options, scan};
use crate::engines::{copied, foreign};
use crate::worker::{self, Job};

pub(super) fn run(job: &Job) -> Result<()> {
    let (options, _) = options(job.plan.memory_bytes as usize, job.plan.cell.memory);
    let store = OptimisticStore {
        db: OptimisticTransactionDB::open(&options, &job.directory).map_err(foreign)?,
        memory_bytes: job.plan.memory_bytes,
    };
    worker::drive(job, &store)
}

struct OptimisticStore {
    db: OptimisticTransactionDB,
    memory_bytes: u64,
}

struct OptimisticClient<'a> {
    db: &'a OptimisticTransactionDB,
    reads: ReadOptions,
}

impl Store for OptimisticStore {
    type Client<'a> = OptimisticClient<'a>;

    fn client(&self) -> Result<OptimisticClient<'_>> {
        Ok(OptimisticClient {
            db: &self.db,
            reads: ReadOptions::default(),
        })
    }

    fn settle(&self) -> Result<()> {
        self.db.wait_for_compact(&flushed()).map_err(foreign)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Whether a commit found that another writer was faster, or cannot tell.
fn committed(transaction: Transaction<'_, OptimisticTransactionDB>) -> Result<bool> {
    match transaction.commit() {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain) => Ok(false),
        Err(error) => Err(foreign(error)),
    }
}

impl Client for OptimisticClient<'_> {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        Ok(copied(
            self.db.get_pinned_opt(key, &self.reads).map_err(foreign)?,
            out,
        ))
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value).map_err(foreign)
    }

    fn swap(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<bool> {
        loop {
            let transaction = self.db.transaction();
            let found = transaction
                .get_pinned_for_update(key, true)
                .map_err(foreign)?;
            let is_expected = found.is_some_and(|found| *found == *expected);
            if !is_expected {
                return Ok(false);
            }
            transaction.put(key, new).map_err(foreign)?;
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
            let transaction = self.db.transaction();
            for key in reads {
                let found = transaction
                    .get_pinned_for_update(key, true)
                    .map_err(foreign)?;
                show(key, found.as_deref())?;
            }
            for (key, value) in writes {
                transaction.put(key, value).map_err(foreign)?;
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
        scan(self.db.raw_iterator(), start, count, show)
    }
}
