//! Streams: blocks and indexes that are read ahead in order, and what they leave in the cache.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{added, checkpoint, create, fill, key, open, options, pending, value};
use terrapin_disk::SimDisk;
use terrapin_pages::block::Compression;
use terrapin_pages::group::{GroupBuilder, GroupOptions, GroupRef};
use terrapin_pages::{DATA_FILE, Fill, PageStore, PageUse, SpaceClass};

const MEMORY: u64 = 8 << 20;
const UNDER_WAY: usize = 256 << 10;
const VALUE_BYTES: usize = 1000;

/// A store with groups of these numbers of records, of which nothing is cached.
fn cold(medium: &SimDisk, records: &[usize]) -> (Arc<PageStore>, Vec<GroupRef>) {
    let store = create(medium, options(MEMORY, 0));
    let write = |&records| {
        let pending = pending(0, records, VALUE_BYTES, true);
        store.write_group(pending, SpaceClass::Normal).unwrap()
    };
    let groups: Vec<GroupRef> = records.iter().map(write).collect();
    checkpoint(&store, added(groups.iter().collect::<Vec<_>>()));
    drop(store);
    medium.crash_process();
    let uses: Vec<_> = groups.iter().map(PageUse::from).collect();
    let (store, _) = open(medium, options(MEMORY, 0), &uses, 2);
    (store, groups)
}

/// Takes all blocks of a group through a stream. Calls `before` with each block's number before it
/// is taken. Returns the number of records.
fn stream_over(store: &PageStore, group: &GroupRef, mut before: impl FnMut(usize)) -> usize {
    let index = store.index(group).unwrap();
    let mut stream = store.stream(Fill::Low, UNDER_WAY, 0).unwrap();
    let (mut asked, mut taken, mut records) = (0, 0, 0);
    let mut blocks = VecDeque::new();
    while taken < index.blocks() {
        while asked < index.blocks()
            && store
                .want(&mut stream, group, &index, asked)
                .unwrap()
                .is_some()
        {
            asked += 1;
        }
        store.start(&mut stream).unwrap();
        store.take_oldest(&mut stream, &mut blocks).unwrap();
        for block in blocks.drain(..) {
            let block = block.unwrap();
            before(taken);
            assert_eq!(block.key(0), key(records));
            assert_eq!(
                block.message(0).put_value().unwrap(),
                value(records, VALUE_BYTES)
            );
            records += block.len();
            taken += 1;
        }
    }
    assert!(stream.is_empty());
    records
}

#[test]
fn a_stream_longer_than_its_lane_leaves_no_more_in_a_full_cache() {
    let medium = SimDisk::new(1);
    let (store, groups) = cold(&medium, &[10_000, 10_000]);
    let [gets, scan] = &groups[..] else {
        panic!("two groups")
    };
    // Gets fill the cache.
    let index = store.index(gets).unwrap();
    for number in 0..index.blocks() {
        store.block(gets, &index, number, Fill::Normal).unwrap();
    }
    let full = store.metrics().evictions;
    assert!(full > 0, "the cache is full");
    let blocks = store.index(scan).unwrap().blocks();
    let mut evicted = Vec::new();
    let records = stream_over(&store, scan, |_| evicted.push(store.metrics().evictions));
    assert_eq!((records, evicted.len()), (10_000, blocks));
    assert!(evicted[blocks / 8] > full, "at first it takes its part");
    assert_eq!(evicted[blocks / 2], evicted[blocks - 1], "and then no more");
}

#[test]
fn a_stream_caches_all_blocks_while_there_is_room() {
    let medium = SimDisk::new(2);
    let (store, groups) = cold(&medium, &[4000]);
    assert_eq!(stream_over(&store, &groups[0], |_| {}), 4000);
    let blocks = store.index(&groups[0]).unwrap().blocks();
    let cached = (0..blocks).filter(|&n| store.cached_block(&groups[0], n).is_some());
    assert_eq!(cached.count(), blocks);
}

#[test]
fn a_stream_holds_no_more_of_compressed_blocks() {
    let medium = SimDisk::new(4);
    let store = create(&medium, options(MEMORY, 0));
    let builder = GroupBuilder::new(GroupOptions {
        target_bytes: 16 << 20,
        block_bytes: 4096,
        unit: 512,
        compression: Compression::Lz4,
        filter_bits: 12,
        now_ms: 0,
    });
    let pending = fill(builder, 0, 4000, VALUE_BYTES);
    let group = store.write_group(pending, SpaceClass::Normal).unwrap();
    let index = store.index(&group).unwrap();
    assert!(u64::from(index.blocks_bytes()) * 5 < group.logical_bytes);
    let mut stream = store.stream(Fill::No, UNDER_WAY, 0).unwrap();
    let (mut asked, mut taken, mut most) = (0, 0, 0);
    let mut blocks = VecDeque::new();
    while taken < index.blocks() {
        while asked < index.blocks()
            && store
                .want(&mut stream, &group, &index, asked)
                .unwrap()
                .is_some()
        {
            asked += 1;
        }
        store.take_oldest(&mut stream, &mut blocks).unwrap();
        taken += blocks.len();
        let blocks = blocks.drain(..).map(|block| block.unwrap().bytes().len());
        most = blocks.sum::<usize>().max(most);
    }
    // Bytes that are read at once. A record takes some bytes that the index does not count.
    assert!((100 << 10..132 << 10).contains(&most), "{most}");
    assert!(stream.is_empty());
}

#[test]
fn an_index_read_ahead_is_cached_once_earlier_reads_are_taken() {
    let medium = SimDisk::new(3);
    let (store, groups) = cold(&medium, &[1000, 1000]);
    let mut stream = store.stream(Fill::Low, UNDER_WAY, 0).unwrap();
    let index = store.index(&groups[0]).unwrap();
    assert!(
        store
            .want(&mut stream, &groups[0], &index, 0)
            .unwrap()
            .is_some()
    );
    assert!(store.want_index(&mut stream, &groups[1]).unwrap());
    assert!(!store.has_index(&groups[1]));
    let mut blocks = VecDeque::new();
    store.take_oldest(&mut stream, &mut blocks).unwrap();
    assert!(blocks.len() == 1 && !store.has_index(&groups[1]));
    store.take_oldest(&mut stream, &mut blocks).unwrap();
    assert!(blocks.len() == 1 && store.has_index(&groups[1]));
    assert!(stream.is_empty());
    let reads = medium.stats(DATA_FILE).reads;
    store.index(&groups[1]).unwrap();
    assert!(store.want_index(&mut stream, &groups[1]).unwrap() && stream.is_empty());
    assert_eq!(medium.stats(DATA_FILE).reads, reads);
}
