//! Deadlines that ranges show, and the space of expired records, in every structure.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{World, key, tiny, value};
use terrapin::{Database, Keyspace, KeyspaceOptions, Lifetime, Range, StructureKind};

const STRUCTURES: [StructureKind; 4] = [
    StructureKind::Leveled,
    StructureKind::Tiered,
    StructureKind::InPlace,
    StructureKind::Hashed,
];

const SECOND_NS: u64 = 1_000_000_000;

fn keyspace(database: &Database, name: &str, structure: StructureKind) -> Keyspace {
    let options = KeyspaceOptions::new()
        .structure(structure)
        .merge_operator("append");
    database.create_keyspace(name, options).unwrap()
}

type Shown = Vec<(Vec<u8>, Vec<u8>, Option<SystemTime>)>;

fn forward(mut range: Range) -> Shown {
    let mut out = Shown::new();
    while let Some((key, value, deadline)) = range.next_with_deadline().unwrap() {
        out.push((key.to_vec(), value.to_vec(), deadline));
    }
    out
}

/// From the back, in the order of keys.
fn backward(mut range: Range) -> Shown {
    let mut out = Shown::new();
    while let Some((key, value, deadline)) = range.next_back_with_deadline().unwrap() {
        out.push((key.to_vec(), value.to_vec(), deadline));
    }
    out.reverse();
    out
}

/// The front shows every other record, and the back the rest.
fn from_both_ends(mut range: Range) -> Shown {
    let (mut first, mut last) = (Shown::new(), Shown::new());
    let owned =
        |(key, value, deadline): (&[u8], &[u8], _)| (key.to_vec(), value.to_vec(), deadline);
    while let Some(record) = range.next_with_deadline().unwrap() {
        first.push(owned(record));
        last.extend(range.next_back_with_deadline().unwrap().map(owned));
    }
    last.reverse();
    first.extend(last);
    first
}

#[test]
fn ranges_show_the_deadline_of_each_record_wherever_it_is() {
    for structure in STRUCTURES {
        let world = World::new(3);
        let database = world.open(&tiny());
        let keyspace = keyspace(&database, "k", structure);
        let now = UNIX_EPOCH + Duration::from_millis(world.env.wall_ms());
        let mut expected: BTreeMap<Vec<u8>, (Vec<u8>, Option<SystemTime>)> = BTreeMap::new();
        let held = database.snapshot().unwrap();
        // The tree, what waits in it, the sealed and the active memtable; long and short values.
        for (round, numbers) in [0..400u64, 300..500, 100..350, 450..520]
            .into_iter()
            .enumerate()
        {
            for number in numbers {
                let (key, value) = (key(number), value(number, 8 + (number as usize * 7) % 300));
                let deadline = now + Duration::from_secs(1000 + number);
                match (number + round as u64) % 5 {
                    0 | 1 => {
                        keyspace.put_expiring(&key, &value, deadline).unwrap();
                        expected.insert(key, (value, Some(deadline)));
                    }
                    2 => {
                        keyspace.put(&key, &value).unwrap();
                        expected.insert(key, (value, None));
                    }
                    // The deadline of a base stays: `Keyspace::ttl` says so, too.
                    3 => {
                        keyspace.merge(&key, "+").unwrap();
                        expected.entry(key).or_default().0.push(b'+');
                    }
                    _ => {
                        keyspace.delete(&key).unwrap();
                        expected.remove(&key);
                    }
                }
            }
            if round < 2 {
                database.checkpoint().unwrap();
            }
        }
        let records = expected.iter();
        let expected: Shown = records
            .map(|(key, (value, deadline))| (key.clone(), value.clone(), *deadline))
            .collect();
        if structure == StructureKind::Hashed {
            for merged in [false, true] {
                if merged {
                    database.checkpoint().unwrap();
                }
                let mut records = keyspace.unordered();
                let mut shown = Shown::new();
                while let Some((key, value, deadline)) = records.next_with_deadline().unwrap() {
                    shown.push((key.to_vec(), value.to_vec(), deadline));
                }
                shown.sort();
                assert_eq!(shown, expected);
            }
        } else {
            let snapshot = database.snapshot().unwrap();
            for merged in [false, true] {
                if merged {
                    // The snapshot gets runs in place of its memtables.
                    world.sim.advance_ns(2 * SECOND_NS);
                    database.checkpoint().unwrap();
                    world.sim.settle();
                }
                for of_snapshot in [false, true] {
                    let range = || match of_snapshot {
                        false => keyspace.iter(),
                        true => snapshot.iter(&keyspace),
                    };
                    assert_eq!(forward(range()), expected);
                    assert_eq!(backward(range()), expected);
                    assert_eq!(from_both_ends(range()), expected);
                    assert_eq!(forward(range().limit(7)), expected[..7]);
                }
                // A chunk that was lent and then copied keeps its deadlines.
                let mut range = keyspace.iter();
                range.next_ref().unwrap();
                range.next().unwrap().unwrap();
                assert_eq!(forward(range), expected[2..]);
            }
            assert!(held.iter(&keyspace).next().is_none());
        }
        for (key, _, deadline) in &expected {
            let lifetime = keyspace.ttl(key).unwrap();
            assert_eq!(deadline.is_some(), matches!(lifetime, Lifetime::Left(_)));
        }
        drop((keyspace, held));
        database.close().unwrap();
        world.verify();
    }
}

fn space(database: &Database, name: &str) -> u64 {
    let stat = database.stat().unwrap();
    let stat = stat.keyspaces.iter().find(|stat| stat.name == name);
    stat.unwrap().tree.parts.total()
}

#[test]
fn the_space_of_expired_records_comes_back_without_writes() {
    for structure in STRUCTURES {
        // A deadline just behind the beginning of a counter's time (`Deadlines`), and another one.
        for (records, bytes, ttl) in [(20, 40, 100), (6_000, 100, 100), (6_000, 100, 260)] {
            let world = World::new(9);
            let database = world.open(&roomy());
            let both = keyspace(&database, "both", structure);
            let lasting = keyspace(&database, "lasting", structure);
            for number in 0..records {
                let (key, value) = (key(number), value(number, bytes));
                match number % 2 {
                    0 => {
                        both.put(&key, &value).unwrap();
                        lasting.put(&key, &value).unwrap();
                    }
                    _ => both
                        .put_with_ttl(&key, &value, Duration::from_secs(ttl))
                        .unwrap(),
                }
            }
            database.checkpoint().unwrap();
            let expired = || {
                let stat = database.stat().unwrap();
                let both = stat.keyspaces.iter().find(|stat| stat.name == "both");
                both.unwrap().expired_permille
            };
            assert_eq!((expired(), database.metrics().expiry_compactions), (0, 0));
            // A minute after the deadlines.
            world.sim.advance_ns((ttl + 1) * SECOND_NS);
            assert!(expired() >= 400, "{structure:?}: {}", expired());
            for _ in 0..59 {
                world.sim.advance_ns(SECOND_NS);
                world.sim.settle();
            }
            assert!(expired() < 50);
            assert!(database.metrics().expiry_compactions > 0);
            let (count, live) = (
                both.approximate_count().unwrap(),
                lasting.approximate_count().unwrap(),
            );
            assert!(
                count <= live + live / 20,
                "{structure:?}: {count} of {live} records"
            );
            let (taken, least) = (space(&database, "both"), space(&database, "lasting"));
            assert!(
                records < 100 || taken * 100 <= least * 115,
                "{structure:?}: {taken} bytes, {least} without those that expired"
            );
            assert_eq!(both.unordered().count() as u64, records / 2);
            drop((both, lasting));
            database.close().unwrap();
            world.verify();
        }
    }
}

/// The options of stores in which ends of pages are a small part of them.
fn roomy() -> terrapin::Options {
    tiny()
        .group_bytes(32 << 10)
        .memory(16 << 20)
        .log_bytes_max(4 << 20)
}

/// A quarter has to expire for a compaction while more expires. Where no more does, a twentieth is
/// enough.
#[test]
fn little_that_expired_goes_once_no_more_expires() {
    for structure in STRUCTURES {
        let world = World::new(5);
        let database = world.open(&roomy());
        let keyspace = keyspace(&database, "k", structure);
        for number in 0..6_000 {
            let (key, value) = (key(number), value(number, 100));
            match number % 8 {
                0 => keyspace
                    .put_with_ttl(&key, &value, Duration::from_secs(100))
                    .unwrap(),
                _ => keyspace.put(&key, &value).unwrap(),
            }
        }
        database.checkpoint().unwrap();
        let taken = space(&database, "k");
        for _ in 0..160 {
            world.sim.advance_ns(SECOND_NS);
            world.sim.settle();
        }
        let count = keyspace.approximate_count().unwrap();
        assert!(count <= 5250 + 260, "{structure:?}: {count} records");
        let left = space(&database, "k");
        assert!(left * 100 <= taken * 95, "{structure:?}: {left} of {taken}");
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}

/// An idle database writes a few bytes for each byte that expires, whatever the times of deadlines.
#[test]
fn compactions_of_what_expires_write_few_bytes_for_each() {
    for structure in STRUCTURES {
        let world = World::new(6);
        let database = world.open(&roomy());
        let keyspace = keyspace(&database, "k", structure);
        for number in 0..6_000u64 {
            // Evenly over 1,000 seconds, for half of the records, and never.
            let (key, value) = (key(number), value(number, 100));
            match number % 2 {
                0 => {
                    let ttl = Duration::from_secs(100 + number * 7919 % 1000);
                    keyspace.put_with_ttl(&key, &value, ttl).unwrap();
                }
                _ => keyspace.put(&key, &value).unwrap(),
            }
        }
        database.checkpoint().unwrap();
        let written = || database.metrics().device_written.total();
        let before = written();
        for _ in 0..1200 {
            world.sim.advance_ns(SECOND_NS);
            world.sim.settle();
        }
        let expired_bytes = 3000 * 115;
        let wrote = (written() - before) / expired_bytes;
        assert!(wrote <= 20, "{structure:?}: {wrote} for each byte");
        let times = database.metrics().expiry_compactions;
        assert!(times <= 12, "{structure:?}: {times} compactions");
        let count = keyspace.approximate_count().unwrap();
        assert!(count <= 3000 + 150, "{structure:?}: {count} records");
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}
