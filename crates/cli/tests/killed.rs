//! `kill -9` during an import: every acknowledged record is there, the records are a prefix of the
//! input, and the database is sound. After a killed demo, the next run removes what it left.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use common::{TestDirectory, command, succeed, text};

fn line(number: u64) -> String {
    format!(
        "key-{:016x}\t{number} {}\n",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        "x".repeat(number as usize % 200)
    )
}

/// Imports into a database until this many records are acknowledged, then kills the process.
/// Returns the last count it printed.
fn kill_after(db: &str, first: u64, acknowledged: u64, every: u64) -> u64 {
    let arguments = [
        "import",
        db,
        "-",
        "--format",
        "tsv",
        "--memory",
        "16MiB",
        "--ack-every",
        &every.to_string(),
    ];
    let mut child = command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Endless: only the kill ends it.
            let mut number = first;
            while stdin.write_all(line(number).as_bytes()).is_ok() {
                number += 1;
            }
        });
        let mut last = 0;
        for said in stdout.lines() {
            let said = said.unwrap();
            last = said.strip_prefix("acknowledged ").unwrap().parse().unwrap();
            if last >= acknowledged {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        last
    })
}

#[test]
fn no_acknowledged_record_is_lost_in_repeated_kills() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let mut there = 0;
    for (acknowledged, every) in [(10, 1), (3_000, 500), (60_000, 1_000), (100_000, 777)] {
        let counted = kill_after(text(&db), there, acknowledged, every);
        assert!(counted >= acknowledged);
        // The records are a prefix of everything that was sent.
        let stored = succeed(&["scan", text(&db), "--memory", "64MiB"]);
        let count = stored.iter().filter(|&&byte| byte == b'\n').count() as u64;
        assert!(count >= there + counted, "{count} of {there} and {counted}");
        let mut expected: Vec<String> = (0..count).map(line).collect();
        expected.sort();
        assert!(
            stored == expected.concat().into_bytes(),
            "the records are not a prefix of what was sent"
        );
        succeed(&["verify", text(&db)]);
        there = count;
    }
    // An open for writing completes the recovery.
    succeed(&["put", text(&db), "after", "all"]);
    assert_eq!(succeed(&["get", text(&db), "after"]), b"all");
    succeed(&["verify", text(&db)]);
}

/// A demo that waits for its input, and its temporary directory.
fn waiting_demo(temporary: &Path) -> (Child, PathBuf) {
    let mut command = command(&["demo", "--file", "-", "--format", "tsv"]);
    command.env("TMPDIR", temporary).stdin(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    // Its stdout stays open: a demo without a reader would end.
    let stdout = demo.stdout.as_mut().unwrap();
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    let directory = said.split_whitespace().nth(2).unwrap();
    let directory = directory.trim_end_matches(',').into();
    (demo, directory)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_next_run_removes_only_what_a_killed_run_left() {
    let place = TestDirectory::new();
    let temporary = place.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let (killed, left) = waiting_demo(&temporary);
    let name = left.file_name().unwrap().to_str().unwrap();
    let (_, machine) = name.rsplit_once('@').unwrap();
    // One of another machine, one of another program, and one that is no directory.
    let kept = ["terrapin-demo-1-0", "terrapin-temporary-demo-1-0@other"];
    for name in kept {
        std::fs::create_dir(temporary.join(name)).unwrap();
    }
    let file = temporary.join(format!("terrapin-temporary-file@{machine}"));
    std::fs::write(&file, "text").unwrap();
    let link = temporary.join(format!("terrapin-temporary-link@{machine}"));
    let target = place.path("target");
    std::fs::create_dir(&target).unwrap();
    symlink(&target, &link).unwrap();

    kill(killed);
    assert!(left.is_dir());
    let (running, used) = waiting_demo(&temporary);
    assert!(!left.exists() && used.is_dir());
    // A benchmark also removes what a demo left, and leaves directories in use alone.
    let bench = || {
        let arguments = "bench chi --largest 1 --records 2000 --operations 50 --batch-unit 64KiB";
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = command(&arguments).env("TMPDIR", &temporary).output();
        assert!(output.unwrap().status.success());
    };
    bench();
    assert!(used.is_dir());
    kill(running);
    bench();
    assert!(!used.exists());
    assert!(kept.iter().all(|name| temporary.join(name).is_dir()));
    assert!(file.is_file() && link.is_symlink() && target.is_dir());
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 4);
}
