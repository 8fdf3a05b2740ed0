//! Large values: each in a page of its own, written once by the write (decision 0074).

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use common::World;
use common::large::{self, MIB, value};
use terrapin::{
    Database, Durability, ErrorKind, Keyspace, KeyspaceOptions, Lifetime, Options, Requirement,
    Slice, StreamedValue, StructureKind, VALUE_BYTES_MAX,
};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};

fn options() -> Options {
    large::options(16 << 20)
}

fn has(found: Option<Slice>, expected: &[u8]) {
    assert!(
        found.as_deref() == Some(expected),
        "{} bytes",
        expected.len()
    );
}

/// All ways to read a key agree.
fn check(keyspace: &Keyspace, key: &str, expected: &[u8]) {
    has(keyspace.get(key).unwrap(), expected);
    assert!(keyspace.contains(key).unwrap());
    let mut reader = keyspace.reader(key).unwrap().unwrap();
    assert_eq!(reader.len(), expected.len() as u64);
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert!(read == expected);
    let length = expected.len() as u64;
    for range in [
        0..1,
        length - 1..length + 10,
        length / 2..length / 2 + 5,
        length..length + 1,
        0..length,
        (1 << 20) - 3..(1 << 20) + 3,
    ] {
        let (from, to) = (range.start.min(length), range.end.min(length));
        let part = keyspace.get_range(key, range).unwrap();
        has(part, &expected[from as usize..to as usize]);
    }
    reader.seek(SeekFrom::End(-2)).unwrap();
    read.clear();
    reader.read_to_end(&mut read).unwrap();
    assert!(read == expected[expected.len() - 2..]);
    has(
        keyspace.multi_get(&[key, "no such key"]).unwrap()[0].clone(),
        expected,
    );
}

fn live_bytes(database: &Database) -> u64 {
    database.metrics().data_live_bytes
}

const LENGTHS: [usize; 6] = [
    VALUE_BYTES_MAX + 1,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB + 12_345,
    3 * MIB,
];

#[test]
fn large_values_are_put_read_and_survive_in_every_structure() {
    for structure in [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ] {
        let world = World::new(1);
        let made = KeyspaceOptions::new().structure(structure);
        let names: Vec<_> = (0..LENGTHS.len()).map(|i| format!("key {i}")).collect();
        let values: Vec<_> = (0..).zip(LENGTHS).map(|(i, n)| value(i, n)).collect();
        let all = |keyspace: &Keyspace| {
            for (name, value) in names.iter().zip(&values) {
                check(keyspace, name, value);
            }
            check(keyspace, "short", b"a short value");
            if structure != StructureKind::Hashed {
                let keys: Vec<_> = keyspace.iter().keys().map(Result::unwrap).collect();
                assert_eq!(keys.len(), names.len() + 1);
                for ((key, found), (name, value)) in keyspace
                    .iter()
                    .map(Result::unwrap)
                    .zip(names.iter().zip(&values))
                {
                    assert!(key == name.as_str() && found == value[..]);
                }
                let last = keyspace.iter().rev().nth(1).unwrap().unwrap();
                assert!(last.1 == values[values.len() - 1][..]);
            }
        };
        let database = world.open(&options());
        let keyspace = database.create_keyspace("large", made).unwrap();
        for (name, value) in names.iter().zip(&values) {
            keyspace.put(name, value).unwrap();
        }
        keyspace.put("short", "a short value").unwrap();
        all(&keyspace);
        database.checkpoint().unwrap();
        all(&keyspace);
        database.close().unwrap();
        world.verify();

        let database = world.open(&options());
        let keyspace = database.keyspace("large").unwrap();
        all(&keyspace);
        // A put in the log alone, of a process that dies.
        keyspace.put("late", value(99, MIB + 7)).unwrap();
        world.kill(database);
        drop(keyspace);
        world.verify();
        let database = world.open(&options());
        let keyspace = database.keyspace("large").unwrap();
        check(&keyspace, "late", &value(99, MIB + 7));
        keyspace.delete("late").unwrap();
        all(&keyspace);
        for name in &names {
            keyspace.delete(name).unwrap();
        }
        database.checkpoint().unwrap();
        assert!(keyspace.get("key 1").unwrap().is_none());
        assert!(keyspace.reader("key 1").unwrap().is_none());
        world.sim.settle();
        let live = live_bytes(&database);
        assert!(live < MIB as u64, "{structure:?}: {live}");
        check(&keyspace, "short", b"a short value");
        database.close().unwrap();
        world.verify();
    }
}

#[test]
fn writers_stream_and_refuse_other_lengths() {
    let world = World::new(2);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    for length in [0, 10, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1, 2 * MIB + 3] {
        let value = value(length as u64, length);
        let mut writer = keyspace.writer("a", length as u64).unwrap();
        for piece in value.chunks(70_000) {
            writer.write_all(piece).unwrap();
        }
        assert_eq!(writer.missing(), 0);
        let error = writer.append(b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        writer.finish().unwrap();
        has(keyspace.get("a").unwrap(), &value);
    }
    let live = live_bytes(&database);
    for length in [100, 2 * MIB as u64] {
        let mut writer = keyspace.writer("b", length).unwrap();
        writer.append(b"some").unwrap();
        let error = writer.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        drop(keyspace.writer("b", length).unwrap());
    }
    assert_eq!(
        live_bytes(&database),
        live,
        "pages of dropped writers are free"
    );
    assert!(keyspace.get("b").unwrap().is_none());
    let error = keyspace.writer("b", (1 << 30) + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    database.close().unwrap();
    world.verify();
}

/// A get is bounded by memory; what it names is not.
#[test]
fn values_beyond_memory_are_read_in_parts() {
    let world = World::new(3);
    let database = world.open(&options().memory(8 << 20));
    let keyspace = database.default_keyspace();
    let value = value(5, 9 * MIB);
    keyspace.put("a", &value).unwrap();
    for _ in 0..2 {
        for error in [
            keyspace.get("a").unwrap_err(),
            keyspace.iter().next().unwrap().unwrap_err(),
            keyspace.multi_get(&["a"]).unwrap_err(),
            keyspace.get_range("a", 0..1 << 30).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        }
        let error = keyspace.get("a").unwrap_err().to_string();
        assert!(error.contains("reader"), "{error}");
        let mut read = Vec::new();
        let mut reader = keyspace.reader("a").unwrap().unwrap();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == value);
        has(
            keyspace.get_range("a", 5_000_000..5_000_100).unwrap(),
            &value[5_000_000..5_000_100],
        );
        assert!(keyspace.contains("a").unwrap());
        assert_eq!(keyspace.iter().keys().count(), 1);
        database.checkpoint().unwrap();
    }
    database.close().unwrap();
    world.verify();
}

/// A copy of an open database may have half of a value that its log calls synced. No get shows it.
#[test]
fn a_copy_with_half_of_a_large_value_is_refused() {
    let world = World::new(9);
    let database = world.open(&options());
    let value = value(7, 2 * MIB);
    let keyspace = database.default_keyspace();
    keyspace.put_with("a", &value, Durability::Sync).unwrap();
    drop(keyspace);
    world.kill(database);
    for is_whole in [true, false] {
        let copy = World::new(10);
        for name in world.disk.handle().list().unwrap() {
            let mut content = world.disk.content(&name).unwrap();
            if name == "data" && !is_whole {
                // The half that was copied before its write.
                let mut at = content.windows(64).step_by(512);
                let at = at.position(|bytes| *bytes == value[..64]).unwrap() * 512;
                content[at..at + MIB].fill(0);
            }
            copy.disk.plant(&name, &content);
        }
        for is_read_only in [true, false] {
            match copy.try_open(&options().read_only(is_read_only)) {
                Ok(database) if is_whole => {
                    has(database.default_keyspace().get("a").unwrap(), &value);
                    copy.kill(database);
                }
                Err(error) if !is_whole => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    assert!(error.to_string().contains("looks like a copy"), "{error}");
                }
                Ok(_) => panic!("a copy with half of a value opens"),
                Err(error) => panic!("a whole copy: {error}"),
            }
        }
    }
}

/// A streamed range shows each large value as a reader, from memtables, trees and snapshots.
#[test]
fn streamed_ranges_have_readers_of_large_values() {
    for structure in [StructureKind::Leveled, StructureKind::Hashed] {
        let world = World::new(3);
        let database = world.open(&options().memory(8 << 20));
        let made = KeyspaceOptions::new().structure(structure);
        let keyspace = database.create_keyspace("k", made).unwrap();
        let mut all = BTreeMap::new();
        for number in 0..30u64 {
            let length = match number % 3 {
                0 => VALUE_BYTES_MAX + 1 + number as usize,
                1 if number == 4 => 9 * MIB,
                _ => 100,
            };
            let key = format!("key {number:02}");
            let value = value(number, length);
            match number % 5 {
                0 => keyspace
                    .put_with_ttl(&key, &value, Duration::from_secs(9))
                    .unwrap(),
                _ => keyspace.put(&key, &value).unwrap(),
            }
            all.insert(key.into_bytes(), (value, number % 5 == 0));
            if number == 14 {
                database.checkpoint().unwrap();
            }
        }
        let read = |mut records: terrapin::Streamed, is_back: bool| {
            let mut found = Vec::new();
            loop {
                let next = match is_back {
                    true => records.next_back(),
                    false => records.next(),
                };
                let Some((key, value, deadline)) = next.unwrap() else {
                    return found;
                };
                let (expected, expires) = &all[key];
                assert_eq!(deadline.is_some(), *expires);
                let is_large = expected.len() > VALUE_BYTES_MAX;
                match value {
                    StreamedValue::Bytes(bytes) => assert!(!is_large && bytes == expected),
                    StreamedValue::Reader(mut reader) => {
                        let mut bytes = Vec::new();
                        reader.read_to_end(&mut bytes).unwrap();
                        assert!(is_large && bytes == *expected);
                    }
                }
                found.push(key.to_vec());
            }
        };
        let snapshot = database.snapshot().unwrap();
        keyspace.put("key 99", value(1, MIB)).unwrap();
        keyspace.delete("key 04").unwrap();
        let keys: Vec<_> = all.keys().cloned().collect();
        if structure == StructureKind::Hashed {
            let mut found = read(snapshot.unordered(&keyspace).streamed(), false);
            found.sort();
            assert_eq!(found, keys);
            continue;
        }
        assert_eq!(read(snapshot.iter(&keyspace).streamed(), false), keys);
        let back: Vec<_> = keys.iter().rev().cloned().collect();
        assert_eq!(read(snapshot.iter(&keyspace).streamed(), true), back);
        // The last record of a limit is a large one.
        let limited = snapshot.range(&keyspace, "key 02"..).limit(2);
        assert_eq!(read(limited.streamed(), false), keys[2..4]);
        drop(snapshot);
        database.close().unwrap();
    }
}

#[test]
fn views_and_readers_keep_what_they_saw() {
    let world = World::new(4);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let (old, new) = (value(1, MIB + 5), value(2, MIB + 6));
    keyspace.put("a", &old).unwrap();
    // The view sees the value in the memtable, whose page no tree has yet.
    let snapshot = database.snapshot().unwrap();
    let mut reader = keyspace.reader("a").unwrap().unwrap();
    keyspace.put("a", &new).unwrap();
    for round in 0..3 {
        keyspace.put("b", value(10 + round, MIB)).unwrap();
        database.checkpoint().unwrap();
        world.sim.advance_ns(3_000_000_000);
        world.sim.settle();
    }
    let other = database.snapshot().unwrap();
    keyspace.clear().unwrap();
    database.checkpoint().unwrap();
    for round in 0..4 {
        keyspace.put("c", value(20 + round, MIB)).unwrap();
        database.checkpoint().unwrap();
        world.sim.advance_ns(3_000_000_000);
        world.sim.settle();
    }
    has(snapshot.get(&keyspace, "a").unwrap(), &old);
    has(
        snapshot.get_range(&keyspace, "a", 3..9).unwrap(),
        &old[3..9],
    );
    let all: Vec<_> = snapshot.iter(&keyspace).map(Result::unwrap).collect();
    assert!(all.len() == 1 && all[0].1 == old[..]);
    has(other.get(&keyspace, "a").unwrap(), &new);
    drop((snapshot, other));
    database.checkpoint().unwrap();
    world.sim.settle();
    keyspace.put("d", value(30, 2 * MIB)).unwrap();
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert!(read == old);
    drop(reader);
    keyspace.clear().unwrap();
    database.checkpoint().unwrap();
    world.sim.settle();
    let live = live_bytes(&database);
    assert!(live < MIB as u64, "{live}");
    database.close().unwrap();
    world.verify();
}

#[test]
fn batches_hold_handles_and_are_written_once() {
    let world = World::new(5);
    let database = world.open(&options());
    let (a, b) = (
        database.keyspace("a").unwrap(),
        database.keyspace("b").unwrap(),
    );
    let values: Vec<_> = (0..4).map(|i| value(i, MIB)).collect();
    let mut batch = database.batch();
    for (i, value) in values.iter().enumerate() {
        batch.put([&a, &b][i % 2], format!("key {i}"), value);
    }
    batch.put(&a, "short", "value");
    batch.put(&a, "key 0", &values[3]);
    assert!(batch.bytes() < 1000 && batch.error().is_none());
    database.write(&batch).unwrap();
    let error = database.write(&batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    drop(batch);
    has(a.get("key 0").unwrap(), &values[3]);
    has(b.get("key 1").unwrap(), &values[1]);
    let live = live_bytes(&database);
    let mut given_up = database.batch();
    given_up.put(&a, "x", &values[0]);
    assert!(live_bytes(&database) > live);
    drop(given_up);
    assert_eq!(live_bytes(&database), live);
    world.cut_power(database, CrashMode::KeepAll);
    drop((a, b));
    world.verify();
    let database = world.open(&options());
    let a = database.keyspace("a").unwrap();
    has(a.get("key 0").unwrap(), &values[3]);
    // The version that the batch itself replaced takes no space once it is merged.
    database.checkpoint().unwrap();
    world.sim.settle();
    assert!(live_bytes(&database) < 5 * MIB as u64);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_large_value_that_is_overwritten_for_ever_gives_its_space_back() {
    let world = World::new(6);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let value = value(7, MIB);
    for _ in 0..300 {
        keyspace.put("hot", &value).unwrap();
        world.sim.settle();
    }
    let live = live_bytes(&database);
    assert!(live < 140 * MIB as u64, "{live}");
    database.close().unwrap();
    world.verify();
}

/// Operands over a value that is longer than what operators make are refused by every read, and the
/// value is not lost to writes. Over one that has expired they apply to nothing.
#[test]
fn operands_over_too_long_values_are_refused_by_reads() {
    for merged in [false, true] {
        let world = World::new(7);
        let database = world.open(&options());
        let made = KeyspaceOptions::new().merge_operator("append");
        let keyspace = database.create_keyspace("merging", made).unwrap();
        let long = value(1, VALUE_BYTES_MAX + 1);
        let second = Duration::from_secs(1);
        for key in ["deleted", "put", "stays"] {
            keyspace.put(key, &long).unwrap();
        }
        keyspace.put_with_ttl("ends", &long, 10 * second).unwrap();
        let short = value(2, 20_000);
        keyspace.put_with_ttl("short", &short, 10 * second).unwrap();
        if merged {
            database.checkpoint().unwrap();
        }
        let snapshot = database.snapshot().unwrap();
        for key in ["deleted", "put", "ends", "short"] {
            keyspace.merge(key, "more").unwrap();
        }
        if merged {
            database.checkpoint().unwrap();
        }
        let refused = |key: &str| {
            for error in [
                keyspace.get(key).unwrap_err(),
                keyspace.contains(key).unwrap_err(),
                keyspace.reader(key).unwrap_err(),
                keyspace.multi_get(&[key]).unwrap_err(),
                keyspace.range(key..).next().unwrap().unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{key}: {error}");
                assert!(
                    error.to_string().contains("put or delete the key"),
                    "{error}"
                );
            }
            has(snapshot.get(&keyspace, key).unwrap(), &long);
        };
        ["deleted", "put", "ends"].into_iter().for_each(refused);
        check(&keyspace, "stays", &long);
        has(
            keyspace.get("short").unwrap(),
            &[&short[..], b"more"].concat(),
        );
        let in_transaction = database.transact(|tx| {
            tx.merge(&keyspace, "stays", "more")?;
            assert_eq!(
                tx.get(&keyspace, "stays").unwrap_err().kind(),
                ErrorKind::Unsupported
            );
            tx.delete(&keyspace, "stays")
        });
        in_transaction.unwrap();
        keyspace.delete("deleted").unwrap();
        keyspace.put("put", "new").unwrap();
        assert!(keyspace.get("deleted").unwrap().is_none());
        has(keyspace.get("put").unwrap(), b"new");
        drop(snapshot);
        world.sim.advance_ns(11_000_000_000);
        for key in ["ends", "short"] {
            has(keyspace.get(key).unwrap(), b"more");
            keyspace.merge(key, "over").unwrap();
            has(keyspace.get(key).unwrap(), b"moreover");
        }
        database.checkpoint().unwrap();
        has(keyspace.get("ends").unwrap(), b"moreover");
        has(
            keyspace.multi_get(&["short"]).unwrap()[0].clone(),
            b"moreover",
        );
        keyspace.clear().unwrap();
        database.checkpoint().unwrap();
        let live = live_bytes(&database);
        assert!(live < 200_000, "{merged}: {live}");
        database.close().unwrap();
        world.verify();
    }
}

/// A large value with a deadline ends in every read and place, and its space is free then.
#[test]
fn large_values_have_deadlines() {
    let structures = [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ];
    for (structure, merged) in structures.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let world = World::new(24);
        let database = world.open(&options());
        let second = Duration::from_secs(1);
        let made = KeyspaceOptions::new().structure(structure);
        let keyspace = database.create_keyspace("k", made).unwrap();
        let lasting = database
            .create_keyspace("ttl", made.ttl(100 * second))
            .unwrap();
        let (one, two) = (value(1, MIB + 3), value(2, 9 * MIB));
        keyspace.put("a", "older").unwrap();
        keyspace.put("b", &one).unwrap();
        keyspace.put_with_ttl("a", &one, 10 * second).unwrap();
        let mut batch = database.batch();
        batch.put_with_ttl(&keyspace, "c", &one, 20 * second);
        batch.put_with_ttl(&keyspace, "huge", &two, 30 * second);
        database.write(&batch).unwrap();
        let tx =
            |tx: &mut terrapin::Transaction| tx.put_with_ttl(&keyspace, "d", &one, 10 * second);
        database.transact(tx).unwrap();
        let mut writer = lasting.writer("w", one.len() as u64).unwrap();
        writer.append(&one).unwrap();
        writer.finish().unwrap();
        assert!(matches!(lasting.ttl("w").unwrap(), Lifetime::Left(left) if left <= 100 * second));
        if merged {
            database.checkpoint().unwrap();
        }
        check(&keyspace, "a", &one);
        assert!(keyspace.contains("huge").unwrap());
        assert!(keyspace.touch("c", 60 * second).unwrap());
        assert!(keyspace.touch("huge", 30 * second).unwrap());
        let left = keyspace.ttl("huge").unwrap();
        assert!(matches!(left, Lifetime::Left(left) if left <= 30 * second));
        let snapshot = database.snapshot().unwrap();
        world.sim.advance_ns(15_000_000_000);
        for gone in ["a", "d"] {
            assert!(
                keyspace.get(gone).unwrap().is_none(),
                "{structure:?} {merged}"
            );
            assert!(!keyspace.contains(gone).unwrap());
            assert!(keyspace.reader(gone).unwrap().is_none());
            assert!(snapshot.get(&keyspace, gone).unwrap().is_some());
        }
        if structure != StructureKind::Hashed {
            let keys: Vec<_> = keyspace.iter().keys().map(Result::unwrap).collect();
            assert_eq!(keys, ["b", "c", "huge"]);
            let mut range = keyspace.range(.."d");
            let first = range.next_with_deadline().unwrap().unwrap();
            assert!(first.0 == b"b" && first.2.is_none());
            let second = range.next_with_deadline().unwrap().unwrap();
            assert!(second.0 == b"c" && second.1 == one && second.2.is_some());
        }
        drop(snapshot);
        assert!(keyspace.persist("c").unwrap());
        world.sim.advance_ns(90_000_000_000);
        // It is longer than what a get returns.
        assert!(!keyspace.contains("huge").unwrap());
        assert!(keyspace.get("huge").unwrap().is_none());
        assert!(keyspace.multi_get(&["huge"]).unwrap()[0].is_none());
        assert!(keyspace.reader("huge").unwrap().is_none());
        assert!(!keyspace.touch("huge", second).unwrap());
        assert!(lasting.get("w").unwrap().is_none());
        has(keyspace.get("c").unwrap(), &one);
        world.kill(database);
        drop((keyspace, lasting));
        world.verify();
        let database = world.open(&options());
        let keyspace = database.open_keyspace("k").unwrap();
        assert!(keyspace.get("a").unwrap().is_none());
        check(&keyspace, "b", &one);
        check(&keyspace, "c", &one);
        database.checkpoint().unwrap();
        // The expiry's compactions.
        for _ in 0..100 {
            world.sim.advance_ns(2_000_000_000);
            world.sim.settle();
        }
        database.checkpoint().unwrap();
        world.sim.settle();
        let live = live_bytes(&database);
        assert!(live < 4 * MIB as u64, "{structure:?} {merged}: {live}");
        database.close().unwrap();
        drop(keyspace);
        world.verify();
    }
}

/// A transaction reads and writes large values: its own, those below, and after a rollback.
#[test]
fn transactions_read_and_write_large_values() {
    let world = World::new(20);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let (old, new) = (value(1, MIB + 5), value(2, 2 * MIB));
    keyspace.put("a", &old).unwrap();
    let mut tx = database.transaction().unwrap();
    has(tx.get(&keyspace, "a").unwrap(), &old);
    tx.put(&keyspace, "a", &new).unwrap();
    has(tx.get(&keyspace, "a").unwrap(), &new);
    assert!(tx.contains(&keyspace, "a").unwrap());
    let back = tx.savepoint();
    tx.put(&keyspace, "b", &new).unwrap();
    tx.put(&keyspace, "a", "short").unwrap();
    tx.rollback_to(&back).unwrap();
    assert!(tx.get(&keyspace, "b").unwrap().is_none());
    tx.put(&keyspace, "c", &old).unwrap();
    let records: Vec<_> = tx.range(&keyspace, ..).map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);
    assert!(records[0].0 == "a" && records[0].1 == new[..]);
    assert!(records[1].0 == "c" && records[1].1 == old[..]);
    // The writes of a transaction with large values are short.
    assert!(tx.bytes() < 200, "{}", tx.bytes());
    tx.commit().unwrap().unwrap();
    check(&keyspace, "a", &new);
    check(&keyspace, "c", &old);

    // A conflict, and a transaction that is dropped, give their pages back.
    database.checkpoint().unwrap();
    let live = live_bytes(&database);
    for _ in 0..3 {
        let mut tx = database.transaction().unwrap();
        tx.get(&keyspace, "a").unwrap();
        tx.put(&keyspace, "d", &new).unwrap();
        keyspace.put("a", "another").unwrap();
        assert!(tx.commit().unwrap().is_err());
        let mut tx = database.transaction().unwrap();
        tx.put(&keyspace, "d", &new).unwrap();
    }
    database.checkpoint().unwrap();
    world.sim.settle();
    assert!(live_bytes(&database) < live + MIB as u64 / 2);
    assert!(keyspace.get("d").unwrap().is_none());
    database.close().unwrap();
    drop(keyspace);
    world.verify();
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    check(&keyspace, "c", &old);
    keyspace.put("e", value(7, MIB)).unwrap();
    database
        .transact(|tx| tx.put(&keyspace, "f", &old))
        .unwrap();
    world.kill(database);
    drop(keyspace);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    check(&keyspace, "f", &old);
    database.close().unwrap();
    world.verify();
}

/// A commit compares large values by their versions, however long they are.
#[test]
fn commits_compare_large_values_unread() {
    let world = World::new(21);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let huge = value(3, 9 * MIB);
    let put_huge = |key: &str| {
        let mut writer = keyspace.writer(key, huge.len() as u64).unwrap();
        writer.append(&huge).unwrap();
        writer.finish().unwrap();
    };
    put_huge("huge");
    keyspace.put("seen", "1").unwrap();
    for (changes, is_over_range) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut tx = database.transaction().unwrap();
        match is_over_range {
            true => {
                let too_large = tx.range(&keyspace, "h".."i").next().unwrap().unwrap_err();
                assert_eq!(too_large.kind(), ErrorKind::TooLarge);
                tx.delete_range(&keyspace, "h".."i").unwrap();
            }
            false => assert!(tx.contains(&keyspace, "huge").unwrap()),
        }
        tx.put(&keyspace, "mine", "2").unwrap();
        if changes {
            put_huge("huge");
        }
        // The memtables no longer tell what has changed.
        for i in 0..3000 {
            keyspace.put(format!("other {i}"), vec![7; 600]).unwrap();
        }
        database.checkpoint().unwrap();
        database.checkpoint().unwrap();
        let committed = tx.commit().unwrap().is_ok();
        assert_eq!(committed, !changes, "{is_over_range}");
        if committed && is_over_range {
            put_huge("huge");
        }
    }
    database.close().unwrap();
}

#[test]
fn conditional_writes_read_and_write_large_values() {
    let world = World::new(22);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let (one, two) = (value(1, MIB), value(2, VALUE_BYTES_MAX + 1));
    assert!(keyspace.insert_if_absent("a", &one).unwrap().is_none());
    has(keyspace.insert_if_absent("a", &two).unwrap(), &one);
    check(&keyspace, "a", &one);
    let swapped = keyspace
        .compare_and_swap("a", Some(&two), Some(b"no"))
        .unwrap();
    assert!(swapped.is_err());
    keyspace
        .compare_and_swap("a", Some(&one), Some(&two))
        .unwrap()
        .unwrap();
    database.checkpoint().unwrap();
    check(&keyspace, "a", &two);
    let (read, version) = keyspace.get_versioned("a").unwrap();
    has(read, &two);
    keyspace
        .compare_version_and_swap("a", &version, Some(&one))
        .unwrap()
        .unwrap();
    assert!(
        keyspace
            .compare_version_and_swap("a", &version, None)
            .unwrap()
            .is_err()
    );
    let longer = keyspace
        .update("a", |value| {
            let mut value = value.unwrap().to_vec();
            value.push(1);
            Some(value)
        })
        .unwrap();
    assert_eq!(longer.unwrap().len(), MIB + 1);
    assert_eq!(keyspace.take("a").unwrap().unwrap().len(), MIB + 1);
    assert!(!keyspace.contains("a").unwrap());
    keyspace.put("b", &one).unwrap();
    let popped = keyspace.pop_first().unwrap().unwrap();
    assert!(popped.0 == "b" && popped.1 == one[..]);

    // Conditions of batches, on a value that no get returns.
    let huge = value(3, 9 * MIB);
    let mut writer = keyspace.writer("huge", huge.len() as u64).unwrap();
    writer.append(&huge).unwrap();
    writer.finish().unwrap();
    let mut other = huge.clone();
    other[5 * MIB] ^= 1;
    for (asks, holds) in [
        (Requirement::Present, true),
        (Requirement::Absent, false),
        (Requirement::equals(&huge), true),
        (Requirement::equals(&other), false),
        (Requirement::equals("short"), false),
    ] {
        let mut batch = database.batch();
        batch.require(&keyspace, "huge", asks);
        batch.put(&keyspace, "done", "1");
        let written = database.write(&batch);
        assert_eq!(written.is_ok(), holds);
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::Conflict);
        }
    }
    let error = keyspace.take("huge").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    keyspace.delete("huge").unwrap();
    database.checkpoint().unwrap();
    database.checkpoint().unwrap();
    world.sim.settle();
    assert!(
        live_bytes(&database) < MIB as u64,
        "{}",
        live_bytes(&database)
    );
    world.kill(database);
    drop(keyspace);
    world.verify();
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.iter().count(), 1);
    database.close().unwrap();
}

/// A ring's quarter bounds records, and no value.
#[test]
fn a_value_beyond_a_small_ring_is_large() {
    let world = World::new(23);
    let small = options().ring_bytes(64 << 10);
    let database = world.open(&small);
    let keyspace = database.default_keyspace();
    for bytes in [16_200, 16_320, 16_384, 20_000, 200_000] {
        let long = value(bytes as u64, bytes);
        keyspace.put("put", &long).unwrap();
        has(keyspace.get("put").unwrap(), &long);
        let mut batch = database.batch();
        batch.put(&keyspace, "batch", &long);
        database.write(&batch).unwrap();
        has(keyspace.get("batch").unwrap(), &long);
        database
            .transact(|tx| tx.put(&keyspace, "tx", &long))
            .unwrap();
        has(keyspace.get("tx").unwrap(), &long);
    }
    // Operands apply to a value that is large for the ring alone.
    let made = KeyspaceOptions::new().merge_operator("append");
    let appended = database.create_keyspace("appended", made).unwrap();
    let mut long = value(5, 20_000);
    appended.put("a", &long).unwrap();
    for checkpoint in [false, true, false, true] {
        appended.merge("a", "more").unwrap();
        long.extend_from_slice(b"more");
        if checkpoint {
            database.checkpoint().unwrap();
        }
        has(appended.get("a").unwrap(), &long);
    }
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_full_disk_refuses_large_values_and_logs_nothing() {
    let world = World::new(8);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    keyspace.put("a", value(1, MIB)).unwrap();
    database.checkpoint().unwrap();
    world.sim.settle();
    world
        .disk
        .set_capacity(world.disk.used_bytes() + 3 * MIB as u64);
    let mut stored = 0;
    let error = loop {
        match keyspace.put(format!("b{stored}"), value(stored, MIB)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 10);
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let failed = format!("b{stored}");
    assert!(keyspace.get(&failed).unwrap().is_none());
    has(keyspace.get("a").unwrap(), &value(1, MIB));
    keyspace.delete("a").unwrap();
    for i in 0..stored {
        keyspace.delete(format!("b{i}")).unwrap();
    }
    let _ = database.checkpoint();
    world.sim.settle();
    database.checkpoint().unwrap();
    world.sim.settle();
    world
        .disk
        .set_capacity(world.disk.used_bytes() + 64 * MIB as u64);
    world.sim.advance_ns(3_000_000_000);
    world.sim.settle();
    keyspace.put("c", value(9, MIB)).unwrap();
    world.kill(database);
    drop(keyspace);
    world.verify();
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    assert!(keyspace.get(&failed).unwrap().is_none());
    has(keyspace.get("c").unwrap(), &value(9, MIB));
    database.close().unwrap();
}

/// The page of a large value once was given back by the checkpoint that failed to take it.
#[test]
fn a_failed_checkpoint_leaves_large_values_alone() {
    for nth in 1..12 {
        let world = World::new(9);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        keyspace.put("a", value(1, MIB)).unwrap();
        keyspace.put("a", value(2, MIB)).unwrap();
        keyspace.put("b", value(3, MIB)).unwrap();
        world
            .disk
            .inject(Fault::nth(nth, FaultError::Io).on(Op::Write).of("data"));
        let failed = database.checkpoint();
        world.disk.clear_faults();
        for round in 0..3 {
            let _ = keyspace.put("c", value(10 + round, MIB));
            has(keyspace.get("a").unwrap(), &value(2, MIB));
            has(keyspace.get("b").unwrap(), &value(3, MIB));
        }
        if failed.is_err() {
            let _ = database.checkpoint();
        }
        has(keyspace.get("a").unwrap(), &value(2, MIB));
        world.kill(database);
        drop(keyspace);
        world.verify();
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        has(keyspace.get("a").unwrap(), &value(2, MIB));
        has(keyspace.get("b").unwrap(), &value(3, MIB));
        database.close().unwrap();
        world.verify();
    }
}

#[test]
fn damage_in_a_large_value_is_found_where_it_is() {
    let world = World::new(10);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let value = value(1, 3 * MIB + 5);
    keyspace.put("a", &value).unwrap();
    database.close().unwrap();
    drop(keyspace);
    let data = world.disk.content("data").unwrap();
    let mark = &value[MIB + 100..MIB + 200];
    let at = data.windows(100).position(|bytes| bytes == mark).unwrap();
    assert!(world.disk.corrupt("data", at as u64, 0x10));
    let report =
        terrapin::verify::verify_on(world.env.clone(), world.disk.handle(), &Default::default());
    let report = report.unwrap();
    assert!(!report.is_sound());
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.get("a").unwrap_err().kind(), ErrorKind::Corrupt);
    has(keyspace.get_range("a", 0..1 << 20).unwrap(), &value[..MIB]);
    let error = keyspace.get_range("a", 1 << 20..2 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    has(
        keyspace.get_range("a", 2 << 20..3 << 20).unwrap(),
        &value[2 * MIB..3 * MIB],
    );
    database.close().unwrap();
}

#[test]
fn backups_and_readers_beside_have_large_values_of_log_and_tree() {
    let directory = common::Directory::new("large-backup");
    let (base, backup) = (directory.0.join("db"), directory.0.join("backup"));
    std::fs::create_dir_all(&directory.0).unwrap();
    let database = options().open(&base).unwrap();
    let keyspace = database.default_keyspace();
    keyspace.put("in tree", value(1, 2 * MIB)).unwrap();
    database.checkpoint().unwrap();
    keyspace.put("in log", value(2, MIB + 9)).unwrap();
    database.backup(&backup).unwrap();
    let reader = options().open_reader(&base).unwrap();
    for database in [&reader, &database] {
        let keyspace = database.default_keyspace();
        check(&keyspace, "in tree", &value(1, 2 * MIB));
        check(&keyspace, "in log", &value(2, MIB + 9));
    }
    keyspace.put("in log", value(3, MIB)).unwrap();
    database.checkpoint().unwrap();
    check(&reader.default_keyspace(), "in log", &value(2, MIB + 9));
    reader.close().unwrap();
    database.close().unwrap();
    let restored = directory.0.join("restored");
    terrapin::backup::restore(&backup, &restored).unwrap();
    let database = options().open(&restored).unwrap();
    let keyspace = database.default_keyspace();
    check(&keyspace, "in tree", &value(1, 2 * MIB));
    check(&keyspace, "in log", &value(2, MIB + 9));
    database.close().unwrap();
}

/// What a key has: a seed and a length.
type Content = BTreeMap<u64, (u64, usize)>;

fn read(keyspace: &Keyspace, keys: u64) -> Content {
    let mut found = Content::new();
    for key in 0..keys {
        let Some(bytes) = keyspace.get(common::key(key)).unwrap() else {
            continue;
        };
        let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let mut expected = value(seed, bytes.len());
        expected[..8].copy_from_slice(&seed.to_le_bytes());
        assert!(bytes == expected[..], "key {key}: parts of two values");
        found.insert(key, (seed, bytes.len()));
    }
    found
}

/// Deaths at random calls, of the open too. After the death of a process, no acknowledged write is
/// missing. After a power cut, a prefix of the writes is there, with all that were synced.
fn run(seed: u64) {
    let world = World::new(seed);
    let keys = 12;
    let mut next = 0;
    let mut content = Content::new();
    for life in 0..5 {
        if world.below(2) == 0 && life > 0 {
            world.disk.die_at_call(1 + world.below(60));
            let half = world.try_open(&options());
            world.sim.kill();
            world.disk.crash_process();
            drop(half);
            world.sim.kill();
            world.disarm();
        }
        let database = world.open(&options());
        let keyspace = database.keyspace("values").unwrap();
        let mut moments = vec![(content.clone(), true)];
        let how = world.below(4);
        if how == 0 {
            world.disk.die_at_call(1 + world.below(120));
        }
        let mut acknowledged = 0;
        for _ in 0..1 + world.below(40) {
            let (key, is_synced) = (world.below(keys), world.below(6) == 0);
            let durability = match is_synced {
                true => Durability::Sync,
                false => Durability::Process,
            };
            next += 1;
            let mut after = moments[moments.len() - 1].0.clone();
            let bytes = |length: usize| {
                let mut bytes = value(next, length);
                bytes[..8].copy_from_slice(&next.to_le_bytes());
                bytes
            };
            let length = match world.below(3) {
                0 => 8 + world.below(500) as usize,
                _ => VALUE_BYTES_MAX + 1 + world.below(MIB as u64) as usize,
            };
            let (mut is_clear, mut is_ingest) = (false, false);
            let done = match world.below(14) {
                0..=6 => {
                    after.insert(key, (next, length));
                    keyspace.put_with(common::key(key), bytes(length), durability)
                }
                7 | 8 => {
                    after.remove(&key);
                    keyspace.delete_with(common::key(key), durability)
                }
                9 => {
                    let other = world.below(keys);
                    let mut batch = database.batch();
                    after.insert(key, (next, length));
                    batch.put(&keyspace, common::key(key), bytes(length));
                    after.insert(other, (next, 100));
                    batch.put(&keyspace, common::key(other), bytes(100));
                    database.write_with(&batch, durability)
                }
                10 => {
                    is_clear = true;
                    after.clear();
                    keyspace.clear()
                }
                11 => {
                    // All at once and durable, or nothing.
                    let mut taken: Vec<_> = (0..keys).filter(|_| world.below(3) == 0).collect();
                    taken.sort_by_key(|&key| common::key(key));
                    for &key in &taken {
                        after.insert(key, (next, length));
                    }
                    let records = taken.iter().map(|&key| (common::key(key), bytes(length)));
                    let done = keyspace.ingest(records).map(drop);
                    is_ingest = done.is_ok() && !taken.is_empty();
                    done
                }
                12 => {
                    let begun = keyspace.begin_ingest();
                    begun.and_then(|mut ingest| ingest.add("dropped", bytes(length)))
                }
                _ => database.checkpoint(),
            };
            moments.push((after, is_ingest || is_synced && !is_clear));
            if done.is_err() || !world.disk.is_alive() {
                break;
            }
            acknowledged = moments.len() - 1;
        }
        world.disarm();
        let is_power = how == 1 || (how == 0 && world.below(2) == 0);
        drop(keyspace);
        match (how, is_power) {
            (3, _) => {
                database.close().unwrap();
                drop(database);
            }
            (_, true) => {
                let mode = CrashMode::ALL[world.below(CrashMode::ALL.len() as u64) as usize];
                world.cut_power(database, mode);
            }
            _ => world.kill(database),
        }
        let options_of_verify = Default::default();
        let (env, disk) = (world.env.clone(), world.disk.handle());
        let report = terrapin::verify::verify_on(env, disk, &options_of_verify).unwrap();
        // A power cut may tear the slot that is being written.
        let is_torn = |place: &str| is_power && place.starts_with("superblock slot");
        let sound = report.findings.iter().all(|found| is_torn(&found.place));
        assert!(sound, "{:#?}", report.findings);
        let database = world.open(&options());
        let found = read(&database.keyspace("values").unwrap(), keys);
        let least = match is_power {
            true => {
                let synced = moments[..=acknowledged]
                    .iter()
                    .rposition(|(_, is_synced)| *is_synced);
                synced.unwrap_or(0)
            }
            false => acknowledged,
        };
        let is_known = moments[least..].iter().any(|(moment, _)| *moment == found);
        assert!(
            is_known,
            "seed {seed}, life {life}: {found:?} is no moment from {least} on"
        );
        content = found;
        world.kill(database);
    }
    let database = world.open(&options());
    assert_eq!(read(&database.keyspace("values").unwrap(), keys), content);
    database.close().unwrap();
    world.verify();
}

#[test]
fn deaths_at_any_call_lose_no_large_value() {
    for seed in 0..80 {
        run(seed);
    }
}
