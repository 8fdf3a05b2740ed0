//! Options that a keyspace has of its own: checked, stored, and used by its merges.

mod common;

use common::{World, all, key, tiny};
use terrapin::{
    CheckpointDistance, Compression, Database, ErrorKind, KeyspaceOptions, PageParts,
    SpaceAmplification, StructureKind,
};

/// Every option that can be set, away from the database's.
fn own() -> KeyspaceOptions {
    KeyspaceOptions::new()
        .structure(StructureKind::Leveled)
        .checkpoint_distance(CheckpointDistance::Fixed(3))
        .compression(Compression::Lz4)
        .filter_bits(7)
        .space_amplification(SpaceAmplification::from(2.5))
}

fn listed(database: &Database, name: &str) -> KeyspaceOptions {
    let keyspaces = database.keyspaces().unwrap();
    let found = keyspaces.into_iter().find(|k| k.name == name).unwrap();
    let options = database.open_keyspace(name).unwrap().options().unwrap();
    let stat = database.stat().unwrap().keyspaces;
    let stat = stat.into_iter().find(|k| k.name == name).unwrap();
    assert_eq!((found.options, stat.options), (options, options));
    options
}

#[test]
fn options_survive_replay_checkpoints_and_reopens() {
    for checkpointed in [false, true] {
        for killed in [false, true] {
            let world = World::new(1);
            let database = world.open(&tiny());
            let created = database.create_keyspace("created", own()).unwrap();
            let changed = database.keyspace("changed").unwrap();
            changed.set_options(own()).unwrap();
            changed
                .set_options(own().compression(None).filter_bits(0))
                .unwrap();
            changed
                .set_checkpoint_distance(CheckpointDistance::Auto)
                .unwrap();
            let back = database.create_keyspace("back", own()).unwrap();
            back.set_options(KeyspaceOptions::new()).unwrap();
            let clear = database.create_keyspace("cleared", own()).unwrap();
            clear.put("a", "b").unwrap();
            clear.clear().unwrap();
            if checkpointed {
                database.checkpoint().unwrap();
            }
            drop((created, changed, back, clear));
            match killed {
                true => world.kill(database),
                false => drop(database.close().unwrap()),
            }
            for _ in 0..2 {
                // Other options of the database change none of a keyspace.
                let database = world.open(&tiny().compression(Compression::Lz4).filter_bits(20));
                assert_eq!(listed(&database, "created"), own());
                assert_eq!(listed(&database, "cleared"), own());
                assert_eq!(listed(&database, "back"), KeyspaceOptions::new());
                let changed = own().compression(None).filter_bits(0);
                let changed = changed.checkpoint_distance(CheckpointDistance::Auto);
                assert_eq!(listed(&database, "changed"), changed);
                database.close().unwrap();
            }
            world.verify();
        }
    }
}

#[test]
fn a_distance_for_all_leaves_other_options_alone() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.create_keyspace("k", own()).unwrap();
    database
        .set_checkpoint_distance(CheckpointDistance::Fixed(2))
        .unwrap();
    let wanted = own().checkpoint_distance(CheckpointDistance::Fixed(2));
    assert_eq!(keyspace.options().unwrap(), wanted);
    database.close().unwrap();
}

#[test]
fn options_out_of_bounds_change_nothing() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.create_keyspace("k", own()).unwrap();
    for options in [
        own().filter_bits(5),
        own().filter_bits(21),
        own().space_amplification(SpaceAmplification::Percent(109)),
        own().space_amplification(SpaceAmplification::Percent(10_001)),
        own().checkpoint_distance(CheckpointDistance::Fixed(0)),
    ] {
        for refused in [
            keyspace.set_options(options),
            database.create_keyspace("other", options).map(drop),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{options:?}");
        }
    }
    if cfg!(not(feature = "zstd")) {
        let error = keyspace.set_options(own().compression(Compression::Zstd));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(keyspace.options().unwrap(), own());
    assert!(database.open_keyspace("other").is_err());
    database.drop_keyspace("k").unwrap();
    for error in [
        keyspace.options().unwrap_err(),
        keyspace.set_options(own()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::KeyspaceNotFound);
    }
    database.close().unwrap();
    assert_eq!(keyspace.options().unwrap_err().kind(), ErrorKind::Closed);
    assert!(world.try_open(&tiny().filter_bits(3)).is_err());
}

/// The parts of a keyspace's tree with 4,000 records that compress well, loaded in one checkpoint.
fn loaded(database: &Database, name: &str, options: KeyspaceOptions) -> PageParts {
    let keyspace = database.create_keyspace(name, options).unwrap();
    for number in 0..4000 {
        keyspace.put(key(number), [7; 60]).unwrap();
    }
    database.checkpoint().unwrap();
    parts(database, name)
}

fn parts(database: &Database, name: &str) -> PageParts {
    let stat = database.stat().unwrap().keyspaces;
    let found = stat.into_iter().find(|k| k.name == name).unwrap();
    found.tree.parts
}

#[test]
fn merges_of_a_keyspace_use_its_own_options() {
    let world = World::new(4);
    // Filters have whole units of 512 bytes: larger groups show the bits.
    let database = world.open(&tiny().memory(8 << 20).group_bytes(32 << 10));
    let of = KeyspaceOptions::new;
    let plain = loaded(&database, "plain", of());
    let small = loaded(&database, "small", of().filter_bits(6));
    let large = loaded(&database, "large", of().filter_bits(20));
    let none = loaded(&database, "none", of().filter_bits(0));
    let packed = loaded(&database, "packed", of().compression(Compression::Lz4));
    assert_eq!(none.filters, 0);
    assert!(small.filters < plain.filters && plain.filters < large.filters);
    assert!(plain.filters > 4000 * 12 / 8);
    assert!(packed.leaf_blocks < plain.leaf_blocks / 2);
    assert_eq!(plain.leaf_blocks, none.leaf_blocks);
    for name in ["plain", "small", "large", "none", "packed"] {
        let keyspace = database.open_keyspace(name).unwrap();
        assert_eq!(all(&keyspace).len(), 4000);
        for number in (0..4000).step_by(37) {
            assert!(keyspace.contains(key(number)).unwrap(), "{name}");
            assert!(!keyspace.contains(key(number + 5000)).unwrap(), "{name}");
        }
    }
    database.close().unwrap();
    world.verify();
}

#[test]
fn changed_options_apply_to_what_is_written_from_then_on() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let before = loaded(&database, "k", KeyspaceOptions::new());
    let keyspace = database.open_keyspace("k").unwrap();
    keyspace
        .set_options(own().filter_bits(0).checkpoint_distance(None))
        .unwrap();
    database.checkpoint().unwrap();
    assert_eq!(parts(&database, "k"), before, "nothing is rewritten");
    for number in 0..4000 {
        keyspace.put(key(number), [8; 60]).unwrap();
    }
    database.checkpoint().unwrap();
    let after = parts(&database, "k");
    assert!(after.filters < before.filters / 2, "{after:?}");
    assert!(after.leaf_blocks < before.leaf_blocks * 2 / 3, "{after:?}");
    assert_eq!(all(&keyspace).len(), 4000);
    database.close().unwrap();
    world.verify();
}

/// Overwriting the same records with a tight and with a loose bound of space: the loose one writes
/// less.
#[test]
fn a_keyspace_has_its_own_space_amplification() {
    let written = |bound: SpaceAmplification| {
        let world = World::new(6);
        let database = world.open(&tiny());
        let options = KeyspaceOptions::new().space_amplification(bound);
        let keyspace = database.create_keyspace("k", options).unwrap();
        for round in 0..10u8 {
            for number in 0..2000 {
                let number = number * 7919 % 2000;
                keyspace.put(key(number), [round; 60]).unwrap();
            }
        }
        database.checkpoint().unwrap();
        let bytes = database.metrics().device_written.total();
        database.close().unwrap();
        bytes
    };
    let tight = written(SpaceAmplification::from(1.1));
    let loose = written(SpaceAmplification::Unbounded);
    assert!(loose < tight, "{loose} of {tight}");
}
