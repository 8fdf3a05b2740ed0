//! Uses accepted bytes in every way. Hostile content may be refused, or be read as it is. It must
//! not panic, and if `verify` finds nothing wrong, every way of reading must give the same records.

use std::ops::Bound;
use std::sync::Arc;

use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{
    Database, Error, ErrorKind, Keyspace, Options, Range, Result, Slice, StructureKind, Unordered,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;
use terrapin_structure::{Direction, Found, KeyBounds, Ordered, Presence, Version};

/// Keys that the templates hold or might hold; they are looked up besides the scanned ones.
const KEYS: [&[u8]; 6] = [
    b"",
    b"key-0000",
    b"key-0042",
    b"shared/prefix/07",
    b"zz",
    &[0xff; 40],
];

/// How many keys of a full forward scan are compared with lookups.
const LOOKUPS_MAX: usize = 40;

/// Checks that damaged files may cause an error: it is not about a bug, nor about an open by the
/// wrong process.
pub fn check_error(error: &Error) {
    let allowed = matches!(
        error.kind(),
        ErrorKind::Corrupt
            | ErrorKind::NotFound
            | ErrorKind::DatabaseNotFound
            | ErrorKind::KeyspaceNotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADatabase
            | ErrorKind::NewerFormat
            | ErrorKind::Unsupported
            // Operands in a keyspace without an operator.
            | ErrorKind::Operator
            | ErrorKind::NoSpace
            | ErrorKind::OutOfMemory
            | ErrorKind::TooLarge
    );
    assert!(
        allowed,
        "hostile bytes gave an error of another kind: {error:?}"
    );
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads a version in every way. Returns whether all reads succeeded.
pub fn version(version: &dyn Version) -> bool {
    let mut findings = 0usize;
    let verified = version.verify(&mut |finding| {
        assert!(!finding.place.is_empty() && !finding.message.is_empty());
        findings += 1;
    });
    let sound = sound(verified).is_some() && findings == 0;
    let Some(ordered) = version.ordered() else {
        panic!("only structures that keep an order are exercised");
    };
    let all: KeyBounds<'_> = (Bound::Unbounded, Bound::Unbounded);
    let forward = sound_scan(ordered, all, Direction::Forward);
    let backward = sound_scan(ordered, all, Direction::Backward);
    let mut good = self::sound(version.pages(&mut |_| Ok(()))).is_some();
    good &= self::sound(version.stats()).is_some();
    good &= self::sound(ordered.estimate(all)).is_some();
    let inner: KeyBounds<'_> = (
        Bound::Excluded(b"key-0042"),
        Bound::Included(b"shared/prefix/07"),
    );
    good &= sound_scan(ordered, inner, Direction::Forward).is_some();
    good &= self::sound(ordered.estimate(inner)).is_some();
    let scanned = forward.as_deref().unwrap_or_default();
    let keys: Vec<&[u8]> = sample(scanned)
        .map(|(key, _)| &key[..])
        .chain(KEYS)
        .collect();
    let asked: Vec<(&[u8], u64)> = keys.iter().map(|&key| (key, hash64(key))).collect();
    let mut many = vec![Found::Nothing; asked.len()];
    let many = self::sound(version.multi_get(&asked, &mut many)).map(|()| many);
    for (at, &(key, hash)) in asked.iter().enumerate() {
        let got = self::sound(version.get(key, hash));
        let there = self::sound(version.contains(key, hash));
        good &= got.is_some() && there.is_some();
        if sound {
            let wanted = scanned.binary_search_by(|(k, _)| k[..].cmp(key)).ok();
            let presence = match wanted {
                Some(_) => Presence::Present,
                None => Presence::Absent,
            };
            let wanted = wanted.map_or(Found::Nothing, |at| {
                Found::Value(Slice::copy(&scanned[at].1))
            });
            assert_eq!(
                got.as_ref(),
                Some(&wanted),
                "verify found nothing, and a get differs from a scan"
            );
            let many = many.as_ref().map(|found| &found[at]);
            assert_eq!(
                many,
                Some(&wanted),
                "verify found nothing, and a multi_get differs"
            );
            assert_eq!(
                there,
                Some(presence),
                "verify found nothing, and contains differs"
            );
        }
    }
    if sound {
        let mut backward = backward.clone().unwrap_or_default();
        backward.reverse();
        assert!(
            forward.as_ref() == Some(&backward),
            "verify found nothing, and scans both ways differ"
        );
        assert!(
            scanned.windows(2).all(|two| two[0].0 < two[1].0),
            "verify found nothing, and a scan is out of order"
        );
    }
    good && sound && forward.is_some() && backward.is_some()
}

fn sample(records: &Records2) -> impl Iterator<Item = &(Vec<u8>, Vec<u8>)> {
    records.iter().step_by(records.len() / LOOKUPS_MAX + 1)
}

type Records2 = [(Vec<u8>, Vec<u8>)];

/// The value, if there was no error.
fn sound<T>(result: Result<T, Error>) -> Option<T> {
    result.map_err(|error| check_error(&error)).ok()
}

fn sound_scan(version: &dyn Ordered, bounds: KeyBounds<'_>, way: Direction) -> Option<Records> {
    let mut scan = sound(version.scan(bounds, way))?;
    let mut records = Vec::new();
    loop {
        match sound(scan.next()) {
            Some(Some((key, value))) => records.push((key.to_vec(), value.to_vec())),
            Some(None) => return Some(records),
            None => {
                let after = scan.next();
                assert!(
                    matches!(after, Ok(None)),
                    "something came after a scan's error"
                );
                return None;
            }
        }
    }
}

/// Small sizes, so rare paths are common.
#[must_use]
pub fn tiny() -> Options {
    Options::new()
        .memory(2 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(16 << 10)
        .log_bytes_max(256 << 10)
        .group_bytes(1 << 10)
        .block_bytes(512)
        .fanout(4)
        .checkpoint_distance(terrapin::CheckpointDistance::Fixed(4))
        .background_threads(1)
}

/// A simulated world of one seed for opening databases.
pub struct World {
    pub env: Env,
    pub sim: Sim,
    pub disk: SimDisk,
}

impl World {
    /// With that disk.
    #[must_use]
    pub fn new(disk: SimDisk) -> World {
        let (env, sim) = Env::simulated(1);
        World { env, sim, disk }
    }

    /// Opens the database; none if it is refused.
    pub fn open(&self, options: &Options) -> Option<Database> {
        sound(options.open_on(self.env.clone(), self.disk.handle()))
    }
}

/// Verifies a directory, opens it read-only and for writing, and uses it. Returns whether nothing
/// was wrong.
pub fn directory(disk: &SimDisk) -> bool {
    let world = World::new(disk.fork());
    let options = VerifyOptions::new().memory(1 << 20).findings_max(100);
    let report = sound(verify_on(world.env.clone(), world.disk.handle(), &options));
    let sound = report.is_some_and(|report| report.is_sound());
    let reader = world.open(&tiny().read_only(true));
    let read = reader.as_ref().map(|database| read_all(database, sound));
    drop(reader);
    let world = World::new(disk.fork());
    let written = world.open(&tiny()).map(|database| {
        let before = read_all(&database, sound);
        if let (Some(Some(read)), Some(before)) = (&read, &before) {
            assert!(
                !sound || read == before,
                "verify found nothing, and a read-only open differs from another"
            );
        }
        write(&database) && before.is_some()
    });
    world.sim.kill();
    sound && read.is_some_and(|records| records.is_some()) && written == Some(true)
}

type Keyspaces = Vec<(String, Records)>;

/// The content of all keyspaces, read both ways; none if a read failed.
fn read_all(database: &Database, verified: bool) -> Option<Keyspaces> {
    let mut all = Vec::new();
    let mut whole = sound(database.stat()).is_some();
    for info in sound(database.keyspaces())? {
        let Some(keyspace) = sound(database.open_keyspace(&info.name)) else {
            whole = false;
            continue;
        };
        // Operands in a keyspace without an operator: sound bytes, and no read gets past them.
        let is_refused = |error: Error| error.kind() == ErrorKind::Operator;
        if keyspace.iter().any(|record| record.is_err_and(is_refused)) {
            return None;
        }
        match read_keyspace(&keyspace, verified) {
            Some(records) => all.push((info.name.to_string(), records)),
            None => whole = false,
        }
    }
    assert!(whole || !verified, "verify found nothing, and a read fails");
    whole.then_some(all)
}

fn read_keyspace(keyspace: &Keyspace, verified: bool) -> Option<Records> {
    let is_hashed = sound(keyspace.options())?.structure == StructureKind::Hashed;
    let walk = |backward| match is_hashed {
        true => collect(&mut keyspace.unordered(), backward),
        false => collect(&mut keyspace.iter(), backward),
    };
    let (forward, backward) = (walk(false), walk(true));
    let mut whole = sound(keyspace.approximate_count()).is_some();
    whole &= is_hashed || sound(keyspace.approximate(KEYS[0]..)).is_some();
    for key in KEYS {
        whole &= sound(keyspace.get(key)).is_some();
    }
    let (forward, mut backward) = (forward?, backward?);
    backward.reverse();
    assert!(
        !verified || forward == backward,
        "verify found nothing, and iterators both ways differ"
    );
    let keys: Vec<&[u8]> = sample(&forward).map(|(key, _)| &key[..]).collect();
    let values = sound(keyspace.multi_get(&keys))?;
    for ((_, wanted), got) in sample(&forward).zip(values) {
        assert!(
            !verified || got.as_deref() == Some(&wanted[..]),
            "verify found nothing, and a multi_get differs from an iterator"
        );
    }
    whole.then_some(forward)
}

/// A walk over records, ordered or not.
trait Walked: DoubleEndedIterator<Item = Result<(Slice, Slice)>> {
    fn borrowed(&mut self) -> Result<Option<(&[u8], &[u8])>>;
}

impl Walked for Range {
    fn borrowed(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.next_ref()
    }
}

impl Walked for Unordered {
    fn borrowed(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.next_ref()
    }
}

fn collect(range: &mut impl Walked, backward: bool) -> Option<Records> {
    let mut records = Vec::new();
    loop {
        // One way shares values, the other borrows them.
        let item = if backward {
            let copy = |(key, value): (Slice, Slice)| (key.to_vec(), value.to_vec());
            range.next_back().map(|item| item.map(copy))
        } else {
            let copy = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
            let item = range.borrowed();
            item.map(|item| item.map(copy)).transpose()
        };
        match item.map(sound) {
            Some(Some(record)) => records.push(record),
            Some(None) => {
                assert!(
                    range.next().is_none(),
                    "something came after an iterator's error"
                );
                return None;
            }
            None => return Some(records),
        }
    }
}

/// Writes into every keyspace, merges, and closes.
fn write(database: &Database) -> bool {
    let Some(keyspaces) = sound(database.keyspaces()) else {
        return false;
    };
    let mut good = true;
    for info in keyspaces.iter().take(3) {
        let Some(keyspace) = sound(database.open_keyspace(&info.name)) else {
            continue;
        };
        for number in 0..20u32 {
            let key = format!("key-{:04}", number * 37 % 300);
            good &= sound(keyspace.put(key.as_bytes(), [7; 90])).is_some();
            good &= sound(keyspace.delete(format!("shared/prefix/{number:02}"))).is_some();
        }
        good &= sound(keyspace.delete("key-0000")).is_some();
    }
    good &= sound(database.checkpoint()).is_some();
    good &= read_all(database, false).is_some();
    good & sound(database.close()).is_some()
}

/// A disk with these files.
#[must_use]
pub fn disk(files: &[super::archive::File]) -> SimDisk {
    let disk = SimDisk::new(1);
    for file in files {
        disk.plant(&file.name(), &file.content);
    }
    stay(&disk);
    disk
}

/// Makes sound superblocks name this very file: damaged trees of a killed store must be served,
/// while those of a copy are checked and refused.
fn stay(disk: &SimDisk) {
    let handle = disk.handle();
    let Ok(file) = handle.open("data", terrapin_disk::OpenOptions::default()) else {
        return;
    };
    let Ok(home) = file.identity() else {
        return;
    };
    let data = disk.content("data").unwrap_or_default();
    for at in (0..2).map(|slot| slot * 4096) {
        let Some(sector) = data.get(at..at + 512) else {
            return;
        };
        let mut moved = sector.to_vec();
        super::repair::slot(&mut moved);
        if moved != sector {
            continue;
        }
        moved[76..84].copy_from_slice(&home.inode.to_le_bytes());
        moved[84..92].copy_from_slice(&home.birth_ns.to_le_bytes());
        super::repair::slot(&mut moved);
        for (index, (new, old)) in moved.iter().zip(sector).enumerate() {
            disk.corrupt("data", (at + index) as u64, new ^ old);
        }
    }
}

/// A disk with only a data file.
#[must_use]
pub fn data_disk(data: &[u8]) -> SimDisk {
    let disk = SimDisk::new(1);
    disk.plant("data", data);
    stay(&disk);
    disk
}

/// A read-only page store over a data file; none if it is refused.
pub fn store(disk: &SimDisk) -> Option<Arc<terrapin_pages::PageStore>> {
    let handle = disk.handle();
    if let Err(error) = terrapin_pages::PageStore::presence(&handle) {
        check_error(&error);
    }
    let options = terrapin_pages::StoreOptions {
        budget: terrapin_base::Budget::new(1 << 20),
        reserve_bytes: 0,
        system_cache: false,
    };
    sound(terrapin_pages::PageStore::open(&handle, options, true)).map(|(store, _)| store)
}
