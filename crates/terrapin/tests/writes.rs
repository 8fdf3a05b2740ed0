//! Batches, durability levels, limits, and what happens when the disk fails.

mod common;

use std::sync::atomic::Ordering;

use common::{LEVELS, World, all, failures, key, tiny, value};
use terrapin::{Durability, ErrorKind, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};

#[test]
fn a_batch_is_whole_across_keyspaces_and_later_operations_win() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let (a, b) = (
        database.keyspace("a").unwrap(),
        database.keyspace("b").unwrap(),
    );
    let mut batch = database.batch();
    batch.put(&a, "k", "1");
    batch.put(&b, "k", "2");
    batch.put(&a, "k", "3");
    batch.delete(&b, "gone");
    assert_eq!((batch.len(), batch.is_empty()), (4, false));
    database.write(&batch).unwrap();
    assert_eq!(a.get("k").unwrap().as_deref(), Some(&b"3"[..]));
    assert_eq!(b.get("k").unwrap().as_deref(), Some(&b"2"[..]));
    batch.clear();
    assert!(batch.is_empty());
    database.write(batch).unwrap();

    let mut long = database.batch();
    long.put(&a, "x", "y");
    long.put(&a, vec![0; KEY_BYTES_MAX + 1], "");
    let error = database.write(long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("65535"), "{error}");
    assert_eq!(a.get("x").unwrap(), None);

    let mut large = database.batch();
    while large.bytes() <= database.batch_bytes_max() {
        large.put(&a, "x", [0; 1000]);
    }
    for durability in LEVELS {
        let error = database.write_with(&large, durability).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{durability:?}");
    }
    assert_eq!(a.get("x").unwrap(), None);
    // One value is large where a record does not hold it.
    for durability in LEVELS {
        let long = vec![7; database.batch_bytes_max()];
        a.put_with("x", &long, durability).unwrap();
        assert_eq!(a.get("x").unwrap().as_deref(), Some(&long[..]));
    }
    a.delete("x").unwrap();

    let other = World::new(2);
    let foreign = other.open(&tiny());
    let mut batch = database.batch();
    batch.put(&foreign.default_keyspace(), "k", "v");
    // A writer of non-empty batches must not overlook the refused operation.
    assert!(!batch.is_empty());
    assert_eq!(batch.error().unwrap().kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        database.write(batch).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        database.write(foreign.batch()).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );

    let mut unlogged = database.batch();
    unlogged.put(&a, "u", "1");
    unlogged.put(&b, "u", "1");
    assert_eq!(
        database
            .write_with(unlogged, Durability::None)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn keys_and_values_have_limits_that_errors_name() {
    let world = World::new(3);
    let options = tiny()
        .memory(64 << 20)
        .ring_bytes(2 << 20)
        .log_segment_bytes(4 << 20)
        .log_bytes_max(64 << 20);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let (long_key, long_value) = (vec![7; KEY_BYTES_MAX], vec![8; VALUE_BYTES_MAX]);
    keyspace.put(&long_key, &long_value).unwrap();
    keyspace.put("", "").unwrap();
    assert_eq!(
        keyspace
            .put(vec![0; KEY_BYTES_MAX + 1], "")
            .unwrap_err()
            .kind(),
        ErrorKind::TooLarge
    );
    let length = terrapin::LARGE_VALUE_BYTES_MAX + 1;
    let error = keyspace.writer("k", length).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("1073741824"), "{error}");
    let made = terrapin::KeyspaceOptions::new().merge_operator("append");
    let appended = database.create_keyspace("appended", made).unwrap();
    let long = vec![0; VALUE_BYTES_MAX + 1];
    assert_eq!(appended.insert_if_absent("k", &long).unwrap(), None);
    assert_eq!(appended.get("k").unwrap().as_deref(), Some(&long[..]));
    database.close().unwrap();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    assert_eq!(
        keyspace.get(&long_key).unwrap().as_deref(),
        Some(&long_value[..])
    );
    assert_eq!(keyspace.get("").unwrap().as_deref(), Some(&b""[..]));
    assert_eq!(all(&keyspace).len(), 2);
    database.close().unwrap();
}

/// Guards against a block of the log and a checkpoint for each call.
#[test]
fn a_checkpoint_without_changes_writes_nothing() {
    let world = World::new(46);
    let database = world.open(&tiny());
    database.default_keyspace().put("a", "1").unwrap();
    database.checkpoint().unwrap();
    let written = || world.disk.stats_total().written_bytes;
    let before = (written(), database.metrics().log_kept_bytes);
    for _ in 0..100 {
        database.checkpoint().unwrap();
    }
    assert_eq!((written(), database.metrics().log_kept_bytes), before);
    database.default_keyspace().put("a", "2").unwrap();
    database.checkpoint().unwrap();
    assert!(written() > before.0);
    database.close().unwrap();
    world.verify();
}

/// Guards against flushes that each synced the mark of the one before. The log grew by 4 KiB a
/// flush, without bound.
#[test]
fn flushes_without_writes_write_nothing() {
    for mode in CrashMode::ALL {
        let world = World::new(5);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        for round in 0..5 {
            keyspace.put(key(round), "1").unwrap();
            database.flush().unwrap();
            world.sim.settle();
            let log = |metrics: terrapin::Metrics| {
                let bytes = (metrics.log_kept_bytes, metrics.log_disk_bytes);
                (metrics.log_syncs, metrics.log_bytes_written, bytes)
            };
            let (before, calls) = (log(database.metrics()), world.disk.io_count());
            for _ in 0..200 {
                database.flush().unwrap();
                world.sim.settle();
            }
            assert_eq!(log(database.metrics()), before);
            assert_eq!(world.disk.io_count(), calls);
        }
        drop(keyspace);
        world.cut_power(database, mode);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        assert_eq!(all(&keyspace).len(), 5);
        keyspace.put(key(5), "1").unwrap();
        database.flush().unwrap();
        // All is synced, and the calls still return an error.
        let fault = Fault::nth(1, FaultError::Io).on(Op::Sync).of("data");
        world.disk.inject(fault.lasting());
        assert!(database.checkpoint().is_err());
        for _ in 0..3 {
            let error = database.flush().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        }
        drop(keyspace);
        world.cut_power(database, mode);
        world.disk.clear_faults();
        let database = world.open(&tiny());
        assert_eq!(all(&database.default_keyspace()).len(), 6);
        database.close().unwrap();
    }
}

#[test]
fn what_each_durability_promises() {
    for mode in CrashMode::ALL {
        let world = World::new(4);
        world.sim.set_breathing(false);
        let database = world.open(&tiny());
        let keyspace = database.keyspace("k").unwrap();
        let load = database.keyspace("load").unwrap();
        keyspace.put_with("synced", "1", Durability::Sync).unwrap();
        load.put_with("lost", "1", Durability::None).unwrap();
        load.put_with("flushed", "1", Durability::None).unwrap();
        assert_eq!(load.get("lost").unwrap().as_deref(), Some(&b"1"[..]));
        database.flush().unwrap();
        load.put_with("unflushed", "1", Durability::None).unwrap();
        keyspace.put("process", "1").unwrap();
        drop((keyspace, load));
        world.cut_power(database, mode);
        let database = world.open(&tiny());
        let (keyspace, load) = (
            database.keyspace("k").unwrap(),
            database.keyspace("load").unwrap(),
        );
        assert!(keyspace.contains("synced").unwrap());
        assert!(load.contains("lost").unwrap() && load.contains("flushed").unwrap());
        assert!(!load.contains("unflushed").unwrap());
        if mode == CrashMode::KeepAll {
            assert!(keyspace.contains("process").unwrap());
        }
        database.close().unwrap();
    }
}

#[test]
fn the_sync_interval_bounds_the_loss_of_a_power_cut() {
    let world = World::new(5);
    world.sim.set_breathing(false);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace.put("a", "1").unwrap();
    world.sim.settle();
    world.sim.advance_ns(101_000_000);
    world.sim.settle();
    keyspace.put("b", "1").unwrap();
    drop(keyspace);
    world.cut_power(database, CrashMode::LoseUnsynced);
    let database = world.open(&tiny());
    assert!(database.default_keyspace().contains("a").unwrap());
    assert!(!database.default_keyspace().contains("b").unwrap());
}

#[test]
fn a_failed_sync_of_the_log_poisons_and_reads_continue() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let told = failures(&database, ErrorKind::Poisoned);
    let keyspace = database.default_keyspace();
    keyspace.put_with("a", "1", Durability::Sync).unwrap();
    // A segment file is reopened from its name as a spare.
    world
        .disk
        .inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of("spare"));
    assert!(keyspace.put_with("b", "1", Durability::Sync).is_err());
    world.sim.settle();
    assert_eq!(
        keyspace.put("c", "1").unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(
        database.checkpoint().unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(keyspace.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(told.load(Ordering::SeqCst) > 0);
    assert_eq!(
        database.background_error().unwrap().kind(),
        ErrorKind::Poisoned
    );
    assert!(database.close().is_err());
    world.disk.crash_power(CrashMode::LoseUnsynced);
    let database = world.open(&tiny());
    assert!(database.default_keyspace().contains("a").unwrap());
}

#[test]
fn a_failed_sync_of_the_data_poisons_and_nothing_acknowledged_is_lost() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..50 {
        keyspace.put(key(i), value(i, 50)).unwrap();
    }
    world
        .disk
        .inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of("data"));
    assert!(database.checkpoint().is_err());
    assert_eq!(
        keyspace.put("c", "1").unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(all(&keyspace).len(), 50);
    drop(keyspace);
    world.kill(database);
    let database = world.open(&tiny());
    assert_eq!(all(&database.default_keyspace()).len(), 50);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_failed_write_of_a_page_is_reported_and_tried_again() {
    let world = World::new(8);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..200 {
        keyspace.put(key(i), value(i, 50)).unwrap();
    }
    world
        .disk
        .inject(Fault::nth(1, FaultError::Io).on(Op::Write).of("data"));
    let error = database.checkpoint().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("data"), "{error}");
    keyspace.put("more", "1").unwrap();
    database.checkpoint().unwrap();
    assert!(database.background_error().is_none());
    assert_eq!(all(&keyspace).len(), 201);
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_listener_that_panics_delays_neither_jobs_nor_the_close() {
    let world = World::new(9);
    let database = world.open(&tiny());
    database.on_background_error(|error| panic!("a listener's, on purpose: {error}"));
    let told = failures(&database, ErrorKind::Io);
    let keyspace = database.default_keyspace();
    for i in 0..200 {
        keyspace.put(key(i), value(i, 50)).unwrap();
    }
    world
        .disk
        .inject(Fault::nth(1, FaultError::Io).on(Op::Write).of("data"));
    let error = database.checkpoint().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(told.load(Ordering::SeqCst), 1);
    database.checkpoint().unwrap();
    database.close().unwrap();
    world.verify();
}

#[test]
fn a_log_file_that_cannot_be_removed_is_reported_until_one_can() {
    let world = World::new(10);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    world.sim.set_breathing(false);
    for op in [Op::Rename, Op::Remove] {
        let first = "log-0000000000000001";
        world
            .disk
            .inject(Fault::nth(1, FaultError::Io).on(op).of(first).lasting());
    }
    for i in 0..1000 {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    database.checkpoint().unwrap();
    let error = database.background_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    keyspace.put("more", "1").unwrap();
    database.checkpoint().unwrap();
    assert!(database.background_error().is_some());
    world.disk.clear_faults();
    keyspace.put("more", "2").unwrap();
    database.checkpoint().unwrap();
    assert!(database.background_error().is_none());
    // After a failed sync of the directory, it stays unknown whether the name is gone. The error
    // stays until the close.
    world
        .disk
        .inject(Fault::nth(1, FaultError::Io).on(Op::SyncDirectory));
    let failed = (0..5000).any(|i| keyspace.put(key(i), value(i, 200)).is_err());
    assert!(failed);
    world.sim.settle();
    let error = database.background_error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    drop(keyspace);
    world.kill(database);
}
