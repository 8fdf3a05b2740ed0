//! Copies of a directory. Files and pages of two copies that were written separately must not mix.
//! A copy made while the database was open is refused or holds a prefix of the commits.

mod common;

use common::{Map, World, all, key, tiny, value};
use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{Database, ErrorKind};
use terrapin_disk::SimDisk;

/// A world whose disk holds copies of files, as `cp` makes them.
fn world_of(seed: u64, files: &[(String, Vec<u8>)]) -> World {
    let world = World::new(seed);
    for (name, content) in files {
        world.disk.plant(name, content);
    }
    world
}

fn files_of(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.fork().handle().list().unwrap();
    let content = |name: &String| disk.content(name).unwrap();
    names.iter().map(|n| (n.clone(), content(n))).collect()
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

/// A database and one of its lives. Each copy has the same operations, with other values of the
/// same length.
fn live(world: &World, mark: u8, end: End) -> Map {
    let database = world.open(&tiny());
    let keyspace = database.default_keyspace();
    for round in 0..3u64 {
        for i in 0..150 {
            let mut value = value(round * 1000 + i, 60);
            value[20..].fill(mark);
            keyspace.put(key(round * 100 + i), value).unwrap();
        }
        if round == 1 {
            database.checkpoint().unwrap();
        }
    }
    let content = all(&keyspace);
    drop(keyspace);
    match end {
        End::Closed => drop(database.close().unwrap()),
        End::Killed => world.kill(database),
    }
    content
}

/// Two copies of one closed database, some lives later, and the content of the first.
fn siblings(lives: usize, end: End) -> ([World; 2], Map) {
    let world = World::new(1);
    live(&world, b'-', End::Closed);
    let common = files_of(&world.disk);
    let mut contents = Vec::new();
    let worlds = [(2, b'a'), (3, b'b')].map(|(seed, mark)| {
        let world = world_of(seed, &common);
        let mut content = Map::new();
        for _ in 0..lives {
            content = live(&world, mark, end);
        }
        contents.push(content);
        world
    });
    (worlds, contents.swap_remove(0))
}

fn read(database: &Database) -> Result<Map, terrapin::Error> {
    let records = database.default_keyspace();
    let records = records.iter();
    records
        .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())))
        .collect()
}

#[test]
fn files_of_two_copies_of_one_database_do_not_mix() {
    for (lives, end) in [
        (1, End::Closed),
        (1, End::Killed),
        (2, End::Closed),
        (3, End::Killed),
    ] {
        let (worlds, content) = siblings(lives, end);
        let [ours, theirs] = worlds.map(|world| files_of(&world.disk));
        let donors: Vec<_> = theirs
            .iter()
            .filter(|(name, _)| name == "data" || name == "ring" || name.starts_with("log-"))
            .collect();
        // Each file alone, the whole log, and all files but the data file.
        let mut mixes: Vec<Vec<_>> = donors.iter().map(|donor| vec![*donor]).collect();
        let of_log = |(name, _): &&&(String, Vec<u8>)| name.starts_with("log-");
        mixes.push(donors.iter().filter(of_log).copied().collect());
        let behind = |(name, _): &&&(String, Vec<u8>)| name != "data";
        mixes.push(donors.iter().filter(behind).copied().collect());
        for mix in mixes {
            let names: Vec<_> = mix.iter().map(|(name, _)| name.as_str()).collect();
            let what = format!("{lives} lives, {end:?}, {names:?} of the other");
            let mut files = ours.clone();
            let whole_log = mix.len() > 1;
            files.retain(|(name, _)| {
                let of_log = whole_log && name.starts_with("log-");
                !of_log && !names.contains(&name.as_str())
            });
            files.extend(mix.iter().map(|file| (*file).clone()));
            let world = world_of(4, &files);
            let report = verify_on(
                world.env.clone(),
                world.disk.handle(),
                &VerifyOptions::default(),
            )
            .unwrap();
            for read_only in [true, false] {
                match world.try_open(&tiny().read_only(read_only)) {
                    // The ring is never synced, so a foreign ring is like that of a power cut.
                    Ok(database) if names == ["ring"] => {
                        let found = read(&database).unwrap();
                        let right = |(k, v): (&Vec<u8>, &Vec<u8>)| {
                            content.get(k) == Some(v) || v[20] != b'b'
                        };
                        assert!(found.iter().all(right), "{what}");
                        assert!(end == End::Killed || found == content, "{what}");
                        drop(database);
                    }
                    Ok(_) => panic!("{what}: opened"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                        let text = error.to_string();
                        assert!(
                            text.contains("another copy of this database"),
                            "{what}: {text}"
                        );
                        assert!(text.contains("log-"), "{what}: {text}");
                        assert!(!report.is_sound(), "{what}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn pages_of_two_copies_of_one_database_do_not_mix() {
    for end in [End::Closed, End::Killed] {
        let ([ours, theirs], content) = siblings(1, end);
        let [mine, other] = [&ours, &theirs].map(|world| world.disk.content("data").unwrap());
        let mut met = 0;
        let mut tried = 0;
        for bytes in [512, 4096, 16_384] {
            for at in (8192..mine.len().min(other.len())).step_by(bytes) {
                let range = at..(at + bytes).min(mine.len()).min(other.len());
                if mine[range.clone()] == other[range.clone()] {
                    continue;
                }
                // The same file, as far as the file system can tell.
                let disk = ours.disk.fork();
                for at in range {
                    disk.corrupt("data", at as u64, mine[at] ^ other[at]);
                }
                let world = World {
                    disk,
                    ..World::new(6)
                };
                let report = verify_on(
                    world.env.clone(),
                    world.disk.handle(),
                    &VerifyOptions::default(),
                )
                .unwrap();
                tried += 1;
                met += usize::from(!report.is_sound());
                let what = format!("{end:?}, {bytes} bytes at {at}");
                match world.try_open(&tiny()).and_then(|d| read(&d)) {
                    Ok(found) => assert!(found == content, "{what}: other records"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                        assert!(!report.is_sound(), "{what}: {error}");
                    }
                }
            }
        }
        assert!(met > 20, "{end:?}: {met} of {tried}");
    }
}

/// Copies the files of a database piece by piece, in three orders of the files, each from its
/// start. The database continues between two pieces.
fn copy_live(world: &World, seed: u64, go_on: &mut dyn FnMut()) -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<String> = files_of(&world.disk).into_iter().map(|(n, _)| n).collect();
    match seed % 3 {
        0 => {}
        1 => names.reverse(),
        _ => names.sort_by_key(|name| name != "data"),
    }
    let mut files = Vec::new();
    for name in names {
        let mut copied = Vec::new();
        while let Some(content) = world.disk.content(&name) {
            let piece = 512 << world.below(8);
            let end = (copied.len() + piece).min(content.len());
            if copied.len() >= end {
                break;
            }
            copied.extend_from_slice(&content[copied.len()..end]);
            go_on();
        }
        // A removed file is missing in the copy, or has the bytes that were copied before.
        if !copied.is_empty() {
            files.push((name, copied));
        }
    }
    files
}

#[test]
fn a_copy_of_an_open_database_is_refused_or_a_prefix() {
    const KEYS: u64 = 400;
    let (mut opened, mut refused, mut closed) = (0, 0, 0);
    for seed in 0..120 {
        let world = World::new(seed);
        let database = world.open(&tiny());
        let keyspace = database.default_keyspace();
        let mut puts = 0u64;
        let mut open = Some((database, keyspace));
        let put = |open: &Option<(Database, terrapin::Keyspace)>, puts: &mut u64| {
            if let Some((_, keyspace)) = open {
                keyspace.put(key(*puts % KEYS), value(*puts, 100)).unwrap();
                *puts += 1;
            }
        };
        (0..KEYS + 300).for_each(|_| put(&open, &mut puts));
        let pace = world.below(24);
        // Some copies continue after the end of the life.
        let mut left = match world.below(3) {
            0 => world.below(200),
            _ => u64::MAX,
        };
        let files = copy_live(&world, seed, &mut || {
            for _ in 0..world.below(1 + pace) {
                put(&open, &mut puts);
            }
            for _ in 0..world.below(1 + pace) {
                world.sim.step();
            }
            left = left.saturating_sub(1);
            if left == 0
                && let Some((database, keyspace)) = open.take()
            {
                drop(keyspace);
                database.close().unwrap();
                closed += 1;
            }
        });
        let copy = world_of(seed + 1000, &files);
        let mut last = None;
        // A crash in the open of a copy changes nothing, because the next open checks again.
        for try_ in 0..3 {
            let what = format!("seed {seed}, open {try_}");
            if try_ == 0 {
                copy.disk.die_at_call(1 + copy.below(40));
            }
            let outcome = copy.try_open(&tiny().read_only(try_ == 1));
            if !copy.disk.is_alive() {
                drop(outcome);
                copy.sim.kill();
                continue;
            }
            copy.disarm();
            match outcome {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                    assert_ne!(last, Some(true), "{what}: {error}");
                    last = Some(false);
                }
                Ok(database) => {
                    let found = read(&database).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let number =
                        |value: &Vec<u8>| u64::from_le_bytes(value[..8].try_into().unwrap());
                    let newest = found.values().map(number).max().unwrap_or(0);
                    let expected: Map = (0..=newest)
                        .map(|n| (key(n % KEYS), value(n, 100)))
                        .collect();
                    assert!(found == expected, "{what}: not a prefix");
                    assert_ne!(last, Some(false), "{what}");
                    last = Some(true);
                    drop(database);
                }
            }
        }
        match last {
            Some(true) => opened += 1,
            _ => refused += 1,
        }
        if let Some((database, keyspace)) = open {
            drop(keyspace);
            world.kill(database);
        }
    }
    let tried = format!("{opened} opened, {refused} refused, {closed} closed meanwhile");
    assert!(opened > 5 && refused > 5 && closed > 5, "{tried}");
}
