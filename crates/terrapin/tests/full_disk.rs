//! Full disks (D10): puts are refused, deletes pass, and room that returns is noticed.

mod common;

use common::{World, key, tiny, value};
use terrapin::{CheckpointDistance, Durability, ErrorKind, KeyspaceOptions};
use terrapin_disk::sim::{Fault, FaultError, Op};

#[test]
fn a_full_disk_refuses_puts_accepts_deletes_and_recovers() {
    let world = World::new(8);
    let options = tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .block_bytes(2048)
        .fanout(16)
        .stall_limit(std::time::Duration::from_secs(5));
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes() + (8 << 20));
    let mut stored = 0;
    let refused = loop {
        match keyspace.put(key(stored), value(stored, 100)) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100_000, "the disk never filled");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(stored > 20_000, "{stored}");
    assert_eq!(
        keyspace.get(key(5)).unwrap().as_deref(),
        Some(&value(5, 100)[..]),
        "reads go on"
    );
    let mut deleted = 0;
    while deleted < stored * 2 / 3 {
        keyspace
            .delete(key(deleted))
            .unwrap_or_else(|e| panic!("delete {deleted} of {stored}: {e}"));
        deleted += 1;
    }
    resume(&world, &keyspace);
    assert_eq!(keyspace.iter().count() as u64, stored - deleted + 1);
    database.close().unwrap();
    world.verify();
}

/// Range deletes pass on a full disk, in any durability, and make room. Their merges come in
/// slices.
#[test]
fn a_full_disk_accepts_range_deletes() {
    for (seed, durability) in [
        (61, Durability::Process),
        (62, Durability::Sync),
        (63, Durability::None),
    ] {
        for killed in [false, true] {
            let world = World::new(seed);
            let options = tiny()
                .memory(4 << 20)
                .group_bytes(16 << 10)
                .block_bytes(2048)
                .stall_limit(std::time::Duration::from_secs(5));
            let database = world.open(&options);
            let keyspace = database.default_keyspace();
            database.checkpoint().unwrap();
            world.disk.set_capacity(world.disk.used_bytes() + (8 << 20));
            let mut stored = 0_u64;
            let refused = loop {
                match keyspace.put(stored.to_be_bytes(), value(stored, 100)) {
                    Ok(()) => stored += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
            // Many ranges, some over others, with keys between them that stay.
            let mut is_left = vec![true; stored as usize];
            for from in (0..stored).step_by(150) {
                let to = (from + 200).min(stored);
                let range = (from + 1).to_be_bytes()..to.to_be_bytes();
                keyspace
                    .delete_range_with(range, durability)
                    .unwrap_or_else(|error| panic!("{from} of {stored}: {error}"));
                is_left[(from as usize + 1).min(to as usize)..to as usize].fill(false);
                if from % 7 == 0 {
                    world.sim.step();
                }
            }
            let check = |keyspace: &terrapin::Keyspace| {
                let keys = keyspace.range(..u64::MAX.to_be_bytes()).keys();
                let keys = keys.map(|key| key.unwrap().to_vec());
                let left = (0..stored).filter(|n| is_left[*n as usize]);
                assert!(keys.eq(left.map(|n| n.to_be_bytes().to_vec())));
            };
            check(&keyspace);
            let (database, keyspace) = match killed {
                false => (database, keyspace),
                true => {
                    drop(keyspace);
                    let is_logged = durability != Durability::None;
                    // An unlogged write is lost, unless it reached a tree.
                    let _ = is_logged || database.checkpoint().is_ok();
                    world.kill(database);
                    let database = world.open(&options);
                    let keyspace = database.default_keyspace();
                    check(&keyspace);
                    (database, keyspace)
                }
            };
            resume(&world, &keyspace);
            keyspace.delete("again").unwrap();
            check(&keyspace);
            database.close().unwrap();
            world.verify();
        }
    }
}

/// Puts a record as soon as a disk that was full accepts it. That must happen soon.
fn resume(world: &World, keyspace: &terrapin::Keyspace) {
    let mut tries = 0;
    while let Err(error) = keyspace.put("again", "1") {
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        tries += 1;
        assert!(tries < 200, "writes never resumed: {error}");
        world.sim.advance_ns(2_000_000_000);
        world.sim.settle();
    }
}

/// Keys in an order other than their own.
fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Each few scattered deletes are merged before the next ones come. Guards against three ways to
/// use up the space. Leaves took the puts that buffers held for them, and segments freed nothing. A
/// slice of a few records took more than the reserve. Each of many small checkpoints took a block
/// of the log.
#[test]
fn scattered_deletes_do_not_use_up_a_full_disk() {
    for (more, pause) in [(0, 1), (1, 1), (2, 3), (3, 7), (4, 12), (5, 2000)] {
        let world = World::new(40 + more);
        let options = tiny()
            .memory(4 << 20)
            .group_bytes(16 << 10)
            .block_bytes(4096)
            .stall_limit(std::time::Duration::from_secs(5));
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        database.checkpoint().unwrap();
        let room = (12 << 20) + more * (100 << 10);
        world.disk.set_capacity(world.disk.used_bytes() + room);
        let mut stored = 0;
        let refused = loop {
            match keyspace.put(scattered(stored), [stored as u8; 700]) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let gone = |number: &u64| !number.is_multiple_of(10);
        for number in (0..stored).filter(gone) {
            keyspace
                .delete(scattered(number))
                .unwrap_or_else(|e| panic!("delete {number} of {stored}, pause {pause}: {e}"));
            if number % pause == 0 {
                world.sim.advance_ns(200_000_000);
                world.sim.settle();
            }
        }
        resume(&world, &keyspace);
        let left = (0..stored).filter(|number| !gone(number)).count();
        assert_eq!(keyspace.iter().count(), left + 1);
        database.close().unwrap();
        world.verify();
    }
}

/// Deletes are merged beside their writer. Guards against merges of one or two deletes in a leaf,
/// each of which left the file larger, until later deletes had no room. Where the writer and the
/// merges meet depends on the numbers.
#[test]
fn deletes_beside_merges_do_not_use_up_a_full_disk() {
    for (number, every, steps) in [(114, 64, 64), (171, 8, 16)] {
        let world = World::new(number);
        let options = tiny()
            .memory(4 << 20)
            .group_bytes(16 << 10)
            .ring_bytes(256 << 10)
            .log_segment_bytes(256 << 10)
            .stall_limit(std::time::Duration::from_secs(20));
        let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % bound
        };
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        database.checkpoint().unwrap();
        let room = (20 << 20) + below(3 << 20);
        world.disk.set_capacity(world.disk.used_bytes() + room);
        world.sim.set_breathing(false);
        let merge = |steps: u64| (0..steps).all(|_| world.sim.step());
        let mut stored = 0;
        let refused = loop {
            match keyspace.put(scattered(stored), [stored as u8; 700]) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            if below(64) == 0 {
                merge(below(200));
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        // The search that found these numbers drew the other two here.
        for _ in 0..2 {
            below(5);
        }
        for key in (0..stored).filter(|number| !number.is_multiple_of(10)) {
            keyspace
                .delete(scattered(key))
                .unwrap_or_else(|e| panic!("number {number}, delete {key} of {stored}: {e}"));
            if below(every) == 0 {
                if below(4) == 0 {
                    world.sim.advance_ns(20_000_000);
                }
                merge(below(steps));
            }
        }
        resume(&world, &keyspace);
        assert_eq!(keyspace.iter().count() as u64, stored.div_ceil(10) + 1);
        database.close().unwrap();
        world.verify();
    }
}

/// Guards against a coordinator that rested while there was enough room, and then looked for more
/// only once there was a memtable to merge.
#[test]
fn room_that_returns_is_noticed_without_a_memtable_to_merge() {
    let world = World::new(45);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    database.checkpoint().unwrap();
    world.sim.settle();
    world.disk.set_capacity(world.disk.used_bytes());
    let create = |i: u32| database.create_keyspace(&i.to_string(), KeyspaceOptions::default());
    let refused = (0..100_000).find_map(|i| create(i).err());
    let refused = refused.expect("the disk never fills");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    world.sim.settle();
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(2_000_000_000);
    world.sim.settle();
    keyspace.put("again", "1").unwrap();
    database.close().unwrap();
    world.verify();
}

/// Another program may free space while there are deletes to merge. The engine must notice it as
/// soon as otherwise.
#[test]
fn deletes_do_not_delay_the_notice_of_returned_room() {
    let world = World::new(46);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    database.checkpoint().unwrap();
    world
        .disk
        .set_capacity(world.disk.used_bytes() + (12 << 20));
    let refused = (0..1_000_000u32)
        .find_map(|number| keyspace.put(number.to_be_bytes(), [7; 700]).err())
        .expect("the disk never fills");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    // The earlier puts are together in one memtable and are merged.
    for _ in 0..3 {
        world.sim.advance_ns(2_000_000_000);
        world.sim.settle();
    }
    let refused = keyspace.put("again", "1").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    world.sim.set_breathing(false);
    world.disk.set_capacity(1 << 30);
    keyspace.delete(0u32.to_be_bytes()).unwrap();
    world.sim.advance_ns(2_000_000_000);
    world.sim.settle();
    keyspace.put("again", "1").unwrap();
    world.sim.set_breathing(true);
    database.close().unwrap();
    world.verify();
}

/// Guards against a disk that seemed full with large memtables, and no longer with empty ones.
/// Every few memtables, puts were refused for the length of a checkpoint.
#[test]
fn memtables_get_smaller_before_puts_are_refused() {
    let world = World::new(15);
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .block_bytes(2048)
        .fanout(16)
        .checkpoint_distance(CheckpointDistance::Auto);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let records = 20_000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    database.checkpoint().unwrap();
    world.sim.settle();
    let large = keyspace.checkpoint_distance();
    assert!(large > 100, "{large}");
    // Large memtables and their merges may need 26 MiB; small ones need less than one.
    world.disk.set_capacity(world.disk.used_bytes() + (9 << 20));
    let mut smallest = large;
    for i in 0..5 * records {
        let number = i * 7919 % records;
        keyspace
            .put(key(number), value(i, 200))
            .unwrap_or_else(|e| panic!("put {i}: {e}"));
        smallest = smallest.min(keyspace.checkpoint_distance());
    }
    assert_eq!(smallest, 1);
    // Another program fills the disk.
    world.disk.set_capacity(world.disk.used_bytes());
    let refused = (0..records)
        .find_map(|i| keyspace.put(key(i), value(i, 2000)).err())
        .expect("nothing is left");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    let said = refused.to_string();
    assert!(said.contains("bytes free"), "{said}");
    assert!(said.contains("bytes needed"), "{said}");
    for i in 0..records / 2 {
        keyspace
            .delete(key(i))
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
    }
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(2_000_000_000);
    world.sim.settle();
    for i in 0..records {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    let again = keyspace.checkpoint_distance();
    assert!(again > 100, "there is room again, and it is {again}");
    assert_eq!(keyspace.iter().count() as u64, records);
    database.close().unwrap();
    world.verify();
}

/// Guards against an open that waited for ever. Each checkpoint that found the disk full again
/// reported that memtables might be free, and the open waited for the next one.
#[test]
fn an_open_with_a_log_larger_than_memory_fails_on_a_full_disk() {
    let world = World::new(47);
    let large = tiny()
        .memory(32 << 20)
        .log_bytes_max(32 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(2048));
    let database = world.open(&large);
    let keyspace = database.default_keyspace();
    let records = 20_000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    drop(keyspace);
    world.kill(database);
    let small = tiny().memory(1 << 20);
    let refused = || {
        let refused = world.try_open(&small).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    };
    world.disk.set_capacity(world.disk.used_bytes());
    refused();
    world.disk.set_capacity(u64::MAX);
    // A quota: the disk reports room that the file system then refuses.
    let quota = Fault::nth(1, FaultError::NoSpace).on(Op::Allocate);
    world.disk.inject(quota.of("data").lasting());
    refused();
    world.disk.clear_faults();
    let database = world.open(&small);
    assert_eq!(database.default_keyspace().iter().count() as u64, records);
    database.close().unwrap();
    world.verify();
}

#[test]
fn singly_synced_deletes_pass_on_a_full_disk_though_each_takes_a_log_block() {
    let world = World::new(11);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let records = 400;
    for i in 0..records {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes());
    let before = database.metrics().log_bytes_written;
    for i in 0..records {
        keyspace
            .delete_with(key(i), Durability::Sync)
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
    }
    let after = database.metrics().log_bytes_written;
    assert!(after - before > 20 * (64 << 10), "{before} to {after}");
    assert_eq!(keyspace.iter().count(), 0);
    world.disk.set_capacity(u64::MAX);
    database.close().unwrap();
    world.verify();
}

#[test]
fn keyspaces_are_cleared_and_dropped_one_by_one_on_a_full_disk() {
    let world = World::new(12);
    world.sim.set_breathing(false);
    let database = world.open(&tiny().durability(Durability::Sync));
    let keyspace = database.default_keyspace();
    let name = |i: u64| format!("k{i}");
    for i in 0..60 {
        let other = database.keyspace(&name(i)).unwrap();
        other.put(key(i), value(i, 100)).unwrap();
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes());
    let before = database.metrics().log_bytes_written;
    for i in 0..200 {
        keyspace
            .clear()
            .unwrap_or_else(|e| panic!("clear {i}: {e}"));
    }
    for i in 0..60 {
        database
            .drop_keyspace(&name(i))
            .unwrap_or_else(|e| panic!("drop {i}: {e}"));
    }
    let after = database.metrics().log_bytes_written;
    assert!(after - before > 12 * (64 << 10), "{before} to {after}");
    assert_eq!(database.keyspaces().unwrap().len(), 1);
    world.disk.set_capacity(u64::MAX);
    database.close().unwrap();
    world.verify();
}

/// Guards against a log filled by new keyspaces, without room for the checkpoint that trims it.
/// A refused creation left its keyspace behind.
#[test]
fn a_full_disk_refuses_new_keyspaces_and_options_while_the_log_has_room_for_a_checkpoint() {
    let world = World::new(14);
    let database = world.open(&tiny().durability(Durability::Sync));
    let keyspace = database.default_keyspace();
    for i in 0..100 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes());
    let create = |i: u64| database.create_keyspace(&format!("k{i}"), KeyspaceOptions::default());
    let refused = |outcome: terrapin::Result<()>| {
        let error = outcome.expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    };
    let made = (0..1000).take_while(|&i| create(i).is_ok()).count();
    for i in 1000..1020 {
        refused(create(i).map(drop));
        refused(keyspace.set_checkpoint_distance(CheckpointDistance::Fixed(2)));
    }
    assert_eq!(database.keyspaces().unwrap().len(), made + 1);
    let kept = database.metrics().log_kept_bytes;
    database.checkpoint().unwrap();
    assert!(database.metrics().log_kept_bytes < kept / 2);
    for i in 0..100 {
        keyspace
            .delete(key(i))
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
    }
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(2_000_000_000);
    world.sim.settle();
    create(1020).unwrap();
    database.close().unwrap();
    world.verify();
}

/// Such batches go into the log on a full disk. Otherwise their memtables could not be merged in
/// slices and would fill up.
#[test]
fn batches_of_deletes_without_durability_pass_on_a_full_disk() {
    let world = World::new(16);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let records = 4000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    world.disk.set_capacity(world.disk.used_bytes());
    let mut refused = false;
    for i in 0..records {
        refused |= keyspace.put(key(i), "refused").is_err();
    }
    assert!(refused, "the disk is full");
    for first in (0..records).step_by(20) {
        let mut batch = database.batch();
        for i in first..first + 20 {
            batch.delete(&keyspace, key(i));
        }
        database
            .write_with(batch, Durability::None)
            .unwrap_or_else(|e| panic!("deletes from {first} on: {e}"));
    }
    assert_eq!(keyspace.iter().count(), 0);
    database.flush().unwrap();
    drop(keyspace);
    world.kill(database);
    let database = world.open(&tiny());
    assert_eq!(database.default_keyspace().iter().count(), 0);
    database.close().unwrap();
    world.verify();
}

/// Guards against spares of an earlier life with smaller log files. The log counted them as usable,
/// and the first one that a full disk could not lengthen blocked everything.
#[test]
fn a_full_disk_accepts_deletes_after_the_log_files_became_larger() {
    let world = World::new(12);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let spares = || {
        let names = world.disk.handle().list().unwrap();
        names.iter().filter(|n| n.starts_with("spare-")).count()
    };
    let mut records = 0;
    while records < 2000 || spares() < 2 {
        keyspace.put(key(records), value(records, 100)).unwrap();
        records += 1;
        assert!(records < 100_000, "{} spares", spares());
    }
    drop(keyspace);
    world.kill(database);

    let larger = tiny().log_segment_bytes(256 << 10).log_bytes_max(2 << 20);
    let database = world.open(&larger);
    world.sim.settle();
    world.disk.set_capacity(world.disk.used_bytes());
    let before = database.metrics().log_bytes_written;
    let keyspace = database.default_keyspace();
    for i in 0..records / 2 {
        keyspace
            .delete_with(key(i), Durability::Sync)
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
    }
    let after = database.metrics().log_bytes_written;
    assert!(after - before > 4 * (256 << 10), "{before} to {after}");
    database.checkpoint().unwrap();
    drop(keyspace);
    world.kill(database);
    let database = world.open(&larger);
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.iter().count() as u64, records / 2);
    keyspace.delete(key(records / 2)).unwrap();
    database.checkpoint().unwrap();
    drop(keyspace);
    world.kill(database);
    // A disk that is full already does not stop the open, whatever log size it asks for.
    world.disk.set_capacity(world.disk.used_bytes());
    let huge = larger.log_segment_bytes(2 << 20).log_bytes_max(16 << 20);
    let database = world.open(&huge);
    let keyspace = database.default_keyspace();
    for i in records / 2 + 1..records {
        keyspace
            .delete_with(key(i), Durability::Sync)
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
    }
    assert_eq!(keyspace.iter().count(), 0);
    world.disk.set_capacity(u64::MAX);
    database.close().unwrap();
    world.verify();
}

/// Guards against two flushes that free nothing. One moved all messages above a subtree down, and
/// the other left the delete in a buffer.
#[test]
fn deletes_reach_their_leaves_on_a_disk_that_others_filled() {
    let world = World::new(13);
    let options = tiny().group_bytes(16 << 10).block_bytes(2048).fanout(64);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let records = 40_000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    let tree = || database.stat().unwrap().keyspaces.swap_remove(0).tree;
    assert!(tree().figure("height") >= Some(2), "{:?}", tree());
    world.disk.set_capacity(world.disk.used_bytes());
    let mut buffered = tree().buffered_records;
    for i in (0..records).step_by(4001) {
        keyspace.delete(key(i)).unwrap();
        database
            .checkpoint()
            .unwrap_or_else(|e| panic!("delete {i}: {e}"));
        let before = std::mem::replace(&mut buffered, tree().buffered_records);
        assert!(buffered <= before, "delete {i}: {before} to {buffered}");
    }
    world.disk.set_capacity(u64::MAX);
    assert_eq!(keyspace.iter().count(), 40_000 - 10);
    database.close().unwrap();
    world.verify();
}

/// Guards against a merge that stayed in slices after another program had filled the disk for a
/// moment. Each slice rewrote the leaves that it reached.
#[test]
fn a_memtable_is_merged_whole_once_there_is_room_again() {
    let world = World::new(48);
    let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(64));
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let records = 6000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    world.sim.set_breathing(false);
    for i in 0..1500 {
        keyspace.put(key(4 * i), value(i, 90)).unwrap();
    }
    world.disk.set_capacity(world.disk.used_bytes());
    let checkpoints = || database.metrics().checkpoints;
    let before = checkpoints();
    let refused = database.checkpoint().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let between = checkpoints();
    assert!(between > before, "some slices were merged");
    world.disk.set_capacity(u64::MAX);
    database.checkpoint().unwrap();
    let after = checkpoints();
    assert!(
        after - between <= 4,
        "{before}, {between}, {after} checkpoints"
    );
    assert_eq!(keyspace.iter().count() as u64, records);
    database.close().unwrap();
    world.verify();
}
