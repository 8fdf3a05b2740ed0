use terrapin_base::Env;
use terrapin_base::sync::{AtomicU64, Ordering};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::{Fault, FaultError, Op};
use terrapin_pages::{DATA_FILE, PAGES_START};

use super::*;
use crate::{Durability, Options};

/// The log ends before the jobs. A checkpoint that met the ended log used to report to every
/// listener that the log was closed.
#[test]
fn leaving_a_database_during_a_checkpoint_reports_no_failure() {
    let mut ended = 0;
    for steps in 0..200 {
        let (database, sim) = Options::small().open_simulated();
        sim.set_breathing(false);
        sim.settle();
        database.default_keyspace().put("a", "1").unwrap();
        let told = Arc::new(AtomicU64::new(0));
        let counts = told.clone();
        database.on_background_error(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
        });
        let core = database.core();
        let log = core.log().unwrap();
        core.schedule.ask(log.end());
        for _ in 0..steps {
            sim.step();
        }
        // The end of the last handle does this first.
        drop(core.health.close());
        log.stop();
        sim.settle();
        ended += core.counters.checkpoints.get();
        let told = told.load(Ordering::Relaxed);
        assert_eq!(told, 0, "after {steps} steps");
        drop(database);
    }
    assert!((1..200).contains(&ended), "{ended} checkpoints committed");
}

/// A close ended with the error of an older checkpoint. Writes that are in no log were lost,
/// although the next checkpoint would have written them.
#[test]
fn a_checkpoint_that_began_earlier_does_not_fail_a_later_request() {
    let mut under_way = 0;
    for steps in 0..80 {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = Options::small().open_on(env, disk.handle()).unwrap();
        sim.set_breathing(false);
        sim.settle();
        let keyspace = database.default_keyspace();
        keyspace.put_with("a", "1", Durability::None).unwrap();
        let core = database.core();
        disk.inject(Fault::nth(1, FaultError::Io).on(Op::Write).of(DATA_FILE));
        core.schedule.ask(core.log().unwrap().end());
        for _ in 0..steps {
            sim.step();
        }
        let is_under_way = core.schedule.sealed_count() > 0 && core.schedule.failures() == 0;
        let closed = database.close();
        if is_under_way {
            closed.unwrap_or_else(|e| panic!("after {steps} steps: {e}"));
            under_way += 1;
        }
    }
    assert!((2..80).contains(&under_way), "{under_way}");
}

/// A checkpoint call got this error, although nothing of that keyspace was left to merge.
#[test]
fn a_failed_merge_of_a_cleared_memtable_is_no_failure() {
    let mut failed = 0;
    for steps in 0..80 {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = Options::small().open_on(env, disk.handle()).unwrap();
        let bad = database.keyspace("bad").unwrap();
        for number in 0..20u8 {
            bad.put([number], [1; 60]).unwrap();
        }
        database.checkpoint().unwrap();
        sim.settle();
        let core = database.core();
        core.store.empty_caches();
        let end = disk.content(DATA_FILE).unwrap().len() as u64;
        for offset in (PAGES_START..end).step_by(512) {
            disk.corrupt(DATA_FILE, offset + 100, 0x41);
        }
        sim.set_breathing(false);
        bad.put("new", "1").unwrap();
        core.schedule.ask(core.log().unwrap().end());
        for _ in 0..steps {
            sim.step();
        }
        failed += core.schedule.failures();
        bad.clear().unwrap();
        let checkpointed = database.checkpoint();
        checkpointed.unwrap_or_else(|e| panic!("after {steps} steps: {e}"));
        assert_eq!(bad.get("new").unwrap(), None);
        database.close().unwrap();
    }
    assert!((1..80).contains(&failed), "{failed} failed before");
}
