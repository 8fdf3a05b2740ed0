//! The cursor over one group, compared with the records in the group.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrapin_pages::Fill;
use terrapin_pages::group::GroupRef;
use terrapin_structure::{Direction, KeyBounds, MessageCursor};

use super::grown::{Random, write};
use super::store::TestStore;
use terrapin_runs::bounds::{lets_in_above, lets_in_below};
use terrapin_runs::cursor::GroupCursor;
use terrapin_runs::walk::{BlockWalk, ReadAhead};

type Messages = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn group(store: &TestStore, count: usize) -> (GroupRef, Messages) {
    let mut messages = Messages::new();
    for i in 0..count {
        let value = (i % 7 > 0).then(|| vec![i as u8; i % 90]);
        messages.insert(format!("key/{:05}", i * 2).into_bytes(), value);
    }
    (write(store.pages(), &messages), messages)
}

/// The blocks that a walk returns. The first `given` of them are handed over to it in two parts.
fn walk(
    store: &TestStore,
    group: &GroupRef,
    bounds: KeyBounds<'_>,
    direction: Direction,
    ahead: ReadAhead,
    given: usize,
) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let index = store.pages().index(group).unwrap();
    let mut walk = BlockWalk::new(group, index, bounds, direction, ahead);
    for part in [given / 2, given - given / 2] {
        let (index, numbers) = walk.want(part);
        let read = |number| store.pages().block(group, index, number, Fill::Low);
        let blocks: Vec<_> = numbers.map(|number| read(number).unwrap()).collect();
        let ready = (walk.ready_blocks(), walk.ready_records());
        let (more, records) = (blocks.len(), blocks.iter().map(|b| b.len()).sum::<usize>());
        walk.give(blocks.into_iter());
        assert_eq!(
            (walk.ready_blocks(), walk.ready_records()),
            (ready.0 + more, ready.1 + records)
        );
    }
    let mut got = Vec::new();
    while let Some((block, records)) = walk.next(store.pages(), || bounds, None).unwrap() {
        let mut here: Vec<_> = records
            .map(|i| {
                (
                    block.key(i),
                    block.message(i).put_value().map(<[u8]>::to_vec),
                )
            })
            .collect();
        if direction == Direction::Backward {
            here.reverse();
        }
        got.extend(here);
    }
    got
}

#[test]
fn cursors_return_the_records_inside_their_bounds() {
    let store = TestStore::new();
    let (group, messages) = group(&store, 1500);
    let mut random = Random::new(9);
    let tiny = ReadAhead {
        first_bytes: 512,
        max_bytes: 2048,
        fill: Fill::No,
    };
    for round in 0..400 {
        let mut bound = || {
            let key = format!("key/{:05}", random.below(3100)).into_bytes();
            [
                Bound::Included(key.clone()),
                Bound::Excluded(key),
                Bound::Unbounded,
            ][random.below(3)]
            .clone()
        };
        let (lower, upper) = (bound(), bound());
        let bounds: KeyBounds<'_> = (
            lower.as_ref().map(|k| &k[..]),
            upper.as_ref().map(|k| &k[..]),
        );
        let inside = messages
            .iter()
            .filter(|(k, _)| lets_in_above(bounds.0, k) && lets_in_below(bounds.1, k));
        let mut wanted: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
        for direction in [Direction::Forward, Direction::Backward] {
            let ahead = [tiny, ReadAhead::SCAN, ReadAhead::MERGE][round % 3];
            let mut cursor =
                GroupCursor::prepare(store.pages(), &group, bounds, direction, ahead).unwrap();
            cursor.start().unwrap();
            let mut got = Vec::new();
            while let Some(key) = cursor.key() {
                got.push((
                    key.to_vec(),
                    cursor.message().put_value().map(<[u8]>::to_vec),
                ));
                cursor.advance().unwrap();
            }
            assert_eq!(got, wanted, "{bounds:?} {direction:?}");
            cursor.advance().unwrap();
            assert!(cursor.key().is_none());
            let given = round % 8;
            let walked = walk(&store, &group, bounds, direction, ahead, given);
            assert_eq!(walked, wanted, "{bounds:?} {direction:?}");
            wanted.reverse();
        }
    }
}

#[test]
fn a_merge_reads_its_range_once_in_large_reads_and_fills_no_cache() {
    let store = TestStore::new();
    let (group, messages) = group(&store, 20_000);
    store.forget_cache();
    let index = store.pages().index(&group).unwrap();
    let (reads, bytes) = (store.block_reads(), store.block_bytes());
    let mut cursor =
        GroupCursor::for_merge(store.pages(), &group, None, None, ReadAhead::MERGE).unwrap();
    assert!(cursor.memory_bytes_max() <= u64::from(ReadAhead::MERGE.max_bytes));
    let mut count = 0;
    while cursor.key().is_some() {
        count += 1;
        cursor.advance().unwrap();
    }
    assert_eq!(count, messages.len());
    assert_eq!(store.block_bytes() - bytes, u64::from(index.blocks_bytes()));
    let fewest = u64::from(index.blocks_bytes()).div_ceil(u64::from(ReadAhead::MERGE.max_bytes));
    let reads = store.block_reads() - reads;
    assert!(reads <= fewest + 1, "{reads} reads of at least {fewest}");
    assert!((0..index.blocks()).all(|number| store.pages().cached_block(&group, number).is_none()));
}

#[test]
fn a_scan_of_a_few_records_reads_a_few_blocks_and_a_long_one_reads_ahead() {
    let store = TestStore::new();
    let (group, _) = group(&store, 20_000);
    let index = store.pages().index(&group).unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        store.forget_cache();
        let (reads, bytes) = (store.block_reads(), store.block_bytes());
        let bounds = (Bound::Unbounded, Bound::Unbounded);
        let mut cursor =
            GroupCursor::prepare(store.pages(), &group, bounds, direction, ReadAhead::SCAN)
                .unwrap();
        cursor.start().unwrap();
        assert_eq!(
            (store.block_reads() - reads, store.block_bytes() - bytes),
            (1, 512)
        );
        while cursor.key().is_some() {
            cursor.advance().unwrap();
        }
        // 1 block, then 1, 2, 4, … up to 512 KiB, of which the device reads 128 blocks at a time.
        let reads = store.block_reads() - reads;
        let large = u64::from(index.blocks_bytes()).div_ceil(128 << 10);
        assert!(reads <= 10 + large, "{reads} reads");
        assert_eq!(store.block_bytes() - bytes, u64::from(index.blocks_bytes()));
    }
}

#[test]
fn blocks_handed_to_a_walk_are_read_once_and_nothing_else_is() {
    let store = TestStore::new();
    let (group, _) = group(&store, 20_000);
    let index = store.pages().index(&group).unwrap();
    let (front, rest) = index.separator(index.blocks() / 2);
    let middle = [front, rest].concat();
    for (direction, bounds) in [
        (
            Direction::Forward,
            (Bound::Included(&middle[..]), Bound::Unbounded),
        ),
        (
            Direction::Backward,
            (Bound::Unbounded, Bound::Included(&middle[..])),
        ),
    ] {
        for blocks in [1, 2, 4, 16] {
            store.forget_cache();
            let index = store.pages().index(&group).unwrap();
            let mut walk = BlockWalk::new(&group, index, bounds, direction, ReadAhead::SCAN);
            let (reads, bytes) = (store.block_reads(), store.block_bytes());
            let (index, numbers) = walk.want(blocks);
            let wants: Vec<_> = numbers.map(|n| (group, index.clone(), n)).collect();
            let read = store.pages().blocks(&wants, ReadAhead::SCAN.fill).unwrap();
            walk.give(read.into_iter());
            for _ in 0..blocks {
                walk.next(store.pages(), || bounds, None).unwrap().unwrap();
            }
            let read = (store.block_reads() - reads, store.block_bytes() - bytes);
            assert_eq!(read, (1, 512 * blocks as u64), "{blocks} {direction:?}");
        }
    }
}
