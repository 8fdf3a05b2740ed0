//! Long scans read ahead: how far, with which memory, and when they report an error ahead.

mod common;

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Options, Range};
use terrapin_disk::sim::{Fault, FaultError, Op};

const RECORDS: u64 = 16_000;
const VALUE_BYTES: usize = 300;
/// Records after which a scan reads ahead: more than one MiB.
const LONG: usize = 6000;

/// A tree of some levels. Its leaves are shorter than what a scan reads ahead, and nothing is
/// cached.
fn cold_store(world: &World) -> Database {
    cold_store_of(world, 512)
}

fn cold_options(block_bytes: u32) -> Options {
    tiny()
        .block_bytes(block_bytes)
        .group_bytes(64 << 10)
        .fanout(16)
        .memory(16 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .log_bytes_max(4 << 20)
}

/// Such a tree with blocks of this length.
fn cold_store_of(world: &World, block_bytes: u32) -> Database {
    let options = cold_options(block_bytes);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    database.close().unwrap();
    world.open(&options)
}

/// All records in order, each with its number.
fn sorted() -> Vec<(Vec<u8>, u64)> {
    let mut all: Vec<_> = (0..RECORDS).map(|i| (key(i), i)).collect();
    all.sort();
    all
}

fn step(range: &mut Range, backward: bool) -> Option<terrapin::Result<(Vec<u8>, Vec<u8>)>> {
    let next = if backward {
        range.next_back()
    } else {
        range.next()
    };
    next.map(|next| next.map(|(key, value)| (key.to_vec(), value.to_vec())))
}

/// Takes records and checks them. Returns the first item that is no record.
fn take(
    range: &mut Range,
    backward: bool,
    from: usize,
    count: usize,
) -> (usize, Option<terrapin::Error>) {
    let mut all = sorted();
    if backward {
        all.reverse();
    }
    for (i, (key, number)) in all.into_iter().skip(from).take(count).enumerate() {
        match step(range, backward) {
            Some(Ok(found)) => assert_eq!(found, (key, value(number, VALUE_BYTES))),
            Some(Err(error)) => return (i, Some(error)),
            None => panic!("an end instead of record {}", from + i),
        }
    }
    (count, None)
}

#[test]
fn a_long_scan_reads_ahead_in_memory_that_it_returns() {
    for backward in [false, true] {
        let world = World::new(1);
        let database = cold_store(&world);
        let keyspace = database.default_keyspace();
        let charged = || database.metrics().memory.merge_bytes;
        let before = charged();
        let mut short = keyspace.iter();
        assert!(take(&mut short, backward, 0, 500).1.is_none());
        assert_eq!(charged(), before, "a short scan reads nothing ahead");
        drop(short);

        let mut range = keyspace.iter();
        assert!(take(&mut range, backward, 0, LONG).1.is_none());
        // Each source has at most a sixteenth of what caches may take, and all together as much as
        // their records need.
        let ahead = charged() - before;
        assert!((384 << 10..=3 << 20).contains(&ahead), "{ahead}");
        // A scan of as many records reads more than the records of leaves.
        let read = database.metrics().device_reads.scan_bytes;
        let taken = (LONG * (8 + VALUE_BYTES)) as u64;
        assert!(read > taken + (256 << 10), "{read} bytes for {taken}");
        drop(range);
        assert_eq!(charged(), before);

        let mut range = keyspace.iter();
        assert!(take(&mut range, backward, 0, RECORDS as usize).1.is_none());
        assert!(step(&mut range, backward).is_none());
        drop(range);
        assert_eq!(charged(), before);
        database.close().unwrap();
    }
}

#[test]
fn an_error_ahead_is_returned_only_when_the_scan_reaches_it() {
    for backward in [false, true] {
        let world = World::new(2);
        let database = cold_store(&world);
        let keyspace = database.default_keyspace();
        let rest = RECORDS as usize - LONG;
        let mut other = keyspace.iter();
        assert!(take(&mut other, backward, 0, LONG).1.is_none());
        let failing = |nth| Fault::nth(nth, FaultError::Io).on(Op::Read).of("data");
        let (mut most, mut told) = (0, 0);
        for nth in 1..=5 {
            let mut range = keyspace.iter();
            assert!(take(&mut range, backward, 0, LONG).1.is_none());
            world.disk.inject(failing(nth).lasting());
            let (right, error) = take(&mut range, backward, LONG, rest);
            if let Some(error) = error {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                told += 1;
                most = most.max(right);
            }
            assert!(step(&mut range, backward).is_none(), "nothing after it");
            world.disk.clear_faults();
        }
        assert!(told >= 2, "{told} of 5 failures were told");
        // A read that fails once is repeated.
        for nth in 1..=5 {
            let mut range = keyspace.iter();
            assert!(take(&mut range, backward, 0, LONG).1.is_none());
            world.disk.inject(failing(nth));
            let (right, error) = take(&mut range, backward, LONG, rest);
            assert!(right == rest && error.is_none(), "{right}, {error:?}");
            world.disk.clear_faults();
        }
        // Some of these reads were ahead of the scan's need.
        assert!(most > 300, "{most} records were under way already");
        // Only those scans made these reads.
        assert!(take(&mut other, backward, LONG, rest).1.is_none());
        assert!(step(&mut other, backward).is_none());
        drop(other);
        database.close().unwrap();
    }
}

#[test]
fn a_long_scan_reads_no_block_twice() {
    for backward in [false, true] {
        let reads = |lengths: usize| {
            let world = World::new(4);
            let database = cold_store(&world);
            let keyspace = database.default_keyspace();
            let mut keys = sorted();
            if backward {
                keys.reverse();
            }
            for keys in keys.chunks(lengths) {
                let (first, last) = (&keys[0].0, &keys[keys.len() - 1].0);
                let range = if backward {
                    &last[..]..=first
                } else {
                    &first[..]..=last
                };
                let mut range = keyspace.range(range);
                for (key, number) in keys {
                    let found = step(&mut range, backward).unwrap().unwrap();
                    assert_eq!(found, (key.clone(), value(*number, VALUE_BYTES)));
                }
                assert!(step(&mut range, backward).is_none());
            }
            let reads = database.metrics().device_reads;
            database.close().unwrap();
            (reads.meta_reads, reads.scan_reads, reads.scan_bytes)
        };
        let (indexes, short_reads, short_bytes) = reads(500);
        let (ahead, long_reads, long_bytes) = reads(RECORDS as usize);
        // Each index and node is read once, whatever the way to it.
        assert!(
            ahead <= indexes + indexes / 20 + 2,
            "{ahead} reads of metadata, {indexes} by short scans"
        );
        assert!(
            long_bytes <= short_bytes + short_bytes / 100,
            "{long_bytes} bytes, {short_bytes} by short scans"
        );
        assert!(
            long_reads * 2 < short_reads,
            "{long_reads} reads, {short_reads} by short scans"
        );
    }
}

#[test]
fn an_idle_scan_keeps_no_cached_blocks() {
    for (backward, length) in [(false, LONG), (false, 2 * LONG), (true, 2 * LONG)] {
        let world = World::new(5);
        let database = cold_store_of(&world, 2048);
        let keyspace = database.default_keyspace();
        let mut all = keyspace.iter();
        assert!(take(&mut all, backward, 0, RECORDS as usize).1.is_none());
        drop(all);
        let reads = || database.metrics().device_reads.scan_reads;
        let before = reads();
        let mut range = keyspace.iter();
        assert!(take(&mut range, backward, 0, length).1.is_none());
        assert_eq!(reads(), before, "everything is cached");
        // The caches then hold only what the scan keeps.
        database.close().unwrap();
        let memory = database.metrics().memory;
        assert!(memory.merge_bytes > 0, "it reads ahead");
        // Some slabs of 16 KiB for each source.
        let kept = memory.block_bytes;
        assert!(kept <= 128 << 10, "{kept} bytes of blocks");
        drop(range);
        assert_eq!(database.metrics().memory.block_bytes, 0);
    }
}

#[test]
fn a_scan_reads_blocks_that_left_the_cache_ahead_of_it() {
    for backward in [false, true] {
        let world = World::new(6);
        let database = cold_store(&world);
        let keyspace = database.default_keyspace();
        let full = |backward| {
            let mut range = keyspace.iter();
            assert!(take(&mut range, backward, 0, RECORDS as usize).1.is_none());
        };
        full(backward);
        let mut range = keyspace.iter();
        assert!(take(&mut range, backward, 0, LONG).1.is_none());
        // The blocks ahead of the scan leave the cache.
        database.set_memory(1 << 20).unwrap();
        full(!backward);
        database.set_memory(16 << 20).unwrap();
        let reads = || database.metrics().device_reads.scan_reads;
        let before = reads();
        assert!(take(&mut range, backward, LONG, 1000).1.is_none());
        let again = reads() - before;
        assert!((1..50).contains(&again), "{again} reads");
        let rest = RECORDS as usize - LONG - 1000;
        assert!(take(&mut range, backward, LONG + 1000, rest).1.is_none());
        assert!(step(&mut range, backward).is_none());
        database.close().unwrap();
    }
}

#[test]
fn a_scan_that_reads_ahead_may_outlive_its_database() {
    let world = World::new(3);
    let database = cold_store(&world);
    let mut range = database.default_keyspace().iter();
    assert!(take(&mut range, false, 0, LONG).1.is_none());
    database.close().unwrap();
    assert!(step(&mut range, false).expect("no end").is_err());
    assert!(step(&mut range, false).is_none());
}

/// Guards against ranges that took all memory of the caches. Each stream took a sixteenth of the
/// rest, and a few dozen idle ranges took all.
#[test]
fn idle_ranges_leave_half_of_the_memory_to_caches() {
    let world = World::new(9);
    let options = tiny()
        .block_bytes(512)
        .group_bytes(64 << 10)
        .memory(64 << 20)
        .log_bytes_max(4 << 20);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    drop(keyspace);
    database.close().unwrap();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let charged = || database.metrics().memory.merge_bytes;
    let before = charged();
    let mut ranges: Vec<_> = (0..60).map(|_| keyspace.iter()).collect();
    for range in &mut ranges {
        assert!(take(range, false, 0, LONG).1.is_none());
    }
    let held = charged() - before;
    assert!((16 << 20..=34 << 20).contains(&held), "{held}");
    let rest = RECORDS as usize - LONG;
    for range in &mut ranges {
        assert!(take(range, false, LONG, rest).1.is_none());
        assert!(step(range, false).is_none());
    }
    drop(ranges);
    assert_eq!(charged(), before);
    drop(keyspace);
    database.close().unwrap();
}

/// Guards against read-ahead that was under way where a range ended: each source read as much again
/// as it had passed.
#[test]
fn a_range_with_a_limit_reads_hardly_more_than_it_returns() {
    let keys: Vec<_> = sorted().into_iter().map(|(key, _)| key).collect();
    for backward in [false, true] {
        let world = World::new(7);
        drop(cold_store(&world));
        let options = cold_options(512);
        // Bytes and blocks that a range reads in which nothing is cached. It takes `count` records,
        // and either ends behind them, or knows it by a limit, or not at all.
        let read = |from: usize, count: usize, how: &str| {
            let database = world.open(&options);
            let keyspace = database.default_keyspace();
            let (low, high) = (&keys[from], &keys[from + count - 1]);
            let range = match (how, backward) {
                ("end", _) => keyspace.range(&low[..]..=&high[..]),
                (_, false) => keyspace.range(&low[..]..),
                (_, true) => keyspace.range(..=&high[..]),
            };
            let mut range = match how {
                "limit" => range.limit(count),
                _ => range,
            };
            let skipped = match backward {
                false => from,
                true => keys.len() - from - count,
            };
            assert!(take(&mut range, backward, skipped, count).1.is_none());
            drop(range);
            let reads = database.metrics().device_reads;
            drop(keyspace);
            database.close().unwrap();
            [reads.scan_bytes, reads.scan_reads]
        };
        for count in [600, 2000, 6000, 9000] {
            let mut sums = [[0; 2]; 3];
            for from in [10, 3500, 6900] {
                for (sum, how) in sums.iter_mut().zip(["end", "limit", "none"]) {
                    let read = read(from, count, how);
                    *sum = [sum[0] + read[0], sum[1] + read[1]];
                }
            }
            println!("{backward} {count}: {sums:?}");
            let [[end, _], [limit, reads], [none, many]] = sums;
            assert!(limit <= end + end / 20, "{limit} bytes, {end} with an end");
            assert!(limit < none, "{limit} bytes, {none} without a limit");
            assert!(reads <= many, "{reads} reads, {many} without a limit");
        }
    }
}
