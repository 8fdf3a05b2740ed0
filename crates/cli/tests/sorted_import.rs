//! `terrapin import --sorted`: all records or none.

mod common;

use common::{TestDirectory, fail, run_with, succeed, text};

fn count(db: &std::path::Path) -> usize {
    let records = succeed(&["scan", text(db)]);
    records.iter().filter(|byte| **byte == b'\n').count()
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("k{n:05}\tv{n}\n")).collect()
}

#[test]
fn sorted_records_are_stored_all_together() {
    let place = TestDirectory::new();
    let (db, file) = (&place.path("db"), place.write("in.tsv", lines(0..2000)));
    let out = succeed(&["import", text(db), text(&file), "--sorted", "--json"]);
    assert!(String::from_utf8_lossy(&out).contains("\"records\":2000"));
    assert_eq!(count(db), 2000);
    // Among and behind those there are, from stdin.
    let more = lines(1000..3000).replace("\tv", "\tw");
    let arguments = ["import", text(db), "-", "--format", "tsv", "--sorted"];
    assert!(run_with(&arguments, more.as_bytes()).status.success());
    assert_eq!(succeed(&["get", text(db), "k00999"]), b"v999");
    assert_eq!(succeed(&["get", text(db), "k01000"]), b"w1000");
    assert_eq!(count(db), 3000);
    succeed(&["verify", text(db)]);
}

#[test]
fn an_unsorted_or_malformed_line_stores_nothing() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    succeed(&["put", text(db), "k00001", "kept"]);
    for (bad, named) in [
        ("k00007\tx\n", "a key below the key before it"),
        ("k00499\tx\n", "a key twice"),
        ("no value\n", "malformed line 501"),
    ] {
        let file = place.write("in.tsv", lines(0..500) + bad);
        let error = fail(&["import", text(db), text(&file), "--sorted"]);
        assert!(error.contains(named) && error.contains("501"), "{error}");
        assert!(error.contains("records imported before it 0"), "{error}");
        assert_eq!(count(db), 1);
    }
    let file = place.write("in.tsv", lines(0..5));
    for other in [["--ack-every", "1"], ["--durability", "sync"]] {
        let error = fail(&[
            "import",
            text(db),
            text(&file),
            "--sorted",
            other[0],
            other[1],
        ]);
        assert!(error.contains("--sorted"), "{error}");
    }
}
