//! `verify` and `stat`: their output and exit codes.

mod common;

use std::path::Path;

use common::{TestDirectory, complaint, run, run_with, succeed, text};
use serde_json::Value;

fn fill(db: &Path) {
    let input: String = (0..40_000u32)
        .map(|n| {
            format!(
                "{:08x}\t{}\n",
                n.wrapping_mul(2_654_435_761),
                "v".repeat(100)
            )
        })
        .collect();
    let output = run_with(
        &[
            "import",
            text(db),
            "-",
            "--format",
            "tsv",
            "--memory",
            "16MiB",
        ],
        input.as_bytes(),
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let output = run(arguments);
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap(),
    )
}

#[test]
fn a_sound_database_is_reported_sound_and_its_figures_add_up() {
    let place = TestDirectory::new();
    let db = place.path("db");
    fill(&db);
    let (code, report) = json(&["verify", text(&db), "--json"]);
    assert_eq!(code, Some(0));
    assert_eq!(report["sound"], true);
    assert_eq!(report["findings"], Value::Array(vec![]));
    assert!(succeed(&["verify", text(&db)]).starts_with(b"sound: "));
    let (code, stat) = json(&["stat", text(&db), "--json"]);
    assert_eq!(code, Some(0));
    let keyspace = &stat["keyspaces"][0];
    let records = keyspace["records"].as_u64().unwrap();
    assert!((36_000..44_000).contains(&records), "{records}");
    let bytes = keyspace["bytes"].as_u64().unwrap();
    assert!(
        (40_000 * 108..40_000 * 108 * 6 / 5).contains(&bytes),
        "{bytes}"
    );
    for name in [
        "height",
        "nodes",
        "groups",
        "buffered_bytes",
        "buffer_level_bytes",
        "buffer_runs_hundredths",
        "buffer_runs_max",
        "log_only_bytes",
    ] {
        assert!(!keyspace[name].is_null(), "{name}");
    }
    for name in ["space_bytes", "space_amplification", "records", "bytes"] {
        assert!(!stat[name].is_null(), "{name}");
    }
    let text_of = String::from_utf8(succeed(&["stat", text(&db)])).unwrap();
    for word in [
        "default",
        "records",
        "height",
        "space amplification",
        "all other options",
        "to replay",
    ] {
        assert!(text_of.contains(word), "{word}: {text_of}");
    }
}

#[test]
fn damage_is_found_with_its_place() {
    let place = TestDirectory::new();
    let db = place.path("db");
    fill(&db);
    // The largest file holds the pages; a byte in the middle of its data is flipped.
    let files = std::fs::read_dir(&db)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_file());
    let with_value = |path: &Path| {
        std::fs::read(path)
            .unwrap()
            .windows(100)
            .rposition(|w| w == [b'v'; 100])
    };
    let mut hit = 0;
    for file in files.collect::<Vec<_>>() {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        if name.contains("ring") || name.contains("log") {
            continue;
        }
        let Some(at) = with_value(&file) else {
            continue;
        };
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[at + 50] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        hit += 1;
    }
    assert!(hit > 0, "no file holds a value");
    let (code, report) = json(&["verify", text(&db), "--json"]);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["sound"], false);
    let finding = &report["findings"][0];
    assert!(
        !finding["place"].as_str().unwrap().is_empty()
            && !finding["message"].as_str().unwrap().is_empty()
    );
    let output = run(&["verify", text(&db)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("damaged: ")
    );
    complaint(&run(&["export", text(&db), "--format", "tsv"]));
}

#[test]
fn a_failed_open_is_not_reported_as_damage() {
    let place = TestDirectory::new();
    let file = place.write("file", "not a database");
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();
    for path in [place.path("missing"), file, empty] {
        let output = run(&["verify", text(&path), "--json"]);
        assert_eq!(output.status.code(), Some(2), "{}", path.display());
        complaint(&output);
    }
    let output = run(&["verify"]);
    assert_eq!(output.status.code(), Some(2));
    complaint(&output);
}

/// A missing log used to give exit code 2, as if it could not be checked; and batches were counted
/// as records.
#[test]
fn a_missing_file_is_damage_and_the_log_is_counted_in_operations() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let database = terrapin::Options::new().memory(16 << 20).open(&db).unwrap();
    let mut batch = database.batch();
    for number in 0..1000u32 {
        batch.put(&database.default_keyspace(), number.to_be_bytes(), "v");
    }
    database.write(&batch).unwrap();
    // Without a close everything stays in the log.
    drop(database);
    let (code, report) = json(&["verify", text(&db), "--json"]);
    assert_eq!(
        (code, report["log_operations"].as_u64()),
        (Some(0), Some(1000))
    );
    let said = String::from_utf8(succeed(&["verify", text(&db)])).unwrap();
    assert!(
        said.contains("1,000 operations in the log to replay"),
        "{said}"
    );
    for lost in ["log-", "data"] {
        let copy = place.path(lost);
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(&db).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with(lost) {
                std::fs::copy(db.join(&name), copy.join(&name)).unwrap();
            }
        }
        let output = run(&["verify", text(&copy)]);
        assert_eq!(output.status.code(), Some(1), "{lost}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            said.contains("missing") && said.contains("damaged: 1 finding"),
            "{said}"
        );
        assert!(output.stderr.is_empty());
    }
    // Another file in their place is damage too.
    for (lost, instead) in [
        ("data", "ln -s nowhere"),
        ("data", "mkfifo"),
        ("data", "mkdir"),
        ("ring", "mkdir"),
    ] {
        let copy = place.path("instead");
        let line = format!("cp -r \"$0\" \"$1\" && cd \"$1\" && rm {lost} && {instead} {lost}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &line, text(&db), text(&copy)]);
        assert!(shell.status().unwrap().success());
        let output = run(&["verify", text(&copy)]);
        assert_eq!(output.status.code(), Some(1), "{lost}: {instead}");
        std::fs::remove_dir_all(&copy).unwrap();
    }
}
