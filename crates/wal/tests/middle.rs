//! Damage in the middle of the last life: a record that was synced is refused, never taken for a
//! torn tail, however the process ended.

mod common;

use common::{DATABASE, Process, collect, tiny};
use terrapin_base::{Error, ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::LogOptions;

const BLOCK: u64 = 4096;
const FIRST: &str = "log-0000000000000001";

/// One segment holds everything, and the ring a tenth of it.
const OPTIONS: LogOptions = LogOptions {
    ring_bytes: 64 << 10,
    segment_bytes: 1 << 20,
    sync_interval_ns: 1_000_000_000,
    database_id: DATABASE,
    branch: DATABASE,
    known_branches: [DATABASE; 2],
};

/// Appends records, syncs them once at the end, and lets some time pass. The interval never ends
/// before that sync, so the log's only mark is that one's.
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

/// The error that a scan gives, if it does not give all of so many records.
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
    // A record may begin a few blocks in front of the damage.
    let offset: u64 = of("offset").parse().unwrap();
    assert!(offset < at + BLOCK && at < offset + 20_000, "{error}");
}

/// The mark of the last sync lay in the ring, far behind the hole: it was looked for within a
/// ring's length of the hole only.
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
        // What the ring has a second copy of is mended.
        let alone = end.0.saturating_sub(OPTIONS.ring_bytes) / (3 * BLOCK);
        assert!(refused >= alone.saturating_sub(2), "{refused} of {alone}");
    }
}

/// The mark of the last sync was written with the next one: a power cut took it with the ring,
/// however long the store had been idle.
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
        // All but the block of the mark itself, which covers no record.
        assert!(refused + 2 >= (end.0 - BLOCK) / BLOCK, "{refused} {end:?}");
    }
}

/// A log that is dropped syncs its records, and then their mark: the process may live on for long.
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

/// Everything fits together in an older copy of a log file: only the ring knows better.
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

/// The counterexample to a rule that takes all that stands behind a hole for a proof of damage:
/// nothing was synced, the kernel wrote the whole ring back, and of the drained blocks the power
/// cut took the first ones.
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

/// Fillers and marks alone must not lead to another sync, nor a mark to another mark.
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
        // A change of segments syncs what is full, too.
        assert!((2..=4).contains(&(syncs - before)), "{before} {syncs}");
        assert_eq!(log.synced(), tail, "the mark is durable, and none follows");
        process.sim.advance_ns(1 << 40);
        process.sim.settle();
        assert_eq!((calls, tail), (medium.io_count(), log.tail()));
    }
}
