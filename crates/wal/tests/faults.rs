//! A disk that fails or is full: which faults poison the log, which only delay it, and that neither
//! kind loses appended records.

mod common;

use common::{KIND, Process, Random, assert_prefix, tiny};
use terrapin_base::{Error, ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Fault, FaultError, Op};
use terrapin_wal::{Append, LogOptions};

// Faults match the name under which a file was opened. A segment's handle keeps the spare's name,
// `spare-…`.

#[test]
fn a_failed_sync_poisons_the_log_and_keeps_it_readable() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process
        .create(LogOptions {
            segment_bytes: 1 << 20,
            ..tiny()
        })
        .unwrap();
    process.append(&log, 0).unwrap();
    log.sync(log.tail()).unwrap();
    process.append(&log, 1).unwrap();
    medium.inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of("spare-"));
    let synced = log.synced();
    let error = log.sync(log.tail()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    let text = error.to_string();
    let named = text.contains("Sync") && text.contains("log-0000000000000001");
    assert!(named, "the cause is named: {text}");
    // The log stays poisoned, although the disk would work again.
    let writes = medium.stats_total().writes;
    process.sim.settle();
    assert_eq!(
        log.try_append(KIND, &[]).err().unwrap().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(
        log.sync(log.tail()).unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(
        log.trim(log.tail()).unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(
        (log.synced(), medium.stats_total().writes),
        (synced, writes)
    );
    assert!(log.failed().is_some());
    assert!(log.request_sync(log.tail()).holds());
    medium.crash_process();
    let (_, records) = Process::new(&medium, 0).recover(tiny()).unwrap();
    assert_eq!(assert_prefix(&records), 2);
}

// Regression: the kernel reports a failed sync once, and its bytes stay readable until the power
// fails. Recovery trusted the readable bytes and began a new life behind records that were not
// durable. After a power cut, the log was refused as damaged.
#[test]
fn recovery_makes_durable_what_a_failed_sync_left_readable() {
    for seed in 0..40 {
        let medium = SimDisk::new(seed);
        let process = Process::new(&medium, seed);
        let log = process.create(tiny()).unwrap();
        let before = seed % 4;
        for index in 0..before {
            process.append(&log, index).unwrap();
            log.sync(log.tail()).unwrap();
        }
        let appended = before + 1 + seed % 7;
        for index in before..appended {
            process.append(&log, index).unwrap();
        }
        medium.inject(Fault::nth(1, FaultError::Io).on(Op::Sync).of("spare-"));
        assert!(log.sync(log.tail()).is_err());
        medium.crash_process();
        // The first recovery may fail in the same way.
        if seed % 3 == 0 {
            medium.inject(Fault::nth(1 + seed % 2, FaultError::Io).on(Op::Sync));
            assert!(Process::new(&medium, seed).recover(tiny()).is_err());
            medium.crash_process();
        }
        let (_, records) = Process::new(&medium, seed).recover(tiny()).unwrap();
        assert_eq!(assert_prefix(&records), appended);
        medium.crash_power(CrashMode::LoseUnsynced);
        let (_, records) = Process::new(&medium, seed).recover(tiny()).unwrap();
        assert_eq!(assert_prefix(&records), appended, "seed {seed}");
    }
}

#[test]
fn a_failed_write_of_the_drain_poisons_the_log() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.sim.settle();
    medium.inject(
        Fault::nth(2, FaultError::Io)
            .on(Op::Write)
            .of("spare-")
            .lasting(),
    );
    let mut count = 0;
    let error = loop {
        match process.append(&log, count) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 10_000);
    };
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    medium.clear_faults();
    medium.crash_process();
    let (_, records) = Process::new(&medium, 0).recover(tiny()).unwrap();
    assert_eq!(assert_prefix(&records), count);
}

#[test]
fn a_user_may_poison_the_log_and_the_first_error_stays() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let seen = log.clone();
    let failed =
        terrapin_base::Condition::new(log.failure_signal(), move || seen.failed().is_some());
    assert!(!failed.holds());
    log.poison(Error::internal("the page file did not sync"));
    log.poison(Error::internal("something else"));
    assert!(failed.holds());
    let error = log.try_append(KIND, &[]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("page file"), "{error}");
}

/// Appends, syncs and trims until the end, or until the first error that is not a full ring. Counts
/// the appended records in `appended`.
fn work(process: &Process, seed: u64, appended: &mut u64, synced: &mut u64) -> Result<(), Error> {
    let log = process.create(tiny())?;
    let mut random = Random(seed);
    for _ in 0..150 {
        match random.below(12) {
            0 => {
                log.sync(log.tail())?;
                *synced = *appended;
            }
            1 => drop(process.sim.settle()),
            _ => {
                process.append(&log, *appended)?;
                *appended += 1;
            }
        }
    }
    log.close()?;
    *synced = *appended;
    Ok(())
}

#[test]
fn a_call_that_fails_once_or_always_loses_nothing() {
    let calls = {
        let medium = SimDisk::new(7);
        work(&Process::new(&medium, 7), 7, &mut 0, &mut 0).unwrap();
        medium.io_count()
    };
    for error in [
        FaultError::Io,
        FaultError::NoSpace,
        FaultError::TooManyFiles,
    ] {
        for at in 1..=calls {
            for (lasting, power) in [(false, false), (true, false), (false, true), (true, true)] {
                let medium = SimDisk::new(7);
                let fault = Fault::nth(at, error);
                medium.inject(if lasting { fault.lasting() } else { fault });
                let (mut appended, mut synced) = (0, 0);
                let outcome = work(&Process::new(&medium, 7), 7, &mut appended, &mut synced);
                medium.clear_faults();
                match power {
                    true => medium.crash_power(CrashMode::RandomSubset),
                    false => medium.crash_process(),
                }
                let process = Process::new(&medium, 8);
                let none = process
                    .scan(tiny(), Lsn(4096))
                    .err()
                    .is_some_and(|e| e.kind() == ErrorKind::NotFound);
                if none {
                    assert!(outcome.is_err() && appended == 0);
                    drop(process.create(tiny()).unwrap());
                    continue;
                }
                // Recovery meets a fault too; then it runs again.
                medium.inject(Fault::nth(1 + at % 17, error));
                let _ = process.recover(tiny());
                medium.clear_faults();
                medium.crash_process();
                let (_, records) = Process::new(&medium, 9).recover(tiny()).unwrap();
                let there = assert_prefix(&records);
                let promised = if power { synced } else { appended };
                assert!(
                    there >= promised && there <= appended + 1,
                    "{there} of {appended}, {error:?} at {at}"
                );
            }
        }
    }
}

#[test]
fn a_largest_record_always_fits_after_a_wait() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let large = vec![3; log.record_bytes_max() as usize];
    let mut random = Random(5);
    for _ in 0..2000 {
        let bytes = match random.below(4) {
            0 => large.len(),
            1 => large.len() - random.below(9000) as usize,
            _ => random.below(5000) as usize,
        };
        if random.below(3) == 0 {
            drop(log.request_sync(log.tail()));
        }
        loop {
            match log.try_append(KIND, &[&large[..bytes]]).unwrap() {
                Append::Done(appended) => break log.publish(&appended),
                Append::Full(condition) => drop(process.env.wait(&condition).unwrap()),
            }
        }
        if random.below(50) == 0 {
            log.trim(log.synced()).unwrap();
        }
    }
    assert!(log.metrics().full > 100);
}

// Regression: each recovery copied again what an earlier one had copied and synced. Each
// interrupted recovery left another segment. Without room for another segment, it overwrote durable
// bytes.
#[test]
fn repeatedly_interrupted_recoveries_copy_once() {
    let segments = |process: &Process| {
        let names = process.disk.list().unwrap();
        names.iter().filter(|name| name.starts_with("log-")).count()
    };
    let mut copied = 0;
    for records in 1..120 {
        let medium = SimDisk::new(records);
        let process = Process::new(&medium, records);
        // The drain writes records but does not sync them.
        let options = LogOptions {
            sync_interval_ns: u64::MAX / 4,
            ..tiny()
        };
        let log = process.create(options).unwrap();
        for index in 0..records {
            process.append(&log, index).unwrap();
        }
        process.sim.settle();
        medium.crash_process();
        let process = Process::new(&medium, records);
        let before = segments(&process);
        // Another size adds a step behind the copy that can fail.
        let other = LogOptions {
            ring_bytes: 2 * tiny().ring_bytes,
            ..tiny()
        };
        let fault = Fault::nth(1, FaultError::Io)
            .on(Op::OpenRing)
            .of("ring-new")
            .lasting();
        medium.inject(fault);
        let counts = [(); 4].map(|()| {
            assert!(process.recover(other).is_err());
            segments(&process)
        });
        // The first recovery may have written the ring's records behind the others, where they are
        // not known to be synced. Later ones give back the segment that the copy replaces.
        assert!(
            counts[2] <= counts[1] && counts[3] <= counts[1],
            "{records}: {counts:?}"
        );
        copied += counts[1] - before;
        medium.clear_faults();
        let (_, found) = process.recover(other).unwrap();
        assert_eq!(assert_prefix(&found), records);
        let names = process.disk.list().unwrap();
        assert!(!names.iter().any(|name| name == "ring-new"));
    }
    assert!(copied > 10, "{copied}");
}
