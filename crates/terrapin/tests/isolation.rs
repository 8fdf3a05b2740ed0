//! What a keyspace with a damaged tree leaves to the others, whatever is short: memory, the disk,
//! or the log.

mod common;

use std::time::Duration;

use common::{World, all, key, tiny, value};
use terrapin::{CheckpointDistance, Database, ErrorKind, Options};
use terrapin_base::{Condition, Env, Job, Step};
use terrapin_disk::sim::{Media, MediaFault};

/// A database whose keyspace `bad` has records 0 to 2999, and unreadable leaves all over its tree.
fn damaged(world: &World) {
    let database = world.open(&tiny());
    let bad = database.keyspace("bad").unwrap();
    for i in 0..3000 {
        bad.put(key(i), value(i, 100)).unwrap();
    }
    drop(bad);
    database.close().unwrap();
    let content = world.disk.content("data").unwrap();
    for number in (0..3000).step_by(100) {
        let record = value(number, 100);
        let places = content.windows(record.len()).enumerate();
        for (place, _) in places.filter(|(_, bytes)| *bytes == record) {
            assert!(world.disk.corrupt("data", place as u64 + 20, 0x40));
        }
    }
}

/// Large memtables, so that a few of them take all memory, and a log that makes nobody give up his.
fn large_memtables() -> Options {
    tiny()
        .record_cache(false)
        .checkpoint_distance(CheckpointDistance::Fixed(128))
        .log_bytes_max(16 << 20)
        .stall_limit(Duration::from_secs(5))
}

/// Puts into `bad` until a round has failed to merge it; how many there are.
fn fill_bad(database: &Database) -> u64 {
    let bad = database.keyspace("bad").unwrap();
    let mut count = 0;
    while database.metrics().checkpoints_failed == 0 {
        bad.put(key(5000 + count), value(count, 100))
            .unwrap_or_else(|e| panic!("put {count}: {e}"));
        count += 1;
    }
    count
}

/// Puts into `bad` until a checkpoint cannot merge the few records of its memtable.
fn leave_a_little_in_bad(database: &Database) {
    let bad = database.keyspace("bad").unwrap();
    let mut count = 0;
    while database.checkpoint().is_ok() {
        for _ in 0..10 {
            bad.put(key(count), "new").unwrap();
            count += 1;
        }
        assert!(count < 100_000);
    }
}

fn check_bad(database: &Database, count: u64) {
    let bad = database.keyspace("bad").unwrap();
    for i in 0..count {
        let found = bad.get(key(5000 + i)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(i, 100)[..]));
    }
}

/// It kept all memtables from being merged: writes to other keyspaces came to a stop, and the next
/// open was refused.
#[test]
fn a_damaged_tree_keeps_no_other_keyspace_from_being_merged() {
    const RECORDS: u64 = 20_000;
    let world = World::new(12);
    damaged(&world);
    let options = tiny()
        .record_cache(false)
        .stall_limit(Duration::from_secs(5));
    let database = world.open(&options);
    let (good, bad) = (
        database.keyspace("good").unwrap(),
        database.keyspace("bad").unwrap(),
    );
    let (mut in_bad, mut refused) = (Vec::new(), None);
    for i in 0..RECORDS {
        good.put(key(i), value(i, 60))
            .unwrap_or_else(|e| panic!("put {i}: {e}"));
        if refused.is_none() {
            match bad.put(key(5000 + i), value(i, 60)) {
                Ok(()) => in_bad.push(i),
                Err(error) => refused = Some(error),
            }
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.kind(), ErrorKind::Stalled, "{refused}");
    let metrics = database.metrics();
    assert!(metrics.checkpoints_failed > 0 && metrics.checkpoints > 20);
    let error = database.checkpoint().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("keyspace bad"), "{error}");
    drop((good, bad));
    world.kill(database);

    let database = world.open(&options);
    let (good, bad) = (
        database.keyspace("good").unwrap(),
        database.keyspace("bad").unwrap(),
    );
    assert_eq!(all(&good).len() as u64, RECORDS);
    for i in in_bad {
        let found = bad.get(key(5000 + i)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(i, 60)[..]));
    }
    // What is cleared is no trouble any more.
    bad.clear().unwrap();
    database.checkpoint().unwrap();
    drop((good, bad));
    database.close().unwrap();
    world.verify();
}

/// Their memory was waited for, which no merge would free: writers of all keyspaces stalled, and
/// nobody sealed what could be merged.
#[test]
fn a_memtable_that_cannot_be_merged_leaves_memory_to_others() {
    let world = World::new(13);
    damaged(&world);
    let database = world.open(&large_memtables());
    let in_bad = fill_bad(&database);
    let failed = database.metrics().checkpoints_failed;
    let good: Vec<_> = (0..4)
        .map(|i| database.keyspace(&format!("good {i}")).unwrap())
        .collect();
    let records = 2500;
    for keyspace in &good {
        for i in 0..records {
            keyspace
                .put(key(i), value(i, 100))
                .unwrap_or_else(|e| panic!("put {i}: {e}"));
        }
    }
    let metrics = database.metrics();
    assert!(metrics.memory.total_bytes() <= 2 << 20);
    // Not one for each record, either.
    assert!(
        (1..200).contains(&metrics.checkpoints),
        "{}",
        metrics.checkpoints
    );
    assert!(failed > 0);
    for keyspace in &good {
        assert_eq!(all(keyspace).len() as u64, records);
    }
    check_bad(&database, in_bad);
    drop(good);
    world.kill(database);
    let database = world.open(&large_memtables());
    check_bad(&database, in_bad);
    world.kill(database);
}

/// The log was not replayed, for memory was short beside what could not be merged: others were not
/// sealed, and `bad` itself may hold more than a replay let it.
#[test]
fn a_log_is_replayed_beside_a_memtable_that_cannot_be_merged() {
    for (bad_takes_most, in_good) in [(false, 1000), (true, 0)] {
        let world = World::new(14);
        damaged(&world);
        let database = world.open(&large_memtables());
        let mut in_bad = fill_bad(&database);
        let bad = database.keyspace("bad").unwrap();
        while bad_takes_most && database.metrics().memory.memtable_bytes <= (2 << 20) / 10 * 6 {
            bad.put(key(5000 + in_bad), value(in_bad, 100)).unwrap();
            in_bad += 1;
        }
        for number in 0..4 {
            let keyspace = database.keyspace(&format!("good {number}")).unwrap();
            for i in 0..in_good {
                keyspace.put(key(i), value(i, 100)).unwrap();
            }
        }
        drop(bad);
        world.kill(database);
        let database = world.open(&large_memtables());
        check_bad(&database, in_bad);
        for number in 0..4 {
            let keyspace = database.keyspace(&format!("good {number}")).unwrap();
            assert_eq!(all(&keyspace).len() as u64, in_good);
        }
        world.kill(database);
    }
}

/// A replay ended where writers had gone on: beside a memtable that holds nearly all the memory
/// that memtables may take.
#[test]
fn an_open_goes_on_where_the_process_did() {
    let world = World::new(17);
    damaged(&world);
    let database = world.open(&large_memtables());
    let mut in_bad = fill_bad(&database);
    let bad = database.keyspace("bad").unwrap();
    while let Ok(()) = bad.put(key(5000 + in_bad), value(in_bad, 100)) {
        in_bad += 1;
    }
    let good = database.keyspace("good").unwrap();
    let records = 200;
    for i in 0..records {
        good.put(key(i), value(i, 100))
            .unwrap_or_else(|e| panic!("put {i}: {e}"));
    }
    drop((good, bad));
    world.kill(database);
    let database = world.open(&large_memtables());
    check_bad(&database, in_bad);
    let good = database.keyspace("good").unwrap();
    assert_eq!(all(&good).len(), records as usize);
    drop(good);
    world.kill(database);
}

/// One small memtable that could not be merged had the others sealed at the end of memory only.
#[test]
fn memory_is_as_much_as_ever_beside_a_small_memtable_that_cannot_be_merged() {
    // Writes beyond seven tenths of memory.
    let mut late = [0, 0];
    for (place, is_damaged) in [false, true].into_iter().enumerate() {
        let world = World::new(18);
        damaged(&world);
        let database = world.open(&large_memtables());
        if is_damaged {
            leave_a_little_in_bad(&database);
        }
        let good: Vec<_> = (0..8)
            .map(|i| database.keyspace(&format!("good {i}")).unwrap())
            .collect();
        for i in 0..4000 {
            for keyspace in &good {
                keyspace.put(key(i), value(i, 100)).unwrap();
                let memtable_bytes = database.metrics().memory.memtable_bytes;
                late[place] += u64::from(memtable_bytes > (2 << 20) / 10 * 7);
            }
        }
        drop(good);
        world.kill(database);
    }
    let [alone, beside] = late;
    // The memtable that cannot be merged takes memory of its own: a little more than without it.
    assert!(
        beside <= 2 * alone,
        "{beside} of 32000 writes, {alone} without"
    );
}

/// The coordinator slept for the memtable that it could not merge, ten seconds at a time, over what
/// others wanted of it.
#[test]
fn the_rest_of_a_memtable_that_cannot_be_merged_is_nobody_elses() {
    let world = World::new(20);
    damaged(&world);
    let database = world.open(&tiny().record_cache(false));
    let good = database.keyspace("good").unwrap();
    let records = 3000;
    for i in 0..records {
        good.put(key(i), value(i, 100)).unwrap();
    }
    database.checkpoint().unwrap();
    leave_a_little_in_bad(&database);
    for _ in 0..20 {
        world.sim.advance_ns(10_000_000_000);
        world.sim.settle();
    }
    // Ranges that paid have the tree compacted.
    for i in 0..10_000 {
        assert!(good.range(key(i % records)..).next().unwrap().is_ok());
    }
    world.sim.settle();
    assert!(database.metrics().compactions > 0);
    // Deletes on a full disk are merged.
    world.disk.set_capacity(world.disk.used_bytes());
    let refused = (0..20_000).find_map(|i| good.put(key(i % records), value(i, 100)).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
    world.sim.settle();
    for i in 0..50 {
        good.delete(key(i)).unwrap();
    }
    // Once no more have come for a while.
    for _ in 0..3 {
        world.sim.advance_ns(1_100_000_000);
        world.sim.settle();
    }
    let stat = database.stat().unwrap();
    let merged = stat.keyspaces.iter().find(|k| k.name == "good").unwrap();
    assert_eq!(merged.memtable_bytes, 0);
    let error = database.background_error().unwrap();
    assert!(error.to_string().contains("keyspace bad"), "{error}");
    // And room is seen that comes back.
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(1_100_000_000);
    world.sim.settle();
    good.put("a", "b").unwrap();
    drop(good);
    world.kill(database);
}

/// On a full disk the smallest memtable was merged first, and as a slice: where that could not be,
/// no other was ever tried.
#[test]
fn a_memtable_that_cannot_be_merged_holds_up_no_other_on_a_full_disk() {
    let world = World::new(15);
    damaged(&world);
    let options = tiny().record_cache(false);
    let database = world.open(&options);
    let (good, bad) = (
        database.keyspace("good").unwrap(),
        database.keyspace("bad").unwrap(),
    );
    let records = 100;
    for i in 0..records {
        good.put(key(i), value(i, 60)).unwrap();
    }
    database.flush().unwrap();
    world.disk.set_capacity(world.disk.used_bytes());
    // Each of the damaged leaves is one that a slice comes to.
    for i in (0..3000).step_by(100) {
        bad.delete(key(i)).unwrap();
    }
    let error = database.checkpoint().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
    for _ in 0..3 {
        let _ = database.checkpoint();
    }
    world.disk.set_capacity(u64::MAX);
    for _ in 0..3 {
        let error = database.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    world.sim.settle();
    let stat = database.stat().unwrap();
    let held = |name: &str| {
        let keyspace = stat.keyspaces.iter().find(|k| k.name == name).unwrap();
        keyspace.memtable_bytes
    };
    assert_eq!(held("good"), 0);
    assert!(held("bad") > 0);
    assert_eq!(all(&good).len(), records as usize);
    bad.clear().unwrap();
    drop((good, bad));
    database.close().unwrap();
    world.verify();
}

/// They learned of it only at the end of their wait, which was an error then.
#[test]
fn writers_that_wait_for_a_memtable_go_on_once_it_may_be_larger() {
    let world = World::new(16);
    damaged(&world);
    let options = tiny()
        .record_cache(false)
        .log_bytes_max(16 << 20)
        .stall_limit(Duration::from_secs(5));
    let database = world.open(&options);
    let bad = database.keyspace("bad").unwrap();
    // A writer is asleep when the dial is turned.
    let since = world.env.now_ns();
    let turn = Turn {
        env: world.env.clone(),
        database: database.clone(),
        at_ns: since + 1_000_000_000,
    };
    world.env.spawn(Box::new(turn)).unwrap();
    let waited = |i| {
        bad.put(key(5000 + i), value(i, 100)).unwrap();
        Some(world.env.now_ns() - since).filter(|waited| *waited >= 1_000_000_000)
    };
    let waited = (0..10_000).find_map(waited).expect("no writer had to wait");
    assert!(waited < 2_000_000_000, "{waited}");
    drop(bad);
    world.kill(database);
}

/// Raises χ at some time.
struct Turn {
    env: Env,
    database: Database,
    at_ns: u64,
}

impl Job for Turn {
    fn name(&self) -> &'static str {
        "turn"
    }

    fn step(&mut self) -> Step {
        if self.env.now_ns() < self.at_ns {
            return Step::Pending(Condition::delay_until(self.at_ns));
        }
        let distance = CheckpointDistance::Fixed(64);
        self.database.set_checkpoint_distance(distance).unwrap();
        Step::Done
    }
}

/// What fitted best was free again after each failure: the same place was written again and again,
/// and every merge of every keyspace failed.
#[test]
fn a_place_that_takes_no_writes_holds_no_checkpoint_up_for_long() {
    let world = World::new(31);
    let database = world.open(&tiny());
    let keyspaces: Vec<_> = (0..3)
        .map(|i| database.keyspace(&format!("k{i}")).unwrap())
        .collect();
    let write = |round: u64| {
        for keyspace in &keyspaces {
            for i in 0..1000 {
                keyspace.put(key(i), value(i + round, 60)).unwrap();
            }
        }
    };
    write(0);
    database.checkpoint().unwrap();
    let middle = world.disk.content("data").unwrap().len() as u64 / 2;
    let bad = MediaFault::nth(1, Media::WriteError)
        .of("data")
        .within(middle..middle + 512)
        .lasting();
    world.disk.inject_media(bad);
    let mut failed = 0;
    for round in 1..40 {
        write(round);
        failed += u64::from(database.checkpoint().is_err());
    }
    assert!(!world.disk.media_hits().is_empty());
    assert!(failed < 10, "{failed} of 39 failed");
    database.checkpoint().unwrap();
    for keyspace in &keyspaces {
        for i in 0..1000 {
            let found = keyspace.get(key(i)).unwrap();
            assert_eq!(found.as_deref(), Some(&value(i + 39, 60)[..]));
        }
    }
    database.close().unwrap();
    world.verify();
}
