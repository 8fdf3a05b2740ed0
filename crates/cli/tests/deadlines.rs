//! Exports and imports keep deadlines, or refuse to drop them unasked.

mod common;

use std::path::Path;

use common::{TestDirectory, fail, missing, succeed, text};

/// The year 2096: later than any run of this test.
const LATE_MS: &str = "4000000000000";

fn records(place: &TestDirectory) -> std::path::PathBuf {
    let lines = [
        r#"{"key":"a","value":"1"}"#.to_owned(),
        format!(r#"{{"key":"b","value":"2","expires_ms":{LATE_MS}}}"#),
        format!(r#"{{"expires_ms":{LATE_MS},"key":"c,","value":""}}"#),
    ];
    place.write("records.jsonl", lines.join("\n") + "\n")
}

fn seconds_left(db: &Path, key: &str, keyspace: &str) -> f64 {
    let left = succeed(&["ttl", text(db), key, "-k", keyspace]);
    String::from_utf8(left).unwrap().trim().parse().unwrap()
}

#[test]
fn deadlines_survive_export_and_import_in_the_formats_that_carry_them() {
    let place = TestDirectory::new();
    let input = records(&place);
    for structure in ["leveled", "hashed"] {
        let db = place.path(structure);
        let options = ["--keyspace", "k"];
        succeed(&[
            "keyspace",
            "create",
            text(&db),
            "k",
            "--structure",
            structure,
        ]);
        succeed(&[&["import", text(&db), text(&input)], &options[..]].concat());
        for (name, flags) in [
            ("out.jsonl", &[][..]),
            ("out.csv", &["--deadlines"]),
            ("header.csv", &["--deadlines", "--header"]),
            ("hex.csv", &["--deadlines", "--hex"]),
            ("hex.jsonl", &["--hex"]),
        ] {
            let file = place.path(&format!("{structure}-{name}"));
            succeed(&[&["export", text(&db), text(&file)], &options[..], flags].concat());
            for sorted in [&[][..], &["--sorted"]] {
                // A hashed keyspace exports in no order.
                if !sorted.is_empty() && structure == "hashed" {
                    continue;
                }
                let copy = place.path(&format!("{structure}-{name}-{}", sorted.len()));
                succeed(&[&["import", text(&copy), text(&file)], flags, sorted].concat());
                assert_eq!(succeed(&["ttl", text(&copy), "a"]), b"unlimited\n");
                for key in ["b", "c,"] {
                    let left = seconds_left(&db, "b", "k");
                    let copied = seconds_left(&copy, key, "default");
                    assert!((left - copied).abs() < 600.0, "{left} {copied}");
                    assert!(copied > 1e9, "{copied}");
                }
                let exported = succeed(&["export", text(&copy), "--format", "jsonl"]);
                let exported = String::from_utf8(exported).unwrap();
                let expiring = exported
                    .matches(&format!("\"expires_ms\":{LATE_MS}"))
                    .count();
                assert_eq!(expiring, 2, "{exported}");
                assert_eq!(succeed(&["get", text(&copy), "b"]), b"2");
            }
        }
    }
}

#[test]
fn a_format_without_deadlines_drops_none_unless_it_is_told_to() {
    let place = TestDirectory::new();
    let input = records(&place);
    let db = place.path("db");
    succeed(&["import", text(&db), text(&input)]);
    for format in ["csv", "tsv", "json"] {
        let said = fail(&["export", text(&db), "--format", format]);
        assert!(
            said.contains("--deadlines") && said.contains("--drop-deadlines"),
            "{said}"
        );
        let flags = ["--format", format, "--drop-deadlines"];
        succeed(&[&["export", text(&db)], &flags[..]].concat());
    }
    let plain = succeed(&["export", text(&db), "--drop-deadlines"]);
    assert_eq!(plain, b"a,1\r\nb,2\r\n\"c,\",\r\n");
    let keys = succeed(&["export", text(&db), "--keys-only"]);
    assert_eq!(keys, b"a\r\nb\r\n\"c,\"\r\n");
    for flags in [
        &["--format", "tsv", "--deadlines"][..],
        &["--format", "json", "--deadlines"],
        &["--deadlines", "--keys-only"],
        &["--deadlines", "--drop-deadlines"],
    ] {
        fail(&[&["export", text(&db)], flags].concat());
    }
    let scanned = succeed(&["scan", text(&db), "--prefix", "b", "--json"]);
    let expected = format!("{{\"key\":\"b\",\"value\":\"2\",\"expires_ms\":{LATE_MS}}}\n");
    assert_eq!(String::from_utf8(scanned).unwrap(), expected);
    // A third column is no deadline unless somebody says so.
    let three = place.write("three.csv", format!("a,1,{LATE_MS}\n"));
    assert!(fail(&["import", text(&db), text(&three)]).contains("--deadlines"));
    let late = place.write("late.csv", "a,1,soon\n");
    let said = fail(&["import", text(&db), text(&late), "--deadlines"]);
    assert!(said.contains("expires_ms"));
}

#[test]
fn an_import_of_an_expired_value_deletes_its_key() {
    let place = TestDirectory::new();
    let db = place.path("db");
    for (number, sorted) in [(0, &[][..]), (1, &["--sorted"])] {
        let key = format!("k{number}");
        succeed(&["put", text(&db), &key, "old"]);
        let line = format!("{{\"key\":\"{key}\",\"value\":\"new\",\"expires_ms\":1000}}\n");
        let input = place.write("old.jsonl", line);
        succeed(&[&["import", text(&db), text(&input)], sorted].concat());
        missing(&["get", text(&db), &key]);
    }
}
