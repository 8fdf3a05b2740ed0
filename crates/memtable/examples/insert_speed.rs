//! Measures a memtable: `insert_speed [records] [value bytes]`. It prints nanoseconds a record to
//! insert, to get, and to drain in order.
//!
//! Figures for two threads are wall time over all records. Runs with one and two threads alternate,
//! so that a drift of the machine shows. The drain copies every key and value out, as a merge does.
#![allow(clippy::disallowed_methods)] // A benchmark reads the clock.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use terrapin_base::{Budget, Lsn, Message};
use terrapin_memtable::{Memtable, Pool};

fn mix(n: u64) -> u64 {
    let z = (n ^ (n >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn integer(n: u64, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(&mix(n).to_be_bytes());
}

fn string(n: u64, key: &mut Vec<u8>) {
    use std::io::Write;
    key.clear();
    let _ = write!(key, "user{:020}", mix(n));
}

fn ns(since: Instant, records: u64) -> f64 {
    since.elapsed().as_nanos() as f64 / records as f64
}

fn fill(
    memtable: &Memtable,
    make: fn(u64, &mut Vec<u8>),
    numbers: std::ops::Range<u64>,
    value: &[u8],
) {
    let mut key = Vec::new();
    for n in numbers {
        make(n, &mut key);
        memtable.insert(&key, Lsn(n + 1), Message::Put(value));
    }
}

fn measure(name: &str, make: fn(u64, &mut Vec<u8>), records: u64, value: &[u8], pool: &Arc<Pool>) {
    let budget = Budget::new(u64::MAX);
    for (memory, threads) in [
        ("fresh", 1),
        ("recycled", 1),
        ("recycled", 2),
        ("recycled", 1),
        ("recycled", 2),
    ] {
        if memory == "fresh" {
            pool.keep_only(0);
        }
        let memtable = Memtable::with_pool(&budget, pool);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for t in 0..threads {
                let memtable = &memtable;
                let share = records / threads;
                scope.spawn(move || fill(memtable, make, t * share..(t + 1) * share, value));
            }
        });
        let insert = ns(start, records);

        // Each memtable is read by one thread and by two, however it was filled.
        let get = |readers: u64| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for t in 0..readers {
                    let memtable = &memtable;
                    scope.spawn(move || {
                        let mut key = Vec::new();
                        // Each reader has its own sequence. Otherwise one would find in the cache
                        // what the other has just read.
                        for n in 0..records / readers {
                            make(mix((t + 1) << 40 | n) % records, &mut key);
                            assert!(black_box(memtable.get(&key, Lsn(u64::MAX))).is_some());
                        }
                    });
                }
            });
            ns(start, records)
        };
        let (get_one, get_two) = (get(1), get(2));

        let drain = |backward: bool| {
            let mut out = vec![0u8; 4096];
            let mut at = 0;
            let start = Instant::now();
            let mut cursor = memtable.cursor(Lsn(0), Lsn(u64::MAX));
            if backward {
                cursor.seek_last()
            } else {
                cursor.seek_first()
            }
            let mut count = 0;
            while let Some(key) = cursor.key() {
                let value = cursor.message().put_value().unwrap_or_default();
                if at + key.len() + value.len() > out.len() {
                    black_box(&out);
                    at = 0;
                }
                out[at..at + key.len()].copy_from_slice(key);
                out[at + key.len()..at + key.len() + value.len()].copy_from_slice(value);
                at += key.len() + value.len();
                count += 1;
                if backward {
                    cursor.prev()
                } else {
                    cursor.next()
                }
            }
            assert_eq!(count, memtable.records());
            ns(start, count)
        };
        let (forward, backward) = (drain(false), drain(true));
        println!(
            "{name:<14} {memory:<8} {threads} threads: insert {insert:6.1}  get {get_one:6.1}, by two {get_two:6.1}  drain {forward:5.1}  backward {backward:5.1}  \
             arena {:.2} and garbage {:.3} of live bytes",
            memtable.arena_bytes() as f64 / memtable.live_bytes() as f64,
            memtable.garbage_bytes() as f64 / memtable.live_bytes() as f64,
        );
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().unwrap_or(0));
    let records: u64 = arguments.next().unwrap_or(2_000_000);
    let value = vec![0x5a; arguments.next().unwrap_or(128) as usize];
    let pool = Pool::new(&Budget::new(u64::MAX), u64::MAX);
    println!("{records} records, values of {} bytes", value.len());
    measure("8-byte random", integer, records, &value, &pool);
    measure("24-byte string", string, records, &value, &pool);
}
