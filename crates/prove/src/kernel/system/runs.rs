//! Processes that end right after their first write, one after the other, in a small file system
//! that fills up half way. Each opens and finds what the others wrote, and the log's files stay few
//! and short (decision 0031).

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, process};

use terrapin::Options;

use crate::Find;
use crate::kernel::file_system::{FileSystem, Kind};
use crate::kernel::judge::sound;

/// The first argument of such a process; the directory and its number follow.
const SHORT_RUN: &str = "--kernel-short-run";
/// How many processes put a record each; as many more delete one each on a full disk.
const RUNS: u64 = 30;
const SEGMENT_BYTES: u64 = 512 << 10;
/// The limit of the log's files: a segment, two spares, and a few lives of one record.
const LOG_BYTES_MAX: u64 = 4 * SEGMENT_BYTES;
const LOG_FILES_MAX: usize = 13;

fn options() -> Options {
    Options::new()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(256 << 10)
        .log_segment_bytes(SEGMENT_BYTES)
}

/// The runs, and their results.
pub fn short_runs(scratch: &Path) -> Result<u64, Find> {
    let system = FileSystem::new(Kind::Ext4, scratch, 24 << 20)?;
    let directory = system.path().join("database");
    let filler = system.path().join("filler");
    for run in 0..2 * RUNS {
        if run == RUNS {
            fill(&filler)?;
        }
        let mut said = say(&directory, run)?;
        // An open on a full disk may lack room for the log's next file. It fails then, and succeeds
        // once there is room.
        if run >= RUNS && said.contains("cannot allocate space") {
            fs::remove_file(&filler)?;
            said = say(&directory, run)?;
            fill(&filler)?;
        }
        if !said.is_empty() {
            return Err(Find(format!("run {run}: {}", said.trim())));
        }
        let (files, bytes) = log_files(&directory)?;
        if files > LOG_FILES_MAX || bytes > LOG_BYTES_MAX {
            return Err(Find(format!(
                "after run {run} the log has {files} files of {bytes} bytes"
            )));
        }
    }
    sound(&directory, "after all runs", false)?;
    let database = options().open(&directory)?;
    let left = database.default_keyspace().iter().count();
    match left {
        0 => Ok(2 * RUNS),
        _ => Err(Find(format!("{left} records are there that were deleted"))),
    }
}

/// Runs a process, and returns what it says on stderr.
fn say(directory: &Path, run: u64) -> Result<String, Find> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(SHORT_RUN).arg(directory).arg(run.to_string());
    let output = command.stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Takes all free space.
fn fill(path: &Path) -> Result<(), Find> {
    let mut file = File::create(path)?;
    let block = [0xa5; 64 << 10];
    while file.write_all(&block).is_ok() {}
    // Unwritten data may find no space any more.
    let _ = file.sync_all();
    Ok(())
}

fn log_files(directory: &Path) -> Result<(usize, u64), Find> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("log-") || name.starts_with("spare-") {
            files += 1;
            bytes += entry.metadata()?.len();
        }
    }
    Ok((files, bytes))
}

/// Does the work of one run, if the arguments ask for it. It leaves without closing, or dies.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, role, directory, run] = arguments else {
        return None;
    };
    let run: u64 = run.parse().ok().filter(|_| role == SHORT_RUN)?;
    let done: terrapin::Result<()> = options().open(directory).and_then(|database| {
        let key = (run % RUNS).to_be_bytes();
        match run < RUNS {
            true => database.default_keyspace().put(key, [7; 100]),
            false => database.default_keyspace().delete(key),
        }?;
        if run.is_multiple_of(2) {
            process::exit(0);
        }
        process::abort()
    });
    if let Err(error) = done {
        eprintln!("{error}");
    }
    Some(ExitCode::FAILURE)
}
