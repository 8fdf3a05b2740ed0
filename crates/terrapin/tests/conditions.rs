//! Conditional writes: what another writer does between the read and the write is never lost, and
//! what does not concern the key does not disturb.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::{World, key, tiny};
use terrapin::{
    ConflictCause, Database, Durability, ErrorKind, Keyspace, Options, Requirement, Slice,
};

/// Adds one to a counter of eight bytes.
fn add_one(value: Option<&[u8]>) -> Option<Vec<u8>> {
    let count = value.map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap()));
    Some((count + 1).to_le_bytes().to_vec())
}

fn count_of(keyspace: &Keyspace, key: &str) -> u64 {
    let value = keyspace.get(key).unwrap();
    value.map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()))
}

fn kind<T>(result: terrapin::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// Updates `key` and returns how often the function ran. Its first run does `between`.
fn runs(keyspace: &Keyspace, key: &str, between: impl Fn()) -> u32 {
    let mut runs = 0;
    let updated = keyspace.update(key, |value| {
        runs += 1;
        if runs == 1 {
            between();
        }
        add_one(value)
    });
    updated.unwrap();
    runs
}

#[test]
fn threads_that_update_one_counter_lose_nothing() {
    let directory = common::Directory::new("conditions-counter");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    keyspace.put("swapped", 0u64.to_le_bytes()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for round in 0..2_500u64 {
                    keyspace.update("updated", add_one).unwrap();
                    keyspace
                        .put(key(thread * 10_000 + round), "beside")
                        .unwrap();
                    loop {
                        let old = keyspace.get("swapped").unwrap().unwrap();
                        let new = add_one(Some(&old));
                        let swapped =
                            keyspace.compare_and_swap("swapped", Some(&old), new.as_deref());
                        if swapped.unwrap().is_ok() {
                            break;
                        }
                    }
                    loop {
                        let (old, version) = keyspace.get_versioned("versioned").unwrap();
                        let new = add_one(old.as_deref());
                        let swapped = keyspace.compare_version_and_swap(
                            "versioned",
                            &version,
                            new.as_deref(),
                        );
                        if swapped.unwrap().is_ok() {
                            break;
                        }
                    }
                }
            });
        }
    });
    for key in ["updated", "swapped", "versioned"] {
        assert_eq!(count_of(&keyspace, key), 10_000, "{key}");
    }
    database.close().unwrap();
}

#[test]
fn a_write_in_between_makes_the_function_run_again() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    keyspace
        .put_with("key", 1u64.to_le_bytes(), Durability::Sync)
        .unwrap();
    // The first condition of an idle database, right behind a sync.
    assert_eq!(runs(&keyspace, "key", || ()), 1);
    assert_eq!(
        runs(&keyspace, "key", || keyspace.put("beside", "x").unwrap()),
        1
    );
    assert_eq!(runs(&keyspace, "key", || other.put("key", "x").unwrap()), 1);
    assert_eq!(count_of(&keyspace, "key"), 4);
    let put = |durability| {
        let keyspace = &keyspace;
        move || {
            keyspace
                .put_with("key", 100u64.to_le_bytes(), durability)
                .unwrap()
        }
    };
    for durability in [Durability::None, Durability::Process, Durability::Sync] {
        assert_eq!(runs(&keyspace, "key", put(durability)), 2);
        assert_eq!(count_of(&keyspace, "key"), 101);
    }
    assert_eq!(
        runs(&keyspace, "key", || keyspace.delete("key").unwrap()),
        2
    );
    assert_eq!(count_of(&keyspace, "key"), 1);
    assert_eq!(runs(&keyspace, "key", || keyspace.clear().unwrap()), 2);
    assert_eq!(count_of(&keyspace, "key"), 1);
    let batch = |keys: u64| {
        let mut batch = database.batch();
        for number in 0..keys {
            batch.put(&keyspace, key(number), "x");
        }
        database.write(&batch).unwrap();
    };
    assert_eq!(runs(&keyspace, "key", || batch(64)), 1);
    // Of a long batch the log keeps no keys. The second attempt finds the same value.
    assert_eq!(runs(&keyspace, "key", || batch(65)), 1);
    let long = || {
        let mut batch = database.batch();
        (0..64).for_each(|number| batch.put(&keyspace, key(number), "x"));
        batch.put(&keyspace, "key", 7u64.to_le_bytes());
        database.write(&batch).unwrap();
    };
    assert_eq!(runs(&keyspace, "key", long), 2);
    assert_eq!(count_of(&keyspace, "key"), 8);
    let many = || (0..20_000).for_each(|number| keyspace.put(key(number % 300), "x").unwrap());
    assert_eq!(
        runs(&keyspace, "key", || (0..600)
            .for_each(|_| keyspace.put("a", "x").unwrap())),
        1
    );
    // More records than the log keeps touches of.
    assert_eq!(runs(&keyspace, "key", many), 1);
    let first = || {
        put(Durability::Process)();
        many();
    };
    assert_eq!(runs(&keyspace, "key", first), 2);
    assert_eq!(count_of(&keyspace, "key"), 101);
    // A checkpoint moves the key, and changes nothing.
    assert_eq!(runs(&keyspace, "key", || database.checkpoint().unwrap()), 1);
    let gone = keyspace.update("key", |value| {
        let _ = database.drop_keyspace("default");
        add_one(value)
    });
    if database.keyspace("default").is_err() {
        assert_eq!(kind(gone), ErrorKind::KeyspaceNotFound);
    }
    let gone = other.update("key", |value| {
        database.drop_keyspace("other").unwrap();
        value.map(<[u8]>::to_vec)
    });
    assert_eq!(kind(gone), ErrorKind::KeyspaceNotFound);
    assert_eq!(kind(other.pop_first()), ErrorKind::KeyspaceNotFound);
    assert_eq!(
        kind(other.get_versioned("key")),
        ErrorKind::KeyspaceNotFound
    );
}

/// The key is not the first one of the range delete.
#[test]
fn a_range_delete_in_between_is_seen_by_every_conditional_write() {
    let world = World::new(10);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    let set = || keyspace.put("key", 7u64.to_le_bytes()).unwrap();
    let erased = || keyspace.delete_range("a".."z").unwrap();
    let erased_in_batch = || {
        let mut batch = database.batch();
        batch.put(&keyspace, "key", 9u64.to_le_bytes());
        batch.delete_prefix(&keyspace, "ke");
        batch.put(&other, "key", "x");
        database.write(&batch).unwrap();
    };
    let erased_unlogged = || {
        let unlogged = Durability::None;
        keyspace.delete_range_with("a".."z", unlogged).unwrap();
    };
    let erased_and_merged = || {
        erased();
        database.checkpoint().unwrap();
    };
    let ways: [&dyn Fn(); 4] = [
        &erased,
        &erased_in_batch,
        &erased_unlogged,
        &erased_and_merged,
    ];
    for merged in [false, true] {
        for erase in ways {
            set();
            if merged {
                database.checkpoint().unwrap();
            }
            assert_eq!(runs(&keyspace, "key", erase), 2);
            assert_eq!(count_of(&keyspace, "key"), 1);
            // By version and by condition, while the memtables tell, and when they do not.
            set();
            let (_, version) = keyspace.get_versioned("key").unwrap();
            erase();
            let swapped = keyspace.compare_version_and_swap("key", &version, None);
            assert_eq!(swapped.unwrap().unwrap_err().cause, ConflictCause::Changed);
            let absent = keyspace.compare_and_swap("key", None, Some(b"new"));
            assert!(absent.unwrap().is_ok());
            erase();
            let swapped = keyspace.compare_and_swap("key", Some(b"new"), None);
            let cause = swapped.unwrap().unwrap_err().cause;
            assert_eq!(cause, ConflictCause::Value(None));
            let mut batch = database.batch();
            batch.require(&keyspace, "key", Requirement::Present);
            batch.put(&keyspace, "key", "x");
            assert_eq!(kind(database.write(&batch)), ErrorKind::Conflict);
            assert!(keyspace.take("key").unwrap().is_none());
            assert!(keyspace.pop_first().unwrap().is_none());
            assert!(keyspace.pop_last().unwrap().is_none());
            assert!(keyspace.insert_if_absent("key", "x").unwrap().is_none());
        }
    }
    // Ranges beside the key, and those of other keyspaces, leave its value and its version.
    set();
    let beside = || {
        keyspace.delete_range("a".."key").unwrap();
        keyspace.delete_range("key\0"..).unwrap();
        other.delete_range("a".."z").unwrap();
    };
    let (_, version) = keyspace.get_versioned("key").unwrap();
    assert_eq!(runs(&keyspace, "other", beside), 1);
    let swapped = keyspace.compare_version_and_swap("key", &version, None);
    assert!(swapped.unwrap().is_ok());
    // Conditions of a batch that holds a range delete itself.
    set();
    let mut batch = database.batch();
    batch.require(&keyspace, "key", Requirement::equals(7u64.to_le_bytes()));
    batch.delete_range(&keyspace, ..);
    batch.put(&keyspace, "key", "after");
    database.write(&batch).unwrap();
    assert_eq!(kind(database.write(&batch)), ErrorKind::Conflict);
    assert_eq!(keyspace.take("key").unwrap().unwrap(), "after");
    assert!(keyspace.is_empty().unwrap());
}

/// During each run of the function others write more records than the log keeps touches of.
#[test]
fn a_slow_function_beside_fast_writers_runs_once() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut runs = 0;
    let updated = keyspace.update("key", |value| {
        runs += 1;
        assert!(runs < 3);
        (0..17_000).for_each(|number| keyspace.put(key(number % 100), "x").unwrap());
        add_one(value)
    });
    assert!(updated.is_ok() && runs == 1);
    assert_eq!(count_of(&keyspace, "key"), 1);
}

/// Two databases of one age have equal numbers of lives, keyspaces and records.
#[test]
fn a_version_of_another_database_is_a_conflict() {
    let [one, two] = [8, 9].map(|seed| World::new(seed).open(&tiny()).default_keyspace());
    one.put("key", "1").unwrap();
    two.put("key", "1").unwrap();
    let (_, version) = one.get_versioned("key").unwrap();
    let swapped = two.compare_version_and_swap("key", &version, None);
    assert_eq!(swapped.unwrap().unwrap_err().cause, ConflictCause::Changed);
    assert!(
        one.compare_version_and_swap("key", &version, None)
            .unwrap()
            .is_ok()
    );
}

#[test]
fn answers_of_conditional_writes() {
    let world = World::new(2);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    assert!(keyspace.insert_if_absent("a", "1").unwrap().is_none());
    assert_eq!(keyspace.insert_if_absent("a", "2").unwrap().unwrap(), "1");
    assert!(
        keyspace
            .compare_and_swap("a", Some(b"1"), Some(b"2"))
            .unwrap()
            .is_ok()
    );
    let conflict = keyspace
        .compare_and_swap("a", Some(b"1"), None)
        .unwrap()
        .unwrap_err();
    assert_eq!(
        (&*conflict.keyspace, &*conflict.key),
        ("default", &b"a"[..])
    );
    assert_eq!(conflict.cause, ConflictCause::Value(Some(Slice::from("2"))));
    assert!(keyspace.compare_and_swap("a", None, None).unwrap().is_err());
    assert!(keyspace.compare_and_swap("b", None, None).unwrap().is_ok());
    assert!(
        keyspace
            .compare_and_swap("a", Some(b"2"), None)
            .unwrap()
            .is_ok()
    );
    assert!(keyspace.get("a").unwrap().is_none());
    keyspace.put("a", "3").unwrap();
    assert_eq!(keyspace.take("a").unwrap().unwrap(), "3");
    assert!(keyspace.take("a").unwrap().is_none());
    assert!(keyspace.update("a", |_| None).unwrap().is_none());
    assert_eq!(
        keyspace
            .update("a", |_| Some(b"4".to_vec()))
            .unwrap()
            .unwrap(),
        b"4"
    );
    assert!(keyspace.update("a", |_| None).unwrap().is_none());
    assert!(keyspace.is_empty().unwrap());
    assert_eq!(
        kind(keyspace.update(vec![0; terrapin::KEY_BYTES_MAX + 1], |_| None)),
        ErrorKind::TooLarge
    );
    drop((keyspace, database));

    let database = World::new(3).open(&tiny().durability(Durability::None));
    let keyspace = database.default_keyspace();
    assert_eq!(
        kind(keyspace.insert_if_absent("a", "1")),
        ErrorKind::InvalidArgument
    );
    assert_eq!(kind(keyspace.take("a")), ErrorKind::InvalidArgument);
    assert_eq!(kind(keyspace.pop_first()), ErrorKind::InvalidArgument);
    assert!(keyspace.is_empty().unwrap());
}

#[test]
fn a_version_lasts_until_its_key_changes_or_its_memtable_is_merged() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace.put("key", "1").unwrap();
    let swap = |version| {
        keyspace
            .compare_version_and_swap("key", &version, Some(b"new"))
            .unwrap()
    };
    let version = || keyspace.get_versioned("key").unwrap().1;
    let cause = |result: Result<(), terrapin::Conflict>| result.unwrap_err().cause;

    // Nobody watched when this was read, and other keys do not count.
    let first = version();
    for number in 0..100 {
        keyspace.put(key(number), "x").unwrap();
    }
    assert!(swap(first).is_ok());
    assert_eq!(cause(swap(first)), ConflictCause::Changed);
    // The old value again is a change.
    let before = version();
    keyspace.put("key", "2").unwrap();
    keyspace.put("key", "new").unwrap();
    assert_eq!(cause(swap(before)), ConflictCause::Changed);
    // A key without a value has versions, too.
    keyspace.delete("key").unwrap();
    let absent = version();
    assert!(swap(absent).is_ok());

    let merged = version();
    keyspace.put("other", "x").unwrap();
    database.checkpoint().unwrap();
    assert_eq!(cause(swap(merged)), ConflictCause::Changed);
    let cleared = version();
    keyspace.clear().unwrap();
    assert_eq!(cause(swap(cleared)), ConflictCause::Changed);
    let old = version();
    database.close().unwrap();
    drop(keyspace);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let swapped = keyspace
        .compare_version_and_swap("key", &old, None)
        .unwrap();
    assert_eq!(cause(swapped), ConflictCause::Changed);
}

#[test]
fn a_batch_writes_all_if_its_conditions_hold_and_else_nothing() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let (one, two) = (
        database.default_keyspace(),
        database.keyspace("two").unwrap(),
    );
    two.put("there", "1").unwrap();
    let version = two.get_versioned("there").unwrap().1;
    let write = |asks: &[(&Keyspace, &str, Requirement)]| {
        let mut batch = database.batch();
        for (keyspace, key, asks) in asks {
            batch.require(keyspace, key, asks.clone());
        }
        batch.put(&one, "written", "x");
        batch.put(&two, "written", "x");
        database.write(&batch)
    };
    let wrong = [
        (&one, "there", Requirement::Present),
        (&two, "there", Requirement::Absent),
        (&two, "there", Requirement::equals("2")),
        (&two, "absent", Requirement::equals("")),
    ];
    for (keyspace, key, asks) in wrong {
        let right = (&two, "there", Requirement::Present);
        let error = write(&[right, (keyspace, key, asks)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(keyspace.name()), "{error}");
        assert!(!one.contains("written").unwrap() && !two.contains("written").unwrap());
    }
    let right = [
        (&one, "there", Requirement::Absent),
        (&two, "there", Requirement::Present),
        (&two, "there", Requirement::equals("1")),
        (&two, "there", Requirement::Version(version)),
    ];
    write(&right).unwrap();
    assert!(one.contains("written").unwrap() && two.contains("written").unwrap());
    two.put("there", "1").unwrap();
    assert_eq!(kind(write(&right)), ErrorKind::Conflict);
    // Conditions alone.
    let mut batch = database.batch();
    batch.require(&two, "there", Requirement::Present);
    assert!(!batch.is_empty());
    database.write(&batch).unwrap();
    batch.require(&two, "there", Requirement::Absent);
    assert_eq!(kind(database.write(&batch)), ErrorKind::Conflict);
    assert_eq!(
        kind(database.write_with(&batch, Durability::None)),
        ErrorKind::InvalidArgument
    );
    batch.clear();
    database.write(&batch).unwrap();
}

#[test]
fn threads_that_move_money_create_none() {
    const ACCOUNTS: u64 = 5;
    let directory = common::Directory::new("conditions-money");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    for account in 0..ACCOUNTS {
        keyspace.put(key(account), 100u64.to_le_bytes()).unwrap();
    }
    let refused = AtomicU64::new(0);
    let of = |value: &Slice| u64::from_le_bytes(value[..].try_into().unwrap());
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (database, keyspace, refused) = (&database, &keyspace, &refused);
            scope.spawn(move || {
                for round in 0..1_000u64 {
                    let (from, to) = (
                        key((thread + round) % ACCOUNTS),
                        key((round * 3 + 1) % ACCOUNTS),
                    );
                    if from == to {
                        continue;
                    }
                    let values = keyspace.multi_get(&[&from, &to]).unwrap();
                    let [Some(has), Some(gets)] = &values[..] else {
                        panic!()
                    };
                    if of(has) == 0 {
                        continue;
                    }
                    let mut batch = database.batch();
                    batch.require(keyspace, &from, Requirement::equals(has));
                    batch.require(keyspace, &to, Requirement::equals(gets));
                    batch.put(keyspace, &from, (of(has) - 1).to_le_bytes());
                    batch.put(keyspace, &to, (of(gets) + 1).to_le_bytes());
                    if let Err(error) = database.write(&batch) {
                        assert_eq!(error.kind(), ErrorKind::Conflict);
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sum: u64 = keyspace
        .iter()
        .values()
        .map(|value| of(&value.unwrap()))
        .sum();
    assert_eq!(sum, ACCOUNTS * 100);
    database.close().unwrap();
}

#[test]
fn threads_that_pop_get_each_record_once() {
    let directory = common::Directory::new("conditions-queue");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let queue = database.default_keyspace();
    for number in 0..1_500 {
        queue.put(key(number), "job").unwrap();
    }
    let pop = |last: bool| {
        let mut got = Vec::new();
        loop {
            let record = match last {
                true => queue.pop_last().unwrap(),
                false => queue.pop_first().unwrap(),
            };
            match record {
                Some((key, _)) => got.push(key.to_vec()),
                None => return got,
            }
        }
    };
    let mut got: Vec<Vec<u8>> = thread::scope(|scope| {
        let threads = [false, true, false].map(|last| scope.spawn(move || pop(last)));
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    got.sort();
    let mut put: Vec<_> = (0..1_500).map(key).collect();
    put.sort();
    assert_eq!(got, put);
    database.close().unwrap();
}

#[test]
fn acknowledged_conditional_writes_survive_a_kill() {
    let world = World::new(6);
    let options = tiny();
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    for round in 1..=300u64 {
        keyspace.update("counter", add_one).unwrap();
        assert!(
            keyspace
                .insert_if_absent(key(round), "x")
                .unwrap()
                .is_none()
        );
        if round > 10 {
            assert!(keyspace.take(key(round - 10)).unwrap().is_some());
        }
    }
    drop(keyspace);
    world.kill(database);
    let database = world.open(&options);
    let keyspace = database.default_keyspace();
    assert_eq!(count_of(&keyspace, "counter"), 300);
    assert_eq!(common::all(&keyspace).len(), 11);
}

/// A database that is only read has no log to write to.
#[test]
fn a_read_only_database_refuses() {
    let directory = common::Directory::new("conditions-read-only");
    Database::open(&directory.0).unwrap().close().unwrap();
    let database = Options::new().read_only(true).open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    assert_eq!(
        kind(keyspace.insert_if_absent("a", "1")),
        ErrorKind::ReadOnly
    );
    assert_eq!(kind(keyspace.pop_last()), ErrorKind::ReadOnly);
}
