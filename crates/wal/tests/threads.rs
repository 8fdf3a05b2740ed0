//! The log on the real disk with real threads: two writers, a syncer and the drain at once, then a
//! second life.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::{DATABASE, KIND, append, collect};
use terrapin_base::sync::{AtomicBool, Ordering};
use terrapin_base::{Condition, Env, ErrorKind, Lsn};
use terrapin_disk::{Disk, RealDisk};
use terrapin_wal::{Append, Log, LogOptions, Recovery};

const OPTIONS: LogOptions = LogOptions {
    ring_bytes: 1 << 20,
    segment_bytes: 2 << 20,
    sync_interval_ns: 5_000_000,
    database_id: DATABASE,
    branch: DATABASE,
    known_branches: [DATABASE; 2],
};

fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("wal-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn open(env: &Env, path: &PathBuf) -> Arc<dyn Disk> {
    Arc::new(RealDisk::open(env.clone(), path, true).unwrap())
}

#[test]
fn two_writers_and_a_syncer_lose_nothing_and_keep_their_order() {
    const EACH: u64 = 12_000;
    let path = directory("stress");
    let env = Env::threads();
    let log = {
        let disk = open(&env, &path);
        Log::create(&env, &disk, OPTIONS).unwrap()
    };
    let job = env.spawn(log.drain_job()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (env, log) = (&env, &log);
                scope.spawn(move || {
                    let mut last = Lsn(0);
                    for index in 0..EACH {
                        let put = append(env, log, writer << 32 | index).unwrap();
                        assert!(put.lsn > last && log.visible() >= put.end);
                        last = put.lsn;
                        if index % 500 == 0 {
                            log.sync(put.end).unwrap();
                            assert!(log.synced() >= put.end);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut before = Lsn(0);
            while !over.load(Ordering::Acquire) {
                let (seen, boundary) = log.boundary(|lsn| lsn);
                assert!(seen >= before);
                before = seen;
                env.wait(&log.boundary_condition(&boundary)).unwrap();
                assert!(log.visible() >= boundary.publish_to);
                log.sync(boundary.lsn).unwrap();
            }
        });
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        over.store(true, Ordering::Release);
    });
    let metrics = log.metrics();
    assert_eq!(metrics.records, 2 * EACH);
    assert!(metrics.segments > 2 && metrics.syncs > 20, "{metrics:?}");
    log.stop();
    job.join().unwrap();
    drop(log);

    let env = Env::threads();
    let disk = open(&env, &path);
    let recovery = Recovery::scan(&env, &disk, OPTIONS, Lsn(4096)).unwrap();
    let (log, mut replay) = recovery.begin().unwrap();
    let records = collect(&mut replay).unwrap();
    assert_eq!(records.len() as u64, 2 * EACH);
    for writer in 0..2 {
        let own = records
            .iter()
            .filter(|(_, id)| id >> 32 == writer)
            .map(|(_, id)| id & 0xffff_ffff);
        assert!(own.eq(0..EACH));
    }
    let job = env.spawn(log.drain_job()).unwrap();
    append(&env, &log, 7).unwrap();
    log.close().unwrap();
    job.join().unwrap();
    drop((log, replay, disk));
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn an_idle_log_syncs_a_record_after_the_interval() {
    let path = directory("interval");
    let env = Env::threads();
    let disk = open(&env, &path);
    let log = Log::create(&env, &disk, OPTIONS).unwrap();
    let job = env.spawn(log.drain_job()).unwrap();
    for index in 0..5 {
        let put = append(&env, &log, index).unwrap();
        let deadline = env.now_ns() + 20_000_000_000;
        while log.synced() < put.end {
            assert!(env.now_ns() < deadline, "no sync before the deadline");
            env.wait(&terrapin_base::Condition::delay_until(
                env.now_ns() + 1_000_000,
            ))
            .unwrap();
        }
    }
    log.close().unwrap();
    job.join().unwrap();
    assert_eq!(
        log.try_append(KIND, &[])
            .map(|a| matches!(a, Append::Done(_)))
            .unwrap_err()
            .kind(),
        ErrorKind::Closed
    );
    drop((log, disk));
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_writer_sleeps_until_a_slow_earlier_one_has_published() {
    let path = directory("slow");
    let env = Env::threads();
    let log = {
        let disk = open(&env, &path);
        Log::create(&env, &disk, OPTIONS).unwrap()
    };
    let [slow, fast] = [1u64, 2].map(|record| {
        let Ok(Append::Done(appended)) = log.try_append(KIND, &[&record.to_le_bytes()]) else {
            panic!("an empty ring has room");
        };
        appended
    });
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::SeqCst);
            log.publish(&fast);
            done.store(true, Ordering::SeqCst);
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // Long enough for the writer to fall asleep.
        env.wait(&Condition::delay_until(env.now_ns() + 20_000_000))
            .unwrap();
        assert!(!done.load(Ordering::SeqCst) && log.visible() < slow.end);
        log.publish(&slow);
        assert_eq!(
            log.visible(),
            fast.end,
            "the fast one's mark is passed over"
        );
    });
    assert!(done.load(Ordering::SeqCst));
    log.stop();
    std::fs::remove_dir_all(&path).unwrap();
}
