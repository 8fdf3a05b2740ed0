//! Range deletes: what every kind of read sees of them, before and after checkpoints, kills and
//! power cuts, in views, in batches and on a full disk.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;

use common::{Map, World, tiny};
use terrapin::{CheckpointDistance, Database, Durability, ErrorKind, Keyspace, Snapshot};
use terrapin_disk::sim::CrashMode;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Keys of the tests.
const KEYS: u64 = 400;

/// Keys in the order of their numbers.
fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Values of different lengths.
fn value(number: u64) -> Vec<u8> {
    common::value(number, (number % 7 * 30) as usize)
}

/// Lets time pass, and the background catch up.
fn pass(world: &World, seconds: u64) {
    for _ in 0..seconds {
        world.sim.advance_ns(1_000_000_000);
        world.sim.settle();
    }
}

fn owned(record: terrapin::Result<(terrapin::Slice, terrapin::Slice)>) -> (Vec<u8>, Vec<u8>) {
    let (key, value) = record.unwrap();
    (key.to_vec(), value.to_vec())
}

fn bounds(world: &World, span: u64) -> Bounds {
    let lo = world.below(KEYS);
    let hi = lo + world.below(span);
    let lower = match world.below(8) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key(lo)),
        _ => Bound::Included(key(lo)),
    };
    let upper = match world.below(8) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(hi)),
        _ => Bound::Excluded(key(hi)),
    };
    match (&lower, &upper) {
        // Not all keys at once.
        (Bound::Unbounded, Bound::Unbounded) => (lower, Bound::Excluded(key(lo))),
        _ => (lower, upper),
    }
}

fn is_inside(bounds: &Bounds, key: &[u8]) -> bool {
    let above = match &bounds.0 {
        Bound::Unbounded => true,
        Bound::Included(lo) => key >= &lo[..],
        Bound::Excluded(lo) => key > &lo[..],
    };
    above
        && match &bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(hi) => key <= &hi[..],
            Bound::Excluded(hi) => key < &hi[..],
        }
}

fn erase(map: &mut Map, bounds: &Bounds) {
    map.retain(|key, _| !is_inside(bounds, key));
}

/// What a read needs of a keyspace or of a snapshot of it.
enum Reader<'a> {
    Newest(&'a Keyspace),
    View(&'a Snapshot, &'a Keyspace),
}

impl Reader<'_> {
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let value = match self {
            Reader::Newest(keyspace) => keyspace.get(key),
            Reader::View(snapshot, keyspace) => snapshot.get(keyspace, key),
        };
        value.unwrap().map(|value| value.to_vec())
    }

    fn contains(&self, key: &[u8]) -> bool {
        match self {
            Reader::Newest(keyspace) => keyspace.contains(key),
            Reader::View(snapshot, keyspace) => snapshot.contains(keyspace, key),
        }
        .unwrap()
    }

    fn multi_get(&self, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
        let values = match self {
            Reader::Newest(keyspace) => keyspace.multi_get(keys),
            Reader::View(snapshot, keyspace) => snapshot.multi_get(keyspace, keys),
        };
        let values = values.unwrap().into_iter();
        values
            .map(|value| value.map(|value| value.to_vec()))
            .collect()
    }

    fn range(&self, bounds: &Bounds) -> terrapin::Range {
        match self {
            Reader::Newest(keyspace) => keyspace.range(bounds),
            Reader::View(snapshot, keyspace) => snapshot.range(keyspace, bounds),
        }
    }

    /// Checks every kind of read against the truth.
    fn check(&self, world: &World, map: &Map) {
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let values = self.multi_get(&keys);
        for (key, value) in keys.iter().zip(values) {
            let expected = map.get(key);
            assert_eq!(value.as_ref(), expected, "{key:?}");
            if world.below(4) == 0 {
                assert_eq!(self.get(key).as_ref(), expected, "{key:?}");
                assert_eq!(self.contains(key), expected.is_some(), "{key:?}");
            }
        }
        let all = (Bound::Unbounded, Bound::Unbounded);
        let number =
            |record: &(Vec<u8>, Vec<u8>)| u64::from_be_bytes(record.0[..8].try_into().unwrap());
        let numbers =
            |records: &[(Vec<u8>, Vec<u8>)]| records.iter().map(number).collect::<Vec<_>>();
        for bounds in [all, bounds(world, KEYS), bounds(world, 20)] {
            let inside = map.iter().filter(|(key, _)| is_inside(&bounds, key));
            let expected: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
            let forward: Vec<_> = self.range(&bounds).map(owned).collect();
            assert_eq!(numbers(&forward), numbers(&expected), "{bounds:?}");
            assert!(forward == expected, "{bounds:?}");
            let mut backward: Vec<_> = self.range(&bounds).rev().map(owned).collect();
            backward.reverse();
            assert_eq!(numbers(&backward), numbers(&expected), "{bounds:?}");
            assert!(backward == expected, "{bounds:?}");
            let mut range = self.range(&bounds);
            let (mut front, mut back) = (Vec::new(), Vec::new());
            loop {
                let (next, end) = match world.below(2) {
                    0 => (range.next(), &mut front),
                    _ => (range.next_back(), &mut back),
                };
                match next {
                    Some(record) => end.push(owned(record)),
                    None => break,
                }
            }
            let way = (numbers(&front), numbers(&back));
            front.extend(back.into_iter().rev());
            assert_eq!(numbers(&front), numbers(&expected), "{bounds:?}: {way:?}");
            assert!(front == expected, "{bounds:?}");
        }
    }
}

#[test]
fn every_read_sees_range_deletes_through_checkpoints_kills_and_power_cuts() {
    for seed in 0..12 {
        let world = World::new(0x6172 + seed);
        let options = tiny();
        let mut database = world.open(&options);
        let mut keyspace = database.default_keyspace();
        let mut map = Map::new();
        let mut views: Vec<(Snapshot, Map)> = Vec::new();
        for step in 0..500 {
            match world.below(40) {
                0..20 => {
                    let number = world.below(KEYS);
                    let value = value(step);
                    keyspace.put(key(number), &value).unwrap();
                    map.insert(key(number), value);
                }
                20..23 => {
                    let number = world.below(KEYS);
                    keyspace.delete(key(number)).unwrap();
                    map.remove(&key(number));
                }
                23..27 => {
                    let bounds = bounds(&world, 60);
                    keyspace.delete_range(&bounds).unwrap();
                    erase(&mut map, &bounds);
                }
                27 => {
                    keyspace.delete_prefix(b"no key begins so").unwrap();
                    let mut batch = database.batch();
                    let mut after = map.clone();
                    for _ in 0..1 + world.below(6) {
                        let number = world.below(KEYS);
                        match world.below(3) {
                            0 => {
                                let value = value(step);
                                batch.put(&keyspace, key(number), &value);
                                after.insert(key(number), value);
                            }
                            1 => {
                                batch.delete(&keyspace, key(number));
                                after.remove(&key(number));
                            }
                            _ => {
                                let bounds = bounds(&world, 60);
                                batch.delete_range(&keyspace, &bounds);
                                erase(&mut after, &bounds);
                            }
                        }
                    }
                    database.write(&batch).unwrap();
                    map = after;
                }
                28 | 29 => views.push((database.snapshot().unwrap(), map.clone())),
                30 if !views.is_empty() => {
                    views.remove(world.below(views.len() as u64) as usize);
                }
                31 | 32 => database.checkpoint().unwrap(),
                33 => pass(&world, 2),
                34 | 35 => Reader::Newest(&keyspace).check(&world, &map),
                36 | 37 => {
                    for (view, map) in &views {
                        Reader::View(view, &keyspace).check(&world, map);
                    }
                }
                38 if world.below(3) == 0 => {
                    views.clear();
                    drop(keyspace);
                    match world.below(2) {
                        0 => world.kill(database),
                        _ => {
                            database.flush().unwrap();
                            world.cut_power(database, CrashMode::LoseUnsynced);
                        }
                    }
                    world.verify();
                    database = world.open(&options);
                    keyspace = database.default_keyspace();
                    Reader::Newest(&keyspace).check(&world, &map);
                }
                _ => {}
            }
        }
        Reader::Newest(&keyspace).check(&world, &map);
        for (view, map) in &views {
            Reader::View(view, &keyspace).check(&world, map);
        }
        views.clear();
        database.checkpoint().unwrap();
        Reader::Newest(&keyspace).check(&world, &map);
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}

fn fill(keyspace: &Keyspace, map: &mut Map, count: u64) {
    for number in 0..count {
        keyspace.put(key(number), value(number)).unwrap();
        map.insert(key(number), value(number));
    }
}

/// A memtable with range deletes and no key is not empty.
#[test]
fn a_lone_range_delete_survives_a_checkpoint_and_a_kill() {
    for (durability, checkpoint) in [
        (Durability::Process, false),
        (Durability::Process, true),
        (Durability::None, true),
    ] {
        let world = World::new(1);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        let mut map = Map::new();
        fill(&keyspace, &mut map, 100);
        database.checkpoint().unwrap();
        let range = key(20)..key(60);
        keyspace.delete_range_with(range, durability).unwrap();
        map.retain(|k, _| *k < key(20) || *k >= key(60));
        Reader::Newest(&keyspace).check(&world, &map);
        if checkpoint {
            database.checkpoint().unwrap();
        }
        drop(keyspace);
        world.kill(database);
        let database = world.open(&tiny());
        Reader::Newest(&database.default_keyspace()).check(&world, &map);
        database.close().unwrap();
    }
}

#[test]
fn the_order_of_a_batch_counts_with_every_durability() {
    for durability in [Durability::None, Durability::Process, Durability::Sync] {
        for put_first in [false, true] {
            let world = World::new(2);
            let database = world.open(&tiny());
            let keyspace = database.default_keyspace();
            let mut batch = database.batch();
            if put_first {
                batch.put(&keyspace, "k", "1");
            }
            batch.delete_prefix(&keyspace, "k");
            if !put_first {
                batch.put(&keyspace, "k", "1");
            }
            database.write_with(&batch, durability).unwrap();
            let is_there = |database: &Database| {
                let keyspace = database.default_keyspace();
                let count = keyspace.iter().count();
                assert_eq!(keyspace.contains("k").unwrap(), count == 1);
                count == 1
            };
            assert_eq!(is_there(&database), !put_first);
            drop(keyspace);
            world.kill(database);
            let database = world.open(&tiny());
            assert_eq!(is_there(&database), !put_first, "{durability:?}");
            database.checkpoint().unwrap();
            assert_eq!(is_there(&database), !put_first);
            database.close().unwrap();
        }
    }
}

#[test]
fn a_view_between_two_overlapping_range_deletes_sees_the_older_one() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    fill(&keyspace, &mut map, 100);
    let mut views = vec![(database.snapshot().unwrap(), map.clone())];
    for bounds in [10..50, 30..70, 20..40] {
        let bounds = (
            Bound::Included(key(bounds.start)),
            Bound::Excluded(key(bounds.end)),
        );
        keyspace.delete_range(&bounds).unwrap();
        erase(&mut map, &bounds);
        views.push((database.snapshot().unwrap(), map.clone()));
        keyspace.put(key(35), "again").unwrap();
        map.insert(key(35), b"again".to_vec());
        views.push((database.snapshot().unwrap(), map.clone()));
    }
    for round in 0..3 {
        for (view, map) in &views {
            Reader::View(view, &keyspace).check(&world, map);
        }
        match round {
            0 => database.checkpoint().unwrap(),
            // Views give their memtables back for runs.
            _ => pass(&world, 5),
        }
    }
}

#[test]
fn ten_thousand_small_range_deletes_leave_what_is_between_them() {
    let world = World::new(4);
    let database = world.open(&tiny().memory(64 << 20).ring_bytes(1 << 20));
    let keyspace = database.default_keyspace();
    let count = 20_000;
    let mut batch = database.batch();
    for number in 0..count {
        batch.put(&keyspace, key(number), "1");
        if number % 1000 == 999 {
            database.write(&batch).unwrap();
            batch.clear();
        }
    }
    database.checkpoint().unwrap();
    let live = database.metrics().data_live_bytes;
    for number in (0..count).step_by(2) {
        keyspace.delete_range(key(number)..key(number + 1)).unwrap();
    }
    let written = world.disk.stats_total().written_bytes;
    let check = || {
        let keys = keyspace.iter().keys().map(|key| key.unwrap().to_vec());
        assert!(keys.eq((0..count).skip(1).step_by(2).map(key)));
        let back = keyspace.iter().keys().next_back().unwrap().unwrap();
        assert_eq!(back, key(count - 1));
    };
    check();
    database.checkpoint().unwrap();
    check();
    // Each becomes a delete of its key, and does not rewrite a leaf.
    let written = world.disk.stats_total().written_bytes - written;
    assert!(written < 8 * live, "{written} bytes for {live}");
    database.close().unwrap();
}

/// Most of a large keyspace goes: no leaf is read, few bytes are written, and the caches know.
#[test]
fn a_large_range_is_given_up_unread() {
    let world = World::new(8);
    let options = tiny().memory(16 << 20).ring_bytes(1 << 20);
    let options = options.log_bytes_max(32 << 20);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let count = 40_000;
    let mut map = Map::new();
    for number in 0..count {
        let number = number * 7_919 % count;
        keyspace.put(key(number), vec![number as u8; 100]).unwrap();
        if !(500..39_500).contains(&number) {
            map.insert(key(number), vec![number as u8; 100]);
        }
    }
    database.checkpoint().unwrap();
    // Cached records on both sides.
    for number in (0..count).step_by(10) {
        assert!(keyspace.get(key(number)).unwrap().is_some());
    }
    let live = database.metrics().data_live_bytes;
    let before = world.disk.stats_total();
    keyspace.delete_range(key(500)..key(39_500)).unwrap();
    // Puts that are newer, at the ends of the range and inside of it.
    for number in [500, 20_000, 20_001, 39_499] {
        keyspace.put(key(number), "again").unwrap();
        map.insert(key(number), b"again".to_vec());
    }
    database.checkpoint().unwrap();
    let after = world.disk.stats_total();
    let read = after.read_bytes - before.read_bytes;
    let written = after.written_bytes - before.written_bytes;
    assert!(read < live / 10, "{read} bytes read of {live}");
    assert!(written < live / 20, "{written} bytes written of {live}");
    let left = database.metrics().data_live_bytes;
    assert!(left < live / 20, "{left} of {live}");
    for number in (0..count).step_by(10) {
        let key = key(number);
        let value = keyspace.get(&key).unwrap().map(|value| value.to_vec());
        assert_eq!(value.as_ref(), map.get(&key), "{number}");
        assert_eq!(keyspace.contains(&key).unwrap(), map.contains_key(&key));
    }
    assert_eq!(common::all(&keyspace), map);
    database.close().unwrap();
    world.verify();
}

/// Before a checkpoint and after it, ranges read as if the records had never been.
#[test]
fn ranges_jump_over_a_range_delete_that_is_not_merged() {
    let world = World::new(9);
    let options = tiny().memory(4 << 20).ring_bytes(256 << 10);
    let database = world.open(&options.checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspace = database.default_keyspace();
    let count = 20_000;
    for number in 0..count {
        keyspace.put(key(number), vec![1; 100]).unwrap();
    }
    database.checkpoint().unwrap();
    keyspace.put(key(0), "first").unwrap();
    let seal = database.metrics().checkpoints;
    keyspace.delete_range(key(1)..key(count - 1)).unwrap();
    let before = world.disk.stats_total().read_bytes;
    let numbers = || {
        let keys = keyspace.iter().keys().map(|key| key.unwrap().to_vec());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(numbers(), [key(0), key(count - 1)]);
    let mut back = keyspace.iter().keys().rev();
    assert_eq!(back.next().unwrap().unwrap(), key(count - 1));
    assert_eq!(back.next().unwrap().unwrap(), key(0));
    let inside = key(5_000)..key(15_000);
    assert!(keyspace.range(inside).next().is_none());
    let read = world.disk.stats_total().read_bytes - before;
    assert!(read < 200_000, "{read} bytes");
    assert_eq!(database.metrics().checkpoints, seal);
    database.checkpoint().unwrap();
    assert_eq!(numbers(), [key(0), key(count - 1)]);
    database.close().unwrap();
}

/// A consumer of a queue deletes what it took by ranges that touch each other. Its ranges pay for a
/// seal, as those over deletes of single keys do.
#[test]
fn ranges_count_the_range_deletes_that_they_look_up() {
    let world = World::new(11);
    let options = tiny().memory(4 << 20).ring_bytes(256 << 10);
    let database = world.open(&options.checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspace = database.default_keyspace();
    keyspace.put(key(1_000), "last").unwrap();
    let passed = |lookup: &dyn Fn()| {
        let before = database.metrics().scanned_deletes;
        lookup();
        database.metrics().scanned_deletes - before
    };
    let first = || assert_eq!(keyspace.first().unwrap().unwrap().0, key(1_000));
    let last = || assert_eq!(keyspace.last().unwrap().unwrap().0, key(1_000));
    // Each one reaches farther than all before it: one look-up finds the end.
    for number in 1..=100 {
        keyspace.delete_range(..key(number)).unwrap();
    }
    assert!(passed(&first) <= 3);
    for number in 100..200 {
        keyspace.delete_range(key(number)..key(number + 1)).unwrap();
    }
    let count = passed(&first);
    assert!((100..110).contains(&count), "{count}");
    let back = || assert!(keyspace.range(..key(200)).next_back().is_none());
    let count = passed(&back);
    assert!((100..110).contains(&count), "{count}");
    last();
    database.checkpoint().unwrap();
    assert_eq!(passed(&first), 0);
    database.close().unwrap();
}

/// The merge reads no leaf that it gives up, so a damaged one is no obstacle, and is gone then.
#[test]
fn a_range_delete_gives_up_a_damaged_leaf() {
    let options = tiny().memory(4 << 20);
    let sound = World::new(12);
    let database = sound.open(&options);
    let keyspace = database.default_keyspace();
    for number in 0..4_000 {
        keyspace.put(key(number), vec![number as u8; 100]).unwrap();
    }
    database.close().unwrap();
    drop(keyspace);
    let bytes = sound.disk.content("data").unwrap().len() as u64;
    let mut given_up = 0;
    for offset in (8192..bytes).step_by(20_011) {
        let mut world = World::new(12);
        world.disk = sound.disk.fork();
        world.disk.corrupt("data", offset, 0x41);
        let Ok(database) = world.try_open(&options) else {
            continue;
        };
        let keyspace = database.default_keyspace();
        let is_damaged = |number: &u64| keyspace.get(key(*number)).is_err();
        let damaged: Vec<_> = (500..3_500).filter(is_damaged).collect();
        // A block or two, not a node.
        let (Some(first), true) = (damaged.first(), damaged.len() < 20) else {
            continue;
        };
        let range = key(first - 300)..key(first + 300);
        keyspace.delete_range(range).unwrap();
        database.checkpoint().unwrap();
        for number in 0..4_000 {
            let is_there = !(first - 300..first + 300).contains(&number);
            assert_eq!(keyspace.contains(key(number)).unwrap(), is_there);
        }
        assert_eq!(keyspace.iter().count(), 3_400);
        drop(keyspace);
        database.close().unwrap();
        world.verify();
        given_up += 1;
    }
    assert!(given_up > 3, "{given_up}");
}

/// What the range delete hides is looked up in the background, and also by the open that replays
/// it.
#[test]
fn a_range_delete_reads_nothing_in_the_foreground_and_is_weighed_after_a_kill() {
    let world = World::new(10);
    let options = tiny().memory(4 << 20);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    for number in 0..5_000 {
        keyspace.put(key(number), vec![1; 100]).unwrap();
    }
    database.close().unwrap();
    drop(keyspace);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let live = database.metrics().data_live_bytes;
    world.sim.set_breathing(false);
    let before = world.disk.stats_total().read_bytes;
    keyspace.delete_range(key(100)..).unwrap();
    assert_eq!(world.disk.stats_total().read_bytes, before);
    drop(keyspace);
    world.kill(database);
    let database = world.open(&options);
    assert_eq!(database.metrics().data_live_bytes, live);
    pass(&world, 2);
    let after = database.metrics().data_live_bytes;
    assert!(after < live / 4, "{after} of {live} bytes");
    assert_eq!(database.default_keyspace().iter().count(), 100);
    database.close().unwrap();
}

#[test]
fn impossible_ranges_are_refused_and_empty_ones_write_nothing() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace.put("a", "1").unwrap();
    let tail = database.metrics().log_bytes_written;
    keyspace.delete_range("b".."a").unwrap();
    keyspace.delete_range("a".."a").unwrap();
    let excluded = |key: &'static str| (Bound::Excluded(key), Bound::Excluded(key));
    keyspace.delete_range(excluded("a")).unwrap();
    let nothing = (Bound::Excluded(&b"a"[..]), Bound::Excluded(&b"a\0"[..]));
    keyspace.delete_range(nothing).unwrap();
    assert_eq!(database.metrics().log_bytes_written, tail);
    assert!(keyspace.contains("a").unwrap());
    database.close().unwrap();

    let world = World::new(5);
    let database = world.open(&tiny().memory(8 << 20).ring_bytes(1 << 20));
    let keyspace = database.default_keyspace();
    let longest = vec![b'k'; 65_535];
    keyspace.put(&longest, "").unwrap();
    keyspace.delete_range(..=&longest[..]).unwrap();
    assert!(keyspace.is_empty().unwrap());
    let too_long = vec![b'k'; 65_536];
    let error = keyspace.delete_range(too_long..).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    database.close().unwrap();
}

/// What an estimate says of a keyspace follows range deletes, merged or not.
#[test]
fn estimates_leave_out_what_range_deletes_hide() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut map = BTreeMap::new();
    fill(&keyspace, &mut map, 300);
    let about = |expected: u64| {
        let said = keyspace.approximate(..).unwrap().records;
        assert!(said.abs_diff(expected) <= 40, "{said}, not {expected}");
        let said = keyspace.approximate(key(100)..key(200)).unwrap().records;
        assert!(said <= 20, "{said}");
    };
    keyspace.delete_range(key(100)..key(200)).unwrap();
    about(200);
    database.checkpoint().unwrap();
    about(200);
    keyspace.delete_range(key(50)..key(250)).unwrap();
    about(100);
    database.checkpoint().unwrap();
    about(100);
    database.close().unwrap();
}

/// A large range delete frees its space without another write and without a call that asks for it.
#[test]
fn a_range_delete_that_hides_much_starts_a_checkpoint() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    for number in 0..5_000 {
        keyspace.put(key(number), vec![1; 100]).unwrap();
        map.insert(key(number), vec![1; 100]);
    }
    database.checkpoint().unwrap();
    let before = database.metrics().data_live_bytes;
    keyspace.delete_range(key(100)..).unwrap();
    pass(&world, 2);
    let after = database.metrics().data_live_bytes;
    assert!(after < before / 4, "{after} of {before} bytes");
    assert_eq!(keyspace.iter().count(), 100);
    database.close().unwrap();
}

/// A synced write makes earlier writes durable, also if it changes nothing.
#[test]
fn a_synced_delete_of_an_empty_range_makes_earlier_writes_durable() {
    let world = World::new(8);
    let options = tiny().durability(Durability::Process);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    keyspace.put("a", "1").unwrap();
    keyspace
        .delete_range_with("b".."b", Durability::Sync)
        .unwrap();
    drop(keyspace);
    world.cut_power(database, CrashMode::LoseUnsynced);
    let database = world.open(&options);
    let value = database.default_keyspace().get("a").unwrap();
    assert_eq!(value.as_deref(), Some(&b"1"[..]));
    database.close().unwrap();
}
