//! Hashed keyspaces: what they refuse, their keys, and walks over all of their records.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{World, tiny};
use terrapin::backup::{BackupOptions, restore_on};
use terrapin::salvage::salvage_on;
use terrapin::{
    Database, ErrorKind, KeyHash, Keyspace, KeyspaceOptions, Lifetime, MergeOperator, Outcome,
    Position, Requirement, StructureKind,
};
use terrapin_base::{Result, Slice};
use terrapin_disk::sim::SimDisk;

fn options() -> KeyspaceOptions {
    KeyspaceOptions::new().structure(StructureKind::Hashed)
}

fn hashed(database: &Database, name: &str) -> Keyspace {
    database.create_keyspace(name, options()).unwrap()
}

fn key(number: u32) -> String {
    format!("key/{number:08}")
}

fn all(keyspace: &Keyspace) -> BTreeMap<Slice, Slice> {
    let records: Vec<_> = keyspace.unordered().collect::<Result<_>>().unwrap();
    let map: BTreeMap<_, _> = records.iter().cloned().collect();
    assert_eq!(map.len(), records.len(), "a record came twice");
    map
}

#[test]
fn what_needs_order_is_refused_before_anything_is_logged() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    sessions.put("a", "1").unwrap();
    let refuses = |error: terrapin::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(
            text.contains("unordered") && text.contains("sessions"),
            "{text}"
        );
    };
    let before = database.metrics();
    refuses(sessions.first().unwrap_err());
    refuses(sessions.last().unwrap_err());
    refuses(sessions.iter().next().unwrap().unwrap_err());
    refuses(sessions.range("a".."b").next_back().unwrap().unwrap_err());
    refuses(sessions.prefix("a").keys().next().unwrap().unwrap_err());
    refuses(sessions.range("b".."a").next_ref().unwrap_err());
    refuses(sessions.approximate("a".."b").unwrap_err());
    refuses(sessions.pop_first().unwrap_err());
    refuses(sessions.pop_last().unwrap_err());
    refuses(sessions.delete_range("a"..).unwrap_err());
    refuses(sessions.delete_prefix("a").unwrap_err());
    let snapshot = database.snapshot().unwrap();
    refuses(snapshot.first(&sessions).unwrap_err());
    refuses(snapshot.iter(&sessions).next().unwrap().unwrap_err());
    refuses(snapshot.approximate(&sessions, "a"..).unwrap_err());
    let mut batch = database.batch();
    batch.put(&database.default_keyspace(), "x", "1");
    batch.delete_prefix(&sessions, "a");
    refuses(database.write(&batch).unwrap_err());
    assert_eq!(
        database.metrics().log_bytes_written,
        before.log_bytes_written
    );
    assert!(database.default_keyspace().is_empty().unwrap());
    assert_eq!(sessions.get("a").unwrap().unwrap(), "1");
    assert!(!sessions.is_empty().unwrap());
    assert_eq!(sessions.approximate_count().unwrap(), 1);
    database.close().unwrap();
}

#[test]
fn keys_and_values_come_back_from_memtables_trees_snapshots_and_replays() {
    let world = World::new(2);
    let mut database = world.open(&tiny());
    let mut sessions = hashed(&database, "sessions");
    let mut expected = BTreeMap::new();
    for number in 0..3_000 {
        sessions.put(key(number), number.to_string()).unwrap();
        expected.insert(Slice::copy(key(number).as_bytes()), number.to_string());
    }
    let snapshot = database.snapshot().unwrap();
    for number in (0..3_000).step_by(3) {
        sessions.delete(key(number)).unwrap();
        expected.remove(key(number).as_bytes());
    }
    assert_eq!(snapshot.unordered(&sessions).count(), 3_000);
    assert_eq!(snapshot.get(&sessions, key(3)).unwrap().unwrap(), "3");
    drop(snapshot);
    for life in 0..3 {
        match life {
            0 => {}
            1 => database.checkpoint().unwrap(),
            _ => {
                drop(sessions);
                database.close().unwrap();
                database = world.open(&tiny());
                sessions = database.open_keyspace("sessions").unwrap();
            }
        }
        let seen = all(&sessions);
        assert_eq!(seen.len(), expected.len());
        assert!(expected.iter().all(|(key, value)| seen[key] == *value));
        let keys: Vec<_> = (0..200).map(key).collect();
        let values = sessions.multi_get(&keys).unwrap();
        for (number, value) in (0..).zip(values) {
            assert_eq!(value.is_some(), number % 3 != 0, "{number}");
            assert_eq!(sessions.contains(key(number)).unwrap(), number % 3 != 0);
        }
    }
    database.close().unwrap();
}

/// More keys than are prefetched together, from the memtable, the record cache and the tree, of
/// both forms of keys. Values that a checkpoint has replaced or deleted do not come back.
#[test]
fn many_keys_at_once_are_found_as_one_by_one() {
    for structure in [StructureKind::Hashed, StructureKind::Leveled] {
        let world = World::new(3);
        let database = world.open(&tiny().record_cache(true));
        let options = KeyspaceOptions::new().structure(structure);
        let records = database.create_keyspace("records", options).unwrap();
        let keys: Vec<String> = (0..300).map(key).collect();
        let mut expected: Vec<Option<String>> = vec![None; keys.len()];
        for round in 0..4 {
            for (at, key) in keys.iter().enumerate() {
                // By turns: put, deleted, left alone.
                match (at + round) % 5 {
                    0 | 1 => {
                        let value = format!("{at} of round {round}");
                        records.put(key, &value).unwrap();
                        expected[at] = Some(value);
                    }
                    2 => {
                        records.delete(key).unwrap();
                        expected[at] = None;
                    }
                    _ => {}
                }
            }
            if round != 2 {
                database.checkpoint().unwrap();
            }
            // Once from wherever they are, then from the cache.
            for _ in 0..2 {
                let found = records.multi_get(&keys).unwrap();
                let found = found.iter().map(|value| value.as_deref());
                let found: Vec<_> = found.collect();
                let wanted: Vec<_> = expected
                    .iter()
                    .map(|v| v.as_ref().map(|v| v.as_bytes()))
                    .collect();
                assert_eq!(found, wanted, "round {round}");
            }
        }
        database.close().unwrap();
    }
}

#[test]
fn a_walk_goes_on_behind_a_position_across_writes_checkpoints_and_opens() {
    let world = World::new(3);
    let mut database = world.open(&tiny());
    let mut sessions = hashed(&database, "sessions");
    for number in 0..2_000 {
        sessions.put(key(number), "1").unwrap();
    }
    let mut seen = Vec::new();
    let mut position: Option<Position> = None;
    for stage in 0..20 {
        let mut walk = sessions.unordered();
        if let Some(position) = &position {
            let stored = Position::from_bytes(position.as_bytes());
            walk = walk.after(&stored);
        }
        for record in walk.by_ref().take(100) {
            seen.push(record.unwrap().0);
        }
        position = walk.position();
        drop(walk);
        // Records behind the position and before it change values only.
        for number in 0..50 {
            sessions.put(key(stage * 50 + number), "2").unwrap();
        }
        match stage % 4 {
            1 => database.checkpoint().unwrap(),
            3 => {
                drop(sessions);
                world.kill(database);
                database = world.open(&tiny());
                sessions = database.open_keyspace("sessions").unwrap();
            }
            _ => {}
        }
    }
    seen.sort();
    let expected: Vec<_> = (0..2_000).map(key).collect();
    assert_eq!(seen, expected);
    let other = hashed(&database, "other");
    other.put("a", "1").unwrap();
    let refused = other.unordered().after(&position.unwrap()).next();
    let error = refused.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    database.close().unwrap();
}

#[test]
fn the_longest_key_is_five_bytes_shorter() {
    let world = World::new(4);
    let large = tiny().ring_bytes(1 << 20).memory(8 << 20);
    let database = world.open(&large);
    let sessions = hashed(&database, "sessions");
    let longest = vec![b'k'; 65_530];
    for key in [&[][..], &longest] {
        sessions.put(key, "1").unwrap();
        assert_eq!(sessions.get(key).unwrap().unwrap(), "1");
    }
    let before = database.metrics().log_bytes_written;
    let longer = vec![b'k'; 65_531];
    let mut batch = database.batch();
    batch.put(&sessions, &longer, "1");
    let mut guarded = database.batch();
    guarded.require(&sessions, &longer, Requirement::Absent);
    for error in [
        sessions.put(&longer, "1").unwrap_err(),
        sessions.delete(&longer).unwrap_err(),
        sessions.insert_if_absent(&longer, "1").unwrap_err(),
        database.write(&batch).unwrap_err(),
        database.write(&guarded).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.to_string().contains("65530"), "{error}");
    }
    assert!(sessions.get(&longer).unwrap().is_none());
    assert_eq!(database.metrics().log_bytes_written, before);
    assert_eq!(all(&sessions).len(), 2);
    database.close().unwrap();
}

#[test]
fn conditions_name_the_users_key() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    sessions.put("a", "1").unwrap();
    let conflict = sessions
        .compare_and_swap("a", None, None)
        .unwrap()
        .unwrap_err();
    assert_eq!(&*conflict.key, b"a");
    let mut batch = database.batch();
    batch.require(&sessions, "a", Requirement::Absent);
    batch.put(&sessions, "b", "1");
    let error = database.write(&batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(sessions.get("b").unwrap().is_none());
    assert_eq!(sessions.take("a").unwrap().unwrap(), "1");
    assert!(sessions.insert_if_absent("a", "2").unwrap().is_none());
    let (value, version) = sessions.get_versioned("a").unwrap();
    assert_eq!(value.unwrap(), "2");
    let swapped = sessions.compare_version_and_swap("a", &version, Some(b"3"));
    assert!(swapped.unwrap().is_ok());
    let updated = sessions
        .update("a", |value| value.map(<[u8]>::to_vec))
        .unwrap();
    assert_eq!(updated.unwrap(), b"3");
    database.close().unwrap();
}

#[test]
fn transactions_read_and_write_keys_and_refuse_ranges() {
    let world = World::new(8);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    sessions.put("a", "1").unwrap();
    let mut transaction = database.transaction().unwrap();
    assert_eq!(transaction.get(&sessions, "a").unwrap().unwrap(), "1");
    assert!(!transaction.contains(&sessions, "b").unwrap());
    transaction.put(&sessions, "b", "2").unwrap();
    transaction.delete(&sessions, "a").unwrap();
    let values = transaction.multi_get(&sessions, &["a", "b"]).unwrap();
    assert!(values[0].is_none() && values[1].as_deref() == Some(b"2"));
    for refused in [
        transaction.first(&sessions).unwrap_err(),
        transaction.last(&sessions).unwrap_err(),
        transaction.delete_range(&sessions, "a"..).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
    transaction.commit().unwrap().unwrap();
    let transaction = {
        let mut other = database.transaction().unwrap();
        other.get_for_update(&sessions, "b").unwrap();
        other.put(&sessions, "c", "3").unwrap();
        other
    };
    sessions.put("b", "4").unwrap();
    let conflict = transaction.commit().unwrap().unwrap_err();
    assert_eq!(&*conflict.key, b"b");
    let keys: Vec<_> = all(&sessions).into_keys().collect();
    assert_eq!(keys, ["b"]);
    database.close().unwrap();
}

#[test]
fn salvage_gives_users_keys_back() {
    let world = World::new(11);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    for number in 0..600 {
        sessions.put(key(number), number.to_string()).unwrap();
        if number == 400 {
            database.checkpoint().unwrap();
        }
    }
    sessions.delete(key(1)).unwrap();
    let expected = all(&sessions);
    drop(sessions);
    database.close().unwrap();
    let other = World::new(12);
    let salvaged = other.open(&tiny());
    let old = world.disk.fork().handle();
    let report = salvage_on(&other.env, &old, &tiny(), &salvaged).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
    let sessions = salvaged.open_keyspace("sessions").unwrap();
    assert_eq!(sessions.options().unwrap().structure, StructureKind::Hashed);
    assert_eq!(all(&sessions), expected);
    salvaged.close().unwrap();
}

#[test]
fn equal_hashes_and_filters_are_no_trouble() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let chosen = options()
        .key_hash(KeyHash::identity_for_tests())
        .filter_bits(12);
    let equal = database.create_keyspace("equal", chosen).unwrap();
    // All keys have one prefix.
    for number in 0..3_000_u32 {
        equal
            .put(format!("same-prefix/{number}"), number.to_string())
            .unwrap();
        if number % 1_000 == 999 {
            database.checkpoint().unwrap();
        }
    }
    for number in 0..3_000_u32 {
        let value = equal.get(format!("same-prefix/{number}")).unwrap();
        assert_eq!(value.unwrap(), number.to_string());
        assert!(!equal.contains(format!("same-prefix/x{number}")).unwrap());
    }
    assert_eq!(all(&equal).len(), 3_000);
    database.close().unwrap();
}

#[test]
fn the_hash_outlives_clears_options_and_opens() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    let hash = sessions.options().unwrap().key_hash;
    assert!(hash.is_some());
    assert_ne!(hashed(&database, "other").options().unwrap().key_hash, hash);
    sessions.put("a", "1").unwrap();
    sessions.set_options(options().filter_bits(8)).unwrap();
    sessions.clear().unwrap();
    sessions.put("a", "2").unwrap();
    assert_eq!(sessions.options().unwrap().key_hash, hash);
    let refused = sessions.set_options(KeyspaceOptions::new()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let leveled = database.keyspace("leveled").unwrap();
    let refused = leveled.set_options(options()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    drop((sessions, leveled));
    database.close().unwrap();
    let database = world.open(&tiny());
    let sessions = database.open_keyspace("sessions").unwrap();
    assert_eq!(sessions.options().unwrap().key_hash, hash);
    assert_eq!(sessions.get("a").unwrap().unwrap(), "2");
    database.close().unwrap();
    world.verify();
}

#[test]
fn sorted_records_come_in_order_from_many_parts_and_leave_no_pages() {
    let world = World::new(10);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    for number in 0..4_000 {
        sessions.put(key(number), number.to_string()).unwrap();
    }
    let snapshot = database.snapshot().unwrap();
    sessions.delete(key(7)).unwrap();
    database.checkpoint().unwrap();
    let pages = || database.stat().unwrap().data_live_bytes;
    let before = pages();
    // 4,000 records of more than 100 bytes each: one part, and many.
    for memory_bytes in [16 << 20, 16 << 10] {
        let mut sorted = sessions.sorted(.., memory_bytes).unwrap();
        let mut wanted = (0..4_000).filter(|number| *number != 7);
        while let Some((found, value)) = sorted.next_ref().unwrap() {
            let number = wanted.next().unwrap();
            assert_eq!(found, key(number).as_bytes());
            assert_eq!(value, number.to_string().as_bytes());
        }
        assert!(wanted.next().is_none() && sorted.next_ref().unwrap().is_none());
        let part = sessions.sorted(key(5)..key(9), memory_bytes).unwrap();
        let part: Vec<_> = part.map(|record| record.unwrap().0).collect();
        assert_eq!(part, [key(5), key(6), key(8)]);
        let then = snapshot.sorted(&sessions, key(5)..key(9), memory_bytes);
        assert_eq!(then.unwrap().count(), 4);
        assert_eq!(sessions.sorted("x".., memory_bytes).unwrap().count(), 0);
    }
    drop(snapshot);
    database.checkpoint().unwrap();
    assert!(pages() <= before, "{} of {before}", pages());
    let open = sessions.sorted(.., 16 << 10).unwrap();
    database.close().unwrap();
    assert_eq!(
        open.map(|record| record.is_err()).collect::<Vec<_>>(),
        [true]
    );
}

/// Appends the key and the operand.
struct Keyed;

impl MergeOperator for Keyed {
    fn name(&self) -> &str {
        "keyed"
    }

    fn apply(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        out.extend_from_slice(existing.unwrap_or_default());
        out.extend_from_slice(key);
        out.extend_from_slice(operand);
        Ok(Outcome::Value)
    }
}

#[test]
fn operators_and_separated_values_see_keys_and_backups_and_readers_have_them() {
    let world = World::new(13);
    let with_operator = || tiny().merge_operator(Keyed);
    let database = world.open(&with_operator());
    let own = options().merge_operator("keyed").separate_from(512);
    let sessions = database.create_keyspace("sessions", own).unwrap();
    let mut expected = BTreeMap::new();
    for round in 0..4 {
        for number in (round..300).step_by(1 + round as usize) {
            let key = key(number);
            let old: &mut Vec<u8> = expected.entry(key.clone()).or_default();
            match number % 4 {
                0 => {
                    *old = vec![round as u8; 700];
                    sessions.put(&key, &*old).unwrap();
                }
                1 if round == 2 => {
                    sessions.delete(&key).unwrap();
                    expected.remove(&key);
                }
                _ => {
                    sessions.merge(&key, "+").unwrap();
                    old.extend_from_slice(key.as_bytes());
                    old.push(b'+');
                }
            }
        }
        if round < 3 {
            database.checkpoint().unwrap();
        }
    }
    let check = |database: &Database| {
        let sessions = database.open_keyspace("sessions").unwrap();
        let found = all(&sessions);
        assert_eq!(found.len(), expected.len());
        for (key, value) in &expected {
            assert_eq!(found[key.as_bytes()], value[..], "{key}");
            assert_eq!(sessions.get(key).unwrap().unwrap(), value[..]);
        }
        let refused = sessions.begin_ingest().err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    };
    check(&database);
    let target = SimDisk::new(14);
    database
        .backup_on(target.handle(), &BackupOptions::new().verify(true))
        .unwrap();
    let beside = with_operator().open_reader_on(world.env.clone(), world.disk.handle());
    let beside = beside.unwrap();
    sessions.clear().unwrap();
    database.checkpoint().unwrap();
    let seen = beside.open_keyspace("sessions").unwrap();
    assert_eq!(all(&seen).len(), expected.len());
    drop(seen);
    beside.close().unwrap();
    drop(sessions);
    database.close().unwrap();
    let other = World::new(15);
    restore_on(&target.handle(), &other.disk.handle()).unwrap();
    let restored = other.open(&with_operator());
    check(&restored);
    restored.close().unwrap();
    other.verify();
}

#[test]
fn deadlines_are_of_users_keys() {
    let world = World::new(16);
    let database = world.open(&tiny());
    let sessions = hashed(&database, "sessions");
    let hour = Duration::from_secs(3600);
    sessions.put_with_ttl("a", "1", hour).unwrap();
    sessions.put_with_ttl("b", "2", hour).unwrap();
    sessions.put("c", "3").unwrap();
    let mut batch = database.batch();
    batch.put_with_ttl(&sessions, "d", "4", hour);
    database.write(&batch).unwrap();
    let mut transaction = database.transaction().unwrap();
    transaction.put_with_ttl(&sessions, "e", "5", hour).unwrap();
    transaction.commit().unwrap().unwrap();
    for merged in [false, true] {
        if merged {
            database.checkpoint().unwrap();
        }
        for key in ["a", "b", "d", "e"] {
            let left = sessions.ttl(key).unwrap();
            assert!(
                matches!(left, Lifetime::Left(left) if left <= hour),
                "{key}"
            );
        }
        assert_eq!(sessions.ttl("c").unwrap(), Lifetime::Unlimited);
        assert_eq!(all(&sessions).len(), 5);
    }
    assert!(sessions.persist("a").unwrap() && sessions.touch("c", hour).unwrap());
    assert_eq!(sessions.ttl("a").unwrap(), Lifetime::Unlimited);
    world.sim.advance_ns(3601 * 1_000_000_000);
    for merged in [false, true] {
        if merged {
            database.checkpoint().unwrap();
        }
        let keys: Vec<_> = all(&sessions).into_keys().collect();
        assert_eq!(keys, ["a"]);
        assert_eq!(sessions.ttl("b").unwrap(), Lifetime::Absent);
        assert!(!sessions.contains("c").unwrap());
    }
    database.close().unwrap();
    world.verify();
}
