//! Shared parts of the log's tests: a simulated process with a log, and records whose payload
//! follows from their number.
#![allow(dead_code)] // each test uses a part

use std::sync::Arc;

use terrapin_base::{Env, Error, Lsn, Result, Sim};
use terrapin_disk::{Disk, SimDisk};
use terrapin_wal::{Append, Log, LogOptions, Recovery};

pub const KIND: u8 = 16;
pub const DATABASE: u64 = 0x7e44;

/// Options with the smallest ring and segments of four blocks, so that rings wrap and segments
/// change often.
pub fn tiny() -> LogOptions {
    LogOptions {
        ring_bytes: 64 << 10,
        segment_bytes: 16 << 10,
        sync_interval_ns: 1_000_000,
        database_id: DATABASE,
        branch: DATABASE,
        known_branches: [DATABASE; 2],
    }
}

/// SplitMix64, for the tests' own choices.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The payload of record `index`: its number, then bytes that follow from the number. The length
/// follows from the number too.
pub fn payload(index: u64) -> Vec<u8> {
    let mut random = Random(index);
    let bytes = match random.below(20) {
        0 => random.below(15_000),
        1..=3 => random.below(4_200),
        4 => 0,
        _ => random.below(160),
    };
    let mut out = index.to_le_bytes().to_vec();
    out.extend((0..bytes).map(|i| (i.wrapping_mul(31) ^ index) as u8));
    out
}

/// A record that was published.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    pub lsn: Lsn,
    pub end: Lsn,
}

/// A process: an environment of its own, and the disk as the process sees it.
pub struct Process {
    pub env: Env,
    pub sim: Sim,
    pub disk: Arc<dyn Disk>,
}

impl Process {
    pub fn new(medium: &SimDisk, seed: u64) -> Self {
        let (env, sim) = Env::simulated(seed);
        Process {
            env,
            sim,
            disk: medium.handle(),
        }
    }

    pub fn create(&self, options: LogOptions) -> Result<Log> {
        let log = Log::create(&self.env, &self.disk, options)?;
        self.env.spawn(log.drain_job())?;
        Ok(log)
    }

    pub fn scan(&self, options: LogOptions, needed_from: Lsn) -> Result<Recovery> {
        Recovery::scan(&self.env, &self.disk, options, needed_from)
    }

    /// Recovers the whole log; returns the log and the replayed records.
    pub fn recover(&self, options: LogOptions) -> Result<(Log, Vec<(Lsn, u64)>)> {
        self.recover_from(options, Lsn(4096))
    }

    pub fn recover_from(
        &self,
        options: LogOptions,
        needed_from: Lsn,
    ) -> Result<(Log, Vec<(Lsn, u64)>)> {
        let recovery = self.scan(options, needed_from)?;
        let count = recovery.records_to_replay();
        let (log, mut replay) = recovery.begin()?;
        let records = collect(&mut replay)?;
        assert_eq!(records.len() as u64, count);
        self.env.spawn(log.drain_job())?;
        Ok((log, records))
    }

    /// Appends and publishes a record; waits for room.
    pub fn append(&self, log: &Log, index: u64) -> Result<Put> {
        append(&self.env, log, index)
    }
}

pub fn append(env: &Env, log: &Log, index: u64) -> Result<Put> {
    let payload = payload(index);
    let (head, tail) = payload.split_at(payload.len() / 3);
    loop {
        match log.try_append(KIND, &[head, tail])? {
            Append::Done(appended) => {
                log.publish(&appended);
                return Ok(Put {
                    lsn: appended.lsn,
                    end: appended.end,
                });
            }
            Append::Full(condition) => {
                env.wait(&condition)?;
            }
        }
    }
}

/// Reads a replay to its end; returns each record's LSN and number. Panics if a payload differs
/// from the appended one.
pub fn collect(replay: &mut terrapin_wal::Replay) -> Result<Vec<(Lsn, u64)>> {
    let mut out = Vec::new();
    while let Some(record) = replay.next()? {
        let index = u64::from_le_bytes(
            record.payload[..8]
                .try_into()
                .map_err(|_| Error::internal("short"))?,
        );
        assert_eq!(record.kind, KIND);
        assert_eq!(
            record.payload,
            payload(index),
            "record {index} is not what was appended"
        );
        assert_eq!(record.end.0 - record.lsn.0, 9 + record.payload.len() as u64);
        out.push((record.lsn, index));
    }
    Ok(out)
}

/// Asserts that the records' numbers are `0..n`; returns n.
pub fn assert_prefix(records: &[(Lsn, u64)]) -> u64 {
    for (at, (_, index)) in records.iter().enumerate() {
        assert_eq!(*index, at as u64, "a record is missing or twice");
    }
    for pair in records.windows(2) {
        assert!(pair[0].0 < pair[1].0, "LSNs rise");
    }
    records.len() as u64
}
