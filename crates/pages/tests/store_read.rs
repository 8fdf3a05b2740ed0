//! Reads through the cache: their device reads, the errors of damaged pages, and the memory budget.

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{
    MIB, RECORDS, cold, create, get, key, open, options, pending, reads, value, write_node,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Error, ErrorKind, Message};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::block::Block;
use terrapin_pages::group::{GroupIndex, GroupRef, check_group};
use terrapin_pages::{DATA_FILE, Fill, PageKind, PageUse, SpaceClass};

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
fn pages_that_are_read_together_come_in_order_and_damage_names_its_page() {
    let medium = SimDisk::new(7);
    let store = create(&medium, options(4 * MIB, 0));
    let lengths = [3000, 10, 200_000, 500_000, 1, 5000];
    let mut pages: Vec<_> = lengths.map(|bytes| write_node(&store, bytes)).into();
    pages.reverse();
    let read = |kind| store.read_pages(pages.iter().copied(), kind);
    let contents = read(PageKind::Node).unwrap();
    let found: Vec<_> = contents.iter().map(Vec::len).rev().collect();
    assert_eq!(found, lengths);
    for (page, content) in pages.iter().zip(&contents) {
        assert_eq!(*content, store.read_page(page, PageKind::Node).unwrap());
    }
    assert!(
        store
            .read_pages([].into_iter(), PageKind::Node)
            .unwrap()
            .is_empty()
    );
    let names = |error: Error, page: usize| {
        let text = error.to_string();
        let part = format!("page {}", pages[page].id);
        assert!(
            error.kind() == ErrorKind::Corrupt && text.contains(&part),
            "{text}"
        );
    };
    // The first page of the order, not of the file.
    names(read(PageKind::HashList).unwrap_err(), 0);
    assert!(medium.corrupt(DATA_FILE, pages[3].offset + 50, 4));
    assert!(medium.corrupt(DATA_FILE, pages[5].offset + 50, 4));
    names(read(PageKind::Node).unwrap_err(), 3);
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
