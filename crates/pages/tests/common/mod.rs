//! Helpers of the page store's tests: stores on a simulated disk, and groups of generated records.
#![allow(dead_code)] // each test file uses a part

use std::sync::Arc;

use terrapin_base::{Budget, Error, Generation, Incarnation, Message, PageId};
use terrapin_disk::{Disk, SimDisk};
use terrapin_pages::block::Compression;
use terrapin_pages::group::{GroupBuilder, GroupOptions, GroupRef, PendingGroup};
use terrapin_pages::{
    Changes, DATA_FILE, Fill, PageKind, PageRef, PageStore, PageUse, SpaceClass, StoreOptions,
    Superblock,
};

pub const DATABASE: u64 = 77;

pub fn options(memory_bytes: u64, reserve_bytes: u64) -> StoreOptions {
    StoreOptions {
        budget: Budget::new(memory_bytes),
        reserve_bytes,
        system_cache: false,
    }
}

/// A new store that may be written.
pub fn create(medium: &SimDisk, options: StoreOptions) -> Arc<PageStore> {
    let disk: Arc<dyn Disk> = medium.handle();
    let store = PageStore::create(&disk, options, DATABASE).unwrap();
    store.begin_life(Incarnation(1));
    store
}

/// Opens a store, rebuilds its space from `uses`, and begins a life.
pub fn open(
    medium: &SimDisk,
    options: StoreOptions,
    uses: &[PageUse],
    life: u32,
) -> (Arc<PageStore>, Superblock) {
    let disk: Arc<dyn Disk> = medium.handle();
    let (store, superblock) = PageStore::open(&disk, options, false).unwrap();
    store
        .rebuild(&mut uses.iter().copied().map(Ok), superblock.generation)
        .unwrap();
    store.begin_life(Incarnation(life));
    (store, superblock)
}

pub fn key(i: usize) -> Vec<u8> {
    format!("key{i:08}").into_bytes()
}

pub fn value(i: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (i * 31 + at * 7) as u8).collect()
}

/// One group of the records `from..to`.
pub fn pending(from: usize, to: usize, value_bytes: usize, filter: bool) -> PendingGroup {
    fill(builder(filter), from, to, value_bytes)
}

/// A builder of large groups.
pub fn builder(filter: bool) -> GroupBuilder {
    GroupBuilder::new(GroupOptions {
        target_bytes: 16 << 20,
        block_bytes: 4096,
        unit: 512,
        compression: Compression::None,
        filter_bits: if filter { 12 } else { 0 },
        now_ms: 0,
    })
}

/// One group of the records `from..to`, by a builder.
pub fn fill(mut builder: GroupBuilder, from: usize, to: usize, value_bytes: usize) -> PendingGroup {
    for i in from..to {
        assert!(
            builder
                .add(&key(i), Message::Put(&value(i, value_bytes)))
                .unwrap()
                .is_none()
        );
    }
    let mut groups = builder.finish();
    assert_eq!(groups.len(), 1);
    groups.remove(0)
}

pub fn write_group(store: &PageStore, records: usize) -> GroupRef {
    store
        .write_group(pending(0, records, 100, true), SpaceClass::Normal)
        .unwrap()
}

pub fn write_node(store: &PageStore, bytes: usize) -> PageRef {
    store
        .write_page(PageKind::Node, &vec![7; bytes], SpaceClass::Normal)
        .unwrap()
}

/// Writes pages of `bytes` bytes until one is refused. Returns the error.
pub fn fill_with(store: &PageStore, bytes: usize, class: SpaceClass) -> (Vec<PageRef>, Error) {
    let mut pages = Vec::new();
    loop {
        match store.write_page(PageKind::Node, &vec![1; bytes], class) {
            Ok(page) => pages.push(page),
            Err(error) => return (pages, error),
        }
    }
}

pub fn added<'a, T: 'a>(pages: impl IntoIterator<Item = &'a T>) -> Changes
where
    PageUse: From<&'a T>,
{
    Changes {
        added: pages.into_iter().map(PageUse::from).collect(),
        ..Changes::default()
    }
}

pub fn released(ids: impl IntoIterator<Item = PageId>) -> Changes {
    Changes {
        released: ids.into_iter().collect(),
        ..Changes::default()
    }
}

/// The durable part of a checkpoint (D2), without a log.
pub fn make_durable(store: &PageStore, catalog: Option<PageRef>) -> Generation {
    let before = store.superblock();
    let superblock = Superblock {
        generation: Generation(before.generation.0 + 1),
        catalog,
        ..before
    };
    store.sync().unwrap();
    for slot in 0..2 {
        store.write_superblock(slot, &superblock).unwrap();
        store.sync().unwrap();
    }
    superblock.generation
}

/// A whole checkpoint.
pub fn checkpoint(store: &PageStore, changes: Changes) -> Generation {
    let generation = make_durable(store, None);
    store.commit(generation, changes);
    generation
}

/// Runs steps until there is nothing more to reclaim.
pub fn reclaim_all(store: &PageStore) {
    let mut steps = 0;
    while store.reclaim_step().unwrap() {
        steps += 1;
        assert!(steps < 100_000, "reclaiming never ends");
    }
}

pub const MIB: u64 = 1 << 20;

/// Records of the group that tests of reads write.
pub const RECORDS: usize = 2000;

/// Device reads of the data file so far.
pub fn reads(medium: &SimDisk) -> u64 {
    medium.stats(DATA_FILE).reads
}

/// A store that has a group of which nothing is cached.
pub fn cold(medium: &SimDisk, memory_bytes: u64) -> (Arc<PageStore>, GroupRef) {
    let store = create(medium, options(memory_bytes, 0));
    let group = write_group(&store, RECORDS);
    checkpoint(&store, added([&group]));
    drop(store);
    medium.crash_process();
    let (store, _) = open(
        medium,
        options(memory_bytes, 0),
        &[PageUse::from(&group)],
        2,
    );
    (store, group)
}

/// The value of record `i`.
pub fn get(store: &PageStore, group: &GroupRef, i: usize) -> Option<Vec<u8>> {
    let index = store.index(group).unwrap();
    let number = index.find(&key(i));
    let block = store.block(group, &index, number, Fill::Normal).unwrap();
    let at = block.search(&key(i)).ok()?;
    block.message(at).put_value().map(<[u8]>::to_vec)
}
