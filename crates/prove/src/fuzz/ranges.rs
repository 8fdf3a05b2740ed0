//! The target of range deletes: a store and a map take the same operations, and must agree.

use std::collections::BTreeMap;

use terrapin::{Database, Keyspace, KeyspaceOptions, Snapshot, StructureKind};
use terrapin_disk::SimDisk;

use super::exercise::{World, tiny};

/// Most operations of an input.
const OPERATIONS_MAX: usize = 400;
/// Bytes of an operation: its kind, two keys, and a length.
pub const OPERATION_BYTES: usize = 4;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key of one or two letters, so that some keys are prefixes of others.
fn key(byte: u8) -> Vec<u8> {
    let letters = [b'a' + (byte >> 4), b'a' + (byte & 15)];
    letters[..if byte & 15 == 0 { 1 } else { 2 }].to_vec()
}

fn ok<T>(done: terrapin::Result<T>) -> T {
    done.unwrap_or_else(|error| panic!("an operation fails: {error}"))
}

fn all(range: terrapin::Range) -> Map {
    let owned = range.map(|record| record.map(|(k, v)| (k.to_vec(), v.to_vec())));
    ok(owned.collect())
}

fn compare(keyspace: &Keyspace, truth: &Map, snapshots: &[(Snapshot, Map)]) {
    assert_eq!(all(keyspace.iter()), *truth, "a range");
    let back: Map = ok(keyspace
        .iter()
        .rev()
        .map(|record| record.map(|(k, v)| (k.to_vec(), v.to_vec())))
        .collect());
    assert_eq!(back, *truth, "a range from the back");
    for byte in 0..=u8::MAX {
        let key = key(byte);
        let found = ok(keyspace.get(&key));
        let expected = truth.get(&key).map(Vec::as_slice);
        assert_eq!(found.as_deref(), expected, "a get");
    }
    for (snapshot, truth) in snapshots {
        assert_eq!(
            all(snapshot.iter(keyspace)),
            *truth,
            "a range of a snapshot"
        );
    }
}

/// Range deletes, deletes of prefixes, puts and deletes, beside checkpoints, snapshots and a kill.
/// Input: a structure, then the operations.
pub fn ranges(input: &[u8]) -> bool {
    let Some((&[_, structure], operations)) = input.split_first_chunk() else {
        return false;
    };
    let structure = match structure % 3 {
        0 => StructureKind::Leveled,
        1 => StructureKind::Tiered,
        _ => StructureKind::InPlace,
    };
    let world = World::new(SimDisk::new(1));
    let open = |world: &World| ok(tiny().open_on(world.env.clone(), world.disk.handle()));
    let database: Database = open(&world);
    let options = KeyspaceOptions::new().structure(structure);
    let keyspace = ok(database.create_keyspace("k", options));
    let mut truth = Map::new();
    let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
    for operation in operations
        .chunks_exact(OPERATION_BYTES)
        .take(OPERATIONS_MAX)
    {
        let &[kind, a, b, length] = operation else {
            break;
        };
        let (first, second) = (key(a), key(b));
        match kind % 8 {
            0 | 1 => {
                let value = vec![kind; usize::from(length)];
                ok(keyspace.put(&first, &value));
                truth.insert(first, value);
            }
            2 => {
                ok(keyspace.delete(&first));
                truth.remove(&first);
            }
            3 => {
                let (lo, hi) = (first.clone().min(second.clone()), first.max(second));
                ok(keyspace.delete_range(lo.clone()..hi.clone()));
                truth.retain(|key, _| *key < lo || *key >= hi);
            }
            4 => {
                ok(keyspace.delete_prefix(&first));
                truth.retain(|key, _| !key.starts_with(&first));
            }
            5 => ok(database.checkpoint()),
            6 => {
                if snapshots.len() == 2 {
                    snapshots.remove(0);
                }
                snapshots.push((ok(database.snapshot()), truth.clone()));
                // Snapshots older than a second get runs in the place of memtables.
                world.sim.advance_ns(u64::from(length) * 20_000_000);
                world.sim.settle();
            }
            _ => compare(&keyspace, &truth, &snapshots),
        }
    }
    compare(&keyspace, &truth, &snapshots);
    snapshots.clear();
    drop(keyspace);
    world.sim.kill();
    world.disk.crash_process();
    drop(database);
    world.sim.kill();
    let database = open(&world);
    compare(&ok(database.open_keyspace("k")), &truth, &[]);
    true
}
