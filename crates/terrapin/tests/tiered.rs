//! Keyspaces of the structure tiered, and changes of a keyspace's structure.

mod common;

use common::{Map, World, all, key, tiny, value};
use terrapin::{Database, ErrorKind, Keyspace, KeyspaceOptions, SpaceAmplification, StructureKind};
use terrapin_disk::sim::CrashMode;

fn tiered() -> KeyspaceOptions {
    KeyspaceOptions::new().structure(StructureKind::Tiered)
}

fn change(keyspace: &Keyspace, structure: StructureKind) {
    let options = keyspace.options().unwrap().structure(structure);
    keyspace.set_options(options).unwrap();
}

fn structure_of(database: &Database, name: &str) -> &'static str {
    let listed = database.keyspaces().unwrap();
    listed.iter().find(|k| k.name == name).unwrap().structure
}

/// Bytes of page groups written so far.
fn groups_written(database: &Database) -> u64 {
    let written = database.metrics().device_written;
    written.leaves + written.segments
}

/// Most runs of a pivot.
fn runs_max(database: &Database, name: &str) -> u64 {
    let stat = database.stat().unwrap();
    let keyspace = stat.keyspaces.iter().find(|k| k.name == name).unwrap();
    keyspace.tree.figure("buffer_runs_max").unwrap()
}

fn fill(keyspace: &Keyspace, truth: &mut Map, numbers: impl Iterator<Item = u64>, bytes: usize) {
    for number in numbers {
        keyspace.put(key(number), value(number, bytes)).unwrap();
        truth.insert(key(number), value(number, bytes));
    }
}

#[test]
fn a_keyspace_changes_its_structure_and_nothing_is_rewritten() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("k").unwrap();
    let mut truth = Map::new();
    fill(&keyspace, &mut truth, 0..3000, 60);
    database.checkpoint().unwrap();
    assert!(runs_max(&database, "k") <= 2, "two levels of four children");
    let snapshot = database.snapshot().unwrap();
    let before = groups_written(&database);
    change(&keyspace, StructureKind::Tiered);
    database.checkpoint().unwrap();
    assert_eq!(groups_written(&database), before);
    assert_eq!(structure_of(&database, "k"), "tiered");
    let then = truth.clone();
    fill(&keyspace, &mut truth, 3000..8000, 60);
    database.checkpoint().unwrap();
    assert!(runs_max(&database, "k") > 2, "it has runs");
    assert_eq!(all(&keyspace), truth);
    let seen = snapshot.iter(&keyspace).map(|r| r.unwrap());
    let seen: Map = seen.map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
    assert_eq!(seen, then);
    drop(snapshot);

    // The change is in the log only, then in the catalog only.
    change(&keyspace, StructureKind::Leveled);
    drop(keyspace);
    world.kill(database);
    for _ in 0..2 {
        let database = world.open(&tiny());
        assert_eq!(structure_of(&database, "k"), "leveled");
        let keyspace = database.keyspace("k").unwrap();
        assert_eq!(all(&keyspace), truth);
        database.checkpoint().unwrap();
        drop(keyspace);
        world.cut_power(database, CrashMode::RandomSubset);
    }
    let database = world.open(&tiny());
    let keyspace = database.keyspace("k").unwrap();
    fill(&keyspace, &mut truth, 8000..14_000, 60);
    database.checkpoint().unwrap();
    assert_eq!(all(&keyspace), truth);
    assert!(runs_max(&database, "k") <= 3, "levels are few again");
    drop(keyspace);
    database.close().unwrap();
    world.verify();
}

#[test]
fn the_option_runs_bounds_the_runs_of_a_keyspace() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let names = ["few", "many"];
    let wanted = [4, 24];
    let keyspaces = [0, 1].map(|i| {
        let options = tiered().runs(wanted[i]);
        database.create_keyspace(names[i], options).unwrap()
    });
    for number in 0..12_000 {
        for keyspace in &keyspaces {
            keyspace.put(key(number), value(number, 60)).unwrap();
        }
    }
    database.checkpoint().unwrap();
    let [few, many] = names.map(|name| runs_max(&database, name));
    // Beyond one and a half times the number, runs are merged in any case; a memtable adds one.
    assert!(few <= 7 && few < many && many <= 37, "{few}, {many}");
    drop(keyspaces);
    database.close().unwrap();
}

/// The reserve had 20 groups in every database, which leveled keyspaces do not need.
#[test]
fn the_reserve_grows_for_wide_pivots_and_stays_large_after_a_change_back() {
    let world = World::new(4);
    let options = tiny().group_bytes(16 << 10);
    let reserve = |groups: u64| groups * (16 << 10) + (128 << 10);
    let held = |database: &Database| database.metrics().data_reserve_bytes;
    let mut truth = Map::new();
    {
        let database = world.open(&options);
        let keyspace = database.keyspace("k").unwrap();
        fill(&keyspace, &mut truth, 0..3000, 60);
        database.checkpoint().unwrap();
        assert_eq!(held(&database), reserve(8));
        change(&keyspace, StructureKind::Tiered);
        change(&keyspace, StructureKind::Leveled);
        fill(&keyspace, &mut truth, 3000..9000, 60);
        database.checkpoint().unwrap();
        assert_eq!(held(&database), reserve(20));
        database.close().unwrap();
    }
    let database = world.open(&options);
    assert_eq!(held(&database), reserve(20));
    assert_eq!(all(&database.keyspace("k").unwrap()), truth);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_keyspace_changes_to_no_structure_of_another_kind() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let in_place = KeyspaceOptions::new().structure(StructureKind::InPlace);
    let other = database.create_keyspace("other", in_place).unwrap();
    let own = database.create_keyspace("own", tiered()).unwrap();
    for (keyspace, next) in [
        (&other, StructureKind::Tiered),
        (&other, StructureKind::Leveled),
        (&own, StructureKind::InPlace),
    ] {
        let before = keyspace.options().unwrap();
        let error = keyspace.set_options(before.structure(next)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("copy the records"), "{error}");
        assert_eq!(keyspace.options().unwrap(), before);
    }
    drop((other, own));
    database.close().unwrap();
}

/// A flipped bit in a run stops nothing: what is written after it becomes durable, and what needs
/// the run is an error until the bit is back.
#[test]
fn an_idle_keyspace_gives_its_waste_back() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let options = tiered().space_amplification(SpaceAmplification::Unbounded);
    let keyspace = database.create_keyspace("k", options).unwrap();
    let mut truth = Map::new();
    for _ in 0..6 {
        fill(&keyspace, &mut truth, 0..1500, 100);
    }
    database.checkpoint().unwrap();
    let before = database.metrics().data_live_bytes;
    for _ in 0..40 {
        world.sim.advance_ns(3_000_000_000);
        world.sim.settle();
    }
    let after = database.metrics().data_live_bytes;
    assert!(after * 2 < before, "{before} to {after}");
    let stat = database.stat().unwrap();
    let tree = &stat.keyspaces.iter().find(|k| k.name == "k").unwrap().tree;
    let waste = tree.superseded_bytes;
    assert!(
        waste * 10 <= tree.leaf_bytes,
        "{waste} of {}",
        tree.leaf_bytes
    );
    assert_eq!(all(&keyspace), truth);
    // Then it rests.
    let checkpoints = database.metrics().checkpoints;
    world.sim.advance_ns(60_000_000_000);
    world.sim.settle();
    assert!(database.metrics().checkpoints <= checkpoints + 1);
    drop(keyspace);
    database.close().unwrap();
    world.verify();
}

/// Maplets of a keyspace after loads with gets between them.
fn maplets_after(memory_bytes: u64, gets: u64) -> u64 {
    let world = World::new(11);
    let options = tiny().memory(memory_bytes).record_cache(false);
    let database = world.open(&options);
    let keyspace = database.create_keyspace("k", tiered().runs(24)).unwrap();
    let mut truth = Map::new();
    for round in 0..12u64 {
        let numbers = (0..2000).map(|i| (round * 2000 + i) * 7919 % 100_003);
        fill(&keyspace, &mut truth, numbers.clone(), 20);
        for number in numbers.take(gets as usize) {
            assert_eq!(
                keyspace.get(key(number)).unwrap().as_deref(),
                Some(&truth[&key(number)][..])
            );
        }
        database.checkpoint().unwrap();
    }
    let stat = database.stat().unwrap();
    let of_keyspace = stat.keyspaces.iter().find(|k| k.name == "k").unwrap();
    for (key, value) in &truth {
        assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    of_keyspace.tree.figure("maplets").unwrap()
}

#[test]
fn maplets_are_made_while_a_keyspace_is_read_and_memory_lacks_outlines() {
    assert!(maplets_after(1 << 20, 2000) > 0);
    assert_eq!(maplets_after(1 << 20, 0), 0, "nobody reads");
    assert_eq!(maplets_after(64 << 20, 2000), 0, "outlines have room");
}

/// SplinterDB's asserts failed near a full disk (#228).
#[test]
fn a_full_disk_under_runs_refuses_puts_accepts_deletes_and_recovers() {
    let world = World::new(12);
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .block_bytes(2048)
        .fanout(16)
        .stall_limit(std::time::Duration::from_secs(5));
    let database = world.open(&options);
    let keyspace = database.create_keyspace("k", tiered().runs(32)).unwrap();
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes() + (8 << 20));
    let number_of = |number: u64| number * 7919 % 1_000_003;
    let mut stored = 0;
    let refused = loop {
        let number = number_of(stored);
        match keyspace.put(key(number), value(number, 100)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "the disk never filled");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(runs_max(&database, "k") > 4, "it has runs");
    let mut left: Map = (0..stored)
        .map(|at| (key(number_of(at)), value(number_of(at), 100)))
        .collect();
    for at in 0..stored * 2 / 3 {
        let deleted = keyspace.delete(key(number_of(at)));
        deleted.unwrap_or_else(|e| panic!("delete {at} of {stored}: {e}"));
        left.remove(&key(number_of(at)));
    }
    for _ in 0..200 {
        match keyspace.put("again", "1") {
            Ok(()) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        world.sim.advance_ns(2_000_000_000);
        world.sim.settle();
    }
    left.insert(b"again".to_vec(), b"1".to_vec());
    assert_eq!(all(&keyspace), left);
    drop(keyspace);
    database.close().unwrap();
    world.verify();
}
