//! What a range delete of half the records costs (decision 0042).
//!
//! ```text
//! cargo run --release -p terrapin --example range_delete_figures -- RECORDS DIRECTORY
//! ```
//!
//! Loads records of 128 bytes in random order with 256 MiB of memory and deletes the upper half of
//! the keys by one range. Prints how long the call took, when the space was free within the file,
//! and the bytes written until a checkpoint later. The directory must be empty or absent.
#![allow(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::time::{Duration, Instant};

use terrapin::{Database, Error, Options, Result};

/// Bytes that the database wrote, its log included.
fn written(database: &Database) -> u64 {
    let metrics = database.metrics();
    metrics.device_written.total() + metrics.log_bytes_written
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (Some(records), Some(directory)) = (
        arguments.get(1).and_then(|text| text.parse::<u64>().ok()),
        arguments.get(2),
    ) else {
        return Err(Error::invalid(
            "usage: range_delete_figures RECORDS DIRECTORY",
        ));
    };
    let database = Options::new().memory(256 << 20).open(directory)?;
    let keyspace = database.default_keyspace();
    for number in 0..records {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        keyspace.put(key, [b'v'; 120])?;
    }
    database.checkpoint()?;
    let live = database.metrics().data_live_bytes;
    let before = written(&database);
    println!("loaded: {} MiB", live >> 20);

    let start = Instant::now();
    keyspace.delete_range(&(1_u64 << 63).to_be_bytes()[..]..)?;
    println!("acknowledged after {:?}", start.elapsed());
    while database.metrics().data_live_bytes > live / 10 * 6 {
        if start.elapsed() > Duration::from_secs(120) {
            return Err(Error::invalid("the space is not free after two minutes"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let left = database.metrics().data_live_bytes;
    println!("free after {:?}: {} MiB left", start.elapsed(), left >> 20);

    database.checkpoint()?;
    let cost = written(&database) - before;
    let percent = cost as f64 * 100.0 / (records * 128) as f64;
    println!("written: {} KiB, {percent:.3} % of the records", cost >> 10);
    let start = Instant::now();
    let count = keyspace.iter().keys().count();
    println!("{count} records left, read in {:?}", start.elapsed());
    database.close()?;
    Ok(())
}
