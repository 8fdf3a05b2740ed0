//! Processes that end soon after they opened the database: the files that they leave, and the cost
//! of the next open.

use terrapin::{Database, ErrorKind, Options};
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

const SEGMENT: u64 = 4 << 20;
const LOG_BYTES_MAX: u64 = 8 * SEGMENT;

struct Run {
    disk: SimDisk,
    sim: Sim,
    database: Option<Database>,
}

impl Run {
    fn begin(disk: &SimDisk, seed: u64) -> terrapin::Result<Run> {
        let (env, sim) = Env::simulated(seed);
        let options = Options::new().memory(8 << 20).background_threads(1);
        let database = options.open_on(env, disk.handle())?;
        Ok(Run {
            disk: disk.clone(),
            sim,
            database: Some(database),
        })
    }

    fn put(&self, number: u32) {
        let keyspace = self.database.as_ref().unwrap().default_keyspace();
        keyspace.put(number.to_be_bytes(), [7; 100]).unwrap();
    }

    fn count(&self) -> usize {
        let keyspace = self.database.as_ref().unwrap().default_keyspace();
        keyspace.iter().count()
    }

    fn dies(mut self, power: Option<CrashMode>) {
        self.sim.kill();
        match power {
            Some(mode) => self.disk.crash_power(mode),
            None => self.disk.crash_process(),
        }
        drop(self.database.take());
        self.sim.kill();
    }
}

fn log_files(disk: &SimDisk) -> (usize, u64) {
    let names = disk.handle().list().unwrap();
    let files = names
        .iter()
        .filter(|name| name.starts_with("log-") || name.starts_with("spare-"));
    let lengths: Vec<u64> = files
        .map(|name| disk.content(name).unwrap().len() as u64)
        .collect();
    (lengths.len(), lengths.iter().sum())
}

/// Guards against 1,650 MiB of files after a hundred runs with default options, and opens that took
/// longer each time.
#[test]
fn runs_of_one_record_leave_few_files_and_opens_do_not_slow() {
    for power in [None, Some(CrashMode::KeepAll)] {
        let disk = SimDisk::new(1);
        let mut reads = Vec::new();
        for number in 0..100 {
            let before = disk.stats_total().reads;
            let run = Run::begin(&disk, u64::from(number)).unwrap();
            reads.push(disk.stats_total().reads - before);
            assert_eq!(run.count(), number as usize);
            run.put(number);
            if number % 3 == 0 {
                run.sim.advance_ns(100_000_000);
                run.sim.settle();
            }
            run.dies(power.filter(|_| number % 3 == 0));
            let (files, bytes) = log_files(&disk);
            assert!(files <= 12, "{files} files after run {number}");
            assert!(bytes <= 5 * SEGMENT, "{bytes} bytes after run {number}");
        }
        let most = |from: usize| reads[from..from + 20].iter().max().copied();
        assert!(most(80) <= most(10), "{reads:?}");
    }
}

/// Processes that write much and end before a checkpoint does.
#[test]
fn the_log_stays_near_its_limit_when_runs_end_soon() {
    let disk = SimDisk::new(1);
    let mut number = 0;
    for run_number in 0..25 {
        let run = Run::begin(&disk, run_number).unwrap();
        for _ in 0..30_000 {
            run.put(number);
            number += 1;
        }
        run.dies(None);
        let (_, bytes) = log_files(&disk);
        assert!(
            bytes <= LOG_BYTES_MAX + LOG_BYTES_MAX / 2,
            "{bytes} bytes after run {run_number}"
        );
    }
    assert_eq!(Run::begin(&disk, 99).unwrap().count(), number as usize);
}

/// Guards against opens for writing that failed after 26 runs.
#[test]
fn a_small_disk_takes_any_number_of_runs() {
    let disk = SimDisk::new(1);
    disk.set_capacity(115 << 20);
    for number in 0..60 {
        let run =
            Run::begin(&disk, u64::from(number)).unwrap_or_else(|e| panic!("run {number}: {e}"));
        run.put(number);
        run.dies(None);
    }
    assert_eq!(Run::begin(&disk, 99).unwrap().count(), 60);
}

/// Other programs have filled the disk. Opens and deletes still work.
#[test]
fn a_full_disk_takes_any_number_of_runs() {
    let disk = SimDisk::new(1);
    let run = Run::begin(&disk, 0).unwrap();
    (0..20_000).for_each(|number| run.put(number));
    run.database.as_ref().unwrap().checkpoint().unwrap();
    run.sim.settle();
    run.dies(None);
    disk.set_capacity(disk.used_bytes());
    for number in 0..60u32 {
        let run =
            Run::begin(&disk, u64::from(number)).unwrap_or_else(|e| panic!("run {number}: {e}"));
        assert_eq!(run.count(), 20_000 - number as usize);
        let keyspace = run.database.as_ref().unwrap().default_keyspace();
        keyspace
            .delete(number.to_be_bytes())
            .unwrap_or_else(|e| panic!("run {number}: {e}"));
        run.dies(None);
    }
    let run = Run::begin(&disk, 99).unwrap();
    let keyspace = run.database.as_ref().unwrap().default_keyspace();
    let refused = keyspace.put("new", [0; 100_000]).err().map(|e| e.kind());
    assert!(refused.is_none_or(|kind| kind == ErrorKind::NoSpace));
}
