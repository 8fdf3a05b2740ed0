//! Many lives that end soon: what they leave on the disk follows from what they wrote, not from how
//! many they were.

mod common;

use common::{DATABASE, Process, Random, assert_prefix};
use terrapin_base::{ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::LogOptions;

const SEGMENT: u64 = 1 << 20;
/// What a life of one record leaves at most: a header, and the blocks of its record, its filler and
/// its marks.
const LIFE: u64 = 8 * 4096;

const OPTIONS: LogOptions = LogOptions {
    ring_bytes: 64 << 10,
    segment_bytes: SEGMENT,
    sync_interval_ns: 1_000_000,
    database_id: DATABASE,
    branch: DATABASE,
    known_branches: [DATABASE; 2],
};

/// Bytes of the log's files, without the ring.
fn file_bytes(process: &Process, medium: &SimDisk) -> u64 {
    let names = process.disk.list().unwrap();
    let files = names.iter().filter(|name| !name.starts_with("ring"));
    files
        .map(|name| medium.content(name).unwrap().len() as u64)
        .sum()
}

/// How a life of one record ends.
fn end(medium: &SimDisk, random: &mut Random) {
    match random.below(4) {
        0 => medium.crash_power(CrashMode::ALL[random.below(8) as usize]),
        _ => medium.crash_process(),
    }
}

/// Lives one after the other, each with a record that is synced; `limit` is asked after each for
/// what the files may take.
fn lives(medium: &SimDisk, count: u64, seed: u64, limit: impl Fn(u64) -> u64) {
    let mut random = Random(seed);
    for life in 0..count {
        let process = Process::new(medium, seed + life);
        let log = if life == 0 {
            process.create(OPTIONS).unwrap()
        } else {
            let (log, records) = process
                .recover(OPTIONS)
                .unwrap_or_else(|e| panic!("life {life} of seed {seed}: {e}"));
            assert_eq!(assert_prefix(&records), life);
            log
        };
        let put = process.append(&log, life).unwrap();
        log.sync(put.end).unwrap();
        for _ in 0..random.below(3) {
            process.sim.advance_ns(OPTIONS.sync_interval_ns);
            process.sim.settle();
        }
        let bytes = file_bytes(&process, medium);
        assert!(bytes <= limit(life), "{bytes} bytes in life {life}");
        end(medium, &mut random);
    }
}

/// Each left a file of the segments' size.
#[test]
fn lives_of_one_record_leave_files_as_long_as_what_they_wrote() {
    for seed in 0..20 {
        let medium = SimDisk::new(seed);
        // The life's own segment, the one before it, which may be filled by a recovery, and spares.
        lives(&medium, 40, seed, |life| 5 * SEGMENT + life * LIFE);
    }
}

/// After as many lives as there was room for segments, no open succeeded any more.
#[test]
fn a_small_disk_takes_any_number_of_lives() {
    for seed in 0..10 {
        let medium = SimDisk::new(seed);
        medium.set_capacity(6 * SEGMENT);
        lives(&medium, 60, seed, |_| u64::MAX);
    }
}

/// What one open takes of a full disk, the next one must not miss.
#[test]
fn opens_on_a_full_disk_do_not_use_it_up() {
    let mut smaller = 0;
    for seed in 0..10 {
        let medium = SimDisk::new(seed);
        lives(&medium, 3, seed, |_| u64::MAX);
        let process = Process::new(&medium, 0);
        let (log, _) = process.recover(OPTIONS).unwrap();
        process.sim.settle();
        drop(log);
        medium.crash_process();
        medium.set_capacity(medium.used_bytes());
        for life in 3..30 {
            let process = Process::new(&medium, life);
            let (log, records) = process
                .recover(OPTIONS)
                .unwrap_or_else(|e| panic!("life {life} of seed {seed}: {e}"));
            assert_eq!(assert_prefix(&records), life);
            smaller += u64::from(log.segment_bytes() < SEGMENT);
            let put = process.append(&log, life).unwrap();
            log.sync(put.end).unwrap();
            medium.crash_process();
        }
    }
    assert!(smaller > 0, "the disk was full, and nothing gave way");
}

/// An earlier life's file may be as short as what counts of it, and no shorter; the last life's
/// file may not be short at all.
#[test]
fn a_file_that_is_shorter_than_what_counts_is_refused() {
    let medium = SimDisk::new(1);
    lives(&medium, 3, 1, |_| u64::MAX);
    let process = Process::new(&medium.fork(), 0);
    let recovery = process.scan(OPTIONS, Lsn(4096)).unwrap();
    assert_eq!(recovery.records_to_replay(), 3);
    let names = process.disk.list().unwrap();
    let names: Vec<_> = names.iter().filter(|n| n.starts_with("log-")).collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        let content = medium.content(name).unwrap();
        for bytes in [4096, content.len() - 4096] {
            let medium = medium.fork();
            medium.plant(name, &content[..bytes]);
            let error = Process::new(&medium, 0).scan(OPTIONS, Lsn(4096)).err();
            let error = error.unwrap_or_else(|| panic!("{name} of {bytes} bytes"));
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(&**name), "{error}");
        }
    }
}
