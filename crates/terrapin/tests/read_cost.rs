//! The cost of reads in device reads, counted by the simulated disk. Unless a test says otherwise,
//! blocks are cold: each is read once. The record cache is off, because it would hold all records.

mod common;

use common::{World, counting_reads, key, tiny, value};
use terrapin::{CheckpointDistance, Database, KeyspaceOptions, StructureKind};

const RECORDS: u64 = 16_000;
/// One record fills more than half a block of 512 bytes, so no two share a block.
const VALUE_BYTES: usize = 300;

/// A tree of some levels, with buffers that hold records at every level, and nothing cached.
fn cold_store(world: &World) -> Database {
    let database = world.open(&counting_reads());
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    let tree = &database.stat().unwrap().keyspaces[0].tree;
    assert!(tree.figure("height") >= Some(3), "{tree:?}");
    assert!(tree.buffered_records > RECORDS / 20, "{tree:?}");
    database.close().unwrap();
    world.open(&counting_reads())
}

fn reads(world: &World) -> u64 {
    world.disk.stats("data").reads
}

#[test]
fn a_cold_get_costs_one_device_read() {
    let world = World::new(1);
    let database = cold_store(&world);
    let keyspace = database.default_keyspace();
    // The first quarter brings nodes, indexes and filters into the cache.
    let get = |i: u64| {
        assert_eq!(
            keyspace.get(key(i)).unwrap().as_deref(),
            Some(&value(i, VALUE_BYTES)[..])
        )
    };
    (0..RECORDS).filter(|i| i % 4 == 0).for_each(get);
    let before = reads(&world);
    (0..RECORDS).filter(|i| i % 4 == 1).for_each(get);
    let each = (reads(&world) - before) as f64 / (RECORDS / 4) as f64;
    println!("{each} device reads for a cold get");
    assert!(
        (0.99..=1.05).contains(&each),
        "{each} device reads for a cold get"
    );

    let before = reads(&world);
    let keys: Vec<_> = (0..RECORDS).filter(|i| i % 4 == 2).map(key).collect();
    for keys in keys.chunks(50) {
        assert!(
            keyspace
                .multi_get(keys)
                .unwrap()
                .iter()
                .all(Option::is_some)
        );
    }
    let each = (reads(&world) - before) as f64 / keys.len() as f64;
    println!("{each} device reads for a key of a multi_get");
    assert!(
        (0.99..=1.05).contains(&each),
        "{each} device reads for a key of a multi_get"
    );

    let snapshot = database.snapshot().unwrap();
    let before = reads(&world);
    for i in (0..RECORDS).filter(|i| i % 4 == 3) {
        assert!(snapshot.contains(&keyspace, key(i)).unwrap());
    }
    let each = (reads(&world) - before) as f64 / (RECORDS / 4) as f64;
    assert!(each <= 1.05, "{each} device reads for a cold contains");
    database.close().unwrap();
}

#[test]
fn a_get_of_a_missing_key_costs_hardly_any_read() {
    let world = World::new(2);
    let database = cold_store(&world);
    let keyspace = database.default_keyspace();
    let absent = |range: std::ops::Range<u64>| {
        range.for_each(|i| assert!(!keyspace.contains(key(i)).unwrap()))
    };
    absent(RECORDS..2 * RECORDS);
    let before = reads(&world);
    absent(2 * RECORDS..3 * RECORDS);
    let each = (reads(&world) - before) as f64 / RECORDS as f64;
    println!("{each} device reads for an absent key");
    assert!(each <= 0.06, "{each} device reads for an absent key");
    database.close().unwrap();
}

/// Many runs of tiered buffers, right after a load, with everything but blocks in memory.
#[test]
fn gets_through_many_runs_read_one_block_and_those_of_absent_keys_hardly_any() {
    let world = World::new(7);
    let options = counting_reads().fanout(16).memory(32 << 20);
    let database = world.open(&options);
    let tiered = KeyspaceOptions::new().structure(StructureKind::Tiered);
    let keyspace = database.create_keyspace("k", tiered).unwrap();
    let put = |i: u64| keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    (0..RECORDS).for_each(put);
    database.checkpoint().unwrap();
    let stat = database.stat().unwrap();
    let of_keyspace = stat.keyspaces.iter().find(|k| k.name == "k").unwrap();
    let runs = of_keyspace.tree.figure("buffer_runs_hundredths").unwrap();
    assert!(runs >= 500, "{runs} hundredths of a run");
    drop(keyspace);
    database.close().unwrap();
    let database = world.open(&options);
    let keyspace = database.keyspace("k").unwrap();
    let absent = |range: std::ops::Range<u64>| {
        range.for_each(|i| assert!(!keyspace.contains(key(i)).unwrap()))
    };
    absent(RECORDS..2 * RECORDS);
    let before = reads(&world);
    absent(2 * RECORDS..3 * RECORDS);
    let each = (reads(&world) - before) as f64 / RECORDS as f64;
    println!("{runs} hundredths of a run; {each} device reads for an absent key");
    assert!(each <= 0.02, "{each} device reads for an absent key");
    let before = reads(&world);
    for i in (0..RECORDS).filter(|i| i % 4 == 1) {
        let found = keyspace.get(key(i)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(i, VALUE_BYTES)[..]));
    }
    let each = (reads(&world) - before) as f64 / (RECORDS / 4) as f64;
    println!("{each} device reads for a cold get");
    assert!(
        (0.9..=1.05).contains(&each),
        "{each} device reads for a cold get"
    );
    drop(keyspace);
    database.close().unwrap();
}

#[test]
fn useless_filters_of_leaves_are_not_asked_until_keys_are_missing() {
    let world = World::new(6);
    let database = cold_store(&world);
    let keyspace = database.default_keyspace();
    let asked = || {
        let metrics = database.metrics();
        metrics.cache_hits.filters + metrics.cache_misses.filters
    };
    // Reads and lookups of filters, for each of the keys.
    let cost = |keys: &mut dyn Iterator<Item = u64>| {
        let before = (reads(&world), asked());
        let mut count = 0;
        for i in keys {
            let expected = (i < RECORDS).then(|| value(i, VALUE_BYTES));
            assert_eq!(
                keyspace.get(key(i)).unwrap().as_deref(),
                expected.as_deref()
            );
            count += 1;
        }
        let each = |now: u64, before: u64| (now - before) as f64 / f64::from(count);
        (each(reads(&world), before.0), each(asked(), before.1))
    };
    let first = cost(&mut (0..1000));
    let present = cost(&mut (2000..RECORDS / 2));
    let turning = cost(&mut (RECORDS..RECORDS + 200));
    let absent = cost(&mut (RECORDS + 200..2 * RECORDS));
    println!("first {first:?}, present {present:?}, turning {turning:?}, absent {absent:?}");
    assert!(
        present.0 <= 1.02 && present.1 <= first.1 / 2.0,
        "{present:?}"
    );
    // A few reads of blocks find nothing. Then there are none.
    assert!(turning.0 > 0.0 && turning.0 <= 0.1, "{turning:?}");
    assert!(absent.0 <= 0.01 && absent.1 >= 0.2, "{absent:?}");
    database.close().unwrap();
}

/// Small records. Their filters have the least bits a key and err about once in 700 probes.
#[test]
fn a_cold_get_of_a_small_record_costs_one_device_read() {
    let world = World::new(5);
    let options = tiny()
        .group_bytes(128 << 10)
        .memory(32 << 20)
        .ring_bytes(1 << 20)
        .log_segment_bytes(4 << 20)
        .log_bytes_max(64 << 20)
        .record_cache(false)
        .checkpoint_distance(CheckpointDistance::Fixed(4));
    let database = world.open(&options);
    let records = 100_000;
    for i in 0..records {
        database
            .default_keyspace()
            .put(key(i), value(i, 24))
            .unwrap();
    }
    let tree = database.stat().unwrap().keyspaces[0].tree.clone();
    assert!(
        tree.figure("height") >= Some(3) && tree.buffered_records > records / 20,
        "{tree:?}"
    );
    database.close().unwrap();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    // These gets bring nodes, indexes and filters into the cache, and hardly a block.
    (records..2 * records)
        .step_by(5)
        .for_each(|i| assert!(keyspace.get(key(i)).unwrap().is_none()));
    let sample = (0..records).step_by(97);
    let gets = sample.clone().count() as f64;
    let before = reads(&world);
    sample.for_each(|i| {
        assert_eq!(
            keyspace.get(key(i)).unwrap().as_deref(),
            Some(&value(i, 24)[..])
        )
    });
    let each = (reads(&world) - before) as f64 / gets;
    println!("{each} device reads for a cold get of a small record");
    // Some records share a block with an earlier one.
    assert!(
        (0.85..=1.05).contains(&each),
        "{each} device reads for a cold get"
    );
    let before = reads(&world);
    (2 * records..3 * records)
        .step_by(10)
        .for_each(|i| assert!(!keyspace.contains(key(i)).unwrap()));
    let each = (reads(&world) - before) as f64 / (records / 10) as f64;
    println!("{each} device reads for a small record that is not there");
    assert!(each <= 0.02, "{each} device reads for an absent key");
    database.close().unwrap();
}

#[test]
fn reads_cost_the_same_after_a_change_of_chi() {
    let world = World::new(3);
    let database = world.open(&counting_reads());
    let keyspace = database.default_keyspace();
    for (part, chi) in [1, 16, 2].into_iter().enumerate() {
        database
            .set_checkpoint_distance(CheckpointDistance::Fixed(chi))
            .unwrap();
        for i in (0..RECORDS).filter(|i| i % 3 == part as u64) {
            keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
        }
    }
    database.close().unwrap();
    let database = world.open(&counting_reads());
    let keyspace = database.default_keyspace();
    (0..RECORDS)
        .step_by(2)
        .for_each(|i| assert!(keyspace.get(key(i)).unwrap().is_some()));
    let before = reads(&world);
    (1..RECORDS)
        .step_by(2)
        .for_each(|i| assert!(keyspace.get(key(i)).unwrap().is_some()));
    let each = (reads(&world) - before) as f64 / (RECORDS / 2) as f64;
    assert!(
        (0.99..=1.05).contains(&each),
        "{each} device reads for a cold get"
    );
    database.close().unwrap();
}

#[test]
fn a_scan_reads_many_blocks_at_once_and_a_single_record_few() {
    let world = World::new(4);
    let database = cold_store(&world);
    let keyspace = database.default_keyspace();
    // Nodes and indexes come first.
    keyspace.get(key(1)).unwrap();
    let before = reads(&world);
    assert!(keyspace.first().unwrap().is_some());
    let first = reads(&world) - before;
    let before = world.disk.stats("data");
    assert_eq!(keyspace.iter().count() as u64, RECORDS);
    let after = world.disk.stats("data");
    let (reads, bytes) = (
        after.reads - before.reads,
        after.read_bytes - before.read_bytes,
    );
    println!("{first} reads for the first record; {reads} of {bytes} bytes for all of {RECORDS}");
    assert!(first <= 40, "{first} device reads for one record");
    let tree = database.stat().unwrap().keyspaces[0].tree.clone();
    // Each block is read once, many blocks at a time.
    assert!(
        bytes <= tree.page_bytes * 5 / 4,
        "{bytes} bytes read of {}",
        tree.page_bytes
    );
    assert!(
        bytes / reads >= 8 << 10,
        "{bytes} bytes in {reads} device reads"
    );
    database.close().unwrap();
}

/// Reads often want recent writes (YCSB's workload D). A get finds them in the memtable without a
/// device read. When the memtable is merged, each record must not cost a read.
#[test]
fn recent_records_need_no_device_when_their_memtable_is_merged() {
    for (reads, cached) in [(10, true), (1, false)] {
        let world = World::new(7);
        let database = world.open(&tiny().memory(32 << 20).record_cache(true));
        let keyspace = database.default_keyspace();
        for i in 0..2000 {
            keyspace.put(key(i), value(i, 100)).unwrap();
            for _ in 0..reads {
                assert!(keyspace.get(key(i)).unwrap().is_some());
            }
        }
        database.checkpoint().unwrap();
        let before = database.metrics();
        for i in 0..2000 {
            assert_eq!(
                keyspace.get(key(i)).unwrap().as_deref(),
                Some(&value(i, 100)[..])
            );
        }
        let after = database.metrics();
        let hits = after.record_hits - before.record_hits;
        assert_eq!(hits == 2000, cached, "{reads} reads a write: {hits} hits");
        let read = after.device_reads.get_reads - before.device_reads.get_reads;
        assert_eq!(
            read == 0,
            cached,
            "{reads} reads a write: {read} device reads"
        );
    }
}

/// Guards against batched reads that left no records in the record cache. Each found its keys in
/// blocks every time.
#[test]
fn records_of_batched_reads_are_cached() {
    let world = World::new(9);
    let options = tiny().memory(32 << 20).record_cache(true);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    for i in 0..200 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    drop(keyspace);
    database.close().unwrap();
    let database = world.open(&options);
    // No other reads bring these records in.
    world.sim.set_breathing(false);
    let keyspace = database.default_keyspace();
    let keys: Vec<_> = (100..300).map(key).collect();
    let hits = || {
        let before = database.metrics().record_hits;
        let found = keyspace.multi_get(&keys).unwrap();
        assert_eq!(found.iter().flatten().count(), 100);
        database.metrics().record_hits - before
    };
    assert_eq!([hits(), hits()], [0, 100]);
    database.close().unwrap();
}

/// Uniform reads profit about as much from a byte of records as from one of blocks. Records may
/// then hold nearly all of the memory. Metadata, which every block read needs, must stay.
#[test]
fn metadata_stays_in_memory_while_records_and_blocks_come_and_go() {
    let world = World::new(10);
    let database = world.open(
        &tiny()
            .memory(24 << 20)
            .group_bytes(64 << 10)
            .block_bytes(4096)
            .log_bytes_max(4 << 20)
            .record_cache(true),
    );
    let keyspace = database.default_keyspace();
    let records = 60_000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 1000)).unwrap();
    }
    let gets = |count: u64| {
        for _ in 0..count {
            let i = world.below(records);
            assert!(keyspace.get(key(i)).unwrap().is_some());
        }
        database.metrics()
    };
    let before = gets(60_000);
    let after = gets(30_000);
    let reads = after.device_reads.meta_reads - before.device_reads.meta_reads;
    println!(
        "{reads} reads of metadata in 30,000 gets, {:?}",
        after.memory
    );
    assert!(after.device_reads.get_reads - before.device_reads.get_reads > 15_000);
    assert!(after.memory.record_bytes > after.memory.block_bytes);
    assert!(reads <= 30, "{reads} reads of metadata");
}

/// Guards against metrics that read the trees' nodes, which are not always in the cache.
#[test]
fn metrics_read_nothing_from_the_device_and_know_the_trees() {
    let world = World::new(9);
    let options = || tiny().record_cache(false);
    let database = world.open(&options());
    let keyspace = database.keyspace("k").unwrap();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    let held = |database: &Database| {
        let before = reads(&world);
        let metrics = database.metrics();
        assert_eq!(reads(&world), before);
        metrics.data_live_bytes as f64 / metrics.space_amplification
    };
    database.checkpoint().unwrap();
    let user_bytes = (RECORDS * (8 + VALUE_BYTES as u64)) as f64;
    assert!((held(&database) / user_bytes - 1.0).abs() < 0.2);
    database.close().unwrap();
    for read_only in [true, false] {
        let database = world.open(&options().read_only(read_only));
        let keyspace = database.keyspace("k").unwrap();
        for i in 0..RECORDS {
            keyspace.get(key(i)).unwrap();
            if i % 1000 == 0 {
                assert!((held(&database) / user_bytes - 1.0).abs() < 0.2);
            }
        }
        database.close().unwrap();
    }
    let database = world.open(&options());
    database.keyspace("k").unwrap().clear().unwrap();
    assert_eq!(database.metrics().space_amplification, 0.0);
    database.close().unwrap();
}
