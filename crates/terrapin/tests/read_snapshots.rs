//! Held views. They see their moment, they pin pages but no memtables, and their drop returns
//! everything.

mod common;

use common::{Map, World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Keyspace, Snapshot};
use terrapin_disk::sim::{Fault, FaultError, Op};

const SECOND_NS: u64 = 1_000_000_000;

fn seen(snapshot: &Snapshot, keyspace: &Keyspace) -> Map {
    snapshot
        .iter(keyspace)
        .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
        .collect()
}

/// Lets views grow old, and runs jobs until they have nothing to do.
fn grow_old(world: &World) {
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
}

fn fill(keyspace: &Keyspace, records: std::ops::Range<u64>, generation: u64, bytes: usize) {
    for i in records {
        keyspace
            .put(key(i), value(i + generation * 1_000_000, bytes))
            .unwrap();
    }
}

#[test]
fn a_held_snapshot_pins_pages_and_no_memtable() {
    let world = World::new(1);
    // Memtables have up to 400 KiB. The pool of recycled memory holds at most 256 KiB.
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(100)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..500, 0, 100);
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    fill(&keyspace, 0..2000, 1, 100);
    let snapshot = database.snapshot().unwrap();
    let expected = all(&keyspace);
    fill(&keyspace, 0..2000, 2, 100);
    for i in 0..500 {
        keyspace.delete(key(i)).unwrap();
    }
    database.checkpoint().unwrap();
    let held = database.metrics();
    assert_eq!((held.folds, held.views), (0, 1));
    assert!(held.memory.memtable_bytes > 400 << 10, "{:?}", held.memory);
    assert_eq!(seen(&snapshot, &keyspace), expected);

    grow_old(&world);
    let folded = database.metrics();
    assert_eq!((folded.folds, folded.views), (1, 1));
    assert!(
        folded.memory.memtable_bytes < 300 << 10,
        "{:?}",
        folded.memory
    );
    assert_eq!(seen(&snapshot, &keyspace), expected);
    assert_eq!(
        snapshot.get(&keyspace, key(3)).unwrap().as_deref(),
        Some(&value(1_000_003, 100)[..])
    );
    assert_eq!(
        snapshot.last(&keyspace).unwrap().map(|(k, _)| k.to_vec()),
        expected.keys().last().cloned()
    );
    assert_eq!(keyspace.get(key(3)).unwrap(), None);
    assert_eq!(keyspace.iter().count(), 1500);

    // The snapshot outlives any number of checkpoints. Its pages are freed with it.
    for generation in 3..8 {
        fill(&keyspace, 0..2000, generation, 100);
        database.checkpoint().unwrap();
    }
    assert_eq!(seen(&snapshot, &keyspace), expected);
    let pinned = database.stat().unwrap().space.retired;
    assert!(pinned > 0);
    drop(snapshot);
    world.sim.settle();
    let stat = database.stat().unwrap();
    assert_eq!((stat.space.retired, stat.views), (0, 0));
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_snapshot_between_two_seals_folds_both_memtables_in_order() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    world.sim.set_breathing(false);
    // A sealed memtable waits for its merge. An active one above has other values, and later writes
    // follow.
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(32))
        .unwrap();
    fill(&keyspace, 0..300, 1, 60);
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(1))
        .unwrap();
    assert!(
        database.metrics().checkpoint_debt_bytes > 0,
        "nothing is sealed"
    );
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(32))
        .unwrap();
    fill(&keyspace, 0..20, 2, 60);
    for i in 20..40 {
        keyspace.delete(key(i)).unwrap();
    }
    let snapshot = database.snapshot().unwrap();
    let expected = all(&keyspace);
    assert_eq!(expected.len(), 280);
    fill(&keyspace, 0..50, 3, 60);
    database.checkpoint().unwrap();
    database.checkpoint().unwrap();
    grow_old(&world);
    assert_eq!(database.metrics().folds, 2);
    assert_eq!(seen(&snapshot, &keyspace), expected);
    database.close().unwrap();
}

#[test]
fn views_of_one_moment_are_folded_once() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..100, 1, 60);
    world.sim.set_breathing(false);
    let snapshots: Vec<_> = (0..10).map(|_| database.snapshot().unwrap()).collect();
    let mut ranges: Vec<_> = (0..5).map(|_| keyspace.iter()).collect();
    let expected = all(&keyspace);
    fill(&keyspace, 0..100, 2, 60);
    database.checkpoint().unwrap();
    assert_eq!(database.metrics().views, 15);
    grow_old(&world);
    assert_eq!(database.metrics().folds, 1);
    for snapshot in &snapshots {
        assert_eq!(seen(snapshot, &keyspace), expected);
    }
    let last: Vec<_> = ranges
        .iter_mut()
        .map(|r| r.next_back().unwrap().unwrap())
        .collect();
    assert!(last.iter().all(|(k, v)| Some((k.as_ref(), v.as_ref()))
        == expected.iter().next_back().map(|(k, v)| (&k[..], &v[..]))));
    // The pages live until the last view is dropped.
    drop(ranges);
    let mut snapshots = snapshots;
    let last = snapshots.pop().unwrap();
    drop(snapshots);
    fill(&keyspace, 0..2000, 4, 60);
    database.checkpoint().unwrap();
    assert_eq!(seen(&last, &keyspace), expected);
    database.close().unwrap();
}

/// Guards against one merge of the memtable for each snapshot, from the start up to the snapshot's
/// moment.
#[test]
fn snapshots_within_a_memtable_share_one_run() {
    let world = World::new(20);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(100)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..500, 0, 100);
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    let mut snapshots = Vec::new();
    for moment in 1..=100 {
        let first = moment * 17 % 900;
        fill(&keyspace, first..first + 20, moment, 100);
        keyspace.delete(key(first + 5)).unwrap();
        snapshots.push((database.snapshot().unwrap(), all(&keyspace)));
    }
    let memtable_bytes = database.metrics().memory.memtable_bytes;
    database.checkpoint().unwrap();
    let before = database.metrics();
    grow_old(&world);
    let after = database.metrics();
    assert_eq!((before.folds, after.folds), (0, 1));
    let written = after.device_written.total() - before.device_written.total();
    assert!(
        written < memtable_bytes,
        "{written} bytes for a memtable of {memtable_bytes}"
    );
    for (snapshot, expected) in &snapshots {
        assert_eq!(seen(snapshot, &keyspace), *expected);
    }

    // The later snapshots have the same pages as the earlier ones.
    snapshots.drain(..60);
    for generation in 200..204 {
        fill(&keyspace, 0..1000, generation, 100);
        database.checkpoint().unwrap();
    }
    for (snapshot, expected) in snapshots.drain(..) {
        assert_eq!(seen(&snapshot, &keyspace), expected);
    }
    world.sim.settle();
    assert_eq!(database.stat().unwrap().space.retired, 0);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_view_drops_a_memtable_that_it_does_not_need_without_a_run() {
    let world = World::new(4);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(32)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..100, 1, 60);
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    let snapshot = database.snapshot().unwrap();
    let expected = all(&keyspace);
    let written = database.metrics().device_written;
    fill(&keyspace, 0..900, 2, 100);
    database.checkpoint().unwrap();
    let checkpointed = database.metrics();
    assert_ne!(checkpointed.device_written, written);
    grow_old(&world);
    let later = database.metrics();
    assert_eq!(
        (later.folds, later.device_written),
        (0, checkpointed.device_written)
    );
    assert!(later.memory.memtable_bytes <= checkpointed.memory.memtable_bytes);
    assert_eq!(seen(&snapshot, &keyspace), expected);
    database.close().unwrap();
}

#[test]
fn a_fold_for_dropped_views_ends_and_leaves_no_page() {
    let world = World::new(5);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(100)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..2000, 1, 100);
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    fill(&keyspace, 0..2000, 2, 100);
    for steps in 0..40 {
        let snapshot = database.snapshot().unwrap();
        keyspace.put("x", [steps]).unwrap();
        database.checkpoint().unwrap();
        keyspace.put("y", [steps]).unwrap();
        world.sim.advance_ns(2 * SECOND_NS);
        for _ in 0..steps {
            world.sim.step();
        }
        drop(snapshot);
        world.sim.settle();
        assert_eq!(database.stat().unwrap().space.retired, 0);
    }
    let folds = database.metrics().folds;
    assert!((1..40).contains(&folds), "{folds} of 40 were done");
    database.close().unwrap();
    // Every page outside of the tree is free again.
    let live = world.verified();
    assert!(live.is_sound());
    let database = world.open(&tiny());
    let stat = database.stat().unwrap();
    assert!(
        stat.data_live_bytes < 2 * stat.keyspaces[0].tree.page_bytes,
        "{stat:?}"
    );
    database.close().unwrap();
}

#[test]
fn private_pages_do_not_pile_up() {
    let world = World::new(6);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(50)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..1500, 0, 100);
    database.checkpoint().unwrap();
    let mut early = 0;
    for round in 0..30 {
        fill(&keyspace, 0..300, round, 100);
        let snapshot = database.snapshot().unwrap();
        fill(&keyspace, 200..500, round + 1, 100);
        database.checkpoint().unwrap();
        grow_old(&world);
        drop(snapshot);
        world.sim.settle();
        let allocated = database.metrics().data_allocated_bytes;
        if round == 4 {
            early = allocated;
        }
        assert!(
            round < 5 || allocated <= early * 3 / 2,
            "round {round}: {allocated} bytes, {early} in the beginning"
        );
    }
    assert!(database.metrics().folds >= 30);
    database.close().unwrap();
}

#[test]
fn young_views_release_memtables_when_memory_is_short() {
    let world = World::new(7);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspace = database.default_keyspace();
    let mut held: std::collections::VecDeque<(u64, Snapshot)> = Default::default();
    let started = world.env.now_ns();
    let mut peak = 0;
    for round in 0..120 {
        fill(&keyspace, 0..400, round, 100);
        peak = peak.max(database.metrics().memory.memtable_bytes);
        held.push_back((round, database.snapshot().unwrap()));
        if held.len() > 20 {
            held.pop_front();
        }
        let (then, snapshot) = &held[world.below(held.len() as u64) as usize];
        for i in [0, 17, 399] {
            let expected = value(i + then * 1_000_000, 100);
            assert_eq!(
                snapshot.get(&keyspace, key(i)).unwrap().as_deref(),
                Some(&expected[..]),
                "round {round} {then}"
            );
        }
    }
    let metrics = database.metrics();
    assert!(metrics.folds > 0);
    // Twenty memtables of 256 KiB would exceed the budget of 2 MiB.
    assert!(
        peak < 2 << 20,
        "{peak} bytes of memtables, {} folds",
        metrics.folds
    );
    let waited = world.env.now_ns() - started;
    assert!(metrics.writes_refused == 0, "{waited} {metrics:?}");
    held.clear();
    database.close().unwrap();
}

#[test]
fn snapshots_keep_cleared_and_dropped_keyspaces() {
    let world = World::new(8);
    let database = world.open(&tiny());
    let (cleared, dropped) = (
        database.keyspace("cleared").unwrap(),
        database.keyspace("dropped").unwrap(),
    );
    for keyspace in [&cleared, &dropped] {
        fill(keyspace, 0..300, 1, 60);
        fill(keyspace, 0..100, 2, 60);
    }
    let snapshot = database.snapshot().unwrap();
    let (first, second) = (all(&cleared), all(&dropped));
    let mut range = dropped.iter();
    assert_eq!(
        range.next().unwrap().unwrap().0[..],
        second.keys().next().unwrap()[..]
    );
    cleared.clear().unwrap();
    database.drop_keyspace("dropped").unwrap();
    let later = database.keyspace("dropped").unwrap();
    later.put("new", "1").unwrap();
    cleared.put("new", "1").unwrap();
    for _ in 0..3 {
        assert_eq!(seen(&snapshot, &cleared), first);
        assert_eq!(seen(&snapshot, &dropped), second);
        assert_eq!(all(&cleared).len(), 1);
        assert_eq!(all(&later).len(), 1);
        assert_eq!(
            dropped.get("new").unwrap_err().kind(),
            ErrorKind::KeyspaceNotFound
        );
        assert_eq!(
            dropped.iter().next().unwrap().unwrap_err().kind(),
            ErrorKind::KeyspaceNotFound
        );
        assert_eq!(
            snapshot.get(&later, "new").unwrap_err().kind(),
            ErrorKind::KeyspaceNotFound
        );
        database.checkpoint().unwrap();
        grow_old(&world);
    }
    assert!(database.metrics().folds >= 2);
    assert_eq!(range.count(), 299);
    drop(snapshot);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_failed_fold_is_tried_again_and_reads_stay_right() {
    let world = World::new(9);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..1000, 1, 100);
    world.sim.set_breathing(false);
    let snapshot = database.snapshot().unwrap();
    let expected = all(&keyspace);
    fill(&keyspace, 0..1000, 2, 100);
    database.checkpoint().unwrap();
    world.disk.inject(
        Fault::nth(3, FaultError::NoSpace)
            .on(Op::Write)
            .of("data")
            .lasting(),
    );
    grow_old(&world);
    assert_eq!(database.metrics().folds, 0);
    assert_eq!(seen(&snapshot, &keyspace), expected);
    assert!(
        database.background_error().is_none(),
        "nothing of the user's is in danger"
    );
    world.disk.clear_faults();
    grow_old(&world);
    assert_eq!(database.metrics().folds, 1);
    assert_eq!(seen(&snapshot, &keyspace), expected);
    drop(snapshot);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_view_that_cannot_be_folded_delays_no_other() {
    let world = World::new(13);
    let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options);
    fill(&database.keyspace("first").unwrap(), 0..1000, 1, 100);
    database.close().unwrap();
    let database = world.open(&options);
    let (first, second) = (
        database.keyspace("first").unwrap(),
        database.keyspace("second").unwrap(),
    );
    world.sim.set_breathing(false);
    fill(&first, 0..1000, 2, 100);
    let older = database.snapshot().unwrap();
    fill(&first, 0..1000, 3, 100);
    database.checkpoint().unwrap();
    fill(&second, 0..100, 4, 100);
    let newer = database.snapshot().unwrap();
    fill(&second, 0..100, 5, 100);
    database.checkpoint().unwrap();
    assert_eq!(database.metrics().folds, 0);
    // The older view comes first.
    let unwritten = Fault::nth(1, FaultError::Io).on(Op::Write).of("data");
    world.disk.inject(unwritten);
    grow_old(&world);
    assert_eq!(database.metrics().folds, 1);
    assert_eq!(
        newer.get(&second, key(7)).unwrap().as_deref(),
        Some(&value(4_000_007, 100)[..])
    );
    grow_old(&world);
    assert_eq!(database.metrics().folds, 2);
    for (view, keyspace, records, generation) in [
        (&older, &first, 1000, 2),
        (&newer, &first, 1000, 3),
        (&newer, &second, 100, 4),
    ] {
        let expected: Map = (0..records)
            .map(|i| (key(i), value(i + generation * 1_000_000, 100)))
            .collect();
        assert_eq!(seen(view, keyspace), expected);
    }
    drop((older, newer));
    database.close().unwrap();
    world.verify();
}

#[test]
fn after_close_every_read_is_refused() {
    let world = World::new(10);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    fill(&keyspace, 0..500, 1, 60);
    let snapshot = database.snapshot().unwrap();
    let (mut begun, mut fresh, mut of_snapshot) = (
        keyspace.iter(),
        keyspace.prefix("x"),
        snapshot.iter(&keyspace),
    );
    begun.next().unwrap().unwrap();
    begun.next_back().unwrap().unwrap();
    database.close().unwrap();
    let closed = |error: terrapin::Error| assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    for range in [&mut begun, &mut fresh, &mut of_snapshot] {
        closed(range.next().unwrap().unwrap_err());
        assert!(range.next().is_none() && range.next_back().is_none());
    }
    closed(keyspace.get("a").unwrap_err());
    closed(keyspace.contains("a").unwrap_err());
    closed(keyspace.multi_get(&["a", "b"]).unwrap_err());
    closed(keyspace.first().unwrap_err());
    closed(keyspace.last().unwrap_err());
    closed(keyspace.approximate_count().unwrap_err());
    closed(keyspace.range("b".."a").next().unwrap().unwrap_err());
    closed(database.snapshot().unwrap_err());
    closed(snapshot.get(&keyspace, "a").unwrap_err());
    closed(snapshot.contains(&keyspace, "a").unwrap_err());
    closed(snapshot.multi_get(&keyspace, &["a"]).unwrap_err());
    closed(snapshot.first(&keyspace).unwrap_err());
    closed(snapshot.approximate_count(&keyspace).unwrap_err());
    // The files are closed, so the next open does not wait for the handles.
    let again = world.open(&tiny());
    assert_eq!(again.default_keyspace().iter().count(), 500);
    again.close().unwrap();
}

#[test]
fn a_snapshot_reads_its_own_database_only() {
    let (one, two) = (World::new(11), World::new(12));
    let (database, other): (Database, Database) = (one.open(&tiny()), two.open(&tiny()));
    let snapshot = database.snapshot().unwrap();
    let foreign = other.default_keyspace();
    assert_eq!(
        snapshot.get(&foreign, "a").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        snapshot.iter(&foreign).next().unwrap().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    // LSNs bound what a snapshot shows.
    let before = snapshot.lsn();
    database.default_keyspace().put("a", "1").unwrap();
    assert!(database.snapshot().unwrap().lsn() > before);
    assert_eq!(
        snapshot.get(&database.default_keyspace(), "a").unwrap(),
        None
    );
}
