//! Many held snapshots. Their cost is bounded by the changes between them, and each sees its
//! moment. The cases attack the protocol of runs (`terrapin/src/run/`, `checkpoint/spill.rs`,
//! `fold.rs`).

mod common;

use std::collections::{BTreeMap, VecDeque};

use common::{Map, World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Keyspace, Options, Range, Snapshot};
use terrapin_disk::sim::{Fault, FaultError, Op};

const SECOND_NS: u64 = 1_000_000_000;

/// A snapshot and the expected contents of its keyspaces.
struct Held {
    snapshot: Snapshot,
    maps: Vec<Map>,
}

impl Held {
    fn take(database: &Database, maps: &[Map]) -> Self {
        Held {
            snapshot: database.snapshot().unwrap(),
            maps: maps.to_vec(),
        }
    }

    /// Checks every kind of read.
    fn check(&self, keyspaces: &[Keyspace]) {
        for (keyspace, map) in keyspaces.iter().zip(&self.maps) {
            let snapshot = &self.snapshot;
            let owned = |record: terrapin::Result<(terrapin::Slice, terrapin::Slice)>| {
                let (key, value) = record.unwrap();
                (key.to_vec(), value.to_vec())
            };
            let forward: Map = snapshot.iter(keyspace).map(owned).collect();
            assert!(forward == *map, "{:?}", keyspace.name());
            let mut backward: Vec<_> = snapshot.iter(keyspace).rev().map(owned).collect();
            backward.reverse();
            assert!(backward.into_iter().eq(map.clone()));
            let keys: Vec<Vec<u8>> = (0..60)
                .map(key)
                .chain(map.keys().take(20).cloned())
                .collect();
            let found = snapshot.multi_get(keyspace, &keys).unwrap();
            for (key, found) in keys.iter().zip(found) {
                let expected = map.get(key).map(|value| &value[..]);
                assert_eq!(found.as_deref(), expected);
                assert_eq!(snapshot.get(keyspace, key).unwrap().as_deref(), expected);
                let is_there = snapshot.contains(keyspace, key).unwrap();
                assert_eq!(is_there, expected.is_some());
            }
        }
    }
}

fn put(keyspace: &Keyspace, map: &mut Map, number: u64, value: Vec<u8>) {
    keyspace.put(key(number), &value).unwrap();
    map.insert(key(number), value);
}

fn delete(keyspace: &Keyspace, map: &mut Map, number: u64) {
    keyspace.delete(key(number)).unwrap();
    map.remove(&key(number));
}

/// Like `tiny`, with pages of which little is padding, and memtables of 128 KiB.
fn small() -> Options {
    tiny().group_bytes(32 << 10).block_bytes(4 << 10).fanout(8)
}

/// Bytes of the data file that are in use.
fn used(database: &Database) -> u64 {
    let space = database.stat().unwrap().space;
    space.pages.total() + space.other + space.retired
}

/// Guards against a merge of the memtable for each of 600 snapshots. In the end every put waited
/// for a checkpoint of its own, and the file grew by a tree for each snapshot.
#[test]
fn snapshots_every_few_puts_cost_what_changed() {
    const RECORDS: u64 = 3000;
    let world = World::new(1);
    let database = world.open(&small());
    let keyspaces = [database.default_keyspace()];
    let mut maps = [Map::new()];
    for number in 0..RECORDS {
        put(&keyspaces[0], &mut maps[0], number, value(number, 92));
    }
    database.checkpoint().unwrap();
    let base = used(&database);
    let before = database.metrics();
    let (mut held, mut changed, mut peak) = (Vec::new(), 0, 0);
    for round in 0..600 {
        for _ in 0..20 {
            let number = world.below(RECORDS);
            changed += 100;
            put(&keyspaces[0], &mut maps[0], number, value(round, 92));
        }
        // The test remembers the content that some snapshots see.
        let seen = &maps[..usize::from(round % 20 == 0)];
        held.push(Held::take(&database, seen));
        peak = peak.max(database.metrics().memory.memtable_bytes);
    }
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    let after = database.metrics();
    let checkpoints = after.checkpoints - before.checkpoints;
    // Memtables keep their size: 128 KiB.
    assert!((5..=20).contains(&checkpoints), "{checkpoints}");
    let runs = after.folds - before.folds;
    assert!(runs <= checkpoints + 3, "{runs} runs");
    let written = after.device_written.total() - before.device_written.total();
    assert!(written < 12 * changed, "{written} bytes for {changed}");
    // Most other bytes are pages of trees that checkpoints replaced.
    let runs_bytes = database.stat().unwrap().space.other;
    assert!(
        runs_bytes < 2 * changed,
        "{runs_bytes} bytes of runs for {changed}"
    );
    let used = used(&database) - base;
    assert!(used < 5 * changed, "{used} bytes for {changed}");
    assert!(peak < 2 << 20, "{peak} bytes of memtables");
    assert_eq!(after.writes_refused, 0);
    for held in &held {
        held.check(&keyspaces);
    }
    drop(held);
    world.sim.settle();
    let stat = database.stat().unwrap();
    assert_eq!((stat.space.retired, stat.views), (0, 0));
    database.close().unwrap();
    world.verify();
}

/// Guards against a merge of each keyspace's memtable for each snapshot.
#[test]
fn snapshots_of_many_keyspaces_cost_what_changed() {
    const KEYSPACES: usize = 20;
    const RECORDS: u64 = 60;
    let world = World::new(2);
    let database = world.open(&small());
    let keyspaces: Vec<_> = (0..KEYSPACES)
        .map(|n| database.keyspace(&format!("k{n}")).unwrap())
        .collect();
    let mut maps = vec![Map::new(); KEYSPACES];
    for number in 0..RECORDS {
        for (keyspace, map) in keyspaces.iter().zip(&mut maps) {
            put(keyspace, map, number, value(number, 400));
        }
    }
    database.checkpoint().unwrap();
    let base = used(&database);
    let before = database.metrics();
    let (mut held, mut changed) = (Vec::new(), 0);
    for round in 0..100 {
        for _ in 0..30 {
            let at = world.below(KEYSPACES as u64) as usize;
            let number = world.below(RECORDS);
            changed += 408;
            put(&keyspaces[at], &mut maps[at], number, value(round, 400));
        }
        let seen = if round % 10 == 0 { &maps[..] } else { &[] };
        held.push(Held::take(&database, seen));
        world.sim.advance_ns(SECOND_NS / 10);
    }
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    let after = database.metrics();
    let checkpoints = after.checkpoints - before.checkpoints;
    let runs = after.folds - before.folds;
    assert!((3..=12).contains(&checkpoints), "{checkpoints}");
    assert!(runs <= (checkpoints + 1) * KEYSPACES as u64, "{runs}");
    let used = used(&database) - base;
    assert!(used < 4 * changed, "{used} bytes for {changed}");
    for held in &held {
        held.check(&keyspaces);
    }
    drop(held);
    database.close().unwrap();
    world.verify();
}

/// A key's versions are one record while they are few and short.
#[test]
fn each_of_many_and_long_versions_of_a_key_is_seen_at_its_moment() {
    let world = World::new(3);
    let options = Options::new().memory(64 << 20).ring_bytes(4 << 20);
    let database = world.open(&options);
    world.sim.set_breathing(false);
    let keyspaces = [database.default_keyspace()];
    let mut maps = [Map::new()];
    let (keyspace, map) = (&keyspaces[0], &mut maps[0]);
    for number in 0..40 {
        put(keyspace, map, number, value(number, 50));
    }
    keyspace.put([0xff; 65_535], "long").unwrap();
    map.insert(vec![0xff; 65_535], b"long".to_vec());
    database.checkpoint().unwrap();
    let mut held = Vec::new();
    for round in 0..60_u64 {
        // Keys with many versions, long ones, the longest ones, and ones that are deleted now and
        // then.
        put(keyspace, map, 7, value(round, 200));
        put(keyspace, map, 8, value(round, 3000));
        if round % 20 == 3 {
            put(keyspace, map, 9, value(round, 256 << 10));
        }
        match round % 3 {
            0 => delete(keyspace, map, 10),
            _ => put(keyspace, map, 10, value(round, 1500)),
        }
        put(keyspace, map, 1000 + round, value(round, 10));
        keyspace.put([0xff; 65_535], round.to_be_bytes()).unwrap();
        map.insert(vec![0xff; 65_535], round.to_be_bytes().to_vec());
        held.push(Held::take(&database, std::slice::from_ref(map)));
    }
    put(keyspace, map, 7, value(99, 200));
    database.checkpoint().unwrap();
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    assert_eq!(database.metrics().folds, 1);
    for held in &held {
        held.check(&keyspaces);
        let count = held.snapshot.approximate_count(&keyspaces[0]).unwrap();
        // The overwritten versions count in the tree and in the run.
        let keys = held.maps[0].len() as u64;
        assert!((keys..keys + 8).contains(&count), "{count} of {keys}");
    }
    drop(held);
    database.close().unwrap();
    world.verify();
}

/// A view sees some records in a run, others in a memtable. Ranges that have begun continue across
/// each change.
#[test]
fn ranges_continue_while_runs_replace_memtables() {
    let world = World::new(4);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    world.sim.set_breathing(false);
    let keyspaces = [database.default_keyspace()];
    let mut maps = [Map::new()];
    for number in 0..600 {
        put(&keyspaces[0], &mut maps[0], number, value(number, 60));
    }
    database.checkpoint().unwrap();
    for round in 1..4 {
        for number in (0..600).filter(|n| n % 5 == round) {
            match number % 3 {
                0 => delete(&keyspaces[0], &mut maps[0], number),
                _ => put(&keyspaces[0], &mut maps[0], number, value(round, 60)),
            }
        }
    }
    // Snapshots between the memtable that is sealed now and later writes.
    let first = Held::take(&database, &maps);
    let set = |chi| keyspaces[0].set_checkpoint_distance(CheckpointDistance::Fixed(chi));
    set(1).unwrap();
    set(64).unwrap();
    assert!(
        database.metrics().checkpoint_debt_bytes > 0,
        "nothing is sealed"
    );
    for number in 0..200 {
        put(&keyspaces[0], &mut maps[0], number * 3, value(7, 60));
    }
    let second = Held::take(&database, &maps);
    for number in 0..100 {
        delete(&keyspaces[0], &mut maps[0], number * 5);
    }
    let third = Held::take(&database, &maps);
    let mut ranges: Vec<_> = [&first, &second, &third]
        .into_iter()
        .cycle()
        .take(9)
        .map(|held| {
            let left: VecDeque<_> = held.maps[0].clone().into_iter().collect();
            (held.snapshot.iter(&keyspaces[0]), left)
        })
        .collect();
    let go_on = |ranges: &mut Vec<(Range, VecDeque<_>)>| {
        for (at, (range, left)) in ranges.iter_mut().enumerate() {
            for step in 0..20 {
                let back = (at + step) % 3 == 0;
                let (got, expected) = match back {
                    true => (range.next_back(), left.pop_back()),
                    false => (range.next(), left.pop_front()),
                };
                let got = got.map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap());
                assert_eq!(got, expected);
            }
        }
    };
    go_on(&mut ranges);
    // The sealed memtable is merged and leaves the views. The other is still their active one.
    while database.metrics().checkpoints < 2 {
        assert!(world.sim.step());
    }
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    assert_eq!(database.metrics().folds, 1);
    for held in [&first, &second, &third] {
        held.check(&keyspaces);
    }
    go_on(&mut ranges);
    database.checkpoint().unwrap();
    world.sim.settle();
    assert_eq!(database.metrics().folds, 2);
    for held in [&first, &second, &third] {
        held.check(&keyspaces);
    }
    go_on(&mut ranges);
    put(&keyspaces[0], &mut maps[0], 1, value(9, 60));
    database.checkpoint().unwrap();
    go_on(&mut ranges);
    for (range, left) in ranges {
        assert_eq!(range.count(), left.len());
    }
    drop((first, second, third));
    database.close().unwrap();
    world.verify();
}

/// Snapshots are taken while the memtable is merged, while its run is written, and while the
/// checkpoint commits.
#[test]
fn snapshots_taken_at_every_step_of_a_checkpoint_see_their_moments() {
    let world = World::new(5);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    world.sim.set_breathing(false);
    let keyspaces = [
        database.default_keyspace(),
        database.keyspace("other").unwrap(),
    ];
    let mut maps = [Map::new(), Map::new()];
    let mut held = Vec::new();
    for round in 0..4 {
        for number in 0..400 {
            let at = usize::from(number % 7 == 0);
            put(&keyspaces[at], &mut maps[at], number, value(round, 80));
        }
        held.push(Held::take(&database, &maps));
        world.sim.advance_ns(2 * SECOND_NS);
        let before = database.metrics();
        for keyspace in &keyspaces {
            keyspace
                .set_checkpoint_distance(CheckpointDistance::Fixed(1))
                .unwrap();
            keyspace
                .set_checkpoint_distance(CheckpointDistance::Fixed(64))
                .unwrap();
        }
        for step in 0.. {
            if !world.sim.step() {
                break;
            }
            if step % 3 == 0 {
                let number = world.below(400);
                put(&keyspaces[0], &mut maps[0], number, value(1000 + step, 80));
                held.push(Held::take(&database, &maps));
            }
        }
        let after = database.metrics();
        assert!(after.checkpoints > before.checkpoints);
        // There is one run for each memtable, and the views of all those steps share it.
        let runs = after.folds - before.folds;
        assert!((2..=4).contains(&runs), "{runs}");
    }
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    for held in &held {
        held.check(&keyspaces);
    }
    // The snapshots are dropped in any order.
    while !held.is_empty() {
        let at = world.below(held.len() as u64) as usize;
        held.swap_remove(at);
        if held.len() % 16 == 0 {
            put(&keyspaces[0], &mut maps[0], 3, value(held.len() as u64, 80));
            database.checkpoint().unwrap();
            held.iter()
                .step_by(5)
                .for_each(|held| held.check(&keyspaces));
        }
    }
    world.sim.settle();
    assert_eq!(database.stat().unwrap().space.retired, 0);
    database.close().unwrap();
    world.verify();
}

/// Keyspaces are cleared, dropped and created again, with a snapshot between every two changes.
#[test]
fn snapshots_outlive_clears_and_drops() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let mut held: Vec<(Snapshot, Vec<Keyspace>, Vec<Map>)> = Vec::new();
    let mut keyspaces: Vec<_> = ["a", "b"]
        .map(|name| database.keyspace(name).unwrap())
        .into();
    let mut maps = vec![Map::new(); 2];
    for round in 0..60 {
        for _ in 0..30 {
            let at = world.below(2) as usize;
            let number = world.below(150);
            match world.below(4) {
                0 => delete(&keyspaces[at], &mut maps[at], number),
                _ => put(&keyspaces[at], &mut maps[at], number, value(round, 90)),
            }
        }
        held.push((
            database.snapshot().unwrap(),
            keyspaces.clone(),
            maps.clone(),
        ));
        match world.below(6) {
            0 => {
                keyspaces[0].clear().unwrap();
                maps[0].clear();
            }
            1 => {
                database.drop_keyspace("b").unwrap();
                keyspaces[1] = database.keyspace("b").unwrap();
                maps[1].clear();
            }
            2 => database.checkpoint().unwrap(),
            3 => world.sim.advance_ns(2 * SECOND_NS),
            _ => {}
        }
        if round % 10 == 9 {
            for (snapshot, keyspaces, maps) in &held {
                let (snapshot, maps) = (snapshot.clone(), maps.clone());
                Held { snapshot, maps }.check(keyspaces);
            }
        }
    }
    assert!(database.metrics().folds > 5);
    drop(held);
    database.close().unwrap();
    world.verify();
}

/// The disk has no room for the runs of snapshots. Their memtables stay in memory, deletes pass,
/// and puts are refused only for a time.
#[test]
fn deletes_pass_where_no_run_can_be_written() {
    let world = World::new(7);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(32)));
    let keyspaces = [database.default_keyspace()];
    let mut maps = [Map::new()];
    for number in 0..4000 {
        put(&keyspaces[0], &mut maps[0], number, value(number, 92));
    }
    database.checkpoint().unwrap();
    let mut held = Vec::new();
    let mut number = 0;
    world.disk.set_capacity(world.disk.used_bytes());
    // The loop ends when puts are refused.
    let refused = loop {
        let at = number % 4000;
        match keyspaces[0].put(key(at), value(number, 92)) {
            Ok(()) => maps[0].insert(key(at), value(number, 92)),
            Err(error) => break error,
        };
        number += 1;
        if number % 10 == 0 {
            held.push(Held::take(&database, &maps));
        }
        assert!(number < 100_000);
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    for number in 0..1500 {
        match keyspaces[0].delete(key(number)) {
            Ok(()) => maps[0].remove(&key(number)),
            Err(error) => panic!("delete {number}: {error}"),
        };
        if number % 100 == 0 {
            held.push(Held::take(&database, &maps));
        }
    }
    held.iter()
        .step_by(9)
        .for_each(|held| held.check(&keyspaces));
    assert!(all(&keyspaces[0]) == maps[0]);
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(20 * SECOND_NS);
    world.sim.settle();
    held.iter()
        .step_by(9)
        .for_each(|held| held.check(&keyspaces));
    assert!(database.metrics().memory.memtable_bytes < 600 << 10);
    keyspaces[0].put("new", "1").unwrap();
    drop(held);
    database.close().unwrap();
    world.verify();
}

/// A run that fails in the middle leaves no page, and the checkpoint that wanted it commits.
#[test]
fn a_run_that_cannot_be_written_fails_no_checkpoint() {
    let mut later = 0;
    for nth in 1.. {
        let world = World::new(8);
        let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
        world.sim.set_breathing(false);
        let keyspaces = [database.default_keyspace()];
        let mut maps = [Map::new()];
        for number in 0..300 {
            put(&keyspaces[0], &mut maps[0], number, value(number, 80));
        }
        let held = Held::take(&database, &maps);
        for number in 0..300 {
            put(&keyspaces[0], &mut maps[0], number, value(7, 80));
        }
        world.sim.advance_ns(2 * SECOND_NS);
        let fault = Fault::nth(nth, FaultError::NoSpace)
            .on(Op::Write)
            .of("data");
        world.disk.inject(fault);
        // The first writes are the merge's, and the last one is the catalog's. A checkpoint that
        // fails there is tried again.
        let checkpointed = database.checkpoint();
        if database.metrics().folds == 0 && checkpointed.is_ok() {
            later += 1;
        }
        held.check(&keyspaces);
        world.sim.advance_ns(20 * SECOND_NS);
        world.sim.settle();
        held.check(&keyspaces);
        assert!(all(&keyspaces[0]) == maps[0]);
        drop(held);
        if database.checkpoint().is_err() {
            // The failed write was a superblock's, so the database is poisoned.
            break;
        }
        world.sim.settle();
        let stat = database.stat().unwrap();
        assert_eq!(stat.space.retired, 0);
        let pages = stat.space.pages.total();
        assert!(stat.data_live_bytes <= pages + (16 << 10), "{stat:?}");
        database.close().unwrap();
        world.verify();
    }
    assert!(later > 3, "{later}");
}

/// Thousands of views of a few moments cost as much as those moments.
#[test]
fn views_of_few_states_share_what_they_hold() {
    let world = World::new(9);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    let keyspaces = [database.default_keyspace()];
    let mut maps = [Map::new()];
    let mut held: BTreeMap<u64, Vec<Snapshot>> = BTreeMap::new();
    for round in 0..3 {
        for number in 0..200 {
            put(&keyspaces[0], &mut maps[0], number, value(round, 80));
        }
        let snapshots = (0..2000).map(|_| database.snapshot().unwrap());
        held.insert(round, snapshots.collect());
        world.sim.advance_ns(2 * SECOND_NS);
        database.checkpoint().unwrap();
        world.sim.settle();
        assert_eq!(database.metrics().folds, round + 1);
    }
    for (round, snapshots) in held {
        for snapshot in snapshots {
            let found = snapshot.get(&keyspaces[0], key(5)).unwrap();
            assert_eq!(found.as_deref(), Some(&value(round, 80)[..]));
        }
    }
    database.close().unwrap();
}

/// Guards against a view that lost a memtable. It got a run in one keyspace and dropped its
/// memtable in another, which was empty at that moment.
#[test]
fn a_once_empty_memtable_leaves_the_views_when_it_is_merged() {
    let world = World::new(10);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Fixed(64)));
    world.sim.set_breathing(false);
    let keyspaces = [
        database.default_keyspace(),
        database.keyspace("other").unwrap(),
    ];
    let mut maps = [Map::new(), Map::new()];
    for number in 0..300 {
        put(&keyspaces[0], &mut maps[0], number, value(1, 80));
    }
    let held = Held::take(&database, &maps);
    let range = keyspaces[1].iter();
    world.sim.advance_ns(2 * SECOND_NS);
    database.checkpoint().unwrap();
    world.sim.settle();
    assert_eq!(database.metrics().folds, 1);
    for number in 0..1500 {
        put(&keyspaces[1], &mut maps[1], number, value(2, 80));
    }
    assert!(database.metrics().memory.memtable_bytes > 200 << 10);
    database.checkpoint().unwrap();
    world.sim.advance_ns(2 * SECOND_NS);
    world.sim.settle();
    let metrics = database.metrics();
    // No view needs any of its records.
    assert_eq!(metrics.folds, 1);
    assert!(
        metrics.memory.memtable_bytes < 300 << 10,
        "{:?}",
        metrics.memory
    );
    held.check(&keyspaces);
    assert_eq!(range.count(), 0);
    database.close().unwrap();
}
