//! Ranges: bounds, chunks, both ends, iterators that outlive checkpoints, and errors. Also counts
//! and single records.

mod common;

use std::collections::VecDeque;
use std::ops::Bound;

use common::{Map, World, all, key, tiny, value};
use terrapin::{CheckpointDistance, ErrorKind, Keyspace, Range, Snapshot};
use terrapin_disk::sim::{Fault, FaultError, Op};

fn number(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

/// Records in the tree, in a sealed and in an active memtable. Tombstones hide some, and overwrites
/// replace others.
fn layered(world: &World, keyspace: &Keyspace, database: &terrapin::Database, count: u64) -> Map {
    let mut map = Map::new();
    let write = |map: &mut Map, i: u64, layer: u8| {
        if (i + u64::from(layer)).is_multiple_of(5) {
            keyspace.delete(number(i)).unwrap();
            map.remove(&number(i));
        } else {
            keyspace.put(number(i), [layer; 20]).unwrap();
            map.insert(number(i), vec![layer; 20]);
        }
    };
    (0..count)
        .filter(|i| i % 2 == 0)
        .for_each(|i| write(&mut map, i, 1));
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(64))
        .unwrap();
    (0..count)
        .filter(|i| i % 3 == 0)
        .for_each(|i| write(&mut map, i, 2));
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(1))
        .unwrap();
    (0..count)
        .filter(|i| i % 7 == 0)
        .for_each(|i| write(&mut map, i, 3));
    map
}

fn owned<B: AsRef<[u8]>>((key, value): (B, B)) -> (Vec<u8>, Vec<u8>) {
    (key.as_ref().to_vec(), value.as_ref().to_vec())
}

fn drain(mut range: Range, choose: impl Fn(usize) -> bool) -> Map {
    let (mut front, mut back) = (Vec::new(), VecDeque::new());
    for i in 0.. {
        let forward = choose(i);
        // Shared and borrowed records alternate.
        let record = match (forward, i % 5 < 3) {
            (true, true) => range.next().map(|record| owned(record.unwrap())),
            (false, true) => range.next_back().map(|record| owned(record.unwrap())),
            (true, false) => range.next_ref().unwrap().map(owned),
            (false, false) => range.next_back_ref().unwrap().map(owned),
        };
        let Some(record) = record else { break };
        if forward {
            front.push(record);
        } else {
            back.push_front(record);
        }
    }
    assert!(range.next().is_none() && range.next_back().is_none());
    assert!(range.next_ref().unwrap().is_none() && range.next_back_ref().unwrap().is_none());
    let records: Vec<_> = front.into_iter().chain(back).collect();
    assert!(
        records.is_sorted_by(|a, b| a.0 < b.0),
        "out of order, or twice"
    );
    records.into_iter().collect()
}

#[test]
fn both_ends_meet_wherever_they_stop() {
    for count in [0, 1, 2, 3, 15, 16, 17, 18, 33, 47, 48, 49, 500] {
        let world = World::new(count);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        let map = layered(&world, &keyspace, &database, count);
        for every in 2..9 {
            assert_eq!(drain(keyspace.iter(), |i| i % every == 0), map);
            assert_eq!(drain(keyspace.iter(), |i| i % every != 0), map);
        }
        let step = (map.len() / 25).max(1);
        for split in (0..=map.len() + 1).step_by(step) {
            assert_eq!(
                drain(keyspace.iter(), |i| i < split),
                map,
                "{split} of {count}"
            );
            assert_eq!(
                drain(keyspace.iter(), |i| i >= split),
                map,
                "{split} of {count}"
            );
        }
        database.close().unwrap();
    }
}

#[test]
fn a_limit_ends_a_range_from_each_end_and_from_both() {
    let world = World::new(600);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let map = layered(&world, &keyspace, &database, 600);
    let all: Vec<_> = map.clone().into_iter().collect();
    for limit in [
        0,
        1,
        2,
        7,
        8,
        17,
        50,
        127,
        128,
        129,
        300,
        all.len(),
        all.len() + 9,
        usize::MAX,
    ] {
        let shown = limit.min(all.len());
        let part = |from: usize, to: usize| -> Map {
            let left = all[..from].iter().chain(&all[all.len() - to..]);
            left.cloned().collect()
        };
        let limited = || keyspace.iter().limit(limit);
        assert_eq!(drain(limited(), |_| true), part(shown, 0), "{limit}");
        assert_eq!(drain(limited(), |_| false), part(0, shown), "{limit}");
        let both = drain(limited(), |i| i % 2 == 0);
        assert_eq!(both, part(shown.div_ceil(2), shown / 2), "{limit}");
        // Ten records come from the front, which fetched more. All others come from the back.
        let then = drain(limited(), |i| i < 10);
        assert_eq!(
            then,
            part(shown.min(10), shown.saturating_sub(10)),
            "{limit}"
        );
        assert_eq!(drain(limited().limit(5), |_| true), part(shown.min(5), 0));
        assert_eq!(limited().keys().count(), shown);
        // The range keeps no memory after its end, although the test still holds it.
        let mut held = keyspace.iter().limit(limit.min(3));
        assert_eq!(held.by_ref().count(), limit.min(3).min(all.len()));
        assert_eq!(database.metrics().views, 0, "{limit}");
        drop(held);
    }
    database.close().unwrap();
}

#[test]
fn shared_records_do_not_change_when_the_range_continues() {
    let world = World::new(77);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let map = layered(&world, &keyspace, &database, 700);
    let mut range = keyspace.iter();
    let mut kept = Vec::new();
    let mut borrowed = 0;
    loop {
        if borrowed % 3 == 1 {
            kept.extend(range.next().map(Result::unwrap));
        }
        if range.next_ref().unwrap().is_none() {
            break;
        }
        borrowed += 1;
    }
    assert_eq!(kept.len() + borrowed, map.len());
    assert!(kept.len() > 50);
    for (key, value) in kept {
        assert_eq!(map.get(&key[..]).map(Vec::as_slice), Some(&value[..]));
    }
    database.close().unwrap();
}

#[test]
fn bounds_of_every_kind() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let map = layered(&world, &keyspace, &database, 120);
    let ends = |i: u64| {
        [
            Bound::Included(number(i)),
            Bound::Excluded(number(i)),
            Bound::Unbounded,
        ]
    };
    for (low, high) in (0..125)
        .step_by(4)
        .flat_map(|low| (0..125).step_by(5).map(move |high| (low, high)))
    {
        for bounds in ends(low)
            .into_iter()
            .flat_map(|l| ends(high).into_iter().map(move |h| (l.clone(), h)))
        {
            let inside = |k: &Vec<u8>| std::ops::RangeBounds::contains(&bounds, k);
            let expected: Map = map
                .iter()
                .filter(|(k, _)| inside(k))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let range = || keyspace.range(&bounds);
            assert_eq!(drain(range(), |_| true), expected, "{bounds:?}");
            assert_eq!(drain(range(), |_| false), expected, "{bounds:?}");
        }
    }
}

#[test]
fn a_prefix_range_ends_at_the_last_key_of_the_prefix() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    let bytes = [0, b'a', 0xfe, 0xff];
    for number in 0..4u64.pow(4) {
        let mut key: Vec<u8> = (0..4)
            .map(|i| bytes[(number >> (2 * i)) as usize % 4])
            .collect();
        key.truncate(number as usize % 5);
        keyspace.put(&key, &key).unwrap();
        map.insert(key.clone(), key);
    }
    for round in 0..2 {
        for prefix in map.keys() {
            let expected: Map = map
                .iter()
                .filter(|(k, _)| k.starts_with(prefix))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            assert_eq!(
                drain(keyspace.prefix(prefix), |i| i % 3 == 0),
                expected,
                "{prefix:?} in round {round}"
            );
        }
        database.checkpoint().unwrap();
    }
}

/// Large records are lent from their blocks. A delete beside them in a buffer's block is not.
#[test]
fn deletes_among_large_records_are_not_lent() {
    let world = World::new(6);
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(64 << 10)
        .block_bytes(4096)
        .ring_bytes(1 << 20)
        .log_segment_bytes(1 << 20)
        .log_bytes_max(16 << 20)
        .range_compaction(false);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    let mut put = |i: u64| {
        keyspace.put(number(i), vec![i as u8; 1000]).unwrap();
        map.insert(number(i), vec![i as u8; 1000]);
    };
    (0..1000).for_each(|i| put(8 * i));
    database.checkpoint().unwrap();
    // No leaf holds these keys. Each run of the buffer is one of its blocks.
    for i in (0..1000).step_by(7) {
        [1, 2, 4].into_iter().for_each(|j| put(8 * i + j));
        keyspace.delete(number(8 * i + 3)).unwrap();
    }
    database.checkpoint().unwrap();
    assert!(database.stat().unwrap().keyspaces[0].tree.buffered_records > 0);
    for backward in [false, true] {
        let mut range = keyspace.iter();
        let mut found = Map::new();
        loop {
            let record = match backward {
                true => range.next_back_ref().unwrap(),
                false => range.next_ref().unwrap(),
            };
            let Some((key, value)) = record else { break };
            found.insert(key.to_vec(), value.to_vec());
        }
        assert!(found == map, "{} of {} records", found.len(), map.len());
    }
    database.close().unwrap();
}

#[test]
fn chunks_of_large_and_small_records_join_without_gaps() {
    let world = World::new(4);
    let options = tiny()
        .memory(16 << 20)
        .ring_bytes(2 << 20)
        .log_segment_bytes(4 << 20)
        .log_bytes_max(64 << 20);
    let database = world.open(&options.checkpoint_distance(CheckpointDistance::Fixed(512)));
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    for i in 0..6000 {
        let bytes = match i % 500 {
            77 => 100_000,
            78 => terrapin::VALUE_BYTES_MAX,
            79..90 => 0,
            _ => 10,
        };
        // Half of the large records are in the tree, half in the memtable.
        keyspace.put(number(i), vec![i as u8; bytes]).unwrap();
        map.insert(number(i), vec![i as u8; bytes]);
        if i == 3000 {
            database.checkpoint().unwrap();
        }
    }
    assert_eq!(drain(keyspace.iter(), |_| true), map);
    assert_eq!(drain(keyspace.iter(), |_| false), map);
    assert_eq!(drain(keyspace.iter(), |i| i % 2 == 0), map);
    // Records kept from a chunk outlive the iterator and the database.
    let kept: Vec<_> = keyspace
        .range(number(10)..number(20))
        .map(|r| r.unwrap())
        .collect();
    database.close().unwrap();
    assert!(
        kept.iter()
            .zip(10..)
            .all(|((k, v), i)| k[..] == number(i) && v[..] == [i as u8; 10])
    );
}

#[test]
fn a_long_run_of_tombstones_is_passed_from_either_end() {
    let world = World::new(5);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(128)));
    let keyspace = database.default_keyspace();
    for i in 0..3000 {
        keyspace.put(number(i), "value").unwrap();
    }
    database.checkpoint().unwrap();
    for i in 1..2999 {
        keyspace.delete(number(i)).unwrap();
    }
    for _ in 0..2 {
        let mut range = keyspace.iter();
        assert_eq!(range.next().unwrap().unwrap().0[..], number(0));
        assert_eq!(range.next().unwrap().unwrap().0[..], number(2999));
        assert!(range.next().is_none());
        assert_eq!(
            keyspace
                .range(number(1)..number(2999))
                .next_back()
                .map(Result::unwrap),
            None
        );
        assert_eq!(keyspace.last().unwrap().unwrap().0[..], number(2999));
        database.checkpoint().unwrap();
    }
}

#[test]
fn iterators_outlive_checkpoints_and_folds() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..2000 {
        keyspace.put(number(i), value(i, 40)).unwrap();
    }
    let expected: Vec<_> = all(&keyspace).into_iter().collect();
    let mut open: Vec<(Range, usize, usize)> = (0..12)
        .map(|_| (keyspace.iter(), 0, expected.len()))
        .collect();
    for round in 1..60u64 {
        for i in 0..200 {
            keyspace
                .put(number((i * 17 + round) % 2500), value(round, 40))
                .unwrap();
            if i % 3 == 0 {
                keyspace.delete(number((i * 31 + round) % 2000)).unwrap();
            }
        }
        if round % 3 == 0 {
            world.sim.advance_ns(700_000_000);
        }
        for (which, (range, front, back)) in open.iter_mut().enumerate() {
            for step in 0..40 {
                let forward = match which % 3 {
                    0 => true,
                    1 => false,
                    _ => step % 2 == 0,
                };
                let record = if forward {
                    range.next()
                } else {
                    range.next_back()
                };
                let wanted = (*front < *back).then(|| {
                    if forward {
                        *front += 1;
                        &expected[*front - 1]
                    } else {
                        *back -= 1;
                        &expected[*back]
                    }
                });
                let record = record.map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
                assert_eq!(record.as_ref(), wanted, "round {round}, iterator {which}");
            }
        }
    }
    let metrics = database.metrics();
    assert!(metrics.folds > 0 && metrics.checkpoints > 20, "{metrics:?}");
    drop(open);
    assert_eq!(database.metrics().views, 0);
    database.close().unwrap();
    world.verify();
}

#[test]
fn an_error_is_returned_once_and_never_reads_as_the_end() {
    let world = World::new(7);
    let options = tiny().memory(1 << 20);
    let database = world.open(&options);
    for i in 0..8000 {
        database
            .default_keyspace()
            .put(number(i), value(i, 100))
            .unwrap();
    }
    database.close().unwrap();
    for forward in [true, false] {
        // The database is opened again, so that no block is cached.
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        let mut range = keyspace.iter();
        let mut step = || {
            if forward {
                range.next()
            } else {
                range.next_back()
            }
        };
        for _ in 0..100 {
            step().unwrap().unwrap();
        }
        world.disk.inject(
            Fault::nth(3, FaultError::Io)
                .on(Op::Read)
                .of("data")
                .lasting(),
        );
        let mut served = 100;
        let error = loop {
            match step().expect("an end instead of an error") {
                Ok(_) => served += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(served < 4000);
        assert!(step().is_none(), "nothing after an error");
        let unread = if forward { 7000 } else { 1000 };
        assert_eq!(
            keyspace.get(number(unread)).unwrap_err().kind(),
            ErrorKind::Io
        );
        assert!(keyspace.contains(number(unread)).is_err());
        assert!(keyspace.multi_get(&[number(unread), number(1)]).is_err());
        world.disk.clear_faults();
        assert!(step().is_none(), "nothing after an error, ever");
        assert_eq!(
            keyspace.get(number(unread)).unwrap().as_deref(),
            Some(&value(unread, 100)[..])
        );
        assert_eq!(keyspace.iter().count(), 8000);
        database.close().unwrap();
    }
}

#[test]
fn counts_are_within_a_tenth_without_overwrites() {
    let world = World::new(8);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.approximate_count().unwrap(), 0);
    let close = |count: u64, exact: u64| {
        assert!(count.abs_diff(exact) * 10 <= exact, "{count} for {exact}")
    };
    for i in 0..12_000 {
        keyspace.put(key(i), value(i, 20)).unwrap();
        if i % 1000 == 999 {
            close(keyspace.approximate_count().unwrap(), i + 1);
        }
    }
    let snapshot = database.snapshot().unwrap();
    // A few deletes of records in the tree. A larger number would count twice until they are merged
    // into leaves.
    for i in 0..500 {
        keyspace.delete(key(i)).unwrap();
    }
    close(keyspace.approximate_count().unwrap(), 11_500);
    close(snapshot.approximate_count(&keyspace).unwrap(), 12_000);
    database.checkpoint().unwrap();
    close(database.stat().unwrap().keyspaces[0].records, 11_500);
    keyspace.clear().unwrap();
    assert_eq!(keyspace.approximate_count().unwrap(), 0);
    close(snapshot.approximate_count(&keyspace).unwrap(), 12_000);
}

/// Guards against counting the memtable of now: ten thousand later records, or none of the deleted
/// ones.
#[test]
fn a_snapshot_counts_its_moment_while_its_memtable_grows() {
    let world = World::new(9);
    let database = world.open(&tiny().memory(64 << 20));
    let keyspace = database.default_keyspace();
    let counts = |snapshot: &Snapshot| {
        let all = snapshot.approximate(&keyspace, ..).unwrap().records;
        [snapshot.approximate_count(&keyspace).unwrap(), all]
    };
    let none = database.snapshot().unwrap();
    for i in 0..200 {
        keyspace.put(key(i), "value").unwrap();
    }
    let all = database.snapshot().unwrap();
    for i in 0..200 {
        keyspace.delete(key(i)).unwrap();
    }
    assert_eq!(database.metrics().checkpoints, 0);
    assert_eq!((counts(&none), counts(&all)), ([0; 2], [200; 2]));
    assert_eq!(keyspace.approximate_count().unwrap(), 0);
}
