//! Processes that fork while a database is open, or after one was closed.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::Directory;
use terrapin::verify::{VerifyOptions, verify};
use terrapin::{Database, ErrorKind, Options, Result};
use terrapin_disk::Forked;

/// Each test's child has copies of all descriptors of the process, so the tests take turns.
static ALONE: Mutex<()> = Mutex::new(());

/// Small options, with log files that fill up soon and short limits of waits.
fn options() -> Options {
    Options::new()
        .memory(8 << 20)
        .log_segment_bytes(1 << 20)
        .log_bytes_max(4 << 20)
        .stall_limit(Duration::from_secs(5))
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Many log files of records, so the log reuses files.
fn fill(database: &Database) -> Result<()> {
    let keyspace = database.default_keyspace();
    (0..40_000).try_for_each(|number| keyspace.put(key(number % 5000), [7; 500]))
}

fn is_whole(database: &Database) -> bool {
    let keyspace = database.default_keyspace();
    let gets = (0..5000).all(|n| keyspace.get(key(n)).is_ok_and(|value| value.is_some()));
    gets && keyspace.iter().filter(Result::is_ok).count() == 5000
}

/// The child's exit code is its result: 0 is success.
fn code(holds: bool) -> u8 {
    u8::from(!holds)
}

/// Guards against puts that were `Stalled` or `Locked` after some log files, because the child held
/// copies of the locked descriptors.
#[test]
fn an_idle_child_stops_no_write_and_no_later_open_of_its_parent() {
    let _alone = ALONE.lock();
    let directory = Directory::new("idle");
    let database = options().open(&directory.0).unwrap();
    database.default_keyspace().put("a", "1").unwrap();
    let first = Forked::idle().unwrap();
    fill(&database).unwrap();
    let second = Forked::idle().unwrap();
    fill(&database).unwrap();
    database.close().unwrap();
    let again = options().open(&directory.0).unwrap();
    assert!(again.default_keyspace().get("a").unwrap().is_some());
    drop(again);
    let reader = options().read_only(true).open(&directory.0).unwrap();
    let third = Forked::idle().unwrap();
    drop(reader);
    drop(options().open(&directory.0).unwrap());
    drop((first, second, third));
    assert!(
        verify(&directory.0, &VerifyOptions::default())
            .unwrap()
            .is_sound()
    );
}

#[test]
fn a_child_gets_errors_from_its_parents_handles_and_changes_nothing() {
    let _alone = ALONE.lock();
    let directory = Directory::new("handles");
    let database = options().open(&directory.0).unwrap();
    fill(&database).unwrap();
    let keyspace = database.default_keyspace();
    let snapshot = database.snapshot().unwrap();
    let (_, version) = keyspace.get_versioned("b").unwrap();
    let mut range = keyspace.iter();
    assert!(range.next().unwrap().is_ok());
    let handles = Mutex::new(Some((database, keyspace, snapshot, range)));
    let child = Forked::run(|| {
        let (database, keyspace, snapshot, mut range) = handles.lock().unwrap().take().unwrap();
        let mut batch = database.batch();
        batch.put(&keyspace, "b", "2");
        let outcomes = [
            keyspace.put("b", "2"),
            keyspace.delete(key(1)),
            keyspace.take(key(1)).map(drop),
            keyspace.pop_first().map(drop),
            keyspace
                .compare_version_and_swap("b", &version, None)
                .map(drop),
            keyspace.get(key(1)).map(drop),
            keyspace.multi_get(&[key(1)]).map(drop),
            keyspace.range(key(1)..).next().unwrap().map(drop),
            keyspace.clear(),
            range.next().unwrap().map(drop),
            snapshot.get(&keyspace, key(1)).map(drop),
            database.snapshot().map(drop),
            database.write(&batch),
            database.keyspace("new").map(drop),
            database.flush(),
            database.checkpoint(),
            database.stat().map(drop),
            database.set_memory(16 << 20),
            database.close().map(drop),
        ];
        let refused = outcomes.iter().position(|outcome| {
            let error = outcome.as_ref().err();
            !error.is_some_and(|error| {
                error.kind() == ErrorKind::Closed && error.to_string().contains("forked child")
            })
        });
        let _ = database.metrics();
        drop((range, snapshot, keyspace, database));
        // The number, from 1 on, of the first call that did not fail.
        refused.map_or(0, |at| at as u8 + 1)
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    let (database, keyspace, snapshot, range) = handles.lock().unwrap().take().unwrap();
    assert_eq!(range.filter(Result::is_ok).count(), 4999);
    assert!(snapshot.get(&keyspace, key(1)).unwrap().is_some());
    assert!(keyspace.get("b").unwrap().is_none());
    // Threads that the child does not have may have held locks at the fork.
    let other = Directory::new("other");
    let child = Forked::run(|| {
        let unsupported = |opened: Result<Database>| {
            opened.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
        };
        code(
            [&directory, &other]
                .iter()
                .all(|d| unsupported(options().open(&d.0))),
        )
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    fill(&database).unwrap();
    assert!(is_whole(&database));
    drop(snapshot);
    database.close().unwrap();
    assert!(
        verify(&directory.0, &VerifyOptions::default())
            .unwrap()
            .is_sound()
    );
}

/// Guards against SIGSEGV in the child's first reads.
#[test]
fn a_child_can_open_a_database_that_its_parent_closed() {
    let _alone = ALONE.lock();
    let directory = Directory::new("closed");
    let database = options().open(&directory.0).unwrap();
    fill(&database).unwrap();
    database.checkpoint().unwrap();
    assert!(is_whole(&database));
    database.close().unwrap();
    let child = Forked::run(|| {
        let work = || -> Result<bool> {
            let database = options().open(&directory.0)?;
            let whole = is_whole(&database);
            fill(&database)?;
            database.close()?;
            Ok(whole)
        };
        code(work().unwrap_or(false))
    });
    assert_eq!(child.unwrap().ended().unwrap(), Some(0));
    let database = options().open(&directory.0).unwrap();
    assert!(is_whole(&database));
}
