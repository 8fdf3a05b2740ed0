//! The merge of memtables into a tree, and gets from a page-grouped one.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Env, Error, Generation, Incarnation, Message, Result};
use terrapin_betree::{BeTree, BeTreeParams};
use terrapin_inplace::{InPlace, InPlaceParams};
use terrapin_pages::{PageStore, StoreOptions};
use terrapin_structure::{
    Erased, Estimate, Found, MergeInput, MergeOptions, MergeStep, MessageCursor, Structure, Version,
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

/// A tree that memtables are merged into. It is never dropped.
struct Tree {
    store: ManuallyDrop<Arc<PageStore>>,
    structure: ManuallyDrop<Arc<dyn Structure>>,
    version: ManuallyDrop<Arc<dyn Version>>,
    options: MergeOptions,
    merged: u64,
}

impl Tree {
    fn new(make: impl FnOnce(Arc<PageStore>, Arc<Budget>) -> Arc<dyn Structure>) -> Result<Tree> {
        let (env, _sim) = Env::simulated(4);
        let budget = Budget::new(64 << 20);
        let options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 1 << 20,
            system_cache: false,
        };
        let disk = SteadyDisk::open(&env, Path::new("pages"))?;
        let store = PageStore::create(&disk, options, 1)?;
        store.begin_life(Incarnation(1));
        let structure = make(Arc::clone(&store), budget);
        Ok(Tree {
            version: ManuallyDrop::new(structure.empty()),
            structure: ManuallyDrop::new(structure),
            store: ManuallyDrop::new(store),
            options: MergeOptions::new(GROUP_BYTES),
            merged: 0,
        })
    }

    fn merge(&mut self, memtable: Arc<Memtable>) -> Result<()> {
        let merge = (self.structure).begin_merge(&self.version, memtable, &self.options)?;
        while !matches!(merge.step()?, MergeStep::Done) {}
        let merged = merge.finish()?;
        *self.version = merged.version;
        self.store
            .commit(Generation(self.merged + 2), merged.changes);
        self.merged += 1;
        while self.store.reclaim_step()? {}
        Ok(())
    }

    /// Merges memtables, and counts those from the twelfth on.
    fn merge_under_count(&mut self, count: u64) -> Result<()> {
        let mut memtables = (0..MEMTABLES)
            .map(Memtable::of)
            .collect::<Vec<_>>()
            .into_iter();
        for memtable in memtables.by_ref().take(MEMTABLES_BEFORE as usize) {
            self.merge(memtable)?;
        }
        operations_under_count(count / MEMTABLE_RECORDS, |_| match memtables.next() {
            Some(memtable) => self.merge(memtable),
            None => Err(Error::internal("fewer memtables than operations")),
        })
    }
}

fn leveled(store: Arc<PageStore>, budget: Arc<Budget>) -> Arc<dyn Structure> {
    let params = BeTreeParams {
        fanout: 16,
        ..BeTreeParams::new(budget)
    };
    BeTree::new(store, params)
}

fn page_grouped(store: Arc<PageStore>, budget: Arc<Budget>) -> Arc<dyn Structure> {
    InPlace::new(store, InPlaceParams::new(budget))
}

pub fn merge(count: u64) -> Result<()> {
    Tree::new(leveled)?.merge_under_count(count)
}

pub fn merge_page_grouped(count: u64) -> Result<()> {
    Tree::new(page_grouped)?.merge_under_count(count)
}

/// Gets of keys of which some wait beside their leaf. All blocks are cached.
pub fn get_page_grouped(count: u64) -> Result<()> {
    let mut tree = Tree::new(page_grouped)?;
    for number in 0..MEMTABLES_BEFORE {
        tree.merge(Memtable::of(number))?;
    }
    let records = MEMTABLES_BEFORE * MEMTABLE_RECORDS;
    let get = |number: u64| -> Result<()> {
        let key = key(number.wrapping_mul(7_919) % records);
        match tree.version.get(&key, hash64(&key))? {
            Found::Value(_) => Ok(()),
            _ => Err(Error::internal("a key is not found")),
        }
    };
    (0..records).try_for_each(get)?;
    operations_under_count(count, get)
}
