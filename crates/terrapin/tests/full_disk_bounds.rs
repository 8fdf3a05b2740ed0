//! Bounds of the waits of calls on a full disk or at a full quota (D10, decision 0038). The tests
//! count checkpoints, allocations and simulated time.

mod common;

use std::time::Duration;

use common::{World, tiny};
use terrapin::{Database, Durability, ErrorKind, Keyspace, Metrics, Options, Snapshot};
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::DATA_FILE;

const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Keys in an order other than their own.
fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn options() -> Options {
    tiny()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(256 << 10)
        .log_segment_bytes(256 << 10)
        .stall_limit(STALL_LIMIT)
}

/// A store whose puts have filled a disk.
struct Full {
    world: World,
    database: Database,
    keyspace: Keyspace,
    stored: u64,
}

impl Full {
    fn new(seed: u64, room: u64, value_bytes: usize) -> Full {
        Self::with(&options(), seed, room, value_bytes)
    }

    fn with(options: &Options, seed: u64, room: u64, value_bytes: usize) -> Full {
        let world = World::new(seed);
        let database = world.open(options);
        let keyspace = database.default_keyspace();
        database.checkpoint().unwrap();
        world.disk.set_capacity(world.disk.used_bytes() + room);
        let put = |number| keyspace.put(scattered(number), vec![number as u8; value_bytes]);
        let mut stored = 0;
        let refused = loop {
            match put(stored) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        Full {
            world,
            database,
            keyspace,
            stored,
        }
    }

    /// Deletes every other record while a snapshot keeps all pages, until a delete is refused.
    /// Returns the number of deletes, and how many in a row were refused.
    fn delete_half(&self, refused_max: u64) -> (u64, u64) {
        let (mut deleted, mut refused) = (0, 0);
        for number in (0..self.stored).step_by(2) {
            match self.keyspace.delete(scattered(number)) {
                Ok(()) => deleted += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Stalled, "{error}");
                    refused += 1;
                    if refused == refused_max {
                        break;
                    }
                }
            }
        }
        (deleted, refused)
    }

    /// No space is returned any more, and another program takes the rest of the disk.
    fn crowd(&self) -> Snapshot {
        let snapshot = self.database.snapshot().unwrap();
        self.world.sim.settle();
        self.world.disk.set_capacity(self.world.disk.used_bytes());
        snapshot
    }

    fn refusals(&self) -> u64 {
        self.world.disk.stats(DATA_FILE).refusals
    }
}

fn attempts(metrics: &Metrics) -> u64 {
    metrics.checkpoints + metrics.checkpoints_failed
}

/// Guards against repeated requests to a full file system. Each page of each slice asked several
/// times, and slices grew from one record to L by doubling. On a real ext4 a close took 30 s, and
/// users reported four minutes.
#[test]
fn a_close_on_a_full_disk_asks_for_little_and_takes_few_checkpoints() {
    for (seed, value_bytes) in [(60, 100), (61, 700)] {
        let full = Full::new(seed, 12 << 20, value_bytes);
        let snapshot = full.crowd();
        let (deleted, _) = full.delete_half(2);
        drop(snapshot);
        let before = (attempts(&full.database.metrics()), full.refusals());
        full.database.close().unwrap();
        let attempts = attempts(&full.database.metrics()) - before.0;
        let refusals = full.refusals() - before.1;
        assert!((1..=40).contains(&attempts), "{attempts} attempts");
        assert!(
            refusals <= 8 * attempts,
            "{refusals} refusals in {attempts}"
        );
        full.world.disk.set_capacity(u64::MAX);
        let database = full.world.open(&options());
        let left = database.default_keyspace().iter().count() as u64;
        assert_eq!(left, full.stored - deleted);
        database.close().unwrap();
        full.world.verify();
    }
}

/// One record of each leaf is deleted. Each slice frees no more than it takes, so later slices find
/// no more room. Without a bound, a checkpoint, a flush or a close waited for all of them.
#[test]
fn no_call_waits_for_many_small_slices() {
    let small = options().group_bytes(8 << 10);
    // How many slices fail depends on every byte of the file.
    let mut given_up = 0;
    for seed in 67..70 {
        let full = Full::with(&small, seed, (16 << 20) + (seed << 16), 700);
        drop(full.crowd());
        full.world.sim.settle();
        full.world.sim.set_breathing(false);
        let gone = (0..full.stored).step_by(20);
        for number in gone.clone() {
            full.keyspace.delete(scattered(number)).unwrap();
        }
        let mut bounded = |call: &dyn Fn() -> Option<terrapin::Error>| {
            let before = attempts(&full.database.metrics());
            let refused = call();
            let attempts = attempts(&full.database.metrics()) - before;
            assert!(attempts <= 64, "{attempts} attempts: {refused:?}");
            if let Some(refused) = refused {
                assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
                given_up += u64::from(refused.to_string().contains("bytes of log not merged"));
            }
        };
        bounded(&|| full.database.checkpoint().err());
        bounded(&|| full.database.close().unwrap().cause);
        full.world.disk.set_capacity(u64::MAX);
        let database = full.world.open(&small);
        let left = full.stored - gone.count() as u64;
        assert_eq!(database.default_keyspace().iter().count() as u64, left);
        database.close().unwrap();
        full.world.verify();
    }
    assert!(given_up > 0, "all was done in few attempts");
}

/// A snapshot keeps the pages that deletes would free, so nothing can be merged any more.
#[test]
fn a_close_that_cannot_merge_all_names_what_the_next_open_replays() {
    let full = Full::new(62, 12 << 20, 100);
    let snapshot = full.crowd();
    let (deleted, _) = full.delete_half(2);
    let before = attempts(&full.database.metrics());
    let closed = full.database.close().unwrap();
    assert!(closed.replay_bytes > 0, "{closed:?}");
    let cause = closed
        .cause
        .expect("a close that leaves something says why");
    assert_eq!(cause.kind(), ErrorKind::NoSpace, "{cause}");
    let attempts = attempts(&full.database.metrics()) - before;
    assert!(attempts <= 160, "{attempts} attempts");
    // A second close names the same bytes.
    let again = full.database.close().unwrap();
    assert_eq!(again.replay_bytes, closed.replay_bytes);
    drop(snapshot);
    full.world.disk.set_capacity(u64::MAX);
    let database = full.world.open(&options());
    assert!(database.metrics().replayed_records > 0);
    let left = database.default_keyspace().iter().count() as u64;
    assert_eq!(left, full.stored - deleted);
    let closed = database.close().unwrap();
    assert_eq!((closed.replay_bytes, closed.cause.is_none()), (0, true));
    full.world.verify();
}

/// Such a write is in no log, so a close that cannot merge it must fail.
#[test]
fn a_close_on_a_full_disk_fails_if_a_write_is_not_in_the_log() {
    let full = Full::new(63, 12 << 20, 100);
    let _snapshot = full.crowd();
    full.delete_half(2);
    let other = full.database.keyspaces().unwrap().len();
    assert_eq!(other, 1);
    // A delete of a missing key, without durability.
    let deleted = full.keyspace.delete_with([0xff; 20], Durability::None);
    let closed = full.database.close();
    match deleted {
        Ok(()) => assert_eq!(closed.unwrap_err().kind(), ErrorKind::NoSpace),
        Err(refused) => assert_eq!(refused.kind(), ErrorKind::Stalled, "{refused}"),
    }
}

/// Checkpoints and flushes have the same bound.
#[test]
fn a_wait_for_a_checkpoint_on_a_full_disk_ends() {
    let full = Full::new(64, 12 << 20, 100);
    let snapshot = full.crowd();
    full.delete_half(2);
    for _ in 0..3 {
        let before = attempts(&full.database.metrics());
        let refused = full.database.checkpoint().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let attempts = attempts(&full.database.metrics()) - before;
        assert!(attempts <= 160, "{attempts} attempts");
    }
    drop(snapshot);
    full.world.disk.set_capacity(u64::MAX);
    full.database.checkpoint().unwrap();
    full.database.close().unwrap();
    full.world.verify();
}

/// Guards against 25 waits of the full limit, one for each of 25 deletes.
#[test]
fn stalled_deletes_wait_for_the_limit_once_together() {
    let full = Full::new(65, 12 << 20, 100);
    let snapshot = full.crowd();
    full.delete_half(1);
    let since = full.world.env.now_ns();
    for number in 0..25 {
        let refused = full.keyspace.delete(scattered(2 * number + 1)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Stalled, "{refused}");
    }
    let waited = full.world.env.now_ns() - since;
    assert!(waited < 2 * STALL_LIMIT.as_nanos() as u64, "{waited} ns");
    // Once there is room, deletes pass.
    drop(snapshot);
    full.world.disk.set_capacity(u64::MAX);
    let went_on = (0..10).any(|_| {
        full.world.sim.advance_ns(2_000_000_000);
        full.world.sim.settle();
        full.keyspace.delete(scattered(1)).is_ok()
    });
    assert!(went_on);
    full.database.close().unwrap();
    full.world.verify();
}

/// Guards against an error that named a full disk with 73 GB free.
#[test]
fn a_full_quota_is_named_and_ends_when_it_is_raised() {
    for file in [DATA_FILE, "spare-"] {
        let world = World::new(66);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        database.checkpoint().unwrap();
        world.sim.settle();
        let quota = Fault::nth(1, FaultError::Quota).on(Op::Allocate);
        world.disk.inject(quota.of(file).lasting());
        let mut stored = 0;
        let refused = loop {
            match keyspace.put(scattered(stored), [7; 700]) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 100_000, "the quota is never met");
        };
        let said = refused.to_string();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{said}");
        assert!(
            said.contains("quota") && !said.contains("disk is full"),
            "{said}"
        );
        assert!(!said.contains("bytes needed"), "{said}");
        if file == DATA_FILE {
            keyspace.delete(scattered(0)).unwrap();
            stored -= 1;
        }
        world.disk.clear_faults();
        let went_on = (0..10).any(|_| {
            world.sim.advance_ns(2_000_000_000);
            world.sim.settle();
            keyspace.put("again", "1").is_ok()
        });
        assert!(went_on, "{file}");
        assert_eq!(keyspace.iter().count() as u64, stored + 1);
        database.close().unwrap();
        world.verify();
    }
}

/// Guards against puts that were refused until the next look at the disk. That took up to a second,
/// or ten after a failed checkpoint. Their errors named more free bytes than needed.
#[test]
fn the_first_put_after_room_returned_is_accepted() {
    for checkpoint_fails in [false, true] {
        let full = Full::new(71, 12 << 20, 100);
        if checkpoint_fails {
            let snapshot = full.crowd();
            // A checkpoint follows each 500 deletes, so that no delete stalls. Each failed
            // checkpoint doubles the rest after it.
            let mut failed = 0;
            for number in 0..full.stored {
                full.keyspace.delete(scattered(number)).unwrap();
                if number % 500 == 0 {
                    failed += u64::from(full.database.checkpoint().is_err());
                }
                if failed == 3 {
                    break;
                }
            }
            assert_eq!(failed, 3);
            drop(snapshot);
        }
        full.world.disk.set_capacity(full.world.disk.used_bytes());
        let refused = (0..).find_map(|number| full.keyspace.put(scattered(number), [8; 100]).err());
        let refused = refused.expect("puts are refused");
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        full.world.disk.set_capacity(u64::MAX);
        let since = full.world.env.now_ns();
        // These are more bytes than memory takes without a merge. So no put waits for the end of a
        // rest.
        for number in 0..40_000 {
            full.keyspace.put(scattered(number), [8; 100]).unwrap();
        }
        let waited = full.world.env.now_ns() - since;
        assert!(waited < 500_000_000, "{waited} ns");
        full.database.close().unwrap();
        full.world.verify();
    }
}

/// An open that finds many lives of the log checkpoints before it serves. Guards against a store
/// that then refused puts on a full disk after there was room.
#[test]
fn an_open_that_checkpoints_on_a_full_disk_accepts_puts_once_there_is_room() {
    let mut ran_short = 0;
    for seed in 72..80 {
        let world = World::new(seed);
        for life in 0..9 {
            let database = world.open(&options());
            let keyspace = database.default_keyspace();
            for number in (life..10_000).step_by(20) {
                keyspace.put(scattered(number), [life as u8; 700]).unwrap();
            }
            if life == 0 {
                database.checkpoint().unwrap();
            }
            world.kill(database);
        }
        let more = (seed - 72) * (32 << 10);
        world.disk.set_capacity(world.disk.used_bytes() + more);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        let mut puts = (0..400).map(|number| keyspace.put(scattered(number), [9; 700]));
        ran_short += u64::from(puts.any(|put| put.is_err()));
        world.disk.set_capacity(u64::MAX);
        keyspace.put("again", "1").unwrap();
        database.close().unwrap();
        world.verify();
    }
    assert!(ran_short > 0, "no open ran short of room");
}

/// A disk that reports room and gives none. A look at the disk must not start a checkpoint.
#[test]
fn puts_on_a_disk_that_only_reports_room_cause_no_checkpoints() {
    let world = World::new(77);
    let database = world.open(&options());
    let keyspace = database.default_keyspace();
    database.checkpoint().unwrap();
    let no_room = Fault::nth(1, FaultError::NoSpace).on(Op::Allocate);
    world.disk.inject(no_room.of(DATA_FILE).lasting());
    let put = |number| keyspace.put(scattered(number), [7; 700]);
    let mut stored = 0;
    while put(stored).is_ok() {
        stored += 1;
        assert!(stored < 100_000, "the disk is never full");
    }
    let before = (attempts(&database.metrics()), world.env.now_ns());
    for number in 0..1000 {
        let _ = put(stored + number);
    }
    let attempts = attempts(&database.metrics()) - before.0;
    let seconds = (world.env.now_ns() - before.1) / 1_000_000_000;
    assert!(
        attempts <= 64 + 4 * seconds,
        "{attempts} attempts in {seconds} s"
    );
    world.disk.clear_faults();
    world.sim.advance_ns(20_000_000_000);
    world.sim.settle();
    keyspace.put("again", "1").unwrap();
    database.close().unwrap();
    world.verify();
}
