//! Layer `interleavings`: models of shared data under a checker that tries many schedules. Layer
//! `asan`: unsafe code under AddressSanitizer.
//!
//! The models are tests named `interleave` in the crates they are about, over the real code. Their
//! build takes locks, atomics and threads from the checker (`base::sync`). A unit tries a number of
//! schedules of every model, from a seed of its own.

mod asan;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::build::{Build, last, run};
use crate::{Find, Layer, Units};

/// Schedules that a unit tries of each model.
const SCHEDULES: u64 = 250;

const BUILD: Build = Build {
    name: "shuttle",
    flags: "--cfg terrapin_shuttle",
    what: &[
        "--test",
        "interleave",
        "-p",
        "terrapin-memtable",
        "-p",
        "terrapin-recordcache",
        "-p",
        "terrapin-valuemap",
        "-p",
        "terrapin-pages",
        "-p",
        "terrapin-wal",
        "-p",
        "terrapin",
    ],
    environment: &[],
};

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![
        Layer {
            name: "interleavings",
            counts: "schedules",
            ci: 5_000,
            full: 200_000,
            units: Units::Seeds,
            alone: false,
            unit,
        },
        Layer {
            name: "asan",
            counts: "tests under AddressSanitizer",
            // The first two units.
            ci: 115,
            full: 200,
            units: Units::Fixed(asan::UNITS.len() as u64),
            alone: true,
            unit: asan::unit,
        },
    ]
}

fn unit(seed: u64, _scratch: &Path) -> Result<u64, Find> {
    static TESTS: OnceLock<Result<Vec<PathBuf>, Find>> = OnceLock::new();
    let mut schedules = 0;
    for test in TESTS.get_or_init(|| BUILD.tests()).clone()? {
        // One at a time: models that run together share globals and would not be repeatable.
        let mut command = Command::new(&test);
        command
            .args(["--test-threads", "1", "--nocapture"])
            .env("TERRAPIN_SEED", seed.to_string())
            .env("TERRAPIN_SCHEDULES", SCHEDULES.to_string());
        let said = run(&mut command)?;
        if !said.passed {
            return Err(Find(format!(
                "a model failed: TERRAPIN_SEED={seed} TERRAPIN_SCHEDULES={SCHEDULES} {} --test-threads 1\n{}",
                test.display(),
                last(&said.text)
            )));
        }
        schedules += explored(&said.text);
    }
    Ok(schedules)
}

/// Sums lines like `explored wal-ring: 250 schedules, about 1287 points each`.
fn explored(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| {
            line.split_once("explored ")?
                .1
                .split_once(": ")?
                .1
                .split_once(" schedules")
        })
        .filter_map(|(count, _)| count.parse::<u64>().ok())
        .sum()
}
