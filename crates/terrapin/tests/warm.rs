//! Where all records fit into memory, gets have everything read in order, and kept.

mod common;

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Database, Options};

const RECORDS: u64 = 20_000;
/// Enough for everything to be read.
const GETS: u64 = RECORDS / 4;
const VALUE_BYTES: usize = 300;

fn options(memory_mib: u64) -> Options {
    tiny()
        .memory(memory_mib << 20)
        .group_bytes(64 << 10)
        .range_compaction(false)
}

/// In 18 MiB, with memtables whose size is chosen, in small steps.
fn with_memtables_on_auto() -> Options {
    options(18)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Auto)
}

/// All records on disk, and nothing cached.
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
fn what_fits_is_read_once_gets_ask_for_much_of_it_and_needs_no_device_then() {
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
fn what_fits_once_the_memory_was_set_higher_is_read_and_needs_no_device_then() {
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

/// It counted as before for ever, so that nothing seemed to fit any more.
#[test]
fn what_was_cleared_leaves_its_room_to_what_fits() {
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

/// Records of 12 KB: none of them is ever cached, whatever room there is.
#[test]
fn memtables_leave_no_room_for_records_that_cannot_come_in() {
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
fn where_ranges_are_what_is_asked_for_all_blocks_are_read_and_need_no_device_then() {
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

/// Records of a pass filled the memory: ranges have it soon, however long it is until gets would be
/// served by another pass.
#[test]
fn where_gets_were_asked_for_and_ranges_come_all_blocks_are_read() {
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
    // Not quite all: some leave as others come in, and records lie beside them.
    let reads = world.disk.stats("data").reads - before;
    assert!(reads < 200, "{reads}");
    database.close().unwrap();
}

/// Which reads are the most was told by all since the last seal, however many: memtables kept the
/// size that gets had left them, where ranges needed all blocks.
#[test]
fn where_far_more_gets_came_since_the_last_seal_memtables_leave_all_blocks_their_room_for_ranges() {
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
fn where_ranges_have_their_tree_compacted_all_blocks_are_there_afterwards() {
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
fn where_ranges_are_what_is_asked_for_memtables_leave_all_blocks_their_room() {
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

/// Half as many gets as writes, over and over: the memtables leave room for all records, and what
/// they held comes among these as they are merged.
#[test]
fn what_fits_needs_no_device_while_it_is_overwritten() {
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

/// Both are due at once, and the seed decides in which order their steps come.
#[test]
fn what_a_memtable_says_that_is_merged_while_everything_is_read_is_what_gets_return_afterwards() {
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
