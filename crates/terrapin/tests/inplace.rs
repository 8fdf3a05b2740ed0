//! The cost of the page-grouped tree in device reads, and what it does while nobody writes. Counted
//! by the simulated disk. The record cache is off, because it would hold all records.

mod common;

use common::{Map, World, all, counting_reads, key, tiny, value};
use terrapin::{Database, Keyspace, KeyspaceOptions, Options, StructureKind};
use terrapin_disk::sim::CrashMode;

const RECORDS: u64 = 16_000;
/// One record fills more than half a block of 512 bytes, so no two share a block.
const VALUE_BYTES: usize = 300;

fn in_place() -> KeyspaceOptions {
    KeyspaceOptions::new().structure(StructureKind::InPlace)
}

fn put_all(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>, round: u64) {
    for number in numbers {
        keyspace
            .put(key(number), value(number + round, VALUE_BYTES))
            .unwrap();
    }
}

fn figure(database: &Database, name: &str) -> u64 {
    let stat = database.stat().unwrap();
    let keyspace = stat.keyspaces.iter().find(|k| k.name == "k").unwrap();
    keyspace.tree.figure(name).unwrap()
}

/// Nobody writes for some minutes.
fn rest(world: &World) {
    for _ in 0..40 {
        world.sim.advance_ns(3_000_000_000);
        world.sim.settle();
    }
}

fn reads(world: &World) -> u64 {
    world.disk.stats("data").reads
}

/// Device reads of `operations`, for each of them.
fn reads_each(world: &World, operations: u64, run: impl FnOnce()) -> f64 {
    let before = reads(world);
    run();
    (reads(world) - before) as f64 / operations as f64
}

#[test]
fn an_idle_tree_has_nothing_waiting_and_a_get_with_little_memory_reads_once() {
    let world = World::new(1);
    let database = world.open(&counting_reads());
    let keyspace = database.create_keyspace("k", in_place()).unwrap();
    put_all(&keyspace, 0..RECORDS, 0);
    database.checkpoint().unwrap();
    assert!(figure(&database, "waiting_groups") > 0);
    rest(&world);
    assert_eq!(figure(&database, "waiting_groups"), 0);
    let pages = figure(&database, "median_segment_pages");
    assert!(
        pages >= 12,
        "{pages} pages in the median segment after a load"
    );
    drop(keyspace);
    database.close().unwrap();

    // The map and a few blocks are all that this memory holds.
    let database = world.open(&counting_reads().memory(1 << 20).group_bytes(16 << 10));
    let keyspace = database.keyspace("k").unwrap();
    let get = |number: u64| {
        let found = keyspace.get(key(number)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(number, VALUE_BYTES)[..]));
    };
    let every = |rest: u64| (0..RECORDS).filter(move |number| number % 4 == rest);
    every(0).for_each(get);
    let each = reads_each(&world, RECORDS / 4, || every(1).for_each(get));
    println!("{each} device reads for a get");
    assert!(
        (0.9..=1.05).contains(&each),
        "{each} device reads for a get"
    );
    drop(keyspace);
    database.close().unwrap();
}

#[test]
fn idle_merges_take_in_no_more_bytes_than_users_wrote() {
    let world = World::new(2);
    let database = world.open(&counting_reads());
    let keyspace = database.create_keyspace("k", in_place()).unwrap();
    put_all(&keyspace, 0..RECORDS, 0);
    database.checkpoint().unwrap();
    rest(&world);
    let (mut own, mut idle) = (0, 0);
    for round in 1..12 {
        put_all(&keyspace, (0..RECORDS).filter(|n| n % 16 == round), round);
        database.checkpoint().unwrap();
        own += RECORDS / 16 * (VALUE_BYTES as u64 + 8);
        let before = database.metrics().device_written.leaves;
        rest(&world);
        idle += database.metrics().device_written.leaves - before;
    }
    // Blocks are not quite full.
    println!("idle merges wrote {idle} bytes for {own}");
    assert!(idle > 0 && idle < own * 2, "{idle} bytes for {own}");
    let checkpoints = database.metrics().checkpoints;
    rest(&world);
    let after = database.metrics().checkpoints;
    assert!(after <= checkpoints + 1, "it rests");
    drop(keyspace);
    database.close().unwrap();
    world.verify();
}

/// Records of 128 bytes in pages of 4 KiB, three times as many as memory holds.
const SMALL_RECORDS: u64 = 50_000;

fn of_small_records() -> Options {
    counting_reads().block_bytes(4096).memory(2 << 20)
}

fn put_small(keyspace: &Keyspace, numbers: impl Iterator<Item = u64>, round: u64) {
    for number in numbers {
        keyspace
            .put(key(number), value(number + round, 120))
            .unwrap();
    }
}

fn ranges(keyspace: &Keyspace, count: u64, seed: u64) {
    for number in 0..count {
        let number = (seed * 7919 + number * 104_729) % SMALL_RECORDS;
        let records = keyspace
            .range(key(number)..)
            .limit(1 + number as usize % 100);
        let found: Vec<_> = records.map(|record| record.unwrap()).collect();
        assert!(found.len() <= 100);
    }
}

/// Mean device reads of a range while nothing waits, and beside as many updates.
fn reads_of_ranges(structure: StructureKind) -> (f64, f64, u64) {
    let world = World::new(3);
    let database = world.open(&of_small_records());
    let options = KeyspaceOptions::new().structure(structure);
    let keyspace = database.create_keyspace("k", options).unwrap();
    for round in 0..4 {
        put_small(&keyspace, 0..SMALL_RECORDS, round);
    }
    database.checkpoint().unwrap();
    rest(&world);
    let pages = match structure {
        StructureKind::InPlace => figure(&database, "median_segment_pages"),
        _ => 0,
    };
    let reads = || {
        let reads = database.metrics().device_reads;
        reads.scan_reads + reads.meta_reads
    };
    // Brings the map into memory.
    ranges(&keyspace, 2000, 1);
    let before = reads();
    ranges(&keyspace, 2000, 2);
    let at_rest = (reads() - before) as f64 / 2000.0;
    let (before, written) = (reads(), database.metrics().device_written.total());
    for round in 0..100 {
        let numbers = (0..200).map(|n| (n * 31_337 + round * 15_485_863) % SMALL_RECORDS);
        put_small(&keyspace, numbers, 9);
        ranges(&keyspace, 200, 3 + round);
    }
    let beside = (reads() - before) as f64 / 20_000.0;
    let written = database.metrics().device_written.total() - written;
    println!(
        "{}: {at_rest} device reads for a range at rest, {beside} beside updates, {} bytes written for a byte",
        structure.name(),
        written as f64 / (20_000.0 * 128.0)
    );
    drop(keyspace);
    database.close().unwrap();
    world.verify();
    (at_rest, beside, pages)
}

#[test]
fn segments_stay_full_and_ranges_read_few_times_under_updates() {
    let (at_rest, beside, pages) = reads_of_ranges(StructureKind::InPlace);
    assert!(pages >= 12, "{pages} pages in the median segment");
    assert!(at_rest <= 2.0, "{at_rest} device reads for a range at rest");
    assert!(
        beside <= 4.0,
        "{beside} device reads for a range beside updates"
    );
    let (_, leveled, _) = reads_of_ranges(StructureKind::Leveled);
    assert!(beside < leveled, "{beside}, leveled {leveled}");
}

/// Ingested records are newer than those that wait, and those that are put later are newer still.
#[test]
fn an_ingest_goes_over_records_that_wait() {
    for seed in 0..6 {
        let world = World::new(seed);
        let database = world.open(&tiny());
        let keyspace = database.create_keyspace("k", in_place()).unwrap();
        let mut truth = Map::new();
        let put = |truth: &mut Map, numbers: &mut dyn Iterator<Item = u64>, bytes: usize| {
            for number in numbers {
                keyspace.put(key(number), value(number, bytes)).unwrap();
                truth.insert(key(number), value(number, bytes));
            }
            database.checkpoint().unwrap();
        };
        put(&mut truth, &mut (0..3000), 60);
        put(&mut truth, &mut (0..3000).step_by(71), 61);
        assert!(figure(&database, "waiting_groups") > 0);
        let step = [1, 3, 710][seed as usize % 3];
        let numbers = (0..4000).step_by(step);
        let new: Map = numbers.map(|n| (key(n), value(n, 62))).collect();
        assert_eq!(keyspace.ingest(&new).unwrap(), new.len() as u64);
        truth.extend(new);
        assert_eq!(all(&keyspace), truth, "seed {seed}");
        put(&mut truth, &mut (0..3000).step_by(142), 63);
        keyspace.delete(key(710)).unwrap();
        truth.remove(&key(710));
        database.checkpoint().unwrap();
        assert_eq!(all(&keyspace), truth, "seed {seed}");
        if seed % 2 == 0 {
            rest(&world);
            assert_eq!(all(&keyspace), truth, "seed {seed}");
        }
        drop(keyspace);
        world.cut_power(database, CrashMode::LoseUnsynced);
        world.verify();
        let database = world.open(&tiny());
        assert_eq!(all(&database.keyspace("k").unwrap()), truth, "seed {seed}");
        database.close().unwrap();
    }
}
