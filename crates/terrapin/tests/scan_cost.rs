//! The cost of ranges: allocations, counted by the allocator, and device reads of blocks.

mod common;

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Database, Keyspace, Options};
use terrapin_structure::Direction;

const RECORDS: u64 = 20_000;

fn options() -> Options {
    tiny()
        .group_bytes(64 << 10)
        .block_bytes(4096)
        .memory(32 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .log_bytes_max(8 << 20)
}

/// Levels in the tree, and records in the memtable.
fn store(world: &World) -> Database {
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    for i in 0..RECORDS {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.close().unwrap();
    let database = world.open(&options());
    world.sim.set_breathing(false);
    for i in (0..RECORDS).step_by(100) {
        database
            .default_keyspace()
            .put(key(i), value(i, 100))
            .unwrap();
    }
    database
}

/// All keys in order.
fn sorted() -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = (0..RECORDS).map(key).collect();
    keys.sort();
    keys
}

/// Allocations of a range that borrows `records` records from a key on.
fn allocations(keyspace: &Keyspace, from: &[u8], records: usize) -> u64 {
    let mut taken = 0;
    let info = allocation_counter::measure(|| {
        let mut range = keyspace.range(from..);
        while taken < records && range.next_ref().unwrap().is_some() {
            taken += 1;
        }
    });
    assert_eq!(taken, records);
    info.count_total
}

#[test]
fn a_range_allocates_little_at_its_start_and_nothing_for_a_step() {
    let world = World::new(1);
    let database = store(&world);
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.iter().count() as u64, RECORDS);
    let keys = sorted();
    let mean = |records: usize| {
        let starts = keys[..keys.len() / 2].iter().step_by(53);
        let count = starts.len();
        let sum: u64 = starts
            .map(|from| allocations(&keyspace, from, records))
            .sum();
        sum as f64 / count as f64
    };
    let (few, some, many) = (mean(5), mean(50), mean(4000));
    println!("allocations: {few} for 5 records, {some} for 50, {many} for 4000");
    assert!(few <= 12.0, "{few} allocations for 5 records");
    assert!(some <= 15.0, "{some} allocations for 50 records");
    let step = (many - some) / 3950.0;
    assert!(step <= 0.03, "{step} allocations for a step");
    let bytes = |go_on: &mut dyn FnMut() -> bool| {
        let info = allocation_counter::measure(|| while go_on() {});
        info.bytes_total
    };
    let (mut records, mut keys) = (keyspace.iter(), keyspace.iter().keys());
    let of_records = bytes(&mut || records.next().is_some());
    let of_keys = bytes(&mut || keys.next().is_some());
    println!("{of_records} bytes allocated for all records, {of_keys} for their keys");
    assert!(of_keys * 4 < of_records, "values of 100 bytes are copied");
    database.close().unwrap();
}

/// The kind of a range to measure.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The caller reads as many records as it said.
    Taken,
    /// The caller sets this limit.
    Limited,
    /// The first blocks of the range are cached.
    Begun,
}

/// Device reads of blocks, and their bytes, for a range of `records` records with nothing cached.
/// Many ranges of `warm` records came before.
fn cold_reads(world: &World, records: usize, warm: usize, kind: Kind) -> (f64, f64) {
    let database = world.open(&options());
    world.sim.set_breathing(false);
    let keyspace = database.default_keyspace();
    let keys = sorted();
    let take = |from: usize, records: usize| {
        let range = keyspace.range(&keys[from][..]..);
        let range = match kind {
            Kind::Limited => range.limit(records),
            _ => range,
        };
        assert_eq!(range.take(records).count(), records);
    };
    // The engine learns how long ranges are.
    for from in (0..keys.len() / 2).step_by(16) {
        take(from, warm);
    }
    let starts: Vec<usize> = (keys.len() / 2 + 500..keys.len() - 500)
        .step_by(401)
        .collect();
    if kind == Kind::Begun {
        starts.iter().for_each(|&from| take(from, 1));
        // That range was unlike the others.
        (0..100).for_each(|_| take(0, warm));
    }
    let before = database.metrics().device_reads;
    starts.iter().for_each(|&from| take(from, records));
    let after = database.metrics().device_reads;
    let each = |sum: u64| sum as f64 / starts.len() as f64;
    let cost = (
        each(after.scan_reads - before.scan_reads),
        each(after.scan_bytes - before.scan_bytes),
    );
    database.close().unwrap();
    cost
}

#[test]
fn ranges_read_ahead_by_the_length_of_earlier_ranges() {
    let world = World::new(2);
    store(&world).close().unwrap();
    let one = cold_reads(&world, 1, 1, Kind::Taken);
    let short = cold_reads(&world, 5, 5, Kind::Taken);
    let unexpected = cold_reads(&world, 50, 1, Kind::Taken);
    let expected = cold_reads(&world, 50, 50, Kind::Taken);
    println!(
        "reads and bytes: {one:?} for 1 record, {short:?} for 5, {unexpected:?} for 50, {expected:?} for 50 of many"
    );
    assert!(short.0 <= one.0 + 0.5, "{short:?} {one:?}");
    // A level's next block waits for its turn. Without that, a range read 1.8 blocks more than a
    // single record.
    assert!(unexpected.0 <= one.0 + 1.5, "{unexpected:?} {one:?}");
    assert!(expected.0 < unexpected.0, "{expected:?} {unexpected:?}");
    assert!(
        expected.1 <= unexpected.1 * 1.3,
        "{expected:?} {unexpected:?}"
    );
}

#[test]
fn a_range_with_a_limit_reads_its_blocks_at_once() {
    let world = World::new(3);
    store(&world).close().unwrap();
    for records in [5, 50, 100] {
        let unexpected = cold_reads(&world, records, 1, Kind::Taken);
        let expected = cold_reads(&world, records, records, Kind::Taken);
        let limited = cold_reads(&world, records, 1, Kind::Limited);
        println!(
            "{records} records: reads and bytes {unexpected:?} unexpected, {expected:?} expected, {limited:?} limited"
        );
        assert!(limited.0 <= expected.0 + 0.1, "{limited:?} {expected:?}");
        assert!(limited.1 <= expected.1 * 1.02, "{limited:?} {expected:?}");
        assert!(limited.0 <= unexpected.0, "{limited:?} {unexpected:?}");
    }
}

// If the first blocks of a range were cached, the range once read the next ones chunk by chunk, as
// if its length were unknown.
#[test]
fn a_range_whose_first_blocks_are_cached_reads_the_rest_at_once() {
    let world = World::new(4);
    store(&world).close().unwrap();
    let cold = cold_reads(&world, 100, 100, Kind::Taken);
    let begun = cold_reads(&world, 100, 100, Kind::Begun);
    println!("reads and bytes: {cold:?} where nothing is cached, {begun:?} behind cached blocks");
    assert!(begun.0 <= cold.0, "{begun:?} {cold:?}");
}

/// Guards against looks at the front of a queue that each passed all earlier removals. Memtables
/// were sealed for their bytes only.
#[test]
fn a_memtable_in_which_ranges_pass_many_deletes_is_sealed() {
    for direction in [Direction::Forward, Direction::Backward] {
        let world = World::new(3);
        let options = options().checkpoint_distance(CheckpointDistance::Fixed(32));
        let database = world.open(&options);
        let queue = database.default_keyspace();
        for i in 0..4000 {
            queue.put(key(i), value(i, 20)).unwrap();
        }
        let before = database.metrics().checkpoints;
        let look = || match direction {
            Direction::Forward => queue.first().unwrap(),
            Direction::Backward => queue.last().unwrap(),
        };
        let mut taken = 0;
        while let Some((key, _)) = look() {
            queue.delete(key).unwrap();
            taken += 1;
        }
        assert_eq!(taken, 4000);
        let seal = database.metrics().checkpoints - before;
        // A memtable is sealed for each million deletes that ranges passed, and eight million would
        // have been passed.
        assert!((1..=4).contains(&seal), "{seal} checkpoints, {direction:?}");
        database.close().unwrap();
    }
}

/// Guards against polls of an emptied queue that each passed all its deletes, for ever. Only a
/// write sealed the memtable with these deletes, and the polling process wrote nothing.
#[test]
fn polls_of_an_emptied_queue_become_free_without_writes() {
    const RECORDS: u64 = 6000;
    const KEYSPACES: u64 = 3;
    for (seed, backward) in [(5, false), (6, true)] {
        let world = World::new(seed);
        let options = options().checkpoint_distance(CheckpointDistance::Fixed(32));
        let database = world.open(&options);
        let queues: Vec<_> = (0..KEYSPACES)
            .map(|number| database.keyspace(&format!("queue {number}")).unwrap())
            .collect();
        // Ranges and writes alternate. A change between the two starts a check of the memtables.
        let other = database.default_keyspace();
        other.put("a", "1").unwrap();
        let range = || assert!(other.first().unwrap().is_some());
        for queue in &queues {
            for i in 0..RECORDS {
                queue.put(key(i), value(i, 20)).unwrap();
                range();
            }
        }
        // The records are in the trees, the deletes in memtables.
        database.checkpoint().unwrap();
        for queue in &queues {
            for i in 0..RECORDS {
                queue.delete(key(i)).unwrap();
                range();
            }
        }
        world.sim.settle();
        let poll = |queue: &Keyspace| {
            let before = database.metrics().scanned_deletes;
            let found = match backward {
                false => queue.first().unwrap(),
                true => queue.last().unwrap(),
            };
            assert_eq!(found, None);
            database.metrics().scanned_deletes - before
        };
        for queue in &queues {
            let first = poll(queue);
            assert!(first >= RECORDS, "{first} deletes in {}", queue.name());
        }
        let writes = |metrics: &terrapin::Metrics| metrics.puts + metrics.deletes;
        let before = database.metrics();
        for round in 0..1000 {
            for queue in &queues {
                poll(queue);
            }
            if round % 50 == 0 {
                world.sim.settle();
            }
        }
        world.sim.settle();
        let after = database.metrics();
        assert_eq!(writes(&after), writes(&before));
        for queue in &queues {
            let last = poll(queue);
            assert!(last < RECORDS / 20, "{last} deletes in {}", queue.name());
        }
        // A million passed deletes pay for a merge in the memtable, and as many in the tree.
        let passed = after.scanned_deletes - before.scanned_deletes;
        assert!(passed < (KEYSPACES * 4) << 20, "{passed} deletes");
        database.close().unwrap();
        world.verify();
    }
}
