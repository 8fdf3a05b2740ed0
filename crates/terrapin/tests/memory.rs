//! The process stays within its memory: the resident bytes that the system counts, not the bytes
//! that the engine has counted.
//!
//! Each run is a process of its own, because the peak is counted per process. The memory of other
//! tests would show in it.

#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Barrier, mpsc};

use terrapin::{Database, Durability, Keyspace, Options};

/// The peak may exceed the budget by a tenth of it and this many bytes.
const SLACK_BYTES: u64 = 64 << 20;
/// Part of this must stay unused here, because other file systems, kernels and allocators need
/// some.
const MARGIN_BYTES: u64 = SLACK_BYTES / 2;
/// Set in the process that does the work: the budget in bytes.
const BUDGET: &str = "TERRAPIN_TEST_MEMORY_BYTES";

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A well-mixed number.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Lengths of all kinds. An allocator finds room too easily for values of one length.
fn value_bytes(number: u64) -> usize {
    let mixed = mix(!number) as usize;
    match mixed % 64 {
        0 => 8000 + (mixed >> 8) % 24_000,
        1..40 => 50 + (mixed >> 8) % 500,
        _ => 500 + (mixed >> 8) % 2000,
    }
}

/// The largest number of resident bytes so far.
fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// A field of the system's status of this process, in bytes.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse::<u64>().unwrap() << 10
}

/// Loads `records` in random order from two threads, then reads, scans and overwrites some of them.
fn use_database(database: &Database, records: u64) -> u64 {
    let keyspace = database.default_keyspace();
    let written = std::thread::scope(|scope| {
        let halves = [0, 1].map(|thread| {
            let keyspace = &keyspace;
            scope.spawn(move || {
                let mut written = 0;
                let mut value = vec![0; 32_000];
                for number in (thread..records).step_by(2) {
                    let bytes = value_bytes(number);
                    value[..8].copy_from_slice(&number.to_le_bytes());
                    keyspace
                        .put_with(
                            mix(number).to_be_bytes(),
                            &value[..bytes],
                            Durability::Process,
                        )
                        .unwrap();
                    written += 8 + bytes as u64;
                }
                written
            })
        });
        halves
            .into_iter()
            .map(|half| half.join().unwrap())
            .sum::<u64>()
    });
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let keyspace = &keyspace;
            scope.spawn(move || {
                for i in 0..records / 8 {
                    let number = mix(i * 2 + thread) % records;
                    let key = mix(number).to_be_bytes();
                    let value = keyspace.get(key).unwrap().unwrap();
                    assert_eq!(value.len(), value_bytes(number));
                    if i % 8 == 0 {
                        let some: u64 = keyspace
                            .range(&key[..]..)
                            .take(50)
                            .map(|entry| entry.unwrap().1.len() as u64)
                            .sum();
                        assert!(some > 0);
                    }
                    if i % 16 == 0 {
                        keyspace.put(key, vec![1; value_bytes(number)]).unwrap();
                    }
                }
            });
        }
    });
    written
}

/// Threads that read once and then stay alive without work, and how many keys each reads.
const READERS: u64 = 160;
const READ_AT_ONCE: u64 = 200;

/// Lets threads read one after the other, many keys at once. All threads stay alive until the last
/// has read.
fn read_from_many_threads(database: &Database, records: u64) {
    let keyspace = database.default_keyspace();
    let end = Barrier::new(READERS as usize + 1);
    std::thread::scope(|scope| {
        let (read, reads) = mpsc::channel();
        for thread in 0..READERS {
            let (keyspace, end, read) = (&keyspace, &end, read.clone());
            let work = move || {
                let number = |i| mix(thread * READ_AT_ONCE + i) % records;
                let keys: Vec<[u8; 8]> = (0..READ_AT_ONCE)
                    .map(|i| mix(number(i)).to_be_bytes())
                    .collect();
                let values = keyspace.multi_get(&keys);
                let found = values.map(|values| values.iter().flatten().count());
                let _ = read.send(found);
                end.wait();
            };
            let stack = std::thread::Builder::new().stack_size(256 << 10);
            stack.spawn_scoped(scope, work).unwrap();
            let found = reads.recv().unwrap();
            assert_eq!(found.unwrap(), READ_AT_ONCE as usize);
        }
        end.wait();
    });
}

/// Whether this is the process that does the work. In the test's process, the call starts that
/// process and checks its result.
fn is_alone(test: &str, budget: u64) -> bool {
    if std::env::var(BUDGET).is_ok() {
        return true;
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this)
        .args([test, "--exact", "--nocapture"])
        .env(BUDGET, budget.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}\n{complained}"
    );
    false
}

fn open(test: &str, budget: u64) -> (Database, Directory) {
    let path = std::env::temp_dir().join(format!("terrapin-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let directory = Directory(path);
    let database = Options::new().memory(budget).open(&directory.0).unwrap();
    (database, directory)
}

/// Does the work in a process of its own, and checks its memory.
fn stays_within(
    test: &str,
    budget: u64,
    times: u64,
    records: u64,
    and_then: impl FnOnce(&Database),
) {
    if !is_alone(test, budget) {
        return;
    }
    let (database, _directory) = open(test, budget);
    let written = use_database(&database, records);
    and_then(&database);
    let peak = peak_bytes();
    println!("{test}: {written} bytes written, {peak} bytes at the peak");
    assert!(
        written >= budget * times,
        "{written} bytes are not {times} times {budget}"
    );
    let allowed = budget + budget / 10 + SLACK_BYTES;
    assert!(
        peak + MARGIN_BYTES <= allowed,
        "{peak} bytes resident at the peak of {allowed} allowed, with too little margin"
    );
    database.close().unwrap();
}

#[test]
fn a_store_of_ten_times_its_memory_stays_within_it() {
    let test = "a_store_of_ten_times_its_memory_stays_within_it";
    stays_within(test, 24 << 20, 10, 245_000, |_| ());
}

#[test]
fn a_larger_cache_stays_within_its_memory() {
    let test = "a_larger_cache_stays_within_its_memory";
    stays_within(test, 64 << 20, 4, 260_000, |_| ());
}

#[test]
fn threads_that_read_once_keep_little() {
    let test = "threads_that_read_once_keep_little";
    let records = 65_000;
    let read = |database: &Database| read_from_many_threads(database, records);
    stays_within(test, 24 << 20, 2, records, read);
}

/// A key of 50 to 65 KB. It differs from others in its first bytes, or behind 49 KB that all share.
fn long_key(number: u64, late: bool) -> Vec<u8> {
    let mixed = mix(number);
    let mut key = vec![b'k'; 50_000 + (mixed % 15_000) as usize];
    let at = if late { 49_000 } else { 0 };
    key[at..at + 8].copy_from_slice(&mixed.to_be_bytes());
    key
}

const LONG_KEYS: u64 = 6000;

/// Four threads put, delete, get and scan records with long keys.
fn use_long_keys(keyspace: &Keyspace, operations: u64, late: bool) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for i in (thread..operations).step_by(4) {
                    let random = mix(i);
                    let key = long_key(random % LONG_KEYS, late);
                    match (random >> 32) % 20 {
                        0..11 => keyspace.put(key, vec![7; (random >> 40) as usize % 4000]),
                        11..15 => keyspace.delete(key),
                        15..18 => keyspace.get(key).map(drop),
                        _ => keyspace.range(key..).take(20).try_for_each(|r| r.map(drop)),
                    }
                    .unwrap();
                }
            });
        }
    });
}

/// Guards against gaps of the allocator's arenas. Keys and their copies were there, and the gaps
/// took as much again as the budget.
fn long_keys_stay_within(test: &str, late: bool) {
    let budget = 64 << 20;
    if !is_alone(test, budget) {
        return;
    }
    let (database, _directory) = open(test, budget);
    use_long_keys(&database.default_keyspace(), 6000, late);
    database.close().unwrap();
    let peak = peak_bytes();
    println!("{test}: {peak} bytes at the peak");
    assert!(
        peak <= budget + budget / 10 + SLACK_BYTES,
        "{peak} bytes resident at the peak"
    );
}

#[test]
fn long_keys_that_differ_early_stay_within_the_budget() {
    long_keys_stay_within("long_keys_that_differ_early_stay_within_the_budget", false);
}

#[test]
fn long_keys_that_differ_late_stay_within_the_budget() {
    long_keys_stay_within("long_keys_that_differ_late_stay_within_the_budget", true);
}

/// Bytes that a range may hold beside the budget, with the longest keys and with usual ones
/// (README, *Limits*).
const RANGE_BYTES_LONG_KEYS: u64 = 2 << 20;
const RANGE_BYTES: u64 = 256 << 10;
const RANGES: u64 = 64;

/// Opens many ranges and continues each in turn. Returns the additional resident bytes for each
/// range.
fn bytes_of_each_range(keyspace: &Keyspace, steps: u64, from: impl Fn(u64) -> Vec<u8>) -> u64 {
    let before = status_bytes("VmRSS:");
    let mut ranges: Vec<_> = (0..RANGES).map(|i| keyspace.range(from(i)..)).collect();
    for _ in 0..steps {
        for range in &mut ranges {
            range.next_ref().unwrap();
        }
    }
    status_bytes("VmRSS:").saturating_sub(before) / RANGES
}

fn ranges_hold_no_more(test: &str, most: u64, measure: impl FnOnce(&Database) -> u64) {
    let budget = 64 << 20;
    if !is_alone(test, budget) {
        return;
    }
    let (database, _directory) = open(test, budget);
    let bytes = measure(&database);
    println!("{test}: {bytes} bytes a range");
    assert!(bytes <= most, "{bytes} bytes a range");
    database.close().unwrap();
}

#[test]
fn a_range_holds_no_more_than_documented() {
    let test = "a_range_holds_no_more_than_documented";
    ranges_hold_no_more(test, RANGE_BYTES, |database| {
        use_database(database, 100_000);
        database.checkpoint().unwrap();
        let from = |i| mix(i).to_be_bytes().to_vec();
        bytes_of_each_range(&database.default_keyspace(), 1000, from)
    });
}

#[test]
fn a_range_of_long_keys_holds_no_more_than_documented() {
    let test = "a_range_of_long_keys_holds_no_more_than_documented";
    ranges_hold_no_more(test, RANGE_BYTES_LONG_KEYS, |database| {
        let keyspace = database.default_keyspace();
        use_long_keys(&keyspace, 6000, false);
        database.checkpoint().unwrap();
        bytes_of_each_range(&keyspace, 40, |i| long_key(i, false))
    });
}
