//! Sorted ingests of large values: each is written once, and the tree adopts its page.

mod common;

use std::time::{Duration, SystemTime};

use common::World;
use common::large::{self, MIB, has, value};
use terrapin::{
    Database, ErrorKind, Keyspace, KeyspaceOptions, Lifetime, Options, StructureKind,
    VALUE_BYTES_MAX,
};
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_structure::Figure;

fn options() -> Options {
    large::options(8 << 20)
}

fn live_bytes(database: &Database) -> u64 {
    database.metrics().data_live_bytes
}

/// Lengths of the records of an ingest, by their numbers.
fn length(number: u64) -> usize {
    match number % 8 {
        3 => VALUE_BYTES_MAX + 1,
        5 => MIB + 7,
        _ => 10 + number as usize,
    }
}

/// Into an empty keyspace and over older values, beside a threshold and without one.
#[test]
fn ingests_take_large_values_in_every_ordered_structure() {
    for structure in [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
    ] {
        for (separate_from, is_over) in [(None, false), (None, true), (Some(512), true)] {
            let world = World::new(1);
            let database = world.open(&options());
            let mut made = KeyspaceOptions::new().structure(structure);
            if let Some(from) = separate_from {
                made = made.separate_from(Some(from));
            }
            let keyspace = database.create_keyspace("large", made).unwrap();
            let name = |number: u64| format!("key {number:05}");
            let count = 40;
            if is_over {
                for number in (0..count).step_by(3) {
                    let old = value(1000 + number, length(number + 2));
                    keyspace.put(name(number), old).unwrap();
                }
                keyspace.put("zz", value(7, MIB)).unwrap();
            }
            let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33);
            let mut ingest = keyspace.begin_ingest().unwrap();
            for number in 0..count {
                let new = value(number, length(number));
                match number % 3 {
                    0 => ingest.add(name(number), &new).unwrap(),
                    1 => ingest.add_expiring(name(number), &new, far).unwrap(),
                    _ => {
                        let mut from = &new[..];
                        let bytes = new.len() as u64;
                        ingest
                            .add_from(name(number), bytes, &mut from, None)
                            .unwrap();
                    }
                }
            }
            assert_eq!(ingest.finish().unwrap(), count);
            let all = |keyspace: &Keyspace| {
                for number in 0..count {
                    has(keyspace, &name(number), &value(number, length(number)));
                    let ttl = keyspace.ttl(name(number)).unwrap();
                    assert_eq!(matches!(ttl, Lifetime::Left(_)), number % 3 == 1, "{ttl:?}");
                }
                let keys = keyspace.iter().keys().count() as u64;
                assert_eq!(keys, count + u64::from(is_over));
            };
            all(&keyspace);
            world.kill(database);
            drop(keyspace);
            world.verify();
            let database = world.open(&options());
            let keyspace = database.keyspace("large").unwrap();
            all(&keyspace);
            for key in keyspace
                .iter()
                .keys()
                .collect::<Result<Vec<_>, _>>()
                .unwrap()
            {
                keyspace.delete(&key).unwrap();
            }
            database.checkpoint().unwrap();
            world.sim.settle();
            let live = live_bytes(&database);
            assert!(live < MIB as u64, "{structure:?}: {live}");
            database.close().unwrap();
            world.verify();
        }
    }
}

/// Values that have expired: an ingest writes some of its leaves again.
#[test]
fn values_that_have_expired_free_their_pages_during_an_ingest() {
    let world = World::new(2);
    let small = options().fanout(4).group_bytes(4 << 10).block_bytes(512);
    let small = small.large_above_for_tests(200);
    world.sim.advance_ns(5_000_000_000);
    let database = world.open(&small);
    let keyspace = database.keyspace("short").unwrap();
    let mut ingest = keyspace.begin_ingest().unwrap();
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    for number in 0..3000u64 {
        let key = format!("key {number:05}");
        match number % 4 {
            3 => ingest.add_expiring(key, value(number, 300), past).unwrap(),
            _ => ingest.add(key, value(number, 190)).unwrap(),
        }
    }
    assert_eq!(ingest.finish().unwrap(), 3000);
    world.kill(database);
    drop(keyspace);
    world.verify();
    let database = world.open(&small);
    let keyspace = database.keyspace("short").unwrap();
    assert_eq!(keyspace.iter().keys().count(), 2250);
    let stat = database.stat().unwrap();
    let short = stat.keyspaces.iter().find(|k| k.name == "short").unwrap();
    let pages = short.tree.named.iter().find(|(n, _)| *n == "value_pages");
    let Some((_, Figure::Number(pages))) = pages else {
        panic!("no figure of value pages");
    };
    assert!(*pages <= 750, "{pages}");
    keyspace.clear().unwrap();
    database.checkpoint().unwrap();
    world.sim.settle();
    let live = live_bytes(&database);
    assert!(live < 64 * 1024, "{live}");
    database.close().unwrap();
    world.verify();
}

/// Dropped, failed and killed ingests leave no page of a large value.
#[test]
fn ingests_that_end_early_keep_no_space_of_large_values() {
    for (how, merges) in (0..6).flat_map(|how| [(how, false), (how, true)]) {
        let world = World::new(3);
        let database = world.open(&options());
        let made = KeyspaceOptions::new().structure(match merges {
            true => StructureKind::InPlace,
            false => StructureKind::Leveled,
        });
        let keyspace = database.create_keyspace("large", made).unwrap();
        keyspace.put("old", value(1, MIB)).unwrap();
        database.checkpoint().unwrap();
        world.sim.settle();
        let live = live_bytes(&database);
        let mut ingest = keyspace.begin_ingest().unwrap();
        for number in 0..4 {
            let key = format!("key {number}");
            ingest.add(key, value(number, 2 * MIB)).unwrap();
        }
        assert!(live_bytes(&database) > live + 8 * MIB as u64);
        match how {
            0 => drop(ingest),
            1 => {
                let error = ingest.add("a", value(1, 2 * MIB)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                drop(ingest);
            }
            2 => {
                let mut short = &[1; 100][..];
                let error = ingest.add_from("z", MIB as u64, &mut short, None);
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                drop(ingest);
            }
            3 => {
                keyspace.clear().unwrap();
                let error = ingest.finish().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                database.checkpoint().unwrap();
            }
            4 => {
                // The graft's catalog or a slot.
                let fault = Fault::nth(2, FaultError::Io).on(Op::Write).of("data");
                world.disk.inject(fault);
                let failed = ingest.finish();
                world.disk.clear_faults();
                assert!(failed.is_err());
            }
            _ => {
                assert_eq!(ingest.finish().unwrap(), 4);
                keyspace.clear().unwrap();
                database.checkpoint().unwrap();
            }
        }
        world.sim.settle();
        let now = live_bytes(&database);
        let most = live + 64 * 1024;
        assert!(now <= most, "how {how}: {now} of {live}");
        world.kill(database);
        drop(keyspace);
        world.verify();
        let database = world.open(&options());
        assert!(live_bytes(&database) <= most, "how {how}");
        database.close().unwrap();
        world.verify();
    }
}

#[test]
fn a_process_that_dies_during_an_ingest_leaks_nothing() {
    for call in (1..200).step_by(7) {
        let world = World::new(call);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        keyspace.put("old", value(1, MIB)).unwrap();
        database.checkpoint().unwrap();
        world.sim.settle();
        let live = live_bytes(&database);
        world.disk.die_at_call(call);
        let records = (0..12).map(|number| (format!("key {number:02}"), value(number, MIB)));
        let done = keyspace.ingest(records);
        world.disarm();
        world.kill(database);
        drop(keyspace);
        world.verify();
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        has(&keyspace, "old", &value(1, MIB));
        let keys = keyspace.iter().keys().count();
        match keys {
            1 => {
                assert!(done.is_err());
                assert!(live_bytes(&database) <= live + 64 * 1024, "call {call}");
            }
            13 => (0..12).for_each(|n| has(&keyspace, &format!("key {n:02}"), &value(n, MIB))),
            keys => panic!("{keys} keys"),
        }
        database.close().unwrap();
        world.verify();
    }
}
