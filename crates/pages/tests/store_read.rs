//! Reads through the cache: their device reads, the errors of damaged pages, and the memory budget.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{
    added, builder, checkpoint, create, fill, key, open, options, pending, released, value,
    write_group, write_node,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Error, ErrorKind, Message, Purpose, Result};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef, check_group};
use terrapin_pages::{
    DATA_FILE, Fill, GroupHandle, OutlinePlaces, PageKind, PageStore, PageUse, SegmentOutlines,
    SpaceClass,
};

const MIB: u64 = 1 << 20;
const RECORDS: usize = 2000;

fn reads(medium: &SimDisk) -> u64 {
    medium.stats(DATA_FILE).reads
}

/// A store that has a group of which nothing is cached.
fn cold(medium: &SimDisk, memory_bytes: u64) -> (Arc<PageStore>, GroupRef) {
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

fn get(store: &PageStore, group: &GroupRef, i: usize) -> Option<Vec<u8>> {
    let index = store.index(group).unwrap();
    let number = index.find(&key(i));
    let block = store.block(group, &index, number, Fill::Normal).unwrap();
    let at = block.search(&key(i)).ok()?;
    block.message(at).value().map(<[u8]>::to_vec)
}

/// Bytes of a read that covers these blocks on a device with this alignment.
fn cover(index: &GroupIndex, blocks: Range<usize>, alignment: u64) -> u64 {
    let (last, last_bytes) = index.block_place(blocks.end - 1);
    let start = u64::from(index.block_place(blocks.start).0);
    let end = u64::from(last) + u64::from(last_bytes);
    end.next_multiple_of(alignment) - start / alignment * alignment
}

fn records(blocks: &[Arc<Block>]) -> Vec<Vec<u8>> {
    blocks
        .iter()
        .flat_map(|block| (0..block.len()).map(|i| block.key(i)).collect::<Vec<_>>())
        .collect()
}

#[test]
fn a_get_with_cached_metadata_costs_one_read_and_with_a_cached_block_none() {
    let medium = SimDisk::new(1);
    let (store, group) = cold(&medium, 4 * MIB);
    let before = reads(&medium);
    assert_eq!(get(&store, &group, 5), Some(value(5, 100)));
    assert_eq!(reads(&medium) - before, 2); // index and block
    assert_eq!(
        get(&store, &group, RECORDS - 1),
        Some(value(RECORDS - 1, 100))
    );
    assert_eq!(reads(&medium) - before, 3);
    assert_eq!(get(&store, &group, 5), Some(value(5, 100)));
    assert_eq!(get(&store, &group, RECORDS), None);
    assert_eq!(reads(&medium) - before, 3);
    let metrics = store.metrics();
    assert_eq!((metrics.misses.indexes, metrics.misses.blocks), (1, 2));
    assert_eq!((metrics.hits.indexes, metrics.hits.blocks), (3, 2));
    assert_eq!((metrics.read.get_reads, metrics.read.meta_reads), (2, 3)); // two superblock slots
    assert!(store.cached_block(&group, 0).is_some());
    assert!(store.cached_block(&group, 1).is_none());
}

#[test]
fn a_filter_probe_reads_one_partition_once_and_knows_every_key() {
    let medium = SimDisk::new(2);
    let (store, group) = cold(&medium, 4 * MIB);
    let before = reads(&medium);
    for i in 0..RECORDS {
        assert!(store.may_contain(&group, hash64(&key(i))).unwrap());
    }
    assert_eq!(
        reads(&medium) - before,
        u64::from(group.filter_partitions())
    );
    let lies = (RECORDS..RECORDS + 4000)
        .filter(|&i| store.may_contain(&group, hash64(&key(i))).unwrap())
        .count();
    assert!(lies < 40, "{lies} of 4000");
    let bare = store
        .write_group(pending(0, 10, 10, false), SpaceClass::Normal)
        .unwrap();
    let before = reads(&medium);
    assert!(store.may_contain(&bare, 1).unwrap());
    assert_eq!(reads(&medium), before);
}

/// A node's only segment, with its outlines.
struct Segment {
    group: GroupRef,
    handle: GroupHandle,
    outlines: SegmentOutlines,
    places: OutlinePlaces,
}

impl Segment {
    fn new(group: GroupRef) -> Self {
        let mut outlines = SegmentOutlines::default();
        Segment {
            group,
            handle: GroupHandle::default(),
            places: outlines.add(&group),
            outlines,
        }
    }

    fn ask(&self, store: &PageStore, i: usize) -> Result<bool> {
        let hash = hash64(&key(i));
        store.segment_may_contain(&self.group, &self.handle, &self.outlines, self.places, hash)
    }

    fn denies(&self, i: usize) -> bool {
        self.outlines.known().deny(self.places, hash64(&key(i)))
    }
}

#[test]
fn outlines_deny_most_keys_that_a_segment_lacks() {
    let medium = SimDisk::new(13);
    let (store, group) = cold(&medium, 4 * MIB);
    let segment = Segment::new(group);
    let ask = |i| segment.ask(&store, i);
    let filter = group.filter_partition_offset(0);
    let others = || RECORDS..RECORDS + 4000;
    assert!(medium.corrupt(DATA_FILE, filter + 9, 1));
    assert_eq!(ask(0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!others().any(|i| segment.denies(i)), "nothing is known");
    assert!(medium.corrupt(DATA_FILE, filter + 9, 1));
    let before = reads(&medium);
    assert!((0..RECORDS).all(|i| ask(i).unwrap()));
    assert_eq!(
        reads(&medium) - before,
        u64::from(group.filter_partitions())
    );
    assert!(!(0..RECORDS).any(|i| segment.denies(i)));
    let denied = others().filter(|&i| segment.denies(i)).count();
    assert!(denied > 3750, "{denied} of 4000");
    for i in others() {
        let hash = hash64(&key(i));
        assert_eq!(ask(i).unwrap(), store.may_contain(&group, hash).unwrap());
        assert!(!segment.denies(i) || !ask(i).unwrap());
    }
    // Another node with the same group knows the outline as soon as it asks.
    let next = Segment::new(group);
    next.ask(&store, 0).unwrap();
    assert!(others().any(|i| next.denies(i)));
}

#[test]
fn outlines_are_charged_while_held_and_take_little_memory() {
    let medium = SimDisk::new(14);
    let budget = Budget::new(640_000);
    let mut options = options(0, 0);
    options.budget = budget.clone();
    let store = create(&medium, options);
    let groups: Vec<_> = (0..24).map(|_| write_group(&store, RECORDS)).collect();
    let cached = || store.metrics().cache_bytes;
    let outlines = || budget.used(Purpose::Metadata) + budget.used(Purpose::Blocks) - cached();
    let segments: Vec<_> = groups.iter().map(|&group| Segment::new(group)).collect();
    assert_eq!(outlines(), 0);
    for segment in &segments {
        assert!((0..RECORDS).all(|i| segment.ask(&store, i).unwrap()));
    }
    let all = groups.iter().map(|group| u64::from(group.filter_bytes));
    let taken = outlines();
    assert!(taken > 20_000 && taken <= 40_000, "{taken}");
    assert!(taken < all.sum(), "some do without");
    let denies = |segment: &&Segment| (0..1000).any(|i| segment.denies(RECORDS + i));
    let denying = segments.iter().filter(denies).count();
    assert!((1..groups.len()).contains(&denying), "{denying}");
    drop(segments);
    drop(store);
    assert_eq!(budget.used(Purpose::Metadata), 0);
}

#[test]
fn a_new_segment_has_outlines_while_there_is_room() {
    let medium = SimDisk::new(15);
    let budget = Budget::new(4 * MIB);
    let mut options = options(0, 0);
    options.budget = budget.clone();
    let store = create(&medium, options);
    let write = || {
        let mut builder = builder(true);
        builder.outline_filters();
        let pending = fill(builder, 0, RECORDS, 100);
        store.write_segment(pending, SpaceClass::Normal).unwrap()
    };
    let outlines = || {
        let metadata = budget.used(Purpose::Metadata) + budget.used(Purpose::Blocks);
        metadata - store.metrics().cache_bytes
    };
    let group = write();
    let before = outlines();
    assert!(before >= u64::from(group.filter_bytes), "{before}");
    let segment = Segment::new(group);
    assert!((0..RECORDS).all(|i| segment.ask(&store, i).unwrap()));
    assert!(!(0..RECORDS).any(|i| segment.denies(i)));
    let denied = (RECORDS..RECORDS + 4000).filter(|&i| segment.denies(i));
    assert!(denied.count() > 3850);
    assert_eq!(outlines(), before, "none was made for who asked");

    assert!(store.has_room_for_outlines());
    for _ in 0..200 {
        write();
    }
    assert!(!store.has_room_for_outlines());
    assert!(outlines() <= 4 * MIB / 16);
    drop(segment);
    drop(store);
    assert_eq!(budget.used(Purpose::Metadata), 0);
}

#[test]
fn a_new_group_s_metadata_is_cached() {
    let medium = SimDisk::new(3);
    let store = create(&medium, options(4 * MIB, 0));
    let group = write_group(&store, RECORDS);
    let before = reads(&medium);
    assert!(store.may_contain(&group, hash64(&key(3))).unwrap());
    assert_eq!(get(&store, &group, 3), Some(value(3, 100)));
    assert_eq!(reads(&medium) - before, 1);
}

#[test]
fn runs_and_batches_read_missing_blocks_and_agree_with_single_reads() {
    let medium = SimDisk::new(4);
    let (store, group) = cold(&medium, 8 * MIB);
    let index = store.index(&group).unwrap();
    let all: Vec<_> = (0..RECORDS).map(key).collect();
    let before = reads(&medium);
    let mut run = Vec::new();
    store
        .block_run(&group, &index, 0..index.blocks(), Fill::No, &mut run)
        .unwrap();
    assert_eq!((records(&run), reads(&medium) - before), (all.clone(), 1));
    assert!(
        (0..index.blocks()).all(|i| store.cached_block(&group, i).is_none()),
        "merges cache nothing"
    );

    for i in [3, 7] {
        store.block(&group, &index, i, Fill::Normal).unwrap();
    }
    let before = (reads(&medium), medium.stats(DATA_FILE).read_bytes);
    run.clear();
    store
        .block_run(&group, &index, 3..8, Fill::Low, &mut run)
        .unwrap();
    let after = (reads(&medium), medium.stats(DATA_FILE).read_bytes);
    assert_eq!(
        (after.0 - before.0, after.1 - before.1),
        (1, cover(&index, 4..7, 512))
    );
    assert_eq!(run.len(), 5);
    run.clear();
    store
        .block_run(&group, &index, 3..8, Fill::Low, &mut run)
        .unwrap();
    store
        .block_run(&group, &index, 3..3, Fill::Low, &mut run)
        .unwrap();
    assert_eq!((run.len(), reads(&medium)), (5, after.0));

    let wants: Vec<_> = [20, 3, 11, 5, 20].map(|i| (group, index.clone(), i)).into();
    let blocks = store.blocks(&wants, Fill::Normal).unwrap();
    for ((_, _, number), block) in wants.iter().zip(&blocks) {
        assert_eq!(
            block.key(0),
            store
                .block(&group, &index, *number, Fill::Normal)
                .unwrap()
                .key(0)
        );
    }
    let before = reads(&medium);
    assert_eq!(store.blocks(&wants, Fill::Normal).unwrap().len(), 5);
    assert_eq!(store.blocks(&[], Fill::Normal).unwrap().len(), 0);
    assert_eq!(reads(&medium), before);
    let report = check_group(&store.read_whole_group(&group).unwrap(), &group).unwrap();
    assert_eq!(report.records, RECORDS as u64);
    assert_eq!(store.metrics().read.verify_reads, 1);
}

#[test]
fn neighbours_in_a_batch_make_one_read() {
    let (store, group) = cold(&SimDisk::new(14), 8 * MIB);
    let index = store.index(&group).unwrap();
    let numbers = [9, 2, 3, 4, 12, 11, 6, 7];
    let wants: Vec<_> = numbers.map(|i| (group, index.clone(), i)).into();
    let before = store.metrics().read.get_reads;
    let blocks = store.blocks(&wants, Fill::Normal).unwrap();
    // The reads: block 9, blocks 2 to 4, blocks 12 and 11, blocks 6 and 7.
    assert_eq!(store.metrics().read.get_reads - before, 4);
    for (block, number) in blocks.iter().zip(numbers) {
        let alone = store.block(&group, &index, number, Fill::No).unwrap();
        assert_eq!(block.bytes(), alone.bytes());
        assert!(Arc::ptr_eq(block, &alone));
    }
}

#[test]
fn a_read_covers_the_block_on_the_present_device() {
    let medium = SimDisk::new(15);
    let (store, group) = cold(&medium, 8 * MIB);
    let blocks = store.index(&group).unwrap().blocks();
    drop(store);
    let mut expected = None;
    // The file was built for units of 512 bytes, and copied to devices with other alignments.
    for alignment in [512, 1024, 4096] {
        medium.crash_process();
        medium.set_alignment(alignment);
        let (store, _) = open(&medium, options(8 * MIB, 0), &[PageUse::from(&group)], 3);
        let index = store.index(&group).unwrap();
        for number in [0, 1, blocks / 2, blocks - 1] {
            let before = store.metrics().read;
            store.block(&group, &index, number, Fill::No).unwrap();
            let after = store.metrics().read;
            assert_eq!(
                (
                    after.merge_reads - before.merge_reads,
                    after.merge_bytes - before.merge_bytes
                ),
                (1, cover(&index, number..number + 1, u64::from(alignment)))
            );
        }
        let mut run = Vec::new();
        store
            .block_run(&group, &index, 0..blocks, Fill::No, &mut run)
            .unwrap();
        let all: Vec<_> = (0..blocks).map(|i| (group, index.clone(), i)).collect();
        // Every third block alone.
        let some: Vec<_> = all.iter().step_by(3).cloned().collect();
        let batch = store.blocks(&all, Fill::No).unwrap();
        assert_eq!(records(&batch), records(&run));
        let thirds: Vec<_> = run.iter().step_by(3).cloned().collect();
        let batch = store.blocks(&some, Fill::No).unwrap();
        assert_eq!(records(&batch), records(&thirds));
        assert_eq!(*expected.get_or_insert(records(&run)), records(&run));
    }
}

#[test]
fn blocks_that_share_a_sector_are_read_together() {
    let medium = SimDisk::new(16);
    let (store, group) = cold(&medium, 8 * MIB);
    drop(store);
    medium.crash_process();
    medium.set_alignment(4096);
    let (store, _) = open(&medium, options(8 * MIB, 0), &[PageUse::from(&group)], 3);
    let index = store.index(&group).unwrap();
    let end = |number: usize| {
        let (start, bytes) = index.block_place(number);
        start + bytes
    };
    // Two blocks around a third. The first ends in the sector in which the second starts.
    let around = (1..index.blocks() - 1)
        .find(|&i| end(i - 1).next_multiple_of(4096) >= end(i) / 4096 * 4096)
        .unwrap();
    for [a, b] in [[around - 1, around + 1], [around + 1, around - 1]] {
        let wants = [(group, index.clone(), a), (group, index.clone(), b)];
        let before = store.metrics().read.merge_reads;
        let blocks = store.blocks(&wants, Fill::No).unwrap();
        assert_eq!(store.metrics().read.merge_reads - before, 1);
        for (block, number) in blocks.iter().zip([a, b]) {
            let alone = store.block(&group, &index, number, Fill::No).unwrap();
            assert_eq!(block.bytes(), alone.bytes());
        }
    }
}

#[test]
fn objects_are_decoded_once_and_a_failed_decode_is_not_cached() {
    let medium = SimDisk::new(5);
    let store = create(&medium, options(4 * MIB, 0));
    let page = write_node(&store, 3000);
    let before = reads(&medium);
    let failing =
        |_: &[u8]| -> terrapin_base::Result<(Vec<u8>, usize)> { Err(Error::corrupt("no node")) };
    let error = store.object(&page, PageKind::Node, &failing).unwrap_err();
    assert!(
        error.to_string().contains(&format!("page {}", page.id)),
        "{error}"
    );
    let first = store
        .object(&page, PageKind::Node, &|bytes| {
            Ok((bytes.to_vec(), bytes.len()))
        })
        .unwrap();
    let second: Arc<Vec<u8>> = store
        .object(&page, PageKind::Node, &|_| panic!("decoded again"))
        .unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!((first.len(), reads(&medium) - before), (3000, 2));
    let other = write_node(&store, 10);
    store.cache_object(&other, Arc::new(42u64), 8);
    let cached: Arc<u64> = store
        .object(&other, PageKind::Node, &|_| panic!("not cached"))
        .unwrap();
    assert_eq!(*cached, 42);
}

#[test]
fn a_damage_error_names_the_page_and_is_not_cached() {
    let medium = SimDisk::new(6);
    let (store, group) = cold(&medium, 4 * MIB);
    let index = store.index(&group).unwrap();
    let (offset, _) = index.block_place(4);
    assert!(medium.corrupt(DATA_FILE, group.offset + u64::from(offset) + 100, 4));
    let check = |error: Error| {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        for part in [
            format!("page {}", group.id),
            "block 4".into(),
            DATA_FILE.into(),
        ] {
            assert!(text.contains(&part), "{text} does not name {part}");
        }
    };
    let mut run = Vec::new();
    for fill in [Fill::Normal, Fill::Low, Fill::No] {
        check(store.block(&group, &index, 4, fill).unwrap_err());
        check(
            store
                .block_run(&group, &index, 2..6, fill, &mut run)
                .unwrap_err(),
        );
        let wants: Vec<_> = (3..6).map(|i| (group, index.clone(), i)).collect();
        check(store.blocks(&wants, fill).unwrap_err());
    }
    assert!(run.is_empty());
    assert_eq!(get(&store, &group, 0), Some(value(0, 100)));
    // Errors are not cached. When the medium heals, the read succeeds.
    assert!(medium.corrupt(DATA_FILE, group.offset + u64::from(offset) + 100, 4));
    store.block(&group, &index, 4, Fill::Normal).unwrap();

    let filter = group.filter_partition_offset(0);
    assert!(medium.corrupt(DATA_FILE, filter + 9, 1));
    let (bad, good): (Vec<_>, Vec<_>) = (0..RECORDS)
        .map(|i| store.may_contain(&group, hash64(&key(i))))
        .partition(|r| r.is_err());
    assert!(!bad.is_empty() && good.into_iter().all(|r| r.unwrap()));
    assert!(
        bad.into_iter()
            .all(|r| r.unwrap_err().kind() == ErrorKind::Corrupt)
    );
}

#[test]
fn a_failed_read_is_an_error() {
    let medium = SimDisk::new(7);
    let (store, group) = cold(&medium, 4 * MIB);
    let fail = || medium.inject(Fault::nth(1, FaultError::Io).on(Op::Read).of(DATA_FILE));
    fail();
    assert_eq!(store.index(&group).unwrap_err().kind(), ErrorKind::Io);
    let index = store.index(&group).unwrap();
    fail();
    assert_eq!(
        store.may_contain(&group, 1).unwrap_err().kind(),
        ErrorKind::Io
    );
    fail();
    let error = store.block(&group, &index, 2, Fill::Normal).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Io && error.to_string().contains("block 2"),
        "{error}"
    );
    fail();
    let wants: Vec<_> = (0..3).map(|i| (group, index.clone(), i)).collect();
    assert_eq!(
        store.blocks(&wants, Fill::Normal).unwrap_err().kind(),
        ErrorKind::Io
    );
    assert_eq!(store.blocks(&wants, Fill::Normal).unwrap().len(), 3);
}

#[test]
fn hostile_references_are_refused_without_a_read_or_a_large_allocation() {
    let medium = SimDisk::new(8);
    let (store, group) = cold(&medium, 4 * MIB);
    let index = store.index(&group).unwrap();
    let before = reads(&medium);
    let file_bytes = store.file_bytes();
    for bad in [
        GroupRef {
            offset: u64::MAX - 10,
            ..group
        },
        GroupRef {
            offset: file_bytes,
            ..group
        },
        GroupRef {
            bytes: u64::MAX,
            offset: 8192,
            index_offset: u32::MAX,
            index_bytes: u32::MAX,
            ..group
        },
    ] {
        let bad = GroupRef {
            id: terrapin_base::PageId(99),
            ..bad
        };
        assert_eq!(store.index(&bad).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(
            store.read_whole_group(&bad).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
    let short = GroupRef {
        bytes: 512,
        id: terrapin_base::PageId(98),
        ..group
    };
    assert_eq!(
        store
            .block(&short, &index, 3, Fill::Normal)
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(
        store.may_contain(&short, 0).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let page = terrapin_pages::PageRef {
        id: group.id,
        offset: file_bytes - 512,
        bytes: u32::MAX,
    };
    assert_eq!(
        store.read_page(&page, PageKind::Node).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(reads(&medium), before);
    let stale = GroupRef {
        id: terrapin_base::PageId(97),
        ..group
    };
    assert_eq!(store.index(&stale).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        store
            .block(&stale, &index, 0, Fill::Normal)
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
}

fn cache_use(budget: &Budget) -> u64 {
    budget.used(Purpose::Blocks) + budget.used(Purpose::Metadata)
}

#[test]
fn the_cache_keeps_within_the_budget() {
    let medium = SimDisk::new(9);
    let memory = options(300_000, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let group = write_group(&store, 20_000);
    let index = store.index(&group).unwrap();
    assert!(index.blocks() > 300);
    for i in 0..index.blocks() {
        store.block(&group, &index, i, Fill::Normal).unwrap();
        assert!(cache_use(&budget) <= 300_000);
    }
    assert!(
        cache_use(&budget) > 250_000,
        "{} is little",
        cache_use(&budget)
    );
    let metrics = store.metrics();
    assert_eq!(metrics.cache_bytes, cache_use(&budget));
    assert!(metrics.evictions > 200);
    // When a memtable grows, the caches shrink on request, and every insert keeps below the limit.
    let charge = budget.charge(Purpose::Memtable, 200_000);
    assert!(store.shrink_needed());
    assert!(!store.shrink());
    assert!(cache_use(&budget) <= 100_000);
    for i in 0..index.blocks() {
        store.block(&group, &index, i, Fill::Low).unwrap();
        assert!(cache_use(&budget) <= 100_000);
    }
    // Reads work without any room for caches.
    let all = budget.charge(Purpose::Merge, 200_000);
    store.shrink();
    assert_eq!(cache_use(&budget), 0);
    store.block(&group, &index, 7, Fill::Normal).unwrap();
    assert_eq!((cache_use(&budget), store.metrics().cache_entries), (0, 0));
    drop((charge, all));
    store.block(&group, &index, 7, Fill::Normal).unwrap();
    assert!(cache_use(&budget) > 0);
    drop(store);
    assert_eq!(budget.used_total(), 0, "what was charged is given back");
}

/// Guards against uncharged memory: threads that read many keys at once took up to 768 KiB each.
#[test]
fn the_memory_of_many_reads_at_once_is_charged_while_it_lives() {
    let medium = SimDisk::new(15);
    let memory = options(8 << 20, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let few = store.reading(4, Fill::Normal);
    assert_eq!(budget.used(Purpose::Merge), 0);
    let many = [200, 200].map(|blocks| store.reading(blocks, Fill::Normal));
    assert!(budget.used(Purpose::Merge) >= 1 << 20);
    drop((few, many));
    assert_eq!(budget.used(Purpose::Merge), 0);
}

/// Guards against a batch with memory for short blocks only. Its long blocks were read one after
/// the other.
#[test]
fn large_blocks_of_a_batch_are_read_at_once() {
    let medium = SimDisk::new(17);
    let memory = options(64 * MIB, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let value_bytes = 32 << 10;
    let group = store
        .write_group(pending(0, 64, value_bytes, true), SpaceClass::Normal)
        .unwrap();
    let index = store.index(&group).unwrap();
    assert_eq!(index.blocks(), 64);
    for (count, together) in [(2, 2), (8, 8), (32, 16)] {
        let mut reading = store.reading(count, Fill::Normal);
        // No other block fits beside this one.
        let asked = (0..count)
            .take_while(|&i| {
                let wanted = store.want(&mut reading, &group, &index, 2 * i).unwrap();
                wanted.is_some()
            })
            .count();
        assert!((together..=count).contains(&asked), "{asked} of {count}");
        let charged = budget.used(Purpose::Merge);
        assert!(charged >= (asked * value_bytes) as u64, "{charged}");
        assert!(charged <= MIB, "{charged}");
        let mut taken = 0;
        store
            .finish(&mut reading, &mut |number, block| {
                assert_eq!(block.key(0), key(2 * number));
                let expected = value(2 * number, value_bytes);
                assert_eq!(block.message(0), Message::Put(&expected));
                taken += 1;
            })
            .unwrap();
        assert_eq!(taken, asked);
        drop(reading);
        assert_eq!(budget.used(Purpose::Merge), 0);
    }
}

#[test]
fn a_batch_that_begins_with_a_small_block_reads_large_ones_at_once() {
    let medium = SimDisk::new(18);
    let store = create(&medium, options(64 * MIB, 0));
    let small = write_group(&store, RECORDS);
    let large = store
        .write_group(pending(0, 64, 32 << 10, true), SpaceClass::Normal)
        .unwrap();
    let index = |group| store.index(group).unwrap();
    let (small_index, large_index) = (index(&small), index(&large));
    let mut reading = store.reading(9, Fill::Normal);
    let mut finished = 0;
    let mut want = |group: &GroupRef, index: &GroupIndex, number| {
        let wanted = store.want(&mut reading, group, index, number).unwrap();
        if wanted.is_none() {
            finished += 1;
            store.finish(&mut reading, &mut |_, _| {}).unwrap();
            let wanted = store.want(&mut reading, group, index, number).unwrap();
            assert_eq!(wanted, Some(0));
        }
    };
    want(&small, &small_index, 7);
    (0..8).for_each(|i| want(&large, &large_index, 2 * i));
    assert_eq!(finished, 1);
}

#[test]
fn threads_together_exceed_the_budget_by_no_more_than_an_entry_each() {
    let medium = SimDisk::new(10);
    let memory = options(200_000, 0);
    let budget = memory.budget.clone();
    let store = create(&medium, memory);
    let group = write_group(&store, 10_000);
    let index = store.index(&group).unwrap();
    let entry_bytes = 4096 + 4096;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, group, index, budget) = (&store, &group, &index, &budget);
            scope.spawn(move || {
                let mut at = thread * 17;
                for _ in 0..2000 {
                    at = (at * 5 + 3) % index.blocks();
                    let block = store.block(group, index, at, Fill::Normal).unwrap();
                    assert_eq!(index.find(&block.key(0)), at);
                    assert!(cache_use(budget) <= 200_000 + 4 * entry_bytes);
                }
            });
        }
    });
    assert!(cache_use(&budget) <= 200_000);
    assert_eq!(store.metrics().cache_bytes, cache_use(&budget));
}

fn cached_blocks(store: &PageStore, group: &GroupRef, index: &GroupIndex) -> Vec<usize> {
    (0..index.blocks())
        .filter(|&i| store.cached_block(group, i).is_some())
        .collect()
}

#[test]
fn used_entries_outlive_newer_ones() {
    let medium = SimDisk::new(11);
    let store = create(&medium, options(400_000, 0));
    let groups: Vec<_> = (0..8).map(|_| write_group(&store, 1000)).collect();
    let large = store
        .write_group(pending(0, 20_000, 100, false), SpaceClass::Normal)
        .unwrap();
    for group in &groups {
        store.index(group).unwrap();
        assert!(store.may_contain(group, hash64(&key(1))).unwrap());
    }
    let index = store.index(&large).unwrap();
    // Blocks of three times the cache's size pass through. The metadata was used before all of them
    // and stays.
    let before = store.metrics().misses;
    assert!(index.blocks() > 300);
    for i in 0..300 {
        store
            .block(
                &large,
                &index,
                i,
                if i % 2 == 0 { Fill::Normal } else { Fill::Low },
            )
            .unwrap();
    }
    for group in &groups {
        store.index(group).unwrap();
        assert!(store.may_contain(group, hash64(&key(1))).unwrap());
    }
    let after = store.metrics().misses;
    assert_eq!(
        (after.indexes, after.filters),
        (before.indexes, before.filters)
    );

    // A scan does not displace blocks that gets use again and again.
    let hot: Vec<usize> = (0..20).collect();
    for _ in 0..3 {
        for &i in &hot {
            store.block(&large, &index, i, Fill::Normal).unwrap();
        }
    }
    for i in 40..index.blocks() {
        store.block(&large, &index, i, Fill::Low).unwrap();
    }
    let cached = cached_blocks(&store, &large, &index);
    let kept = hot.iter().filter(|i| cached.contains(i)).count();
    assert!(
        kept >= 15,
        "{kept} of {} hot blocks survived a scan",
        hot.len()
    );
}

#[test]
fn entries_of_freed_pages_leave_the_cache() {
    let medium = SimDisk::new(12);
    let store = create(&medium, options(8 * MIB, 0));
    let (a, b) = (write_group(&store, RECORDS), write_group(&store, RECORDS));
    let generation = checkpoint(&store, added([&a, &b]));
    for group in [&a, &b] {
        let index = store.index(group).unwrap();
        (0..index.blocks())
            .for_each(|i| drop(store.block(group, &index, i, Fill::Normal).unwrap()));
    }
    let full = store.metrics().cache_entries;
    let pin = store.pin(generation);
    checkpoint(&store, released([a.id]));
    common::reclaim_all(&store);
    assert_eq!(
        store.metrics().cache_entries,
        full,
        "a pinned page is still read"
    );
    drop(pin);
    assert!(store.reclaim_needed());
    common::reclaim_all(&store);
    assert!(!store.reclaim_needed());
    assert_eq!(store.metrics().cache_entries, full / 2);
    assert!(store.cached_block(&a, 0).is_none() && store.cached_block(&b, 0).is_some());
}

#[test]
fn a_record_larger_than_the_read_buffers_is_read_in_one_piece() {
    let medium = SimDisk::new(13);
    let store = create(&medium, options(8 * MIB, 0));
    let group = store
        .write_group(pending(0, 3, 256 << 10, true), SpaceClass::Normal)
        .unwrap();
    let index = store.index(&group).unwrap();
    let before = reads(&medium);
    for i in 0..3 {
        let block = store
            .block(&group, &index, index.find(&key(i)), Fill::Normal)
            .unwrap();
        assert_eq!(
            block.message(block.search(&key(i)).unwrap()),
            Message::Put(&value(i, 256 << 10))
        );
    }
    assert_eq!(reads(&medium) - before, 3);
}
