//! A simulated world for tests of the engine: one seed, one disk, no thread. Sizes are tiny, so
//! that rare paths are common.
#![allow(dead_code)] // each test binary uses its part

pub mod large;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrapin::{CheckpointDistance, Database, Durability, ErrorKind, Keyspace, Options};
use terrapin_base::{Env, Sim};
use terrapin_disk::sim::{CrashMode, SimDisk};

/// Key and value of a test.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub struct World {
    pub env: Env,
    pub sim: Sim,
    pub disk: SimDisk,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let (env, sim) = Env::simulated(seed);
        World {
            env,
            sim,
            disk: SimDisk::new(seed),
        }
    }

    pub fn open(&self, options: &Options) -> Database {
        self.try_open(options).unwrap()
    }

    pub fn try_open(&self, options: &Options) -> terrapin::Result<Database> {
        options.open_on(self.env.clone(), self.disk.handle())
    }

    /// The process dies. Jobs stop at once, and files keep their written bytes.
    pub fn kill(&self, database: Database) {
        self.sim.kill();
        self.disk.crash_process();
        drop(database);
        self.sim.kill();
    }

    /// The power fails.
    pub fn cut_power(&self, database: Database, mode: CrashMode) {
        self.sim.kill();
        self.disk.crash_power(mode);
        drop(database);
        self.sim.kill();
    }

    /// Cancels a planned death that did not come.
    pub fn disarm(&self) {
        self.disk.die_at_call(u64::MAX);
    }

    /// Verifies the files, which must be sound.
    pub fn verify(&self) {
        let _ = self.verified();
    }

    pub fn verified(&self) -> terrapin::verify::VerifyReport {
        let report =
            terrapin::verify::verify_on(self.env.clone(), self.disk.handle(), &Default::default())
                .unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
        report
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.sim.random() % bound
    }
}

/// Options under which the simulated disk counts what reads cost: a tree of some levels, and no
/// record cache, which would hold all records.
pub fn counting_reads() -> Options {
    tiny()
        .group_bytes(64 << 10)
        .memory(16 << 20)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .log_bytes_max(4 << 20)
        .record_cache(false)
}

/// Small options: memtables of some KiB, nodes of four children, blocks of 512 bytes, log files of
/// 64 KiB.
pub fn tiny() -> Options {
    Options::new()
        .memory(2 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(512 << 10)
        .group_bytes(4 << 10)
        .block_bytes(512)
        .fanout(4)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(2)
}

/// Counts the failures that listeners hear of from now on. All must be of this kind.
pub fn failures(database: &Database, kind: ErrorKind) -> Arc<AtomicU64> {
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    database.on_background_error(move |error| {
        assert_eq!(error.kind(), kind, "{error}");
        count.fetch_add(1, Ordering::SeqCst);
    });
    told
}

pub fn all(keyspace: &Keyspace) -> Map {
    keyspace
        .iter()
        .map(|r| r.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
        .collect()
}

pub fn key(number: u64) -> Vec<u8> {
    // Scrambled, so that keys near in time are not near in order.
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()
        .to_vec()
}

pub fn value(number: u64, bytes: usize) -> Vec<u8> {
    let mut out = number.to_le_bytes().to_vec();
    out.resize(bytes.max(8), b'.');
    out
}

pub const LEVELS: [Durability; 3] = [Durability::Process, Durability::Sync, Durability::None];

/// A directory of one test, removed at its end.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let name = format!("terrapin-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
