//! The log without faults: appending, publishing, boundaries, syncing, trimming, closing.

mod common;

use common::{KIND, Process, Random, append, assert_prefix, collect, tiny};
use terrapin_base::{Error, ErrorKind, Lsn};
use terrapin_disk::sim::CrashMode;
use terrapin_disk::{AlignedBuf, OpenOptions, SimDisk};
use terrapin_wal::{Append, Log, LogOptions, RECORD_HEADER_BYTES};

const BLOCK: u64 = 4096;

#[test]
fn a_closed_log_replays_all_records_over_many_rings_and_segments() {
    let medium = SimDisk::new(1);
    let mut count = 0;
    for life in 0..4 {
        let process = Process::new(&medium, life);
        let log = if life == 0 {
            process.create(tiny()).unwrap()
        } else {
            let (log, records) = process.recover(tiny()).unwrap();
            assert_eq!(assert_prefix(&records), count);
            log
        };
        assert_eq!(u64::from(log.incarnation().0), life + 1);
        for _ in 0..400 {
            process.append(&log, count).unwrap();
            count += 1;
        }
        log.close().unwrap();
        log.close().unwrap();
        assert_eq!(
            log.try_append(KIND, &[]).err().unwrap().kind(),
            ErrorKind::Closed
        );
        process.sim.settle();
        medium.crash_process();
        let process = Process::new(&medium, life);
        let recovery = process.scan(tiny(), Lsn(4096)).unwrap();
        assert!(recovery.clean());
        assert_eq!(recovery.first(), Lsn(4096));
    }
    assert!(count * 100 > 2 * tiny().ring_bytes);
}

#[test]
fn recovery_needs_the_ring_unless_the_log_was_closed() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..50 {
        process.append(&log, index).unwrap();
    }
    let dirty = medium.fork();
    log.close().unwrap();
    medium.crash_process();

    let process = Process::new(&medium, 0);
    process.disk.remove("ring").unwrap();
    // The new size takes effect in the same open.
    let (log, records) = process
        .recover(LogOptions {
            ring_bytes: 128 << 10,
            ..tiny()
        })
        .unwrap();
    assert_eq!(assert_prefix(&records), 50);
    assert_eq!(log.record_bytes_max(), (32 << 10) - 9);

    let process = Process::new(&dirty, 0);
    process.disk.remove("ring").unwrap();
    let error = process.scan(tiny(), Lsn(4096)).err().unwrap();
    assert!(error.to_string().contains("ring is missing"), "{error}");
}

#[test]
fn recovery_resizes_the_ring_without_a_close_too() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..300 {
        process.append(&log, index).unwrap();
    }
    medium.crash_process();
    for bytes in [256 << 10, 64 << 10] {
        let process = Process::new(&medium, 0);
        let (log, records) = process
            .recover(LogOptions {
                ring_bytes: bytes,
                ..tiny()
            })
            .unwrap();
        assert_eq!(assert_prefix(&records), 300);
        assert_eq!(log.record_bytes_max(), bytes / 4 - 9);
        medium.crash_process();
    }
}

#[test]
fn a_boundary_divides_records_and_waits_for_those_below() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let first = process.append(&log, 0).unwrap();
    let Append::Done(unpublished) = log.try_append(KIND, &[b"slow"]).unwrap() else {
        panic!("full")
    };
    let (seen, boundary) = log.boundary(|lsn| lsn);
    assert_eq!((seen, boundary.lsn), (unpublished.end, unpublished.end));
    assert!(!log.boundary_published(&boundary));
    assert_eq!(log.visible(), first.end);
    log.publish(&unpublished);
    assert!(log.boundary_published(&boundary) && log.boundary_condition(&boundary).holds());
    assert_eq!(log.visible(), unpublished.end);
    // The filler and the mark of a sync move the tail and need no publication.
    log.sync(log.tail()).unwrap();
    assert!(log.tail() > unpublished.end);
    // A boundary is below them, and a sync up to it adds nothing.
    let (_, boundary) = log.boundary(|_| ());
    assert_eq!(boundary.lsn, log.end());
    assert!(boundary.lsn <= log.synced() && boundary.lsn < log.tail());
    assert!(log.boundary_published(&boundary));
    let tail = log.tail();
    log.sync(boundary.lsn).unwrap();
    assert_eq!(log.tail(), tail);
    let after = append(&process.env, &log, 1).unwrap();
    assert!(after.lsn >= boundary.lsn);
}

/// Regression: a sync's filler may reach across a segment's end, and a change of segments syncs up
/// to that end first. So a boundary behind the filler did not survive a power cut. A mark that
/// ended in a new segment had the same fault.
#[test]
fn boundaries_never_decrease_and_synced_ones_survive_a_power_cut() {
    let mut boundaries_checked = 0;
    for (block, gap, more) in (2..8u64)
        .flat_map(|block| (0..32u64).map(move |gap| (block, gap)))
        .flat_map(|(block, gap)| [None, Some(1), Some(4)].map(|more| (block, gap, more)))
    {
        let medium = SimDisk::new(1);
        let process = Process::new(&medium, 0);
        let log = process.create(tiny()).unwrap();
        let fill = |upto: u64| {
            while log.tail().0 < upto {
                let left = upto - log.tail().0;
                let bytes = if left > 12_000 { 8_000 } else { left };
                let payload = vec![7; (bytes - RECORD_HEADER_BYTES) as usize];
                match log.try_append(KIND, &[&payload]).unwrap() {
                    Append::Done(appended) => log.publish(&appended),
                    Append::Full(_) => panic!("full"),
                }
            }
        };
        fill(block * 4096 - gap);
        let _synced = log.request_sync(log.tail());
        let mut last = Lsn(0);
        for step in 0..40 {
            if more == Some(step) {
                fill(log.tail().0 + 9 + gap);
                let _synced = log.request_sync(log.tail());
            }
            process.sim.step();
            let (_, boundary) = log.boundary(|_| ());
            assert!(
                last <= boundary.lsn,
                "{last} then {} at step {step} of {block} {gap} {more:?}",
                boundary.lsn
            );
            last = boundary.lsn;
            if log.synced() >= boundary.lsn && boundary.lsn > Lsn(4096) {
                boundaries_checked += 1;
                let left = medium.fork();
                left.crash_power(CrashMode::LoseUnsynced);
                Process::new(&left, 0)
                    .scan(tiny(), boundary.lsn)
                    .unwrap_or_else(|e| panic!("step {step} of {block} {gap} {more:?}: {e}"));
            }
        }
    }
    assert!(boundaries_checked > 1000, "{boundaries_checked}");
}

/// Regression: a boundary behind the filler of a close's sync was beyond the end that the next
/// recovery finds. A checkpoint at that boundary left a database that no open accepted.
#[test]
fn a_boundary_after_a_close_is_not_beyond_the_recovered_end() {
    for count in 0..40 {
        let medium = SimDisk::new(count);
        let process = Process::new(&medium, count);
        let log = process.create(tiny()).unwrap();
        let mut last = log.tail();
        for index in 0..count {
            last = process.append(&log, index).unwrap().end;
        }
        log.close().unwrap();
        let (seen, boundary) = log.boundary(|lsn| lsn);
        assert_eq!(seen, boundary.lsn);
        assert!(boundary.lsn > last && log.boundary_published(&boundary));
        assert!(log.tail() > boundary.lsn, "the sync has filled a block");
        medium.crash_process();
        let process = Process::new(&medium, count);
        let recovery = process.scan(tiny(), boundary.lsn).unwrap();
        assert!(recovery.clean());
        assert_eq!(
            (recovery.end(), recovery.records_to_replay()),
            (boundary.lsn, 0)
        );
    }
}

#[test]
fn an_append_beyond_a_limit_is_refused_and_takes_no_room() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let tail = log.tail();
    let max = log.record_bytes_max() as usize;
    let error = log.try_append(KIND, &[&vec![0; max], &[0]]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert_eq!(
        log.try_append(15, &[]).err().unwrap().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(log.tail(), tail);
    // Any number of largest records fits, although the drain must keep up.
    for _ in 0..20 {
        loop {
            match log.try_append(KIND, &[&vec![7; max]]).unwrap() {
                Append::Done(appended) => break log.publish(&appended),
                Append::Full(condition) => drop(process.env.wait(&condition).unwrap()),
            }
        }
    }
    for options in [
        LogOptions {
            ring_bytes: 32 << 10,
            ..tiny()
        },
        LogOptions {
            ring_bytes: 96 << 10,
            ..tiny()
        },
        LogOptions {
            ring_bytes: 2 << 30,
            ..tiny()
        },
        LogOptions {
            segment_bytes: 4096,
            ..tiny()
        },
    ] {
        let other = Process::new(&SimDisk::new(1), 0);
        assert_eq!(
            Log::create(&other.env, &other.disk, options)
                .err()
                .unwrap()
                .kind(),
            ErrorKind::InvalidArgument
        );
    }
}

/// Regression: writers of short records hold back by the ring's fill. They took the room for which
/// a long record waited.
#[test]
fn a_waiting_record_counts_in_the_ring_fill_until_it_ends_its_wait() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let payload = vec![7_u8; log.record_bytes_max() as usize];
    let total = log.record_bytes_max() + RECORD_HEADER_BYTES;
    let try_long = || log.try_append(KIND, &[&payload]).unwrap();
    let fill = || log.ring_fill().0;
    let waits = loop {
        assert_eq!(fill(), log.metrics().ring_used_bytes);
        match try_long() {
            Append::Done(appended) => log.publish(&appended),
            Append::Full(condition) => break condition,
        }
    };
    let used = log.metrics().ring_used_bytes;
    assert_eq!(fill(), used + total);
    let Append::Full(gives_up) = try_long() else {
        panic!("there was no room for the first")
    };
    assert_eq!(fill(), used + 2 * total);
    drop(gives_up);
    assert_eq!(fill(), used + total);
    assert!(!log.drained_to(used).holds());

    process.env.wait(&waits).unwrap();
    let Append::Done(appended) = try_long() else {
        panic!("it waited for room")
    };
    log.publish(&appended);
    drop(waits);
    assert_eq!(fill(), log.metrics().ring_used_bytes);

    let waits = loop {
        match try_long() {
            Append::Done(appended) => log.publish(&appended),
            Append::Full(condition) => break condition,
        }
    };
    log.poison(Error::internal("on purpose"));
    assert!(waits.holds() && log.try_append(KIND, &[&payload]).is_err());
    drop(waits);
    assert_eq!(fill(), log.metrics().ring_used_bytes);
}

#[test]
fn a_trim_gives_up_whole_segments_and_reuses_their_files() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let mut ends = Vec::new();
    for index in 0..600 {
        ends.push(process.append(&log, index).unwrap());
        if index % 50 == 49 {
            let keep_from = &ends[ends.len() - 20];
            log.sync(keep_from.lsn).unwrap();
            log.trim(keep_from.lsn).unwrap();
            assert!(log.oldest() <= keep_from.lsn);
        }
    }
    let metrics = log.metrics();
    assert!(metrics.segments > 12, "{metrics:?}");
    let files = process.disk.list().unwrap();
    assert!(files.len() < 16, "{files:?}");
    assert!(metrics.kept_bytes < 100 << 10);
    assert_eq!(metrics.records, 600);
    let needed = ends[ends.len() - 20].lsn;
    medium.crash_process();
    let process = Process::new(&medium, 0);
    let (_, records) = process.recover_from(tiny(), needed).unwrap();
    assert_eq!(records.len(), 20);
    assert_eq!(records[0], (needed, 580));
}

#[test]
fn a_log_that_begins_after_or_ends_before_what_is_needed_is_refused() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let appended: Vec<_> = (0..500).map(|i| process.append(&log, i).unwrap()).collect();
    log.sync(log.tail()).unwrap();
    log.trim(appended[400].lsn).unwrap();
    let tail = log.tail();
    medium.crash_process();
    let process = Process::new(&medium, 0);
    let error = process.scan(tiny(), appended[10].lsn).err().unwrap();
    assert!(error.to_string().contains("begins after"), "{error}");
    let error = process.scan(tiny(), Lsn(tail.0 + 1)).err().unwrap();
    assert!(error.to_string().contains("ends before"), "{error}");
    assert_eq!(process.scan(tiny(), tail).unwrap().records_to_replay(), 0);
    let other = LogOptions {
        database_id: 9,
        ..tiny()
    };
    let error = process.scan(other, tail).err().unwrap();
    assert!(error.to_string().contains("another database"), "{error}");
}

#[test]
fn a_read_only_replay_returns_the_same_records_and_writes_nothing() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..300 {
        process.append(&log, index).unwrap();
    }
    medium.crash_process();
    let process = Process::new(&medium, 0);
    let before = medium.stats_total();
    let recovery = process.scan(tiny(), Lsn(4096)).unwrap();
    assert_eq!(recovery.records_to_replay(), 300);
    let end = recovery.end();
    let mut replay = recovery.read_only();
    assert_eq!(assert_prefix(&collect(&mut replay).unwrap()), 300);
    assert_eq!((replay.position(), replay.end()), (end, end));
    let after = medium.stats_total();
    assert_eq!((before.writes, before.syncs), (after.writes, after.syncs));
}

#[test]
fn a_second_creation_is_refused_once_there_are_records() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    medium.crash_process();
    drop(log);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.append(&log, 0).unwrap();
    medium.crash_process();
    let process = Process::new(&medium, 0);
    assert_eq!(
        process.create(tiny()).err().unwrap().kind(),
        ErrorKind::AlreadyExists
    );
    let (_, records) = process.recover(tiny()).unwrap();
    assert_eq!(records.len(), 1);
}

/// Regression: each such life left a file of its own, which nothing returned. Opens that failed or
/// were killed during the replay filled the disk.
#[test]
fn lives_without_writes_leave_one_file_in_total() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    for index in 0..10 {
        process.append(&log, index).unwrap();
    }
    let segments = |process: &Process| {
        let names = process.disk.list().unwrap();
        names.iter().filter(|name| name.starts_with("log-")).count()
    };
    for life in 1..8 {
        match life % 2 {
            0 => medium.crash_process(),
            _ => medium.crash_power(CrashMode::KeepAll),
        }
        let process = Process::new(&medium, life);
        let (log, records) = process.recover(tiny()).unwrap();
        assert_eq!(assert_prefix(&records), 10);
        assert_eq!(u64::from(log.incarnation().0), life + 1);
        assert_eq!(segments(&process), 2);
    }
    // A life with writes keeps its file, and the next life takes another.
    for count in 10..13 {
        medium.crash_process();
        let process = Process::new(&medium, 9);
        let (log, records) = process.recover(tiny()).unwrap();
        assert_eq!(assert_prefix(&records), count);
        process.append(&log, count).unwrap();
        assert_eq!(segments(&process) as u64, count - 8);
    }
}

/// Regression: a segment's file holds older bytes behind the drained end. Recovery took these for
/// headers, and read what they asked for, once for each record that only the ring had.
#[test]
fn old_bytes_of_a_segment_cost_records_of_the_ring_no_reads() {
    const BYTES: u64 = 8 << 20;
    const COUNT: u64 = 500;
    let options = LogOptions {
        ring_bytes: 1 << 20,
        segment_bytes: BYTES,
        ..tiny()
    };
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(options).unwrap();
    process.append(&log, 0).unwrap();
    log.sync(log.tail()).unwrap();
    let drained = log.synced().0;
    for index in 1..COUNT {
        process.append(&log, index).unwrap();
    }
    medium.crash_process();

    // Most headers of such bytes ask for nothing, for up to half a KiB, or for half of the segment.
    let process = Process::new(&medium, 1);
    let mut random = Random(1);
    let mut old = AlignedBuf::zeroed((BYTES - 4 * BLOCK) as usize);
    old.iter_mut()
        .for_each(|byte| *byte = [0, 0, 2, 64][random.below(4) as usize]);
    let write = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let segment = process.disk.open("log-0000000000000001", write).unwrap();
    segment.write_at(&old, BLOCK + (drained - BLOCK)).unwrap();
    drop(segment);

    let before = medium.stats_total().read_bytes;
    let (_, records) = process.recover(options).unwrap();
    assert_eq!(assert_prefix(&records), COUNT);
    let read = medium.stats_total().read_bytes - before;
    assert!(read < 3 * BYTES, "{read}");
}

#[test]
#[should_panic(expected = "appended and not published")]
fn a_simulation_reports_a_record_that_is_never_published() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let _forgotten = log.try_append(KIND, &[]).unwrap();
    let _ = process.append(&log, 0);
}
