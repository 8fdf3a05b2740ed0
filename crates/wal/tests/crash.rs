//! Crashes of the log: the process dies or the power fails at every call, also during recovery and
//! over several lives. Each time the recovered records must be a prefix of the appended ones. No
//! record is lost that had to survive, and none appears that was never appended.

mod common;

use common::{Process, Random, append, collect, tiny};
use terrapin_base::{Lsn, Result};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

/// What the test knows about the log, independent of the process.
#[derive(Default)]
struct Truth {
    /// All records that may exist, in order. Each names the life that appended it, so no record
    /// passes for another.
    ids: Vec<u64>,
    /// LSNs of the acknowledged records.
    lsns: Vec<Lsn>,
    /// Number of records that must survive the death of the process, and number that must survive a
    /// power cut.
    acknowledged: usize,
    synced: usize,
    /// Index of the first record that is still needed.
    needed: usize,
    needed_from: Option<Lsn>,
    created: bool,
    lives: u64,
}

impl Truth {
    fn power_failed(&mut self) {
        self.acknowledged = self.synced;
    }

    /// Compares the recovered records with the truth, and continues from them.
    fn check(&mut self, records: &[(Lsn, u64)]) {
        let there = self.needed + records.len();
        assert!(
            there >= self.acknowledged,
            "{there} records, {} were acknowledged",
            self.acknowledged
        );
        assert!(there <= self.ids.len(), "records that were never appended");
        for (at, (lsn, id)) in records.iter().enumerate() {
            let at = self.needed + at;
            assert_eq!(*id, self.ids[at], "record {at} is another");
            if let Some(known) = self.lsns.get(at) {
                assert_eq!(lsn, known, "record {at} moved");
            }
        }
        self.ids.truncate(there);
        self.lsns.truncate(self.needed);
        self.lsns.extend(records.iter().map(|(lsn, _)| *lsn));
        // Recovery makes what it accepts durable.
        self.acknowledged = there;
        self.synced = there;
    }
}

/// Runs one life: recovery, then work until the end or until the planned death.
fn live(medium: &SimDisk, truth: &mut Truth, seed: u64, operations: u64) -> Result<()> {
    let mut random = Random(seed);
    let process = Process::new(medium, seed);
    truth.lives += 1;
    let log = if truth.created {
        let (log, records) =
            process.recover_from(tiny(), truth.needed_from.unwrap_or(Lsn(4096)))?;
        // A recovery is complete when `begin` has returned. If the process had died by then, the
        // replay above would have failed.
        truth.check(&records);
        log
    } else {
        let log = process.create(tiny())?;
        truth.created = true;
        log
    };
    for _ in 0..operations {
        match random.below(16) {
            0 => {
                let upto = truth.ids.len();
                log.sync(log.tail())?;
                if medium.is_alive() {
                    truth.synced = upto;
                }
            }
            1 if truth.synced > truth.needed + 4 => {
                // Like a checkpoint, trim below the synced LSN only.
                let needed =
                    truth.needed + random.below((truth.synced - truth.needed) as u64) as usize;
                truth.needed = needed;
                truth.needed_from = Some(truth.lsns[needed]);
                log.trim(truth.lsns[needed])?;
            }
            2 => process.sim.advance_ns(tiny().sync_interval_ns / 2),
            3..=5 => drop(process.sim.step()),
            _ => {
                let id = truth.lives << 32 | truth.ids.len() as u64;
                truth.ids.push(id);
                let put = append(&process.env, &log, id)?;
                if medium.is_alive() {
                    truth.acknowledged = truth.ids.len();
                    truth.lsns.push(put.lsn);
                }
            }
        }
    }
    if random.below(2) == 0 {
        log.close()?;
        if medium.is_alive() {
            truth.synced = truth.ids.len();
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum End {
    Process,
    Power(CrashMode),
}

fn crash(medium: &SimDisk, truth: &mut Truth, end: End) {
    match end {
        End::Process => medium.crash_process(),
        End::Power(mode) => {
            medium.crash_power(mode);
            truth.power_failed();
        }
    }
}

/// The medium after a life that ends without a crash.
fn medium_of(seed: u64, operations: u64) -> SimDisk {
    let medium = SimDisk::new(seed);
    live(&medium, &mut Truth::default(), seed, operations).unwrap();
    medium
}

/// Number of disk calls of such a life.
fn calls_of(seed: u64, operations: u64) -> u64 {
    medium_of(seed, operations).io_count()
}

/// Dies at call `at` of the first life, then a few times during the recoveries after it. Then runs
/// another life and recovers a last time.
fn die_at(seed: u64, at: u64, end: End, operations: u64) {
    let medium = SimDisk::new(seed);
    let mut truth = Truth::default();
    medium.die_at_call(at);
    let outcome = live(&medium, &mut truth, seed, operations);
    assert!(outcome.is_ok() || !medium.is_alive(), "{outcome:?}");
    crash(&medium, &mut truth, end);
    let mut random = Random(seed ^ at);
    for again in 0..3 {
        medium.die_at_call(1 + random.below(14));
        let outcome = live(&medium, &mut truth, random.next(), 4);
        assert!(
            outcome.is_ok() || !medium.is_alive(),
            "recovery {again} after {end:?} at call {at} of {seed}: {outcome:?}"
        );
        crash(&medium, &mut truth, end);
    }
    for _ in 0..2 {
        medium.die_at_call(u64::MAX);
        live(&medium, &mut truth, random.next(), 30)
            .unwrap_or_else(|e| panic!("{end:?} at call {at} of {seed}: {e}"));
        crash(&medium, &mut truth, end);
    }
}

const OPERATIONS: u64 = 120;

#[test]
fn a_death_at_any_call_loses_no_appended_record() {
    for seed in 0..20 {
        for at in 1..=calls_of(seed, OPERATIONS) {
            die_at(seed, at, End::Process, OPERATIONS);
        }
    }
}

#[test]
fn a_death_within_a_store_to_the_ring_loses_nothing_before_it() {
    for seed in 0..8 {
        for at in 1..=medium_of(seed, OPERATIONS).ring_writes() {
            let medium = SimDisk::new(seed);
            let mut truth = Truth::default();
            medium.die_at_ring_write(at);
            let outcome = live(&medium, &mut truth, seed, OPERATIONS);
            assert!(!medium.is_alive(), "{outcome:?}");
            medium.crash_process();
            live(&medium, &mut truth, seed + at, 20).unwrap();
            medium.crash_process();
            live(&medium, &mut truth, seed, 0).unwrap();
        }
    }
}

#[test]
fn a_power_cut_at_any_call_loses_no_synced_record() {
    for mode in CrashMode::ALL {
        for seed in 10..20 {
            for at in 1..=calls_of(seed, OPERATIONS) {
                die_at(seed, at, End::Power(mode), OPERATIONS);
            }
        }
    }
}

#[test]
fn lives_that_end_in_all_ways_in_turn_lose_nothing() {
    for seed in 0..1000 {
        let medium = SimDisk::new(seed);
        let mut truth = Truth::default();
        let mut random = Random(seed);
        for life in 0..12 {
            let calls = 1 << (3 + random.below(6));
            medium.die_at_call(1 + random.below(calls));
            let outcome = live(&medium, &mut truth, random.next(), 150);
            assert!(
                outcome.is_ok() || !medium.is_alive(),
                "life {life} of {seed}: {outcome:?}"
            );
            let end = match random.below(3) {
                0 => End::Power(CrashMode::ALL[random.below(4) as usize]),
                _ => End::Process,
            };
            crash(&medium, &mut truth, end);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = || {
        let medium = SimDisk::new(5);
        live(&medium, &mut Truth::default(), 5, 300).unwrap();
        medium.trace_hash()
    };
    assert_eq!(run(), run());
}

#[test]
fn each_further_recovery_replays_the_same_records() {
    let medium = SimDisk::new(3);
    let mut truth = Truth::default();
    live(&medium, &mut truth, 4, 200).unwrap();
    medium.crash_process();
    let mut last = None;
    for _ in 0..5 {
        let process = Process::new(&medium, 0);
        let recovery = process
            .scan(tiny(), truth.needed_from.unwrap_or(Lsn(4096)))
            .unwrap();
        let (log, mut replay) = recovery.begin().unwrap();
        let records = collect(&mut replay).unwrap();
        assert!(!records.is_empty());
        assert_eq!(last.get_or_insert_with(|| records.clone()), &records);
        assert_eq!(log.tail(), log.synced());
        medium.crash_power(CrashMode::RandomSubset);
    }
}
