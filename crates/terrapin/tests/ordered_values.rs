//! Separated values come back into the order of keys once ranges have paid for it.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{CheckpointDistance, Database, Keyspace, KeyspaceOptions, Options};

const VALUE_BYTES: usize = 1000;
const RECORDS: u64 = 4000;

type Truth = BTreeMap<Vec<u8>, u64>;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(32 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .record_cache(false)
        .background_threads(1)
}

/// Loaded in the order of keys, then overwritten in random order.
fn scattered(world: &World) -> (Database, Keyspace, Truth) {
    let database = world.open(&options());
    let separated = KeyspaceOptions::new().separate_from(512);
    let keyspace = database.create_keyspace("values", separated).unwrap();
    let mut truth = Truth::new();
    for i in 0..3 * RECORDS {
        let record = if i < RECORDS { i } else { world.below(RECORDS) };
        let key = record.to_be_bytes().to_vec();
        keyspace.put(&key, common::value(i, VALUE_BYTES)).unwrap();
        truth.insert(key, i);
    }
    database.checkpoint().unwrap();
    world.sim.settle();
    (database, keyspace, truth)
}

/// Checks a range of 100 records, and returns the device's reads for it.
fn range(world: &World, database: &Database, keyspace: &Keyspace, truth: &Truth) -> u64 {
    let from = world.below(RECORDS - 100).to_be_bytes();
    let before = database.metrics().device_reads.scan_reads;
    let got: Vec<_> = keyspace
        .range(&from[..]..)
        .limit(100)
        .map(|r| r.unwrap())
        .collect();
    let reads = database.metrics().device_reads.scan_reads - before;
    let expected: Vec<_> = truth.range(from.to_vec()..).take(100).collect();
    assert_eq!(got.len(), expected.len());
    for ((key, value), (own_key, number)) in got.iter().zip(expected) {
        assert_eq!(&key[..], &own_key[..]);
        assert!(value[..] == common::value(*number, VALUE_BYTES)[..]);
    }
    reads
}

fn mean(world: &World, database: &Database, keyspace: &Keyspace, truth: &Truth) -> f64 {
    let reads = (0..40).map(|_| range(world, database, keyspace, truth));
    reads.sum::<u64>() as f64 / 40.0
}

/// Nobody asks for a checkpoint or a compaction.
#[test]
fn ranges_pay_for_order_and_get_it() {
    let world = World::new(70);
    let (database, keyspace, truth) = scattered(&world);
    let before = mean(&world, &database, &keyspace, &truth);
    assert!(before > 10.0, "{before} reads a range");
    let mut after = before;
    for _ in 0..40 {
        after = mean(&world, &database, &keyspace, &truth);
        world.sim.settle();
    }
    assert!(
        after < before / 3.0 && after <= 8.0,
        "{before} before, {after} after"
    );
    // It has what it paid for, and rests.
    let checkpoints = database.metrics().checkpoints;
    for _ in 0..10 {
        mean(&world, &database, &keyspace, &truth);
        world.sim.settle();
    }
    assert!(database.metrics().checkpoints <= checkpoints + 1);
    let all: Vec<_> = keyspace.iter().map(|r| r.unwrap()).collect();
    assert_eq!(all.len(), truth.len());
    for (key, value) in &all {
        assert!(value[..] == common::value(truth[&key[..]], VALUE_BYTES)[..]);
    }
    database.close().unwrap();
    world.verify();
}

/// A snapshot sees its values, and writes that come meanwhile win.
#[test]
fn an_ordering_changes_no_answer() {
    let world = World::new(71);
    let (database, keyspace, mut truth) = scattered(&world);
    let snapshot = database.snapshot().unwrap();
    let before = truth.clone();
    for round in 0..60u64 {
        mean(&world, &database, &keyspace, &truth);
        for i in 0..20 {
            let record = world.below(RECORDS);
            let (key, number) = (record.to_be_bytes().to_vec(), 100_000 + 20 * round + i);
            if i % 5 == 4 && truth.len() > RECORDS as usize - 100 {
                keyspace.delete(&key).unwrap();
                truth.remove(&key);
            } else {
                keyspace
                    .put(&key, common::value(number, VALUE_BYTES))
                    .unwrap();
                truth.insert(key, number);
            }
        }
    }
    assert!(
        database.metrics().compactions > 0,
        "values were ordered meanwhile"
    );
    for (key, number) in &before {
        let value = snapshot.get(&keyspace, key).unwrap();
        assert!(value.as_deref() == Some(&common::value(*number, VALUE_BYTES)[..]));
    }
    drop(snapshot);
    for record in 0..RECORDS {
        let key = record.to_be_bytes();
        let value = keyspace.get(key).unwrap();
        let number = truth.get(&key[..]);
        let expected = number.map(|number| common::value(*number, VALUE_BYTES));
        assert!(value.as_deref() == expected.as_deref());
    }
    database.close().unwrap();
    world.verify();
}
