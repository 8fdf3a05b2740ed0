//! Whole extents of dead values go back to the file system, and nothing is copied for them.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{
    CheckpointDistance, Database, Keyspace, KeyspaceOptions, Options, SpaceAmplification,
};
use terrapin_disk::sim::{CrashMode, Op};

type Truth = BTreeMap<Vec<u8>, u64>;

const VALUE_BYTES: usize = 16 << 10;
const RECORDS: u64 = 256;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(64 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(1)
}

fn separated(accepted: f64) -> KeyspaceOptions {
    KeyspaceOptions::new()
        .separate_from(512)
        .space_amplification(SpaceAmplification::from(accepted))
}

fn figure(database: &Database, name: &str) -> u64 {
    let stat = database.stat().unwrap();
    let mut keyspaces = stat.keyspaces.iter();
    let tree = &keyspaces.find(|k| k.name == "values").unwrap().tree;
    tree.figure(name).unwrap()
}

fn put(keyspace: &Keyspace, truth: &mut Truth, i: u64, version: u64) {
    let key = common::key(i);
    let value = common::value(i + version * RECORDS, VALUE_BYTES);
    keyspace.put(&key, value).unwrap();
    truth.insert(key, i + version * RECORDS);
}

fn load(keyspace: &Keyspace) -> Truth {
    let mut truth = Truth::new();
    (0..RECORDS).for_each(|i| put(keyspace, &mut truth, i, 0));
    truth
}

fn check(read: impl Fn(&[u8]) -> Option<Vec<u8>>, truth: &Truth) {
    for (key, number) in truth {
        let value = read(key).expect("a value");
        assert!(value == common::value(*number, VALUE_BYTES), "{number}");
    }
}

fn check_all(keyspace: &Keyspace, truth: &Truth) {
    check(|key| keyspace.get(key).unwrap().map(|v| v.to_vec()), truth);
    assert_eq!(keyspace.iter().count(), truth.len());
}

/// Overwrites records of one stride, with a checkpoint after each stride.
fn overwrite(world: &World, database: &Database, keyspace: &Keyspace, truth: &mut Truth) {
    for version in 1..=24u64 {
        for _ in 0..RECORDS / 8 {
            let i = world.below(RECORDS);
            put(keyspace, truth, i, version);
        }
        database.checkpoint().unwrap();
    }
}

#[test]
fn dead_extents_go_back_to_the_file_system_and_are_not_copied() {
    let world = World::new(90);
    let database = world.open(&options());
    let keyspace = database.create_keyspace("values", separated(1.3)).unwrap();
    let mut truth = load(&keyspace);
    database.checkpoint().unwrap();
    assert_eq!(figure(&database, "punched_value_bytes"), 0);
    let before = database.metrics().device_written.total();
    overwrite(&world, &database, &keyspace, &mut truth);
    check_all(&keyspace, &truth);
    let user = 24 * RECORDS / 8 * VALUE_BYTES as u64;
    let written = (database.metrics().device_written.total() - before) as f64 / user as f64;
    let punched = figure(&database, "punched_value_bytes");
    let live = RECORDS * VALUE_BYTES as u64;
    assert!(punched > live / 20, "{punched} of {live}");
    // Each value is written once; a copy of a page would be a further one.
    assert!(written < 1.3, "{written}");
    let stat = database.stat().unwrap();
    let told = stat.space.total() - stat.space.log.total();
    let allocated = database.metrics().data_allocated_bytes;
    assert!(told.abs_diff(allocated) <= 64 << 10, "{told} {allocated}");
    let tree = stat.keyspaces.iter().find(|k| k.name == "values").unwrap();
    let space = tree.tree.page_bytes as f64 / live as f64;
    assert!(space < 1.35, "{space}");
    // Snapshots, opens and copies of a page whose rest dies.
    database.close().unwrap();
    world.verify();
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    assert_eq!(figure(&database, "punched_value_bytes"), punched);
    check_all(&keyspace, &truth);
    for i in 0..RECORDS {
        if i % 16 > 0 {
            keyspace.delete(common::key(i)).unwrap();
            truth.remove(&common::key(i));
        }
    }
    database.checkpoint().unwrap();
    overwrite_one(&database, &keyspace, &mut truth);
    check_all(&keyspace, &truth);
    database.close().unwrap();
    world.verify();
}

/// Further checkpoints, in which garbage is collected.
fn overwrite_one(database: &Database, keyspace: &Keyspace, truth: &mut Truth) {
    for version in 30..60 {
        put(keyspace, truth, 0, version);
        database.checkpoint().unwrap();
    }
}

#[test]
fn a_snapshot_keeps_its_values_from_becoming_holes() {
    let world = World::new(91);
    let database = world.open(&options());
    let keyspace = database.create_keyspace("values", separated(1.3)).unwrap();
    let mut truth = load(&keyspace);
    database.checkpoint().unwrap();
    let snapshot = database.snapshot().unwrap();
    let before = truth.clone();
    overwrite(&world, &database, &keyspace, &mut truth);
    let read = |key: &[u8]| snapshot.get(&keyspace, key).unwrap().map(|v| v.to_vec());
    check(read, &before);
    drop(snapshot);
    overwrite(&world, &database, &keyspace, &mut truth);
    assert!(figure(&database, "punched_value_bytes") > 0);
    check_all(&keyspace, &truth);
    database.close().unwrap();
    world.verify();
}

/// Power cuts and kills around each hole: the superblock that counts then reads no hole.
#[test]
fn a_crash_beside_a_hole_loses_nothing() {
    let mut holes = 0;
    for seed in 0..24u64 {
        let world = World::new(100 + seed);
        let database = world.open(&options());
        let keyspace = database.create_keyspace("values", separated(1.2)).unwrap();
        let mut truth = load(&keyspace);
        database.checkpoint().unwrap();
        for version in 1..=6 {
            for _ in 0..RECORDS / 8 {
                let i = world.below(RECORDS);
                put(&keyspace, &mut truth, i, version);
            }
            database.checkpoint().unwrap();
        }
        world.disk.record_trace(true);
        // The records of this round may be lost; those before it may not.
        world.disk.die_at_call(3 + seed * 2);
        for _ in 0..RECORDS / 8 {
            let i = world.below(RECORDS);
            truth.remove(&common::key(i));
            let written = keyspace.put(common::key(i), common::value(i, VALUE_BYTES));
            if written.is_err() {
                break;
            }
        }
        let _ = database.checkpoint();
        match seed % 2 {
            0 => world.cut_power(database, CrashMode::RandomSubset),
            _ => world.kill(database),
        }
        world.disarm();
        let events = world.disk.take_trace();
        holes += events
            .iter()
            .filter(|event| event.op == Op::PunchHole)
            .count();
        world.disk.record_trace(false);
        world.verify();
        let database = world.open(&options());
        let keyspace = database.keyspace("values").unwrap();
        check(|key| keyspace.get(key).unwrap().map(|v| v.to_vec()), &truth);
        let mut all = load(&keyspace);
        overwrite(&world, &database, &keyspace, &mut all);
        check_all(&keyspace, &all);
        database.close().unwrap();
        world.verify();
    }
    assert!(holes > 0);
}

/// The space of a page with holes is not allocated. Once it is free, it must not make up the
/// reserve: deletes pass on a disk that is full meanwhile.
#[test]
fn holes_of_dead_pages_are_no_reserve() {
    for reopens in [false, true] {
        let world = World::new(92);
        let mut database = world.open(&options());
        let mut keyspace = database.create_keyspace("values", separated(1.2)).unwrap();
        let mut truth = load(&keyspace);
        database.checkpoint().unwrap();
        overwrite(&world, &database, &keyspace, &mut truth);
        assert!(figure(&database, "punched_value_bytes") > 0);
        if reopens {
            drop(keyspace);
            database.close().unwrap();
            database = world.open(&options());
            keyspace = database.keyspace("values").unwrap();
        }
        // Others take the rest of the disk.
        world.disk.set_capacity(world.disk.used_bytes());
        for (i, key) in truth.keys().enumerate() {
            if i % 4 > 0 {
                keyspace.delete(key).unwrap();
            }
        }
        database.checkpoint().unwrap();
        let kept = truth.iter().step_by(4);
        let kept: Truth = kept.map(|(key, number)| (key.clone(), *number)).collect();
        check_all(&keyspace, &kept);
        world.disk.set_capacity(u64::MAX);
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}

/// On the file system of the temporary directory: what `stat` calls punched is not allocated.
#[test]
fn a_real_file_has_the_holes_that_are_told() {
    let directory = common::Directory::new("punched");
    let world = World::new(93);
    let database = options().open(&directory.0).unwrap();
    let keyspace = database.create_keyspace("values", separated(1.3)).unwrap();
    let mut truth = load(&keyspace);
    database.checkpoint().unwrap();
    overwrite(&world, &database, &keyspace, &mut truth);
    check_all(&keyspace, &truth);
    let punched = figure(&database, "punched_value_bytes");
    let stat = database.stat().unwrap();
    let told = stat.space.total() - stat.space.log.total();
    let allocated = database.metrics().data_allocated_bytes;
    // A file system that makes no holes has none to tell of.
    assert!(
        told <= allocated + (64 << 10),
        "{told} {allocated} {punched}"
    );
    database.close().unwrap();
    let report = terrapin::verify::verify(&directory.0, &Default::default()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
}
