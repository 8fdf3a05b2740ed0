//! Damage in the middle of the log. An open and `verify` refuse it and name its position. Synced
//! records are never dropped.

use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{Database, ErrorKind, Options};
use terrapin_base::{Env, Sim};
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;

const RECORDS: u32 = 3500;
const FIRST: &str = "log-0000000000000001";
const BLOCK: usize = 4096;

struct Process {
    disk: SimDisk,
    env: Env,
    sim: Sim,
}

impl Process {
    fn new(disk: &SimDisk) -> Self {
        let (env, sim) = Env::simulated(1);
        Process {
            disk: disk.clone(),
            env,
            sim,
        }
    }

    fn open(&self) -> terrapin::Result<Database> {
        let options = Options::new().memory(32 << 20).background_threads(1);
        options.open_on(self.env.clone(), self.disk.handle())
    }

    fn idle(&self) {
        for _ in 0..30 {
            self.sim.advance_ns(100_000_000);
            self.sim.settle();
        }
    }

    fn dies(self, database: Database, power: Option<CrashMode>) -> SimDisk {
        self.sim.kill();
        match power {
            Some(mode) => self.disk.crash_power(mode),
            None => self.disk.crash_process(),
        }
        drop(database);
        self.sim.kill();
        self.disk
    }
}

fn fill(database: &Database) {
    let keyspace = database.default_keyspace();
    for number in 0..RECORDS {
        let value = [number as u8; 1000];
        keyspace.put(number.to_be_bytes(), value).unwrap();
    }
}

fn zero_block(disk: &SimDisk, at: usize) {
    let content = disk.content(FIRST).unwrap();
    for (offset, byte) in (at..at + BLOCK).zip(&content[at..at + BLOCK]) {
        if *byte != 0 {
            assert!(disk.corrupt(FIRST, offset as u64, *byte));
        }
    }
}

fn is_refused(disk: &SimDisk) {
    let process = Process::new(disk);
    let handle = disk.handle();
    let report = verify_on(process.env.clone(), handle, &VerifyOptions::new()).unwrap();
    assert!(!report.is_sound());
    let finding = report.findings[0].to_string();
    assert!(finding.contains(FIRST), "{finding}");
    let error = process.open().expect_err("records are gone in silence");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let has = |key| error.context().iter().any(|(name, _)| *name == key);
    assert!(has("file") && has("offset") && has("lsn"), "{error}");
}

fn holds_all(disk: &SimDisk) {
    let process = Process::new(disk);
    let database = process.open().unwrap();
    assert_eq!(database.default_keyspace().iter().count(), RECORDS as usize);
    process.dies(database, None);
}

/// Guards against a log that lost all but 60 of 3,500 records and that `verify` called sound.
#[test]
fn a_bad_block_in_the_log_is_refused_after_a_kill() {
    for (flushes, idles) in [(true, true), (true, false), (false, true)] {
        let process = Process::new(&SimDisk::new(1));
        let database = process.open().unwrap();
        fill(&database);
        if flushes {
            database.flush().unwrap();
        }
        if idles {
            process.idle();
        }
        let disk = process.dies(database, None);
        holds_all(&disk.fork());
        zero_block(&disk, 64 << 10);
        is_refused(&disk);
    }
}

/// Guards against a mark of the last sync that was in the ring alone, however long the store was
/// idle.
#[test]
fn a_bad_block_in_the_log_is_refused_after_idle_seconds_and_a_power_cut() {
    for mode in CrashMode::ALL {
        let process = Process::new(&SimDisk::new(1));
        let database = process.open().unwrap();
        fill(&database);
        process.idle();
        let disk = process.dies(database, Some(mode));
        let ring = disk.content("ring").unwrap().len();
        disk.plant("ring", &vec![0; ring]);
        holds_all(&disk.fork());
        zero_block(&disk, 64 << 10);
        is_refused(&disk);
    }
}

#[test]
fn an_older_copy_of_the_log_file_is_refused() {
    let process = Process::new(&SimDisk::new(1));
    let database = process.open().unwrap();
    database.default_keyspace().put("early", "1").unwrap();
    database.flush().unwrap();
    let older = process.disk.content(FIRST).unwrap();
    fill(&database);
    database.flush().unwrap();
    let disk = process.dies(database, None);
    disk.plant(FIRST, &older);
    is_refused(&disk);
}
