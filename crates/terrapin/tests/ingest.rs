//! Sorted ingest: records are visible and durable together or not at all, writes of others
//! meanwhile win, and nothing of an ingest that failed stays.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Map, World, all, tiny, value};
use terrapin::{
    CheckpointDistance, Database, Durability, ErrorKind, Keyspace, Options, Requirement, Snapshot,
};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn records(numbers: impl IntoIterator<Item = u64>, round: u64) -> Map {
    let record = |number| (key(number), value(number ^ (round << 32), 40));
    numbers.into_iter().map(record).collect()
}

fn shown(snapshot: &Snapshot, keyspace: &Keyspace) -> Map {
    let record = |r: terrapin::Result<(terrapin::Slice, terrapin::Slice)>| {
        r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()
    };
    snapshot.iter(keyspace).map(record).collect()
}

/// A keyspace with records in its tree, its buffers and its memtable.
fn grown(database: &Database) -> (Keyspace, Map) {
    let keyspace = database.default_keyspace();
    let mut map = Map::new();
    for round in 0..4 {
        for number in (0..4000).step_by(4) {
            let number = (number * 2654435761) % 4000;
            keyspace.put(key(number), value(round, 60)).unwrap();
            map.insert(key(number), value(round, 60));
        }
        database.checkpoint().unwrap();
    }
    for number in 0..300 {
        keyspace.delete(key(number * 13)).unwrap();
        map.remove(&key(number * 13));
    }
    (keyspace, map)
}

/// Bytes of live pages, once all others are free.
fn settled_bytes(world: &World, database: &Database) -> u64 {
    database.checkpoint().unwrap();
    world.sim.settle();
    let metrics = database.metrics();
    let (live, free) = (metrics.data_live_bytes, metrics.data_free_bytes);
    let all = metrics.data_allocated_bytes;
    assert!(
        all <= live + free + (64 << 10),
        "{live} live and {free} free of {all}"
    );
    live
}

#[test]
fn an_ingest_replaces_older_records_and_keeps_all_others() {
    for seed in 0..6 {
        let world = World::new(seed);
        let database = world.open(&tiny());
        let (keyspace, mut map) = grown(&database);
        // Cached records, of keys that the ingest replaces, too.
        for key in map.keys() {
            keyspace.get(key).unwrap();
        }
        let before = database.snapshot().unwrap();
        let mut open = keyspace.iter();
        let first = open.next().unwrap().unwrap();
        let seen = map.clone();
        let new = match seed % 3 {
            0 => records(0..4000, 1),
            1 => records((0..40).map(|n| n * 97), 1),
            _ => records([3, 4, 5, 2000, 4001, 1 << 40], 1),
        };
        assert_eq!(keyspace.ingest(&new).unwrap(), new.len() as u64);
        map.extend(new.clone());
        assert_eq!(all(&keyspace), map, "seed {seed}");
        for (key, value) in &map {
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]));
        }
        let keys: Vec<_> = new.keys().collect();
        let values = keyspace.multi_get(&keys).unwrap();
        assert!(
            values
                .iter()
                .zip(new.values())
                .all(|(got, value)| got.as_deref() == Some(value))
        );
        // Older views do not see it.
        assert_eq!(shown(&before, &keyspace), seen);
        let rest: Vec<_> = open.map(|r| r.unwrap().0.to_vec()).collect();
        assert!([first.0.to_vec()].iter().chain(&rest).eq(seen.keys()));
        drop(before);
        assert_eq!(database.metrics().ingested_records, new.len() as u64);
        // Without a close: the ingest is durable, and the log has nothing of it.
        world.cut_power(database, CrashMode::LoseUnsynced);
        world.verify();
        let database = world.open(&tiny());
        assert_eq!(all(&database.default_keyspace()), map);
        database.close().unwrap();
    }
}

#[test]
fn writes_meanwhile_win_in_memory_and_after_a_crash() {
    for (seed, crash) in (0..8).zip([0, 1, 2].iter().cycle()) {
        let world = World::new(seed);
        let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(100));
        let database = world.open(&options);
        let (keyspace, mut map) = grown(&database);
        let other = database.keyspace("other").unwrap();
        let new = records(0..3000, 1);
        let mut step = 0;
        let meanwhile = new.iter().inspect(|_| {
            step += 1;
            match step {
                100 => keyspace.put(key(7), "behind").unwrap(),
                101 => keyspace.put(key(2900), "ahead").unwrap(),
                200 => keyspace.delete(key(11)).unwrap(),
                201 => keyspace.delete(key(2901)).unwrap(),
                300 => keyspace.delete_range(key(100)..key(110)).unwrap(),
                301 => keyspace.delete_range(key(2910)..key(2915)).unwrap(),
                302 => keyspace.put(key(2912), "again").unwrap(),
                // Other keyspaces are merged beside it.
                400 => {
                    other.put("a", "1").unwrap();
                    for number in 0..400 {
                        other.put(key(number), [0; 100]).unwrap();
                    }
                }
                _ => {}
            }
        });
        keyspace.ingest(meanwhile).unwrap();
        map.extend(new.clone());
        for (number, text) in [(7, "behind"), (2900, "ahead"), (2912, "again")] {
            map.insert(key(number), text.as_bytes().to_vec());
        }
        let deleted = [11, 2901]
            .into_iter()
            .chain(100..110)
            .chain([2910, 2911, 2913, 2914]);
        for number in deleted {
            map.remove(&key(number));
        }
        assert_eq!(all(&keyspace), map, "seed {seed}");
        match crash {
            0 => world.kill(database),
            1 => {
                database.flush().unwrap();
                world.cut_power(database, CrashMode::LoseUnsynced);
            }
            _ => {
                database.checkpoint().unwrap();
                database.close().unwrap();
            }
        }
        world.verify();
        let database = world.open(&options);
        assert_eq!(all(&database.default_keyspace()), map, "seed {seed}");
        database.close().unwrap();
    }
}

#[test]
fn keys_out_of_order_are_named_and_nothing_stays() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let (keyspace, map) = grown(&database);
    let before = settled_bytes(&world, &database);
    let good: Vec<_> = records(0..2000, 1).into_iter().collect();
    let good = good.into_iter();
    let unsorted = good.clone().chain([(vec![0; 2], vec![1])]);
    let error = keyspace.ingest(unsorted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let text = error.to_string();
    for part in [
        "position 2000",
        r"key \x00\x00,",
        r"key before it \x00\x00\x00\x00\x00\x00\x07\xcf",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let twice = good.clone().chain([(key(1999), vec![1])]);
    let error = keyspace.ingest(twice).unwrap_err();
    assert!(error.to_string().contains("a key twice"), "{error}");
    let long = good.clone().chain([(vec![9; 1 << 20], vec![1])]);
    assert_eq!(
        keyspace.ingest(long).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    // An ingest that is dropped, and a panic of the iterator.
    let mut dropped = keyspace.begin_ingest().unwrap();
    for (key, value) in good.clone() {
        dropped.add(key, value).unwrap();
    }
    drop(dropped);
    let panicking = good
        .clone()
        .inspect(|(k, _)| assert_ne!(*k, key(1990), "on purpose"));
    assert!(catch_unwind(AssertUnwindSafe(|| keyspace.ingest(panicking))).is_err());
    let none: [(&str, &str); 0] = [];
    assert_eq!(keyspace.ingest(none).unwrap(), 0);
    assert_eq!(all(&keyspace), map);
    assert_eq!(settled_bytes(&world, &database), before);
    assert_eq!(database.metrics().ingested_records, 0);
    keyspace.ingest(good).unwrap();
    database.close().unwrap();
    world.verify();
}

#[test]
fn an_ingest_ends_if_its_keyspace_is_cleared_or_dropped() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("k").unwrap();
    keyspace.ingest(records(0..500, 1)).unwrap();
    let before = settled_bytes(&world, &database);
    let new = records(0..3000, 2);
    let clears = |at: u64| {
        let keyspace = keyspace.clone();
        new.iter().inspect(move |(k, _)| {
            if **k == key(at) {
                keyspace.clear().unwrap();
                keyspace.put("kept", "1").unwrap();
            }
        })
    };
    for at in [1, 1500, 2999] {
        let error = keyspace.ingest(clears(at)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("cleared"), "{error}");
        assert_eq!(all(&keyspace).len(), 1);
        keyspace.ingest(records(0..500, 1)).unwrap();
        keyspace.delete("kept").unwrap();
    }
    // The tree has the same records, in leaves of other bounds.
    let after = settled_bytes(&world, &database);
    assert!(after <= before + (16 << 10), "{after} {before}");
    let drops = new.iter().inspect(|(k, _)| {
        if **k == key(1500) {
            database.drop_keyspace("k").unwrap();
        }
    });
    let error = keyspace.ingest(drops).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceNotFound, "{error}");
    // A keyspace of the same name is another one.
    let again = database.keyspace("k").unwrap();
    assert!(again.is_empty().unwrap());
    let drops = new.iter().inspect(|(k, _)| {
        if **k == key(1500) {
            database.drop_keyspace("k").unwrap();
            database.keyspace("k").unwrap().put("a", "1").unwrap();
        }
    });
    assert_eq!(
        again.ingest(drops).unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(all(&database.keyspace("k").unwrap()).len(), 1);
    database.close().unwrap();
    world.verify();
}

#[test]
fn one_ingest_at_a_time_goes_into_a_keyspace() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let (keyspace, other) = (
        database.default_keyspace(),
        database.keyspace("other").unwrap(),
    );
    let new = records(0..800, 1);
    let mut steps = 0;
    let nested = new.iter().inspect(|_| {
        steps += 1;
        if steps == 400 {
            let error = keyspace.ingest([("a", "1")]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            other.put("b", "1").unwrap();
            assert_eq!(other.ingest([("a", "1"), ("b", "2")]).unwrap(), 2);
            assert_eq!(other.get("b").unwrap().unwrap(), "2");
            // Nothing of the held keyspace waits for a merge.
            database.checkpoint().unwrap();
        }
    });
    assert_eq!(keyspace.ingest(nested).unwrap(), 800);
    assert_eq!(all(&keyspace), new);
    database.close().unwrap();
    assert_eq!(keyspace.ingest(&new).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_close_ends_an_ingest_and_merges_what_waited_for_it() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let new = records(0..2000, 1);
    let closes = new.iter().inspect(|(k, _)| {
        if **k == key(1000) {
            keyspace.put(key(5), "meanwhile").unwrap();
            database.close().unwrap();
        }
    });
    assert_eq!(
        keyspace.ingest(closes).unwrap_err().kind(),
        ErrorKind::Closed
    );
    drop((keyspace, database));
    world.verify();
    let database = world.open(&tiny());
    let expected = Map::from([(key(5), b"meanwhile".to_vec())]);
    assert_eq!(all(&database.default_keyspace()), expected);
    database.close().unwrap();
    let read_only = world.open(&tiny().read_only(true));
    let error = read_only.default_keyspace().ingest(&new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
}

/// Writers of a held keyspace fill its memtables and go on after the ingest. Checkpoints of other
/// keyspaces go on meanwhile.
#[test]
fn memtables_of_a_held_keyspace_wait_and_others_do_not() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let (keyspace, other) = (
        database.default_keyspace(),
        database.keyspace("other").unwrap(),
    );
    let (mut map, new) = (Map::new(), records(0..3000, 1));
    let mut steps = 0;
    let mut checkpoints = 0;
    let beside = new.iter().inspect(|_| {
        steps += 1;
        if steps % 10 == 0 {
            keyspace.put(key(steps * 7), value(steps, 60)).unwrap();
            map.insert(key(steps * 7), value(steps, 60));
        }
        for number in 0..2 {
            other
                .put(key(steps * 2 + number), value(number, 60))
                .unwrap();
        }
        if steps == 3000 {
            checkpoints = database.metrics().checkpoints;
        }
    });
    keyspace.ingest(beside).unwrap();
    assert!(checkpoints > 10, "{checkpoints}");
    let mut expected = new.clone();
    expected.extend(map);
    assert_eq!(all(&keyspace), expected);
    database.checkpoint().unwrap();
    assert_eq!(all(&keyspace), expected);
    assert_eq!(all(&other).len(), 6000);
    let before = database.metrics().checkpoints;
    world.sim.settle();
    assert!(
        database.metrics().checkpoints - before <= 1,
        "no checkpoint without work"
    );
    database.close().unwrap();
}

/// While a request waits for the ingest, the coordinator rests.
#[test]
fn a_checkpoint_that_waits_for_an_ingest_does_not_spin() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut counts = Vec::new();
    let waits = records(0..500, 1).into_iter().inspect(|(k, _)| {
        if *k == key(100) {
            for number in 0..300 {
                keyspace.put(key(1000 + number), [1; 100]).unwrap();
            }
        }
        if [key(200), key(400)].contains(k) {
            world.sim.settle();
            counts.push(database.metrics().checkpoints);
        }
    });
    keyspace.ingest(waits).unwrap();
    assert!(counts[1] - counts[0] <= 2, "{counts:?}");
    assert_eq!(all(&keyspace).len(), 800);
    database.close().unwrap();
}

#[test]
fn conditional_writes_see_an_ingest_in_between() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let ingest = |text: &'static str| {
        keyspace
            .ingest([("a", text), ("b", text), ("c", text)])
            .unwrap();
    };
    ingest("0");
    let mut seen = Vec::new();
    let updated = keyspace.update("b", |value| {
        let value = value.unwrap().to_vec();
        seen.push(value.clone());
        if seen.len() == 1 {
            ingest("1");
        }
        Some([&value[..], b"+"].concat())
    });
    assert_eq!(updated.unwrap().unwrap(), b"1+");
    assert_eq!(seen, [b"0".to_vec(), b"1".to_vec()]);
    let (_, version) = keyspace.get_versioned("a").unwrap();
    ingest("2");
    let swapped = keyspace
        .compare_version_and_swap("a", &version, None)
        .unwrap();
    assert!(swapped.is_err());
    let (_, version) = keyspace.get_versioned("a").unwrap();
    assert!(
        keyspace
            .compare_version_and_swap("a", &version, None)
            .unwrap()
            .is_ok()
    );
    let mut batch = database.batch();
    batch.require(&keyspace, "c", Requirement::Equals(b"2"[..].into()));
    batch.put(&keyspace, "d", "1");
    database.write(&batch).unwrap();
    assert_eq!(keyspace.pop_first().unwrap().unwrap().1, "2");
    // Transactions that read before the ingest, a key and a range, and one that read nothing.
    let others = database.keyspace("others").unwrap();
    for reads in 0..3 {
        ingest("3");
        let mut transaction = database.transaction().unwrap();
        match reads {
            0 => drop(transaction.get(&keyspace, "a").unwrap()),
            1 => assert!(transaction.range(&keyspace, ..).count() > 2),
            _ => {}
        }
        transaction.put(&others, "x", "1").unwrap();
        ingest("4");
        let committed = transaction.commit().unwrap();
        assert_eq!(committed.is_ok(), reads == 2, "{committed:?}");
    }
    database.close().unwrap();
}

/// On a disk that the ingest fills, it fails, gives its room back, and puts go on.
#[test]
fn an_ingest_that_does_not_fit_leaves_the_disk_as_it_was() {
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(256 << 10);
    let options = options.log_segment_bytes(256 << 10);
    for seed in 0..4 {
        let world = World::new(seed);
        let database = world.open(&options);
        let (keyspace, map) = grown(&database);
        database.checkpoint().unwrap();
        world.sim.settle();
        world.disk.set_capacity(world.disk.used_bytes() + (6 << 20));
        let record = |number: u64| (key(number), vec![seed as u8; 1000]);
        let large = (0..40_000).map(record);
        let error = keyspace.ingest(large).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(all(&keyspace), map);
        keyspace.put("after", "1").unwrap();
        keyspace.delete("after").unwrap();
        assert_eq!(keyspace.ingest((10_000..10_500).map(record)).unwrap(), 500);
        database.close().unwrap();
        world.verify();
    }
}

/// Each write and sync of an ingest fails once.
#[test]
fn faults_of_the_disk_fail_an_ingest_and_nothing_else() {
    for nth in (1..60).step_by(3) {
        for op in [Op::Write, Op::Sync] {
            let world = World::new(nth);
            let database = world.open(&tiny());
            let (keyspace, mut map) = grown(&database);
            database.checkpoint().unwrap();
            world.sim.settle();
            let fault = Fault::nth(nth, FaultError::Io)
                .on(op)
                .of(terrapin_pages::DATA_FILE);
            world.disk.inject(fault);
            let new = records((0..4000).step_by(3), 1);
            let taken = keyspace.ingest(&new);
            world.disk.clear_faults();
            match taken {
                Ok(_) => map.extend(new),
                Err(error) if error.kind() == ErrorKind::Poisoned => continue,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
            }
            assert_eq!(all(&keyspace), map, "{nth} {op:?}");
            if database.checkpoint().is_ok() {
                database.close().unwrap();
                world.verify();
            }
        }
    }
}

/// The power fails at each call of an ingest with writes beside it.
#[test]
fn an_ingest_survives_a_power_cut_whole_or_not_at_all() {
    let world = World::new(8);
    let options = tiny();
    let database = world.open(&options);
    let (keyspace, before) = grown(&database);
    drop(keyspace);
    database.close().unwrap();
    drop(database);
    let new = records((0..4000).step_by(5), 1);
    let (mut old, mut whole) = (0, 0);
    for dies_at in 1.. {
        let (env, sim) = terrapin_base::Env::simulated(dies_at);
        let again = World {
            env,
            sim,
            disk: world.disk.fork(),
        };
        let database = again.open(&options);
        let keyspace = database.default_keyspace();
        again.disk.die_at_call(dies_at);
        let mut synced = false;
        let beside = new.iter().inspect(|(k, _)| {
            if **k == key(1000) {
                let put = keyspace.put_with(key(5), "meanwhile", Durability::Sync);
                synced = put.is_ok() && again.disk.is_alive();
            }
        });
        let taken = keyspace.ingest(beside).is_ok() && again.disk.is_alive();
        let died = !again.disk.is_alive();
        again.disarm();
        drop(keyspace);
        again.cut_power(database, CrashMode::ALL[dies_at as usize % 4]);
        again.verify();
        let database = again.open(&options);
        let mut found = all(&database.default_keyspace());
        let meanwhile = found
            .get(&key(5))
            .is_some_and(|value| value == b"meanwhile");
        assert!(
            meanwhile || !synced,
            "died at {dies_at}: a synced write is lost"
        );
        let mut expected = before.clone();
        if found.get(&key(0)) == new.get(&key(0)) {
            expected.extend(new.clone());
            whole += 1;
        } else {
            assert!(!taken, "died at {dies_at}: an acknowledged ingest is lost");
            old += 1;
        }
        // The write that came meanwhile wins.
        if meanwhile {
            expected.insert(key(5), b"meanwhile".to_vec());
        }
        assert_eq!(found.len(), expected.len());
        assert!(
            found == expected,
            "died at {dies_at}: a part of the ingest, {whole}"
        );
        found.clear();
        database.close().unwrap();
        if !died {
            break;
        }
    }
    assert!(old > 50 && whole > 3, "{old} {whole}");
}

/// Bytes written for each byte of records, and the most memory that merges took.
fn amplification(database: &Database, records: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> f64 {
    let written = || database.metrics().device_written.total();
    let (before, mut bytes) = (written(), 0);
    let counted = records.inspect(|(key, value)| bytes += key.len() + value.len());
    database.default_keyspace().ingest(counted).unwrap();
    (written() - before) as f64 / bytes as f64
}

#[test]
fn an_ingest_writes_each_byte_about_once() {
    let options = Options::new().memory(64 << 20).group_bytes(512 << 10);
    let world = World::new(9);
    let database = world.open(&options);
    let record = |number: u64| (key(number * 10), value(number, 120));
    let first = amplification(&database, (0..200_000).map(record));
    assert!(first <= 1.05, "into an empty keyspace: {first}");
    let behind = amplification(&database, (200_000..400_000).map(record));
    assert!(behind <= 1.05, "behind all records: {behind}");
    let between = (0..100_000).map(|number| {
        (
            key(1_000_001 + number % 9 + number / 9 * 10),
            value(number, 120),
        )
    });
    let gap = (0..150_000).map(|number| {
        let mut key = key(1_000_000);
        key.extend(number_bytes(number));
        (key, value(number, 120))
    });
    let gap = amplification(&database, gap);
    assert!(gap <= 1.06, "between two records: {gap}");
    // As many new records as old ones, evenly among them.
    let old = between.clone().count() as f64 / 9.0;
    let among = amplification(&database, between);
    assert!(among <= 1.1 + old / 100_000.0, "among old records: {among}");
    database.close().unwrap();
}

fn number_bytes(number: u64) -> [u8; 4] {
    (number as u32).to_be_bytes()
}
