//! The same engine on threads and a real directory.

mod common;

use std::time::Duration;

use common::Directory;
use terrapin::{CheckpointDistance, Database, Durability, ErrorKind, Options};

fn options() -> Options {
    Options::new()
        .memory(16 << 20)
        .system_cache(true)
        .group_bytes(64 << 10)
        .log_segment_bytes(4 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(8))
}

fn key(thread: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&thread.to_be_bytes());
    key
}

#[test]
fn many_threads_write_read_scan_and_checkpoint_at_once() {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 20_000;
    let directory = Directory::new("threads");
    let database = options().open(&directory.0).unwrap();
    let keyspace = database.keyspace("k").unwrap();
    let pairs = database.keyspace("pairs").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, keyspace, pairs) = (database.clone(), keyspace.clone(), pairs.clone());
            scope.spawn(move || {
                for i in 0..RECORDS {
                    keyspace.put(key(thread, i), [thread as u8; 100]).unwrap();
                    if i % 64 == 0 {
                        let mut batch = database.batch();
                        batch.put(
                            &pairs,
                            [b"left", &key(thread, 0)[..]].concat(),
                            i.to_be_bytes(),
                        );
                        batch.put(
                            &pairs,
                            [b"rigt", &key(thread, 0)[..]].concat(),
                            i.to_be_bytes(),
                        );
                        database.write(batch).unwrap();
                    }
                    if i % 7 == 0 {
                        let seen = keyspace.get(key(thread, i / 2)).unwrap().unwrap();
                        assert_eq!(&seen[..], [thread as u8; 100]);
                    }
                    if i % 5000 == 77 {
                        keyspace
                            .set_checkpoint_distance(CheckpointDistance::Fixed(1 + (i % 16) as u32))
                            .unwrap();
                        keyspace
                            .put_with(key(thread, i), [thread as u8; 100], Durability::Sync)
                            .unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..40 {
                let snapshot = database.snapshot().unwrap();
                for thread in 0..THREADS {
                    let side = |name: &[u8]| {
                        snapshot
                            .get(&pairs, [name, &key(thread, 0)].concat())
                            .unwrap()
                    };
                    assert_eq!(side(b"left"), side(b"rigt"), "a batch was seen half");
                }
                let mut last: Option<Vec<u8>> = None;
                for record in keyspace.iter().take(3000) {
                    let (key, _) = record.unwrap();
                    assert!(last.as_deref().is_none_or(|l| l < &key[..]));
                    last = Some(key.to_vec());
                }
            }
            database.checkpoint().unwrap();
        });
    });
    assert_eq!(keyspace.iter().count() as u64, THREADS * RECORDS);
    let metrics = database.metrics();
    assert!(metrics.checkpoints > 5, "{metrics:?}");
    database.close().unwrap();
    let database = options().open(&directory.0).unwrap();
    assert_eq!(database.metrics().replayed_records, 0);
    assert_eq!(
        database.keyspace("k").unwrap().iter().count() as u64,
        THREADS * RECORDS
    );
    drop(database);
    let report = terrapin::verify::verify(&directory.0, &Default::default()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
}

#[test]
fn a_dropped_database_replays_and_a_second_open_is_refused() {
    let directory = Directory::new("locked");
    let database = options().open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    for i in 0..5000 {
        keyspace.put(key(0, i), "value").unwrap();
    }
    assert_eq!(
        Database::open(&directory.0).unwrap_err().kind(),
        ErrorKind::Locked
    );
    drop(database);
    assert!(
        keyspace.contains(key(0, 1)).unwrap(),
        "any handle keeps it open"
    );
    drop(keyspace);
    let database = options().open(&directory.0).unwrap();
    assert!(database.metrics().replayed_records > 0);
    assert_eq!(database.default_keyspace().iter().count(), 5000);
    database.close().unwrap();
}

#[test]
fn the_error_of_a_missing_directory_names_it() {
    let directory = Directory::new("absent");
    let error = Options::new()
        .create_if_missing(false)
        .open(&directory.0)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DatabaseNotFound);
    assert!(error.to_string().contains("terrapin-absent"), "{error}");
    assert!(!directory.0.exists());
}

/// Guards against a database that joined the files of a mistyped path. Only the command refused
/// that.
#[test]
fn no_database_is_created_among_other_files() {
    let directory = Directory::new("foreign");
    let place = |name: &str| directory.0.join(name);
    let refused = |first: &str| {
        let error = options().open(&directory.0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotADatabase, "{error}");
        assert!(error.to_string().contains(first), "{error}");
    };
    std::fs::create_dir_all(place("photos")).unwrap();
    refused("photos");
    std::fs::write(place("notes"), "mine").unwrap();
    refused("notes");
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 2);
    std::fs::remove_dir(place("photos")).unwrap();
    std::fs::remove_file(place("notes")).unwrap();
    // A small file that has the data file's name.
    for content in [&b"mine"[..], &[7; 3000]] {
        std::fs::write(place("data"), content).unwrap();
        refused("no Terrapin database");
        assert_eq!(std::fs::read(place("data")).unwrap(), content);
    }
    std::fs::remove_file(place("data")).unwrap();
    // Files of a fresh file system, and hidden files.
    std::fs::create_dir(place("lost+found")).unwrap();
    std::fs::write(place(".keep"), "").unwrap();
    options().open(&directory.0).unwrap().close().unwrap();
    // Other files may be beside a database.
    std::fs::write(place("notes"), "mine").unwrap();
    options().open(&directory.0).unwrap().close().unwrap();
    // A log without its data file is damage.
    std::fs::remove_file(place("notes")).unwrap();
    std::fs::remove_file(place("data")).unwrap();
    let error = options().open(&directory.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn an_idle_database_does_not_write() {
    let directory = Directory::new("idle");
    let database = options()
        .sync_interval(Duration::from_millis(5))
        .open(&directory.0)
        .unwrap();
    database.default_keyspace().put("a", "b").unwrap();
    database.flush().unwrap();
    #[allow(clippy::disallowed_methods)] // the test waits while nothing happens
    let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
    wait(50);
    let syncs = database.metrics().log_syncs;
    wait(150);
    assert_eq!(database.metrics().log_syncs, syncs);
    database.close().unwrap();
}
