//! Runs this program under callgrind in fixed surroundings and reads the count.
//!
//! The child has no environment, its arguments name no path, and it works in its current directory.
//! Its operations run on a thread of their own (`paths::run`). So neither the program's path nor
//! anything above `main`'s stack moves memory, on whose alignment copies depend. Valgrind shows
//! every program the same processor; code chosen by processor features is chosen for that one.

use std::path::Path;
use std::process::Command;
use std::{env, fs, thread};

use crate::paths::{STORE, Way};
use crate::profile::{Function, functions};

/// The first argument of a child.
pub const RUN: &str = "run";
/// The function whose instructions a profile covers: `paths::operations_under_count`.
const MEASURED: &str = "*operations_under_count*";

/// The least instructions per operation of a function in a profile.
const PROFILE_LEAST: f64 = 1.0;

/// Valgrind without an environment.
pub fn valgrind() -> Command {
    let mut command = Command::new("valgrind");
    command
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default());
    command
}

/// What decides counts besides the source: names and values.
pub fn made_with() -> Result<Vec<(String, String)>, String> {
    if env!("COUNTS_PROFILE").starts_with("debug") {
        return Err(
            "counts are those of the release profile: cargo run --release -p counts".into(),
        );
    }
    let version = first_line(valgrind().arg("--version"))
        .map_err(|e| format!("valgrind, which counts, does not run ({e}): install it"))?;
    // The C library makes the copies.
    let libc = first_line(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let pairs = [
        ("rustc", env!("COUNTS_RUSTC").to_owned()),
        ("target", env!("COUNTS_TARGET").to_owned()),
        ("profile", env!("COUNTS_PROFILE").to_owned()),
        ("valgrind", version),
        ("libc", libc.unwrap_or_else(|_| "unknown".into())),
    ];
    Ok(pairs.map(|(name, value)| (name.to_owned(), value)).into())
}

fn first_line(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().to_owned()),
        _ => Err(format!("{}", output.status)),
    }
}

/// Runs a path's operations this many times on a fresh copy of the store. Returns callgrind's log.
fn run(way: &Way, times: u64, scratch: &Path, options: &[&str]) -> Result<String, String> {
    let program = env::current_exe().map_err(|e| e.to_string())?;
    let directory = scratch.join(format!("{}-{times}", way.name.replace(' ', "-")));
    let fail = |e: std::io::Error| format!("{}: {e}", directory.display());
    fs::create_dir_all(directory.join(STORE)).map_err(fail)?;
    if way.uses_store {
        for entry in fs::read_dir(scratch.join(STORE)).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let copy = directory.join(STORE).join(entry.file_name());
            fs::copy(entry.path(), copy).map_err(fail)?;
        }
    }
    let output = valgrind()
        .args(["--tool=callgrind", "--vgdb=no", "--log-file=log"])
        .args(options)
        .arg(program)
        .args([RUN, way.name, &times.to_string()])
        .current_dir(&directory)
        .output()
        .map_err(|e| format!("valgrind does not run: {e}"))?;
    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
    fs::remove_dir_all(&directory).map_err(fail)?;
    if output.status.success() {
        return Ok(log);
    }
    Err(format!(
        "{} failed under callgrind ({}):\n{}{}{log}",
        way.name,
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Instructions per operation of each path, with one path per processor at a time. A count is the
/// difference between n and 2n operations, divided by n. So the process's start and the path's
/// preparation do not count.
pub fn count_each(ways: &[&Way], scratch: &Path) -> Result<Vec<f64>, String> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let queue = std::sync::Mutex::new(ways.iter().enumerate());
    let mut counts = vec![Ok(0.0); ways.len()];
    thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let next = queue.lock().map_err(|_| "a counter panicked")?.next();
                let Some((place, way)) = next else {
                    return Ok::<_, &str>(done);
                };
                done.push((place, count_one(way, scratch)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            for (place, outcome) in worker.join().map_err(|_| "a counter panicked")?? {
                counts[place] = outcome;
            }
        }
        Ok::<_, &str>(())
    })?;
    counts.into_iter().collect()
}

fn count_one(way: &Way, scratch: &Path) -> Result<f64, String> {
    let once = count(way, 1, scratch)?;
    let twice = count(way, 2, scratch)?;
    let more = twice
        .checked_sub(once)
        .ok_or_else(|| format!("{}: more operations took fewer instructions", way.name))?;
    // To one decimal, as in the baseline.
    Ok((more as f64 / way.operations as f64 * 10.0).round() / 10.0)
}

/// Instructions of a whole process that runs a path's operations this many times.
fn count(way: &Way, times: u64, scratch: &Path) -> Result<u64, String> {
    let log = run(way, times, scratch, &["--callgrind-out-file=/dev/null"])?;
    collected(&log).ok_or_else(|| format!("callgrind did not say what it counted:\n{log}"))
}

/// The line `==123== Collected : 4567`.
fn collected(log: &str) -> Option<u64> {
    let (_, rest) = log.split_once("Collected :")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Prints the functions in which a path's instructions are.
pub fn profile(way: &Way, scratch: &Path) -> Result<(), String> {
    let file = scratch.join("profile");
    let out = format!("--callgrind-out-file={}", file.display());
    let toggle = format!("--toggle-collect={MEASURED}");
    run(way, 1, scratch, &[&out, &toggle])?;
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    println!("{}: {}", way.name, way.what);
    println!(
        "{:>9} {:>12}  instructions an operation, of its own and with what it calls",
        "own", "with callees"
    );
    let each = |count: u64| count as f64 / way.operations as f64;
    let shown = |function: &Function| each(function.own) >= PROFILE_LEAST;
    for function in functions(&text).into_iter().take_while(shown) {
        let (own, with_callees) = (each(function.own), each(function.with_callees));
        println!("{own:9.1} {with_callees:12.1}  {}", function.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_off_callgrinds_log() {
        let log = "==7== Events    : Ir\n==7== Collected : 1234567\n==7== \n";
        assert_eq!(collected(log), Some(1_234_567));
        assert_eq!(collected("==7== valgrind: cannot\n"), None);
    }
}
