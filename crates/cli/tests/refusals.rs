//! Bad input: one clear line, a non-zero exit, no lost data, and nothing created.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use common::{TestDirectory, command, complaint, fail, run, succeed, text};
use terrapin::{CheckpointDistance, Options};

#[test]
fn reading_a_missing_database_creates_nothing() {
    let place = TestDirectory::new();
    let missing = place.path("missing");
    let db = text(&missing);
    for arguments in [
        &["get", db, "k"][..],
        &["delete", db, "k"],
        &["scan", db],
        &["count", db],
        &["export", db],
        &["export", db, "out.tsv"],
        &["stat", db],
        &["checkpoint", db],
        &["set", db, "chi", "4"],
        &["keyspace", "list", db],
        &["keyspace", "drop", db, "k"],
        &["keyspace", "clear", db, "k"],
        &["keyspace", "set", db, "k", "--filter-bits", "8"],
        &["bench", "ycsb", db, "--workloads", "c"],
    ] {
        let error = fail(arguments);
        assert!(error.contains("missing"), "{arguments:?}: {error}");
        assert_eq!(place.names(), [""; 0], "{arguments:?}");
    }
}

#[test]
fn other_files_and_directories_are_left_alone() {
    let place = TestDirectory::new();
    let file = place.write("file", "text");
    let full = place.path("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("notes"), "mine").unwrap();
    let below = file.join("db");
    for path in [&file, &below] {
        for arguments in [&["put", text(path), "k", "v"][..], &["stat", text(path)]] {
            let error = fail(arguments);
            assert!(error.contains("a database is a directory"), "{error}");
        }
    }
    for path in [&file, &full] {
        for arguments in [
            &["put", text(path), "k", "v"][..],
            &["get", text(path), "k"],
            &["stat", text(path)],
        ] {
            fail(arguments);
        }
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"text");
    assert_eq!(std::fs::read(full.join("notes")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&full).unwrap().count(), 1);
}

#[test]
fn wrong_command_lines_exit_with_two() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    for arguments in [
        &["get", db][..],
        &["put", db, "k"],
        &["put", db, "k", "v", "--file", "f"],
        &["frobnicate"],
        &["help", "frobnicate"],
        &["scan", db, "--prefix", "a", "--from", "b"],
        &["scan", db, "--limit", "many"],
        &["import", db, "-", "--format", "xml"],
        &["import", db, "-", "--format", "tsv", "--ack-every", "0"],
        &["stat", db, "--memory", "lots"],
        &["completions", "cmd"],
        &["bench", "ycsb", "--workloads", "load,z"],
        &["bench", "ycsb", "--chi", "0"],
        &["bench", "ycsb", "--distribution", "normal"],
        &["bench", "ycsb", "--durability", "perhaps"],
        &["put", db, "k", "v", "-k", "a\nb"],
        &["import", db, "-", "--format", "tsv", "-k", ""],
        &["keyspace", "create", db, "a\tb"],
        &["keyspace", "create", db],
        &["keyspace", "drop", db],
        &["keyspace", "clear", db, "-k", "k"],
        &["put", db, "k", "v", "--compression", "best"],
        &["get", db, "k", "--compression", "lz4"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        common::complaint(&output);
    }
    for arguments in [
        &["bench", "ycsb", "--threads", "0"][..],
        &["bench", "ycsb", "--records", "0"],
        &["bench", "ycsb", "--key-bytes", "7"],
        &["bench", "growth", "--threads", "0"],
        &["bench", "growth", "--records", "1000,0"],
        &["bench", "space", "--threads", "0"],
        &["bench", "space", "--records", "0"],
        &["bench", "chi", "--threads", "0"],
        &["bench", "chi", "--largest", "0"],
        &["bench", "ycsb", "--value-bytes", "100000000"],
        &["bench", "ycsb", "--workloads", "a,load"],
        &["bench", "reads", "--records", "10", "--keys", "16385"],
        &["stat", db, "--memory", "1"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        common::complaint(&output);
        assert!(output.stdout.is_empty(), "{arguments:?} began");
    }
    assert!(!path.exists());
}

/// They used to be accepted without effect.
#[test]
fn options_that_a_format_lacks_are_refused_before_any_work() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    let (header, typed) = ("csv only", "json and jsonl only, and not with --hex");
    for (arguments, said) in [
        (
            &["import", db, "-", "--format", "tsv", "--header"][..],
            header,
        ),
        (&["import", db, "missing.json", "--header"], header),
        (&["export", db, "--format", "jsonl", "--header"], header),
        (&["export", db, "missing.tsv", "--header"], header),
        (&["export", db, "--typed"], typed),
        (&["export", db, "missing.tsv", "--typed"], typed),
        (&["export", db, "missing.json", "--typed", "--hex"], typed),
    ] {
        let error = fail(arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
        assert!(!path.exists(), "{arguments:?}");
    }
}

/// The process used to abort.
#[test]
fn a_memory_budget_beyond_the_address_space_is_refused() {
    let place = TestDirectory::new();
    let path = place.path("db");
    succeed(&["put", text(&path), "k", "v"]);
    let files = || std::fs::read_dir(&path).unwrap().count();
    let before = files();
    let limited = |arguments: &str| {
        let line = format!("ulimit -v 2000000; exec \"$0\" {arguments}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_terrapin"), text(&path)]);
        shell.output().unwrap()
    };
    let output = limited("put \"$1\" k w --memory 4GiB");
    assert_eq!(output.status.code(), Some(2));
    let error = complaint(&output);
    assert!(
        error.contains("ulimit -v") && error.contains("memory 4294967296"),
        "{error}"
    );
    assert!(!error.contains("--memory gives"), "{error}");
    assert_eq!(files(), before);
    let output = limited("get \"$1\" k --memory 64MiB");
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(0), &b"v"[..])
    );
}

#[test]
fn a_log_that_exceeds_memory_is_refused_with_the_option_that_helps() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let memtable = CheckpointDistance::Fixed(32);
    let options = Options::new().memory(256 << 20);
    let database = options.checkpoint_distance(memtable).open(&path).unwrap();
    for number in 0..10_000u32 {
        let keyspace = database.default_keyspace();
        keyspace.put(number.to_be_bytes(), [b'v'; 1000]).unwrap();
    }
    // Without a close everything stays in the log.
    drop(database);
    let error = fail(&["get", text(&path), "k", "--memory", "8MiB"]);
    assert!(
        error.contains("the log does not fit") && error.contains("--memory gives it more"),
        "{error}"
    );
}

#[test]
fn a_too_large_record_is_refused_and_creates_nothing() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    let limit = 262_144;
    let digits = |bytes: usize| "5a".repeat(bytes) + "\r\n";
    let raw = place.write("raw", vec![b'z'; limit + 1]);
    let hex = place.write("hex", digits(limit + 1));
    let larger = place.write("larger", digits(3 * limit));
    let key = "k".repeat(65_536);
    for (arguments, limit) in [
        (
            &["put", db, "5a", "--hex", "--file", text(&hex)][..],
            "limit 262144",
        ),
        (
            &["put", db, "5a", "--hex", "--file", text(&larger)],
            "limit 262144",
        ),
        (&["put", db, &key, "v"], "limit 65535"),
    ] {
        let error = fail(arguments);
        assert!(error.contains("more bytes than the limit"), "{error}");
        assert!(error.contains(limit), "{error}");
        assert!(!path.exists(), "{error}");
    }
    let error = fail(&["keyspace", "create", db, "k", "--chi", "3000"]);
    assert!(error.contains("--memory gives it more"), "{error}");
    assert!(!path.exists(), "{error}");
    let most = place.write("most", digits(limit));
    succeed(&["put", db, "5a", "--hex", "--file", text(&most)]);
    assert_eq!(succeed(&["get", db, "Z"]).len(), limit);
    // A large value may have a deadline.
    succeed(&["put", db, "k", "--ttl", "60", "--file", text(&raw)]);
    assert_eq!(succeed(&["get", db, "k"]).len(), limit + 1);
    let odd = place.write("odd", "5a5");
    let error = fail(&["put", db, "5a", "--hex", "--file", text(&odd)]);
    assert!(error.contains("pairs of hexadecimal digits"), "{error}");
}

/// The database used to be created, and the keyspace then refused.
#[test]
fn creating_the_default_keyspace_creates_no_database() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let create = ["keyspace", "create", text(&path), "default"];
    let error = fail(&create);
    assert!(error.contains("there is no database"), "{error}");
    assert!(!path.exists(), "{error}");
    succeed(&["put", text(&path), "k", "v"]);
    let error = fail(&create);
    assert!(error.contains("exists already"), "{error}");
}

#[test]
fn a_benchmark_without_a_load_wants_the_records_named() {
    let error = fail(&["bench", "ycsb", "--workloads", "c", "--records", "10"]);
    assert!(error.contains("name the database"), "{error}");
}

#[test]
fn help_lists_every_command() {
    let help = String::from_utf8(succeed(&["--help"])).unwrap();
    for command in [
        "put",
        "get",
        "delete",
        "scan",
        "count",
        "import",
        "export",
        "stat",
        "verify",
        "checkpoint",
        "set",
        "keyspace",
        "completions",
        "bench",
        "demo",
    ] {
        assert!(
            help.contains(&format!("\n  {command}")),
            "{command}: {help}"
        );
        let asked = succeed(&[command, "--help"]);
        assert!(!asked.is_empty());
        assert_eq!(succeed(&["help", command]), asked);
    }
    assert!(help.contains("Exit codes: "));
    assert!(help.contains("\n  help"), "{help}");
    assert_eq!(succeed(&["help"]), help.as_bytes());
    let create = succeed(&["keyspace", "create", "--help"]);
    assert_eq!(succeed(&["help", "keyspace", "create"]), create);
    assert_eq!(succeed(&["keyspace", "help", "create"]), create);
    for asked in [
        &["help", "--help"][..],
        &["help", "-h"],
        &["help", "help"],
        &["keyspace", "help", "--help"],
        &["bench", "help", "ycsb"],
    ] {
        assert!(!succeed(asked).is_empty(), "{asked:?}");
    }
    assert!(fail(&["keyspace", "help", "put"]).contains("no such command"));
    assert!(succeed(&["--version"]).starts_with(b"terrapin "));
    assert_eq!(run(&[""; 0]).status.code(), Some(2));
}

#[test]
fn shells_learn_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = String::from_utf8(succeed(&["completions", shell])).unwrap();
        for word in ["terrapin", "keyspace", "approximate"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// The exit code used to be 0, without a message.
#[test]
fn unwritten_help_is_a_failure_unless_the_pipe_was_closed() {
    for arguments in [
        &["--help"][..],
        &["help", "put"],
        &["put", "--help"],
        &["--version"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(complaint(&output).contains("cannot write to stdout"));
        let mut child = command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
}

/// The tips used to lead from one error to the next.
#[test]
fn tips_are_printed_if_they_help() {
    let place = TestDirectory::new();
    let path = place.path("db");
    let db = text(&path);
    for arguments in [
        &["scan", db, "--limit", "-1"][..],
        &["export", db, "--limit", "-1"],
        &["bench", "ycsb", "--records", "-1"],
        &["bench", "growth", "--records", "-1"],
        &["demo", "--records", "-1"],
        &["import", db, "-", "--ack-every", "-1"],
    ] {
        let error = fail(arguments);
        assert!(
            error.contains("'-1'") && error.contains("a whole number from"),
            "{error}"
        );
        assert!(!error.contains("tip:"), "{error}");
    }
    for arguments in [
        &["keyspace", "list", db, "--jsn"][..],
        &["get", db, "k", "--frob"],
        &["keyspace", "create", db, "a", "--frob"],
    ] {
        let error = fail(arguments);
        assert!(!error.contains("as a value"), "{error}");
    }
    // This one helps.
    let error = fail(&["get", db, "--frob"]);
    assert!(error.contains("use '-- --frob'"), "{error}");
    succeed(&["put", db, "--", "--key", "v"]);
    assert_eq!(succeed(&["get", db, "--", "--key"]), b"v");
}

/// The names and bytes in a directory.
fn content(directory: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// An export onto the data file used to destroy the database and exit with 0.
#[test]
fn no_command_writes_output_into_a_database() {
    let place = TestDirectory::new();
    let path = place.path("x.db");
    let db = text(&path);
    succeed(&["put", db, "k", "v"]);
    let before = content(&path);
    let data = path.join("data");
    let (link, other_link, hard) = (
        place.path("link"),
        place.path("db-link"),
        place.path("hard"),
    );
    symlink(&data, &link).unwrap();
    symlink(&path, &other_link).unwrap();
    std::fs::hard_link(&data, &hard).unwrap();
    symlink(path.join("new"), place.path("dangling")).unwrap();
    let refused = |command: &mut Command, what: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{what}");
        let error = complaint(&output);
        assert!(
            error.contains("a file in a database's directory"),
            "{what}: {error}"
        );
        assert!(content(&path) == before, "{what}");
    };
    let outputs = [
        data.clone(),
        path.join("ring"),
        path.join("new.tsv"),
        path.join("../x.db/data"),
        link,
        other_link.join("data"),
        other_link.join("new.tsv"),
        hard.clone(),
        place.path("dangling"),
        path.clone(),
    ];
    for output in &outputs {
        for database in [&path, &other_link] {
            let export = ["export", text(database), text(output), "--format", "tsv"];
            refused(&mut command(&export), text(output));
        }
    }
    for (directory, name) in [
        (&path, "data"),
        (&path, "./new.tsv"),
        (&path, "../x.db/new.tsv"),
    ] {
        let mut export = command(&["export", ".", name, "--format", "tsv"]);
        refused(export.current_dir(directory), name);
    }
    // A command's output, and its errors, into a file of the database.
    let append = || File::options().append(true).open(&hard).unwrap();
    for arguments in [
        &["export", db][..],
        &["scan", db],
        &["get", db, "k"],
        &["count", db],
        &["stat", db],
        &["verify", db],
        &["keyspace", "list", db],
        &["put", db, "k", "w"],
        &["import", db, "-", "--format", "tsv", "--ack-every", "1"],
        &["bench", "ycsb", db, "--workloads", "c"],
    ] {
        let input = File::open(place.write("in.tsv", "a\tb\n")).unwrap();
        refused(
            command(arguments).stdout(append()).stdin(input),
            arguments[0],
        );
        let input = File::open(place.path("in.tsv")).unwrap();
        let output = command(arguments)
            .stderr(append())
            .stdin(input)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        // The line that reports it is what the shell was told to put there.
        let bytes = std::fs::read(&data).unwrap();
        let line = &bytes[before[&OsString::from("data")].len()..];
        assert!(line.starts_with(b"terrapin: a file in"), "{arguments:?}");
        File::options()
            .write(true)
            .open(&data)
            .unwrap()
            .set_len((bytes.len() - line.len()) as u64)
            .unwrap();
        assert!(content(&path) == before);
    }
    // A file of the database is no input either: an import would read what it writes.
    refused(
        &mut command(&["put", db, "k", "--file", text(&hard)]),
        "put --file",
    );
    for input in [&data, &hard] {
        refused(
            &mut command(&["import", db, text(input), "--format", "tsv"]),
            "import",
        );
    }
    let mut import = command(&["import", db, "-", "--format", "tsv"]);
    refused(import.stdin(File::open(&hard).unwrap()), "import -");
    // Beside the database everything is allowed.
    let beside = place.path("x.db.tsv");
    succeed(&["export", db, text(&beside)]);
    assert_eq!(std::fs::read(&beside).unwrap(), b"k\tv\n");
    assert_eq!(succeed(&["get", db, "k"]), b"v");
}

/// The name of the new file was predictable: a link of that name led anywhere.
#[test]
fn an_export_does_not_follow_a_link_with_its_temporary_name() {
    let place = TestDirectory::new();
    let path = place.path("db");
    succeed(&["put", text(&path), "k", "v"]);
    let (out, victim) = (place.path("out.tsv"), place.write("victim", "mine"));
    let line = "ln -s \"$3\" \"$2.partial-$$\"; exec \"$0\" export \"$1\" \"$2\"";
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        line,
        env!("CARGO_BIN_EXE_terrapin"),
        text(&path),
        text(&out),
        text(&victim),
    ]);
    assert!(shell.status().unwrap().success());
    assert_eq!(std::fs::read(&out).unwrap(), b"k\tv\n");
    assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
}
