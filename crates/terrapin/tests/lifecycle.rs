//! Opens, closes, and the state that an open finds.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{World, all, failures, key, tiny, value};
use terrapin::verify::verify_on;
use terrapin::{ErrorKind, Options};
use terrapin_base::Env;
use terrapin_base::checksum::crc32c;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Landing, Op};
use terrapin_disk::{File, FileThrough, FilesThrough, SimDisk};

#[test]
fn a_clean_close_replays_nothing_and_a_drop_loses_nothing() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..500 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.close().unwrap();
    drop((database, keyspace));
    let database = world.open(&tiny());
    assert_eq!(database.metrics().replayed_records, 0);
    assert_eq!(all(&database.default_keyspace()).len(), 500);
    let keyspace = database.default_keyspace();
    for i in 500..510 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    // Handles are dropped in any order, and without a close.
    drop(database);
    drop(keyspace);
    let database = world.open(&tiny());
    assert_eq!(database.metrics().replayed_records, 10);
    assert_eq!(all(&database.default_keyspace()).len(), 510);
    database.close().unwrap();
    world.verify();
}

#[test]
fn close_releases_the_files_while_handles_live() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("k").unwrap();
    for i in 0..300 {
        keyspace.put(key(i), value(i, 50)).unwrap();
    }
    let snapshot = database.snapshot().unwrap();
    let mut range = keyspace.iter();
    range.next().unwrap().unwrap();
    database.close().unwrap();
    database.close().unwrap();
    let closed =
        |outcome: terrapin::Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Closed);
    closed(keyspace.put("a", "b"));
    closed(keyspace.get("a").map(drop));
    closed(snapshot.get(&keyspace, "a").map(drop));
    closed(database.keyspace("other").map(drop));
    closed(database.checkpoint());
    closed(database.flush());
    closed(database.snapshot().map(drop));
    let left: Vec<_> = range.collect();
    assert!(
        left.last()
            .unwrap()
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::Closed)
    );
    let again = world.open(&tiny());
    assert_eq!(all(&again.keyspace("k").unwrap()).len(), 300);
    again.close().unwrap();
}

/// Guards against handles of a closed database that kept its caches.
#[test]
fn close_frees_the_memory_of_the_caches_while_handles_live() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let tables = database.metrics().memory.record_bytes;
    let keyspace = database.keyspace("k").unwrap();
    for i in 0..500 {
        keyspace.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    let snapshot = database.snapshot().unwrap();
    for i in 0..500 {
        assert!(keyspace.contains(key(i)).unwrap());
        assert!(keyspace.get(key(i)).unwrap().is_some());
    }
    assert_eq!(all(&keyspace).len(), 500);
    let memory = database.metrics().memory;
    assert!(memory.block_bytes > 0 && memory.metadata_bytes > 0);
    assert!(memory.record_bytes > tables);
    database.close().unwrap();
    let memory = database.metrics().memory;
    assert_eq!((memory.block_bytes, memory.metadata_bytes), (0, 0));
    assert!(memory.record_bytes <= tables, "{}", memory.record_bytes);
    drop((keyspace, snapshot));
}

/// Guards against a listener whose handle kept the database, and everything else that it owned, for
/// ever.
#[test]
fn close_drops_listeners_and_what_they_own() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let held = Arc::new(());
    let listen = || {
        let holds = (database.clone(), held.clone());
        database.on_background_error(move |_| drop(holds.clone()));
    };
    listen();
    assert_eq!(Arc::strong_count(&held), 2);
    database.close().unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
    listen();
    assert_eq!(Arc::strong_count(&held), 1, "nothing fails any more");
}

/// Guards against a failed log that no job reported, because the job was over by then.
#[test]
fn a_listener_hears_once_of_a_failed_sync_in_the_last_drop() {
    let world = World::new(9);
    let database = world.open(&tiny());
    let told = failures(&database, ErrorKind::Poisoned);
    database.default_keyspace().put("a", "b").unwrap();
    let fault = Fault::nth(1, FaultError::Io).on(Op::Sync);
    world.disk.inject(fault.lasting());
    assert_eq!(told.load(Ordering::Relaxed), 0);
    drop(database);
    assert_eq!(told.load(Ordering::Relaxed), 1);
    world.disk.clear_faults();
    let database = world.open(&tiny());
    assert_eq!(all(&database.default_keyspace()).len(), 1);
    database.close().unwrap();
}

/// A file whose syncs wait while the gate is closed.
struct SlowFile {
    file: Arc<dyn File>,
    gate: Arc<SyncGate>,
}

#[derive(Default)]
struct SyncGate {
    is_closed: AtomicBool,
    /// Set when a thread has begun a sync.
    is_reached: AtomicBool,
}

impl FileThrough for SlowFile {
    const FLIES: bool = true;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn sync(&self) -> terrapin::Result<()> {
        while self.gate.is_closed.load(Ordering::SeqCst) {
            self.gate.is_reached.store(true, Ordering::SeqCst);
            pause(1);
        }
        self.file.sync()
    }
}

#[allow(clippy::disallowed_methods)] // the wait lets other threads err
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Guards against a second close that returned success at once.
#[test]
fn a_second_close_waits_for_the_first() {
    let gate = Arc::new(SyncGate::default());
    let for_files = gate.clone();
    let wrap = move |file| -> Arc<dyn File> {
        let gate = for_files.clone();
        Arc::new(SlowFile { file, gate })
    };
    let disk = FilesThrough::new(SimDisk::new(1).handle(), wrap);
    let database = tiny().open_on(Env::threads(), Arc::new(disk)).unwrap();
    database.default_keyspace().put("a", "b").unwrap();
    gate.is_closed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| database.close());
        while database.keyspaces().is_ok() || !gate.is_reached.load(Ordering::SeqCst) {
            pause(1);
        }
        let second = scope.spawn(|| {
            let outcome = database.close();
            assert!(
                !gate.is_closed.load(Ordering::SeqCst),
                "the first is not over"
            );
            outcome
        });
        pause(50);
        gate.is_closed.store(false, Ordering::SeqCst);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
}

#[test]
fn a_close_after_a_failed_one_returns_the_same_error() {
    let world = World::new(10);
    let database = world.open(&tiny());
    database.default_keyspace().put("a", "b").unwrap();
    let fault = Fault::nth(1, FaultError::Io).on(Op::Write).of("data");
    world.disk.inject(fault.lasting());
    let first = database.close().unwrap_err();
    let second = database.close().unwrap_err();
    assert_eq!(first.kind(), second.kind());
    assert_eq!(first.to_string(), second.to_string());
    drop(database);
    world.disk.clear_faults();
    let database = world.open(&tiny());
    assert_eq!(all(&database.default_keyspace()).len(), 1);
    database.close().unwrap();
}

#[test]
fn one_open_for_writing_at_a_time_beside_read_only_opens() {
    let world = World::new(3);
    let database = world.open(&tiny());
    database.default_keyspace().put("a", "1").unwrap();
    assert_eq!(
        world.try_open(&tiny()).unwrap_err().kind(),
        ErrorKind::Locked
    );
    database.close().unwrap();
    let before = world.disk.stats_total().writes;
    let reader = world.open(&tiny().read_only(true));
    let again = world.open(&tiny().read_only(true));
    assert_eq!(
        again.default_keyspace().get("a").unwrap().as_deref(),
        Some(&b"1"[..])
    );
    let refused = reader.default_keyspace().put("b", "2").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert_eq!(
        reader.keyspace("new").unwrap_err().kind(),
        ErrorKind::KeyspaceNotFound
    );
    assert_eq!(reader.checkpoint().unwrap_err().kind(), ErrorKind::ReadOnly);
    reader.close().unwrap();
    again.close().unwrap();
    assert_eq!(
        world.disk.stats_total().writes,
        before,
        "a read-only open writes nothing"
    );
}

#[test]
fn a_read_only_open_replays_in_memory_and_names_the_memory_it_needs() {
    let world = World::new(4);
    let options = tiny().checkpoint_distance(terrapin::CheckpointDistance::Fixed(100));
    let database = world.open(&options);
    let keyspace = database.keyspace("k").unwrap();
    for i in 0..1000 {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    drop(keyspace);
    world.kill(database);
    let reader = world.open(&options.clone().read_only(true));
    let keyspace = reader.open_keyspace("k").unwrap();
    assert_eq!(all(&keyspace).len(), 1000);
    assert_eq!(
        keyspace.get(key(7)).unwrap().as_deref(),
        Some(&value(7, 200)[..])
    );
    // The metrics name the bytes that a recovery must read, although the log is not open.
    let metrics = reader.metrics();
    assert!(metrics.log_kept_bytes > 200 * 1000);
    assert!(metrics.log_disk_bytes >= metrics.log_kept_bytes);
    assert_eq!(
        reader.stat().unwrap().log_kept_bytes,
        metrics.log_kept_bytes
    );
    drop(keyspace);
    reader.close().unwrap();
    // χ has to fit into memory only for an open that writes.
    let small = tiny()
        .memory(1 << 20)
        .log_bytes_max(128 << 10)
        .read_only(true);
    if let Err(error) = world.try_open(&small) {
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.to_string().contains("memory needed"), "{error}");
    }
}

/// Guards against an estimate of two and a half times the log's length. A replay takes less, and
/// nothing for records that trees hold already.
#[test]
fn a_read_only_open_with_too_little_memory_names_enough() {
    let world = World::new(16);
    let options = tiny()
        .memory(4 << 20)
        .log_bytes_max(1 << 20)
        .checkpoint_distance(terrapin::CheckpointDistance::Fixed(250));
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    let records = 3500;
    for i in 0..records {
        keyspace.put(key(i), value(i, 200)).unwrap();
    }
    assert!(database.metrics().log_kept_bytes > (2 << 20) * 36 / 100);
    drop(keyspace);
    world.kill(database);
    let read = |memory| {
        let options = tiny().memory(memory).log_bytes_max(128 << 10);
        world.try_open(&options.read_only(true))
    };
    let holds_all = |database: terrapin::Database| {
        assert_eq!(database.default_keyspace().iter().count() as u64, records);
    };
    holds_all(read(2 << 20).unwrap());
    let error = read(1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let message = error.to_string();
    let (_, needed) = message.split_once("memory needed, about").unwrap();
    let digits = needed.trim_start_matches(|c: char| !c.is_ascii_digit());
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let needed: u64 = digits.parse().unwrap();
    assert!((1 << 20..4 << 20).contains(&needed), "{message}");
    holds_all(read(needed).unwrap());
}

#[test]
fn missing_and_existing_databases_have_errors_of_their_own() {
    let world = World::new(5);
    assert_eq!(
        world
            .try_open(&tiny().create_if_missing(false))
            .unwrap_err()
            .kind(),
        ErrorKind::DatabaseNotFound
    );
    assert_eq!(
        world.try_open(&tiny().read_only(true)).unwrap_err().kind(),
        ErrorKind::DatabaseNotFound
    );
    assert!(world.disk.handle().list().unwrap().is_empty());
    world.open(&tiny().error_if_exists(true)).close().unwrap();
    // The refused opens changed no file.
    let before = world.disk.stats_total().writes;
    assert_eq!(
        world
            .try_open(&tiny().error_if_exists(true))
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(world.disk.stats_total().writes, before);
    world
        .open(&tiny().create_if_missing(false))
        .close()
        .unwrap();
}

#[test]
fn foreign_and_newer_files_are_refused_by_name() {
    for bytes in [7, 5000, 100_000] {
        let world = World::new(6);
        world.disk.plant("data", &vec![b'x'; bytes]);
        assert_eq!(
            world.try_open(&tiny()).unwrap_err().kind(),
            ErrorKind::NotADatabase
        );
    }

    let world = World::new(7);
    world.open(&tiny()).close().unwrap();
    let mut data = world.disk.content("data").unwrap();
    for slot in 0..2 {
        let sector = &mut data[slot * 4096..slot * 4096 + 512];
        sector[8..12].copy_from_slice(&9u32.to_le_bytes());
        let crc = crc32c(&sector[..508]);
        sector[508..].copy_from_slice(&crc.to_le_bytes());
    }
    world.disk.plant("data", &data);
    for options in [tiny(), tiny().read_only(true)] {
        let error = world.try_open(&options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        assert!(error.to_string().contains('9'), "{error}");
    }
}

#[test]
fn a_creation_killed_at_any_call_is_finished_by_the_next_open() {
    let calls = {
        let world = World::new(8);
        let before = world.disk.io_count();
        drop(world.open(&tiny()));
        world.disk.io_count() - before
    };
    assert!(calls > 10);
    for dies_at in 1..=calls {
        for mode in [
            None,
            Some(CrashMode::LoseUnsynced),
            Some(CrashMode::RandomSubset),
            Some(CrashMode::GarbageInFlight),
        ] {
            let world = World::new(8);
            world.disk.die_at_call(dies_at);
            let half = world.try_open(&tiny());
            world.sim.kill();
            match mode {
                None => world.disk.crash_process(),
                Some(mode) => world.disk.crash_power(mode),
            }
            drop(half);
            world.sim.kill();
            world.disarm();
            // Before the creation is complete, there is no database. `verify` once named a missing
            // log instead.
            match verify_on(world.env.clone(), world.disk.handle(), &Default::default()) {
                Ok(report) => {
                    // A slot that was being written is reported like any damaged one.
                    let found = &report.findings;
                    let is_torn = |slot: &str| {
                        slot.starts_with("superblock slot")
                            && mode == Some(CrashMode::GarbageInFlight)
                    };
                    assert!(found.iter().all(|f| is_torn(&f.place)), "{found:?}");
                }
                Err(error) => {
                    let read_only = world.try_open(&tiny().read_only(true)).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::DatabaseNotFound, "{error}");
                    assert_eq!(error.to_string(), read_only.to_string());
                }
            }
            let database = world
                .try_open(&tiny())
                .unwrap_or_else(|e| panic!("call {dies_at}, {mode:?}: {e}"));
            database.default_keyspace().put("a", "b").unwrap();
            database.close().unwrap();
            world.verify();
        }
    }
}

/// A write of the killed creation may land after the next open has looked for a database and before
/// it has the file's lock (D9).
#[test]
fn a_creation_whose_last_write_lands_during_the_next_open_is_finished_by_it() {
    for seed in 0..20 {
        for dies_at in 1..20 {
            let world = World::new(seed);
            world.disk.set_landing(Landing::Later);
            world.disk.die_at_call(dies_at);
            drop(world.try_open(&tiny()));
            world.sim.kill();
            let database = world
                .try_open(&tiny())
                .unwrap_or_else(|e| panic!("seed {seed}, call {dies_at}: {e}"));
            database.default_keyspace().put("a", "b").unwrap();
            database.close().unwrap();
            world.verify();
        }
    }
}

/// Each open begins a file of the log, and only a checkpoint trims the log. Guards against one more
/// file for each process that writes little and is killed.
#[test]
fn lives_without_a_checkpoint_do_not_grow_the_log_without_bound() {
    let world = World::new(12);
    let log_bytes = || {
        let disk = world.disk.handle();
        let files = disk.list().unwrap().into_iter();
        let log = files.filter(|name| name.starts_with("log-") || name.starts_with("spare-"));
        log.map(|name| world.disk.content(&name).unwrap().len() as u64)
            .sum::<u64>()
    };
    let file_bytes = 68 << 10;
    for life in 0..50 {
        let database = world.open(&tiny());
        assert_eq!(all(&database.default_keyspace()).len() as u64, life);
        database.default_keyspace().put(key(life), "life").unwrap();
        world.sim.settle();
        world.kill(database);
        let bytes = log_bytes();
        assert!(bytes <= (512 << 10) + 4 * file_bytes, "{life}: {bytes}");
    }
    world.verify();
}

#[test]
fn invalid_options_are_refused() {
    let world = World::new(9);
    for options in [
        tiny().memory(1000),
        tiny().ring_bytes(100_000),
        tiny().ring_bytes(1 << 63),
        tiny().block_bytes(100),
        tiny().group_bytes(10),
        tiny().space_amplification(0.5),
        tiny().background_threads(0),
        tiny().checkpoint_distance(terrapin::CheckpointDistance::Fixed(0)),
        tiny().log_bytes_max(1),
        Options::new().memory(4 << 20),
    ] {
        assert_eq!(
            world.try_open(&options).unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "{options:?}"
        );
    }
    let error = world.try_open(&Options::new().memory(4 << 20)).unwrap_err();
    assert!(error.to_string().contains("smallest 8388608"), "{error}");
    let smallest = world.open(&Options::new().memory(8 << 20));
    let longest = vec![b'k'; terrapin::KEY_BYTES_MAX];
    let largest = value(1, terrapin::VALUE_BYTES_MAX);
    smallest.default_keyspace().put(longest, largest).unwrap();
    smallest.close().unwrap();
    // The option was accepted, and nothing was compressed.
    let zstd = world.try_open(&tiny().compression(terrapin::Compression::Zstd));
    match zstd.map_err(|error| error.kind()) {
        Ok(database) if cfg!(feature = "zstd") => drop(database.close().unwrap()),
        outcome => assert_eq!(outcome.unwrap_err(), ErrorKind::Unsupported),
    }
    let error = world
        .try_open(&tiny().checkpoint_distance(terrapin::CheckpointDistance::Fixed(5000)))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(
        error.to_string().contains("largest possible 128"),
        "{error}"
    );
}

#[test]
fn blocks_smaller_than_the_files_unit_are_refused_at_open() {
    let world = World::new(15);
    world.disk.set_alignment(4096);
    let small = tiny().group_bytes(64 << 10).memory(4 << 20);
    let fitting = small.clone().block_bytes(4096);
    let refused = || {
        let error = world.try_open(&small).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("smallest"), "{error}");
    };
    // Once for a new database, and once for an existing one.
    refused();
    let database = world.open(&fitting);
    database.default_keyspace().put("a", "1").unwrap();
    database.close().unwrap();
    refused();
    let reader = world.open(&small.clone().read_only(true));
    assert_eq!(all(&reader.default_keyspace()).len(), 1);
    drop(reader);
    let database = world.open(&fitting);
    assert_eq!(all(&database.default_keyspace()).len(), 1);
    database.close().unwrap();
}
