//! What users of other stores with separated values complain of, each as a test.
//! `docs/TESTING.md` links the list.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{
    CheckpointDistance, Database, Durability, Keyspace, KeyspaceOptions, Options,
    SpaceAmplification,
};
use terrapin_disk::sim::CrashMode;

const VALUE_BYTES: usize = 2000;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(1)
}

fn created(database: &Database, accepted: f64) -> Keyspace {
    let separated = KeyspaceOptions::new()
        .separate_from(512)
        .space_amplification(SpaceAmplification::from(accepted));
    database.create_keyspace("values", separated).unwrap()
}

fn put(keyspace: &Keyspace, i: u64, version: u64) {
    let value = common::value(i + (version << 32), VALUE_BYTES);
    keyspace.put(common::key(i), value).unwrap();
}

fn has(keyspace: &Keyspace, i: u64, version: u64) {
    let value = keyspace.get(common::key(i)).unwrap();
    let expected = common::value(i + (version << 32), VALUE_BYTES);
    assert!(value.as_deref() == Some(&expected[..]), "{i}");
}

fn figure(database: &Database, name: &str) -> u64 {
    let stat = database.stat().unwrap();
    let mut keyspaces = stat.keyspaces.iter();
    let tree = &keyspaces.find(|k| k.name == "values").unwrap().tree;
    match name {
        "page_bytes" => tree.page_bytes,
        name => tree.figure(name).unwrap_or(0),
    }
}

/// Bytes of value pages that were written so far.
fn written(database: &Database) -> u64 {
    database.metrics().device_written.values
}

/// Bytes of memory in use.
fn memory(database: &Database) -> u64 {
    let memory = database.metrics().memory;
    let caches = memory.block_bytes + memory.metadata_bytes + memory.record_bytes;
    caches + memory.memtable_bytes + memory.merge_bytes + memory.log_bytes
}

/// Puts records far above all others until garbage is collected.
fn collect(database: &Database, keyspace: &Keyspace, rounds: u64) {
    for round in 0..rounds {
        put(keyspace, 1 << 20, round);
        database.checkpoint().unwrap();
    }
}

#[test]
fn a_key_deleted_while_its_value_is_collected_stays_deleted() {
    let world = World::new(201);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    for round in 0..12 {
        for i in 0..300 {
            if (i + round) % 3 == 0 || round == 0 {
                put(&keyspace, i, round);
            }
        }
        // The memtable with the deletes is sealed beside the merges that collect.
        for i in (round..300).step_by(12) {
            keyspace.delete(common::key(i)).unwrap();
        }
        world.sim.settle();
    }
    for i in 0..300 {
        keyspace.delete(common::key(i)).unwrap();
    }
    collect(&database, &keyspace, 6);
    assert_eq!(keyspace.iter().count(), 1);
    drop(keyspace);
    database.close().unwrap();
    world.verify();
    let database = world.open(&options());
    assert_eq!(database.keyspace("values").unwrap().iter().count(), 1);
    database.close().unwrap();
}

#[test]
fn pure_inserts_copy_no_value() {
    let world = World::new(202);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    for i in 0..3000 {
        put(&keyspace, i, 0);
    }
    database.checkpoint().unwrap();
    assert_eq!(figure(&database, "dead_value_bytes"), 0);
    let user = 3000 * (VALUE_BYTES as u64 + 8);
    let factor = written(&database) as f64 / user as f64;
    assert!(factor < 1.1, "{factor}");
    database.close().unwrap();
}

#[test]
fn one_live_value_a_page_does_not_keep_the_space() {
    let world = World::new(203);
    let database = world.open(&options());
    let keyspace = created(&database, 1.3);
    (0..1200).for_each(|i| put(&keyspace, i, 0));
    database.checkpoint().unwrap();
    let before = figure(&database, "page_bytes");
    // A page has 32 values: about one of each stays.
    for i in (0..1200).filter(|i| i % 32 > 0) {
        keyspace.delete(common::key(i)).unwrap();
    }
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    for _ in 0..20 {
        world.sim.advance_ns(1_000_000_000);
        world.sim.settle();
    }
    world.sim.set_breathing(true);
    let after = figure(&database, "page_bytes");
    assert!(after * 12 < before, "{before} before, {after} after");
    for i in (0..1200).step_by(32) {
        has(&keyspace, i, 0);
    }
    database.close().unwrap();
    world.verify();
}

/// Each page has values of all leaves: keys of neighbours in time are far apart in order.
#[test]
fn a_page_that_all_leaves_refer_to_is_collected() {
    let world = World::new(204);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    for i in 0..2000 {
        put(&keyspace, i, 0);
        if i % 100 == 99 {
            database.checkpoint().unwrap();
        }
    }
    for i in 0..1000 {
        put(&keyspace, i, 1);
    }
    database.checkpoint().unwrap();
    collect(&database, &keyspace, 12);
    let live = figure(&database, "value_bytes") - figure(&database, "dead_value_bytes");
    let garbage = figure(&database, "dead_value_bytes") as f64 / live as f64;
    assert!(garbage < 0.25, "{garbage}");
    (0..2000).for_each(|i| has(&keyspace, i, u64::from(i < 1000)));
    database.close().unwrap();
    world.verify();
}

#[test]
fn collecting_passes_over_what_it_cannot_take() {
    let world = World::new(205);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    for i in 0..600 {
        put(&keyspace, i, 0);
    }
    database.checkpoint().unwrap();
    // A value that stays alive in a page which will be collected.
    let pattern = common::value(7, VALUE_BYTES)[..64].to_vec();
    let content = world.disk.content("data").unwrap();
    let mut damaged = 0;
    for (at, _) in (content.windows(64).enumerate()).filter(|(_, bytes)| *bytes == pattern) {
        assert!(world.disk.corrupt("data", at as u64 + 20, 0x40));
        damaged += 1;
    }
    assert!(damaged > 0);
    for i in (0..600).filter(|i| *i != 7 && i % 4 > 0) {
        put(&keyspace, i, 1);
    }
    database.checkpoint().unwrap();
    collect(&database, &keyspace, 12);
    let live = figure(&database, "value_bytes") - figure(&database, "dead_value_bytes");
    let garbage = figure(&database, "dead_value_bytes") as f64 / live as f64;
    assert!(garbage < 0.3, "{garbage}: other pages are collected");
    let error = keyspace.get(common::key(7)).unwrap_err();
    assert_eq!(error.kind(), terrapin::ErrorKind::Corrupt, "{error}");
    for i in (0..600).filter(|i| *i != 7) {
        has(&keyspace, i, u64::from(i % 4 > 0));
    }
    drop(database);
}

#[test]
fn a_single_page_is_collected() {
    let world = World::new(206);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    (0..20).for_each(|i| put(&keyspace, i, 0));
    database.checkpoint().unwrap();
    assert_eq!(figure(&database, "value_pages"), 1);
    (0..12).for_each(|i| put(&keyspace, i, 1));
    database.checkpoint().unwrap();
    collect(&database, &keyspace, 8);
    let dead = figure(&database, "dead_value_bytes");
    assert!(dead < 8 * VALUE_BYTES as u64, "{dead}");
    (0..20).for_each(|i| has(&keyspace, i, u64::from(i < 12)));
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_key_overwritten_for_ever_gives_its_space_back() {
    let world = World::new(207);
    let database = world.open(&options());
    let keyspace = created(&database, 1.3);
    for version in 0..20_000 {
        put(&keyspace, 1, version);
    }
    let bytes = figure(&database, "page_bytes");
    assert!(bytes < 1 << 20, "{bytes} for one value");
    has(&keyspace, 1, 19_999);
    database.close().unwrap();
    world.verify();
}

#[test]
fn unlogged_writes_survive_a_collection_and_a_crash() {
    let world = World::new(208);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    for version in 0..8 {
        for i in (version % 2..300).step_by(2) {
            let value = common::value(i + (version << 32), VALUE_BYTES);
            let key = common::key(i);
            keyspace.put_with(key, value, Durability::None).unwrap();
        }
        database.checkpoint().unwrap();
    }
    collect(&database, &keyspace, 6);
    drop(keyspace);
    world.cut_power(database, CrashMode::LoseUnsynced);
    world.verify();
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    (0..300).for_each(|i| has(&keyspace, i, 6 + i % 2));
    database.close().unwrap();
}

#[test]
fn a_full_disk_leaves_a_store_that_opens() {
    let world = World::new(209);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    let mut versions = BTreeMap::new();
    for i in 0..400 {
        put(&keyspace, i, 0);
        versions.insert(i, 0);
    }
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes() + (2 << 20));
    // The process dies when the disk is full, in the midst of merges that collect.
    'writes: for version in 1..40 {
        for i in (version % 3..400).step_by(3) {
            let value = common::value(i + (version << 32), VALUE_BYTES);
            if keyspace.put(common::key(i), value).is_err() {
                break 'writes;
            }
            versions.insert(i, version);
        }
    }
    drop(keyspace);
    world.kill(database);
    world.verify();
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    for (&i, &version) in &versions {
        has(&keyspace, i, version);
        keyspace.delete(common::key(i)).unwrap();
    }
    assert_eq!(keyspace.iter().count(), 0);
    world.disk.set_capacity(u64::MAX);
    put(&keyspace, 1, 77);
    has(&keyspace, 1, 77);
    database.close().unwrap();
    world.verify();
}

/// Lengths of 2^24 and beyond are refused until large values have pages of their own.
#[test]
fn lengths_around_two_to_the_sixteenth_survive_replay() {
    let world = World::new(210);
    let options = || options().ring_bytes(2 << 20);
    let database = world.open(&options());
    let keyspace = created(&database, 1.3);
    let lengths = [65_535, 65_536, 65_537, 131_071, 131_072, 262_143, 262_144];
    for (i, length) in (0..).zip(lengths) {
        keyspace
            .put(common::key(i), common::value(i, length))
            .unwrap();
    }
    let check = |keyspace: &Keyspace| {
        for (i, length) in (0..).zip(lengths) {
            let value = keyspace.get(common::key(i)).unwrap();
            assert!(
                value.as_deref() == Some(&common::value(i, length)[..]),
                "{length}"
            );
        }
    };
    check(&keyspace);
    drop(keyspace);
    world.kill(database);
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    check(&keyspace);
    database.checkpoint().unwrap();
    check(&keyspace);
    drop(keyspace);
    world.kill(database);
    let database = world.open(&options());
    check(&database.keyspace("values").unwrap());
    database.close().unwrap();
    world.verify();
}

#[test]
fn first_reads_of_many_values_stay_in_the_budget() {
    let world = World::new(211);
    let database = world.open(&options());
    let keyspace = created(&database, 1.3);
    for i in 0..8000 {
        put(&keyspace, i, 0);
    }
    database.close().unwrap();
    drop(keyspace);
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    let mut most = 0;
    for i in 0..8000 {
        has(&keyspace, i, 0);
        most = most.max(memory(&database));
        world.sim.settle();
    }
    assert!(most <= 17 << 20, "{most}");
    database.close().unwrap();
}

/// Collecting reads a page at a time, whatever the number of pages that it collects.
#[test]
fn collecting_holds_a_page_a_worker() {
    let world = World::new(212);
    let database = world.open(&options());
    let keyspace = created(&database, 1.2);
    let mut most = 0;
    for version in 0..10 {
        for i in (version % 3..1500).step_by(3) {
            put(&keyspace, i, version);
        }
        database.checkpoint().unwrap();
        most = most.max(memory(&database));
    }
    assert!(most <= 17 << 20, "{most}");
    database.close().unwrap();
}

#[test]
fn a_collection_that_was_killed_at_any_call_loses_nothing() {
    for at in (1..60).step_by(4) {
        let world = World::new(213);
        let database = world.open(&options());
        let keyspace = created(&database, 1.2);
        for version in 0..6 {
            for i in (version % 3..240).step_by(3) {
                put(&keyspace, i, version);
            }
            database.checkpoint().unwrap();
        }
        put(&keyspace, 1000, 1);
        world.disk.die_at_call(at);
        let _ = database.checkpoint();
        drop(keyspace);
        world.cut_power(database, CrashMode::RandomSubset);
        world.disarm();
        world.verify();
        let database = world.open(&options());
        let keyspace = database.keyspace("values").unwrap();
        (0..240).for_each(|i| has(&keyspace, i, if i % 3 == 0 { 3 } else { 3 + i % 3 }));
        database.close().unwrap();
        world.verify();
    }
}
