//! Loads 128-byte records with one and with two threads, and prints what a put costs and what it wrote. Arguments: records
//! (default 2,000,000), memory in MiB (default 128), χ (default auto).
#![allow(clippy::disallowed_methods)] // a stopwatch

use std::time::Instant;

use terrapin::{CheckpointDistance, Options};

fn main() -> terrapin::Result<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|a| a.parse::<u64>().unwrap_or(0));
    let records = arguments.next().unwrap_or(2_000_000);
    let memory = arguments.next().unwrap_or(128) << 20;
    let distance = match arguments.next() {
        Some(chi) if chi > 0 => CheckpointDistance::Fixed(chi as u32),
        _ => CheckpointDistance::Auto,
    };
    for threads in [1, 2] {
        let directory = std::env::temp_dir().join(format!("terrapin-load-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let database = Options::new()
            .memory(memory)
            .checkpoint_distance(distance)
            .open(&directory)?;
        let keyspace = database.default_keyspace();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let keyspace = &keyspace;
                    scope.spawn(move || {
                        for i in (thread..records).step_by(threads as usize) {
                            let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                            keyspace.put(key, [i as u8; 120])?;
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|w| w.join().unwrap_or(Ok(())))
        })?;
        let loaded = start.elapsed();
        database.checkpoint()?;
        let settled = start.elapsed();
        let metrics = database.metrics();
        println!(
            "{threads} threads: {:.0} puts/s, settled after {:.2} s more; write amplification {:.2}, {} checkpoints, χ {}, \
             put p50 {} ns p99 {} ns p99.9 {} ns max {} ns, held back {:.2} s, peak window memory now {} MiB",
            records as f64 / loaded.as_secs_f64(),
            (settled - loaded).as_secs_f64(),
            metrics.write_amplification,
            metrics.checkpoints,
            keyspace.checkpoint_distance(),
            metrics.put_latency.p50_ns,
            metrics.put_latency.p99_ns,
            metrics.put_latency.p999_ns,
            metrics.put_latency.max_ns,
            metrics.stall_ns as f64 / 1e9,
            metrics.memory.window_bytes >> 20,
        );
        let start = Instant::now();
        let gets = records / 4;
        for i in 0..gets {
            let key = (i * 7 % records)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_be_bytes();
            assert!(keyspace.get(key)?.is_some());
        }
        println!(
            "  {:.0} uniform gets/s",
            gets as f64 / start.elapsed().as_secs_f64()
        );
        database.close()?;
        let _ = std::fs::remove_dir_all(&directory);
    }
    Ok(())
}
