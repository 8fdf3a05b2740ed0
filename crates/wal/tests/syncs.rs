//! Syncs of the log: on request, by the interval, when idle, and what each writes.

mod common;

use common::{KIND, Process, assert_prefix, tiny};
use terrapin_base::ErrorKind;
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_wal::{Append, Log, LogOptions};

#[test]
fn a_record_is_visible_before_its_sync_and_synced_on_request() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    process.sim.settle();
    let appended = process.append(&log, 0).unwrap();
    assert!(log.visible() >= appended.end && log.synced() < appended.end);
    let condition = log.request_sync(appended.end);
    assert!(!condition.holds());
    process.sim.settle();
    assert!(
        condition.holds() && log.synced() >= appended.end && log.synced().0.is_multiple_of(4096)
    );
    assert_eq!(log.metrics().syncs, 1);
    assert!(log.request_sync(appended.end).holds());
    assert!(log.failed().is_none());
}

#[test]
fn an_idle_log_syncs_its_records_and_their_mark_and_then_rests() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    let pass = || {
        process.sim.advance_ns(tiny().sync_interval_ns);
        process.sim.settle();
    };
    process.append(&log, 0).unwrap();
    process.sim.settle();
    assert_eq!(log.metrics().syncs, 0, "not before the interval");
    pass();
    assert_eq!(log.metrics().syncs, 1);
    pass();
    let (calls, tail) = (medium.io_count(), log.tail());
    assert_eq!(log.metrics().syncs, 2, "the mark");
    for _ in 0..100 {
        pass();
    }
    assert_eq!(
        (log.metrics().syncs, medium.io_count(), log.tail()),
        (2, calls, tail)
    );
    // The next record starts the clock again.
    process.append(&log, 1).unwrap();
    process.sim.settle();
    assert_eq!(log.metrics().syncs, 2);
    pass();
    assert_eq!(log.metrics().syncs, 3);
    // The sync of a record that follows soon covers the mark.
    process.append(&log, 2).unwrap();
    pass();
    assert_eq!(log.metrics().syncs, 4);
}

#[test]
fn a_second_sync_to_the_end_of_the_records_does_nothing() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process.create(tiny()).unwrap();
    assert_eq!(log.end(), log.tail());
    for index in 0..10 {
        let put = process.append(&log, index).unwrap();
        assert_eq!(log.end(), put.end);
        log.sync(log.end()).unwrap();
        assert!(log.synced() >= put.end);
        process.sim.settle();
        let (calls, tail) = (medium.io_count(), log.tail());
        assert!(tail > log.synced(), "a mark");
        for _ in 0..100 {
            log.sync(log.end()).unwrap();
            process.sim.settle();
        }
        assert_eq!((medium.io_count(), log.tail()), (calls, tail));
        assert_eq!(log.metrics().syncs, index + 1);
    }
}

#[test]
fn consecutive_syncs_write_each_block_once() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = process
        .create(LogOptions {
            segment_bytes: 1 << 20,
            ..tiny()
        })
        .unwrap();
    process.sim.settle();
    medium.record_trace(true);
    // In the first segment, an LSN equals the offset in the file.
    let (mut written_to, mut ahead_to, mut ahead) = (4096, 4096, 0);
    for index in 0..60 {
        let appended = process.append(&log, index).unwrap();
        if index % 3 > 0 {
            continue;
        }
        log.sync(appended.end).unwrap();
        for event in medium.take_trace() {
            if event.op != terrapin_disk::sim::Op::Write {
                continue;
            }
            let end = event.offset + event.bytes;
            if written_to < log.synced().0 {
                assert_eq!(
                    event.offset, written_to,
                    "records' blocks go in order, each once"
                );
                written_to = end;
            } else {
                assert_eq!(
                    event.offset,
                    written_to.max(ahead_to),
                    "zeros, too, behind them"
                );
                ahead += event.bytes;
                ahead_to = end;
            }
        }
    }
    assert_eq!(written_to, log.synced().0);
    assert!(written_to > 4096 + 20 * 4096);
    assert!(ahead >= 5 * 4096 && ahead_to <= 2 * written_to);
    assert_eq!(ahead, log.metrics().ahead_bytes);
}

#[test]
fn small_syncs_write_zeros_ahead_in_new_files_only() {
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(tiny()).unwrap();
    let mut ahead = Vec::new();
    for index in 0..600 {
        let put = process.append(&log, index).unwrap();
        log.sync(put.end).unwrap();
        log.trim(put.lsn).unwrap();
        ahead.push(log.metrics().ahead_bytes);
    }
    assert!(log.metrics().segments > 100);
    assert!(ahead[0] > 0);
    assert!(ahead[599] <= 4 * (16 << 10), "{ahead:?}");
    assert_eq!(ahead[599], ahead[100]);
}

#[test]
fn large_syncs_and_unrequested_syncs_write_no_zeros_ahead() {
    let options = LogOptions {
        ring_bytes: 256 << 10,
        segment_bytes: 1 << 20,
        ..tiny()
    };
    let process = Process::new(&SimDisk::new(1), 0);
    let log = process.create(options).unwrap();
    let append = |bytes: usize| {
        let Append::Done(appended) = log.try_append(KIND, &[&vec![1; bytes]]).unwrap() else {
            panic!("full")
        };
        log.publish(&appended);
        appended.end
    };
    let end = append(100);
    process.sim.settle();
    assert!(log.synced() < end);
    process.sim.advance_ns(options.sync_interval_ns);
    process.sim.settle();
    assert!(log.synced() >= end);
    log.sync(append(40_000)).unwrap();
    assert_eq!(log.metrics().ahead_bytes, 0);
    log.sync(append(10_000)).unwrap();
    assert_eq!(log.metrics().ahead_bytes, 12 << 10);
}

/// Regression: a stop did not sync the records of the last interval. The process may live on, and a
/// power cut lost them seconds later.
#[test]
fn a_stop_syncs_the_rest_and_ends_the_job() {
    let medium = SimDisk::new(1);
    let process = Process::new(&medium, 0);
    let log = Log::create(&process.env, &process.disk, tiny()).unwrap();
    let job = process.env.spawn(log.drain_job()).unwrap();
    for index in 0..100 {
        process.append(&log, index).unwrap();
    }
    let end = log.tail();
    log.stop();
    job.join().unwrap();
    assert!(log.synced() >= end);
    assert_eq!(
        log.try_append(KIND, &[]).err().unwrap().kind(),
        ErrorKind::Closed
    );
    assert_eq!(log.synced(), log.tail(), "the mark, too");
    medium.crash_power(CrashMode::LoseUnsynced);
    let process = Process::new(&medium, 0);
    let (log, records) = process.recover(tiny()).unwrap();
    assert_eq!(assert_prefix(&records), 100);
    // A log without records has nothing to sync.
    let syncs = medium.stats_total().syncs;
    log.stop();
    process.sim.settle();
    assert_eq!(medium.stats_total().syncs, syncs);
}

/// Regression: the interval's clock started only once the drain had caught up. That never happens
/// while writers are faster than the disk.
#[test]
fn the_interval_holds_while_the_drain_never_catches_up() {
    let process = Process::new(&SimDisk::new(1), 0);
    let options = LogOptions {
        segment_bytes: 4 << 20,
        ..tiny()
    };
    let log = Log::create(&process.env, &process.disk, options).unwrap();
    let mut drain = log.drain_job();
    let start = log.synced();
    for _ in 0..100 {
        while let Append::Done(appended) = log.try_append(KIND, &[&[7; 1000]]).unwrap() {
            log.publish(&appended);
        }
        process.sim.advance_ns(options.sync_interval_ns);
        let _ = drain.step();
    }
    assert!(log.synced() > start);
}
