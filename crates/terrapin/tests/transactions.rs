//! Transactions: what they see, what they write, and what is a conflict.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{World, key, tiny};
use terrapin::{
    ConflictCause, Database, Durability, ErrorKind, Isolation, Keyspace, Options, Slice,
    Transaction, TransactionOptions,
};

/// A key; the order of numbers is the order of keys.
fn place(number: u64) -> String {
    format!("{number:08}")
}

/// Ends writers also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `act` while three threads put into a keyspace without pause.
fn beside_writers(other: &Keyspace, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let stop = &stop;
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = key(thread * 1_000 + number % 1_000);
                    other.put(key, "x").unwrap();
                }
            });
        }
        let _stops = Stops(&stop);
        act();
    });
}

fn kind<T>(result: terrapin::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

fn names<'a>(
    range: impl Iterator<Item = terrapin::Result<(Slice, Slice)>> + 'a,
) -> Vec<(String, String)> {
    let text = |slice: &Slice| String::from_utf8(slice.to_vec()).unwrap();
    let record = |record: terrapin::Result<(Slice, Slice)>| {
        let (key, value) = record.unwrap();
        (text(&key), text(&value))
    };
    range.map(record).collect()
}

/// Commits, and returns why it did not.
fn cause(transaction: Transaction) -> Option<ConflictCause> {
    transaction
        .commit()
        .unwrap()
        .err()
        .map(|conflict| conflict.cause)
}

#[test]
fn a_transaction_sees_its_own_writes_over_its_view() {
    let world = World::new(1);
    let database = world.open(&tiny());
    let (one, two) = (
        database.default_keyspace(),
        database.keyspace("two").unwrap(),
    );
    for name in ["a", "c", "e", "g", "i"] {
        one.put(name, "old").unwrap();
    }
    two.put("c", "two").unwrap();
    let mut tx = database.transaction().unwrap();
    tx.put(&one, "b", "new").unwrap();
    tx.put(&one, "c", "new").unwrap();
    tx.delete(&one, "e").unwrap();
    tx.delete(&one, "absent").unwrap();
    tx.put(&one, "z", "new").unwrap();
    one.put("d", "later").unwrap();
    one.put("a", "later").unwrap();
    assert_eq!(tx.get(&one, "a").unwrap().unwrap(), "old");
    assert_eq!(tx.get(&one, "c").unwrap().unwrap(), "new");
    assert_eq!(tx.get(&two, "c").unwrap().unwrap(), "two");
    assert!(tx.get(&one, "e").unwrap().is_none() && tx.get(&one, "d").unwrap().is_none());
    assert!(tx.contains(&one, "b").unwrap() && !tx.contains(&one, "e").unwrap());
    let many = tx.multi_get(&one, &["z", "e", "g", "d"]).unwrap();
    let many: Vec<_> = many.iter().map(|value| value.as_deref()).collect();
    assert_eq!(many, [Some(&b"new"[..]), None, Some(b"old"), None]);
    let wanted = [
        ("a", "old"),
        ("b", "new"),
        ("c", "new"),
        ("g", "old"),
        ("i", "old"),
        ("z", "new"),
    ];
    let wanted: Vec<_> = wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(names(tx.range(&one, ..)), wanted);
    let mut back = names(tx.range(&one, ..).rev());
    back.reverse();
    assert_eq!(back, wanted);
    assert_eq!(names(tx.range(&one, "b".."h")), wanted[1..4]);
    assert_eq!(names(tx.range(&one, ..).limit(2)), wanted[..2]);
    assert_eq!(names(tx.prefix(&one, "z")), wanted[5..]);
    for pattern in 0..64u32 {
        let (mut range, mut front, mut back) = (tx.range(&one, ..), Vec::new(), Vec::new());
        for step in 0.. {
            let from_back = pattern >> (step % 6) & 1 == 1;
            let record = if from_back {
                range.next_back()
            } else {
                range.next()
            };
            let Some(record) = record else { break };
            let record = names(std::iter::once(record)).remove(0);
            if from_back {
                back.push(record)
            } else {
                front.push(record)
            }
        }
        assert!(range.next().is_none() && range.next_back().is_none());
        front.extend(back.into_iter().rev());
        assert_eq!(front, wanted, "{pattern}");
    }
    assert_eq!(tx.first(&one).unwrap().unwrap().0, "a");
    assert_eq!(tx.last(&one).unwrap().unwrap().0, "z");
    // Range deletes, and puts over them.
    tx.delete_range(&one, "b".."h").unwrap();
    tx.put(&one, "f", "newer").unwrap();
    assert_eq!(tx.get(&one, "f").unwrap().unwrap(), "newer");
    for gone in ["b", "c", "e", "g"] {
        assert!(tx.get(&one, gone).unwrap().is_none(), "{gone}");
    }
    let keys = |tx: &Transaction| -> Vec<String> {
        names(tx.range(&one, ..))
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    };
    assert_eq!(keys(&tx), ["a", "f", "i", "z"]);
    assert_eq!(tx.range(&one, ..).rev().limit_one(), "z");
    tx.delete_prefix(&one, "").unwrap();
    assert!(keys(&tx).is_empty() && tx.first(&one).unwrap().is_none());
    assert_eq!(cause(tx), Some(ConflictCause::Changed));
    assert_eq!(one.get("a").unwrap().unwrap(), "later");
}

trait LimitOne {
    fn limit_one(self) -> String;
}

impl<I: Iterator<Item = terrapin::Result<(Slice, Slice)>>> LimitOne for I {
    fn limit_one(mut self) -> String {
        names(self.next().into_iter()).remove(0).0
    }
}

#[test]
fn a_commit_writes_all_at_once_and_says_where() {
    let world = World::new(2);
    let options = tiny();
    let database = world.open(&options);
    let (one, two) = (
        database.default_keyspace(),
        database.keyspace("two").unwrap(),
    );
    for number in 0..50 {
        one.put(place(number), "old").unwrap();
    }
    let mut tx = database.transaction().unwrap();
    tx.delete_range(&one, place(10)..place(40)).unwrap();
    tx.put(&one, place(20), "new").unwrap();
    tx.put(&two, "x", "1").unwrap();
    tx.put(&two, "x", "2").unwrap();
    let before = database.snapshot().unwrap();
    let lsn = tx.commit().unwrap().unwrap();
    let after = database.snapshot().unwrap();
    assert!(before.lsn() < lsn && lsn <= after.lsn());
    assert_eq!(before.iter(&one).count(), 50);
    assert!(before.get(&two, "x").unwrap().is_none());
    let check = |one: &Keyspace, two: &Keyspace| {
        assert_eq!(one.iter().count(), 21);
        assert_eq!(one.get(place(20)).unwrap().unwrap(), "new");
        assert_eq!(two.get("x").unwrap().unwrap(), "2");
    };
    check(&one, &two);
    // A transaction that is dropped, and one whose function fails, write nothing.
    let mut dropped = database.transaction().unwrap();
    dropped.put(&one, "dropped", "").unwrap();
    drop(dropped);
    let failed = database.transact(|tx| {
        tx.put(&one, "failed", "")?;
        tx.put(&one, vec![0; terrapin::KEY_BYTES_MAX + 1], "")
    });
    assert_eq!(kind(failed), ErrorKind::TooLarge);
    check(&one, &two);
    drop((one, two, before, after));
    world.kill(database);
    let database = world.open(&options);
    check(
        &database.default_keyspace(),
        &database.keyspace("two").unwrap(),
    );
}

#[test]
fn savepoints_take_writes_back() {
    let world = World::new(3);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace.put("a", "old").unwrap();
    let mut tx = database.transaction().unwrap();
    tx.savepoint();
    tx.put(&keyspace, "a", "1").unwrap();
    let first = tx.savepoint();
    tx.put(&keyspace, "a", "2").unwrap();
    tx.put(&keyspace, "b", "2").unwrap();
    let second = tx.savepoint();
    tx.delete_range(&keyspace, ..).unwrap();
    tx.rollback_to(&second).unwrap();
    assert_eq!(tx.get(&keyspace, "b").unwrap().unwrap(), "2");
    tx.rollback_to(&first).unwrap();
    assert_eq!(tx.get(&keyspace, "a").unwrap().unwrap(), "1");
    assert!(tx.get(&keyspace, "b").unwrap().is_none());
    assert_eq!(kind(tx.rollback_to(&second)), ErrorKind::InvalidArgument);
    tx.put(&keyspace, "c", "3").unwrap();
    tx.rollback_to(&first).unwrap();
    let mut other = database.transaction().unwrap();
    assert_eq!(kind(other.rollback_to(&first)), ErrorKind::InvalidArgument);
    let foreign = other.savepoint();
    assert_eq!(kind(tx.rollback_to(&foreign)), ErrorKind::InvalidArgument);
    // What was taken back does not count as written.
    keyspace.put("c", "other").unwrap();
    assert_eq!(cause(tx), None);
    assert_eq!(
        names(keyspace.iter()),
        [("a".into(), "1".into()), ("c".into(), "other".into())]
    );
    // Nothing written is nothing to check.
    let mut tx = database.transaction().unwrap();
    tx.get(&keyspace, "a").unwrap();
    let empty = tx.savepoint();
    tx.put(&keyspace, "a", "9").unwrap();
    tx.rollback_to(&empty).unwrap();
    keyspace.put("a", "5").unwrap();
    assert_eq!(cause(tx), None);
}

/// What another writer does while a transaction that read and wrote `key` is open.
type Between<'a> = &'a dyn Fn();

#[test]
fn every_kind_of_write_in_between_is_seen() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    let batch = |keys: u64, with: bool| {
        let mut batch = database.batch();
        (0..keys).for_each(|number| batch.put(&keyspace, key(number), "x"));
        if with {
            batch.put(&keyspace, "key", "x");
        }
        database.write(&batch).unwrap();
    };
    let many = || (0..20_000).for_each(|n| other.put(key(n % 300), "x").unwrap());
    let merge = || database.checkpoint().unwrap();
    let put = || keyspace.put("key", "x").unwrap();
    let hits: &[(&str, Between<'_>)] = &[
        ("a put", &put),
        ("an unlogged put", &|| {
            keyspace.put_with("key", "x", Durability::None).unwrap()
        }),
        ("a delete", &|| keyspace.delete("key").unwrap()),
        ("a batch", &|| batch(2, true)),
        ("a batch of 65 keys", &|| batch(64, true)),
        ("a range delete", &|| {
            keyspace.delete_range("a".."z").unwrap()
        }),
        ("a transaction", &|| {
            database
                .transact(|tx| tx.put(&keyspace, "key", "x"))
                .unwrap()
        }),
        ("a swap", &|| drop(keyspace.take("key").unwrap())),
        ("a put, and many others", &|| {
            put();
            many()
        }),
        ("many puts, and one", &|| {
            many();
            put()
        }),
        ("a put that is merged", &|| {
            put();
            merge()
        }),
        ("a put that is merged, and another merge", &|| {
            put();
            merge();
            other.put("x", "").unwrap();
            merge()
        }),
        ("a merge and a put", &|| {
            merge();
            put()
        }),
        ("a put that is merged, and many others", &|| {
            put();
            merge();
            many()
        }),
        ("a range delete that is merged", &|| {
            keyspace.delete_range("k"..).unwrap();
            merge()
        }),
        ("a clear", &|| keyspace.clear().unwrap()),
        ("a clear, and the old value again", &|| {
            keyspace.clear().unwrap();
            keyspace.put("key", "old").unwrap()
        }),
    ];
    let misses: &[(&str, Between<'_>)] = &[
        ("nothing", &|| ()),
        ("a put beside", &|| keyspace.put("kez", "x").unwrap()),
        ("a put in another keyspace", &|| {
            other.put("key", "x").unwrap()
        }),
        ("a clear of another keyspace", &|| other.clear().unwrap()),
        ("a batch of 65 other keys", &|| batch(65, false)),
        ("many other puts", &many),
        ("a merge", &merge),
        ("two merges and many puts", &|| {
            other.put("a", "x").unwrap();
            merge();
            many();
            merge()
        }),
        ("a range delete beside", &|| {
            keyspace.delete_range("kez"..).unwrap()
        }),
        ("a range delete beside that is merged", &|| {
            keyspace.delete_range("kez"..).unwrap();
            merge()
        }),
    ];
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        let options = TransactionOptions::new().isolation(isolation);
        for is_merged in [false, true] {
            let begin = || {
                keyspace.put("key", "old").unwrap();
                if is_merged {
                    database.checkpoint().unwrap();
                }
                database.transaction_with(&options).unwrap()
            };
            for (name, between) in hits {
                let name = format!("{name}, {isolation:?}, merged before: {is_merged}");
                // Read and written, written blindly, read for update, in a range, in a deleted one.
                let mut tx = begin();
                assert_eq!(tx.get(&keyspace, "key").unwrap().unwrap(), "old");
                tx.put(&keyspace, "key", "mine").unwrap();
                between();
                let conflict = tx.commit().unwrap().expect_err(&name);
                assert_eq!(&*conflict.keyspace, "default", "{name}");
                assert_eq!(&*conflict.key, b"key", "{name}: {conflict}");
                let wanted = match name.contains("clear") {
                    true => ConflictCause::Cleared,
                    false => ConflictCause::Changed,
                };
                assert_eq!(conflict.cause, wanted, "{name}");
                let mut tx = begin();
                tx.delete(&keyspace, "key").unwrap();
                between();
                assert!(tx.commit().unwrap().is_err(), "{name}");
                let mut tx = begin();
                tx.get_for_update(&keyspace, "key").unwrap();
                tx.put(&other, "mine", "x").unwrap();
                between();
                assert!(tx.commit().unwrap().is_err(), "{name}");
                let mut tx = begin();
                tx.delete_range(&keyspace, "j".."l").unwrap();
                between();
                assert!(tx.commit().unwrap().is_err(), "{name}");
                let mut tx = begin();
                assert_eq!(tx.prefix(&keyspace, "k").count(), 1);
                tx.put(&other, "mine", "x").unwrap();
                between();
                let is_conflict = isolation == Isolation::Serializable;
                assert_eq!(tx.commit().unwrap().is_err(), is_conflict, "{name}");
                keyspace.delete_range("kez"..).unwrap();
            }
            for (name, between) in misses {
                let name = format!("{name}, {isolation:?}, merged before: {is_merged}");
                let mut tx = begin();
                assert_eq!(tx.get(&keyspace, "key").unwrap().unwrap(), "old");
                assert_eq!(tx.range(&keyspace, "kea".."kez").count(), 1);
                tx.put(&keyspace, "key", "mine").unwrap();
                between();
                let outcome = tx.commit().unwrap();
                assert!(outcome.is_ok(), "{name}: {}", outcome.unwrap_err());
                assert_eq!(keyspace.get("key").unwrap().unwrap(), "mine", "{name}");
                keyspace.delete_range("kez"..).unwrap();
            }
        }
    }
    // A dropped keyspace.
    let mut tx = database.transaction().unwrap();
    tx.get(&other, "key").unwrap();
    tx.put(&keyspace, "key", "mine").unwrap();
    database.drop_keyspace("other").unwrap();
    assert_eq!(cause(tx), Some(ConflictCause::Cleared));
    let mut tx = database.transaction().unwrap();
    assert_eq!(kind(tx.put(&other, "key", "")), ErrorKind::KeyspaceNotFound);
    assert_eq!(kind(tx.get(&other, "key")), ErrorKind::KeyspaceNotFound);
    let later = database.keyspace("later").unwrap();
    assert_eq!(kind(tx.put(&later, "key", "")), ErrorKind::KeyspaceNotFound);
}

#[test]
fn the_front_of_a_queue_does_not_conflict_with_its_back() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let queue = database.default_keyspace();
    let done = database.keyspace("done").unwrap();
    // The keys share their first 24 bytes.
    let job = |number: u64| format!("a queue whose keys begin alike/{number:08}");
    for number in 100..200 {
        queue.put(job(number), "job").unwrap();
    }
    let take = |between: &dyn Fn()| {
        let mut tx = database.transaction().unwrap();
        let (name, _) = tx.first(&queue).unwrap().unwrap();
        tx.delete(&queue, &name).unwrap();
        tx.put(&done, &name, "").unwrap();
        between();
        tx.commit().unwrap().is_ok()
    };
    let push = |number| queue.put(job(number), "job").unwrap();
    assert!(take(&|| push(200)));
    assert!(take(&|| (201..20_000).for_each(push)));
    assert!(take(&|| database.checkpoint().unwrap()));
    assert!(!take(&|| push(99)));
    assert!(!take(&|| {
        push(98);
        queue.delete(job(98)).unwrap();
    }));
    // Behind a merge, values are compared, and the front is as it was.
    assert!(take(&|| {
        push(97);
        queue.delete(job(97)).unwrap();
        database.checkpoint().unwrap();
    }));
    assert!(!take(&|| drop(queue.pop_first().unwrap())));
    assert!(take(&|| drop(queue.pop_last().unwrap())));
    // A range that has ended depends on all keys, and one with a limit on those before its last.
    let scan = |limit: usize, between: &dyn Fn()| {
        let mut tx = database.transaction().unwrap();
        let count = tx.range(&queue, ..).limit(limit).count();
        tx.put(&done, "count", count.to_string()).unwrap();
        between();
        tx.commit().unwrap().is_ok()
    };
    assert!(scan(usize::MAX, &|| ()));
    assert!(!scan(usize::MAX, &|| push(90_000)));
    assert!(scan(5, &|| push(90_001)));
    assert!(!scan(5, &|| push(1)));
}

/// Fast writers beside a transaction that is older than two merges. The log has long forgotten
/// what they wrote when it commits, and forgets more while the commit looks.
#[test]
fn an_old_transaction_commits_beside_fast_writers() {
    let directory = common::Directory::new("transactions-old");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    (0..2_000).for_each(|number| keyspace.put(key(number), "old").unwrap());
    // The same value again, so that the keyspace's memtable is merged, and nothing has changed.
    let touch = || keyspace.put(key(0), "old").unwrap();
    beside_writers(&other, || {
        for _ in 0..3 {
            let mut tx = database.transaction().unwrap();
            for number in (0..2_000).step_by(3) {
                assert!(tx.contains(&keyspace, key(number)).unwrap());
            }
            assert_eq!(tx.range(&keyspace, ..).count(), 2_000);
            tx.put(&keyspace, key(7), "new").unwrap();
            for _ in 0..2 {
                touch();
                database.checkpoint().unwrap();
            }
            let committed = tx.commit().unwrap();
            assert!(committed.is_ok(), "{}", committed.unwrap_err());
        }
    });
    let metrics = database.metrics();
    assert_eq!(metrics.transactions, 3);
    assert!(metrics.transaction_repeats >= 3 && metrics.transaction_comparisons >= 3 * 2_000);
    assert!(metrics.watched_ns > 0);
    database.close().unwrap();
}

/// The record lies behind more deletes than a pop passes before the log forgets what fast writers
/// touched.
#[test]
fn a_pop_behind_many_deletes_beside_fast_writers_ends() {
    let directory = common::Directory::new("transactions-pop");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let queue = database.default_keyspace();
    let other = database.keyspace("other").unwrap();
    for number in 0..60_000 {
        queue.put(place(number), "").unwrap();
    }
    (0..59_900).for_each(|number| queue.delete(place(number)).unwrap());
    beside_writers(&other, || {
        for number in 59_900..59_950 {
            let (name, _) = queue.pop_first().unwrap().unwrap();
            assert_eq!(name, place(number));
        }
    });
    assert_eq!(database.metrics().transaction_conflicts, 0);
    database.close().unwrap();
}

#[test]
fn threads_that_transact_lose_nothing() {
    const ACCOUNTS: u64 = 5;
    let directory = common::Directory::new("transactions-money");
    let database = Options::new().memory(64 << 20).open(&directory.0).unwrap();
    let keyspace = database.default_keyspace();
    for account in 0..ACCOUNTS {
        keyspace.put(key(account), 100u64.to_le_bytes()).unwrap();
    }
    let of = |value: &Slice| u64::from_le_bytes(value[..].try_into().unwrap());
    let sums = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let (database, keyspace, sums) = (&database, &keyspace, &sums);
            scope.spawn(move || {
                for round in 0..1_000u64 {
                    let (from, to) = ((thread + round) % ACCOUNTS, (round * 3 + 1) % ACCOUNTS);
                    if from == to {
                        continue;
                    }
                    let options = TransactionOptions::new().attempts_max(10_000);
                    let sum = database.transact_with(&options, |tx| {
                        let has = of(&tx.get(keyspace, key(from))?.unwrap());
                        let gets = of(&tx.get(keyspace, key(to))?.unwrap());
                        if has > 0 {
                            tx.put(keyspace, key(from), (has - 1).to_le_bytes())?;
                            tx.put(keyspace, key(to), (gets + 1).to_le_bytes())?;
                        }
                        let all: terrapin::Result<Vec<_>> = tx.range(keyspace, ..).collect();
                        Ok(all?.iter().map(|(_, value)| of(value)).sum::<u64>())
                    });
                    assert_eq!(sum.unwrap(), ACCOUNTS * 100);
                    sums.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(sums.load(Ordering::Relaxed) > 3_000);
    database.close().unwrap();
}

/// A closure that writes outside of its transaction sees a conflict each time, and ends.
#[test]
fn a_function_that_writes_outside_of_its_transaction() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let mut runs = 0;
    let beside = database.transact(|tx| {
        runs += 1;
        keyspace.put("beside", "x")?;
        tx.get(&keyspace, "beside")?;
        tx.put(&keyspace, "inside", "x")
    });
    // Each attempt meets the write that it made itself.
    assert_eq!((kind(beside), runs), (ErrorKind::Conflict, 100));
    let mut runs = 0;
    let options = TransactionOptions::new().attempts_max(5);
    let same = database.transact_with(&options, |tx| {
        runs += 1;
        let there = tx.get(&keyspace, "same")?;
        keyspace.put("same", runs.to_string())?;
        tx.put(&keyspace, "same", there.unwrap_or_default())
    });
    let error = same.unwrap_err();
    assert_eq!((error.kind(), runs), (ErrorKind::Conflict, 5));
    assert!(error.to_string().contains("same"), "{error}");
    assert_eq!(keyspace.get("same").unwrap().unwrap(), "5");
    let apart = database.transact(|tx| {
        keyspace.put("apart", "x")?;
        tx.put(&keyspace, "inside", "y")
    });
    apart.unwrap();
    assert_eq!(keyspace.get("inside").unwrap().unwrap(), "y");
}

#[test]
fn limits_and_refusals() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let foreign = World::new(8).open(&tiny()).default_keyspace();
    let unlogged = TransactionOptions::new().durability(Durability::None);
    assert_eq!(
        kind(database.transaction_with(&unlogged)),
        ErrorKind::InvalidArgument
    );
    let mut tx = database.transaction().unwrap();
    assert_eq!(kind(tx.get(&foreign, "a")), ErrorKind::InvalidArgument);
    assert_eq!(kind(tx.put(&foreign, "a", "")), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(tx.range(&foreign, ..).next().unwrap()),
        ErrorKind::InvalidArgument
    );
    // The operation that makes the record too long fails, and the transaction goes on.
    let room = database.batch_bytes_max();
    tx.put(&keyspace, "a", vec![1; room - 100]).unwrap();
    let bytes = tx.bytes();
    let error = tx.put(&keyspace, "b", vec![2; 200]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains(&room.to_string()), "{error}");
    assert_eq!(tx.bytes(), bytes);
    assert!(tx.get(&keyspace, "b").unwrap().is_none());
    tx.put(&keyspace, "c", "3").unwrap();
    assert!(database.metrics().memory.transaction_bytes >= bytes as u64);
    tx.commit().unwrap().unwrap();
    assert_eq!(database.metrics().memory.transaction_bytes, 0);
    assert_eq!(keyspace.iter().count(), 2);
    // Reads.
    let options = TransactionOptions::new().read_bytes_max(1_000);
    let tx = database.transaction_with(&options).unwrap();
    let failed = (0..100).find_map(|number| tx.get(&keyspace, key(number)).err());
    assert_eq!(failed.unwrap().kind(), ErrorKind::TooLarge);
    let options = options.isolation(Isolation::Snapshot);
    let tx = database.transaction_with(&options).unwrap();
    assert!((0..100).all(|number| tx.get(&keyspace, key(number)).is_ok()));
    let failed = (0..100).find_map(|number| tx.get_for_update(&keyspace, key(number)).err());
    assert_eq!(failed.unwrap().kind(), ErrorKind::TooLarge);
    // Age.
    let options = TransactionOptions::new().age_max(Duration::from_secs(5));
    let mut tx = database.transaction_with(&options).unwrap();
    tx.put(&keyspace, "a", "x").unwrap();
    world.sim.advance_ns(4_000_000_000);
    tx.put(&keyspace, "a", "y").unwrap();
    world.sim.advance_ns(2_000_000_000);
    assert_eq!(kind(tx.get(&keyspace, "a")), ErrorKind::Conflict);
    assert_eq!(
        kind(tx.range(&keyspace, ..).next().unwrap()),
        ErrorKind::Conflict
    );
    assert_eq!(kind(tx.commit()), ErrorKind::Conflict);
    // A closed database.
    let mut tx = database.transaction().unwrap();
    tx.put(&keyspace, "a", "z").unwrap();
    database.close().unwrap();
    assert_eq!(kind(tx.get(&keyspace, "b")), ErrorKind::Closed);
    assert_eq!(kind(tx.commit()), ErrorKind::Closed);
    let directory = common::Directory::new("transactions-read-only");
    Database::open(&directory.0).unwrap().close().unwrap();
    let database = Options::new().read_only(true).open(&directory.0).unwrap();
    assert_eq!(kind(database.transaction()), ErrorKind::ReadOnly);
}
