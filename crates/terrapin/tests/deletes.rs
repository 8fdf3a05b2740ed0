//! Deletes free space, and metrics count the space in use, for records of any and of mixed lengths.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{Database, Options};

/// Records of one kind, and which of them are deleted.
struct Kind {
    records: u64,
    key_bytes: usize,
    value_bytes: fn(u64) -> usize,
    deleted: fn(u64) -> bool,
    group_bytes: u64,
}

impl Kind {
    fn key(&self, i: u64) -> Vec<u8> {
        let mut key = common::key(i);
        key.resize(self.key_bytes, b'k');
        key
    }

    fn options(&self) -> Options {
        Options::new()
            .memory(16 << 20)
            .ring_bytes(1 << 20)
            .group_bytes(self.group_bytes)
            .background_threads(2)
    }
}

/// Bytes of the existing records, by their numbers.
type Truth = BTreeMap<u64, u64>;

/// Live pages take little more than the records, and every metric agrees.
fn check(database: &Database, truth: &Truth, most: f64) {
    let bytes: u64 = truth.values().sum();
    let (metrics, stat) = (database.metrics(), database.stat().unwrap());
    let used = metrics.data_live_bytes as f64 / bytes as f64;
    assert!(used < most, "{used} times {bytes} bytes: {stat:#?}");
    for said in [metrics.space_amplification, stat.space_amplification] {
        assert!(
            (said / used - 1.0).abs() < 0.1,
            "{said} is said, and {used} in use"
        );
    }
    let tree = &stat.keyspaces[0].tree;
    let live = tree.leaf_bytes + tree.buffered_bytes - tree.superseded_bytes;
    assert!(
        live.abs_diff(bytes) < bytes / 10,
        "{live} of {bytes} bytes: {tree:?}"
    );
}

fn run(kind: &Kind, most: f64) {
    let world = World::new(46);
    let database = world.open(&kind.options());
    let keyspace = database.default_keyspace();
    let mut truth = Truth::new();
    for i in 0..kind.records {
        let value = common::value(i, (kind.value_bytes)(i));
        let key = kind.key(i);
        keyspace.put(&key, &value).unwrap();
        truth.insert(i, (key.len() + value.len()) as u64);
    }
    for i in (0..kind.records).filter(|&i| (kind.deleted)(i)) {
        keyspace.delete(kind.key(i)).unwrap();
        truth.remove(&i);
    }
    database.checkpoint().unwrap();
    check(&database, &truth, most);
    drop(keyspace);
    database.close().unwrap();
    let database = world.open(&kind.options());
    check(&database, &truth, most);
    let found = database.default_keyspace().iter().count();
    assert_eq!(found, truth.len());
    database.close().unwrap();
    world.verify();
}

const LONG: Kind = Kind {
    records: 240,
    key_bytes: 8,
    value_bytes: |_| 130 << 10,
    deleted: |i| i % 20 != 0,
    group_bytes: 256 << 10,
};

#[test]
fn values_of_130_kib() {
    run(&LONG, 1.5);
}

#[test]
fn values_of_4_kib() {
    let kind = Kind {
        records: 6000,
        value_bytes: |_| 4 << 10,
        group_bytes: 64 << 10,
        ..LONG
    };
    run(&kind, 1.5);
}

#[test]
fn values_of_1_kib() {
    let kind = Kind {
        records: 16_000,
        value_bytes: |_| 1 << 10,
        group_bytes: 64 << 10,
        ..LONG
    };
    run(&kind, 1.5);
}

/// One value in a hundred has nearly all of the bytes.
const UNEVEN: Kind = Kind {
    records: 12_000,
    value_bytes: |i| if i % 100 == 7 { 200 << 10 } else { 20 },
    group_bytes: 256 << 10,
    ..LONG
};

#[test]
fn values_of_which_one_in_a_hundred_has_nearly_all_bytes() {
    let kind = Kind {
        deleted: |i| (i / 100 + i) % 20 != 0,
        ..UNEVEN
    };
    run(&kind, 1.5);
}

#[test]
fn the_long_values_among_short_ones() {
    let kind = Kind {
        deleted: |i| i % 100 == 7,
        ..UNEVEN
    };
    run(&kind, 1.5);
    let half = Kind {
        deleted: |i| i % 200 == 7,
        ..UNEVEN
    };
    run(&half, 1.5);
}

/// All records are shorter than a block.
#[test]
fn the_longer_values_among_short_ones_in_their_blocks() {
    let kind = Kind {
        records: 40_000,
        value_bytes: |i| if i % 10 == 7 { 3000 } else { 20 },
        deleted: |i| i % 10 == 7,
        group_bytes: 64 << 10,
        ..LONG
    };
    run(&kind, 1.5);
}

#[test]
fn keys_of_60_000_bytes() {
    let kind = Kind {
        records: 400,
        key_bytes: 60_000,
        value_bytes: |_| 100,
        deleted: |i| i % 2 == 0,
        group_bytes: 2 << 20,
    };
    run(&kind, 1.5);
}
