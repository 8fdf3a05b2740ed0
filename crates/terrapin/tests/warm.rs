//! Warm-up: if all records fit into memory, gets start a read of all of them, which then stay
//! cached.

mod common;

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Database, Options};

const RECORDS: u64 = 20_000;
/// Enough gets to start a warm-up.
const GETS: u64 = RECORDS / 4;
const VALUE_BYTES: usize = 300;

fn options(memory_mib: u64) -> Options {
    tiny()
        .memory(memory_mib << 20)
        .group_bytes(64 << 10)
        .range_compaction(false)
}

/// 18 MiB of memory, with memtables whose size the engine chooses in small steps.
fn with_memtables_on_auto() -> Options {
    options(18)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Auto)
}

/// All records are on disk, and nothing is cached.
fn cold_store(world: &World, options: &Options) -> Database {
    let database = world.open(options);
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    database.close().unwrap();
    world.open(options)
}

#[test]
fn records_that_fit_are_read_once_gets_want_many_of_them() {
    for (memory_mib, gets, is_read) in [(16, GETS, true), (16, 500, false), (5, GETS, false)] {
        let world = World::new(11);
        let database = cold_store(&world, &options(memory_mib));
        let keyspace = database.default_keyspace();
        let get = |i: u64| {
            assert_eq!(
                keyspace.get(key(i)).unwrap().as_deref(),
                Some(&value(i, VALUE_BYTES)[..])
            );
        };
        (0..gets).for_each(get);
        world.sim.settle();
        let metrics = database.metrics();
        let cached = metrics.cached_records;
        let what = format!("{gets} gets, {memory_mib} MiB: {cached} of {RECORDS} records cached");
        assert_eq!(cached == RECORDS, is_read, "{what}");
        let memory = metrics.memory;
        assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
        let before = world.disk.stats("data").reads;
        (RECORDS / 2..RECORDS).for_each(get);
        assert_eq!(world.disk.stats("data").reads == before, is_read, "{what}");
        database.close().unwrap();
    }
}

#[test]
fn records_that_fit_after_more_memory_are_read() {
    let world = World::new(17);
    let database = cold_store(&world, &options(5));
    let keyspace = database.default_keyspace();
    database.set_memory(16 << 20).unwrap();
    for i in 0..GETS {
        assert!(keyspace.get(key(i)).unwrap().is_some());
    }
    world.sim.settle();
    let metrics = database.metrics();
    assert_eq!(metrics.cached_records, RECORDS, "{:?}", metrics.memory);
    let before = world.disk.stats("data").reads;
    for i in RECORDS / 2..RECORDS {
        let found = keyspace.get(key(i)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(i, VALUE_BYTES)[..]));
    }
    assert_eq!(world.disk.stats("data").reads, before);
    database.set_memory(5 << 20).unwrap();
    world.sim.settle();
    let memory = database.metrics().memory;
    assert!(memory.total_bytes() <= memory.limit_bytes, "{memory:?}");
    database.close().unwrap();
}

/// Guards against a cleared keyspace that counted as before, so that nothing seemed to fit.
#[test]
fn a_cleared_keyspace_leaves_its_room_to_other_records() {
    let world = World::new(19);
    let database = world.open(&options(16));
    let (keyspace, gone) = (
        database.default_keyspace(),
        database.keyspace("gone").unwrap(),
    );
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    for i in 0..4 * RECORDS {
        gone.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    database.checkpoint().unwrap();
    gone.clear().unwrap();
    database.checkpoint().unwrap();
    world.sim.settle();
    for i in 0..GETS {
        assert!(keyspace.get(key(i)).unwrap().is_some());
    }
    world.sim.settle();
    let metrics = database.metrics();
    assert_eq!(metrics.cached_records, RECORDS, "{:?}", metrics.memory);
    database.close().unwrap();
}

/// Records of 12 KB. None of them is ever cached, whatever the room.
#[test]
fn memtables_leave_no_room_for_records_that_are_never_cached() {
    let world = World::new(18);
    let options = with_memtables_on_auto();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let records = 1000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 12_000)).unwrap();
    }
    database.close().unwrap();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let before = keyspace.checkpoint_distance();
    for _ in 0..3 {
        for i in 0..records {
            assert!(keyspace.get(key(i)).unwrap().is_some());
            if i % 4 == 0 {
                keyspace.put(key(i % 32), value(i, 12_000)).unwrap();
            }
        }
        database.checkpoint().unwrap();
    }
    assert_eq!(database.metrics().cached_records, 0);
    assert_eq!(keyspace.checkpoint_distance(), before);
    database.close().unwrap();
}

#[test]
fn ranges_have_all_blocks_read_once() {
    let world = World::new(12);
    let database = cold_store(&world, &options(16));
    let keyspace = database.default_keyspace();
    for i in 0..GETS {
        assert!(keyspace.get(key(i)).unwrap().is_some());
        assert!(keyspace.range(key(i)..).next().is_some());
    }
    world.sim.settle();
    assert!(database.metrics().cached_records < RECORDS / 2);
    let before = world.disk.stats("data").reads;
    let records = keyspace.iter().map(|record| record.unwrap());
    assert_eq!(records.count() as u64, RECORDS);
    assert_eq!(world.disk.stats("data").reads, before);
    database.close().unwrap();
}

/// Guards against a late warm-up for ranges. Records of a pass for gets filled the memory. Ranges
/// must get it soon, however long gets would have waited for another pass.
#[test]
fn ranges_after_gets_have_all_blocks_read() {
    let world = World::new(14);
    let database = cold_store(&world, &options(16));
    let keyspace = database.default_keyspace();
    for i in 0..GETS {
        assert!(keyspace.get(key(i)).unwrap().is_some());
    }
    world.sim.settle();
    assert_eq!(database.metrics().cached_records, RECORDS);
    for i in 0..GETS {
        assert!(keyspace.range(key(i)..).next().is_some());
    }
    world.sim.settle();
    let before = world.disk.stats("data").reads;
    assert_eq!(keyspace.iter().count() as u64, RECORDS);
    // A few blocks leave as others enter, and records take memory beside them.
    let reads = world.disk.stats("data").reads - before;
    assert!(reads < 200, "{reads}");
    database.close().unwrap();
}

/// Guards against a workload of all reads since the last seal, however many. Memtables kept the
/// size for gets, where ranges needed all blocks.
#[test]
fn memtables_leave_room_for_all_blocks_of_ranges_after_many_gets() {
    let world = World::new(20);
    let options = with_memtables_on_auto();
    let database = cold_store(&world, &options);
    let keyspace = database.default_keyspace();
    keyspace.put(key(0), value(0, VALUE_BYTES)).unwrap();
    for _ in 0..10 * RECORDS {
        assert!(keyspace.get(key(0)).unwrap().is_some());
    }
    let before = keyspace.checkpoint_distance();
    for i in 0..2 * GETS {
        assert!(keyspace.range(key(i)..).next().is_some());
    }
    world.sim.settle();
    let beside = keyspace.checkpoint_distance();
    assert!(2 * beside < before, "{beside}, {before} before");
    database.close().unwrap();
}

#[test]
fn all_blocks_are_cached_after_ranges_had_the_tree_compacted() {
    let world = World::new(16);
    let database = cold_store(&world, &options(16).range_compaction(true));
    let keyspace = database.default_keyspace();
    let ranges = |from: u64| {
        for i in 0..2 * GETS {
            assert!(keyspace.range(key(from + i)..).next().is_some());
        }
        world.sim.settle();
        database.metrics().compactions
    };
    let compactions = ranges(0);
    assert!(compactions > 0);
    assert_eq!(ranges(GETS), compactions);
    let before = world.disk.stats("data").reads;
    assert_eq!(keyspace.iter().count() as u64, RECORDS);
    let reads = world.disk.stats("data").reads - before;
    assert!(reads < 100, "{reads}");
    database.close().unwrap();
}

#[test]
fn memtables_leave_room_for_all_blocks_of_ranges() {
    let world = World::new(15);
    let options = with_memtables_on_auto();
    let database = cold_store(&world, &options);
    let keyspace = database.default_keyspace();
    let before = keyspace.checkpoint_distance();
    for i in 0..GETS {
        assert!(keyspace.range(key(i)..).next().is_some());
        if i % 8 == 0 {
            keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
        }
    }
    world.sim.settle();
    database.checkpoint().unwrap();
    let beside = keyspace.checkpoint_distance();
    assert!(2 * beside < before, "{beside}, {before} before");
    for i in 0..2 * GETS {
        assert!(keyspace.get(key(i)).unwrap().is_some());
        keyspace.put(key(i), value(i, VALUE_BYTES)).unwrap();
    }
    database.checkpoint().unwrap();
    assert!(keyspace.checkpoint_distance() > beside);
    database.close().unwrap();
}

/// Half as many gets as writes, repeatedly. The memtables leave room for all records, and a merged
/// memtable's records enter the cache.
#[test]
fn overwritten_records_that_fit_need_no_device() {
    let world = World::new(13);
    let database = cold_store(&world, &options(16));
    let keyspace = database.default_keyspace();
    let mut number = 0;
    let mut round = |writes: u64| {
        let before = world.disk.stats("data").reads;
        let gets = database.metrics().device_reads.get_reads;
        for _ in 0..writes {
            number = (number + 7919) % RECORDS;
            keyspace
                .put(key(number), value(number, VALUE_BYTES))
                .unwrap();
            let other = number * 13 % RECORDS;
            if other.is_multiple_of(2) {
                let found = keyspace.get(key(other)).unwrap();
                assert_eq!(found.as_deref(), Some(&value(other, VALUE_BYTES)[..]));
            }
        }
        world.sim.settle();
        assert!(
            world.disk.stats("data").reads > before,
            "nothing was merged"
        );
        database.metrics().device_reads.get_reads - gets
    };
    round(4 * RECORDS);
    let reads = round(4 * RECORDS);
    assert_eq!(reads, 0, "of {} gets", 2 * RECORDS);
    database.close().unwrap();
}

/// Both are due at once. The seed decides the order of their steps.
#[test]
fn gets_return_the_values_of_a_memtable_merged_during_the_warm_up() {
    for seed in 0..6 {
        let world = World::new(seed);
        let database = cold_store(&world, &options(16));
        let keyspace = database.default_keyspace();
        let written = |i: u64| i % 14 == seed;
        for i in (0..RECORDS).filter(|&i| written(i)) {
            match i % 3 {
                0 => keyspace.delete(key(i)).unwrap(),
                _ => keyspace.put(key(i), value(i + 1, 150)).unwrap(),
            }
        }
        world.sim.settle();
        world.sim.set_breathing(false);
        for i in (0..GETS).filter(|&i| !written(i)) {
            assert!(keyspace.get(key(i)).unwrap().is_some());
        }
        database.checkpoint().unwrap();
        world.sim.settle();
        assert!(database.metrics().cached_records > RECORDS / 2);
        for i in 0..RECORDS {
            let expected = match (written(i), i % 3) {
                (true, 0) => None,
                (true, _) => Some(value(i + 1, 150)),
                (false, _) => Some(value(i, VALUE_BYTES)),
            };
            assert_eq!(
                keyspace.get(key(i)).unwrap().as_deref(),
                expected.as_deref(),
                "record {i}, seed {seed}"
            );
        }
        database.close().unwrap();
    }
}
