//! Keyspaces: created, listed, dropped and cleared, beside checkpoints, crashes and snapshots.

mod common;

use common::{World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Keyspace, KeyspaceOptions, Options};

#[test]
fn keyspaces_are_created_dropped_and_stay_dropped() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let first = database
        .create_keyspace("first", KeyspaceOptions::default())
        .unwrap();
    assert_eq!(
        database
            .create_keyspace("first", KeyspaceOptions::default())
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        database.open_keyspace("second").unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(
        database.drop_keyspace("second").unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(
        database.drop_keyspace("default").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    for bad in ["", "new\nline", &"x".repeat(256)] {
        assert_eq!(
            database.keyspace(bad).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
    for i in 0..200 {
        first.put(key(i), value(i, 100)).unwrap();
    }
    let snapshot = database.snapshot().unwrap();
    let old_id = first.id();
    database.drop_keyspace("first").unwrap();
    assert_eq!(
        first.put("a", "b").unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(
        first.get("a").unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(snapshot.iter(&first).count(), 200);
    let again = database.keyspace("first").unwrap();
    assert_ne!(again.id(), old_id, "numbers are never used again");
    assert!(all(&again).is_empty());
    again.put("x", "y").unwrap();
    database.checkpoint().unwrap();
    assert_eq!(snapshot.iter(&first).count(), 200);
    drop(snapshot);
    drop((first, again));
    world.kill(database);
    let database = world.open(&tiny());
    let names: Vec<_> = database
        .keyspaces()
        .unwrap()
        .into_iter()
        .map(|k| k.name)
        .collect();
    assert_eq!(names, ["default", "first"]);
    assert_eq!(all(&database.keyspace("first").unwrap()).len(), 1);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_clear_hides_everything_before_and_nothing_after_it() {
    for checkpointed in [false, true] {
        for killed in [false, true] {
            let world = World::new(2);
            let database = world.open(&tiny());
            let keyspace = database.keyspace("k").unwrap();
            for i in 0..400 {
                keyspace.put(key(i), value(i, 100)).unwrap();
            }
            if checkpointed {
                database.checkpoint().unwrap();
            }
            let snapshot = database.snapshot().unwrap();
            keyspace.clear().unwrap();
            assert!(all(&keyspace).is_empty());
            keyspace.put("after", "clear").unwrap();
            assert_eq!(snapshot.iter(&keyspace).count(), 400);
            drop(snapshot);
            drop(keyspace);
            if killed {
                world.kill(database);
            } else {
                database.close().unwrap();
            }
            let database = world.open(&tiny());
            let found = all(&database.keyspace("k").unwrap());
            assert_eq!(found.into_keys().collect::<Vec<_>>(), [b"after".to_vec()]);
            database.close().unwrap();
            world.verify();
        }
    }
}

/// Clears a keyspace at some moment of its merges, for many seeds. Passes each world to `check`.
fn clear_beside_merges(check: impl Fn(World, Database, Keyspace)) {
    let mut merged = 0;
    for seed in 0..60 {
        let world = World::new(seed);
        let database = world.open(&tiny().fanout(4));
        // Otherwise all records are merged as they are written.
        world.sim.set_breathing(false);
        let keyspace = database.keyspace("k").unwrap();
        for i in 0..600 {
            keyspace.put(key(i), value(i, 60)).unwrap();
        }
        for _ in 0..world.below(60) {
            world.sim.step();
        }
        merged += u32::from(database.metrics().checkpoint_debt_bytes > 0);
        keyspace.clear().unwrap();
        println!("seed {seed}");
        check(world, database, keyspace);
    }
    assert!(merged > 5, "a merge was under way {merged} times");
}

#[test]
fn a_clear_while_a_merge_is_under_way_wins() {
    clear_beside_merges(|world, database, keyspace| {
        for _ in 0..world.below(60) {
            world.sim.step();
        }
        keyspace.put("z", "1").unwrap();
        if world.below(2) == 0 {
            database.checkpoint().unwrap();
        }
        assert_eq!(all(&keyspace).len(), 1);
        drop(keyspace);
        world.kill(database);
        let database = world.open(&tiny());
        assert_eq!(all(&database.keyspace("k").unwrap()).len(), 1);
        database.close().unwrap();
        world.verify();
    });
}

/// Guards against metrics that kept the content of a cleared tree until the next merge, because a
/// discarded merge reported it last.
#[test]
fn a_clear_during_a_merge_leaves_nothing_stored() {
    clear_beside_merges(|world, database, _keyspace| {
        database.checkpoint().unwrap();
        world.sim.settle();
        assert_eq!(database.metrics().space_amplification, 0.0);
        database.close().unwrap();
    });
}

#[test]
fn space_of_dropped_and_cleared_keyspaces_returns() {
    let world = World::new(3);
    let database = world.open(&tiny());
    database.checkpoint().unwrap();
    let empty = database.metrics().data_live_bytes;
    for name in ["a", "b"] {
        let keyspace = database.keyspace(name).unwrap();
        for i in 0..1500 {
            keyspace.put(key(i), value(i, 100)).unwrap();
        }
    }
    database.checkpoint().unwrap();
    let full = database.metrics().data_live_bytes;
    assert!(full > empty + 300_000, "{full}");
    database.drop_keyspace("a").unwrap();
    database.keyspace("b").unwrap().clear().unwrap();
    database.checkpoint().unwrap();
    let after = database.metrics().data_live_bytes;
    assert!(
        after <= empty + (16 << 10),
        "{after} of {full} left, {empty} at first"
    );
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_thousand_keyspaces_survive_and_quiet_ones_cost_no_catalog_writes() {
    let world = World::new(4);
    world.sim.set_breathing(false);
    let database = world.open(&tiny());
    for i in 0..1000 {
        let distance = (i % 3 == 0).then_some(CheckpointDistance::Fixed(2));
        let options = KeyspaceOptions::new().checkpoint_distance(distance);
        database
            .create_keyspace(&format!("keyspace {i}"), options)
            .unwrap();
    }
    database.checkpoint().unwrap();
    let before = database.metrics().device_written.catalog;
    database
        .keyspace("keyspace 500")
        .unwrap()
        .put("a", "b")
        .unwrap();
    database.checkpoint().unwrap();
    let one = database.metrics().device_written.catalog - before;
    assert!(
        one <= 24 << 10,
        "{one} bytes of catalog for one changed keyspace"
    );
    database.close().unwrap();
    let database = world.open(&tiny());
    let all = database.keyspaces().unwrap();
    assert_eq!(all.len(), 1001);
    assert_eq!(
        all[301].options.checkpoint_distance,
        Some(CheckpointDistance::Fixed(2))
    );
    assert_eq!(all[302].options.checkpoint_distance, None);
    assert_eq!(
        database
            .keyspace("keyspace 500")
            .unwrap()
            .get("a")
            .unwrap()
            .as_deref(),
        Some(&b"b"[..])
    );
    database.close().unwrap();
}

#[test]
fn many_empty_keyspaces_leave_memory_to_memtables() {
    let world = World::new(9);
    let database = world.open(&tiny());
    for number in 0..1000 {
        database.keyspace(&format!("k{number}")).unwrap();
    }
    let keyspace = database.keyspace("k500").unwrap();
    let rounds = database.metrics().checkpoints;
    for i in 0..100 {
        keyspace.put(key(i), value(i, 20)).unwrap();
    }
    let metrics = database.metrics();
    assert!(metrics.checkpoints <= rounds + 2, "{metrics:?}");
    drop(keyspace);
    world.kill(database);
    let reader = world.open(&tiny().read_only(true));
    assert_eq!(all(&reader.open_keyspace("k500").unwrap()).len(), 100);
    drop(reader);
    let database = world.open(&tiny());
    let metrics = database.metrics();
    assert!(metrics.checkpoints <= 2, "{metrics:?}");
    assert_eq!(all(&database.keyspace("k500").unwrap()).len(), 100);
    assert_eq!(database.keyspaces().unwrap().len(), 1001);
    database.close().unwrap();
}

/// The smallest memtable takes 68 KiB. Guards against one seal at a time, where every writer waited
/// for a checkpoint at almost every write.
#[test]
fn keyspaces_whose_memtables_do_not_fit_in_memory_share_checkpoints() {
    let world = World::new(20);
    let database = world.open(&tiny().memory(16 << 20));
    let keyspaces: Vec<_> = (0..1500)
        .map(|i| database.keyspace(&format!("keyspace {i}")).unwrap())
        .collect();
    database.checkpoint().unwrap();
    let before = database.metrics();
    let rounds = 3;
    for round in 0..rounds {
        for keyspace in &keyspaces {
            keyspace.put(key(round), value(round, 20)).unwrap();
        }
    }
    let after = database.metrics();
    let checkpoints = after.checkpoints - before.checkpoints;
    let writes = rounds * keyspaces.len() as u64;
    assert!(
        checkpoints <= writes / 40,
        "{checkpoints} for {writes} writes"
    );
    let memtable_bytes = after.memory.memtable_bytes;
    assert!(memtable_bytes <= 15 << 20, "{memtable_bytes}");
    for keyspace in &keyspaces {
        assert_eq!(keyspace.iter().count() as u64, rounds);
    }
    database.close().unwrap();
}

/// Guards against a clear or drop that merged all memtables. With frequent clears of a small
/// keyspace, no other keyspace had its χ.
#[test]
fn clears_and_drops_merge_no_other_memtable() {
    let world = World::new(21);
    let database = world.open(&tiny());
    let busy = database.default_keyspace();
    let scratch = database.keyspace("scratch").unwrap();
    database.checkpoint().unwrap();
    busy.put("k", "v").unwrap();
    let merged = || database.metrics().checkpoints;
    let held = || {
        let stat = database.stat().unwrap();
        let busy = stat.keyspaces.iter().find(|k| k.name == "default");
        busy.unwrap().memtable_bytes
    };
    let before = merged();
    // No record of these keyspaces is on disk.
    scratch.clear().unwrap();
    scratch.put("a", "b").unwrap();
    scratch.clear().unwrap();
    world.sim.settle();
    assert_eq!(merged(), before);
    // Records of these keyspaces are on disk, and their pages are freed.
    for i in 0..2000 {
        scratch.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    for drops in [false, true] {
        busy.put("l", "w").unwrap();
        let live = database.metrics().data_live_bytes;
        let before = merged();
        match drops {
            false => scratch.clear().unwrap(),
            true => database.drop_keyspace("scratch").unwrap(),
        }
        world.sim.settle();
        assert_eq!(merged(), before + 1);
        assert!(held() > 0, "merged");
        assert!(database.metrics().data_live_bytes + 150_000 < live);
        if !drops {
            for i in 0..2000 {
                scratch.put(key(i), value(i, 100)).unwrap();
            }
            database.checkpoint().unwrap();
        }
    }
    drop((busy, scratch));
    world.kill(database);
    let database = world.open(&tiny());
    assert_eq!(all(&database.default_keyspace()).len(), 2);
    assert_eq!(database.keyspaces().unwrap().len(), 1);
    database.close().unwrap();
    world.verify();
}

/// Guards against pages that stayed after a replay. The checkpoint that frees them had not come
/// before the kill, and nothing asked for one afterwards.
#[test]
fn a_replayed_clear_frees_its_space() {
    let world = World::new(22);
    let database = world.open(&tiny());
    let scratch = database.keyspace("scratch").unwrap();
    for i in 0..2000 {
        scratch.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    let full = database.metrics().data_live_bytes;
    world.sim.set_breathing(false);
    scratch.clear().unwrap();
    assert_eq!(database.metrics().data_live_bytes, full);
    drop(scratch);
    world.kill(database);
    let database = world.open(&tiny());
    world.sim.settle();
    let left = database.metrics().data_live_bytes;
    assert!(left + 150_000 < full, "{left} of {full}");
    database.close().unwrap();
    world.verify();
}

/// Idle keyspaces take memory, which the budget counts.
#[test]
fn idle_keyspaces_are_charged_to_the_budget() {
    let world = World::new(77);
    let database = world.open(&Options::new().memory(64 << 20));
    let taken = || database.metrics().memory.keyspace_bytes;
    let before = taken();
    for number in 0..1000 {
        database.keyspace(&format!("tenant {number:03}")).unwrap();
    }
    let each = (taken() - before) / 1000;
    assert!((1000..4000).contains(&each), "{each} bytes for a keyspace");
    for number in 0..1000 {
        database
            .drop_keyspace(&format!("tenant {number:03}"))
            .unwrap();
    }
    database.checkpoint().unwrap();
    assert_eq!(taken(), before);
}
