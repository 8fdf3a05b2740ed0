//! `terrapin keyspace`: options of a keyspace are stored, shown and refused.

mod common;

use common::{TestDirectory, fail, run, succeed, text};
use serde_json::{Value, json};

fn listed(db: &str, name: &str) -> Value {
    let out = succeed(&["keyspace", "list", db, "--json"]);
    let all: Value = serde_json::from_slice(&out).unwrap();
    let keyspaces = all["keyspaces"].as_array().unwrap();
    let found = keyspaces.iter().find(|k| k["name"] == name).unwrap();
    let stat = succeed(&["stat", db, "-k", name, "--json"]);
    let stat: Value = serde_json::from_slice(&stat).unwrap();
    let stat = &stat["keyspaces"][0];
    assert_eq!(
        (&stat["structure"], &stat["options"]),
        (&found["structure"], &found["options"])
    );
    assert_eq!(found["structure"], "leveled");
    found["options"].clone()
}

#[test]
fn options_of_a_keyspace_are_kept_until_they_are_set_again() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    let create = "--structure leveled --checkpoint-distance 4 --compression lz4 --filter-bits 8 --space-amplification 1.5";
    let create: Vec<&str> = create.split(' ').collect();
    succeed(&[&["keyspace", "create", db, "birds"], &create[..]].concat());
    let own = json!({
        "checkpoint_distance": 4,
        "compression": "lz4",
        "filter_bits": 8,
        "space_amplification": 1.5,
        "merge_operator": null,
        "separate_from": null,
        "runs": null,
        "ttl_s": null,
    });
    assert_eq!(listed(db, "birds"), own);
    // Commands that write do not change them.
    succeed(&["put", db, "crow", "black", "-k", "birds"]);
    succeed(&["checkpoint", db]);
    assert_eq!(listed(db, "birds"), own);

    let set = ["keyspace", "set", db, "birds"];
    succeed(&[&set[..], &["--filter-bits", "default", "--chi", "auto"]].concat());
    succeed(&[&set[..], &["--space-amplification", "unbounded"]].concat());
    let changed = json!({
        "checkpoint_distance": "auto",
        "compression": "lz4",
        "filter_bits": null,
        "space_amplification": "unbounded",
        "merge_operator": null,
        "separate_from": null,
        "runs": null,
        "ttl_s": null,
    });
    assert_eq!(listed(db, "birds"), changed);
    let out = succeed(&["keyspace", "list", db, "--long"]);
    let line = "birds\tstructure leveled\tcheckpoint distance χ auto\tcompression lz4\tfilter bits default\tspace amplification unbounded\tseparate from default\truns default\tmerge operator default\ttime to live default\n";
    assert!(String::from_utf8(out).unwrap().ends_with(line));
    assert_eq!(succeed(&["keyspace", "list", db]), b"default\nbirds\n");
    let stat = String::from_utf8(succeed(&["stat", db, "-k", "birds"])).unwrap();
    for shown in [
        "structure",
        "compression           lz4",
        "all other options     default: the process",
    ] {
        assert!(stat.contains(shown), "{stat}");
    }
    let set_all = [
        "--checkpoint-distance",
        "default",
        "--compression",
        "default",
        "--space-amplification",
        "default",
    ];
    succeed(&[&set[..], &set_all].concat());
    assert!(
        listed(db, "birds")
            .as_object()
            .unwrap()
            .values()
            .all(Value::is_null)
    );
    succeed(&["verify", db]);
}

#[test]
fn options_that_make_no_sense_are_refused_and_create_nothing() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    let refused = |command: &str, arguments: &[&str], why: &str| {
        let error = fail(&[&["keyspace", command, db, "k"], arguments].concat());
        assert!(error.contains(why), "{arguments:?}: {error}");
    };
    for command in ["create", "set"] {
        refused(command, &["--structure", "lsm"], "no such structure");
        refused(command, &["--filter-bits", "5"], "6 to 20");
        refused(command, &["--filter-bits", "21"], "6 to 20");
        refused(command, &["--space-amplification", "1"], "1.1 to 100");
        refused(command, &["--compression", "gzip"], "none, lz4");
        refused(command, &["--checkpoint-distance", "0"], "from 1 on");
        assert!(!path.exists());
    }
    succeed(&["keyspace", "create", db, "k"]);
    refused("set", &[], "name an option to set");
    refused("create", &["--filter-bits", "8"], "exists already");
    let error = fail(&["keyspace", "set", db, "other", "--filter-bits", "8"]);
    assert!(error.contains("no such keyspace"), "{error}");
    let help = run(&["keyspace", "set", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    for option in [
        "--structure",
        "--compression",
        "--filter-bits",
        "--space-amplification",
    ] {
        assert!(help.contains(option), "{help}");
    }
    assert!(help.contains("[alias"), "{help}");
}

#[test]
fn hashed_keyspaces_serve_keys_and_whole_scans_and_refuse_ranges() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    succeed(&["keyspace", "create", db, "s", "--structure", "hashed"]);
    for (key, value) in [("b", "2"), ("a", "1"), ("c", "3")] {
        succeed(&["put", db, key, value, "--keyspace", "s"]);
    }
    assert_eq!(succeed(&["get", db, "a", "--keyspace", "s"]), b"1");
    assert_eq!(succeed(&["count", db, "--keyspace", "s"]), b"3\n");
    for range in [&["--reverse"][..], &["--prefix", "a"], &["--from", "a"]] {
        for command in ["scan", "export"] {
            let error = fail(&[&[command, db, "--keyspace", "s"], range].concat());
            let names_the_way = error.contains("hashed") && error.contains("unordered");
            assert!(names_the_way, "{command} {range:?}: {error}");
        }
    }
    let scanned = succeed(&["scan", db, "--keyspace", "s"]);
    let scanned = String::from_utf8(scanned).unwrap();
    let mut lines: Vec<_> = scanned.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a\t1", "b\t2", "c\t3"]);
    let first = succeed(&["scan", db, "--keyspace", "s", "--limit", "1", "--keys-only"]);
    assert_eq!(first.len(), 2, "one key and a newline");
    let exported = succeed(&["export", db, "--keyspace", "s"]);
    let exported = String::from_utf8(exported).unwrap();
    let mut lines: Vec<_> = exported.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a,1", "b,2", "c,3"]);
    succeed(&["verify", db]);
}
