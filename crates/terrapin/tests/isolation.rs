//! A keyspace with a damaged tree must not harm the others, even when memory, the disk or the log
//! is short.

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

/// Large memtables, so that a few of them take all memory, and a log so large that no memtable is
/// sealed for it.
fn large_memtables() -> Options {
    tiny()
        .record_cache(false)
        .checkpoint_distance(CheckpointDistance::Fixed(128))
        .log_bytes_max(16 << 20)
        .stall_limit(Duration::from_secs(5))
}

/// Puts into `bad` until a checkpoint has failed to merge it. Returns the number of puts.
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

/// Guards against a damaged tree that kept all memtables from being merged. Writes to other
/// keyspaces stopped, and the next open was refused.
#[test]
fn a_damaged_tree_blocks_no_merge_of_other_keyspaces() {
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
    // A cleared keyspace causes no failures any more.
    bad.clear().unwrap();
    database.checkpoint().unwrap();
    drop((good, bad));
    database.close().unwrap();
    world.verify();
}

/// Guards against writers that waited for memory that no merge would free. Writers of all keyspaces
/// stalled, and no memtable that could be merged was sealed.
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
    // Nor is one sealed for each record.
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

/// Guards against a log that was not replayed because memory was short beside the damaged keyspace.
/// Other memtables were not sealed, and `bad` may hold more than a replay allowed.
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

/// Guards against a replay that ended where writers had continued. The memtable of `bad` holds
/// nearly all the memory for memtables.
#[test]
fn an_open_continues_where_the_process_did() {
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

/// Guards against a small memtable that could not be merged. The others were then sealed only at
/// the end of memory.
#[test]
fn a_small_unmergeable_memtable_leaves_others_all_memory() {
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
    // The memtable that cannot be merged takes memory of its own, so this takes a little more than
    // without it.
    assert!(
        beside <= 2 * alone,
        "{beside} of 32000 writes, {alone} without"
    );
}

/// Guards against a coordinator that rested for one memtable, ten seconds at a time, while others
/// needed it.
#[test]
fn the_rest_after_a_failed_merge_delays_no_other_work() {
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
    // The merge comes once no more deletes have come for a while.
    for _ in 0..3 {
        world.sim.advance_ns(1_100_000_000);
        world.sim.settle();
    }
    let stat = database.stat().unwrap();
    let merged = stat.keyspaces.iter().find(|k| k.name == "good").unwrap();
    assert_eq!(merged.memtable_bytes, 0);
    let error = database.background_error().unwrap();
    assert!(error.to_string().contains("keyspace bad"), "{error}");
    // The coordinator also notices room that returns.
    world.disk.set_capacity(u64::MAX);
    world.sim.advance_ns(1_100_000_000);
    world.sim.settle();
    good.put("a", "b").unwrap();
    drop(good);
    world.kill(database);
}

/// Guards against one memtable that blocked all on a full disk. The smallest was merged first, as a
/// slice. When that failed, no other was tried.
#[test]
fn an_unmergeable_memtable_delays_no_other_on_a_full_disk() {
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
    // A slice meets each of the damaged leaves.
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

/// Guards against writers that learned of the larger memtable only at the end of their wait, as an
/// error.
#[test]
fn waiting_writers_continue_once_a_memtable_may_be_larger() {
    let world = World::new(16);
    damaged(&world);
    let options = tiny()
        .record_cache(false)
        .log_bytes_max(16 << 20)
        .stall_limit(Duration::from_secs(5));
    let database = world.open(&options);
    let bad = database.keyspace("bad").unwrap();
    // A writer waits when χ is raised.
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

/// Raises χ at a given time.
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

/// Guards against one bad extent that failed every merge of every keyspace. After each failure the
/// extent was free again and fitted best.
#[test]
fn an_extent_that_cannot_be_written_delays_no_checkpoint_for_long() {
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
