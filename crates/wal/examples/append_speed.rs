//! Measures an append of 148 bytes, with one thread and with two: `cargo run --release --example
//! append_speed [directory]`. The drain runs beside it on the real disk. The CPU time is that of
//! the whole process, the drain included.
#![allow(clippy::disallowed_methods)] // a measurement has its own clock and threads

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use terrapin_base::{Env, Result};
use terrapin_disk::{Disk, RealDisk};
use terrapin_wal::{Append, Log, LogOptions};

const RECORDS: u64 = 4_000_000;
const PAYLOAD_BYTES: usize = 148 - 9;

/// User and system time of this process in nanoseconds, at the kernel's resolution of 10 ms.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (ticks(11) + ticks(12)) * 10_000_000
}

fn write(env: &Env, log: &Log, records: u64) -> Result<()> {
    let mut payload = [0x5a; PAYLOAD_BYTES];
    for index in 0..records {
        payload[..8].copy_from_slice(&index.to_le_bytes());
        loop {
            match log.try_append(16, &[&payload[..24], &payload[24..]])? {
                Append::Done(appended) => break log.publish(&appended),
                Append::Full(condition) => drop(env.wait(&condition)?),
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).map_or_else(
        || std::env::temp_dir().join("terrapin-append-speed"),
        PathBuf::from,
    );
    for threads in [1u64, 2, 1, 2] {
        let _ = std::fs::remove_dir_all(&path);
        let env = Env::threads();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(env.clone(), &path, true)?);
        let log = Log::create(&env, &disk, LogOptions::new(1))?;
        let job = env.spawn(log.drain_job())?;
        let (start, cpu) = (Instant::now(), cpu_ns());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| write(&env, &log, RECORDS / threads));
            }
        });
        let (wall, cpu) = (start.elapsed().as_nanos() as u64, cpu_ns() - cpu);
        let metrics = log.metrics();
        println!(
            "{threads} threads: {} ns of wall time and {} ns of CPU a record; ring full {} times, {} syncs of {} us on average",
            wall / RECORDS,
            cpu / RECORDS,
            metrics.full,
            metrics.syncs,
            metrics.sync_ns / metrics.syncs.max(1) / 1000,
        );
        log.close()?;
        job.join()?;
    }
    let _ = std::fs::remove_dir_all(&path);
    Ok(())
}
