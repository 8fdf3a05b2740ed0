//! Many lives that end soon. The disk space that they leave depends on their writes, not on their
//! number.

mod common;

use common::{DATABASE, Process, Random, assert_prefix};
use terrapin_base::{ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::LogOptions;

const SEGMENT: u64 = 1 << 20;
/// Most bytes that a life of one record leaves: a header, and the blocks of its record, filler and
/// marks.
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

/// Ends a life of one record in one of several ways.
fn end(medium: &SimDisk, random: &mut Random) {
    match random.below(4) {
        0 => medium.crash_power(CrashMode::ALL[random.below(8) as usize]),
        _ => medium.crash_process(),
    }
}

/// Runs lives one after the other, each with one synced record. After each life, `limit` gives the
/// most bytes that the files may take.
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

/// Regression: each life left a file of a whole segment's size.
#[test]
fn lives_of_one_record_leave_files_as_long_as_their_writes() {
    for seed in 0..20 {
        let medium = SimDisk::new(seed);
        // The life's own segment, the one before, which a recovery may have filled, and the spares.
        lives(&medium, 40, seed, |life| 5 * SEGMENT + life * LIFE);
    }
}

/// Regression: once the lives had used up the room for segments, every open failed.
#[test]
fn a_small_disk_takes_any_number_of_lives() {
    for seed in 0..10 {
        let medium = SimDisk::new(seed);
        medium.set_capacity(6 * SEGMENT);
        lives(&medium, 60, seed, |_| u64::MAX);
    }
}

/// An open on a full disk must leave the next open the room that it needs.
#[test]
fn opens_on_a_full_disk_use_up_no_space() {
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

/// The file of an earlier life may be as short as its counted content, but no shorter. The last
/// life's file must have its full length.
#[test]
fn a_file_shorter_than_its_counted_content_is_refused() {
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
