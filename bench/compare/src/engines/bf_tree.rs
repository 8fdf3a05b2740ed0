//! bf-tree, without a log: its log waits for a flush at every write, and has no other mode. Its
//! only checkpoints are snapshots of everything. So nothing in it is durable, and its write
//! amplification counts evictions from its buffer only. Tables mark it.
//!
//! The driver sets its page size by the size of records: leaf pages of 4 KiB, the default, or of 12
//! KiB for records of 4 KiB, the largest that bf-tree takes. Its buffer is the largest power of two
//! that fits the memory; inner nodes and the page table come on top. Pages go through the page
//! cache, as by default, which uses the memory that the buffer leaves.

use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use terrapin_base::{Error, ErrorKind, Result};
use terrapin_bench::{Client, Store};

use super::Engine;
use crate::host;
use crate::plan::MemoryKind;
use crate::worker::{self, Job};

pub(super) const ENGINE: Engine = Engine {
    name: "bf-tree",
    packages: &["bf-tree"],
    logged: false,
    memory: MemoryKind::Bounded,
    overhead_bytes: 0,
    small_only: false,
    is_data_file: None,
    how: "buffered I/O, no log, no checkpoint: nothing is durable",
    run,
};

/// Its largest record: a leaf page holds more than two, and has 32 KiB at most.
const RECORD_BYTES_MAX: usize = 4096;
/// The default bytes of a leaf page, and the unit of others.
const PAGE_BYTES: usize = 4096;

fn run(job: &Job) -> Result<()> {
    let memory = job.plan.memory_bytes;
    let buffer = 1usize << memory.ilog2();
    let mut config = Config::new(job.directory.join("records.bftree"), buffer);
    config.storage_backend(StorageBackend::Std);
    // The sizes of its small pages follow from these.
    let record = job.plan.cell.record.bytes();
    if record > RECORD_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the record is too large for bf-tree",
        )
        .with("given", record)
        .with("limit", RECORD_BYTES_MAX));
    }
    if 2 * record > PAGE_BYTES {
        config.leaf_page_size((2 * record).next_multiple_of(PAGE_BYTES) + PAGE_BYTES);
    }
    config.cb_min_record_size(record).cb_max_record_size(record);
    let tree = BfTree::with_config(config, None)
        .map_err(|e| Error::invalid(format!("bf-tree refuses its options: {e:?}")))?;
    let store = BfStore {
        tree,
        job,
        memory_bytes: memory,
    };
    worker::drive(job, &store)
}

struct BfStore<'j> {
    tree: BfTree,
    job: &'j Job,
    memory_bytes: u64,
}

struct BfClient<'a> {
    tree: &'a BfTree,
    buffer: Vec<u8>,
}

impl Store for BfStore<'_> {
    type Client<'a>
        = BfClient<'a>
    where
        Self: 'a;

    fn client(&self) -> Result<BfClient<'_>> {
        Ok(BfClient {
            tree: &self.tree,
            buffer: vec![0; RECORD_BYTES_MAX],
        })
    }

    fn settle(&self) -> Result<()> {
        host::sync_files(&self.job.directory)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Client for BfClient<'_> {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        match self.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(length) => {
                out.extend_from_slice(&self.buffer[..length as usize]);
                Ok(true)
            }
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(false),
            LeafReadResult::InvalidKey => Err(Error::invalid("bf-tree refuses a key")),
        }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => {
                Err(Error::invalid("bf-tree refuses a record").with("why", why))
            }
        }
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let field = ScanReturnField::KeyAndValue;
        let mut records = self
            .tree
            .scan_with_count(start, count, field)
            .map_err(|e| Error::invalid(format!("bf-tree refuses a scan: {e:?}")))?;
        while let Some((key, value)) = records.next(&mut self.buffer) {
            let (key, rest) = self.buffer.split_at(key);
            show(key, &rest[..value])?;
        }
        Ok(())
    }
}
