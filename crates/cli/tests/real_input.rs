//! The whole flow on realistic input: a JSON object of package name → repository, some of them
//! null. The sample is generated. `scripts/real-input.sh` runs this on the real file of millions
//! (its path in `TERRAPIN_REAL_INPUT`).

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use common::{TestDirectory, command, missing, succeed, text};
use serde_json::Value;
use terrapin_base::Env;

const SAMPLE_RECORDS: u64 = 60_000;

/// Writes a file like the real one, in an order unrelated to that of the keys.
fn sample(place: &TestDirectory) -> PathBuf {
    let mut members = Vec::new();
    for number in 0..SAMPLE_RECORDS {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let name = match number % 5 {
            0 => format!("@scope{}/pkg-{mixed:x}-{number}", mixed % 50),
            1 => format!("ünï-{mixed:x}-{number}"),
            _ => format!("pkg-{mixed:x}-{number}"),
        };
        let value = match number % 7 {
            0 => "null".into(),
            1 => format!("\"git+ssh://git@host/{name}\\u002egit\\\"\""),
            _ => format!("\"https://git.example/{mixed:x}/{name}\""),
        };
        members.push(format!("  \"{name}\": {value}"));
    }
    place.write(
        "packages.json",
        format!("{{\n{}\n}}\n", members.join(",\n")),
    )
}

/// A database's records after an import: strings as they are, other values as their text.
fn expected(file: &Path) -> BTreeMap<String, String> {
    let object: serde_json::Map<String, Value> =
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let text_of = |value| {
        if let Value::String(said) = value {
            said
        } else {
            Value::to_string(&value)
        }
    };
    object
        .into_iter()
        .map(|(key, value)| (key, text_of(value)))
        .collect()
}

fn lines<'a>(records: impl Iterator<Item = (&'a String, &'a String)>) -> Vec<u8> {
    records
        .map(|(key, value)| format!("{key}\t{value}\n"))
        .collect::<String>()
        .into_bytes()
}

/// Peak resident memory of a running process, in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Imports a file and kills the process after this many acknowledged records, if given. Returns the
/// last count and peak memory.
fn import(db: &Path, file: &Path, every: u64, kill_at: u64) -> (u64, u64) {
    let every = every.to_string();
    let arguments = [
        "import",
        text(db),
        text(file),
        "--memory",
        "64MiB",
        "--format",
        "json",
        "--ack-every",
        &every,
    ];
    let mut child = command(&arguments).spawn().unwrap();
    let (mut count, mut peak) = (0, 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        count = line
            .unwrap()
            .strip_prefix("acknowledged ")
            .unwrap()
            .parse()
            .unwrap();
        peak = peak.max(peak_bytes(child.id()));
        if count >= kill_at {
            child.kill().unwrap();
        }
    }
    assert_eq!(child.wait().unwrap().success(), count < kill_at);
    (count, peak)
}

#[test]
fn the_whole_flow_on_a_registry_of_packages() {
    let place = TestDirectory::new();
    let given = std::env::var_os("TERRAPIN_REAL_INPUT").map(PathBuf::from);
    let file = given.unwrap_or_else(|| sample(&place));
    let records = expected(&file);
    let total = records.len() as u64;
    let db = place.path("db");
    let clock = Env::threads();
    let mut begun = clock.now_ns();
    let mut tell = |what: &str| {
        let now = clock.now_ns();
        println!("{what}: {:.2} s", (now - begun) as f64 / 1e9);
        begun = clock.now_ns();
    };

    let (count, peak) = import(&db, &file, total / 20 + 1, u64::MAX);
    tell(&format!(
        "import of {count} records, peak memory {} MiB",
        peak >> 20
    ));
    assert_eq!(count, total);
    let bound = (64 << 20) * 11 / 10 + (64 << 20);
    assert!(peak <= bound, "{peak} of {bound} bytes");

    let out = place.path("out.json");
    succeed(&["export", text(&db), text(&out), "--memory", "64MiB"]);
    tell("export");
    assert!(
        expected(&out) == records,
        "the export differs from the import"
    );
    succeed(&[
        "export",
        text(&db),
        text(&out),
        "--typed",
        "--memory",
        "64MiB",
    ]);
    let object = |file: &Path| -> serde_json::Map<String, Value> {
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
    };
    assert!(
        object(&out) == object(&file),
        "the typed export is not the JSON that was imported"
    );
    assert!(
        succeed(&["scan", text(&db)]) == lines(records.iter()),
        "the scan differs, or is out of order"
    );
    succeed(&["verify", text(&db)]);

    let keys: Vec<&String> = records.keys().collect();
    for key in keys.iter().step_by(keys.len() / 20 + 1) {
        assert_eq!(
            succeed(&["get", text(&db), "--", key]),
            records[*key].as_bytes()
        );
        let prefix: String = key.chars().take(5).collect();
        let found = succeed(&["scan", text(&db), &format!("--prefix={prefix}")]);
        assert!(
            found == lines(records.iter().filter(|(k, _)| k.starts_with(&prefix))),
            "prefix {prefix}"
        );
    }
    missing(&["get", text(&db), "no such package"]);

    begun = clock.now_ns();
    let killed = place.path("killed");
    let (acknowledged, _) = import(&killed, &file, 100, total / 3);
    succeed(&["stat", text(&killed), "--memory", "64MiB"]);
    println!(
        "killed at {acknowledged}, and opened: {:.2} s in all",
        (clock.now_ns() - begun) as f64 / 1e9
    );
    succeed(&["verify", text(&killed)]);
    let stored = succeed(&["scan", text(&killed), "--memory", "64MiB"]);
    let mut there = 0;
    for line in stored.lines() {
        let line = line.unwrap();
        let (key, value) = line.split_once('\t').unwrap();
        assert_eq!(records.get(key).map(String::as_str), Some(value), "{key}");
        there += 1;
    }
    assert!(
        there >= acknowledged,
        "{there} of {acknowledged} acknowledged records"
    );
    // The same import again completes it.
    assert_eq!(import(&killed, &file, total, u64::MAX).0, total);
    assert!(succeed(&["scan", text(&killed)]) == lines(records.iter()));
    succeed(&["verify", text(&killed)]);
}
