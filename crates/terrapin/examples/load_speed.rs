//! Loads records with one and with two threads, and prints what a put costs, why puts waited, and
//! what was written. Arguments: records (default 2,000,000), memory in MiB (default 128), χ
//! (default 0: auto), bytes of a value (default 120), threads (default 0: one, then two).
#![allow(clippy::disallowed_methods)] // a stopwatch

use std::time::Instant;

use terrapin::{CheckpointDistance, Error, Options};

fn main() -> terrapin::Result<()> {
    let arguments = std::env::args().skip(1).map(|argument| {
        let parsed = argument.parse::<u64>();
        parsed.map_err(|_| Error::invalid("not a whole number").with("argument", argument))
    });
    let arguments = arguments.collect::<terrapin::Result<Vec<u64>>>()?;
    let mut arguments = arguments.into_iter();
    let records = arguments.next().unwrap_or(2_000_000);
    if records == 0 {
        return Err(Error::invalid("records are at least 1"));
    }
    let memory = arguments.next().unwrap_or(128) << 20;
    let distance = match arguments.next() {
        Some(chi) if chi > 0 => CheckpointDistance::Fixed(chi as u32),
        _ => CheckpointDistance::Auto,
    };
    let value = vec![0x5a; arguments.next().unwrap_or(120) as usize];
    let threads = match arguments.next() {
        Some(threads) if threads > 0 => vec![threads],
        _ => vec![1, 2],
    };
    for threads in threads {
        let directory = std::env::temp_dir().join(format!("terrapin-load-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let database = Options::new()
            .memory(memory)
            .checkpoint_distance(distance)
            .open(&directory)?;
        let keyspace = database.default_keyspace();
        let start = Instant::now();
        let mut took = std::thread::scope(|scope| -> terrapin::Result<Vec<u64>> {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (keyspace, value) = (&keyspace, &value[..]);
                    scope.spawn(move || -> terrapin::Result<Vec<u64>> {
                        let mut took = Vec::new();
                        for i in (thread..records).step_by(threads as usize) {
                            let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                            let start = Instant::now();
                            keyspace.put(key, value)?;
                            took.push(start.elapsed().as_nanos() as u64);
                        }
                        Ok(took)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for worker in workers {
                all.extend(worker.join().expect("the worker has not panicked")?);
            }
            Ok(all)
        })?;
        took.sort_unstable();
        let loaded = start.elapsed();
        database.checkpoint()?;
        let settled = start.elapsed();
        let metrics = database.metrics();
        println!(
            "{threads} threads: {:.0} puts/s, settled after {:.2} s more; write amplification {:.2}, {} checkpoints, χ {}, \
             held back {:.2} s, memtable memory now {} MiB",
            records as f64 / loaded.as_secs_f64(),
            (settled - loaded).as_secs_f64(),
            metrics.write_amplification,
            metrics.checkpoints,
            keyspace.checkpoint_distance(),
            metrics.write_wait_ns as f64 / 1e9,
            metrics.memory.memtable_bytes >> 20,
        );
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] as f64 / 1e3;
        println!(
            "  puts, µs: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, p99.99 {:.1}, max {:.1}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            at(1.0)
        );
        let waits = metrics.waits;
        for (cause, waits) in [
            ("pace", waits.pace),
            ("turn", waits.turn),
            ("merge", waits.merge),
            ("log", waits.log),
            ("seal", waits.seal),
        ] {
            println!(
                "  waits for {cause}: {}, µs: p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}, {:.0} ms together",
                waits.count,
                waits.p50_ns as f64 / 1e3,
                waits.p99_ns as f64 / 1e3,
                waits.p999_ns as f64 / 1e3,
                waits.max_ns as f64 / 1e3,
                waits.total_ns as f64 / 1e6,
            );
        }
        database.close()?;
        let _ = std::fs::remove_dir_all(&directory);
    }
    Ok(())
}
