//! `kill -9` in mid-import: what was acknowledged is there, what is there is a prefix of the input, and the database is sound.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use common::{Place, command, succeed, text};

fn line(number: u64) -> String {
    format!(
        "key-{:016x}\t{number} {}\n",
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        "x".repeat(number as usize % 200)
    )
}

/// Imports into a database until so many records are acknowledged, then kills the process; returns the last count it printed.
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
fn nothing_acknowledged_is_lost_again_and_again() {
    let place = Place::new();
    let db = place.path("db");
    let mut there = 0;
    for (acknowledged, every) in [(10, 1), (3_000, 500), (60_000, 1_000), (100_000, 777)] {
        let counted = kill_after(text(&db), there, acknowledged, every);
        assert!(counted >= acknowledged);
        // What is there is a prefix of everything that was ever sent.
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
    // A writing open recovers for good.
    succeed(&["put", text(&db), "after", "all"]);
    assert_eq!(succeed(&["get", text(&db), "after"]), b"all");
    succeed(&["verify", text(&db)]);
}
