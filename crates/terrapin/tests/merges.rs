//! Merge operators: operands count exactly once, whatever the store does with them meanwhile.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{World, tiny};
use terrapin::{
    AddI64, CheckpointDistance, Database, Durability, ErrorKind, Keyspace, KeyspaceOptions,
    MergeOperator, Options, Outcome, Result,
};

fn with_operator(database: &Database, operator: &str) -> Keyspace {
    let options = KeyspaceOptions::new().merge_operator(operator);
    database.create_keyspace(operator, options).unwrap()
}

fn count(keyspace: &Keyspace, key: &[u8]) -> i64 {
    let value = keyspace.get(key).unwrap().unwrap();
    i64::from_le_bytes(value[..].try_into().unwrap())
}

#[test]
fn operands_count_once_in_memtables_trees_ranges_and_snapshots() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let list = with_operator(&database, "append");
    let mut snapshots = Vec::new();
    let mut expected: Vec<String> = vec![String::new(); 40];
    for round in 0..30 {
        for (number, value) in expected.iter_mut().enumerate() {
            let key = format!("key {number:02}");
            match (round + number) % 11 {
                0 => {
                    list.delete(&key).unwrap();
                    value.clear();
                }
                1 => {
                    *value = format!("[{round}]");
                    list.put(&key, &*value).unwrap();
                }
                _ => {
                    let operand = format!(" {round}");
                    list.merge(&key, &operand).unwrap();
                    value.push_str(&operand);
                }
            }
        }
        match round % 4 {
            0 => database.checkpoint().unwrap(),
            1 => snapshots.push((database.snapshot().unwrap(), expected.clone())),
            _ => {}
        }
        if round % 5 == 0 {
            world.sim.advance_ns(2_000_000_000);
            world.sim.settle();
        }
        for (number, value) in expected.iter().enumerate() {
            let key = format!("key {number:02}");
            let found = list.get(&key).unwrap();
            let wanted = (!value.is_empty()).then_some(value.as_bytes());
            assert_eq!(found.as_deref(), wanted, "round {round}, {key}");
            assert_eq!(list.contains(&key).unwrap(), wanted.is_some());
        }
        let all: Vec<_> = list.iter().map(|record| record.unwrap().1).collect();
        let live = || expected.iter().filter(|value| !value.is_empty());
        assert!(all.iter().map(|v| &v[..]).eq(live().map(|v| v.as_bytes())));
        let back: Vec<_> = list.iter().rev().map(|record| record.unwrap().1).collect();
        assert!(back.iter().rev().eq(&all));
        let keys: Vec<_> = (0..40).map(|number| format!("key {number:02}")).collect();
        let many = list.multi_get(&keys).unwrap();
        for (found, value) in many.iter().zip(&expected) {
            assert_eq!(found.as_deref().unwrap_or_default(), value.as_bytes());
        }
    }
    for (snapshot, expected) in &snapshots {
        for (number, value) in expected.iter().enumerate() {
            let found = snapshot.get(&list, format!("key {number:02}")).unwrap();
            assert_eq!(found.as_deref().unwrap_or_default(), value.as_bytes());
        }
        let seen = snapshot.iter(&list).map(|record| record.unwrap().1);
        let live = expected.iter().filter(|value| !value.is_empty());
        assert!(
            seen.collect::<Vec<_>>()
                .iter()
                .map(|v| &v[..])
                .eq(live.map(|v| v.as_bytes()))
        );
    }
    drop(snapshots);
    drop(list);
    database.close().unwrap();
}

#[test]
fn each_operand_counts_once_across_kills() {
    let world = World::new(7);
    let options = tiny();
    let mut counted = 0;
    for life in 0..12 {
        let database = world.open(&options);
        let sums = match life {
            0 => with_operator(&database, "add-i64"),
            _ => database.keyspace("add-i64").unwrap(),
        };
        if life > 0 {
            assert_eq!(count(&sums, b"sum"), counted, "life {life}");
        }
        for _ in 0..97 {
            sums.merge("sum", 3i64.to_le_bytes()).unwrap();
            counted += 3;
        }
        if life % 3 == 1 {
            database.checkpoint().unwrap();
            sums.merge("sum", 1i64.to_le_bytes()).unwrap();
            counted += 1;
        }
        assert_eq!(count(&sums, b"sum"), counted);
        drop(sums);
        world.kill(database);
    }
}

/// Operations of a batch have LSNs of their own, also with `Durability::None`.
#[test]
fn operations_of_a_batch_apply_in_their_order() {
    for durability in [Durability::Process, Durability::None] {
        let world = World::new(7);
        let database = world.open(&tiny());
        let list = with_operator(&database, "append");
        let mut batch = database.batch();
        batch.merge(&list, "twice", "a");
        batch.merge(&list, "twice", "b");
        batch.put(&list, "over a put", "base");
        batch.merge(&list, "over a put", "+");
        batch.merge(&list, "under a put", "+");
        batch.put(&list, "under a put", "base");
        batch.merge(&list, "over a delete", "lost");
        batch.delete(&list, "over a delete");
        batch.merge(&list, "over a delete", "kept");
        database.write_with(&batch, durability).unwrap();
        for merged in [false, true] {
            if merged {
                database.checkpoint().unwrap();
            }
            for (key, value) in [
                ("twice", "ab"),
                ("over a put", "base+"),
                ("under a put", "base"),
                ("over a delete", "kept"),
            ] {
                assert_eq!(
                    list.get(key).unwrap().unwrap(),
                    value,
                    "{durability:?} {merged}"
                );
            }
        }
        drop((batch, list));
        database.close().unwrap();
    }
}

/// The cache holds what the tree says. A value with operands of a memtable applied would get them
/// again after the merge.
#[test]
fn the_record_cache_holds_no_value_of_operands_in_a_memtable() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let sums = with_operator(&database, "add-i64");
    let one = 1i64.to_le_bytes();
    sums.put("sum", 0i64.to_le_bytes()).unwrap();
    database.checkpoint().unwrap();
    for round in 0..20 {
        for _ in 0..3 {
            assert_eq!(count(&sums, b"sum"), round * 2);
        }
        sums.merge("sum", one).unwrap();
        for _ in 0..3 {
            assert_eq!(count(&sums, b"sum"), round * 2 + 1);
        }
        sums.merge("sum", one).unwrap();
        assert_eq!(count(&sums, b"sum"), round * 2 + 2);
        database.checkpoint().unwrap();
    }
    drop(sums);
    database.close().unwrap();
}

/// Adds numbers, and counts its work.
#[derive(Clone, Default)]
struct CountingAdd(Arc<AtomicU64>);

impl MergeOperator for CountingAdd {
    fn name(&self) -> &str {
        "counting-add"
    }

    fn apply(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        self.0.fetch_add(1, Ordering::Relaxed);
        AddI64.apply(key, existing, operand, out)
    }

    fn combine(&self, key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.0.fetch_add(1, Ordering::Relaxed);
        AddI64.combine(key, older, newer, out)
    }
}

/// The first read of a key folds the operands that no memo holds, a bounded number. The next ones
/// fold nothing. Each operand is combined once by writers, and a merge combines a bounded number.
#[test]
fn reads_of_a_key_with_many_operands_fold_few() {
    const OPERANDS: u64 = 20_000;
    let world = World::new(7);
    let operator = CountingAdd::default();
    let calls = {
        let calls = operator.0.clone();
        move || calls.swap(0, Ordering::Relaxed)
    };
    let options = Options::new()
        .memory(32 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(32))
        .merge_operator(operator);
    let database = world.open(&options);
    let sums = with_operator(&database, "counting-add");
    sums.put("based", 5i64.to_le_bytes()).unwrap();
    database.checkpoint().unwrap();
    let before = database.metrics().checkpoints;
    let one = 1i64.to_le_bytes();
    for number in 0..OPERANDS {
        sums.merge("based", one).unwrap();
        // In batches, too: two operands of a key in one.
        let mut batch = database.batch();
        batch.merge(&sums, "alone", one);
        batch.merge(&sums, "alone", one);
        let durability = match number % 2 {
            0 => Durability::None,
            _ => Durability::Process,
        };
        database.write_with(&batch, durability).unwrap();
    }
    assert_eq!(database.metrics().checkpoints, before);
    let all = 3 * OPERANDS;
    let written = calls();
    assert!(
        (all / 2..=all + all / 32).contains(&written),
        "{written} of {all}"
    );
    for (key, sum) in [("based", OPERANDS + 5), ("alone", 2 * OPERANDS)] {
        assert_eq!(count(&sums, key.as_bytes()), sum as i64);
        let first = calls();
        assert!(first <= 130, "the first get of {key}: {first} calls");
        for _ in 0..10 {
            assert_eq!(count(&sums, key.as_bytes()), sum as i64);
        }
        assert_eq!(calls(), 0, "the next gets of {key}");
        // One operand more is one call more.
        sums.merge(key, one).unwrap();
        assert_eq!(count(&sums, key.as_bytes()), sum as i64 + 1);
        assert_eq!(count(&sums, key.as_bytes()), sum as i64 + 1);
        assert_eq!(calls(), 1, "gets of {key} with one operand more");
    }
    let values: Vec<_> = sums.iter().map(|record| record.unwrap().1).collect();
    assert_eq!(values.len(), 2);
    assert_eq!(calls(), 0, "a range");
    database.checkpoint().unwrap();
    let merged = calls();
    assert!(merged <= 300, "the merge: {merged} calls");
    assert_eq!(count(&sums, b"based"), OPERANDS as i64 + 6);
    drop(sums);
    database.close().unwrap();
}

#[test]
fn merges_that_no_operator_takes_are_refused_and_change_nothing() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let plain = database.keyspace("plain").unwrap();
    let error = plain.merge("key", "operand").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(
        error
            .to_string()
            .contains("KeyspaceOptions::merge_operator")
    );
    let sums = with_operator(&database, "add-i64");
    let error = sums.merge("key", "seven").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let mut batch = database.batch();
    batch.put(&sums, "other", 1i64.to_le_bytes());
    batch.merge(&sums, "key", "seven");
    assert!(batch.error().is_some() && database.write(&batch).is_err());
    assert!(sums.is_empty().unwrap() && plain.is_empty().unwrap());
    let missing = with_operator(&database, "nobody's");
    let error = missing.merge("key", "operand").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Operator, "{error}");
    assert!(error.to_string().contains("nobody's"), "{error}");
    missing.put("key", "value").unwrap();
    assert_eq!(missing.get("key").unwrap().unwrap(), "value");
    drop((batch, plain, sums, missing));
    database.close().unwrap();
}

/// Appends, and refuses what it is told to.
struct Moody {
    fails: Arc<AtomicBool>,
    panics: bool,
    combines: bool,
}

impl MergeOperator for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn apply(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        if self.fails.load(Ordering::Relaxed) {
            assert!(!self.panics, "moody today");
            return Err(terrapin::Error::invalid("moody today"));
        }
        out.extend_from_slice(existing.unwrap_or_default());
        out.extend_from_slice(operand);
        Ok(Outcome::Value)
    }

    fn combine(&self, _: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        if self.fails.load(Ordering::Relaxed) {
            assert!(!self.panics, "moody today");
            return Err(terrapin::Error::invalid("moody today"));
        }
        out.extend_from_slice(older);
        out.extend_from_slice(newer);
        Ok(self.combines)
    }
}

/// Checkpoints go on; only reads of the key fail; all operands count once the operator applies
/// them, and a put or a delete heals the key before that.
#[test]
fn a_failing_operator_stops_no_checkpoint_and_loses_no_operand() {
    for (panics, combines) in [(false, true), (true, true), (false, false)] {
        let world = World::new(7);
        let fails = Arc::new(AtomicBool::new(false));
        let operator = || Moody {
            fails: fails.clone(),
            panics,
            combines,
        };
        let options = || tiny().merge_operator(operator());
        let database = world.open(&options());
        let moody = with_operator(&database, "moody");
        let keys = ["base", "deleted", "nothing", "put later", "deleted later"];
        for key in ["base", "put later", "deleted later"] {
            moody.put(key, "0").unwrap();
        }
        database.checkpoint().unwrap();
        fails.store(true, Ordering::Relaxed);
        moody.delete("deleted").unwrap();
        for round in 1..5 {
            for key in keys {
                moody.merge(key, format!("{round}")).unwrap();
            }
            moody.put("other", "there").unwrap();
            database.checkpoint().unwrap();
            for key in keys {
                let error = moody.get(key).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Operator);
                let text = error.to_string();
                assert!(text.contains("moody") && text.contains(key), "{text}");
                assert!(moody.contains(key).is_err());
            }
            assert_eq!(moody.get("other").unwrap().unwrap(), "there");
            assert!(moody.iter().any(|record| record.is_err()));
        }
        moody.put("put later", "healed").unwrap();
        moody.delete("deleted later").unwrap();
        assert_eq!(moody.get("put later").unwrap().unwrap(), "healed");
        assert!(moody.get("deleted later").unwrap().is_none());
        drop(moody);
        database.close().unwrap();

        // Without the operator, operands are there, and unreadable.
        let database = world.open(&tiny());
        let moody = database.keyspace("moody").unwrap();
        assert_eq!(moody.get("base").unwrap_err().kind(), ErrorKind::Operator);
        assert_eq!(moody.get("put later").unwrap().unwrap(), "healed");
        moody.put("new", "record").unwrap();
        drop(moody);
        database.close().unwrap();

        fails.store(false, Ordering::Relaxed);
        let database = world.open(&options());
        let moody = database.keyspace("moody").unwrap();
        for merged in [false, true] {
            if merged {
                moody.put("rewrite", "the leaf").unwrap();
                database.checkpoint().unwrap();
            }
            for (key, value) in [
                ("base", Some("01234")),
                ("deleted", Some("1234")),
                ("nothing", Some("1234")),
                ("put later", Some("healed")),
                ("deleted later", None),
            ] {
                let found = moody.get(key).unwrap();
                assert_eq!(found.as_deref(), value.map(str::as_bytes), "{key}");
            }
        }
        drop(moody);
        database.close().unwrap();
        world.verify();
    }
}

#[test]
fn the_operator_of_a_keyspace_is_fixed_once_it_has_records() {
    let world = World::new(7);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("words").unwrap();
    let with = |name: &str| KeyspaceOptions::new().merge_operator(name);
    keyspace.set_options(with("max")).unwrap();
    keyspace.merge("key", "a").unwrap();
    let error = keyspace.set_options(with("append")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("clear"), "{error}");
    database.checkpoint().unwrap();
    assert!(keyspace.set_options(with("append")).is_err());
    keyspace.merge("key", "b").unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), "b");
    keyspace.clear().unwrap();
    keyspace.set_options(with("append")).unwrap();
    keyspace.merge("key", "b").unwrap();
    keyspace.merge("key", "a").unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), "ba");
    drop(keyspace);
    world.kill(database);
    let database = world.open(&tiny());
    let keyspace = database.keyspace("words").unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), "ba");
    let name = keyspace.options().unwrap().merge_operator.unwrap();
    assert_eq!(name.as_str(), "append");
    drop(keyspace);
    database.close().unwrap();
}

/// Gives a full disk room, after a kill or without one. A keyspace stays right, also once its
/// memtable is merged.
fn stays_right_with_room(
    world: &World,
    database: Database,
    (options, killed): (&Options, bool),
    keyspace: &str,
    check: &dyn Fn(&Keyspace),
) {
    let database = match killed {
        true => {
            world.kill(database);
            world.disk.set_capacity(u64::MAX);
            world.open(options)
        }
        false => database,
    };
    world.disk.set_capacity(u64::MAX);
    check(&database.open_keyspace(keyspace).unwrap());
    database.checkpoint().unwrap();
    check(&database.open_keyspace(keyspace).unwrap());
    database.close().unwrap();
    world.verify();
}

/// A slice of a memtable would count its operands again: in reads, in the next slice, and in a
/// replay after a kill.
#[test]
fn operands_count_once_on_a_full_disk() {
    for killed in [false, true] {
        let world = World::new(49);
        let options = tiny()
            .memory(4 << 20)
            .checkpoint_distance(CheckpointDistance::Fixed(64));
        let database = world.open(&options);
        let keyspace = with_operator(&database, "add-i64");
        let records = 4000_u64;
        for number in 0..records {
            let merged = keyspace.merge(common::key(number), 1i64.to_le_bytes());
            merged.unwrap();
        }
        database.checkpoint().unwrap();
        world.sim.set_breathing(false);
        for number in (0..records).step_by(4) {
            let merged = keyspace.merge(common::key(number), 2i64.to_le_bytes());
            merged.unwrap();
        }
        world.disk.set_capacity(world.disk.used_bytes());
        // Whether it fails depends on the room that the tree leaves.
        let _ = database.checkpoint();
        let check = |keyspace: &Keyspace| {
            for number in 0..records {
                let expected = if number % 4 == 0 { 3 } else { 1 };
                assert_eq!(count(keyspace, &common::key(number)), expected, "{number}");
            }
        };
        check(&keyspace);
        drop(keyspace);
        let with = (&options, killed);
        stays_right_with_room(&world, database, with, "add-i64", &check);
    }
}

/// The disk has room for some slices of a memtable with operands, and not for all of it.
#[test]
fn no_slice_of_a_memtable_with_operands_is_merged() {
    for killed in [false, true] {
        let world = World::new(48);
        let options = tiny().checkpoint_distance(CheckpointDistance::Fixed(64));
        let database = world.open(&options);
        let keyspace = with_operator(&database, "append");
        for number in 0..6000 {
            let put = keyspace.put(common::key(number), [number as u8; 100]);
            put.unwrap();
        }
        database.checkpoint().unwrap();
        world.sim.set_breathing(false);
        for number in (0..6000).step_by(4) {
            keyspace.merge(common::key(number), [b'+'; 90]).unwrap();
        }
        world.disk.set_capacity(world.disk.used_bytes());
        let refused = database.checkpoint().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let check = |keyspace: &Keyspace| {
            for number in 0..6000 {
                let expected = if number % 4 == 0 { 190 } else { 100 };
                let value = keyspace.get(common::key(number)).unwrap().unwrap();
                assert_eq!(value.len(), expected, "{number}");
            }
        };
        check(&keyspace);
        drop(keyspace);
        let with = (&options, killed);
        stays_right_with_room(&world, database, with, "append", &check);
    }
}
