//! Stores far larger than their memory, the dial, the budget, and the log's length.

mod common;

use common::{Map, World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind};

#[test]
fn a_store_of_ten_times_its_memory_keeps_its_budget_and_its_records() {
    let world = World::new(1);
    let options = tiny()
        .memory(1 << 20)
        .group_bytes(8 << 10)
        .checkpoint_distance(CheckpointDistance::Auto);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let (records, bytes) = (26_000, 400);
    let mut peak = 0;
    for i in 0..records {
        keyspace.put(key(i), value(i, bytes)).unwrap();
        if i % 64 == 0 {
            peak = peak.max(database.metrics().memory.total_bytes());
        }
    }
    database.checkpoint().unwrap();
    let stat = database.stat().unwrap();
    assert!(stat.data_live_bytes > 10 << 20, "{}", stat.data_live_bytes);
    assert!(
        stat.keyspaces[0].tree.figure("height") >= Some(3),
        "{:?}",
        stat.keyspaces[0].tree
    );
    assert!(
        peak <= 1300 << 10,
        "the budget of 1 MiB was exceeded: {peak}"
    );
    for i in (0..records).step_by(97) {
        assert_eq!(
            keyspace.get(key(i)).unwrap().as_deref(),
            Some(&value(i, bytes)[..]),
            "record {i}"
        );
    }
    assert_eq!(keyspace.iter().count(), records as usize);
    database.close().unwrap();
    let report = world.verified();
    assert!(report.leaf_records + report.buffered_records >= records);
}

#[test]
fn the_space_of_nine_tenths_deleted_returns() {
    let world = World::new(2);
    let database = world.open(
        &tiny()
            .group_bytes(64 << 10)
            .block_bytes(4096)
            .fanout(64)
            .memory(8 << 20),
    );
    let keyspace = database.default_keyspace();
    let records = 40_000;
    for i in 0..records {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in 0..records {
        if i % 10 != 0 {
            keyspace.delete(key(i)).unwrap();
        }
    }
    database.checkpoint().unwrap();
    assert_eq!(keyspace.iter().count(), records as usize / 10);
    database.close().unwrap();
    let remains = records / 10 * 108;
    let (ring, reserve) = (64 << 10, 8 * (64 << 10) + (128 << 10));
    let log: u64 = world
        .disk
        .handle()
        .list()
        .unwrap()
        .iter()
        .filter(|n| n.starts_with("log-") || n.starts_with("spare-"))
        .map(|n| world.disk.content(n).map_or(0, |c| c.len() as u64))
        .sum();
    let used = world.disk.used_bytes();
    // Of 4.3 MB. The 16 KiB are the superblocks, the catalog and the nodes of this small tree.
    assert!(
        used <= 2 * remains + log + ring + reserve + (16 << 10),
        "{used} used, {remains} remain, log {log}"
    );
    world.verify();
}

#[test]
fn a_hot_key_fills_neither_log_nor_memory() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..30_000u64 {
        keyspace.put("hot", value(i, 64)).unwrap();
        let metrics = database.metrics();
        assert!(
            metrics.log_kept_bytes < 1 << 20,
            "{}",
            metrics.log_kept_bytes
        );
        assert!(
            metrics.memory.memtable_bytes < 1 << 20,
            "{}",
            metrics.memory.memtable_bytes
        );
    }
    assert!(database.metrics().checkpoints > 10);
    database.close().unwrap();
}

#[test]
fn a_quiet_keyspace_does_not_pin_the_log() {
    let world = World::new(4);
    let options = tiny().log_bytes_max(256 << 10);
    let database = world.open(&options);
    let (quiet, busy) = (
        database.keyspace("quiet").unwrap(),
        database.keyspace("busy").unwrap(),
    );
    quiet.put("a", "1").unwrap();
    for i in 0..20_000 {
        busy.put(key(i), value(i, 60)).unwrap();
        if i % 100 == 0 {
            let kept = database.metrics().log_kept_bytes;
            assert!(kept < 768 << 10, "{kept} bytes of log after {i} puts");
        }
    }
    drop((quiet, busy));
    world.kill(database);
    let database = world.open(&options);
    assert!(database.keyspace("quiet").unwrap().contains("a").unwrap());
    assert_eq!(database.keyspace("busy").unwrap().iter().count(), 20_000);
    database.close().unwrap();
}

#[test]
fn chi_changes_while_the_store_runs_and_is_kept() {
    let world = World::new(5);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Auto));
    let keyspace = database.keyspace("k").unwrap();
    let mut expected = Map::new();
    for round in 0..12u64 {
        let chi = [1, 16, 4][round as usize % 3];
        keyspace
            .set_checkpoint_distance(CheckpointDistance::Fixed(chi))
            .unwrap();
        assert_eq!(keyspace.checkpoint_distance(), chi);
        for i in 0..300 {
            keyspace.put(key(i), value(round * 1000 + i, 80)).unwrap();
            expected.insert(key(i), value(round * 1000 + i, 80));
        }
        let held = database.metrics().memtable_bytes;
        assert!(
            held <= 2 * u64::from(chi) * 4096 + 200,
            "{held} in memtables at χ = {chi}"
        );
    }
    assert_eq!(all(&keyspace), expected);
    let error = keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(1_000_000))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(
        error.to_string().contains("largest possible 128"),
        "{error}"
    );
    drop(keyspace);
    world.kill(database);
    let database = world.open(&tiny().checkpoint_distance(CheckpointDistance::Auto));
    assert_eq!(database.keyspace("k").unwrap().checkpoint_distance(), 4);
    database.close().unwrap();
    let database = world.open(&tiny());
    assert_eq!(database.keyspace("k").unwrap().checkpoint_distance(), 4);
    database
        .set_checkpoint_distance(CheckpointDistance::Fixed(2))
        .unwrap();
    assert_eq!(database.default_keyspace().checkpoint_distance(), 2);
    assert_eq!(database.keyspace("later").unwrap().checkpoint_distance(), 2);
    database.close().unwrap();
    // Existing keyspaces keep this χ. Later keyspaces had it until the close.
    let database = world.open(&tiny());
    assert_eq!(database.keyspace("k").unwrap().checkpoint_distance(), 2);
    assert_eq!(database.keyspace("later").unwrap().checkpoint_distance(), 4);
    database.close().unwrap();
}

/// Guards against a keyspace's χ that could be changed but not unset.
#[test]
fn a_keyspace_can_return_to_the_chi_of_the_database() {
    let world = World::new(12);
    let with = |chi| tiny().checkpoint_distance(CheckpointDistance::Fixed(chi));
    let database = world.open(&with(4));
    let own = database.keyspace("own").unwrap();
    let other = database.keyspace("other").unwrap();
    let set = |database: &Database| -> Vec<_> {
        let all = database.keyspaces().unwrap();
        all.iter().map(|k| k.options.checkpoint_distance).collect()
    };
    database
        .set_checkpoint_distance(CheckpointDistance::Fixed(2))
        .unwrap();
    own.set_checkpoint_distance(None).unwrap();
    assert_eq!(own.checkpoint_distance(), 2, "the database's");
    assert_eq!(
        set(&database)[1..],
        [None, Some(CheckpointDistance::Fixed(2))]
    );
    database.set_checkpoint_distance(None).unwrap();
    assert_eq!(own.checkpoint_distance(), 4, "what it was opened with");
    assert_eq!(other.checkpoint_distance(), 4);
    drop((own, other));
    world.kill(database);
    let database = world.open(&with(8));
    assert_eq!(set(&database), [None; 3]);
    assert_eq!(database.keyspace("own").unwrap().checkpoint_distance(), 8);
    database.close().unwrap();
}

#[test]
fn lowering_chi_seals_at_once() {
    let world = World::new(6);
    world.sim.set_breathing(false);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(32))
        .unwrap();
    for i in 0..200 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    let before = database.metrics();
    assert_eq!(before.checkpoint_debt_bytes, 0);
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(2))
        .unwrap();
    assert!(database.metrics().checkpoint_debt_bytes > 0);
    world.sim.settle();
    let after = database.metrics();
    assert_eq!(
        (after.checkpoint_debt_bytes, after.checkpoints),
        (0, before.checkpoints + 1)
    );
    database.close().unwrap();
}

#[test]
fn the_memory_budget_changes_at_run_time() {
    let world = World::new(7);
    let database = world.open(
        &tiny()
            .memory(8 << 20)
            .checkpoint_distance(CheckpointDistance::Auto),
    );
    let keyspace = database.default_keyspace();
    for i in 0..5000 {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    let large = keyspace.checkpoint_distance();
    assert!(large > 64, "{large}");
    assert_eq!(
        database.set_memory(1000).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    database.set_memory(1 << 20).unwrap();
    assert!(keyspace.checkpoint_distance() < large / 4);
    world.sim.settle();
    for i in 0..2000 {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    world.sim.settle();
    let memory = database.metrics().memory;
    assert!(memory.total_bytes() <= 1300 << 10, "{memory:?}");
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(60))
        .unwrap();
    database.set_memory(8 << 20).unwrap();
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(500))
        .unwrap();
    let error = database.set_memory(1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(keyspace.iter().count(), 5000);
    database.close().unwrap();
}

#[test]
fn memory_can_grow_to_less_than_a_stored_chi_needs() {
    let world = World::new(7);
    let database = world.open(&tiny().memory(8 << 20));
    database
        .default_keyspace()
        .set_checkpoint_distance(CheckpointDistance::Fixed(500))
        .unwrap();
    database.close().unwrap();
    let database = world.open(&tiny().memory(1 << 20));
    let keyspace = database.default_keyspace();
    assert!(keyspace.checkpoint_distance() < 200);
    database.set_memory(2 << 20).unwrap();
    let error = database.set_memory((2 << 20) - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    database.set_memory(8 << 20).unwrap();
    assert_eq!(keyspace.checkpoint_distance(), 500);
    database.close().unwrap();
}

#[test]
fn a_memtable_holds_no_more_units_than_one_merge_takes() {
    let world = World::new(14);
    let options = tiny()
        .memory(1 << 30)
        .checkpoint_distance(CheckpointDistance::Auto);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    assert_eq!(keyspace.checkpoint_distance(), 16_384, "on auto");
    keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(16_384))
        .unwrap();
    let error = keyspace
        .set_checkpoint_distance(CheckpointDistance::Fixed(16_385))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error.to_string().contains("largest possible 16384"),
        "{error}"
    );
    database.close().unwrap();
}

#[test]
fn writers_that_outrun_the_disk_are_slowed() {
    let world = World::new(9);
    world.sim.set_breathing(false);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..5000u64 {
        keyspace.put(key(i), value(i, 100)).unwrap();
        let held = database.metrics().memtable_bytes;
        // Two memtables of χ·L = 16 KiB, and the write that fills one.
        assert!(held <= (32 << 10) + 300, "{held}");
    }
    let metrics = database.metrics();
    assert!(metrics.write_wait_ns > 0);
    assert_eq!(metrics.writes_refused, 0);
    database.close().unwrap();
}

#[test]
fn writers_that_outrun_the_log_wait_before_its_ring_is_full() {
    let world = World::new(12);
    world.sim.set_breathing(false);
    let ring = 256 << 10;
    let options = tiny()
        .ring_bytes(ring)
        .memory(16 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(256));
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let mut written = 0;
    while database.metrics().waits.log.count == 0 {
        keyspace.put(key(written), value(written, 1000)).unwrap();
        written += 1;
        assert!(written < 10_000, "nobody ever waited");
    }
    let bytes = written * 1000;
    assert!(
        (ring / 4 * 3 - 8000..ring / 6 * 5).contains(&bytes),
        "{bytes}"
    );
    for i in written..5 * written {
        keyspace.put(key(i), value(i, 1000)).unwrap();
    }
    let waits = database.metrics().waits.log;
    assert!(waits.count > 1 && waits.max_ns <= 5_000_000, "{waits:?}");
    database.close().unwrap();
}

#[test]
fn a_permanent_disk_failure_ends_waits_with_a_typed_error() {
    use terrapin_disk::sim::{Fault, FaultError, Op};
    let world = World::new(10);
    let database = world.open(&tiny().stall_limit(std::time::Duration::from_secs(2)));
    let keyspace = database.default_keyspace();
    world.disk.inject(
        Fault::nth(1, FaultError::Io)
            .on(Op::Write)
            .of("data")
            .lasting(),
    );
    let error = (0..5000)
        .find_map(|i| keyspace.put(key(i), value(i, 100)).err())
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Stalled, "{error}");
    assert!(
        error.to_string().contains("last background error"),
        "{error}"
    );
    assert!(keyspace.get(key(0)).unwrap().is_some());
    world.disk.clear_faults();
    database.checkpoint().unwrap();
    keyspace.put("a", "b").unwrap();
    database.close().unwrap();
    world.verify();
}

#[test]
fn memtables_take_their_memory_from_full_caches() {
    let world = World::new(11);
    let database = world.open(
        &tiny()
            .memory(4 << 20)
            .checkpoint_distance(CheckpointDistance::Auto),
    );
    let keyspace = database.default_keyspace();
    for i in 0..20_000 {
        keyspace.put(key(i), value(i, 300)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in 0..20_000 {
        keyspace.get(key(i)).unwrap();
    }
    let full = database.metrics().memory;
    assert!(
        full.total_bytes() > 3 << 20,
        "the caches are full: {full:?}"
    );
    // A memtable takes a chunk of half a MiB at once. Caches make room for it within the next few
    // puts.
    let mut over = 0;
    for i in 0..10_000 {
        keyspace.put(key(i), value(i + 1, 300)).unwrap();
        let memory = database.metrics().memory;
        assert!(
            memory.total_bytes() <= (4 << 20) + (640 << 10),
            "{memory:?}"
        );
        over += u64::from(memory.total_bytes() > (4 << 20) / 10 * 11);
    }
    assert!(
        over < 300,
        "{over} of 10,000 puts found more than the budget taken"
    );
    database.close().unwrap();
}

/// Durable data stays durable although its old space cannot be returned. That is a background error
/// and no failed checkpoint.
#[test]
fn a_checkpoint_does_not_fail_for_space_that_cannot_be_returned() {
    use terrapin_disk::sim::{Fault, FaultError, Op};
    for op in [Op::PunchHole, Op::SetBytes] {
        let world = World::new(13);
        let database = world.open(&tiny());
        let keyspaces = [
            database.default_keyspace(),
            database.keyspace("other").unwrap(),
        ];
        for i in 0..20_000 {
            let keyspace = &keyspaces[i as usize % 2];
            keyspace.put(key(i), value(i, 100)).unwrap();
        }
        database.checkpoint().unwrap();
        // The file is shorter or has holes.
        let cleared = if op == Op::SetBytes { 2 } else { 1 };
        keyspaces[..cleared].iter().for_each(|k| k.clear().unwrap());
        let fault = Fault::nth(1, FaultError::Io).on(op).of("data").lasting();
        world.disk.inject(fault);
        database.checkpoint().unwrap();
        let told = database.background_error().unwrap();
        assert_eq!(told.kind(), ErrorKind::Io, "{op:?}: {told}");
        database.close().unwrap();
        world.disk.clear_faults();
        let database = world.open(&tiny());
        assert_eq!(database.metrics().replayed_records, 0);
        database.close().unwrap();
        world.verify();
    }
}
