//! Trees are compacted for ranges that paid for it, and for no other reason.

mod common;

use std::sync::atomic::Ordering;

use common::{World, all, failures, key, tiny, value};
use terrapin::{Database, ErrorKind, Options, Snapshot};
use terrapin_structure::Direction;

const RECORDS: u64 = 40_000;
const VALUE_BYTES: usize = 100;

fn options() -> Options {
    tiny().group_bytes(16 << 10).record_cache(false)
}

/// Records in random order, through many memtables, so that buffers hold some of them.
fn written(world: &World, options: &Options) -> Database {
    written_records(world, options, RECORDS)
}

fn written_records(world: &World, options: &Options, records: u64) -> Database {
    let database = world.open(options);
    let keyspace = database.default_keyspace();
    for i in 0..records {
        let number = i * 7919 % records;
        keyspace
            .put(key(number), value(number, VALUE_BYTES))
            .unwrap();
    }
    database.checkpoint().unwrap();
    world.sim.settle();
    database
}

fn ranges(database: &Database, count: u64) {
    let keyspace = database.default_keyspace();
    for i in 0..count {
        let from = i * 104_729 % RECORDS;
        let first = keyspace.range(key(from)..).next().unwrap().unwrap();
        assert_eq!(first.1, value(from, VALUE_BYTES)[..]);
    }
}

fn check(database: &Database) {
    let keyspace = database.default_keyspace();
    let mut expected: Vec<_> = (0..RECORDS)
        .map(|i| (key(i), value(i, VALUE_BYTES)))
        .collect();
    expected.sort();
    let mut records = keyspace.iter();
    for (key, value) in expected {
        let (found, bytes) = records.next().unwrap().unwrap();
        assert_eq!((&found[..], &bytes[..]), (&key[..], &value[..]));
    }
    assert!(records.next().is_none());
}

#[test]
fn ranges_pay_for_a_compaction_and_visit_one_run_then() {
    let world = World::new(31);
    let database = written(&world, &options());
    ranges(&database, 50);
    world.sim.settle();
    assert_eq!(database.metrics().compactions, 0, "not paid yet");
    let before = database.metrics();
    ranges(&database, 20_000);
    world.sim.settle();
    let compacted = database.metrics();
    assert!(compacted.compactions > 3, "{compacted:?}");
    assert_eq!(
        compacted.checkpoints - before.checkpoints,
        compacted.compactions
    );
    check(&database);
    // Leaves hold all records, and ranges pay no more.
    let reads = |metrics: terrapin::Metrics| metrics.device_reads.scan_reads;
    let cost = |database: &Database| {
        let before = reads(database.metrics());
        ranges(database, 2000);
        reads(database.metrics()) - before
    };
    let after = cost(&database);
    world.sim.settle();
    assert_eq!(database.metrics().compactions, compacted.compactions);
    database.close().unwrap();
    let other = World::new(31);
    let uncompacted = written(&other, &options().range_compaction(false));
    ranges(&uncompacted, 20_050);
    other.sim.settle();
    assert_eq!(uncompacted.metrics().compactions, 0);
    let without = cost(&uncompacted);
    assert!(after * 3 < without * 2, "{after} reads, {without} without");
    check(&uncompacted);
    uncompacted.close().unwrap();
}

#[test]
fn gets_pay_for_nothing() {
    let world = World::new(32);
    let database = written(&world, &options());
    let keyspace = database.default_keyspace();
    for i in 0..2 * RECORDS {
        assert!(keyspace.get(key(i % RECORDS)).unwrap().is_some());
    }
    world.sim.settle();
    assert_eq!(database.metrics().compactions, 0);
    database.close().unwrap();
}

#[test]
fn a_compaction_delays_no_other_work() {
    let world = World::new(33);
    let database = written(&world, &options());
    let keyspace = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    let snapshot = database.snapshot().unwrap();
    // Writes, a clear and a drop come while stretches are compacted.
    for i in 0..60_000u64 {
        let from = i * 104_729 % RECORDS;
        assert!(keyspace.range(key(from)..).next().is_some());
        if i % 8 == 0 {
            other.put(key(i), value(i, VALUE_BYTES)).unwrap();
            keyspace
                .put(key(from), value(from + 1, VALUE_BYTES))
                .unwrap();
        }
    }
    assert!(database.metrics().compactions > 0);
    for i in (0..RECORDS).step_by(97) {
        let old = snapshot.get(&keyspace, key(i)).unwrap();
        assert_eq!(old.as_deref(), Some(&value(i, VALUE_BYTES)[..]));
    }
    database.drop_keyspace("other").unwrap();
    keyspace.clear().unwrap();
    world.sim.settle();
    assert!(keyspace.iter().next().is_none());
    drop(snapshot);
    database.close().unwrap();
    let database = world.open(&options());
    assert!(database.default_keyspace().iter().next().is_none());
    database.close().unwrap();
}

#[test]
fn a_compaction_killed_at_any_call_loses_nothing() {
    const FEW: u64 = 1500;
    let world = World::new(34);
    let options = options().group_bytes(4 << 10);
    let database = written_records(&world, &options, FEW);
    let before = all(&database.default_keyspace());
    world.kill(database);
    let (mut killed, mut compactions) = (0, 0);
    for dies_at in (1..).step_by(3) {
        let disk = world.disk.fork();
        let (env, sim) = terrapin_base::Env::simulated(dies_at);
        let again = World { env, sim, disk };
        let database = again.open(&options);
        again.disk.die_at_call(dies_at);
        let keyspace = database.default_keyspace();
        let mut expected = before.clone();
        let mut lost = None;
        for i in 0..3000 {
            // The memtable holds a record that the tree must not claim.
            if i % 500 == 0 {
                let (key, value) = (key(FEW + i), value(i, VALUE_BYTES));
                if keyspace.put(&key, &value).is_ok() && again.disk.is_alive() {
                    expected.insert(key, value);
                } else {
                    lost.get_or_insert(key);
                }
            }
            drop(keyspace.range(key(i)..).next());
        }
        again.sim.settle();
        compactions += database.metrics().compactions;
        let is_over = again.disk.is_alive();
        killed += u64::from(!is_over);
        drop(keyspace);
        again.disarm();
        again.kill(database);
        again.verify();
        let database = again.open(&options);
        let mut found = all(&database.default_keyspace());
        // The write under way when the process died may exist or not.
        if let Some(key) = lost.filter(|key| !expected.contains_key(key)) {
            found.remove(&key);
        }
        assert_eq!(found, expected, "killed at call {dies_at}");
        database.close().unwrap();
        if is_over {
            break;
        }
    }
    assert!(killed > 20 && compactions > 40, "{killed}, {compactions}");
}

#[test]
fn ranges_over_a_snapshot_that_is_older_than_the_tree_pay_nothing() {
    let world = World::new(35);
    let database = written(&world, &options());
    let keyspace = database.default_keyspace();
    let snapshot = database.snapshot().unwrap();
    for i in 0..500 {
        keyspace.put(key(i), value(i + 1, VALUE_BYTES)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in 0..20_000 {
        let from = i * 104_729 % RECORDS;
        let first = snapshot.range(&keyspace, key(from)..).next();
        assert_eq!(first.unwrap().unwrap().1, value(from, VALUE_BYTES)[..]);
    }
    world.sim.settle();
    assert_eq!(database.metrics().compactions, 0);
    drop(snapshot);
    database.close().unwrap();
}

/// Deletes that wait in buffers are in front of a queue. Each look at its front passes them and the
/// records that they hide.
#[test]
fn looks_over_deletes_in_the_tree_pay_for_merging_only_those() {
    const MANY: u64 = 100_000;
    const LOOKS: u64 = 1000;
    for (seed, direction) in [(38, Direction::Forward), (39, Direction::Backward)] {
        let world = World::new(seed);
        let options = options()
            .group_bytes(64 << 10)
            .fanout(16)
            .space_amplification(None)
            .memory(16 << 20);
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        // Small records: a leaf has thousands, and its deletes are not worth flushing.
        for number in 0..MANY {
            keyspace.put(key(number), value(number, 8)).unwrap();
        }
        database.checkpoint().unwrap();
        world.sim.settle();
        let mut left: Vec<_> = all(&keyspace).into_keys().collect();
        if direction == Direction::Backward {
            left.reverse();
        }
        for key in left.drain(..1500) {
            keyspace.delete(key).unwrap();
        }
        database.checkpoint().unwrap();
        world.sim.settle();
        world.sim.set_breathing(false);
        let look = |snapshot: Option<&Snapshot>| {
            let first = match (direction, snapshot) {
                (Direction::Forward, None) => keyspace.first(),
                (Direction::Backward, None) => keyspace.last(),
                (Direction::Forward, Some(old)) => old.first(&keyspace),
                (Direction::Backward, Some(old)) => old.last(&keyspace),
            };
            assert_eq!(first.unwrap().unwrap().0[..], left[0][..]);
        };
        let compactions = || database.metrics().compactions;
        let written = || world.disk.stats_total().written_bytes;
        (0..LOOKS / 4).for_each(|_| look(None));
        world.sim.settle();
        assert_eq!(compactions(), 0, "not paid yet");
        let before = written();
        let snapshot = database.snapshot().unwrap();
        (0..LOOKS).for_each(|_| look(None));
        world.sim.settle();
        assert_eq!(compactions(), 1, "{direction:?}");
        let one = written() - before;
        assert!(2 * one < MANY * 16, "{one} bytes written");
        // Ranges have no deletes left to pass. Only a snapshot holds them, and a compaction does
        // not help it.
        (0..LOOKS).for_each(|_| look(None));
        (0..LOOKS).for_each(|_| look(Some(&snapshot)));
        world.sim.settle();
        assert_eq!(compactions(), 1, "{direction:?}");
        drop(snapshot);
        let mut rest: Vec<_> = all(&keyspace).into_keys().collect();
        if direction == Direction::Backward {
            rest.reverse();
        }
        assert!(rest == left);
        database.close().unwrap();
        world.verify();
    }
}

/// After a compaction, a snapshot's pages exist twice. A compaction must not take the room that
/// puts need.
#[test]
fn a_compaction_leaves_the_room_that_puts_need() {
    for (room, compacts) in [(3 << 20, false), (64 << 20, true)] {
        let world = World::new(36);
        let database = written(&world, &options());
        let keyspace = database.default_keyspace();
        world.disk.set_capacity(world.disk.used_bytes() + room);
        let snapshot = database.snapshot().unwrap();
        ranges(&database, 40_000);
        world.sim.settle();
        let compactions = database.metrics().compactions;
        assert_eq!(compactions > 8, compacts, "{compactions} with {room} bytes");
        for i in 0..1000 {
            keyspace
                .put(key(i), value(i + 1, VALUE_BYTES))
                .unwrap_or_else(|e| panic!("put {i} after {compactions} compactions: {e}"));
        }
        drop(snapshot);
        database.close().unwrap();
    }
}

/// Changes a byte of a record's value everywhere in the data file.
fn damage(world: &World, number: u64) {
    let record = value(number, VALUE_BYTES);
    let content = world.disk.content("data").unwrap();
    let places: Vec<u64> = content
        .windows(record.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == record)
        .map(|(place, _)| place as u64)
        .collect();
    assert!(!places.is_empty());
    for place in places {
        assert!(world.disk.corrupt("data", place + 20, 0x40));
    }
}

#[test]
fn a_compaction_that_meets_damage_fails_no_checkpoint() {
    let world = World::new(37);
    let database = written(&world, &options());
    database.close().unwrap();
    damage(&world, 12_345);
    let database = world.open(&options());
    let failed = failures(&database, ErrorKind::Corrupt);
    let keyspace = database.default_keyspace();
    // The new records sort behind all others.
    let behind = |i: u64| [&[0xff; 9][..], &i.to_be_bytes()].concat();
    world.sim.set_breathing(false);
    for i in 0..60_000u64 {
        let from = i * 104_729 % RECORDS;
        // A range may meet the damage, too.
        drop(keyspace.range(key(from)..).next());
        if i % 100 == 0 {
            // A compaction may have begun by then.
            for _ in 0..i / 100 % 40 {
                world.sim.step();
            }
            keyspace.put(behind(i), "more").unwrap();
            database
                .checkpoint()
                .unwrap_or_else(|e| panic!("checkpoint after {i} ranges: {e}"));
        }
    }
    assert!(
        failed.load(Ordering::SeqCst) > 0,
        "no compaction came there"
    );
    assert!(database.metrics().compactions > 0);
    assert_eq!(database.metrics().checkpoints_failed, 0);
    database.close().unwrap();
}
