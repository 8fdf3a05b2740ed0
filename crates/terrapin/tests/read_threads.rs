//! Readers beside writers, on threads and a real directory, in little memory. Views are folded
//! under their readers.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::Directory;
use terrapin::{CheckpointDistance, Database, Options, Slice};

fn open(directory: &Directory) -> Database {
    Options::new()
        .memory(4 << 20)
        .ring_bytes(256 << 10)
        .log_segment_bytes(1 << 20)
        .log_bytes_max(8 << 20)
        .group_bytes(16 << 10)
        .block_bytes(1024)
        .fanout(4)
        .checkpoint_distance(CheckpointDistance::Fixed(32))
        .open(&directory.0)
        .unwrap()
}

const KEYS: u64 = 2000;

fn key(i: u64) -> [u8; 8] {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn round_of(value: &Slice) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// The writer overwrites all keys in turn with the number of its pass. At any moment, a prefix of
/// the keys in its order is one pass ahead of the rest. A view of two moments would show something
/// else.
#[test]
fn every_view_is_one_moment_while_memtables_are_sealed_merged_and_folded() {
    let directory = Directory::new("read-threads");
    let database = open(&directory);
    let keyspace = database.default_keyspace();
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    for i in 0..KEYS {
        keyspace.put(key(i), [0; 100]).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = [0; 100];
            for round in 1u64.. {
                value[..8].copy_from_slice(&round.to_le_bytes());
                for i in 0..KEYS {
                    keyspace.put(key(i), value).unwrap();
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
                rounds.store(round, Ordering::Release);
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (database, keyspace, rounds) = (&database, &keyspace, &rounds);
                scope.spawn(move || {
                    let mut held = std::collections::VecDeque::new();
                    let mut checked = 0;
                    while rounds.load(Ordering::Acquire) < 100 || checked < 4 {
                        let least = rounds.load(Ordering::Acquire);
                        let snapshot = database.snapshot().unwrap();
                        let first = round_of(&snapshot.get(keyspace, key(0)).unwrap().unwrap());
                        assert!(
                            first >= least,
                            "a view older than what was published before it"
                        );
                        held.push_back((snapshot, first));
                        if held.len() > 8 {
                            held.pop_front();
                        }
                        let (snapshot, first) = &held[reader % held.len()];
                        // In the writer's order, keys have the number of one pass, then that of the
                        // one before.
                        let keys: Vec<_> = (0..KEYS).step_by(50).map(key).collect();
                        let found = snapshot.multi_get(keyspace, &keys).unwrap();
                        let seen: Vec<_> = found
                            .iter()
                            .map(|v| round_of(v.as_ref().unwrap()))
                            .collect();
                        assert_eq!(seen[0], *first, "a snapshot changed");
                        assert!(
                            seen.is_sorted_by(|a, b| a >= b) && seen[0] - seen[seen.len() - 1] <= 1,
                            "{seen:?}"
                        );
                        let newest = seen.iter().filter(|r| *r == first).count() as u64;
                        let mut range = snapshot.iter(keyspace);
                        let (mut forward, mut count, mut ahead) = (checked % 2 == 0, 0, 0);
                        while let Some(record) = if forward {
                            range.next()
                        } else {
                            range.next_back()
                        } {
                            ahead += u64::from(round_of(&record.unwrap().1) == *first);
                            count += 1;
                            forward ^= reader == 2;
                        }
                        assert_eq!(count, KEYS);
                        // All keys of a pass, or as many as the gets above allow.
                        assert!(
                            ahead <= newest * 50 && ahead + 50 > newest * 50,
                            "{ahead} of round {first}, {newest}"
                        );
                        let now = round_of(&keyspace.get(key(0)).unwrap().unwrap());
                        assert!(now >= *first);
                        checked += 1;
                    }
                })
            })
            .collect();
        // The writer ends with the readers, whatever they found.
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    let metrics = database.metrics();
    assert!(metrics.checkpoints > 10, "{metrics:?}");
    assert_eq!(metrics.views, 0);
    assert!(
        metrics.memory.memtable_bytes <= 4 << 20,
        "{:?}",
        metrics.memory
    );
    println!(
        "{} folds, {} checkpoints",
        metrics.folds, metrics.checkpoints
    );
    database.close().unwrap();
}

/// A close beside readers. Each read gets its value or `Closed`, and no other error.
#[test]
fn close_under_readers_gives_closed_and_nothing_else() {
    for _ in 0..5 {
        let directory = Directory::new("read-close");
        let database = open(&directory);
        let keyspace = database.default_keyspace();
        for i in 0..20_000 {
            keyspace.put(key(i), [1; 100]).unwrap();
        }
        database.checkpoint().unwrap();
        let started = AtomicU64::new(0);
        let closed = |error: terrapin::Error| {
            assert_eq!(error.kind(), terrapin::ErrorKind::Closed, "{error}")
        };
        std::thread::scope(|scope| {
            for reader in 0..4u64 {
                let (database, keyspace, started) = (&database, &keyspace, &started);
                scope.spawn(move || {
                    let snapshot = database.snapshot().unwrap();
                    for i in 0.. {
                        started.fetch_add(1, Ordering::Relaxed);
                        let outcome = match reader {
                            0 => keyspace.get(key(i % 20_000)).map(|v| assert!(v.is_some())),
                            1 => snapshot
                                .get(keyspace, key(i % 20_000))
                                .map(|v| assert!(v.is_some())),
                            2 => snapshot
                                .iter(keyspace)
                                .try_fold(0, |n, r| r.map(|_| n + 1))
                                .map(|n| assert_eq!(n, 20_000)),
                            _ => keyspace
                                .iter()
                                .rev()
                                .try_fold(0, |n, r| r.map(|_| n + 1))
                                .map(|n| assert_eq!(n, 20_000)),
                        };
                        if let Err(error) = outcome {
                            return closed(error);
                        }
                    }
                });
            }
            while started.load(Ordering::Relaxed) < 2000 {
                std::thread::yield_now();
            }
            database.close().unwrap();
        });
        let again = open(&directory);
        assert_eq!(again.default_keyspace().iter().count(), 20_000);
        again.close().unwrap();
    }
}
