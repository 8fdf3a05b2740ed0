//! Each suite about messages runs on a small database, and checks its own answers.
#![allow(clippy::disallowed_methods)] // directories of tests

use std::path::PathBuf;
use std::time::Duration;

use terrapin::{KeyspaceOptions, Options};
use terrapin_bench::{
    Config, Figures, Progress, Records, measure_backup, measure_expiry, measure_merges,
    measure_range_delete,
};

const MEMORY_BYTES: u64 = 16 << 20;

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("terrapin-bench-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(records: u64) -> Config {
    Config {
        records,
        loaded: false,
        shape: Records::new(8, 120).unwrap(),
        threads: 2,
        scan_records_max: 100,
        seed: 1,
    }
}

fn options() -> Options {
    Options::new().memory(MEMORY_BYTES)
}

#[test]
fn a_range_delete_frees_the_space_of_half_of_the_records() {
    let scratch = Scratch::new("range-delete");
    let (config, progress) = (config(50_000), Progress::default());
    let measured = measure_range_delete(&config, &options(), MEMORY_BYTES, &scratch.0, &progress);
    let report = measured.unwrap();
    assert!((20_000..30_000).contains(&report.deleted), "{report:?}");
    assert!(report.written_bytes < report.data_bytes, "{report:?}");
    assert!(report.acknowledged_ms <= report.free_ms, "{report:?}");
    assert!(report.json().contains("\"free_ms\""));
}

#[test]
fn merges_and_the_gets_after_them_are_measured() {
    let scratch = Scratch::new("merges");
    let mut turns = 0;
    let work = (2000, 1000, 2);
    measure_merges(&config(1000), &options(), work, &scratch.0, &mut |report| {
        turns += 1;
        assert!(report.puts_per_second > 0.0 && report.merges_per_second > 0.0);
        assert!(report.merged_get_ns > 0.0 && report.put_get_ns > 0.0);
        assert!(report.json().contains("\"cached_get_ns\""));
        Ok(())
    })
    .unwrap();
    assert_eq!(turns, 2);
}

#[test]
fn the_space_of_expired_records_is_followed() {
    let scratch = Scratch::new("expiry");
    let times = (Duration::from_millis(300), Duration::from_millis(200));
    let progress = Progress::default();
    let keyspace = KeyspaceOptions::new();
    let with = (&options(), &keyspace);
    let report = measure_expiry(&config(5000), with, times, &scratch.0, &progress).unwrap();
    assert_eq!(report.live_bytes, 2500 * 128);
    assert!(report.expired_bytes >= report.live_bytes, "{report:?}");
    assert!(report.json().contains("\"bound_seconds\""));
}

#[test]
fn a_backup_beside_overwrites_and_an_incremental_one_are_measured() {
    let scratch = Scratch::new("backup");
    let (work, progress) = ((Duration::from_millis(50), 2), Progress::default());
    let mut turns = 0;
    let (config, options) = (config(20_000), options());
    measure_backup(
        &config,
        &options,
        work,
        &scratch.0,
        &progress,
        &mut |report| {
            turns += 1;
            assert!(report.alone_per_second > 0.0 && report.beside_per_second > 0.0);
            assert!(report.copied_bytes < report.page_bytes, "{report:?}");
            assert!(report.json().contains("\"copied_bytes\""));
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(turns, 2);
}
