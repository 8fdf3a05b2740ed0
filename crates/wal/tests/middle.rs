//! Damage in the middle of the last life. Recovery refuses a damaged synced record and never takes
//! it for a torn tail, however the process ended.

mod common;

use common::{DATABASE, Process, collect, tiny};
use terrapin_base::{Error, ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::LogOptions;

const BLOCK: u64 = 4096;
const FIRST: &str = "log-0000000000000001";

/// Options with which one segment holds all records, and the ring a tenth of them.
const OPTIONS: LogOptions = LogOptions {
    ring_bytes: 64 << 10,
    segment_bytes: 1 << 20,
    sync_interval_ns: 1_000_000_000,
    database_id: DATABASE,
    branch: DATABASE,
    known_branches: [DATABASE; 2],
};

/// Appends records, syncs them once at the end, and lets time pass. The interval never ends before
/// that sync, so the log has only that sync's mark.
fn synced_once(medium: &SimDisk, records: u64, idle_ns: u64) {
    let process = Process::new(medium, 0);
    let log = process.create(OPTIONS).unwrap();
    for index in 0..records {
        process.append(&log, index).unwrap();
    }
    log.sync(log.end()).unwrap();
    process.sim.settle();
    assert_eq!(log.metrics().syncs, 1);
    process.sim.advance_ns(idle_ns);
    process.sim.settle();
}

fn zero_block(medium: &SimDisk, name: &str, at: u64) -> bool {
    let content = medium.content(name).unwrap();
    let block = &content[at as usize..(at + BLOCK) as usize];
    for (index, byte) in block.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        assert!(medium.corrupt(name, at + index as u64, *byte));
    }
    block.iter().any(|byte| *byte != 0)
}

fn empty_ring(medium: &SimDisk) {
    medium.plant("ring", &vec![0; OPTIONS.ring_bytes as usize]);
}

/// The error of a scan; `None` if the scan finds all `records` records.
fn refusal(medium: &SimDisk, records: u64) -> Option<Error> {
    let process = Process::new(medium, 0);
    match process.scan(OPTIONS, Lsn(BLOCK)) {
        Err(error) => Some(error),
        Ok(recovery) => {
            let found = collect(&mut recovery.read_only()).unwrap().len() as u64;
            assert_eq!(
                found, records,
                "records that were synced are gone in silence"
            );
            None
        }
    }
}

fn names_the_place(error: &Error, at: u64) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let of = |key: &str| {
        let found = error.context().iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!(of("file"), FIRST, "{error}");
    // A record may begin a few blocks before the damage.
    let offset: u64 = of("offset").parse().unwrap();
    assert!(offset < at + BLOCK && at < offset + 20_000, "{error}");
}

/// Regression: the last sync's mark was in the ring, far behind the hole. Recovery searched within
/// a ring's length of the hole only.
#[test]
fn a_bad_block_far_below_the_ring_is_refused_after_a_kill() {
    for records in [100, 400, 900] {
        let medium = SimDisk::new(1);
        synced_once(&medium, records, 0);
        medium.crash_process();
        let end = Process::new(&medium.fork(), 0)
            .scan(OPTIONS, Lsn(BLOCK))
            .unwrap()
            .end();
        let mut refused = 0;
        for at in (BLOCK..end.0).step_by(3 * BLOCK as usize) {
            let medium = medium.fork();
            if zero_block(&medium, FIRST, at)
                && let Some(error) = refusal(&medium, records)
            {
                names_the_place(&error, at);
                refused += 1;
            }
        }
        // Recovery mends records of which the ring has a second copy.
        let alone = end.0.saturating_sub(OPTIONS.ring_bytes) / (3 * BLOCK);
        assert!(refused >= alone.saturating_sub(2), "{refused} of {alone}");
    }
}

/// Regression: only the next sync wrote the last sync's mark. A power cut took the mark with the
/// ring, however long the store had been idle.
#[test]
fn a_bad_block_is_refused_after_an_idle_time_and_a_power_cut() {
    for mode in [CrashMode::LoseUnsynced, CrashMode::KeepAll] {
        let medium = SimDisk::new(1);
        synced_once(&medium, 400, 3 * OPTIONS.sync_interval_ns);
        medium.crash_power(mode);
        empty_ring(&medium);
        assert!(refusal(&medium.fork(), 400).is_none());
        let end = Process::new(&medium.fork(), 0)
            .scan(OPTIONS, Lsn(BLOCK))
            .unwrap()
            .end();
        let mut refused = 0;
        for at in (BLOCK..end.0).step_by(BLOCK as usize) {
            let medium = medium.fork();
            assert!(zero_block(&medium, FIRST, at));
            if let Some(error) = refusal(&medium, 400) {
                names_the_place(&error, at);
                refused += 1;
            }
        }
        // All blocks but that of the mark itself, which covers no record.
        assert!(refused + 2 >= (end.0 - BLOCK) / BLOCK, "{refused} {end:?}");
    }
}

/// A stopped log syncs its records and then their mark, because the process may live on for long.
#[test]
fn a_bad_block_is_refused_after_a_stop_and_a_power_cut() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(OPTIONS).unwrap();
    for index in 0..200 {
        process.append(&log, index).unwrap();
    }
    log.stop();
    process.sim.settle();
    medium.crash_power(CrashMode::LoseUnsynced);
    empty_ring(&medium);
    assert!(zero_block(&medium, FIRST, 16 * BLOCK));
    names_the_place(&refusal(&medium, 200).unwrap(), 16 * BLOCK);
}

/// An older copy of a log file is consistent in itself. Only the ring shows that more was synced.
#[test]
fn an_older_copy_of_the_log_file_is_refused_after_a_kill() {
    for older in [0, 1, 60, 399] {
        let medium = SimDisk::new(1);
        let process = Process::new(&medium, 0);
        let log = process.create(OPTIONS).unwrap();
        let mut copy = None;
        for index in 0..=400 {
            if index == older {
                log.sync(log.end()).unwrap();
                copy = medium.content(FIRST);
            }
            process.append(&log, index).unwrap();
        }
        log.sync(log.end()).unwrap();
        medium.crash_process();
        medium.plant(FIRST, &copy.unwrap());
        if let Some(error) = refusal(&medium, 401) {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(FIRST), "{error}");
        } else {
            assert_eq!(older, 399, "the ring has what follows");
        }
    }
}

/// The counterexample to the rule that sound records behind a hole prove damage. Nothing was
/// synced, and the kernel wrote the whole ring back. The power cut lost the first of the drained
/// blocks.
#[test]
fn sound_records_behind_a_hole_that_was_never_synced_are_a_torn_tail() {
    let mut cut = 0;
    for seed in 0..200 {
        let mode = CrashMode::ALL[seed as usize % CrashMode::ALL.len()];
        let medium = SimDisk::new(seed);
        let process = Process::new(&medium, seed);
        let log = process.create(OPTIONS).unwrap();
        let mut synced = 0;
        for index in 0..300 {
            process.append(&log, index).unwrap();
            if index == 20 {
                log.sync(log.end()).unwrap();
                synced = index + 1;
            }
        }
        process.sim.settle();
        medium.crash_power(mode);
        let process = Process::new(&medium, seed);
        let (_, records) = process.recover(OPTIONS).unwrap();
        let found = common::assert_prefix(&records);
        assert!(found >= synced, "{found} of {synced}, {mode:?}");
        cut += u64::from(found < 300);
    }
    assert!(cut > 50, "{cut}");
}

/// Fillers and marks alone must not cause another sync, nor a mark another mark.
#[test]
fn an_idle_log_makes_the_last_mark_durable_and_rests() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let mut index = 0;
    for round in 0..50 {
        for _ in 0..=round % 3 {
            process.append(&log, index).unwrap();
            index += 1;
        }
        let before = log.metrics().syncs;
        for _ in 0..20 {
            process.sim.advance_ns(tiny().sync_interval_ns);
            process.sim.settle();
        }
        let (syncs, calls, tail) = (log.metrics().syncs, medium.io_count(), log.tail());
        // A change of segments also syncs the full segment.
        assert!((2..=4).contains(&(syncs - before)), "{before} {syncs}");
        assert_eq!(log.synced(), tail, "the mark is durable, and none follows");
        process.sim.advance_ns(1 << 40);
        process.sim.settle();
        assert_eq!((calls, tail), (medium.io_count(), log.tail()));
    }
}
