//! Gets of separated values by way of the map of their places.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{Database, Keyspace, KeyspaceOptions, Options};

type Truth = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(16 << 10)
        .background_threads(1)
        .record_cache(false)
}

fn separated() -> KeyspaceOptions {
    KeyspaceOptions::new().separate_from(512)
}

fn put(keyspace: &Keyspace, truth: &mut Truth, number: u64, version: u64) {
    let value = common::value(
        number + version * 100_000,
        700 + (number as usize * 7) % 600,
    );
    keyspace.put(common::key(number), &value).unwrap();
    truth.insert(common::key(number), value);
}

/// Gets all keys of a truth, and some that are not there. Returns how many the map answered.
fn get_all(database: &Database, keyspace: &Keyspace, truth: &Truth) -> u64 {
    let before = database.metrics().location_hits;
    for number in 0..1200 {
        let key = common::key(number);
        let got = keyspace.get(&key).unwrap();
        assert_eq!(got.as_deref(), truth.get(&key).map(|v| &v[..]), "{number}");
    }
    database.metrics().location_hits - before
}

fn loaded(world: &World) -> (Database, Keyspace, Truth) {
    let database = world.open(&options());
    let keyspace = database.create_keyspace("values", separated()).unwrap();
    let mut truth = Truth::new();
    (0..1000).for_each(|number| put(&keyspace, &mut truth, number, 0));
    database.checkpoint().unwrap();
    // The map asks for memory first, which a job gives.
    for _ in 0..2 {
        get_all(&database, &keyspace, &truth);
        world.sim.settle();
    }
    (database, keyspace, truth)
}

#[test]
fn a_known_value_is_one_read_without_the_tree() {
    let world = World::new(71);
    let (database, keyspace, truth) = loaded(&world);
    let reads = |metrics: terrapin::Metrics| {
        let lookups = metrics.cache_hits.blocks + metrics.cache_misses.blocks;
        (metrics.device_reads.get_reads, lookups)
    };
    let before = reads(database.metrics());
    assert!(database.metrics().location_bytes > 0);
    let keys: Vec<_> = truth.keys().collect();
    for key in &keys {
        assert_eq!(
            keyspace.get(key).unwrap().as_deref(),
            Some(&truth[*key][..])
        );
    }
    let after = reads(database.metrics());
    let (get_reads, block_lookups) = (after.0 - before.0, after.1 - before.1);
    assert!(get_reads <= 1020, "{get_reads} reads of 1000 values");
    assert!(block_lookups <= 30, "{block_lookups} blocks of the tree");
    database.close().unwrap();
}

/// What changes a key is seen at once, before its checkpoint and after it.
#[test]
fn the_map_never_answers_with_an_older_value() {
    let world = World::new(72);
    let (database, keyspace, mut truth) = loaded(&world);
    assert!(get_all(&database, &keyspace, &truth) > 950);
    for round in 1..60u64 {
        for step in 0..60 {
            let number = (round * 7919 + step * 31) % 1000;
            match (round + step) % 9 {
                0 => {
                    keyspace.delete(common::key(number)).unwrap();
                    truth.remove(&common::key(number));
                }
                1 => {
                    keyspace.put(common::key(number), "short").unwrap();
                    truth.insert(common::key(number), b"short".to_vec());
                }
                _ => put(&keyspace, &mut truth, number, round),
            }
        }
        if round % 10 == 0 {
            let (lo, hi) = (common::key(round), common::key(round + 1));
            let (lo, hi) = (lo.clone().min(hi.clone()), lo.max(hi));
            keyspace.delete_range(lo.clone()..hi.clone()).unwrap();
            truth.retain(|key, _| *key < lo || *key >= hi);
        }
        get_all(&database, &keyspace, &truth);
        database.checkpoint().unwrap();
        let hits = get_all(&database, &keyspace, &truth);
        assert!(
            round % 10 == 0 || hits > 100,
            "{hits} hits in round {round}"
        );
    }
    keyspace.clear().unwrap();
    truth.clear();
    get_all(&database, &keyspace, &truth);
    (0..500).for_each(|number| put(&keyspace, &mut truth, number, 77));
    database.checkpoint().unwrap();
    get_all(&database, &keyspace, &truth);
    assert!(get_all(&database, &keyspace, &truth) > 300);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_map_begins_empty_and_views_do_not_ask_it() {
    let world = World::new(73);
    let (database, keyspace, mut truth) = loaded(&world);
    let snapshot = database.snapshot().unwrap();
    let before = truth.clone();
    (0..1000).for_each(|number| put(&keyspace, &mut truth, number, 1));
    database.checkpoint().unwrap();
    get_all(&database, &keyspace, &truth);
    let hits = database.metrics().location_hits;
    for (key, value) in &before {
        let got = snapshot.get(&keyspace, key).unwrap();
        assert_eq!(got.as_deref(), Some(&value[..]));
    }
    assert_eq!(database.metrics().location_hits, hits);
    drop(snapshot);
    drop(keyspace);
    database.close().unwrap();
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    assert_eq!(get_all(&database, &keyspace, &truth), 0);
    world.sim.settle();
    get_all(&database, &keyspace, &truth);
    assert!(get_all(&database, &keyspace, &truth) > 950);
    database.close().unwrap();
}

/// A database without separated values has no map.
#[test]
fn only_databases_with_separated_values_have_a_map() {
    let world = World::new(74);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    keyspace.put("key", vec![7; 2000]).unwrap();
    database.checkpoint().unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap().len(), 2000);
    let metrics = database.metrics();
    assert_eq!((metrics.location_hits, metrics.location_bytes), (0, 0));
    database.close().unwrap();
}
