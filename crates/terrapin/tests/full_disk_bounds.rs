//! What a full disk, or a quota, makes calls wait for has a bound (D10, decision 0038): counted in
//! rounds, allocations, and simulated time.

mod common;

use std::time::Duration;

use common::{World, tiny};
use terrapin::{Database, Durability, ErrorKind, Keyspace, Metrics, Options, Snapshot};
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::DATA_FILE;

const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Keys that come in an order that is not theirs.
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

/// A store that its puts have filled a disk with.
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

    /// Deletes every other record while a snapshot keeps all pages, until that is refused; how many
    /// it deleted, and how many deletes in a row were refused.
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

    /// Nothing is to be given back any more, and somebody else has what was left.
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

fn rounds(metrics: &Metrics) -> u64 {
    metrics.checkpoints + metrics.checkpoints_failed
}

/// Each page of each slice asked the full file system several times for what it had refused before,
/// and slices grew from a record to L by doubling. On a real ext4 a close took 30 s, and there were
/// reports of four minutes.
#[test]
fn a_close_on_a_full_disk_asks_for_little_and_takes_few_rounds() {
    for (seed, value_bytes) in [(60, 100), (61, 700)] {
        let full = Full::new(seed, 12 << 20, value_bytes);
        let snapshot = full.crowd();
        let (deleted, _) = full.delete_half(2);
        drop(snapshot);
        let before = (rounds(&full.database.metrics()), full.refusals());
        full.database.close().unwrap();
        let rounds = rounds(&full.database.metrics()) - before.0;
        let refusals = full.refusals() - before.1;
        assert!((1..=40).contains(&rounds), "{rounds} rounds");
        assert!(refusals <= 8 * rounds, "{refusals} refusals in {rounds}");
        full.world.disk.set_capacity(u64::MAX);
        let database = full.world.open(&options());
        let left = database.default_keyspace().iter().count() as u64;
        assert_eq!(left, full.stored - deleted);
        database.close().unwrap();
        full.world.verify();
    }
}

/// One record of each leaf goes: slices give back what they take and no more, so that the next ones
/// find no more room. Without a bound a checkpoint, a flush, or a close waited for all of them.
#[test]
fn many_small_slices_are_not_waited_for() {
    let small = options().group_bytes(8 << 10);
    // How full the file is to the byte decides how many slices fail.
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
            let before = rounds(&full.database.metrics());
            let refused = call();
            let rounds = rounds(&full.database.metrics()) - before;
            assert!(rounds <= 64, "{rounds} rounds: {refused:?}");
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
    assert!(given_up > 0, "all was done in few rounds");
}

/// A snapshot keeps what deletes would free, so that nothing can be merged any more.
#[test]
fn a_close_that_cannot_merge_everything_says_what_the_next_open_replays() {
    let full = Full::new(62, 12 << 20, 100);
    let snapshot = full.crowd();
    let (deleted, _) = full.delete_half(2);
    let before = rounds(&full.database.metrics());
    let closed = full.database.close().unwrap();
    assert!(closed.replay_bytes > 0, "{closed:?}");
    let cause = closed
        .cause
        .expect("a close that leaves something says why");
    assert_eq!(cause.kind(), ErrorKind::NoSpace, "{cause}");
    let rounds = rounds(&full.database.metrics()) - before;
    assert!(rounds <= 160, "{rounds} rounds");
    // A second close says the same.
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

/// Such a write is in no log: a close that cannot merge it is an error.
#[test]
fn a_close_on_a_full_disk_fails_where_a_write_is_not_in_the_log() {
    let full = Full::new(63, 12 << 20, 100);
    let _snapshot = full.crowd();
    full.delete_half(2);
    let other = full.database.keyspaces().unwrap().len();
    assert_eq!(other, 1);
    // A delete of what is not there, without durability.
    let deleted = full.keyspace.delete_with([0xff; 20], Durability::None);
    let closed = full.database.close();
    match deleted {
        Ok(()) => assert_eq!(closed.unwrap_err().kind(), ErrorKind::NoSpace),
        Err(refused) => assert_eq!(refused.kind(), ErrorKind::Stalled, "{refused}"),
    }
}

/// Checkpoints and flushes have the same bound.
#[test]
fn a_checkpoint_on_a_full_disk_is_not_waited_for_for_ever() {
    let full = Full::new(64, 12 << 20, 100);
    let snapshot = full.crowd();
    full.delete_half(2);
    for _ in 0..3 {
        let before = rounds(&full.database.metrics());
        let refused = full.database.checkpoint().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let rounds = rounds(&full.database.metrics()) - before;
        assert!(rounds <= 160, "{rounds} rounds");
    }
    drop(snapshot);
    full.world.disk.set_capacity(u64::MAX);
    full.database.checkpoint().unwrap();
    full.database.close().unwrap();
    full.world.verify();
}

/// Each of 25 deletes waited anew for the whole limit.
#[test]
fn deletes_that_stall_wait_for_the_limit_once_and_not_each() {
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
    // Once there is room they go on.
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

/// The error spoke of a full disk, with 73 GB free.
#[test]
fn a_quota_that_is_met_is_named_and_is_over_once_it_is_raised() {
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

/// Puts were refused until the next look at the disk, up to a second, or ten after a failed
/// checkpoint. The error of each named more bytes free than needed.
#[test]
fn the_first_put_after_room_came_back_is_accepted() {
    for checkpoint_fails in [false, true] {
        let full = Full::new(71, 12 << 20, 100);
        if checkpoint_fails {
            let snapshot = full.crowd();
            // A checkpoint each 500 deletes, so that none of them stalls. Each one that fails
            // doubles the rest that follows.
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
        // More than memory takes without a merge: no put waits for the end of a rest either.
        for number in 0..40_000 {
            full.keyspace.put(scattered(number), [8; 100]).unwrap();
        }
        let waited = full.world.env.now_ns() - since;
        assert!(waited < 500_000_000, "{waited} ns");
        full.database.close().unwrap();
        full.world.verify();
    }
}

/// An open that finds many lives of the log checkpoints before it serves. On a disk that is full
/// then it served a store that refused puts after there was room, too.
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
        let more = (seed - 72) * (128 << 10);
        world.disk.set_capacity(world.disk.used_bytes() + more);
        let database = world.open(&options());
        let keyspace = database.default_keyspace();
        ran_short += u64::from(keyspace.put("full", "1").is_err());
        world.disk.set_capacity(u64::MAX);
        keyspace.put("again", "1").unwrap();
        database.close().unwrap();
        world.verify();
    }
    assert!(ran_short > 0, "no open ran short of room");
}

/// A disk that says that it has room and gives none: looks at it are no reason to try again.
#[test]
fn puts_on_a_disk_that_only_says_that_it_has_room_cause_no_rounds() {
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
    let before = (rounds(&database.metrics()), world.env.now_ns());
    for number in 0..1000 {
        let _ = put(stored + number);
    }
    let rounds = rounds(&database.metrics()) - before.0;
    let seconds = (world.env.now_ns() - before.1) / 1_000_000_000;
    assert!(rounds <= 64 + 4 * seconds, "{rounds} rounds in {seconds} s");
    world.disk.clear_faults();
    world.sim.advance_ns(20_000_000_000);
    world.sim.settle();
    keyspace.put("again", "1").unwrap();
    database.close().unwrap();
    world.verify();
}
