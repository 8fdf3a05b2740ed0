//! The merge of memtables into a tree.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Budget, Env, Generation, Incarnation, Message, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{
    Erased, Estimate, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure,
};

use super::operations_under_count;
use crate::disk::SteadyDisk;
use crate::records::{KEY_BYTES, RECORD_BYTES, VALUE_BYTES, key, value};

/// Records of a memtable: χ = 8.
pub const MEMTABLE_RECORDS: u64 = 8 * GROUP_BYTES / RECORD_BYTES;
const GROUP_BYTES: u64 = 64 << 10;
/// Memtables in the tree before the count begins.
const MEMTABLES_BEFORE: u64 = 12;
/// Memtables prepared; the operations merge that many.
const MEMTABLES: u64 = MEMTABLES_BEFORE + 8;

/// A memtable's keys, sorted.
struct Memtable(Vec<[u8; KEY_BYTES]>);

struct Cursor {
    memtable: Arc<Memtable>,
    at: usize,
    end: usize,
    value: [u8; VALUE_BYTES],
}

impl Memtable {
    fn of(number: u64) -> Arc<Self> {
        let first = number * MEMTABLE_RECORDS;
        let mut keys: Vec<_> = (first..first + MEMTABLE_RECORDS).map(key).collect();
        keys.sort_unstable();
        Arc::new(Memtable(keys))
    }

    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        key.map_or(otherwise, |key| self.0.partition_point(|k| k[..] < *key))
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then(|| &self.memtable.0[self.at][..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&self.value)
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        Ok(Box::new(Cursor {
            at: self.place(lo, 0),
            end: self.place(hi, self.0.len()),
            value: value(&[7; KEY_BYTES]),
            memtable: self,
        }))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let end = self.place(hi, self.0.len());
        let records = end.saturating_sub(self.place(lo, 0)) as u64;
        Estimate {
            records,
            bytes: records * RECORD_BYTES,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }
}

pub fn merge(count: u64) -> Result<()> {
    let (env, _sim) = Env::simulated(4);
    let budget = Budget::new(64 << 20);
    let options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 1 << 20,
        system_cache: false,
    };
    let disk = SteadyDisk::open(&env, Path::new("pages"))?;
    let store = ManuallyDrop::new(PageStore::create(&disk, options, 1)?);
    store.begin_life(Incarnation(1));
    let params = BeTreeParams {
        fanout: 16,
        ..BeTreeParams::new(budget)
    };
    let tree = ManuallyDrop::new(BeTree::new(Arc::clone(&store), params));
    let options = MergeOptions::new(GROUP_BYTES);
    let mut version = tree.empty();
    let mut merge = |number: u64, memtable: Arc<Memtable>| -> Result<()> {
        let merge = tree.begin_merge(&version, memtable, &options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        version = merged.version;
        store.commit(Generation(number + 2), merged.changes);
        while store.reclaim_step()? {}
        Ok(())
    };
    let mut memtables = (0..MEMTABLES)
        .map(Memtable::of)
        .collect::<Vec<_>>()
        .into_iter()
        .zip(0..);
    for (memtable, number) in memtables.by_ref().take(MEMTABLES_BEFORE as usize) {
        merge(number, memtable)?;
    }
    operations_under_count(count / MEMTABLE_RECORDS, |_| match memtables.next() {
        Some((memtable, number)) => merge(number, memtable),
        None => Err(terrapin_base::Error::internal(
            "fewer memtables than operations",
        )),
    })
}
