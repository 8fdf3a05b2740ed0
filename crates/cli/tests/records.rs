//! Single records, scans, keyspaces, settings and compression from the shell.

mod common;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use common::{TestDirectory, complaint, fail, missing, run, run_with, succeed, text};

fn put(db: &Path, key: &str, value: &str) {
    succeed(&["put", text(db), key, value]);
}

#[test]
fn a_value_is_read_as_it_was_put_until_it_is_deleted() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    put(db, "key", "value\n");
    put(db, "", "of the empty key");
    assert_eq!(succeed(&["get", text(db), "key"]), b"value\n");
    assert_eq!(succeed(&["get", text(db), ""]), b"of the empty key");
    put(db, "key", "");
    assert_eq!(succeed(&["get", text(db), "key"]), b"");
    succeed(&["delete", text(db), "key"]);
    succeed(&["delete", text(db), "key"]);
    missing(&["get", text(db), "key"]);
}

#[test]
fn bytes_of_any_kind_go_through_arguments_files_and_hexadecimal_digits() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    let raw = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    succeed(&["put".as_ref(), db.as_os_str(), raw, raw]);
    assert_eq!(succeed(&["get", text(db), "FFfe", "--hex"]), b"fffe\n");
    succeed(&["put", text(db), "00", "0a0b", "--hex"]);
    assert_eq!(
        succeed(&["scan", text(db), "--hex"]),
        b"00\t0a0b\nfffe\tfffe\n"
    );
    let value: Vec<u8> = (0..=255).cycle().take(256 << 10).collect();
    let file = place.write("value", &value);
    succeed(&["put", text(db), "large", "--file", text(&file)]);
    assert_eq!(succeed(&["get", text(db), "large"]), value);
    let output = run_with(&["put", text(db), "stdin", "--file", "-"], &value[..100]);
    assert!(output.status.success());
    assert_eq!(succeed(&["get", text(db), "stdin"]), &value[..100]);
    for wrong in ["0", "0g"] {
        assert!(fail(&["put", text(db), wrong, "00", "--hex"]).contains("hexadecimal"));
    }
    let file = place.write("value", [&value[..], b"x"].concat());
    // A large value, which has a page of its own.
    succeed(&["put", text(db), "large", "--file", text(&file)]);
    let larger = [&value[..], b"x"].concat();
    assert_eq!(succeed(&["get", text(db), "large"]), larger);
    let range = ["get", text(db), "large", "--range", "262142.."];
    assert_eq!(succeed(&range), b"\xfe\xffx");
    let out = place.path("out");
    let output = ["get", text(db), "large", "--output", text(&out)];
    succeed(&output);
    assert_eq!(std::fs::read(&out).unwrap(), larger);
    // A pipe does not say how long it is, and leaves nothing behind.
    let names = place.names();
    let long: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let piped = run_with(&["put", text(db), "piped", "--file", "-"], &long);
    assert!(piped.status.success(), "{piped:?}");
    assert!(succeed(&["get", text(db), "piped"]) == long);
    assert_eq!(place.names(), names);
}

#[test]
fn keys_values_and_ranges_may_begin_with_a_dash() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    put(db, "-5", "-7.5");
    put(db, "x", "-6");
    succeed(&["put", text(db), "--", "-a", "-b"]);
    assert_eq!(succeed(&["get", text(db), "-5"]), b"-7.5");
    assert_eq!(succeed(&["scan", text(db), "--prefix", "-a"]), b"-a\t-b\n");
    assert_eq!(
        succeed(&["scan", text(db), "--from", "-6", "--to", "-b"]),
        b"-a\t-b\n"
    );
    succeed(&["delete", text(db), "-5"]);
    assert_eq!(succeed(&["count", text(db), "--prefix", "-"]), b"1\n");
}

#[test]
fn scans_take_ranges_from_either_end() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    let records = "a\t1\nab\t2\nabc\t3\nb\t4\nba\t5\n";
    let output = run_with(
        &["import", text(db), "-", "--format", "tsv"],
        records.as_bytes(),
    );
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
    let scan = |options: &[&str]| {
        let arguments = [&["scan", text(db)], options].concat();
        String::from_utf8(succeed(&arguments)).unwrap()
    };
    assert_eq!(scan(&[]), records);
    assert_eq!(scan(&["--prefix", "ab", "--keys-only"]), "ab\nabc\n");
    assert_eq!(
        scan(&["--from", "ab", "--to", "ba", "--keys-only"]),
        "ab\nabc\nb\n"
    );
    assert_eq!(scan(&["--reverse", "--limit", "2"]), "ba\t5\nb\t4\n");
    assert_eq!(
        scan(&["--prefix", "b", "--reverse", "--keys-only"]),
        "ba\nb\n"
    );
    assert_eq!(scan(&["--limit", "0"]), "");
    assert_eq!(scan(&["--from", "z"]), "");
    assert_eq!(scan(&["--from", "b", "--to", "a"]), "");
}

#[test]
fn ranges_and_prefixes_are_deleted_at_once() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    for key in ["a", "ab", "b", "ba", "c", "d"] {
        put(db, key, "value");
    }
    let left = |arguments: &[&str]| {
        succeed(&[&["delete", text(db)], arguments].concat());
        String::from_utf8(succeed(&["scan", text(db), "--keys-only"])).unwrap()
    };
    assert_eq!(left(&["--prefix", "a"]), "b\nba\nc\nd\n");
    assert_eq!(left(&["--from", "ba", "--to", "d"]), "b\nd\n");
    assert_eq!(left(&["--from", "c", "--to", "a"]), "b\nd\n");
    assert_eq!(left(&["--to", "63", "--hex"]), "d\n");
    assert_eq!(left(&["--from", "b"]), "");
    // All keys only on purpose.
    fail(&["delete", text(db)]);
    fail(&["delete", text(db), "key", "--from", "a"]);
    fail(&["delete", text(db), "--prefix", "a", "--from", "a"]);
}

#[test]
fn values_last_as_long_as_their_ttl() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    let ttl = |key| String::from_utf8(succeed(&["ttl", text(db), key])).unwrap();
    succeed(&["put", text(db), "Ann", "token", "--ttl", "3600.5"]);
    let left: f64 = ttl("Ann").trim().parse().unwrap();
    assert!(left > 3500.0 && left <= 3600.5, "{left}");
    succeed(&["persist", text(db), "Ann"]);
    assert_eq!(ttl("Ann"), "unlimited\n");
    succeed(&["touch", text(db), "Ann", "--ttl", "60"]);
    let left: f64 = ttl("Ann").trim().parse().unwrap();
    assert!(left > 0.0 && left <= 60.0, "{left}");
    succeed(&["put", text(db), "Bob", "token", "--ttl", "0"]);
    for arguments in [
        &["get", text(db), "Bob"][..],
        &["ttl", text(db), "Bob"],
        &["persist", text(db), "Bob"],
        &["touch", text(db), "Bob", "--ttl", "60"],
    ] {
        missing(arguments);
    }
    succeed(&["touch", text(db), "Ann", "--ttl", "0"]);
    assert_eq!(succeed(&["count", text(db)]), b"0\n");
    fail(&["put", text(db), "Ann", "token", "--ttl", "-1"]);
    fail(&["touch", text(db), "Ann", "--ttl", "soon"]);
}

#[test]
fn merges_apply_the_operator_of_their_keyspace() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    let create = |name, operator| {
        let operator = ["--merge-operator", operator];
        succeed(&[&["keyspace", "create", text(db), name][..], &operator].concat());
    };
    create("hits", "add-i64");
    create("log", "append");
    for operand in ["40", "-1", "3"] {
        succeed(&["merge", text(db), "home", operand, "--keyspace", "hits"]);
    }
    let hits = ["get", text(db), "home", "--keyspace", "hits", "--i64"];
    assert_eq!(succeed(&hits), b"42\n");
    let log = ["merge", text(db), "day", "--keyspace", "log"];
    for operand in ["sunny", ", then rain"] {
        succeed(&[&log[..], &[operand]].concat());
    }
    let day = succeed(&["get", text(db), "day", "--keyspace", "log"]);
    assert_eq!(day, b"sunny, then rain");
    let list = succeed(&["keyspace", "list", text(db), "--long"]);
    let list = String::from_utf8(list).unwrap();
    assert!(list.contains("merge operator add-i64"), "{list}");
    // No operator, no number, no such operator, no counter.
    fail(&["merge", text(db), "key", "operand"]);
    fail(&["merge", text(db), "home", "one", "--keyspace", "hits"]);
    fail(&[
        "keyspace",
        "create",
        text(db),
        "x",
        "--merge-operator",
        "divide",
    ]);
    fail(&["get", text(db), "day", "--keyspace", "log", "--i64"]);
}

#[test]
fn counts_are_exact_unless_asked_otherwise() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    for key in ["a", "ab", "b", "ba", "c", "c"] {
        put(db, key, "value");
    }
    succeed(&["delete", text(db), "c"]);
    let count = |options: &[&str]| {
        let arguments = [&["count", text(db)], options].concat();
        String::from_utf8(succeed(&arguments)).unwrap()
    };
    assert_eq!(count(&[]), "4\n");
    assert_eq!(count(&["--prefix", "b"]), "2\n");
    assert_eq!(count(&["--from", "6162", "--to", "6261", "--hex"]), "2\n");
    assert_eq!(count(&["--prefix", "z"]), "0\n");
    assert!(count(&["--approximate"]).trim_end().parse::<u64>().unwrap() < 10);
    succeed(&["keyspace", "create", text(db), "empty"]);
    assert_eq!(count(&["-k", "empty"]), "0\n");
    assert!(fail(&["count", text(db), "-k", "other"]).contains("other"));
    let some = count(&["--approximate", "--prefix", "b"]);
    assert!(some.trim_end().parse::<u64>().unwrap() < 10);
}

#[test]
fn keyspaces_are_separate() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    succeed(&["keyspace", "create", text(db), "other"]);
    put(db, "k", "default");
    succeed(&["put", text(db), "k", "other", "--keyspace", "other"]);
    succeed(&["put", text(db), "k", "third", "-k", "third"]);
    assert_eq!(
        succeed(&["keyspace", "list", text(db)]),
        b"default\nother\nthird\n"
    );
    assert_eq!(succeed(&["get", text(db), "k", "-k", "other"]), b"other");
    succeed(&["keyspace", "clear", text(db), "other"]);
    missing(&["get", text(db), "k", "-k", "other"]);
    assert_eq!(succeed(&["get", text(db), "k"]), b"default");
    succeed(&["keyspace", "drop", text(db), "other"]);
    for command in [
        &["get", text(db), "k"][..],
        &["scan", text(db)],
        &["delete", text(db), "k"],
    ] {
        let error = fail(&[command, &["-k", "other"]].concat());
        assert!(error.contains("other"), "{error}");
    }
    fail(&["keyspace", "create", text(db), "third"]);
    fail(&["keyspace", "drop", text(db), "other"]);
    assert_eq!(succeed(&["get", text(db), "k", "-k", "third"]), b"third");
}

#[test]
fn every_command_that_writes_compresses_if_it_is_told_to() {
    let place = TestDirectory::new();
    let records: String = (0..2000)
        .map(|n| format!("k{n:04}\t{}\n", "slow and steady ".repeat(60)))
        .collect();
    let input = place.write("input.tsv", &records);
    let import = |name: &str, options: &[&str]| {
        let db = place.path(name);
        succeed(&[&["import", text(&db), text(&input)], options].concat());
        db
    };
    let block_bytes = |db: &Path| -> u64 {
        let stat: serde_json::Value =
            serde_json::from_slice(&succeed(&["stat", text(db), "--json"])).unwrap();
        ["leaf_block_bytes", "buffer_block_bytes"]
            .iter()
            .map(|name| stat["space"][name].as_u64().unwrap())
            .sum()
    };
    let plain = import("plain", &[]);
    let small = import("small", &["--compression", "lz4"]);
    assert!(block_bytes(&plain) > records.len() as u64 * 9 / 10);
    assert!(block_bytes(&small) < block_bytes(&plain) / 2);
    // Blocks of either kind are read side by side, whichever command wrote them.
    let db = text(&small);
    succeed(&["put", db, "k", "v"]);
    for command in [
        &["put", db, "l", "v"][..],
        &["delete", db, "k"],
        &["checkpoint", db],
        &["set", db, "chi", "4"],
        &["keyspace", "create", db, "other"],
        &["keyspace", "clear", db, "other"],
        &["keyspace", "drop", db, "other"],
    ] {
        succeed(&[command, &["--compression", "lz4"]].concat());
    }
    succeed(&["verify", db]);
    let exported = succeed(&["export", db, "-", "--format", "tsv"]);
    assert!(exported == (records + "l\tv\n").into_bytes());
}

#[test]
fn compression_that_the_command_lacks_is_refused() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let put = ["put", text(&path), "k", "v", "--compression", "zstd"];
    if cfg!(feature = "zstd") {
        succeed(&put);
        assert_eq!(succeed(&["get", text(&path), "k"]), b"v");
    } else {
        assert!(fail(&put).contains("possible values: none, lz4"));
        assert!(!path.exists());
    }
}

#[test]
fn the_dial_is_kept() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    put(db, "k", "v");
    let figure = |name: &str| {
        let stat: serde_json::Value =
            serde_json::from_slice(&succeed(&["stat", text(db), "--json"])).unwrap();
        stat["keyspaces"][0]["options"][name].clone()
    };
    let chi = || figure("checkpoint_distance");
    succeed(&["set", text(db), "chi", "3"]);
    assert_eq!(chi(), 3);
    succeed(&["set", text(db), "chi", "5", "--keyspace", "default"]);
    assert_eq!(chi(), 5);
    succeed(&["set", text(db), "chi", "auto"]);
    assert_eq!(chi(), "auto");
    succeed(&["set", text(db), "chi", "default"]);
    assert!(
        chi().is_null(),
        "what this process would choose is none of the database's"
    );
    let error = fail(&["set", text(db), "chi", "100000000"]);
    assert!(error.contains("largest possible"), "{error}");
    assert_eq!(
        complaint(&run(&["set", text(db), "chi", "0"])),
        fail(&["set", text(db), "chi", "much"])
    );
    succeed(&["checkpoint", text(db)]);
    assert_eq!(succeed(&["get", text(db), "k"]), b"v");
}

#[test]
fn every_text_for_people_has_a_json_form() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    put(db, "a", "1\n");
    put(db, "b", "2");
    succeed(&["put", text(db), "c", "3", "-k", "other"]);
    succeed(&["set", text(db), "chi", "2", "-k", "other"]);
    let said = |arguments: &[&str]| {
        let out = succeed(&[arguments, &["--json"]].concat());
        String::from_utf8(out).unwrap()
    };
    let line = "{\"key\":\"a\",\"value\":\"1\\n\"}\n";
    assert_eq!(said(&["get", text(db), "a"]), line);
    assert_eq!(
        said(&["get", text(db), "62", "--hex"]),
        "{\"key\":\"62\",\"value\":\"32\"}\n"
    );
    let both = format!("{line}{{\"key\":\"b\",\"value\":\"2\"}}\n");
    assert_eq!(said(&["scan", text(db)]), both);
    assert_eq!(
        said(&["scan", text(db), "--keys-only", "--limit", "1"]),
        "{\"key\":\"a\"}\n"
    );
    assert_eq!(said(&["scan", text(db), "--prefix", "x"]), "");
    let value = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let count = value(said(&["count", text(db)]));
    assert_eq!(
        count,
        serde_json::json!({ "records": 2, "approximate": false })
    );
    let keyspaces = value(said(&["keyspace", "list", text(db)]));
    let options = |chi: Option<u32>| {
        serde_json::json!({
            "checkpoint_distance": chi,
            "compression": null,
            "filter_bits": null,
            "space_amplification": null,
            "merge_operator": null,
            "separate_from": null,
            "runs": null,
            "ttl_s": null,
        })
    };
    let expected = serde_json::json!([
        { "name": "default", "id": 0, "structure": "leveled", "options": options(None) },
        { "name": "other", "id": 1, "structure": "leveled", "options": options(Some(2)) },
    ]);
    assert_eq!(keyspaces["keyspaces"], expected);
    let stat = value(said(&["stat", text(db), "-k", "other"]));
    assert_eq!(stat["keyspaces"].as_array().unwrap().len(), 1);
    let file = place.path("out.csv");
    let exported = value(said(&["export", text(db), text(&file)]));
    assert_eq!(exported["records"], 2);
    let imported = value(said(&["import", text(&place.path("copy")), text(&file)]));
    assert_eq!(
        (&imported["records"], imported["seconds"].is_number()),
        (&2.into(), true)
    );
    assert!(fail(&["export", text(db), "--json"]).contains("--format jsonl"));
    assert!(fail(&["stat", text(db), "-k", "none"]).contains("no such keyspace"));
}

/// It used to print its own memory, its own χ, and the ratio of the least size to a few bytes.
#[test]
fn stat_shows_nothing_of_its_own_process() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    put(db, "k", "v");
    let stat = |memory: &str| {
        let text_of = succeed(&["stat", text(db), "--memory", memory]);
        let json = succeed(&["stat", text(db), "--memory", memory, "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        (String::from_utf8(text_of).unwrap(), json)
    };
    let (small, large) = (stat("8MiB"), stat("512MiB"));
    assert_eq!(small, large);
    for word in [
        "memory ",
        "for each byte of keys",
        "batch unit",
        "superseding",
        "memtable",
    ] {
        assert!(!small.0.contains(word), "{word}: {}", small.0);
    }
    assert!(small.1["space_amplification"].is_null());
    assert!(
        small.0.lines().all(|line| line.chars().count() <= 120),
        "{}",
        small.0
    );
}
