//! Keyspaces that keep long values out of their tree.

mod common;

use std::collections::BTreeMap;

use common::World;
use terrapin::{Keyspace, KeyspaceOptions, Options};

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
