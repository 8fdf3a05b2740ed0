//! Models of the whole engine for the checker of interleavings, in a build with `--cfg
//! terrapin_shuttle`. The engine's jobs are the checker's threads, and its disk is simulated.
#![cfg(terrapin_shuttle)]

use std::sync::Arc;
use std::sync::Mutex; // the checker need not interleave the models' own notes

use terrapin::verify::verify_on;
use terrapin::{CheckpointDistance, Database, Keyspace, Options, Snapshot};
use terrapin_base::sync::explore::{JoinHandle, explore, spawn};
use terrapin_base::{Env, ErrorKind};
use terrapin_disk::SimDisk;

/// Memtables of one small page group, so that seals and checkpoints happen often.
fn options() -> Options {
    Options::new()
        .memory(1 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .group_bytes(4 << 10)
        .block_bytes(512)
        .fanout(4)
        .checkpoint_distance(CheckpointDistance::Fixed(1))
        .background_threads(2)
}

fn open(medium: &SimDisk) -> Database {
    options()
        .open_on(Env::threads(), medium.handle())
        .expect("a database opens")
}

/// The value that a round writes: its number, and enough bytes to fill memtables.
fn value(round: u64) -> Vec<u8> {
    let mut value = round.to_le_bytes().to_vec();
    value.resize(600, round as u8);
    value
}

fn round_of(value: &[u8]) -> u64 {
    let round = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert_eq!(value, self::value(round), "torn");
    round
}

const KEYS: [&str; 3] = ["a", "m", "z"];

/// Rounds of batches over all keys of two keyspaces, and the last acknowledged round.
#[derive(Clone)]
struct Rounds {
    database: Arc<Database>,
    keyspaces: [Keyspace; 2],
    acknowledged: Arc<Mutex<u64>>,
}

impl Rounds {
    fn new(database: &Arc<Database>) -> Self {
        let rounds = Rounds {
            database: database.clone(),
            keyspaces: [
                database.default_keyspace(),
                database.keyspace("other").unwrap(),
            ],
            acknowledged: Arc::default(),
        };
        rounds.write(1);
        rounds
    }

    fn write(&self, round: u64) {
        let mut batch = self.database.batch();
        for keyspace in &self.keyspaces {
            for key in KEYS {
                batch.put(keyspace, key, value(round));
            }
        }
        self.database.write(batch).unwrap();
        *self.acknowledged.lock().unwrap() = round;
    }

    fn acknowledged(&self) -> u64 {
        *self.acknowledged.lock().unwrap()
    }

    /// The one round that a snapshot shows in all gets and in a scan.
    fn shown(&self, snapshot: &Snapshot) -> terrapin::Result<u64> {
        let mut rounds = Vec::new();
        for keyspace in &self.keyspaces {
            for key in KEYS {
                let value = snapshot.get(keyspace, key)?.expect("a key vanished");
                rounds.push(round_of(&value));
            }
            let mut keys = Vec::new();
            for record in snapshot.iter(keyspace) {
                let (key, value) = record?;
                keys.push(key);
                rounds.push(round_of(&value));
            }
            assert!(
                keys.iter().eq(KEYS.iter().map(|key| key.as_bytes())),
                "{keys:?}"
            );
        }
        let first = rounds[0];
        assert!(
            rounds.iter().all(|&r| r == first),
            "not one moment: {rounds:?}"
        );
        Ok(first)
    }

    fn writer(&self, rounds: u64) -> JoinHandle<()> {
        let this = self.clone();
        spawn(move || (2..2 + rounds).for_each(|round| this.write(round)))
    }
}

/// The files are sound, and hold exactly that round.
fn assert_left(medium: &SimDisk, round: u64) {
    let (env, _sim) = Env::simulated(1);
    let report = verify_on(env.clone(), medium.handle(), &Default::default()).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
    let database = Arc::new(options().open_on(env, medium.handle()).unwrap());
    let rounds = Rounds {
        keyspaces: [
            database.default_keyspace(),
            database.open_keyspace("other").unwrap(),
        ],
        acknowledged: Arc::default(),
        database,
    };
    let snapshot = rounds.database.snapshot().unwrap();
    assert_eq!(rounds.shown(&snapshot).unwrap(), round);
}

/// Readers beside a writer, seals and checkpoints. Each view is one moment, and no older than the
/// last acknowledged write before it.
#[test]
fn every_view_is_one_moment_while_memtables_are_sealed_and_merged() {
    explore("engine-views", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let rounds = Rounds::new(&database);
        let writer = rounds.writer(4);
        let checkpoints = {
            let database = database.clone();
            spawn(move || {
                for _ in 0..2 {
                    database.checkpoint().unwrap();
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let rounds = rounds.clone();
                spawn(move || {
                    let mut last = 0;
                    for _ in 0..3 {
                        let known = rounds.acknowledged();
                        let seen = if reader == 0 {
                            let snapshot = rounds.database.snapshot().unwrap();
                            rounds.shown(&snapshot).unwrap()
                        } else {
                            let found = rounds.keyspaces[1].get(KEYS[1]).unwrap();
                            round_of(&found.expect("a key vanished"))
                        };
                        assert!(seen >= known, "{seen}, though {known} was acknowledged");
                        assert!(seen >= last, "went back");
                        last = seen;
                    }
                })
            })
            .collect();
        writer.join().unwrap();
        checkpoints.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        database.close().unwrap();
        drop((rounds, database));
        assert_left(&medium, 5);
    });
}

/// Single puts beside seals and checkpoints, so small that most keep the state that admitted them.
/// No put may enter a memtable that a seal has ended below the put's LSN.
#[test]
fn a_put_enters_the_memtable_that_owns_its_lsn_beside_seals() {
    explore("engine-puts", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let keyspace = database.default_keyspace();
        let writers = [KEYS[0], KEYS[1]].map(|key| {
            let keyspace = keyspace.clone();
            spawn(move || {
                for round in 1..5u64 {
                    keyspace.put(key, round.to_le_bytes()).unwrap();
                    let found = keyspace.get(key).unwrap();
                    assert_eq!(found.as_deref(), Some(&round.to_le_bytes()[..]));
                }
            })
        });
        for _ in 0..2 {
            database.checkpoint().unwrap();
        }
        for writer in writers {
            writer.join().unwrap();
        }
        database.close().unwrap();
        drop((keyspace, database));
        let (env, _sim) = Env::simulated(1);
        let database = options().open_on(env, medium.handle()).unwrap();
        for key in [KEYS[0], KEYS[1]] {
            let found = database.default_keyspace().get(key).unwrap();
            assert_eq!(found.as_deref(), Some(&4u64.to_le_bytes()[..]));
        }
    });
}

/// Threads take, read and drop snapshots beside checkpoints and folds. A snapshot never changes,
/// and its pages are freed at the end.
#[test]
fn a_snapshot_never_changes_and_frees_its_pages() {
    explore("engine-snapshots", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let rounds = Rounds::new(&database);
        let held = Arc::new(Mutex::new(Vec::new()));
        let taker = {
            let (rounds, held) = (rounds.clone(), held.clone());
            spawn(move || {
                for round in 2..5 {
                    let snapshot = Arc::new(rounds.database.snapshot().unwrap());
                    held.lock().unwrap().push((snapshot, round - 1));
                    rounds.write(round);
                    rounds.database.checkpoint().unwrap();
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (rounds, held) = (rounds.clone(), held.clone());
                spawn(move || {
                    for look in 0..4 {
                        let some = {
                            let held = held.lock().unwrap();
                            (!held.is_empty()).then(|| held[look % held.len()].clone())
                        };
                        let Some((snapshot, round)) = some else {
                            terrapin_base::sync::yield_now();
                            continue;
                        };
                        assert_eq!(
                            rounds.shown(&snapshot).unwrap(),
                            round,
                            "the snapshot changed"
                        );
                        // The last thread that drops the snapshot frees its pages.
                        held.lock().unwrap().retain(|(_, other)| *other != round);
                    }
                })
            })
            .collect();
        taker.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        held.lock().unwrap().clear();
        database.checkpoint().unwrap();
        assert_eq!(database.stat().unwrap().views, 0);
        database.close().unwrap();
        drop((rounds, database));
        assert_left(&medium, 4);
    });
}

/// A close beside reads, writes and a checkpoint. Each call succeeds or returns `Closed`, and
/// acknowledged writes exist afterwards. This model found calls that lost the race with a close and
/// reported a dropped keyspace.
#[test]
fn a_close_beside_everything_loses_nothing_acknowledged() {
    explore("engine-close", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let rounds = Rounds::new(&database);
        let closed = |error: &terrapin::Error| {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        };
        let writer = {
            let rounds = rounds.clone();
            spawn(move || {
                for round in 2..5 {
                    let mut batch = rounds.database.batch();
                    for keyspace in &rounds.keyspaces {
                        for key in KEYS {
                            batch.put(keyspace, key, value(round));
                        }
                    }
                    if let Err(error) = rounds.database.write(batch) {
                        closed(&error);
                        return round - 1;
                    }
                }
                4
            })
        };
        let reader = {
            let rounds = rounds.clone();
            spawn(move || {
                let reads = || {
                    let found = rounds.keyspaces[1].get(KEYS[2])?;
                    round_of(&found.expect("a key vanished"));
                    assert_eq!(rounds.database.keyspaces()?.len(), 2);
                    rounds.database.open_keyspace("other")?;
                    let snapshot = rounds.database.snapshot()?;
                    let first = rounds.shown(&snapshot)?;
                    assert_eq!(rounds.shown(&snapshot)?, first, "the snapshot changed");
                    Ok(())
                };
                for _ in 0..3 {
                    if let Err(error) = reads() {
                        closed(&error);
                    }
                }
            })
        };
        let checkpoint = {
            let database = database.clone();
            spawn(move || {
                if let Err(error) = database.checkpoint() {
                    closed(&error);
                }
            })
        };
        database.close().unwrap();
        let written = writer.join().unwrap();
        reader.join().unwrap();
        checkpoint.join().unwrap();
        drop((rounds, database));
        assert_left(&medium, written);
    });
}

/// Updates beside puts, a clear, seals and checkpoints. Each value is written once, so no two
/// updates may have read the same one. "No value" is there once at first and once after the clear.
#[test]
fn no_two_updates_read_the_same_value() {
    explore("engine-updates", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let keyspace = database.default_keyspace();
        let updaters = [10u64, 20, 30].map(|first| {
            let keyspace = keyspace.clone();
            spawn(move || {
                let mut seen = Vec::new();
                for number in first..first + 2 {
                    let mut last = None;
                    let new = keyspace
                        .update(KEYS[0], |there| {
                            last = there.map(round_of);
                            Some(value(number))
                        })
                        .unwrap();
                    assert_eq!(new, Some(value(number)));
                    seen.push(last);
                }
                seen
            })
        });
        let other = {
            let (database, keyspace) = (database.clone(), keyspace.clone());
            spawn(move || {
                keyspace.put(KEYS[1], value(1)).unwrap();
                keyspace.put(KEYS[0], value(40)).unwrap();
                database.checkpoint().unwrap();
                keyspace.clear().unwrap();
            })
        };
        database.checkpoint().unwrap();
        let mut seen = Vec::new();
        for updater in updaters {
            seen.extend(updater.join().unwrap());
        }
        other.join().unwrap();
        let absent = seen.iter().filter(|value| value.is_none()).count();
        assert!(absent <= 2, "{seen:?}");
        let mut numbers: Vec<_> = seen.iter().flatten().collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len() + absent, seen.len(), "lost: {seen:?}");
        database.close().unwrap();
    });
}

/// Threads pop at both ends of a queue, beside a push and a checkpoint. Each record is popped once.
#[test]
fn each_record_is_popped_once() {
    explore("engine-pops", || {
        let medium = SimDisk::new(1);
        let database = Arc::new(open(&medium));
        let queue = database.default_keyspace();
        for key in KEYS {
            queue.put(key, value(1)).unwrap();
        }
        let poppers = [false, true, false].map(|last| {
            let queue = queue.clone();
            spawn(move || {
                let pop = || match last {
                    true => queue.pop_last().unwrap(),
                    false => queue.pop_first().unwrap(),
                };
                [pop(), pop()].into_iter().flatten().map(|(key, _)| key)
            })
        });
        let other = {
            let (database, queue) = (database.clone(), queue.clone());
            spawn(move || {
                queue.put("b", value(2)).unwrap();
                database.checkpoint().unwrap();
            })
        };
        let mut got = Vec::new();
        for popper in poppers {
            got.extend(popper.join().unwrap());
        }
        other.join().unwrap();
        got.extend(queue.iter().map(|record| record.unwrap().0));
        got.sort();
        assert!(got.iter().eq(["a", "b", "m", "z"].iter()), "{got:?}");
        database.close().unwrap();
    });
}
