//! The accuracy of [`Keyspace::approximate`] for data of several shapes and histories.

mod common;

use common::{Map, World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Keyspace, Options};

const RECORDS: u64 = 20_000;

fn number(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

fn options() -> Options {
    tiny()
        .group_bytes(64 << 10)
        .block_bytes(4096)
        .memory(32 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .log_bytes_max(8 << 20)
}

/// Most of the records are in the tree, some in memtables.
fn load(database: &Database, make_key: impl Fn(u64) -> Vec<u8>) -> Keyspace {
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(make_key(i), value(i, 100)).unwrap();
        if i == RECORDS * 4 / 5 {
            database.checkpoint().unwrap();
        }
    }
    keyspace
}

/// The number of records, and their bytes.
fn size<'a>(records: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>) -> (u64, u64) {
    records.fold((0, 0), |sum, (key, value)| {
        (sum.0 + 1, sum.1 + (key.len() + value.len()) as u64)
    })
}

/// The largest error of estimates for random ranges and for half-open ranges: records and bytes, as
/// shares of all of `map`.
fn errors(world: &World, keyspace: &Keyspace, map: &Map) -> (f64, f64) {
    let keys: Vec<&Vec<u8>> = map.keys().collect();
    let whole = size(map.iter());
    let mut worst = (0.0f64, 0.0f64);
    for round in 0..200 {
        let place = || world.below(keys.len() as u64) as usize;
        let (a, b) = (place(), place());
        let (low, high) = (keys[a.min(b)], keys[a.max(b)]);
        let (found, exact) = match round % 3 {
            0 => (keyspace.approximate(low..), size(map.range(low.clone()..))),
            1 => (
                keyspace.approximate(..=high),
                size(map.range(..=high.clone())),
            ),
            _ => (
                keyspace.approximate(low..high),
                size(map.range(low.clone()..high.clone())),
            ),
        };
        let found = found.unwrap();
        let error = |found: u64, exact: u64, all: u64| found.abs_diff(exact) as f64 / all as f64;
        worst.0 = worst.0.max(error(found.records, exact.0, whole.0));
        worst.1 = worst.1.max(error(found.bytes, exact.1, whole.1));
    }
    worst
}

#[test]
fn estimates_of_keys_written_once_err_by_a_few_per_cent_of_all() {
    let names = |i: u64| format!("user{:08}/{}", i % 500, i / 500).into_bytes();
    let shapes = [
        ("spread", key as fn(u64) -> Vec<u8>),
        ("in order", number),
        ("names", names),
    ];
    for (shape, make_key) in shapes {
        let world = World::new(21);
        let database = world.open(&options());
        let keyspace = load(&database, make_key);
        let map = all(&keyspace);
        assert_eq!(map.len() as u64, RECORDS);
        let (records, bytes) = errors(&world, &keyspace, &map);
        println!("{shape}: records {records:.4}, bytes {bytes:.4}");
        assert!(records < 0.03 && bytes < 0.03, "{shape}: {records} {bytes}");
        // Ranges of all keys, in each form.
        let everything = keyspace.approximate(..).unwrap();
        assert_eq!(everything.records, keyspace.approximate_count().unwrap());
        let (first, last) = (keyspace.first().unwrap(), keyspace.last().unwrap());
        let by_ends = keyspace
            .approximate(first.unwrap().0..=last.unwrap().0)
            .unwrap();
        assert!(by_ends.records.abs_diff(RECORDS) * 50 < RECORDS);
        assert!(everything.records.abs_diff(by_ends.records) * 20 < RECORDS);
        database.close().unwrap();
    }
}

#[test]
fn estimates_of_empty_ranges_are_near_zero() {
    let world = World::new(22);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let nothing = |range: &dyn terrapin::KeyRange| {
        let estimate = keyspace.approximate(range).unwrap();
        assert_eq!((estimate.records, estimate.bytes), (0, 0));
    };
    nothing(&(..));
    nothing(&("a".."b"));
    load(&database, |i| number(2 * i));
    nothing(&("b".."a"));
    nothing(&("a".."a"));
    nothing(&(number(9000)..number(100)));
    nothing(&(number(2 * RECORDS)..));
    for i in (0..RECORDS).step_by(37) {
        // No tree or memtable has a key between these. The estimate is at most that of blocks in
        // which the range ends.
        let between = keyspace.approximate(number(2 * i + 1)..number(2 * i + 2));
        let between = between.unwrap().records;
        assert!(between < 200, "{between} at {i}");
    }
    database.close().unwrap();
}

#[test]
fn deletes_subtract_in_memtables_and_count_until_they_are_merged() {
    let world = World::new(23);
    let database = world.open(&options());
    let keyspace = load(&database, number);
    database.checkpoint().unwrap();
    let (half, all) = (RECORDS / 2, RECORDS);
    let before = database.snapshot().unwrap();
    // Merges wait for now.
    world.sim.set_breathing(false);
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(64))
        .unwrap();
    for i in 0..half {
        keyspace.delete(number(i)).unwrap();
    }
    let lower = || keyspace.approximate(..number(half)).unwrap();
    let upper = || keyspace.approximate(number(half)..).unwrap();
    let old_lower = || before.approximate(&keyspace, ..number(half)).unwrap();
    let near = |found: u64, exact: u64| {
        assert!(found.abs_diff(exact) * 50 < all, "{found} for {exact}");
    };
    near(lower().records, 0);
    assert!(lower().bytes < all * 108 / 50);
    near(upper().records, half);
    near(old_lower().records, half);
    world.sim.set_breathing(true);
    database.checkpoint().unwrap();
    // The error is at most that of leaves and buffers, and no range is worse because of another
    // one.
    assert!(lower().records <= 2 * half, "{:?}", lower());
    near(upper().records, half);
    near(old_lower().records, half);
    drop(before);
    keyspace.clear().unwrap();
    assert_eq!(lower().records, 0);
    let dropped = database.keyspace("dropped").unwrap();
    database.drop_keyspace("dropped").unwrap();
    let gone = dropped.approximate("a".."b").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::KeyspaceNotFound);
    database.close().unwrap();
}
