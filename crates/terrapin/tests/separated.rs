//! Keyspaces that keep long values out of their tree.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{
    CheckpointDistance, Database, ErrorKind, Keyspace, KeyspaceOptions, Options, SpaceAmplification,
};

type Truth = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(16 << 10)
        .background_threads(1)
}

fn value(seed: u64, bytes: usize) -> Vec<u8> {
    common::value(seed, bytes)
}

/// Gets, ranges both ways and `multi_get` agree with the truth.
fn check(keyspace: &Keyspace, truth: &Truth) {
    for (key, value) in truth {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]));
        assert!(keyspace.contains(key).unwrap());
    }
    let all: Vec<_> = keyspace.iter().map(|r| r.unwrap()).collect();
    assert_eq!(all.len(), truth.len());
    for ((key, value), (own_key, own_value)) in all.iter().zip(truth) {
        assert_eq!((&key[..], &value[..]), (&own_key[..], &own_value[..]));
    }
    let backward = keyspace.iter().rev().map(|r| r.unwrap());
    for ((key, value), (own_key, own_value)) in backward.zip(truth.iter().rev()) {
        assert_eq!((&key[..], &value[..]), (&own_key[..], &own_value[..]));
    }
    let keys: Vec<_> = truth.keys().step_by(7).collect();
    let got = keyspace.multi_get(&keys).unwrap();
    for (key, value) in keys.iter().zip(got) {
        assert_eq!(value.as_deref(), Some(&truth[*key][..]));
    }
}

/// The number of records of a range, all of them read without an error.
fn count<T>(range: impl Iterator<Item = terrapin::Result<T>>) -> usize {
    range.fold(0, |count, record| record.map(|_| count + 1).unwrap())
}

fn separated(threshold: u32) -> KeyspaceOptions {
    KeyspaceOptions::new().separate_from(threshold)
}

#[test]
fn separated_values_are_read_overwritten_deleted_and_survive_a_reopen() {
    let world = World::new(51);
    let mut truth = Truth::new();
    let database = world.open(&options());
    database.create_keyspace("values", separated(512)).unwrap();
    database.close().unwrap();
    for round in 0..6u64 {
        let database = world.open(&options());
        let keyspace = database.keyspace("values").unwrap();
        {
            for i in (round % 3..600).step_by(3) {
                let key = common::key(i);
                let value = value(
                    i * 31 + round,
                    (i as usize * 13 + round as usize * 401) % 1500,
                );
                keyspace.put(&key, &value).unwrap();
                truth.insert(key.to_vec(), value);
            }
            for i in (round..600).step_by(11) {
                keyspace.delete(common::key(i)).unwrap();
                truth.remove(&common::key(i)[..]);
            }
            database.checkpoint().unwrap();
            check(&keyspace, &truth);
        }
        database.close().unwrap();
        world.verify();
    }
    let database = world.open(&options());
    let keyspace = database.keyspace("values").unwrap();
    check(&keyspace, &truth);
    let stat = database.stat().unwrap();
    let tree = &stat
        .keyspaces
        .iter()
        .find(|k| k.name == "values")
        .unwrap()
        .tree;
    assert!(tree.figure("value_parts").unwrap() > 0, "{tree:?}");
    keyspace.clear().unwrap();
    database.checkpoint().unwrap();
    assert_eq!(keyspace.iter().count(), 0);
    database.close().unwrap();
    world.verify();
}

#[test]
fn overwriting_keeps_to_the_space_and_a_snapshot_keeps_its_values() {
    let world = World::new(52);
    let database = world.open(&options());
    let keyspace = database.create_keyspace("values", separated(512)).unwrap();
    let mut truth = Truth::new();
    for i in 0..800u64 {
        let value = value(i, 2000);
        keyspace.put(common::key(i), &value).unwrap();
        truth.insert(common::key(i).to_vec(), value);
    }
    database.checkpoint().unwrap();
    let snapshot = database.snapshot().unwrap();
    let before = truth.clone();
    for round in 1..40u64 {
        for i in (round % 7..800).step_by(7) {
            let value = value(i + round * 10_000, 2000);
            keyspace.put(common::key(i), &value).unwrap();
            truth.insert(common::key(i).to_vec(), value);
        }
        database.checkpoint().unwrap();
    }
    for (key, value) in &before {
        assert_eq!(
            snapshot.get(&keyspace, key).unwrap().as_deref(),
            Some(&value[..])
        );
    }
    drop(snapshot);
    check(&keyspace, &truth);
    database.checkpoint().unwrap();
    let live: usize = truth
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let stat = database.stat().unwrap();
    let tree = &stat
        .keyspaces
        .iter()
        .find(|k| k.name == "values")
        .unwrap()
        .tree;
    let used = tree.page_bytes as f64 / live as f64;
    assert!(used < 1.5, "{used}: {tree:?}");
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_threshold_changes_at_any_time() {
    let world = World::new(53);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    let mut truth = Truth::new();
    for (round, threshold) in [None, Some(0), Some(1024), None, Some(512)]
        .into_iter()
        .enumerate()
    {
        let options = keyspace.options().unwrap().separate_from(threshold);
        keyspace.set_options(options).unwrap();
        for i in (round as u64..400).step_by(2) {
            let value = value(i + 1000 * round as u64, (i as usize * 7) % 1600);
            keyspace.put(common::key(i), &value).unwrap();
            truth.insert(common::key(i).to_vec(), value);
        }
        database.checkpoint().unwrap();
        check(&keyspace, &truth);
    }
    for i in 0..400 {
        keyspace.delete(common::key(i)).unwrap();
    }
    for _ in 0..4 {
        database.checkpoint().unwrap();
    }
    assert_eq!(keyspace.iter().count(), 0);
    database.close().unwrap();
    world.verify();
}

#[test]
fn operands_apply_to_separated_values() {
    let world = World::new(54);
    let database = world.open(&options());
    let append = separated(512).merge_operator("append");
    let keyspace = database.create_keyspace("lists", append).unwrap();
    let mut truth = Truth::new();
    for round in 0..5u64 {
        for i in 0..150u64 {
            let more = value(i + round, 40 + (i as usize % 5) * 200);
            keyspace.merge(common::key(i), &more).unwrap();
            truth
                .entry(common::key(i).to_vec())
                .or_default()
                .extend(more);
        }
        if round == 2 {
            for i in (0..150).step_by(3) {
                let value = value(i, 900);
                keyspace.put(common::key(i), &value).unwrap();
                truth.insert(common::key(i).to_vec(), value);
            }
        }
        check(&keyspace, &truth);
        database.checkpoint().unwrap();
        check(&keyspace, &truth);
    }
    database.close().unwrap();
    world.verify();
}

/// The first merge that separates values also erases: the input that it hands to the tree names the
/// erased ranges.
#[test]
fn the_first_separated_values_leave_erased_records_erased() {
    let world = World::new(56);
    let database = world.open(&options());
    let keyspace = database
        .create_keyspace("values", KeyspaceOptions::new())
        .unwrap();
    for i in 0..3000u64 {
        keyspace.put(common::key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    keyspace.set_options(separated(512)).unwrap();
    keyspace.delete_range(..).unwrap();
    keyspace.put(common::key(7), value(7, 2000)).unwrap();
    database.checkpoint().unwrap();
    check(
        &keyspace,
        &Truth::from([(common::key(7).to_vec(), value(7, 2000))]),
    );
    database.close().unwrap();
    world.verify();
}

/// A keyspace of 600 records whose values of 2,000 bytes are separated.
fn loaded(world: &World) -> (Database, Keyspace, Truth) {
    let database = world.open(&options());
    let keyspace = database.create_keyspace("values", separated(512)).unwrap();
    let mut truth = Truth::new();
    for i in 0..600u64 {
        let value = value(i, 2000);
        keyspace.put(common::key(i), &value).unwrap();
        truth.insert(common::key(i).to_vec(), value);
    }
    database.checkpoint().unwrap();
    // Blocks and tables are cached from here on; values are not.
    assert_eq!(count(keyspace.iter()), 600);
    (database, keyspace, truth)
}

/// Reads for gets, and reads for scans, that a call does.
fn reads_of(database: &Database, call: impl FnOnce()) -> (u64, u64) {
    let counts = || database.metrics().device_reads;
    let before = counts();
    call();
    let after = counts();
    (
        after.get_reads - before.get_reads,
        after.scan_reads - before.scan_reads,
    )
}

#[test]
fn keys_only_ranges_and_contains_read_no_value() {
    let world = World::new(57);
    let (database, keyspace, truth) = loaded(&world);
    let reads = reads_of(&database, || {
        let keys: Vec<_> = keyspace.iter().keys().map(|key| key.unwrap()).collect();
        assert!(keys.iter().map(|key| &key[..]).eq(truth.keys()));
        let back = keyspace.iter().keys().rev().map(|key| key.unwrap());
        assert!(back.map(|key| key.to_vec()).eq(truth.keys().rev().cloned()));
        for key in truth.keys() {
            assert!(keyspace.contains(key).unwrap());
        }
    });
    assert_eq!(reads, (0, 0));
    database.close().unwrap();
}

/// Neighbours share a read: a chunk of a range has 64 KiB of values.
#[test]
fn ranges_and_multi_get_read_neighbouring_values_together() {
    let world = World::new(58);
    let (database, keyspace, truth) = loaded(&world);
    let (gets, scans) = reads_of(&database, || {
        assert_eq!(count(keyspace.iter()), 600);
    });
    assert!(gets == 0 && scans <= 40, "{gets} {scans}");
    let (gets, scans) = reads_of(&database, || {
        assert_eq!(count(keyspace.iter().rev()), 600);
    });
    assert!(gets == 0 && scans <= 40, "{gets} {scans}");
    let keys: Vec<_> = truth.keys().skip(100).take(50).collect();
    let (gets, scans) = reads_of(&database, || {
        for (key, value) in keys.iter().zip(keyspace.multi_get(&keys).unwrap()) {
            assert_eq!(value.as_deref(), Some(&truth[*key][..]));
        }
    });
    assert!(scans == 0 && gets <= 4, "{gets} {scans}");
    database.close().unwrap();
}

#[test]
fn ranges_merge_separated_values_with_memtables_and_operands() {
    let world = World::new(59);
    let database = world.open(&options());
    let append = separated(512).merge_operator("append");
    let keyspace = database.create_keyspace("values", append).unwrap();
    let mut truth = Truth::new();
    for i in 0..400u64 {
        let value = value(i, (i as usize * 37) % 2400);
        keyspace.put(common::key(i), &value).unwrap();
        truth.insert(common::key(i).to_vec(), value);
    }
    database.checkpoint().unwrap();
    for i in (0..400u64).step_by(3) {
        let key = common::key(i);
        match i % 4 {
            0 => {
                keyspace.merge(&key, b"more").unwrap();
                truth.get_mut(&key).unwrap().extend(b"more");
            }
            1 => {
                keyspace.delete(&key).unwrap();
                truth.remove(&key);
            }
            _ => {
                keyspace.put(&key, b"short").unwrap();
                truth.insert(key, b"short".to_vec());
            }
        }
    }
    check(&keyspace, &truth);
    // Both ends at once, and borrowed records.
    let mut range = keyspace.iter();
    let mut both = Truth::new();
    while let Some((key, value)) = range.next_ref().unwrap() {
        both.insert(key.to_vec(), value.to_vec());
        if let Some((key, value)) = range.next_back_ref().unwrap() {
            both.insert(key.to_vec(), value.to_vec());
        }
    }
    assert_eq!(both, truth);
    database.close().unwrap();
}

/// All records before a damaged value come before its error, from either end, and no record behind
/// it is lost.
#[test]
fn a_damaged_value_ends_a_range_where_it_is() {
    let world = World::new(60);
    let (database, keyspace, truth) = loaded(&world);
    let keys: Vec<_> = truth.keys().cloned().collect();
    let bad = 237;
    let pattern = &truth[&keys[bad]][..64];
    let content = world.disk.content("data").unwrap();
    let places = content.windows(64).enumerate();
    for (at, _) in places.filter(|(_, bytes)| *bytes == pattern) {
        assert!(world.disk.corrupt("data", at as u64 + 20, 0x40));
    }
    let mut forward = keyspace.iter();
    for key in &keys[..bad] {
        assert_eq!(&forward.next().unwrap().unwrap().0[..], &key[..]);
    }
    let error = forward.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(forward.next().is_none());
    let mut backward = keyspace.iter().rev();
    for key in keys[bad + 1..].iter().rev() {
        assert_eq!(&backward.next().unwrap().unwrap().0[..], &key[..]);
    }
    assert_eq!(
        backward.next().unwrap().unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // The front has fetched up to the damage, and the back does not step over it.
    let mut both = keyspace.iter();
    for key in &keys[..bad] {
        assert_eq!(&both.next().unwrap().unwrap().0[..], &key[..]);
    }
    for key in keys[bad + 1..].iter().rev() {
        assert_eq!(&both.next_back().unwrap().unwrap().0[..], &key[..]);
    }
    assert!(both.next_back().unwrap().is_err());
    // A new range begins behind the damage. Keys need no values.
    let behind = keyspace.iter().after(&keys[bad]);
    assert_eq!(count(behind), 599 - bad);
    assert_eq!(count(keyspace.iter().keys()), 600);
    let around: Vec<_> = keys[bad - 2..bad + 2].iter().collect();
    let error = keyspace.multi_get(&around).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    drop(database);
}

/// Overwriting stops while dead values take more than the accepted space. The engine collects them
/// after a second, and no call asks for it. It then rests.
#[test]
fn garbage_is_collected_while_nobody_writes() {
    let world = World::new(61);
    let database = world.open(&options());
    let loose = separated(512).space_amplification(SpaceAmplification::from(3.0));
    let keyspace = database.create_keyspace("values", loose).unwrap();
    let mut truth = Truth::new();
    // Two of three values of each page die.
    for round in 0..3u64 {
        for i in (round..500).step_by(if round == 0 { 1 } else { 3 }) {
            let value = value(i + round * 1000, 2000);
            keyspace.put(common::key(i), &value).unwrap();
            truth.insert(common::key(i).to_vec(), value);
        }
        database.checkpoint().unwrap();
    }
    let garbage = || {
        let stat = database.stat().unwrap();
        let mut keyspaces = stat.keyspaces.iter();
        let tree = &keyspaces.find(|k| k.name == "values").unwrap().tree;
        let figure = |name| tree.figure(name).unwrap() as f64;
        let dead = figure("dead_value_bytes");
        (dead - figure("punched_value_bytes")) / (figure("value_bytes") - dead)
    };
    assert!(garbage() > 0.5, "{}", garbage());
    // Less garbage is accepted from now on. One record tells the next checkpoint.
    keyspace
        .set_options(loose.space_amplification(SpaceAmplification::from(1.3)))
        .unwrap();
    keyspace.put("last", "short").unwrap();
    truth.insert(b"last".to_vec(), b"short".to_vec());
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    world.sim.settle();
    let before = garbage();
    assert!(before > 0.3, "{before}");
    let mut seconds = 0;
    while garbage() > 0.3 {
        seconds += 1;
        assert!(seconds < 20, "{} is left", garbage());
        world.sim.advance_ns(1_000_000_000);
        world.sim.settle();
    }
    let checkpoints = database.metrics().checkpoints;
    for _ in 0..10 {
        world.sim.advance_ns(1_000_000_000);
        world.sim.settle();
    }
    assert_eq!(database.metrics().checkpoints, checkpoints, "it rests");
    world.sim.set_breathing(true);
    check(&keyspace, &truth);
    database.close().unwrap();
    world.verify();
}

/// Overwrites all records twenty times and never pauses. Returns the most that the keyspace took in
/// the last half of it, for each byte of the records, and how many bytes of pages were written for
/// each byte that was put. A snapshot is held all the time.
fn overwritten(value_bytes: usize, accepted: f64, is_skewed: bool) -> (f64, f64) {
    let world = World::new(62);
    let options = options().checkpoint_distance(CheckpointDistance::Fixed(6));
    let database = world.open(&options);
    let bounded = separated(512).space_amplification(SpaceAmplification::from(accepted));
    let keyspace = database.create_keyspace("values", bounded).unwrap();
    let records = (2 << 20) / value_bytes as u64;
    let put = |i: u64, version: u64| {
        let value = value(i + version * records, value_bytes);
        keyspace.put(common::key(i), &value).unwrap();
    };
    (0..records).for_each(|i| put(i, 0));
    database.checkpoint().unwrap();
    let snapshot = database.snapshot().unwrap();
    let live = records * (8 + value_bytes as u64);
    let (mut most, mut written) = (0.0f64, 0);
    for number in 0..20 * records {
        let random = world.below(records);
        let i = match is_skewed {
            // Nine of ten puts go to a tenth of the records.
            true if world.below(10) > 0 => random / 10,
            _ => random,
        };
        put(i, number + 1);
        if number == 10 * records {
            written = database.metrics().device_written.total();
        }
        if number > 10 * records && number % (records / 50) == 0 {
            let stat = database.stat().unwrap();
            let mut keyspaces = stat.keyspaces.iter();
            let tree = &keyspaces.find(|k| k.name == "values").unwrap().tree;
            most = most.max(tree.page_bytes as f64 / live as f64);
        }
    }
    written = database.metrics().device_written.total() - written;
    assert_eq!(count(snapshot.iter(&keyspace)), records as usize);
    drop(snapshot);
    assert_eq!(count(keyspace.iter()), records as usize);
    database.close().unwrap();
    world.verify();
    (most, written as f64 / (10 * live) as f64)
}

/// The asked space holds within 0.05 while a writer never pauses, and collecting stays cheap.
#[test]
fn the_asked_space_holds_while_a_writer_never_pauses() {
    for (value_bytes, accepted, is_skewed, writes) in [
        (1 << 10, 1.3, false, 5.2),
        (4 << 10, 1.2, true, 3.6),
        (4 << 10, 1.3, false, 3.2),
    ] {
        let (space, written) = overwritten(value_bytes, accepted, is_skewed);
        assert!(
            space <= accepted + 0.05 && written <= writes,
            "{value_bytes} {accepted} {is_skewed}: {space:.3} and {written:.2}"
        );
    }
}
