//! Batches that write a key twice. The later operation wins, and a view sees all of a batch or
//! nothing, wherever the batch is: in a memtable, after a replay, in a tree, in a slice of a full
//! disk, in the run of a held view.

mod common;

use common::{LEVELS, Map, World, all, key, tiny};
use terrapin::{Batch, Database, Durability, Keyspace, Snapshot};

const KEYS: u64 = 200;
/// What the two operations on a key write; `None` is a delete.
const PAIRS: [[Option<&str>; 2]; 4] = [
    [Some("first"), Some("last")],
    [Some("first"), None],
    [None, Some("last")],
    [None, None],
];

/// A batch of two operations on each key. Of half of the keys, all other operations lie between.
fn twice(database: &Database, keyspace: &Keyspace) -> Batch {
    let mut batch = database.batch();
    let mut add = |number: u64, operation: usize| {
        let key = key(number);
        match PAIRS[number as usize % PAIRS.len()][operation] {
            Some(value) => batch.put(keyspace, key, value),
            None => batch.delete(keyspace, key),
        }
    };
    for number in 0..KEYS / 2 {
        add(number, 0);
    }
    for number in KEYS / 2..KEYS {
        add(number, 0);
        add(number, 1);
    }
    for number in 0..KEYS / 2 {
        add(number, 1);
    }
    batch
}

/// What the records are after such a batch.
fn after(mut records: Map) -> Map {
    for number in 0..KEYS {
        let key = key(number);
        match PAIRS[number as usize % PAIRS.len()][1] {
            Some(value) => drop(records.insert(key, value.into())),
            None => drop(records.remove(&key)),
        }
    }
    records
}

/// Puts every third key, so that a third of what the batch writes is there before.
fn fill(keyspace: &Keyspace, count: u64) -> Map {
    for number in (0..count).step_by(3) {
        keyspace.put(key(number), [b'.'; 100]).unwrap();
    }
    all(keyspace)
}

fn check(keyspace: &Keyspace, records: &Map) {
    assert_eq!(all(keyspace), *records);
    for number in 0..KEYS {
        let key = key(number);
        let value = keyspace.get(&key).unwrap();
        assert_eq!(value.as_deref(), records.get(&key).map(|v| &v[..]));
    }
}

fn check_snapshot(snapshot: &Snapshot, keyspace: &Keyspace, records: &Map) {
    let found: Map = snapshot
        .iter(keyspace)
        .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
        .collect();
    assert_eq!(found, *records);
    for number in 0..KEYS {
        let key = key(number);
        let value = snapshot.get(keyspace, &key).unwrap();
        assert_eq!(value.as_deref(), records.get(&key).map(|v| &v[..]));
    }
}

#[test]
fn the_later_of_two_operations_of_a_batch_wins_in_every_view() {
    for durability in LEVELS {
        // With a checkpoint between, the older records are in the tree.
        for merged in [false, true] {
            let world = World::new(1);
            let database = world.open(&tiny().memory(8 << 20));
            let keyspace = database.default_keyspace();
            let before = fill(&keyspace, 1000);
            if merged {
                database.checkpoint().unwrap();
            }
            let old = database.snapshot().unwrap();
            database
                .write_with(twice(&database, &keyspace), durability)
                .unwrap();
            let new = database.snapshot().unwrap();
            let between = after(before.clone());
            check(&keyspace, &between);
            // Later writes hide the batch from all but the new snapshot.
            for number in 0..KEYS {
                keyspace.put(key(number), "later").unwrap();
            }
            let last = all(&keyspace);
            let views = || {
                check_snapshot(&old, &keyspace, &before);
                check_snapshot(&new, &keyspace, &between);
                check(&keyspace, &last);
            };
            views();
            database.checkpoint().unwrap();
            views();
            // The snapshots are old enough for runs.
            world.sim.advance_ns(2_000_000_000);
            world.sim.settle();
            views();
            drop((old, new, keyspace));
            database.close().unwrap();
            world.verify();
        }
    }
}

#[test]
fn the_later_of_two_operations_of_a_batch_wins_after_a_replay() {
    for durability in [Durability::Process, Durability::Sync] {
        let world = World::new(2);
        let database = world.open(&tiny().memory(8 << 20));
        let keyspace = database.default_keyspace();
        let before = fill(&keyspace, 1000);
        let batch = twice(&database, &keyspace);
        database.write_with(&batch, durability).unwrap();
        drop((keyspace, batch));
        let expected = after(before);
        world.kill(database);
        let database = world.open(&tiny().memory(8 << 20));
        check(&database.default_keyspace(), &expected);
        database.checkpoint().unwrap();
        check(&database.default_keyspace(), &expected);
        world.kill(database);
        let database = world.open(&tiny());
        check(&database.default_keyspace(), &expected);
        database.close().unwrap();
        world.verify();
    }
}

#[test]
fn the_later_of_two_operations_of_a_batch_wins_in_slices_of_a_full_disk() {
    let mut sliced = 0;
    for call in (1..).step_by(5) {
        let world = World::new(3);
        let options = tiny().group_bytes(16 << 10);
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        fill(&keyspace, 3000);
        database.checkpoint().unwrap();
        // These make the memtable larger than one slice.
        let before = fill(&keyspace, 1200);
        let old = database.snapshot().unwrap();
        database.write(twice(&database, &keyspace)).unwrap();
        let expected = after(before.clone());
        let checkpoints = database.metrics().checkpoints;
        world.disk.set_capacity(world.disk.used_bytes());
        world.disk.die_at_call(call);
        let _ = database.checkpoint();
        let died = !world.disk.is_alive();
        world.disarm();
        if !died {
            sliced = database.metrics().checkpoints - checkpoints;
            check(&keyspace, &expected);
            check_snapshot(&old, &keyspace, &before);
        }
        drop((old, keyspace));
        world.kill(database);
        world.disk.set_capacity(u64::MAX);
        let database = world.open(&options);
        check(&database.default_keyspace(), &expected);
        database.checkpoint().unwrap();
        check(&database.default_keyspace(), &expected);
        database.close().unwrap();
        world.verify();
        if !died {
            break;
        }
    }
    assert!(sliced > 1, "{sliced} checkpoints");
}
