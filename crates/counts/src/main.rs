//! Instruction counts of the hot paths, by valgrind's callgrind, compared with a recorded baseline.
//! Times differ from run to run; counts do not. docs/TESTING.md explains the method.
//!
//! `cargo run --release -p counts` counts all paths and fails beyond the tolerance. `-- --record`
//! writes a new baseline. `-- --profile PATH` shows the functions in which a path's instructions
//! are. `-- --across-chi` counts reads of stores loaded at χ = 1, 2, 4 … 64. `-- --lines` finds
//! cache lines that two readers write.
#![forbid(unsafe_code)]

mod baseline;
mod callgrind;
mod chi;
mod disk;
mod lines;
mod paths;
mod profile;
mod records;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use baseline::{Baseline, Verdict};
use paths::{PATHS, Way};

const USAGE: &str = "usage: counts [--record | --profile PATH | --across-chi | --lines | --list]";

/// χ of the load of the store that paths use.
const LOADED_AT: u32 = 16;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => compare(),
        ["--record"] => record(),
        ["--profile", name] => show_profile(name),
        ["--across-chi"] => across_chi(),
        ["--lines"] => shared_lines(),
        ["--list"] => {
            for way in &PATHS {
                println!("{:18} {}", way.name, way.what);
            }
            Ok(true)
        }
        // The arguments of this program's own children under callgrind.
        [callgrind::RUN, name, times] => return paths::run(name, times),
        [lines::RUN, name] => lines::run(name).map(|()| true).map_err(|e| e.to_string()),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("counts: {error}");
            ExitCode::from(2)
        }
    }
}

fn baseline_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.tsv")
}

/// Counts everything and compares. Returns whether all counts are within the tolerance.
fn compare() -> Result<bool, String> {
    let file = baseline_file();
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let baseline = Baseline::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let now = Baseline {
        made_with: callgrind::made_with()?,
        counts: count_all()?,
    };
    let verdict = Verdict::of(&baseline, &now);
    print!("{verdict}");
    Ok(verdict.holds())
}

/// Writes a new baseline.
fn record() -> Result<bool, String> {
    let made_with = callgrind::made_with()?;
    if env!("COUNTS_PROFILE") != "release" {
        return Err(format!(
            "a baseline is recorded with the profile as Cargo.toml has it, and this is {}",
            env!("COUNTS_PROFILE")
        ));
    }
    let counts = count_all()?;
    let baseline = Baseline { made_with, counts };
    let file = baseline_file();
    fs::write(&file, baseline.text()).map_err(|e| format!("{}: {e}", file.display()))?;
    print!("{}", baseline.text());
    Ok(true)
}

/// Counts every path.
fn count_all() -> Result<Vec<(String, f64)>, String> {
    let ways: Vec<&Way> = PATHS.iter().collect();
    let counts = count(&ways, LOADED_AT, false)?;
    Ok(PATHS
        .iter()
        .map(|way| way.name.to_owned())
        .zip(counts)
        .collect())
}

/// Counts paths on a store that was loaded at this χ, compacted for ranges or not.
fn count(ways: &[&Way], chi: u32, compacted: bool) -> Result<Vec<f64>, String> {
    let scratch = Scratch::new()?;
    paths::prepare(&scratch.0, chi, compacted)
        .map_err(|e| format!("loading the store at χ = {chi}: {e}"))?;
    callgrind::count_each(ways, &scratch.0)
}

/// Counts reads of stores loaded at different χ, as loaded and after compaction for ranges. Returns
/// whether no path pays for χ.
fn across_chi() -> Result<bool, String> {
    callgrind::made_with()?;
    let ways = chi::PATHS
        .iter()
        .map(|name| paths::find(name).ok_or_else(|| format!("no path is called {name:?}")))
        .collect::<Result<Vec<_>, _>>()?;
    let mut holds = true;
    for (compacted, when) in [(false, "as loaded"), (true, "compacted")] {
        let mut table = chi::Table::default();
        for chi in chi::DISTANCES {
            table.add(chi, count(&ways, chi, compacted)?);
        }
        println!("{when}:\n{table}");
        holds &= table.holds();
    }
    Ok(holds)
}

/// Looks for cache lines that two readers write. Returns whether there is none.
fn shared_lines() -> Result<bool, String> {
    let scratch = Scratch::new()?;
    lines::watch_all(&scratch.0)
}

fn show_profile(name: &str) -> Result<bool, String> {
    callgrind::made_with()?;
    let way = paths::find(name).ok_or_else(|| format!("no path is called {name:?}; see --list"))?;
    let scratch = Scratch::new()?;
    paths::prepare(&scratch.0, LOADED_AT, false)
        .map_err(|e| format!("preparing the store: {e}"))?;
    callgrind::profile(way, &scratch.0)?;
    Ok(true)
}

/// A directory for the stores, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = env::temp_dir().join(format!("counts-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
