//! Readers beside a writer, as handles on one simulated disk and as processes.
#![allow(clippy::disallowed_methods)] // processes run for a while

mod common;

use std::time::{Duration, Instant};

use common::{Directory, World, key, tiny};
use terrapin::{Database, Durability, ErrorKind, Options, Result};
use terrapin_base::Error;

const KEYS: u64 = 400;

/// Overwrites all records in one round. Records of one batch are of one round.
fn overwrite(database: &Database, round: u64) -> Result<()> {
    let keyspace = database.default_keyspace();
    for start in (0..KEYS).step_by(50) {
        let mut batch = database.batch();
        for number in start..start + 50 {
            batch.put(&keyspace, key(number), value(round, number));
        }
        database.write(&batch)?;
    }
    Ok(())
}

fn value(round: u64, number: u64) -> Vec<u8> {
    let bytes = 100 + (number % 7 * 30) as usize;
    let mut value = round.to_le_bytes().to_vec();
    value.resize(bytes, (round ^ number) as u8);
    value
}

/// The lowest and the highest round that a view holds. Each record must be whole, and each batch of
/// one round.
fn rounds(database: &Database) -> Result<(u64, u64)> {
    let keyspace = database.default_keyspace();
    let snapshot = database.snapshot()?;
    let mut all = vec![0; KEYS as usize];
    for number in 0..KEYS {
        let found = snapshot.get(&keyspace, key(number))?;
        let found = found.ok_or_else(|| Error::internal("a record is missing"))?;
        let round = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert_eq!(found, value(round, number), "record {number}");
        all[number as usize] = round;
    }
    let count = snapshot
        .iter(&keyspace)
        .try_fold(0, |n, found| found.map(|_| n + 1))?;
    assert_eq!(count, KEYS);
    assert!(
        all.chunks(50)
            .all(|batch| batch.iter().all(|&round| round == batch[0])),
        "{all:?}"
    );
    Ok((*all.iter().min().unwrap(), *all.iter().max().unwrap()))
}

fn reader(world: &World, options: &Options) -> Result<Database> {
    options.open_reader_on(world.env.clone(), world.disk.handle())
}

#[test]
fn a_reader_sees_one_moment_while_the_writer_reuses_space() {
    for seed in 0..4 {
        let world = World::new(seed);
        let options = tiny();
        let writer = world.open(&options);
        overwrite(&writer, 0).unwrap();
        let mut readers = Vec::new();
        for round in 1..40 {
            overwrite(&writer, round).unwrap();
            if world.below(3) == 0 {
                writer.checkpoint().unwrap();
            }
            if world.below(4) == 0 {
                let opened = reader(&world, &options).unwrap();
                assert!(opened.is_beside_writer());
                readers.push((round, opened));
            }
            // The first read of each reader, so its caches hold nodes only.
            if readers.len() > 3 {
                let at = world.below(readers.len() as u64) as usize;
                let (seen, old) = readers.swap_remove(at);
                assert_eq!(rounds(&old).unwrap(), (seen, seen));
                let new = old.refresh().unwrap();
                assert_eq!(rounds(&new).unwrap(), (round, round));
                old.close().unwrap();
            }
        }
        let report = terrapin::verify::verify_on(
            world.env.clone(),
            world.disk.handle(),
            &Default::default(),
        );
        let report = report.unwrap();
        assert!(
            report.is_sound() && report.beside_writer,
            "{:#?}",
            report.findings
        );
        drop(readers);
        writer.close().unwrap();
        world.verify();
    }
}

/// Without readers, or after the last one left, the file holds no more than before.
#[test]
fn the_space_of_a_reader_that_left_is_free_again() {
    let world = World::new(1);
    let writer = world.open(&tiny());
    overwrite(&writer, 0).unwrap();
    writer.checkpoint().unwrap();
    let opened = reader(&world, &tiny()).unwrap();
    for round in 1..10 {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
    }
    let kept = writer.stat().unwrap().space.retired;
    assert!(kept > 0, "the reader keeps what it sees");
    assert_eq!(rounds(&opened).unwrap(), (0, 0));
    opened.close().unwrap();
    world
        .env
        .wait(&terrapin_base::Condition::delay_until(
            world.env.now_ns() + 3_000_000_000,
        ))
        .unwrap();
    assert_eq!(writer.stat().unwrap().space.retired, 0);
    writer.close().unwrap();
}

#[test]
fn a_reader_that_is_too_old_is_overtaken_and_sees_nothing_wrong() {
    let world = World::new(2);
    let options = tiny().reader_age_max(Duration::from_nanos(1));
    let writer = world.open(&options);
    overwrite(&writer, 0).unwrap();
    writer.checkpoint().unwrap();
    let mut overtaken = 0;
    for round in 1..12 {
        let opened = reader(&world, &tiny()).unwrap();
        for later in 0..=world.below(4) {
            overwrite(&writer, 10 * round + later).unwrap();
            writer.checkpoint().unwrap();
        }
        match rounds(&opened) {
            Ok((low, high)) => assert!(low == high && low < 10 * round),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
                overtaken += 1;
            }
        }
    }
    assert!(overtaken > 0);
    assert_eq!(writer.stat().unwrap().space.retired, 0);
    writer.close().unwrap();
}

/// D10: a reader keeps no space that the writer is short of.
#[test]
fn a_full_disk_revokes_readers_and_accepts_deletes() {
    let world = World::new(3);
    let writer = world.open(&tiny());
    overwrite(&writer, 0).unwrap();
    writer.checkpoint().unwrap();
    let opened = reader(&world, &tiny()).unwrap();
    overwrite(&writer, 1).unwrap();
    writer.checkpoint().unwrap();
    world
        .disk
        .set_capacity(world.disk.used_bytes() + (16 << 10));
    let keyspace = writer.default_keyspace();
    let mut refused = None;
    for number in 0..20_000_u64 {
        if let Err(error) = keyspace.put(key(KEYS + number), [7; 300]) {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
    let error = rounds(&opened).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overtaken, "{error}");
    for number in 0..KEYS {
        keyspace.delete(key(number)).unwrap();
    }
    writer.checkpoint().unwrap();
    assert!(keyspace.get(key(0)).unwrap().is_none());
    world.disk.set_capacity(64 << 30);
    writer.close().unwrap();
}

/// The log stays while a reader copies it, and no longer.
#[test]
fn the_log_is_not_trimmed_while_a_reader_copies_it() {
    let world = World::new(4);
    let options = tiny().log_bytes_max(4 << 20);
    let writer = world.open(&options);
    overwrite(&writer, 0).unwrap();
    writer.checkpoint().unwrap();
    let take = || {
        let table = world.disk.handle().open_readers("readers", false).unwrap();
        let generation = table.current().unwrap();
        table.take(generation).unwrap()
    };
    let slot = take();
    let oldest = |world: &World| {
        let names = world.disk.handle().list().unwrap();
        names
            .into_iter()
            .find(|name| name.starts_with("log-"))
            .unwrap()
    };
    let held = oldest(&world);
    for round in 1..8 {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
    }
    assert_eq!(oldest(&world), held);
    slot.log_is_copied().unwrap();
    overwrite(&writer, 8).unwrap();
    writer.checkpoint().unwrap();
    assert_ne!(oldest(&world), held);
    // A reader that would make the log too long is revoked.
    let slow = take();
    for round in 9..200 {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
    }
    assert_eq!(
        slow.log_is_copied().unwrap_err().kind(),
        ErrorKind::Overtaken
    );
    writer.close().unwrap();
}

/// A reader of a writer that ended sees its moment until another writer changes it.
#[test]
fn writers_may_come_and_go() {
    let world = World::new(5);
    let options = tiny();
    let writer = world.open(&options);
    overwrite(&writer, 0).unwrap();
    writer.close().unwrap();
    let open = || reader(&world, &options).unwrap();
    let (alone, cold, late) = (open(), open(), open());
    assert!(alone.is_beside_writer(), "it lets writers in");
    let writer = world.open(&options);
    assert_eq!(rounds(&alone).unwrap(), (0, 0));
    for round in 1..10 {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
    }
    assert_eq!(rounds(&cold).unwrap(), (0, 0));
    // It dies without a checkpoint. The next one does not know the pins of the first.
    overwrite(&writer, 10).unwrap();
    drop(writer);
    let writer = world.open(&options);
    for round in 11..20 {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
    }
    assert_eq!(rounds(&late).unwrap_err().kind(), ErrorKind::Overtaken);
    assert_eq!(rounds(&late.refresh().unwrap()).unwrap(), (19, 19));
    writer.close().unwrap();
}

/// A reader that opens sees every write that was acknowledged before, wherever the log is.
#[test]
fn a_reader_sees_each_acknowledged_write() {
    for seed in 0..6 {
        let world = World::new(seed);
        let options = tiny();
        let writer = world.open(&options);
        let keyspace = writer.default_keyspace();
        for number in 0..400_u64 {
            let durability = [Durability::Process, Durability::Sync][world.below(2) as usize];
            let bytes = world.below(900) as usize;
            keyspace
                .put_with(number.to_be_bytes(), vec![7; bytes], durability)
                .unwrap();
            if world.below(10) == 0 {
                let opened = reader(&world, &options).unwrap();
                let seen = opened.default_keyspace().iter().count() as u64;
                assert_eq!(seen, number + 1, "seed {seed}");
            }
        }
        writer.close().unwrap();
    }
}

const CHILD: &str = "TERRAPIN_BESIDE_CHILD";

/// Reads again and again beside a writer, in a process of its own.
fn read_beside(path: &std::path::Path, until: Instant) -> Result<u64> {
    let options = Options::new().memory(8 << 20);
    let mut opened = options.open_reader(path)?;
    let (mut views, mut last) = (0, 0);
    while Instant::now() < until {
        for _ in 0..3 {
            match rounds(&opened) {
                Ok((low, high)) => {
                    // The batches of a round are separate. The writer may be between two of them.
                    assert!(
                        high - low <= 1 && low >= last,
                        "{low} to {high} after {last}"
                    );
                    last = low;
                    views += 1;
                }
                Err(error) if error.kind() == ErrorKind::Overtaken => break,
                Err(error) => return Err(error),
            }
        }
        opened = opened.refresh()?;
    }
    Ok(views)
}

#[test]
fn processes_read_beside_a_writer_that_reuses_space() {
    if let Some(path) = std::env::var_os(CHILD) {
        let until = Instant::now() + Duration::from_secs(2);
        let views = read_beside(path.as_ref(), until).unwrap();
        assert!(views > 0);
        return;
    }
    let directory = Directory::new("beside");
    let options = Options::new()
        .memory(8 << 20)
        .group_bytes(16 << 10)
        .reader_age_max(Duration::from_millis(100));
    let writer = options.open(&directory.0).unwrap();
    overwrite(&writer, 0).unwrap();
    writer.checkpoint().unwrap();
    let children: Vec<_> = (0..2)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["processes_read_beside", "--nocapture"])
                .env(CHILD, &directory.0)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut round = 1;
    let mut left = children;
    while !left.is_empty() {
        overwrite(&writer, round).unwrap();
        writer.checkpoint().unwrap();
        round += 1;
        let mut living = Vec::new();
        for mut child in left {
            match child.try_wait().unwrap() {
                None => living.push(child),
                Some(status) => {
                    let said = child.wait_with_output().unwrap();
                    let said = String::from_utf8_lossy(&said.stderr).into_owned();
                    assert!(status.success(), "{said}");
                }
            }
        }
        left = living;
    }
    writer.close().unwrap();
}
