//! The log on a full disk, and its spare files: waits for space, recoveries, and reuse.

mod common;

use common::{KIND, Process, assert_prefix, payload, tiny};
use terrapin_base::{ErrorKind, Lsn};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{CrashMode, Media, MediaFault};
use terrapin_wal::{Log, LogOptions};

// Faults match the name under which a file was opened. A segment's handle keeps the spare's name,
// `spare-…`.

#[test]
fn a_full_disk_delays_the_log_until_there_is_space() {
    for alive in [true, false] {
        let medium = SimDisk::new(1);
        let process = Process::new(&medium, 0);
        let log = process.create(tiny()).unwrap();
        process.append(&log, 0).unwrap();
        process.sim.settle();
        medium.set_capacity(medium.used_bytes());
        let mut count = 1;
        let error = loop {
            match process.append(&log, count) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(log.failed().is_none() && log.shortage().is_some());
        let bytes: u64 = (0..count).map(|i| payload(i).len() as u64 + 9).sum();
        // The rest of the segment, the spare, and the ring less its reserve and one largest record.
        assert!(
            bytes > (32 << 10) + (64 << 10) - (16 << 10) - (20 << 10),
            "{bytes}"
        );
        assert_eq!(log.sync(log.tail()).unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(
            process.append(&log, count).unwrap_err().kind(),
            ErrorKind::NoSpace
        );
        if alive {
            medium.set_capacity(1 << 30);
            // The first append still finds the ring full and requests another search for space.
            while process.append(&log, count).is_err() {
                process.sim.settle();
            }
            count += 1;
            assert!(log.shortage().is_none());
            log.sync(log.tail()).unwrap();
            medium.crash_power(CrashMode::LoseUnsynced);
        } else {
            medium.crash_process();
            // Recovery on the full disk returns a clear error, and works once there is room.
            let error = Process::new(&medium, 0).recover(tiny()).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            medium.set_capacity(1 << 30);
        }
        let (_, records) = Process::new(&medium, 0).recover(tiny()).unwrap();
        assert_eq!(assert_prefix(&records), count);
    }
}

/// A log on a full disk that found no file for its next segment, and the number of its records.
fn without_space() -> (SimDisk, Process, Log, u64) {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.sim.settle();
    medium.set_capacity(0);
    let mut count = 0;
    while log.shortage().is_none() {
        process.append(&log, count).unwrap();
        process.sim.settle();
        count += 1;
    }
    (medium, process, log, count)
}

#[test]
fn the_drain_finds_new_space_without_a_request() {
    let (medium, process, log, _) = without_space();
    medium.set_capacity(1 << 30);
    process.sim.advance_ns(20_000_000);
    process.sim.settle();
    assert!(log.shortage().is_none());
}

// Regression: the drain tried to prepare a spare once per segment. The disk could fill again before
// the next change of segments, which then had no file.
#[test]
fn a_missing_spare_is_prepared_once_there_is_room() {
    for trimmed in [false, true] {
        let medium = SimDisk::new(1);
        let process = Process::new(&medium, 0);
        let log = process.create(tiny()).unwrap();
        process.sim.settle();
        medium.set_capacity(medium.used_bytes());
        let mut count = 0;
        while log.spares() > 0 {
            process.append(&log, count).unwrap();
            log.sync(log.tail()).unwrap();
            count += 1;
        }
        process.sim.settle();
        let segments = log.metrics().segments;
        medium.set_capacity(1 << 30);
        if trimmed {
            log.trim(Lsn(0)).unwrap();
        } else {
            process.sim.advance_ns(20_000_000);
            process.append(&log, count).unwrap();
            log.sync(log.tail()).unwrap();
            process.sim.settle();
        }
        assert_eq!((log.spares(), log.metrics().segments), (1, segments));
    }
}

#[test]
fn a_close_without_space_may_be_retried() {
    let (medium, _process, log, count) = without_space();
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(
        log.try_append(KIND, &[]).err().unwrap().kind(),
        ErrorKind::Closed
    );
    medium.set_capacity(1 << 30);
    log.close().unwrap();
    medium.crash_power(CrashMode::LoseUnsynced);
    let process = Process::new(&medium, 0);
    assert!(process.scan(tiny(), Lsn(4096)).unwrap().clean());
    let (_, records) = process.recover(tiny()).unwrap();
    assert_eq!(assert_prefix(&records), count);
}

#[test]
fn on_a_full_disk_the_old_ring_stays_in_use() {
    let medium = SimDisk::new(5);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.append(&log, 0).unwrap();
    process.append(&log, 1).unwrap();
    medium.crash_process();
    let larger = LogOptions {
        ring_bytes: 4 * tiny().ring_bytes,
        ..tiny()
    };
    // Room for the new life's segment, but not for the ring.
    medium.set_capacity(medium.used_bytes() + 2 * tiny().ring_bytes);
    let process = Process::new(&medium, 0);
    let (log, records) = process.recover(larger).unwrap();
    assert_eq!(assert_prefix(&records), 2);
    let kept = log.record_bytes_max();
    assert!(kept < tiny().ring_bytes / 4, "{kept}");
    process.append(&log, 2).unwrap();
    log.close().unwrap();
    medium.crash_process();
    medium.set_capacity(u64::MAX);
    let (log, records) = Process::new(&medium, 0).recover(larger).unwrap();
    assert_eq!(assert_prefix(&records), 3);
    assert!(
        log.record_bytes_max() > kept,
        "with room there is a new ring"
    );
}

/// Sizes of the spares in bytes.
fn spares(process: &Process, medium: &SimDisk) -> Vec<u64> {
    let names = process.disk.list().unwrap();
    let spares = names.iter().filter(|name| name.starts_with("spare-"));
    spares
        .map(|name| medium.content(name).unwrap().len() as u64)
        .collect()
}

/// Leaves a killed log with some spares of the tiny segments' size. Returns the LSN from which the
/// log is kept.
fn killed_with_spares(medium: &SimDisk) -> Lsn {
    let process = Process::new(medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..400 {
        process.append(&log, index).unwrap();
    }
    log.sync(log.tail()).unwrap();
    log.trim(log.tail()).unwrap();
    assert!(log.spares() >= 4, "{}", log.spares());
    medium.crash_process();
    log.oldest()
}

// Regression: the log counted an earlier life's smaller spares as usable. One spare that could not
// grow then blocked all others.
#[test]
fn a_new_life_resizes_spares_to_its_segments() {
    for blocks in [64, 5, 4, 3 * 4] {
        for room in [0, 100, 200, 1 << 20] {
            let medium = SimDisk::new(1);
            let first = killed_with_spares(&medium);
            let sized = LogOptions {
                segment_bytes: blocks << 12,
                ..tiny()
            };
            medium.set_capacity(medium.used_bytes() + (room << 12));
            let process = Process::new(&medium, 0);
            let (log, _) = process.recover_from(sized, first).unwrap();
            process.sim.settle();
            let found = spares(&process, &medium);
            assert_eq!(found.len(), log.spares());
            // Without room for one, the log continues in files as large as the existing ones.
            let blocks = if room == 0 { blocks.min(4) } else { blocks };
            let fit = found.iter().all(|&bytes| bytes == (blocks + 1) << 12);
            assert!(fit && !found.is_empty(), "{blocks} blocks: {found:?}");
            medium.set_capacity(medium.used_bytes());
            let count = log.spares();
            let mut index = 400;
            while log.spares() == count {
                process.append(&log, index).unwrap();
                log.sync(log.tail()).unwrap();
                index += 1;
            }
        }
    }
}

// Regression: with room for one more file only, recovery rewrote the end of the log in place, which
// may have been synced before. A power cut during that write could garble durable bytes.
#[test]
fn a_recovery_on_a_full_disk_never_risks_synced_bytes() {
    let mut folded = 0;
    for records in 1..40 {
        for at in 1.. {
            let medium = SimDisk::new(records << 8 | at);
            let process = Process::new(&medium, records);
            let log = process.create(tiny()).unwrap();
            for index in 0..records {
                process.append(&log, index).unwrap();
            }
            log.sync(log.tail()).unwrap();
            process.sim.settle();
            // The power cut takes the ring, and no mark on the disk reports the last sync yet.
            medium.crash_power(CrashMode::KeepAll);
            medium.plant("ring", &[0; 64 << 10]);
            medium.set_capacity(medium.used_bytes());
            let recover = || Process::new(&medium, records).recover(tiny());
            medium.die_at_call(at);
            let outcome = recover();
            if medium.is_alive() {
                // If the last segment is full and the ring holds more, one file is not enough.
                if let Ok((_, found)) = outcome {
                    assert_eq!(assert_prefix(&found), records);
                    folded += 1;
                }
                break;
            }
            medium.crash_power(CrashMode::GarbageInFlight);
            // Crash again in the next recovery. A recovery that has ended has used up the spare.
            for again in [1 + (at * 7 + records) % 16, u64::MAX] {
                medium.die_at_call(again);
                let outcome = recover();
                if medium.is_alive() {
                    let found = outcome.or_else(|error| {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        medium.set_capacity(u64::MAX);
                        recover()
                    });
                    let (_, found) = found.unwrap();
                    assert_eq!(assert_prefix(&found), records, "cut at call {at}");
                }
                medium.crash_power(CrashMode::GarbageInFlight);
            }
        }
    }
    assert!(folded > 25, "{folded}");
}

// Regression: a record that reached into the next segment was lost. Recovery then needed another
// file, although that segment held nothing.
#[test]
fn a_recovery_reuses_the_file_of_an_empty_last_segment() {
    let (mut recovered, mut refused) = (0, 0);
    for records in 1..200 {
        let medium = SimDisk::new(records);
        let process = Process::new(&medium, records);
        let log = process.create(tiny()).unwrap();
        for index in 0..records {
            process.append(&log, index).unwrap();
        }
        process.sim.settle();
        medium.crash_power(CrashMode::LoseUnsynced);
        medium.plant("ring", &[0; 64 << 10]);
        let process = Process::new(&medium, records);
        let names = process.disk.list().unwrap();
        for spare in names.iter().filter(|name| name.starts_with("spare-")) {
            process.disk.remove(spare).unwrap();
        }
        medium.set_capacity(medium.used_bytes());
        match process.recover(tiny()) {
            Ok((_, found)) => {
                assert!(assert_prefix(&found) <= records);
                recovered += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                refused += 1;
            }
        }
    }
    println!("{recovered} recovered, {refused} refused");
    assert!(recovered > 0);
}

/// Regression: the log searched for the removed spare forever and stood still, with an error about
/// a dropped keyspace.
#[test]
fn a_removed_spare_is_replaced() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.sim.settle();
    let names = process.disk.list().unwrap();
    let spares: Vec<_> = names.iter().filter(|n| n.starts_with("spare-")).collect();
    assert!(!spares.is_empty());
    for spare in spares {
        process.disk.remove(spare).unwrap();
    }
    for index in 0..400 {
        process.append(&log, index).unwrap();
    }
    log.sync(log.tail()).unwrap();
    medium.crash_process();
    let (_, records) = Process::new(&medium, 0).recover(tiny()).unwrap();
    assert_eq!(assert_prefix(&records), 400);
}

/// Regression: the open left the spare in place, so every later open took it and failed, until a
/// user removed the file.
#[test]
fn a_spare_that_takes_no_header_fails_one_open_at_most() {
    let medium = SimDisk::new(1);
    let first = killed_with_spares(&medium);
    let names = medium.handle().list().unwrap();
    let spares: Vec<_> = names.iter().filter(|n| n.starts_with("spare-")).collect();
    for spare in &spares {
        let bad = MediaFault::nth(1, Media::WriteError)
            .of(spare.as_str())
            .within(0..4096);
        medium.inject_media(bad.lasting());
    }
    let mut failed = 0;
    let records = loop {
        match Process::new(&medium, 0).recover_from(tiny(), first) {
            Ok((_, records)) => break records,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
        }
        medium.crash_process();
        failed += 1;
        assert!(failed <= spares.len());
    };
    assert!(failed > 0);
    assert!(records.last().is_none_or(|(_, index)| *index == 399));
}
