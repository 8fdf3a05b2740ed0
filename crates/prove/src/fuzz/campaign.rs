//! Layer `fuzz`: a unit builds the libFuzzer binaries of `fuzz/` and runs one for a minute. The
//! inputs it learns stay beside the build, so the target's next minute continues from them. A find
//! is kept as a file that repeats it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Find;

use super::{TARGETS, template};

/// Seconds of a unit.
pub const SECONDS: u64 = 60;
/// Limits of an input, at many times the usual amounts under instrumentation.
const INPUT_SECONDS_MAX: u64 = 20;
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// The compiler flags of cargo-fuzz that a stable compiler accepts.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// Unit n: a minute of target n mod 8.
pub fn unit(number: u64, scratch: &Path) -> Result<u64, Find> {
    let target = &TARGETS[(number % TARGETS.len() as u64) as usize];
    let folder = template::folder();
    let build = folder.join("target");
    let built = Command::new("cargo")
        .args([
            "build",
            "--release",
            "--quiet",
            "--target",
            TRIPLE,
            "--bin",
            target.name,
        ])
        .arg("--manifest-path")
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&build)
        .env("RUSTFLAGS", FLAGS)
        .env_remove("CARGO_TARGET_DIR")
        .status()?;
    if !built.success() {
        return Err(Find(format!("fuzz/ does not build: {built}")));
    }
    let learned = build.join("learned").join(target.name);
    let artifacts = build.join("artifacts").join(target.name);
    fs::create_dir_all(&learned)?;
    fs::create_dir_all(&artifacts)?;
    // libFuzzer needs all folders, and a target may have no finds yet.
    fs::create_dir_all(folder.join("finds").join(target.name))?;
    let report = scratch.join("report");
    let ended = Command::new(build.join(TRIPLE).join("release").join(target.name))
        .arg(format!("-seed={}", number + 1))
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-max_len={}", target.bytes_max))
        .args(["-rss_limit_mb=2048", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(&learned)
        .arg(folder.join("corpus").join(target.name))
        .arg(folder.join("finds").join(target.name))
        .stdout(Stdio::null())
        .stderr(fs::File::create(&report)?)
        .status()?;
    if ended.success() {
        return Ok(SECONDS);
    }
    let report = fs::read_to_string(&report).unwrap_or_default();
    let told: Vec<&str> = report
        .lines()
        .filter(|line| {
            [
                "panicked",
                "ERROR",
                "Test unit",
                "bytes of heap",
                "verify found",
            ]
            .iter()
            .any(|word| line.contains(word))
        })
        .collect();
    Err(Find(format!(
        "{} ended with {ended}: {}",
        target.name,
        told.join("; ")
    )))
}
