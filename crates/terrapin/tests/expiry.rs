//! Values with a deadline: they end when it comes, and never come back.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use common::{World, all, tiny};
use terrapin::{
    Database, Durability, ErrorKind, Isolation, Keyspace, KeyspaceOptions, Lifetime, Options,
    Requirement, Snapshot, StructureKind, TransactionOptions,
};

const SECOND_NS: u64 = 1_000_000_000;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Waits for World {
    fn pass(&self, seconds: u64) {
        self.sim.advance_ns(seconds * SECOND_NS);
    }
}

trait Waits {
    /// Lets time pass, and no job run.
    fn pass(&self, seconds: u64);
}

fn structures() -> [StructureKind; 2] {
    [StructureKind::Leveled, StructureKind::InPlace]
}

fn appending(database: &Database, name: &str, structure: StructureKind) -> Keyspace {
    let options = KeyspaceOptions::new()
        .merge_operator("append")
        .structure(structure);
    database.create_keyspace(name, options).unwrap()
}

#[test]
fn a_value_ends_at_its_deadline_in_every_read_and_place() {
    for structure in structures() {
        for (merged, large_above) in [
            (false, None),
            (true, None),
            (false, Some(0)),
            (true, Some(0)),
        ] {
            let world = World::new(1);
            let database = world.open(&tiny().large_above_for_tests(large_above));
            let options = KeyspaceOptions::new().structure(structure);
            let keyspace = database.create_keyspace("k", options).unwrap();
            keyspace.put("b", "lasting").unwrap();
            keyspace.put("c", "older").unwrap();
            if merged {
                database.checkpoint().unwrap();
            }
            keyspace.put_with_ttl("a", "1", seconds(10)).unwrap();
            keyspace.put_with_ttl("c", "3", seconds(20)).unwrap();
            let deadline = UNIX_EPOCH + Duration::from_millis(world.env.wall_ms()) + seconds(30);
            keyspace.put_expiring("d", "4", deadline).unwrap();
            // Both are deletes.
            keyspace.put_with_ttl("b2", "x", Duration::ZERO).unwrap();
            keyspace.put_expiring("b3", "x", UNIX_EPOCH).unwrap();
            if merged {
                database.checkpoint().unwrap();
            }
            let mut live = vec!["a", "b", "c", "d"];
            for gone in ["", "a", "c", "d"] {
                live.retain(|key| *key != gone);
                let keys = |range: terrapin::Range| -> Vec<String> {
                    let keys = range.keys().map(|key| key.unwrap().to_vec());
                    keys.map(|key| String::from_utf8(key).unwrap()).collect()
                };
                assert_eq!(keys(keyspace.iter()), live, "{structure:?} {merged} {gone}");
                let mut backwards: Vec<_> = keyspace.iter().rev().map(|r| r.unwrap().0).collect();
                backwards.reverse();
                assert_eq!(backwards, live);
                assert_eq!(all(&keyspace).len(), live.len());
                let mut borrowed = keyspace.iter();
                assert_eq!(borrowed.next_ref().unwrap().unwrap().0, live[0].as_bytes());
                assert_eq!(keyspace.first().unwrap().unwrap().0, live[0]);
                assert_eq!(keyspace.last().unwrap().unwrap().0, live[live.len() - 1]);
                let many = keyspace.multi_get(&["a", "b", "c", "d", "e"]).unwrap();
                for (key, found) in ["a", "b", "c", "d", "e"].iter().zip(many) {
                    let is_live = live.contains(key);
                    for _ in 0..2 {
                        assert_eq!(keyspace.get(key).unwrap().is_some(), is_live, "{key}");
                        assert_eq!(keyspace.contains(key).unwrap(), is_live);
                    }
                    assert_eq!(found.is_some(), is_live);
                    let lifetime = keyspace.ttl(key).unwrap();
                    match (is_live, *key) {
                        (false, _) => assert_eq!(lifetime, Lifetime::Absent),
                        (true, "b") => assert_eq!(lifetime, Lifetime::Unlimited),
                        (true, _) => {
                            let most = seconds(if *key == "a" { 10 } else { 30 });
                            let is_left = |left| left <= most && left > Duration::ZERO;
                            assert!(matches!(lifetime, Lifetime::Left(left) if is_left(left)));
                        }
                    }
                }
                world.pass(10);
            }
            database.close().unwrap();
            world.verify();
        }
    }
}

/// A key as an oracle has it: its value with a deadline, and the operands since.
#[derive(Clone, Default)]
struct Said {
    base: Option<(String, Option<u64>)>,
    operands: String,
}

impl Said {
    fn value(&self, now_ms: u64) -> Option<String> {
        let live = |deadline: &Option<u64>| deadline.is_none_or(|deadline| now_ms < deadline);
        let base = self.base.as_ref().filter(|(_, deadline)| live(deadline));
        match base {
            Some((value, _)) => Some(value.clone() + &self.operands),
            None => (!self.operands.is_empty()).then(|| self.operands.clone()),
        }
    }

    fn deadline(&self, now_ms: u64) -> Option<u64> {
        let deadline = self.base.as_ref()?.1?;
        (now_ms < deadline).then_some(deadline)
    }
}

type Oracle = BTreeMap<String, Said>;

fn visible(oracle: &Oracle, now_ms: u64) -> common::Map {
    let live = oracle.iter().filter_map(|(key, said)| {
        let value = said.value(now_ms)?;
        Some((key.clone().into_bytes(), value.into_bytes()))
    });
    live.collect()
}

struct Held {
    snapshot: Snapshot,
    oracle: Oracle,
    now_ms: u64,
}

/// The deadline of a value in the first keyspace, in milliseconds since 1970.
const PROBE_MS: u64 = 1_900_000_000_000;

/// A run of random operations, compared with an oracle after each.
struct Run {
    world: World,
    options: Options,
    structure: StructureKind,
    database: Option<Database>,
    oracle: Oracle,
    /// The latest moment by which a view was taken.
    last_ms: u64,
    held: Vec<Held>,
}

impl Run {
    fn keyspace(&self) -> Keyspace {
        self.database.as_ref().unwrap().keyspace("k").unwrap()
    }

    fn open(&mut self) {
        self.database = Some(self.world.open(&self.options));
    }

    /// The database's now, by the time left of a value whose deadline is known.
    fn probed(&self) -> u64 {
        let first = self.database.as_ref().unwrap().default_keyspace();
        match first.ttl("probe").unwrap() {
            Lifetime::Left(left) => PROBE_MS - left.as_millis() as u64,
            lifetime => panic!("the probe is {lifetime:?}"),
        }
    }

    fn now(&mut self) -> u64 {
        self.last_ms = self.last_ms.max(self.world.env.wall_ms());
        self.last_ms
    }

    fn key(&self) -> String {
        format!("key {:03}", self.world.below(60))
    }

    fn step(&mut self, number: u64) {
        let keyspace = self.keyspace();
        let database = self.database.clone().unwrap();
        let (key, value) = (
            self.key(),
            format!("{number:05}").repeat(1 + number as usize % 9),
        );
        // Times lie between whole seconds, at which the clock stands after a pass.
        let ttl = Duration::from_millis(500 + 1_000 * self.world.below(40));
        let choice = self.world.below(100);
        let now_ms = self.now();
        let deadline_ms = now_ms + ttl.as_millis() as u64;
        let lasting = |value: &str, deadline| Said {
            base: Some((value.to_owned(), deadline)),
            operands: String::new(),
        };
        let read = self.oracle.get(&key).cloned().unwrap_or_default();
        match choice {
            0..18 => {
                keyspace.put_with_ttl(&key, &value, ttl).unwrap();
                self.oracle.insert(key, lasting(&value, Some(deadline_ms)));
            }
            18..30 => {
                keyspace.put(&key, &value).unwrap();
                self.oracle.insert(key, lasting(&value, None));
            }
            30..36 => {
                keyspace.delete(&key).unwrap();
                self.oracle.remove(&key);
            }
            36..48 => {
                let operand = format!("+{number}");
                keyspace.merge(&key, &operand).unwrap();
                self.oracle.entry(key).or_default().operands += &operand;
            }
            48..52 => {
                let touched = keyspace.touch(&key, ttl).unwrap();
                assert_eq!(touched, read.value(now_ms).is_some());
                if let Some(value) = read.value(now_ms) {
                    self.oracle.insert(key, lasting(&value, Some(deadline_ms)));
                }
            }
            52..55 => {
                let there = keyspace.persist(&key).unwrap();
                assert_eq!(there, read.value(now_ms).is_some());
                if let (Some(value), Some(_)) = (read.value(now_ms), read.deadline(now_ms)) {
                    self.oracle.insert(key, lasting(&value, None));
                }
            }
            55..58 => {
                let taken = keyspace.take(&key).unwrap().map(|v| v.to_vec());
                assert_eq!(taken, read.value(now_ms).map(String::into_bytes));
                if taken.is_some() {
                    self.oracle.remove(&key);
                }
            }
            58..62 => {
                let mut batch = database.batch();
                batch.put_with_ttl(&keyspace, &key, &value, ttl);
                batch.merge(&keyspace, &key, "+batch");
                database.write(&batch).unwrap();
                let mut said = lasting(&value, Some(deadline_ms));
                said.operands = "+batch".into();
                self.oracle.insert(key, said);
            }
            62..65 => {
                let mut transaction = database.transaction().unwrap();
                let found = transaction
                    .get(&keyspace, &key)
                    .unwrap()
                    .map(|v| v.to_vec());
                assert_eq!(found, read.value(now_ms).map(String::into_bytes));
                transaction
                    .put_with_ttl(&keyspace, &key, &value, ttl)
                    .unwrap();
                assert_eq!(transaction.get(&keyspace, &key).unwrap().unwrap(), *value);
                transaction.commit().unwrap().unwrap();
                self.oracle.insert(key, lasting(&value, Some(deadline_ms)));
            }
            65..67 => {
                let end = self.key().max(key.clone());
                keyspace.delete_range(&key[..]..&end[..]).unwrap();
                self.oracle.retain(|other, _| *other < key || *other >= end);
            }
            67..77 => self.world.pass(self.world.below(6)),
            77..84 => database.checkpoint().unwrap(),
            84..88 => {
                self.world.pass(2);
                self.world.sim.settle();
            }
            88..93 => {
                if self.held.len() > 3 {
                    self.held.remove(0);
                }
                let (oracle, now_ms) = (self.oracle.clone(), self.now());
                let snapshot = database.snapshot().unwrap();
                self.held.push(Held {
                    snapshot,
                    oracle,
                    now_ms,
                });
            }
            93..95 => {
                // Somebody sets the clock back: what was seen expired does not come back.
                assert!(!keyspace.contains("-").unwrap());
                self.world
                    .sim
                    .set_wall_ms(now_ms - self.world.below(20_000));
            }
            95..97 => self.world.sim.set_wall_ms(now_ms),
            _ => {
                self.held.clear();
                assert!(!keyspace.contains("-").unwrap());
                drop((keyspace, database));
                let is_killed = self.world.below(2) == 0;
                self.now();
                let mut latest_ms = self.last_ms;
                if is_killed {
                    // A kill may lose what was seen in the last second.
                    self.world.pass(2);
                    self.world.sim.settle();
                    latest_ms = self.world.env.wall_ms();
                }
                let database = self.database.take().unwrap();
                match is_killed {
                    true => self.world.kill(database),
                    false => drop(database.close().unwrap()),
                }
                if self.world.below(2) == 0 {
                    self.world
                        .sim
                        .set_wall_ms(now_ms - self.world.below(20_000));
                }
                self.open();
                // A checkpoint in those two seconds took a later now.
                let kept_ms = self.probed();
                let wall_ms = self.world.env.wall_ms();
                let least_ms = self.last_ms.max(wall_ms);
                let range = least_ms..=latest_ms.max(least_ms);
                assert!(range.contains(&kept_ms), "{kept_ms} not in {range:?}");
                self.last_ms = kept_ms;
            }
        }
    }

    fn compare(&mut self, number: u64) {
        let (key, now_ms, keyspace) = (self.key(), self.now(), self.keyspace());
        let said = self.oracle.get(&key).cloned().unwrap_or_default();
        let name = format!("{:?} step {number}, {key}", self.structure);
        let found = keyspace.get(&key).unwrap().map(|v| v.to_vec());
        assert_eq!(found, said.value(now_ms).map(String::into_bytes), "{name}");
        let lifetime = match (found, said.deadline(now_ms)) {
            (None, _) => Lifetime::Absent,
            (Some(_), None) => Lifetime::Unlimited,
            (Some(_), Some(deadline)) => Lifetime::Left(Duration::from_millis(deadline - now_ms)),
        };
        assert_eq!(keyspace.ttl(&key).unwrap(), lifetime, "{name}");
        if number.is_multiple_of(7) {
            assert_eq!(all(&keyspace), visible(&self.oracle, now_ms), "{name}");
            let backwards: common::Map = keyspace
                .iter()
                .rev()
                .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
                .collect();
            assert_eq!(backwards, visible(&self.oracle, now_ms), "{name}");
        }
        for held in &self.held {
            let expected = visible(&held.oracle, held.now_ms);
            let found = held.snapshot.get(&keyspace, &key).unwrap();
            assert_eq!(
                found.map(|v| v.to_vec()),
                expected.get(key.as_bytes()).cloned(),
                "{name}, held"
            );
            if number.is_multiple_of(7) {
                let found: common::Map = held
                    .snapshot
                    .iter(&keyspace)
                    .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
                    .collect();
                assert_eq!(found, expected, "{name}, held");
            }
        }
    }
}

#[test]
fn random_runs_agree_with_an_oracle() {
    for seed in 0..24 {
        let structure = structures()[seed as usize % 2];
        let world = World::new(seed);
        // Whole seconds, so that deadlines lie between the moments of reads.
        world.sim.set_wall_ms(1_800_000_000_000);
        let options = match seed % 3 {
            0 => tiny().record_cache(false),
            _ => tiny(),
        };
        let database = world.open(&options);
        appending(&database, "k", structure);
        // From now on the database has deadlines, and each view a now.
        let first = database.default_keyspace();
        let deadline = UNIX_EPOCH + Duration::from_millis(PROBE_MS);
        first.put_expiring("probe", "1", deadline).unwrap();
        drop(first);
        let mut run = Run {
            world,
            options,
            structure,
            database: Some(database),
            oracle: Oracle::default(),
            last_ms: 0,
            held: Vec::new(),
        };
        for number in 0..700 {
            run.step(number);
            run.compare(number);
        }
        run.held.clear();
        run.database.take().unwrap().close().unwrap();
        run.world.verify();
    }
}

#[test]
fn what_was_seen_expired_stays_so_over_restarts_with_the_clock_set_back() {
    for is_killed in [false, true] {
        let world = World::new(3);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        let start_ms = world.env.wall_ms();
        keyspace.put_with_ttl("a", "1", seconds(10)).unwrap();
        database.checkpoint().unwrap();
        world.pass(11);
        assert!(keyspace.get("a").unwrap().is_none());
        world.pass(2);
        world.sim.settle();
        drop(keyspace);
        match is_killed {
            true => world.kill(database),
            false => drop(database.close().unwrap()),
        }
        world.sim.set_wall_ms(start_ms);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        assert!(keyspace.get("a").unwrap().is_none(), "killed: {is_killed}");
        assert!(keyspace.iter().next().is_none());
        // A time from now on is one from the last now on.
        keyspace.put_with_ttl("b", "2", seconds(5)).unwrap();
        assert!(keyspace.contains("b").unwrap());
        drop(keyspace);
        database.close().unwrap();
    }
}

/// The clock may pass a deadline while nobody looks. Then the value may return with the clock, but
/// not after somebody saw it expired.
#[test]
fn views_keep_their_now() {
    let world = World::new(4);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    keyspace.put_with_ttl("a", "1", seconds(10)).unwrap();
    let before = database.snapshot().unwrap();
    world.pass(20);
    let after = database.snapshot().unwrap();
    for _ in 0..2 {
        assert!(before.contains(&keyspace, "a").unwrap());
        assert_eq!(before.iter(&keyspace).count(), 1);
        assert!(!after.contains(&keyspace, "a").unwrap());
        assert_eq!(after.iter(&keyspace).count(), 0);
        // Merges drop the record for good, and both views get runs.
        keyspace.put("b", "2").unwrap();
        keyspace.delete("b").unwrap();
        world.pass(3);
        database.checkpoint().unwrap();
        world.sim.settle();
    }
    assert!(!keyspace.contains("a").unwrap());
}

/// The newer put with a deadline hides the older one without, in buffers and leaves, also once it
/// is expired.
#[test]
fn an_expired_value_hides_older_ones_wherever_they_are() {
    for structure in structures() {
        let world = World::new(5);
        let database = world.open(&tiny());
        let options = KeyspaceOptions::new().structure(structure);
        let keyspace = database.create_keyspace("k", options).unwrap();
        let key = |number: u64| format!("{number:05}");
        for number in 0..2_000 {
            keyspace.put(key(number), [7; 40]).unwrap();
        }
        database.checkpoint().unwrap();
        for number in (0..2_000).step_by(40) {
            keyspace
                .put_with_ttl(key(number), "short", seconds(10))
                .unwrap();
        }
        database.checkpoint().unwrap();
        world.pass(15);
        let gone = |number: u64| number.is_multiple_of(40);
        for round in 0..20u64 {
            assert_eq!(
                keyspace.iter().count(),
                1_950,
                "{structure:?} round {round}"
            );
            for number in 0..2_000 {
                let found = keyspace.contains(key(number)).unwrap();
                assert_eq!(found, !gone(number), "{structure:?} round {round} {number}");
            }
            for number in (round..2_000).step_by(23).filter(|number| !gone(*number)) {
                keyspace.put(key(number), [8; 40]).unwrap();
            }
            database.checkpoint().unwrap();
            world.sim.settle();
        }
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}

/// Half of the records expire, and nobody writes any more.
#[test]
fn a_condition_on_a_value_fails_once_the_value_is_expired() {
    let world = World::new(6);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    let put = |key: &str| keyspace.put_with_ttl(key, "1", seconds(10)).unwrap();
    put("a");
    let (value, version) = keyspace.get_versioned("a").unwrap();
    assert_eq!(value.unwrap(), "1");
    let swapped = keyspace
        .compare_version_and_swap("a", &version, Some(b"1"))
        .unwrap();
    assert!(swapped.is_ok());
    put("a");
    let (_, version) = keyspace.get_versioned("a").unwrap();
    world.pass(11);
    let swapped = keyspace
        .compare_version_and_swap("a", &version, Some(b"2"))
        .unwrap();
    assert!(swapped.is_err(), "the value has expired since");
    let mut batch = database.batch();
    batch.require(&keyspace, "a", Requirement::Version(version));
    batch.put(&keyspace, "b", "2");
    assert_eq!(
        database.write(&batch).unwrap_err().kind(),
        ErrorKind::Conflict
    );
    assert!(
        keyspace
            .compare_and_swap("a", Some(b"1"), Some(b"2"))
            .unwrap()
            .is_err()
    );
    assert!(keyspace.insert_if_absent("a", "3").unwrap().is_none());
    assert_eq!(keyspace.ttl("a").unwrap(), Lifetime::Unlimited);
    // The value expires between the read and the write.
    put("c");
    let mut runs = 0;
    let new = keyspace.update("c", |value| {
        runs += 1;
        match value {
            Some(_) => {
                world.pass(11);
                assert!(!keyspace.contains("c").unwrap());
                Some(b"of a dead value".to_vec())
            }
            None => Some(b"new".to_vec()),
        }
    });
    assert_eq!((new.unwrap().unwrap(), runs), (b"new".to_vec(), 2));
}

/// Without the rule, each of two transactions could be before the other: both see a value that the
/// other one's effect says is expired.
#[test]
fn a_transaction_conflicts_once_what_it_read_is_expired_for_others() {
    for isolation in [Isolation::Serializable, Isolation::Snapshot] {
        for for_update in [false, true] {
            let world = World::new(7);
            let database = world.open(&tiny());
            let keyspace = database.default_keyspace();
            keyspace.put_with_ttl("a", "1", seconds(10)).unwrap();
            let options = TransactionOptions::new().isolation(isolation);
            let mut transaction = database.transaction_with(&options).unwrap();
            let read = match for_update {
                true => transaction.get_for_update(&keyspace, "a"),
                false => transaction.get(&keyspace, "a"),
            };
            assert!(read.unwrap().is_some());
            transaction.put(&keyspace, "b", "a was there").unwrap();
            world.pass(11);
            assert!(!keyspace.contains("a").unwrap());
            let depends = isolation == Isolation::Serializable || for_update;
            let outcome = transaction.commit().unwrap();
            assert_eq!(outcome.is_err(), depends, "{isolation:?} {for_update}");
        }
    }
}

#[test]
fn values_with_a_deadline_survive_each_durability() {
    for durability in common::LEVELS {
        let world = World::new(8);
        let options = tiny().durability(durability);
        let database = world.open(&options);
        let keyspace = database.default_keyspace();
        keyspace.put_with_ttl("a", "1", seconds(10)).unwrap();
        let long = vec![7; 256 << 10];
        let too_long = vec![7; (256 << 10) + 1];
        keyspace
            .put_with_ttl("large", &too_long, seconds(10))
            .unwrap();
        assert_eq!(keyspace.get("large").unwrap().unwrap(), too_long[..]);
        let big = Options::new().memory(32 << 20).durability(durability);
        if durability == Durability::None {
            database.checkpoint().unwrap();
        }
        drop(keyspace);
        world.kill(database);
        let database = world.open(&big);
        let keyspace = database.default_keyspace();
        assert_eq!(keyspace.get("a").unwrap().unwrap(), "1");
        keyspace.put_with_ttl("long", &long, seconds(10)).unwrap();
        database.checkpoint().unwrap();
        assert_eq!(keyspace.get("long").unwrap().unwrap(), long);
        world.pass(11);
        assert!(keyspace.is_empty().unwrap());
        drop(keyspace);
        database.close().unwrap();
        world.verify();
    }
}

/// A run found a record that came back.
#[test]
fn a_range_delete_deletes_values_with_a_deadline() {
    for structure in structures() {
        for separate_from in [None, Some(700)] {
            for checkpoints in 0..8 {
                let world = World::new(10);
                let options = tiny().separate_from_for_tests(separate_from);
                let database = world.open(&options);
                let options = KeyspaceOptions::new().structure(structure);
                let keyspace = database.create_keyspace("k", options).unwrap();
                keyspace
                    .put_with_ttl("b", [7; 1323], seconds(1_000))
                    .unwrap();
                if checkpoints & 1 != 0 {
                    database.checkpoint().unwrap();
                }
                let mut batch = database.batch();
                batch.put(&keyspace, "a", [7; 25]);
                batch.put(&keyspace, "c", [7; 1320]);
                batch.delete_range(&keyspace, "a".."d");
                database.write(&batch).unwrap();
                assert!(keyspace.is_empty().unwrap());
                if checkpoints & 2 != 0 {
                    database.checkpoint().unwrap();
                    assert!(keyspace.is_empty().unwrap());
                }
                drop(keyspace);
                match checkpoints & 4 {
                    0 => world.kill(database),
                    _ => drop(database.close().unwrap()),
                }
                let database = world.open(&tiny().separate_from_for_tests(separate_from));
                let keyspace = database.keyspace("k").unwrap();
                assert!(
                    keyspace.is_empty().unwrap(),
                    "{structure:?} {separate_from:?} {checkpoints}"
                );
                drop(keyspace);
                database.close().unwrap();
            }
        }
    }
}

/// Every call that gives a key a value follows the keyspace's own time, also after the option
/// changes and after a restart. Calls that name a time do not.
#[test]
fn values_last_as_long_as_their_keyspace_says() {
    let world = World::new(1);
    let mut database = world.open(&tiny());
    let own = KeyspaceOptions::new().ttl(seconds(10));
    for structure in [
        StructureKind::Leveled,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ] {
        let name = format!("{structure:?}");
        let keyspace = database
            .create_keyspace(&name, own.structure(structure))
            .unwrap();
        assert_eq!(keyspace.options().unwrap().ttl, Some(seconds(10)));
        keyspace.put("put", "v").unwrap();
        keyspace
            .put_with("unlogged", "v", Durability::None)
            .unwrap();
        keyspace.insert_if_absent("insert", "v").unwrap();
        keyspace
            .compare_and_swap("swap", None, Some(b"v"))
            .unwrap()
            .unwrap();
        keyspace.update("update", |_| Some(b"v".to_vec())).unwrap();
        let (_, version) = keyspace.get_versioned("version").unwrap();
        let swapped = keyspace.compare_version_and_swap("version", &version, Some(b"v"));
        swapped.unwrap().unwrap();
        let mut batch = database.batch();
        batch.put(&keyspace, "batch", "v");
        database.write(&batch).unwrap();
        database
            .transact(|tx| tx.put(&keyspace, "transact", "v"))
            .unwrap();
        keyspace.put_with_ttl("longer", "v", seconds(30)).unwrap();
        keyspace.put("kept", "v").unwrap();
        assert!(keyspace.persist("kept").unwrap());
        let mut ended = vec![
            "put", "unlogged", "insert", "swap", "update", "version", "batch", "transact",
        ];
        if structure != StructureKind::Hashed {
            let mut ingest = keyspace.begin_ingest().unwrap();
            ingest.add("x ingest", "v").unwrap();
            let now = UNIX_EPOCH + Duration::from_millis(world.env.wall_ms());
            ingest.add_expiring("y past", "v", now).unwrap();
            ingest
                .add_expiring("z longer", "v", now + seconds(30))
                .unwrap();
            assert_eq!(ingest.finish().unwrap(), 3);
            assert!(keyspace.get("y past").unwrap().is_none());
            assert_eq!(
                keyspace.ttl("z longer").unwrap(),
                Lifetime::Left(seconds(30))
            );
            ended.push("x ingest");
        }
        for key in &ended {
            assert_eq!(
                keyspace.ttl(key).unwrap(),
                Lifetime::Left(seconds(10)),
                "{key}"
            );
        }
        assert_eq!(keyspace.ttl("longer").unwrap(), Lifetime::Left(seconds(30)));
        assert_eq!(keyspace.ttl("kept").unwrap(), Lifetime::Unlimited);
        world.pass(10);
        for key in ended {
            assert_eq!(keyspace.ttl(key).unwrap(), Lifetime::Absent, "{key}");
        }
        // The option is stored, and changes for later writes.
        drop((batch, keyspace));
        database.close().unwrap();
        database = world.open(&tiny());
        let keyspace = database.keyspace(&name).unwrap();
        keyspace.put("put", "v").unwrap();
        assert_eq!(keyspace.ttl("put").unwrap(), Lifetime::Left(seconds(10)));
        let half = Duration::from_micros(1_500);
        let options = keyspace.options().unwrap();
        keyspace.set_options(options.ttl(half)).unwrap();
        keyspace.put("later", "v").unwrap();
        assert_eq!(keyspace.ttl("put").unwrap(), Lifetime::Left(seconds(10)));
        assert_eq!(
            keyspace.ttl("later").unwrap(),
            Lifetime::Left(Duration::from_millis(2))
        );
        keyspace.set_options(options.ttl(None)).unwrap();
        keyspace.put("put", "v").unwrap();
        assert_eq!(keyspace.ttl("put").unwrap(), Lifetime::Unlimited);
        assert!(keyspace.contains("kept").unwrap() && !keyspace.is_empty().unwrap());
    }
    let never = KeyspaceOptions::new().ttl(Duration::ZERO);
    let error = database.create_keyspace("never", never).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    database.close().unwrap();
}
