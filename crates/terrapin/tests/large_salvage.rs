//! Salvages of large values: copied piece by piece, checked, and lost only if they are damaged.

mod common;

use std::time::Duration;

use common::World;
use common::large::{self, MIB, has, value};
use terrapin::salvage::{SalvageReport, salvage_on};
use terrapin::{Database, ErrorKind, Keyspace, KeyspaceOptions, Lifetime, Options, StructureKind};
use terrapin_disk::sim::{Fault, FaultError, Op};

/// A 32nd of the memory is 256 KiB, and a quarter is 2 MiB.
fn options() -> Options {
    large::options(8 << 20)
}

/// Flips a bit of a value on the disk.
fn damage(world: &World, value: &[u8], at: usize) {
    let data = world.disk.content("data").unwrap();
    let mark = &value[at..at + 100];
    let found = data.windows(100).position(|bytes| bytes == mark).unwrap();
    assert!(world.disk.corrupt("data", found as u64, 0x10));
}

fn sync_mark(world: &World) {
    for _ in 0..30 {
        world.sim.advance_ns(100_000_000);
        world.sim.settle();
    }
}

fn salvage(world: &World, new: &Database) -> terrapin::Result<SalvageReport> {
    salvage_on(&world.env, &world.disk.handle(), &options(), new)
}

#[test]
fn values_of_any_length_come_out_of_tree_and_log() {
    for structure in [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ] {
        let world = World::new(1);
        let database = world.open(&options());
        let made = KeyspaceOptions::new().structure(structure);
        let keyspace = database
            .create_keyspace("k", made.merge_operator("append"))
            .unwrap();
        let lengths = [300 << 10, MIB, 3 * MIB + 5, 9 * MIB];
        for (number, length) in (0..).zip(lengths) {
            for place in ["tree", "log"] {
                let key = format!("{place} {number}");
                if place == "tree" {
                    keyspace.put(key, value(number, length)).unwrap();
                }
            }
        }
        let hour = Duration::from_secs(3600);
        keyspace
            .put_with_ttl("tree ttl", value(20, MIB), hour)
            .unwrap();
        keyspace.put("tree operands", value(21, 3 * MIB)).unwrap();
        database.checkpoint().unwrap();
        keyspace.merge("tree operands", "more").unwrap();
        database.checkpoint().unwrap();
        for (number, length) in (10..).zip(lengths) {
            keyspace
                .put(format!("log {}", number - 10), value(number, length))
                .unwrap();
        }
        keyspace
            .put_with_ttl("log ttl", value(22, MIB), hour)
            .unwrap();
        keyspace.put("tree 0", "replaced").unwrap();
        database.flush().unwrap();
        sync_mark(&world);
        drop(keyspace);
        world.kill(database);
        let new = World::new(2);
        let copy = new.open(&options());
        let report = salvage(&world, &copy).unwrap();
        assert!(report.is_whole() && report.uncertain == 0, "{report:?}");
        let check = |keyspace: &Keyspace| {
            for (number, length) in (0..).zip(lengths) {
                has(
                    keyspace,
                    &format!("log {number}"),
                    &value(number + 10, length),
                );
                if number > 0 {
                    has(keyspace, &format!("tree {number}"), &value(number, length));
                }
            }
            assert_eq!(keyspace.get("tree 0").unwrap().unwrap(), "replaced");
            for (number, key) in [(20, "tree ttl"), (22, "log ttl")] {
                has(keyspace, key, &value(number, MIB));
                assert!(matches!(keyspace.ttl(key).unwrap(), Lifetime::Left(_)));
            }
            // As in the old database: the operand is over a value that is too long.
            let error = keyspace.get("tree operands").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        };
        check(&copy.keyspace("k").unwrap());
        copy.close().unwrap();
        new.verify();
        let copy = new.open(&options());
        check(&copy.keyspace("k").unwrap());
        copy.close().unwrap();
    }
}

/// Damage in the last piece: all pieces before it are copied, and then given back.
#[test]
fn a_damaged_value_is_lost_and_what_it_replaced_is_uncertain() {
    for in_log in [false, true] {
        let world = World::new(3);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        let (old, new_value) = (value(1, 3 * MIB), value(2, 4 * MIB + 500));
        keyspace.put("damaged", &old).unwrap();
        keyspace.put("sound", &old).unwrap();
        database.checkpoint().unwrap();
        keyspace.put("damaged", &new_value).unwrap();
        database.flush().unwrap();
        sync_mark(&world);
        if !in_log {
            database.checkpoint().unwrap();
        }
        drop(keyspace);
        world.kill(database);
        damage(&world, &new_value, 4 * MIB + 100);
        let target = World::new(4);
        let copy = target.open(&options());
        let report = salvage(&world, &copy).unwrap();
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        assert_eq!(report.damaged[0].from, b"damaged");
        assert!(report.log.is_none(), "{report:?}");
        let keyspace = copy.default_keyspace();
        assert!(keyspace.get("damaged").unwrap().is_none());
        has(&keyspace, "sound", &old);
        if in_log {
            let uncertain = copy.open_keyspace("default.uncertain").unwrap();
            has(&uncertain, "damaged", &old);
        }
        copy.checkpoint().unwrap();
        target.sim.settle();
        let live = copy.metrics().data_live_bytes;
        let values = if in_log { 6 } else { 3 };
        assert!(live < ((values + 1) * MIB) as u64, "{live}");
        copy.close().unwrap();
        target.verify();
    }
}

/// A shortage of the system once made a sound value of the log a lost one.
#[test]
fn errors_other_than_damage_end_a_salvage() {
    let world = World::new(5);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    keyspace.put("in tree", value(1, 3 * MIB)).unwrap();
    database.checkpoint().unwrap();
    keyspace.put("in log", value(2, 3 * MIB)).unwrap();
    database.flush().unwrap();
    sync_mark(&world);
    drop(keyspace);
    world.kill(database);
    let salvaged = || {
        let target = World::new(6);
        let copy = target.open(&options());
        let report = salvage(&world, &copy);
        drop(copy);
        report
    };
    let whole = salvaged().unwrap();
    assert!(whole.is_whole(), "{whole:?}");
    let mut refused = 0;
    for nth in 1..60 {
        let fault = Fault::nth(nth, FaultError::TooManyFiles);
        world.disk.inject(fault.on(Op::Read).of("data"));
        let report = salvaged();
        world.disk.clear_faults();
        match report {
            Ok(report) => assert_eq!(report, whole, "read {nth}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 8, "{refused}");
    // No room in the new database.
    let target = World::new(6);
    let copy = target.open(&options());
    target
        .disk
        .set_capacity(target.disk.used_bytes() + 4 * MIB as u64);
    let error = salvage(&world, &copy).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
}

/// Killed at any call of the new disk: what was copied is sound, and nothing leaks.
#[test]
fn a_process_that_dies_during_a_salvage_leaves_a_sound_copy() {
    let world = World::new(7);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    for number in 0..6u64 {
        keyspace
            .put(format!("key {number}"), value(number, 2 * MIB))
            .unwrap();
        if number == 3 {
            database.checkpoint().unwrap();
        }
    }
    database.flush().unwrap();
    sync_mark(&world);
    drop(keyspace);
    world.kill(database);
    for call in (1..60).step_by(3) {
        let target = World::new(call);
        let copy = target.open(&options());
        target.disk.die_at_call(call);
        let done = salvage(&world, &copy);
        target.disarm();
        target.kill(copy);
        target.verify();
        let copy = target.open(&options());
        let keyspace = copy.default_keyspace();
        let keys: Vec<_> = keyspace.iter().keys().map(Result::unwrap).collect();
        assert!(done.is_err() || keys.len() == 6);
        for key in &keys {
            let key = std::str::from_utf8(key).unwrap();
            has(&keyspace, key, &value(key[4..].parse().unwrap(), 2 * MIB));
        }
        copy.checkpoint().unwrap();
        target.sim.settle();
        let live = copy.metrics().data_live_bytes;
        let most = keys.len() * (2 * MIB + 4096) + 256 * 1024;
        assert!(
            live <= most as u64,
            "call {call}: {live} with {} keys",
            keys.len()
        );
        copy.close().unwrap();
        target.verify();
    }
}
