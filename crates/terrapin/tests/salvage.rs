//! Salvage: what sound blocks hold comes out, and no deleted record returns among the certain ones.

mod common;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use common::{Map, World, all, key, tiny, value};
use terrapin::salvage::{SalvageReport, salvage_on};
use terrapin::{Database, ErrorKind, KeyspaceOptions, MergeOperator, Outcome, StructureKind};
use terrapin_disk::sim::SimDisk;

const BLOCK_BYTES: usize = 512;

/// A store of several levels: puts, overwrites and deletes in all of them, and some in the log.
fn store(seed: u64) -> (SimDisk, Map) {
    let world = World::new(seed);
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for i in 0..1500 {
        keyspace.put(key(i), value(i, 60)).unwrap();
    }
    for i in (0..1500).step_by(3) {
        keyspace.put(key(i), value(i + 10_000, 70)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in (0..1500).step_by(5) {
        keyspace.delete(key(i)).unwrap();
    }
    for i in (1..1500).step_by(7) {
        keyspace.put(key(i), value(i + 20_000, 40)).unwrap();
    }
    keyspace.delete_prefix(&key(77)[..1]).unwrap();
    database.checkpoint().unwrap();
    for i in 0..40 {
        match i % 2 {
            0 => keyspace.delete(key(i)).unwrap(),
            _ => keyspace.put(key(i), [b'#'; 30]).unwrap(),
        }
    }
    keyspace.delete_range(key(78)..=key(78)).unwrap();
    database.flush().unwrap();
    for _ in 0..30 {
        // The mark of the last sync becomes durable.
        world.sim.advance_ns(100_000_000);
        world.sim.settle();
    }
    let truth = all(&keyspace);
    drop(keyspace);
    world.kill(database);
    (world.disk, truth)
}

struct Salvaged {
    certain: Map,
    uncertain: Map,
    report: SalvageReport,
}

fn salvage(disk: &SimDisk) -> Result<Salvaged, ErrorKind> {
    salvage_of(disk, "default")
}

fn salvage_of(disk: &SimDisk, keyspace: &str) -> Result<Salvaged, ErrorKind> {
    let world = World::new(77);
    let database = world.open(&tiny());
    let old = disk.fork();
    let before = old.stats_total().written_bytes;
    let report = salvage_on(&world.env, &old.handle(), &tiny(), &database);
    assert_eq!(
        old.stats_total().written_bytes,
        before,
        "nothing is written"
    );
    let report = report.map_err(|error| error.kind())?;
    let records = |database: &Database, name: &str| {
        let found = database.open_keyspace(name);
        found.map_or_else(|_| Map::new(), |keyspace| all(&keyspace))
    };
    let salvaged = Salvaged {
        certain: records(&database, keyspace),
        uncertain: records(&database, &format!("{keyspace}.uncertain")),
        report,
    };
    database.close().unwrap();
    Ok(salvaged)
}

/// Whether a damaged range of the report has a key.
fn may_be_lost(report: &SalvageReport, key: &[u8]) -> bool {
    let has = |from: &[u8], to: Option<&[u8]>| from <= key && to.is_none_or(|to| key < to);
    let mut damaged = report.damaged.iter();
    damaged.any(|range| has(&range.from, range.to.as_deref()))
}

/// What holds of every salvage.
fn check(salvaged: &Salvaged, truth: &Map, what: &str) {
    let Salvaged {
        certain,
        uncertain,
        report,
    } = salvaged;
    for (key, value) in certain {
        assert_eq!(
            truth.get(key),
            Some(value),
            "{what}: {key:?} is not as it was"
        );
    }
    for key in uncertain.keys() {
        assert!(!certain.contains_key(key), "{what}: {key:?} is in both");
        let is_damaged = may_be_lost(report, key) || report.log.is_some();
        assert!(is_damaged, "{what}: {key:?} is uncertain without a reason");
    }
    for key in truth.keys() {
        let found = certain.contains_key(key);
        assert!(
            found || may_be_lost(report, key) || report.log.is_some(),
            "{what}: {key:?} is missing, and no damaged range has it"
        );
    }
}

#[test]
fn a_sound_database_comes_out_whole() {
    let (disk, truth) = store(1);
    let salvaged = salvage(&disk).unwrap();
    assert!(salvaged.report.is_whole(), "{:?}", salvaged.report);
    assert_eq!(salvaged.certain, truth);
    assert!(salvaged.uncertain.is_empty());
}

/// A flipped byte anywhere in the data file: what its block had may be missing, and nothing else.
#[test]
fn each_record_whose_block_is_sound_comes_out_and_no_deleted_one_returns() {
    let (disk, truth) = store(2);
    let data = disk.content("data").unwrap();
    let (mut whole, mut lost, mut nodes, mut refused) = (0, 0, 0, 0);
    for at in (8192 + 37..data.len()).step_by(389) {
        if data[at] == 0 {
            continue;
        }
        let damaged = disk.fork();
        damaged.corrupt("data", at as u64, 0x24);
        let salvaged = match salvage(&damaged) {
            Ok(salvaged) => salvaged,
            Err(kind) => {
                // The catalog.
                assert_eq!(kind, ErrorKind::Corrupt);
                refused += 1;
                continue;
            }
        };
        check(&salvaged, &truth, &format!("byte {at}"));
        let missing = truth.len() - salvaged.certain.len();
        let is_node = salvaged
            .report
            .damaged
            .iter()
            .any(|range| range.cause.contains("node"));
        match missing {
            0 => whole += 1,
            _ if is_node => nodes += 1,
            _ => {
                // No block has more records than bytes for them. A range that spans more, such as a
                // level's block, makes older records of its keys uncertain.
                lost += 1;
                let kept = salvaged.certain.len() + salvaged.uncertain.len();
                let most = BLOCK_BYTES / 40 + 1;
                assert!(
                    kept + most >= truth.len(),
                    "byte {at}: {kept} of {}",
                    truth.len()
                );
            }
        }
    }
    assert!(
        whole > 20 && lost > 100,
        "{whole} whole, {lost} lost, {nodes} nodes, {refused}"
    );
}

/// A structure without a salvage of its own gives what is before and behind the damage.
#[test]
fn other_structures_give_what_is_before_and_behind_the_damage() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let options = KeyspaceOptions::new().structure(StructureKind::InPlace);
    let keyspace = database.create_keyspace("own", options).unwrap();
    for i in 0..1200 {
        keyspace.put(key(i), value(i, 60)).unwrap();
    }
    let truth = all(&keyspace);
    drop(keyspace);
    database.close().unwrap();
    let data = world.disk.content("data").unwrap();
    let mut lost = 0;
    for at in (8192 + 41..data.len()).step_by(769) {
        let damaged = world.disk.fork();
        damaged.corrupt("data", at as u64, 0x24);
        let salvaged = match salvage_of(&damaged, "own") {
            Ok(salvaged) => salvaged,
            Err(kind) => {
                // The catalog.
                assert_eq!(kind, ErrorKind::Corrupt);
                continue;
            }
        };
        check(&salvaged, &truth, &format!("byte {at}"));
        lost += u64::from(salvaged.certain.len() < truth.len());
    }
    assert!(lost > 5, "{lost}");
}

type Shown = BTreeMap<Vec<u8>, (Vec<u8>, Option<SystemTime>)>;

fn shown(keyspace: &terrapin::Keyspace) -> Shown {
    let mut shown = Shown::new();
    let mut records = keyspace.unordered();
    while let Some((key, value, deadline)) = records.next_with_deadline().unwrap() {
        shown.insert(key.to_vec(), (value.to_vec(), deadline));
    }
    shown
}

/// What a scan does not resolve came out as an empty value, or under another key where keys are
/// hashed. A value without a deadline got one from its keyspace.
#[test]
fn deadlines_operands_and_separated_values_come_out_of_every_structure() {
    for structure in [
        StructureKind::Leveled,
        StructureKind::Tiered,
        StructureKind::InPlace,
        StructureKind::Hashed,
    ] {
        let world = World::new(6);
        let database = world.open(&tiny());
        let options = KeyspaceOptions::new()
            .structure(structure)
            .merge_operator("append")
            .separate_from(512)
            .ttl(Duration::from_secs(5000));
        let keyspace = database.create_keyspace("own", options).unwrap();
        for i in 0..600 {
            let (key, ttl) = (key(i), Duration::from_secs(9000 + i));
            match i % 5 {
                0 => keyspace.put_with_ttl(&key, value(i, 40), ttl).unwrap(),
                1 => keyspace.merge(&key, "operand").unwrap(),
                2 => keyspace.put(&key, value(i, 700)).unwrap(),
                3 => keyspace.put(&key, "").unwrap(),
                _ => {
                    keyspace.put(&key, value(i, 30)).unwrap();
                    keyspace.persist(&key).unwrap();
                }
            }
        }
        database.checkpoint().unwrap();
        // Operands over a separated value are uncertain: the value may be lost.
        for i in (0..600).step_by(11).filter(|i| i % 5 != 2) {
            keyspace.merge(key(i), "more").unwrap();
        }
        let truth = shown(&keyspace);
        drop(keyspace);
        database.close().unwrap();

        let other = World::new(77);
        let database = other.open(&tiny());
        let old = world.disk.fork();
        let report = salvage_on(&other.env, &old.handle(), &tiny(), &database).unwrap();
        assert!(report.is_whole(), "{structure:?}: {report:?}");
        let own = shown(&database.open_keyspace("own").unwrap());
        assert_eq!(own.len(), truth.len(), "{structure:?}");
        for (key, record) in &truth {
            assert_eq!(own.get(key), Some(record), "{structure:?} {key:?}");
        }
        let found = database.open_keyspace("own").unwrap();
        for key in truth.keys() {
            assert!(found.contains(key).unwrap(), "{structure:?}");
        }
        drop(found);
        database.close().unwrap();
    }
}

/// Without its index, the blocks of a group are found by their checksums.
#[test]
fn several_damaged_places_lose_what_was_in_them() {
    let (disk, truth) = store(3);
    let data = disk.content("data").unwrap();
    for seed in 0..12_usize {
        let damaged = disk.fork();
        for n in 0..5 {
            let at = 8192 + (seed * 7919 + n * 104_729) % (data.len() - 8192);
            damaged.corrupt("data", at as u64, 0x81);
        }
        match salvage(&damaged) {
            Ok(salvaged) => check(&salvaged, &truth, &format!("seed {seed}")),
            Err(kind) => assert_eq!(kind, ErrorKind::Corrupt),
        }
    }
}

/// A damaged log may have had a newer record of any key. So all records are uncertain.
#[test]
fn a_damaged_log_makes_every_record_uncertain() {
    let (disk, truth) = store(4);
    let names = disk.fork().handle().list().unwrap();
    let logs = names.iter().filter(|name| name.starts_with("log-"));
    let last_of = |name: &String| {
        let content = disk.content(name).unwrap();
        let last = content.windows(30).rposition(|bytes| bytes == [b'#'; 30])?;
        Some((name.clone(), last))
    };
    let (log, last) = logs.filter_map(last_of).next_back().unwrap();
    assert!(disk.corrupt(&log, last as u64 - 600, 0x10));
    // A power cut takes the ring.
    let ring = disk.content("ring").unwrap().len();
    disk.plant("ring", &vec![0; ring]);
    let salvaged = salvage(&disk).unwrap();
    assert!(salvaged.report.log.is_some(), "{:?}", salvaged.report);
    assert!(salvaged.certain.is_empty());
    let found = truth
        .keys()
        .filter(|key| salvaged.uncertain.contains_key(*key));
    assert!(found.count() + 60 > truth.len());
}

/// A combined operand is no operand of a user, and operands above a sound tree are certain.
#[test]
fn operands_come_out_with_what_they_apply_to() {
    let world = World::new(5);
    let database = world.open(&tiny());
    let options = terrapin::KeyspaceOptions::new().merge_operator("saturating-add-i64");
    let sums = database.create_keyspace("sums", options).unwrap();
    for i in 0..800 {
        sums.put(key(i), 1i64.to_le_bytes()).unwrap();
    }
    database.checkpoint().unwrap();
    for i in (0..800).step_by(2) {
        sums.merge(key(i), 2i64.to_le_bytes()).unwrap();
        sums.merge(key(i), 3i64.to_le_bytes()).unwrap();
    }
    database.checkpoint().unwrap();
    sums.merge(key(0), 4i64.to_le_bytes()).unwrap();
    let truth = all(&sums);
    drop(sums);
    database.close().unwrap();
    let next = World::new(6);
    let salvaged = next.open(&tiny());
    let report = salvage_on(&next.env, &world.disk.handle(), &tiny(), &salvaged).unwrap();
    assert!(report.damaged.is_empty());
    let found = salvaged.open_keyspace("sums").unwrap();
    assert_eq!(all(&found), truth);
    assert!(
        salvaged.open_keyspace("sums.uncertain").is_err(),
        "no record is uncertain"
    );
    drop(found);
    salvaged.close().unwrap();
}

/// Salvages copies of the keyspace `own`, each with one damaged byte of the data file, and checks
/// them. Returns for how many of them `counts` is true.
fn salvages_of_damaged_copies(
    disk: &SimDisk,
    truth: &Map,
    counts: impl Fn(&Salvaged) -> bool,
) -> usize {
    let data = disk.content("data").unwrap();
    let mut counted = 0;
    for at in (8192 + 41..data.len()).step_by(521) {
        if data[at] == 0 {
            continue;
        }
        let damaged = disk.fork();
        damaged.corrupt("data", at as u64, 0x24);
        match salvage_of(&damaged, "own") {
            Ok(salvaged) => {
                check(&salvaged, truth, &format!("byte {at}"));
                counted += usize::from(counts(&salvaged));
            }
            Err(kind) => assert_eq!(kind, ErrorKind::Corrupt),
        }
    }
    counted
}

/// A value of a key is lost with its page, and an older value of the key is sound. The older one
/// came out as certain.
#[test]
fn an_older_value_is_uncertain_if_a_newer_one_is_lost() {
    let world = World::new(8);
    let database = world.open(&tiny());
    let options = KeyspaceOptions::new().separate_from(512);
    let keyspace = database.create_keyspace("own", options).unwrap();
    for i in 0..800 {
        keyspace.put(key(i), value(i, 60)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in (0..800).step_by(9) {
        keyspace.put(key(i), value(i + 10_000, 700)).unwrap();
    }
    let truth = all(&keyspace);
    drop(keyspace);
    database.close().unwrap();
    let older = salvages_of_damaged_copies(&world.disk, &truth, |salvaged| {
        salvaged.uncertain.len() == 1
    });
    assert!(older > 50, "{older}");
}

/// What an operand of the log applies to is lost with a block of the tree. The operand alone came
/// out as a certain value.
#[test]
fn an_operand_of_the_log_is_uncertain_if_what_it_applies_to_is_lost() {
    let world = World::new(9);
    let database = world.open(&tiny());
    let options = KeyspaceOptions::new().merge_operator("append");
    let keyspace = database.create_keyspace("own", options).unwrap();
    for i in 0..300 {
        keyspace.put(key(i), value(i, 60)).unwrap();
    }
    database.checkpoint().unwrap();
    for i in (0..300).step_by(5) {
        keyspace.merge(key(i), "more").unwrap();
    }
    let truth = all(&keyspace);
    drop(keyspace);
    world.kill(database);
    let lost = salvages_of_damaged_copies(&world.disk, &truth, |salvaged| {
        !salvaged.uncertain.is_empty()
    });
    assert!(lost > 20, "{lost}");
}

/// Appends, and is registered in the damaged database only.
struct Mine;

impl MergeOperator for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn apply(
        &self,
        _: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> terrapin::Result<Outcome> {
        out.extend_from_slice(existing.unwrap_or_default());
        out.extend_from_slice(operand);
        Ok(Outcome::Value)
    }
}

/// A record that turns out to be uncertain keeps its deadline, or has none, and keeps operands that
/// no operator of the new database applies. Those were lost.
#[test]
fn a_record_that_turns_out_to_be_uncertain_stays_as_it_was() {
    let world = World::new(10);
    let database = world.open(&tiny().merge_operator(Mine));
    let options = KeyspaceOptions::new()
        .merge_operator("mine")
        .separate_from(512)
        .ttl(Duration::from_secs(5000));
    let keyspace = database.create_keyspace("own", options).unwrap();
    for i in 0..400 {
        match i % 3 {
            0 => {
                keyspace.put(key(i), value(i, 60)).unwrap();
                keyspace.persist(key(i)).unwrap();
            }
            _ => {
                let ttl = Duration::from_secs(9000 + i);
                keyspace.put_with_ttl(key(i), value(i, 40), ttl).unwrap();
            }
        }
        if i % 2 == 0 {
            keyspace.merge(key(i), "operand").unwrap();
        }
    }
    let older = shown(&keyspace);
    database.checkpoint().unwrap();
    for i in (0..400).step_by(7) {
        // A value with a deadline stays in its record.
        keyspace.put(key(i), value(i, 700)).unwrap();
        keyspace.persist(key(i)).unwrap();
    }
    drop(keyspace);
    database.close().unwrap();
    let data = world.disk.content("data").unwrap();
    let mut turned = 0;
    for at in (8192 + 41..data.len()).step_by(769) {
        if data[at] == 0 {
            continue;
        }
        let damaged = world.disk.fork();
        damaged.corrupt("data", at as u64, 0x24);
        let other = World::new(77);
        let database = other.open(&tiny());
        let report = salvage_on(&other.env, &damaged.handle(), &tiny(), &database);
        database.close().unwrap();
        let lost = report.map_or(Vec::new(), |report| report.damaged);
        let database = other.open(&tiny().merge_operator(Mine));
        // One value is lost, and no block of older records.
        if let ([lost], Ok(uncertain)) = (&lost[..], database.open_keyspace("own.uncertain"))
            && lost.to == Some([&lost.from[..], &[0]].concat())
        {
            let record = older.get(&lost.from).cloned();
            let expected = record.map(|record| (lost.from.clone(), record));
            assert_eq!(
                shown(&uncertain),
                expected.into_iter().collect(),
                "byte {at}"
            );
            turned += 1;
        }
        database.close().unwrap();
    }
    assert!(turned > 10, "{turned}");
}
