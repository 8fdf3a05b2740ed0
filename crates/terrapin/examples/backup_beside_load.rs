//! What a backup costs a load beside it, and what an incremental backup reads.
//!
//! `cargo run --release -p terrapin --example backup_beside_load -- DIRECTORY MIB` loads that much,
//! then puts for some seconds by turns without and with a backup into a fresh directory. Then it
//! changes 1 % of the keys in one place, and backs up again.
#![allow(clippy::disallowed_methods)] // a measurement needs a clock

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrapin::{Database, Options, Result};

const VALUE_BYTES: u64 = 1000;
const TURN: Duration = Duration::from_secs(10);
const TURNS: u32 = 3;

/// Puts until `done`, and returns how many a second.
fn load(database: &Database, records: u64, done: impl Fn(Duration) -> bool) -> Result<f64> {
    let keyspace = database.default_keyspace();
    let (began, mut puts) = (Instant::now(), 0_u64);
    while !done(began.elapsed()) {
        for _ in 0..100 {
            puts += 1;
            let number = puts.wrapping_mul(0x9e37_79b9_7f4a_7c15) % records;
            keyspace.put(number.to_be_bytes(), [puts as u8; VALUE_BYTES as usize])?;
        }
    }
    Ok(puts as f64 / began.elapsed().as_secs_f64())
}

/// Puts while a backup runs, and for as long as a turn.
fn load_beside_backup(database: &Database, records: u64, target: &Path) -> Result<(f64, f64)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| {
            let began = Instant::now();
            let done = database.backup(target);
            is_over.store(true, Ordering::Relaxed);
            done.map(|_| began.elapsed().as_secs_f64())
        });
        let rate = load(database, records, |_| is_over.load(Ordering::Relaxed));
        match backup.join() {
            Ok(seconds) => Ok((rate?, seconds?)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "backup-figures".into()));
    let mib: u64 = arguments
        .next()
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(1024);
    let database = Options::new()
        .memory(256 << 20)
        .open(directory.join("database"))?;
    let keyspace = database.default_keyspace();
    let records = (mib << 20) / VALUE_BYTES;
    for number in 0..records {
        keyspace.put(number.to_be_bytes(), [number as u8; VALUE_BYTES as usize])?;
    }
    database.checkpoint()?;
    // The first puts fill memory that nothing has used yet.
    load(&database, records, |elapsed| elapsed >= TURN)?;
    for turn in 0..TURNS {
        let alone = load(&database, records, |elapsed| elapsed >= TURN)?;
        let target = directory.join(format!("turn-{turn}"));
        let (beside, seconds) = load_beside_backup(&database, records, &target)?;
        let ratio = beside / alone;
        println!(
            "{alone:.0} puts/s alone, {beside:.0} beside {seconds:.1} s of backup: {ratio:.2}"
        );
    }
    database.checkpoint()?;
    let target = directory.join("incremental");
    let full = database.backup(&target)?;
    for number in records / 2..records / 2 + records / 100 {
        keyspace.put(number.to_be_bytes(), [7; VALUE_BYTES as usize])?;
    }
    database.checkpoint()?;
    let next = database.backup(&target)?;
    let share = 100.0 * next.copied_bytes as f64 / full.copied_bytes as f64;
    let (copied, all) = (next.copied_bytes, full.copied_bytes);
    println!("after 1 % of the keys changed: {copied} of {all} bytes copied, {share:.2} %");
    database.close()?;
    Ok(())
}
