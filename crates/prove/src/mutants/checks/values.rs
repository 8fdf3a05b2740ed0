//! Checks of separated values.

use std::path::Path;

use terrapin::{CheckpointDistance, Database, Keyspace, KeyspaceOptions, SpaceAmplification};
use terrapin_base::checksum::hash64;
use terrapin_base::{Budget, Incarnation};
use terrapin_disk::SimDisk;
use terrapin_pages::block::Compression;
use terrapin_pages::{Changes, PageStore, SpaceClass, StoreOptions};
use terrapin_valuelog::page::{PageBuilder, PageOptions};
use terrapin_valuelog::{Handle, TableEdit, ValueTable};
use terrapin_valuemap::{Location, LocationMap, Page, SizeClass};

use super::{Outcome, key, text, tiny};
use crate::process::Process;
use crate::protocol::Protocol;

/// Bytes of a value.
const VALUE_BYTES: usize = 1 << 10;
const RECORDS: u64 = 1500;

/// The asked space holds while a writer never pauses.
pub(in crate::mutants) fn space(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(80));
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .checkpoint_distance(CheckpointDistance::Fixed(6));
    let database = world.open(&options).map_err(text("open"))?;
    let bounded = KeyspaceOptions::new()
        .separate_from(512)
        .space_amplification(SpaceAmplification::from(1.3));
    let created = database.create_keyspace("values", bounded);
    let keyspace = created.map_err(text("create"))?;
    let mut random = 7u64;
    let bytes = RECORDS * (key(0).len() + VALUE_BYTES) as u64;
    let mut most = 0;
    for number in 0..12 * RECORDS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let record = match number < RECORDS {
            true => number,
            false => (random >> 33) % RECORDS,
        };
        let mut value = number.to_le_bytes().to_vec();
        value.resize(VALUE_BYTES, b'.');
        keyspace.put(key(record), value).map_err(text("put"))?;
        if number > 6 * RECORDS && number % (RECORDS / 50) == 0 {
            let stat = database.stat().map_err(text("stat"))?;
            let mut keyspaces = stat.keyspaces.iter();
            let found = keyspaces.find(|keyspace| keyspace.name == "values");
            most = most.max(found.map_or(0, |keyspace| keyspace.tree.page_bytes));
        }
    }
    drop(keyspace);
    world.kill(Some(database));
    match most * 100 <= bytes * 135 {
        true => Ok(()),
        false => Err(format!("{most} bytes of pages for {bytes} of records")),
    }
}

/// The map of separated values gives no value that was overwritten.
pub(in crate::mutants) fn located(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(81));
    let options = tiny()
        .memory(16 << 20)
        .group_bytes(16 << 10)
        .record_cache(false);
    let database = world.open(&options).map_err(text("open"))?;
    let created = database.create_keyspace("values", KeyspaceOptions::new().separate_from(512));
    let keyspace = created.map_err(text("create"))?;
    let value = |record: u64, round: u64| [record as u8, round as u8].repeat(300);
    let check = |keyspace: &Keyspace, round: u64| {
        for record in 0..RECORDS {
            let got = keyspace.get(key(record)).map_err(text("get"))?;
            if got.as_deref() != Some(&value(record, round)[..]) {
                return Err(format!("a wrong value of record {record} in round {round}"));
            }
        }
        Ok(())
    };
    for round in 0..3 {
        for record in 0..RECORDS {
            let put = keyspace.put(key(record), value(record, round));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        for _ in 0..2 {
            check(&keyspace, round)?;
            world.sim.settle();
        }
    }
    if database.metrics().location_hits < RECORDS {
        return Err("the map answered few gets".to_owned());
    }
    drop(keyspace);
    world.kill(Some(database));
    Ok(())
}

/// The map alone, with fingerprints so short that keys are taken for each other all the time: no
/// lookup leads to an older record of its key.
pub(in crate::mutants) fn map(_scratch: &Path) -> Outcome {
    const KEYS: u64 = 4000;
    let map = LocationMap::with_fingerprints(&Budget::new(64 << 20), 16 << 20, 7, 4);
    map.set_bytes_max(1 << 20);
    let class = SizeClass::of(1000).ok_or("no class")?;
    let of = |number: u64| map.key(1, hash64(&number.to_le_bytes()));
    let page = |id, born| Page {
        id,
        offset: id << 20,
        bytes: 1 << 20,
        collection: 1,
        born,
    };
    // Each round is a checkpoint: its page has new versions of some keys, each at its own place. A
    // page ends eight rounds later, once nothing is the newest there.
    let mut newest = vec![0; KEYS as usize];
    let mut random = 5u64;
    let mut indexes = Vec::new();
    // Keys of a keyspace that is gone: no sweep names them again, and their entries stay.
    const LEFT: u64 = 40;
    let left = |round: u64| KEYS + round * LEFT..KEYS + (round + 1) * LEFT;
    for round in 1..=60u64 {
        let index = map.add_page(page(round, round)).ok_or("no index")?;
        indexes.push(index);
        let at = |number: u64| Location {
            page: index,
            place: number as u32,
            class,
        };
        let learned = map.epoch();
        map.begin_sweep();
        for number in 0..KEYS {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let before = newest[number as usize];
            let is_old = before > 0 && before + 8 <= round;
            if !is_old && !(random >> 33).is_multiple_of(5) {
                continue;
            }
            newest[number as usize] = round;
            match (random >> 43) % 2 {
                0 => map.set(of(number), at(number)),
                _ => map.remove(of(number)),
            }
            // A reader learned the older place before the sweep.
            if before > 0 {
                let older = Location {
                    page: indexes[before as usize - 1],
                    ..at(number)
                };
                map.fill(of(number), older, learned);
            }
        }
        for number in left(round) {
            map.set(of(number), at(number));
        }
        if round > 8 {
            map.end_page(indexes[round as usize - 9], round);
        }
        if round % 16 == 0 {
            map.free_pages();
        }
        while map.grow_step() {}
        for number in 0..left(round).end {
            let Some(found) = map.get(of(number), round) else {
                continue;
            };
            let place = u64::from(found.location.place);
            let is_its_own = number < KEYS && place == number;
            if is_its_own && found.page.id != newest[number as usize] {
                return Err(format!("an older place of key {number} in round {round}"));
            }
            if place >= KEYS && !left(found.page.id).contains(&place) {
                return Err(format!("a place of another page in round {round}"));
            }
            if found.page.id + 8 <= round {
                return Err(format!("a page that ended answers in round {round}"));
            }
        }
    }
    Ok(())
}

/// The map alone, whose shards grow and shrink through sizes that are no powers of two, between
/// which keys get new places: no lookup leads to an older place of its key.
pub(in crate::mutants) fn resized(_scratch: &Path) -> Outcome {
    const KEYS: u64 = 110_000;
    const ROUNDS: u64 = 12;
    let map = LocationMap::with_fingerprints(&Budget::new(64 << 20), 16 << 20, 7, 4);
    let class = SizeClass::of(1000).ok_or("no class")?;
    let of = |number: u64| map.key(1, hash64(&number.to_le_bytes()));
    let mut newest = vec![0; KEYS as usize];
    let mut most_bytes = 0;
    for round in 1..=ROUNDS {
        let page = Page {
            id: round,
            offset: round << 20,
            bytes: 1 << 20,
            collection: 1,
            born: round,
        };
        let index = map.add_page(page).ok_or("no index")?;
        // Most shards have 64, 128, 192 or 256 buckets after a round.
        map.set_bytes_max(match round % 4 {
            0 => 900 << 10,
            _ => 4 << 20,
        });
        while map.shrink_step() {}
        map.begin_sweep();
        for number in 0..KEYS * (round % 4 + 1) / 4 {
            if !hash64(&(number ^ round << 32).to_le_bytes()).is_multiple_of(2) {
                continue;
            }
            let place = number as u32;
            let location = Location {
                page: index,
                place,
                class,
            };
            map.set(of(number), location);
            newest[number as usize] = round;
        }
        most_bytes = most_bytes.max(map.bytes());
        for (number, newest) in (0..).zip(&newest) {
            let found = map.get(of(number), round);
            let found = found.filter(|found| u64::from(found.location.place) == number);
            if found.is_some_and(|found| found.page.id != *newest) {
                return Err(format!("an older place of key {number} in round {round}"));
            }
        }
    }
    match most_bytes > 64 * 192 * 64 {
        true => Ok(()),
        false => Err(format!("{most_bytes} bytes at most: shards did not grow")),
    }
}

const LONG_BYTES: usize = 16 << 10;
const LONG_RECORDS: u64 = 128;

fn long(record: u64, version: u64) -> Vec<u8> {
    let mut value = (record + version * LONG_RECORDS).to_le_bytes().to_vec();
    value.resize(LONG_BYTES, b'.');
    value
}

/// A store of values that are whole extents, overwritten until dead ones are holes.
struct Punched {
    world: Process,
    database: Database,
    keyspace: Keyspace,
    versions: Vec<u64>,
    random: u64,
}

impl Punched {
    fn new(seed: u64) -> Result<Self, String> {
        let world = Process::new(1, SimDisk::new(seed));
        let options = tiny()
            .memory(16 << 20)
            .ring_bytes(1 << 20)
            .log_segment_bytes(1 << 20)
            .log_bytes_max(8 << 20)
            .group_bytes(64 << 10);
        let database = world.open(&options).map_err(text("open"))?;
        let bounded = KeyspaceOptions::new()
            .separate_from(512)
            .space_amplification(SpaceAmplification::from(1.2));
        let created = database.create_keyspace("values", bounded);
        let keyspace = created.map_err(text("create"))?;
        for record in 0..LONG_RECORDS {
            let put = keyspace.put(key(record), long(record, 0));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
        Ok(Punched {
            world,
            database,
            keyspace,
            versions: vec![0; LONG_RECORDS as usize],
            random: seed,
        })
    }

    fn overwrite(&mut self, rounds: u64) -> Outcome {
        for _ in 0..rounds {
            for _ in 0..LONG_RECORDS / 8 {
                let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
                self.random = next.wrapping_add(1);
                let record = (self.random >> 33) % LONG_RECORDS;
                let version = &mut self.versions[record as usize];
                *version += 1;
                let put = self.keyspace.put(key(record), long(record, *version));
                put.map_err(text("put"))?;
            }
            self.database.checkpoint().map_err(text("checkpoint"))?;
        }
        Ok(())
    }

    fn check(&self) -> Outcome {
        for (record, &version) in (0..).zip(&self.versions) {
            let got = self.keyspace.get(key(record)).map_err(text("get"))?;
            if got.as_deref() != Some(&long(record, version)[..]) {
                return Err(format!("a wrong value of record {record}"));
            }
        }
        let stat = self.database.stat().map_err(text("stat"))?;
        let mut keyspaces = stat.keyspaces.iter();
        let tree = keyspaces.find(|keyspace| keyspace.name == "values");
        match tree.and_then(|k| k.tree.figure("punched_value_bytes")) {
            Some(1..) => Ok(()),
            _ => Err("nothing was punched".to_owned()),
        }
    }

    fn end(self) -> Outcome {
        drop(self.keyspace);
        self.database.close().map_err(text("close"))?;
        let (env, disk) = (self.world.env.clone(), self.world.disk.handle());
        let report = terrapin::verify::verify_on(env, disk, &Default::default());
        let report = report.map_err(text("verify"))?;
        match report.is_sound() {
            true => Ok(()),
            false => Err(format!("{:?}", report.findings.first())),
        }
    }
}

/// Holes are made of nothing that a superblock or a snapshot reaches.
pub(in crate::mutants) fn punched(_scratch: &Path) -> Outcome {
    let mut store = Punched::new(83)?;
    let protocol = Protocol::watch(&store.world.disk);
    store.overwrite(12)?;
    let snapshot = store.database.snapshot().map_err(text("snapshot"))?;
    let before = store.versions.clone();
    store.overwrite(12)?;
    for (record, version) in (0..).zip(before) {
        let got = snapshot.get(&store.keyspace, key(record));
        if got.map_err(text("get"))?.as_deref() != Some(&long(record, version)[..]) {
            return Err(format!("a snapshot lost record {record}"));
        }
    }
    drop(snapshot);
    store.overwrite(6)?;
    protocol.check().map_err(|find| find.0)?;
    drop(protocol);
    store.check()?;
    store.end()
}

/// Ranges over scattered values get the order that they have paid for.
pub(in crate::mutants) fn ordered(_scratch: &Path) -> Outcome {
    const RECORDS: u64 = 4000;
    let world = Process::new(1, SimDisk::new(86));
    let options = tiny()
        .memory(16 << 20)
        .ring_bytes(1 << 20)
        .group_bytes(32 << 10)
        .record_cache(false);
    let database = world.open(&options).map_err(text("open"))?;
    let created = database.create_keyspace("values", KeyspaceOptions::new().separate_from(512));
    let keyspace = created.map_err(text("create"))?;
    let mut random = 7u64;
    let mut below = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % bound
    };
    for number in 0..3 * RECORDS {
        let record = match number < RECORDS {
            true => number,
            false => below(RECORDS),
        };
        let put = keyspace.put(key(record), [3; VALUE_BYTES]);
        put.map_err(text("put"))?;
    }
    database.checkpoint().map_err(text("checkpoint"))?;
    world.sim.settle();
    let mut reads = Vec::new();
    for _ in 0..40 {
        let before = database.metrics().device_reads.scan_reads;
        for _ in 0..40 {
            let from = key(below(RECORDS - 100));
            for record in keyspace.range(&from[..]..).limit(100) {
                record.map_err(text("range"))?;
            }
        }
        reads.push(database.metrics().device_reads.scan_reads - before);
        world.sim.settle();
    }
    drop(keyspace);
    world.kill(Some(database));
    match reads[39] * 3 < reads[0] {
        true => Ok(()),
        false => Err(format!("reads of ranges: {reads:?}")),
    }
}

/// A place leads to a value only by its own key.
pub(in crate::mutants) fn compared(_scratch: &Path) -> Outcome {
    let disk = SimDisk::new(87).handle();
    let options = StoreOptions {
        budget: Budget::new(8 << 20),
        reserve_bytes: 0,
        system_cache: false,
    };
    let store = PageStore::create(&disk, options, 7).map_err(text("create"))?;
    store.begin_life(Incarnation(1));
    let mut builder = PageBuilder::new(PageOptions {
        target_bytes: 64 << 10,
        unit: 512,
        compression: Compression::None,
    });
    let place = builder.add(1, b"own", b"value");
    let Some(pending) = builder.finish() else {
        return Err("no page".to_owned());
    };
    let (page, parts) = pending
        .write(&store, SpaceClass::Normal)
        .map_err(text("write"))?;
    let mut edit = TableEdit::default();
    parts.into_iter().for_each(|part| edit.put(part));
    let table = ValueTable::empty(&store)
        .edited(&edit, &[page], SpaceClass::Normal, &mut Changes::default())
        .map_err(text("table"))?;
    let handle = Handle {
        birth: 1,
        place,
        value_bytes: 5,
    };
    let place = table.place(handle, b"own").map_err(text("place"))?;
    let own = table.read_at(&place, b"own").map_err(text("read"))?;
    let other = table.read_at(&place, b"two").map_err(text("read"))?;
    match (own.as_deref(), other) {
        (Some(b"value"), None) => Ok(()),
        (own, other) => Err(format!("the own key's: {own:?}, another key's: {other:?}")),
    }
}

/// Collecting copies each live value, and only those.
pub(in crate::mutants) fn collected(_scratch: &Path) -> Outcome {
    let world = Process::new(1, SimDisk::new(85));
    let options = tiny().memory(16 << 20).group_bytes(16 << 10);
    let database = world.open(&options).map_err(text("open"))?;
    let bounded = KeyspaceOptions::new()
        .separate_from(512)
        .space_amplification(SpaceAmplification::from(1.2));
    let created = database.create_keyspace("values", bounded);
    let keyspace = created.map_err(text("create"))?;
    let value = |record: u64, round: u64| [record as u8, round as u8].repeat(300);
    let last = |record: u64| {
        (0..20)
            .rev()
            .find(|round| (record + round).is_multiple_of(7) || *round == 0)
    };
    for round in 0..20 {
        for record in (0..RECORDS).filter(|record| (record + round).is_multiple_of(7) || round == 0)
        {
            let put = keyspace.put(key(record), value(record, round));
            put.map_err(text("put"))?;
        }
        database.checkpoint().map_err(text("checkpoint"))?;
    }
    for record in 0..RECORDS {
        let got = keyspace.get(key(record)).map_err(text("get"))?;
        let expected = value(record, last(record).unwrap_or(0));
        if got.as_deref() != Some(&expected[..]) {
            return Err(format!("a wrong value of record {record}"));
        }
    }
    drop(keyspace);
    database.close().map_err(text("close"))?;
    let report =
        terrapin::verify::verify_on(world.env.clone(), world.disk.handle(), &Default::default());
    let report = report.map_err(text("verify"))?;
    match report.is_sound() {
        true => Ok(()),
        false => Err(format!("{:?}", report.findings.first())),
    }
}
