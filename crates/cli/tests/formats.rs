//! Import and export: byte-exact, in order, and without loss after bad input.

mod common;

use std::collections::BTreeMap;
use std::process::Stdio;

use common::{TestDirectory, command, complaint, fail, missing, run, run_with, succeed, text};

const FORMATS: [&str; 4] = ["tsv", "csv", "jsonl", "json"];

/// Records with every character that formats treat specially, and more than one batch of others.
fn nasty() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::new();
    let pieces: [&[u8]; 14] = [
        b"",
        b"a",
        b"\t",
        b"\n",
        b"\r\n",
        b"\"",
        b"\"\"",
        b",",
        b"\\n",
        b"\0",
        b"null",
        "é😀".as_bytes(),
        b"\xff\xfe",
        b" x ",
    ];
    for (i, key) in pieces.iter().enumerate() {
        for (j, value) in pieces.iter().enumerate() {
            records.insert(
                [key, &[b'a' + i as u8, b'a' + j as u8][..]].concat(),
                value.to_vec(),
            );
            records.insert([*key, *value].concat(), [*value, *key].concat());
        }
    }
    for number in 0..3000u32 {
        records.insert(
            format!("plain/{number:06}").into_bytes(),
            vec![b'v'; number as usize % 300],
        );
    }
    records.insert(vec![b'k'; 65_535], vec![b'v'; 256 << 10]);
    records
}

fn csv_of(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new()
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    records
        .iter()
        .for_each(|(k, v)| writer.write_record([k, v]).unwrap());
    writer.into_inner().unwrap()
}

#[test]
fn all_formats_carry_everything_in_hexadecimal_and_csv_as_it_is() {
    let place = TestDirectory::new();
    let records = nasty();
    let original = place.write("original.csv", csv_of(&records));
    let db = place.path("db");
    succeed(&["import", text(&db), text(&original), "--memory", "16MiB"]);
    assert!(
        succeed(&["export", text(&db), "--format", "csv"]) == std::fs::read(&original).unwrap()
    );
    for format in FORMATS {
        let file = place.path(&format!("hex.{format}"));
        succeed(&["export", text(&db), text(&file), "--hex"]);
        let copy = place.path(&format!("copy-{format}"));
        succeed(&["import", text(&copy), text(&file), "--hex"]);
        assert!(
            succeed(&["export", text(&copy), "--format", "csv"])
                == std::fs::read(&original).unwrap(),
            "{format}"
        );
    }
    let file = place.path("header.csv");
    succeed(&["export", text(&db), text(&file), "--header"]);
    let taken = place.path("taken");
    let output = run(&["import", text(&taken), text(&file)]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--header"), "{said}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"key,value\r\n"));
    succeed(&[
        "import",
        text(&place.path("headed")),
        text(&file),
        "--header",
    ]);
    assert!(
        succeed(&["export", text(&place.path("headed")), "--format", "csv"])
            == std::fs::read(&original).unwrap()
    );
}

#[test]
fn stdout_takes_csv_which_carries_everything_and_stdin_needs_a_format() {
    let place = TestDirectory::new();
    let records = nasty();
    let original = place.write("original.csv", csv_of(&records));
    let (db, copy) = (place.path("db"), place.path("copy"));
    succeed(&["import", text(&db), text(&original)]);
    let exported = succeed(&["export", text(&db)]);
    assert!(exported == std::fs::read(&original).unwrap());
    let from_stdin = ["import", text(&copy), "-"];
    let error = complaint(&run_with(&from_stdin, &exported));
    assert!(
        error.contains("stdin") && error.contains("--format"),
        "{error}"
    );
    assert!(!copy.exists());
    let output = run_with(&[&from_stdin[..], &["--format", "csv"]].concat(), &exported);
    assert!(output.status.success());
    assert!(succeed(&["export", text(&copy), "-"]) == exported);
    assert_eq!(
        succeed(&["export", text(&copy), "--hex"]),
        succeed(&["export", text(&copy), "--hex", "--format", "csv"])
    );
}

#[test]
fn an_export_takes_a_range() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let fruit = place.write(
        "fruit.tsv",
        "apple\t1\nbanana\t2\nblueberry\t3\ncherry\t4\n",
    );
    succeed(&["import", text(&db), text(&fruit)]);
    let export = |options: &[&str]| {
        let out = succeed(&[&["export", text(&db), "--format", "tsv"][..], options].concat());
        String::from_utf8(out).unwrap()
    };
    assert_eq!(export(&["--prefix", "b"]), "banana\t2\nblueberry\t3\n");
    assert_eq!(
        export(&["--from", "blue", "--to", "cherry"]),
        "blueberry\t3\n"
    );
    assert_eq!(export(&["--from", "63", "--hex"]), "636865727279\t34\n");
    assert_eq!(export(&["--prefix", "quince"]), "");
    let file = place.path("b.tsv");
    succeed(&["export", text(&db), text(&file), "--prefix", "b"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"banana\t2\nblueberry\t3\n");
}

#[test]
fn a_record_that_the_format_cannot_carry_stops_the_export_and_leaves_the_old_file() {
    let place = TestDirectory::new();
    let db = place.path("db");
    for (hex, format, better) in [
        ("0961", "tsv", "csv"),
        ("ff", "json", "--hex"),
        ("ff", "jsonl", "--hex"),
    ] {
        succeed(&["put", text(&db), hex, "00", "--hex"]);
        let file = place.write(&format!("old.{format}"), "old");
        let error = fail(&["export", text(&db), text(&file)]);
        assert!(error.contains(better) && error.contains("key"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"old");
        succeed(&["delete", text(&db), hex, "--hex"]);
    }
    assert_eq!(place.names(), ["db", "old.json", "old.jsonl", "old.tsv"]);
    assert_eq!(succeed(&["export", text(&db), "--format", "json"]), b"{}\n");
}

#[test]
fn json_strings_are_unescaped_and_other_values_are_kept_as_text() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let file = place.write(
        "in.json",
        "{\"b\":\"\\u00e9\\n\\ud83d\\ude00\",\n \"a\": {\"x\": [1.50, null]}, \"n\":null,\"s\":\"null\",\"b2\":\"first\",\"b2\":\"last\"}",
    );
    succeed(&["import", text(&db), text(&file)]);
    assert_eq!(succeed(&["get", text(&db), "a"]), b"{\"x\": [1.50, null]}");
    assert_eq!(succeed(&["get", text(&db), "b"]), "é\n😀".as_bytes());
    assert_eq!(succeed(&["get", text(&db), "b2"]), b"last");
    let exported = succeed(&["export", text(&db), "--format", "json"]);
    let expected = "{\n  \"a\": \"{\\\"x\\\": [1.50, null]}\",\n  \"b\": \"é\\n😀\",\n  \"b2\": \"last\",\n  \"n\": \"null\",\n  \"s\": \"null\"\n}\n";
    assert_eq!(String::from_utf8(exported.clone()).unwrap(), expected);
    let typed = succeed(&["export", text(&db), "--format", "json", "--typed"]);
    let expected = "{\n  \"a\": {\"x\": [1.50, null]},\n  \"b\": \"é\\n😀\",\n  \"b2\": \"last\",\n  \"n\": null,\n  \"s\": null\n}\n";
    assert_eq!(String::from_utf8(typed).unwrap(), expected);
    for format in ["json", "jsonl"] {
        let copy = place.path(&format!("copy-{format}"));
        let out = succeed(&["export", text(&db), "--format", format]);
        let output = run_with(&["import", text(&copy), "-", "--format", format], &out);
        assert!(output.status.success());
        assert_eq!(
            succeed(&["export", text(&copy), "--format", "json"]),
            exported
        );
    }
}

#[test]
fn acknowledgements_count_records_and_end_with_all_of_them() {
    let place = TestDirectory::new();
    let input: String = (0..2500).map(|n| format!("k{n:05}\tv\n")).collect();
    let run = |every: &str, input: &str, name: &str| {
        let db = place.path(name);
        let output = run_with(
            &[
                "import",
                text(&db),
                "-",
                "--format",
                "tsv",
                "--ack-every",
                every,
            ],
            input.as_bytes(),
        );
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        run("1000", &input, "a"),
        "acknowledged 1000\nacknowledged 2000\nacknowledged 2500\n"
    );
    assert_eq!(
        run("1250", &input, "b"),
        "acknowledged 1250\nacknowledged 2500\n"
    );
    assert_eq!(run("700", "", "c"), "acknowledged 0\n");
    assert_eq!(run("1", &input, "d").lines().count(), 2500);
    let db = place.path("e");
    let unlogged = [
        "import",
        text(&db),
        "-",
        "--format",
        "tsv",
        "--ack-every",
        "1",
        "--durability",
        "none",
    ];
    assert!(fail(&unlogged).contains("--durability"));
}

#[test]
fn a_malformed_line_is_named_and_earlier_records_stay() {
    let place = TestDirectory::new();
    let db = place.path("db");
    succeed(&["put", text(&db), "old", "record"]);
    let bad = [
        ("tsv", "a\t1\nb\n", 2),
        ("csv", "a,1\r\nb,\"2\r\n\r\nc,3", 2),
        ("csv", "a,1\nb,2,3\n", 2),
        ("jsonl", "{\"key\":\"a\",\"value\":1}\n\n{\"key\":2}\n", 3),
        ("json", "{\"a\":1,\n\"b\":2,\n\"c\"}\n", 3),
    ];
    for (format, input, line) in bad {
        let output = run_with(
            &["import", text(&db), "-", "--format", format],
            input.as_bytes(),
        );
        let error = complaint(&output);
        assert!(
            error.contains(&format!("malformed line {line}")),
            "{format}: {error}"
        );
        assert_eq!(succeed(&["get", text(&db), "old"]), b"record");
    }
    // A longer input's records before the line are there, and no others.
    let input: String = (0..1000)
        .map(|n| format!("x{n:04}\tv\n"))
        .collect::<String>()
        + "no tab\nlater\tv\n";
    let error = complaint(&run_with(
        &["import", text(&db), "-", "--format", "tsv"],
        input.as_bytes(),
    ));
    assert!(
        error.contains("malformed line 1001") && error.contains("1000"),
        "{error}"
    );
    let keys = succeed(&["scan", text(&db), "--prefix", "x", "--keys-only"]);
    assert_eq!(keys.iter().filter(|&&b| b == b'\n').count(), 1000);
    missing(&["get", text(&db), "later"]);
}

#[test]
fn a_byte_order_mark_does_not_belong_to_the_first_record() {
    let place = TestDirectory::new();
    let db = place.path("db");
    for (format, input) in [
        ("json", "\u{feff}{\"json\":\"1\"}"),
        ("jsonl", "\u{feff}{\"key\":\"jsonl\",\"value\":\"1\"}\n"),
        ("csv", "\u{feff}csv,1\r\n"),
        ("tsv", "\u{feff}tsv\t1\n"),
        ("csv --header", "\u{feff}key,value\r\ncsv --header,1\r\n"),
    ] {
        let arguments = format!("--format {format}");
        let arguments: Vec<&str> = ["import", text(&db), "-"]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        let output = run_with(&arguments, input.as_bytes());
        assert!(output.status.success(), "{format}");
        assert_eq!(succeed(&["get", text(&db), format]), b"1");
    }
    // A mark that belongs to a key comes back behind the text's own.
    let input = "\u{feff}\u{feff}k\t1\n".as_bytes();
    let other = place.path("other");
    run_with(&["import", text(&other), "-", "--format", "tsv"], input);
    assert_eq!(succeed(&["get", text(&other), "\u{feff}k"]), b"1");
    assert_eq!(succeed(&["export", text(&other), "--format", "tsv"]), input);
    let bad = run_with(&["import", text(&db), "-", "--format", "json"], b"\xef{}");
    assert!(complaint(&bad).contains("malformed line 1"));
}

/// What a get returns, an export writes, and an import takes.
#[test]
fn large_values_are_exported_and_imported() {
    let place = TestDirectory::new();
    let (db, copy) = (place.path("db"), place.path("copy"));
    let large: Vec<u8> = (0..=255).cycle().take(1_500_000).collect();
    succeed(&["put", text(&db), "a", "short"]);
    let file = place.write("value", &large);
    succeed(&["put", text(&db), "b", "--file", text(&file)]);
    for name in ["all.csv", "all.jsonl", "all.json", "all.tsv"] {
        let all = place.path(name);
        let memory = ["--memory", "8MiB"];
        let hex = name != "all.csv";
        let options: &[&str] = if hex { &["--hex"] } else { &[] };
        succeed(&[&["export", text(&db), text(&all)], &memory[..], options].concat());
        let _ = std::fs::remove_dir_all(&copy);
        succeed(&[&["import", text(&copy), text(&all)], &memory[..], options].concat());
        assert!(succeed(&["get", text(&copy), "b"]) == large, "{name}");
        assert_eq!(succeed(&["get", text(&copy), "a"]), b"short");
    }
}

#[test]
fn an_import_that_cannot_begin_creates_nothing() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let empty = place.write("name-without-format", "");
    let bad = place.write("bad.json", "[]");
    let wide = place.write("wide.tsv", [&[b'k'; 65_536][..], b"\tv\n"].concat());
    for (file, said) in [
        (place.path("missing.json"), "missing.json"),
        (empty, "--format"),
        (bad, "malformed line 1"),
        (wide, "65535"),
    ] {
        let error = fail(&["import", text(&db), text(&file)]);
        assert!(error.contains(said), "{error}");
        assert!(!db.exists(), "{error}");
    }
    // A value that is made of columns is in memory: at most a quarter of that.
    let long = [
        b"id,a\n1,".to_vec(),
        vec![b'v'; (2 << 20) + 1],
        b"\n".to_vec(),
    ]
    .concat();
    let long = place.write("long.csv", long);
    let of_columns = ["--csv-key", "id", "--memory", "8MiB"];
    let error = fail(&[&["import", text(&db), text(&long)][..], &of_columns].concat());
    assert!(error.contains("2097152"), "{error}");
    assert!(!db.exists(), "{error}");
    // The error names the file and the position, although nothing was stored.
    let torn = place.write("torn.tsv", "a\t1\nb\n");
    let error = fail(&["import", text(&db), text(&torn)]);
    assert!(error.contains("torn.tsv"), "{error}");
    assert!(error.contains("records imported before it 0"), "{error}");
    assert!(
        fail(&["import", text(&db), text(place.as_ref()), "--format", "tsv"]).contains("directory")
    );
    let endless = [b"{\"a\":\"", &[b'x'; 8 << 20][..]].concat();
    let error = complaint(&run_with(
        &["import", text(&db), "-", "--format", "json"],
        &endless,
    ));
    assert!(
        error.contains("line 1") || error.contains("limit"),
        "{error}"
    );
}

#[test]
fn a_full_output_is_an_error_and_a_closed_one_is_not() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let input: String = (0..100_000).map(|n| format!("k{n:06}\tvalue\n")).collect();
    assert!(
        run_with(
            &["import", text(&db), "-", "--format", "tsv"],
            input.as_bytes()
        )
        .status
        .success()
    );
    let error = fail(&["export", text(&db), "/dev/full", "--format", "tsv"]);
    assert!(error.contains("space"), "{error}");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut export = command(&["export", text(&db), "--format", "tsv"]);
    complaint(&export.stdout(full).output().unwrap());
    for arguments in [
        &["export", text(&db), "--format", "tsv"][..],
        &["scan", text(&db)],
    ] {
        let mut child = command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(run(&["export", text(&db), "--format", "tsv"]).stdout == input.as_bytes());
}

#[test]
fn real_csv_files_are_imported_by_their_columns() {
    let place = TestDirectory::new();
    let people = place.write(
        "people.csv",
        "\u{feff}id,name,town\r\n2,\"Ann, A.\",Ulm\r\n1,Bob,\"\"\r\n",
    );
    let import = |name: &str, options: &[&str]| {
        let db = place.path(name);
        succeed(&[&["import", text(&db), text(&people)], options].concat());
        String::from_utf8(succeed(&["scan", text(&db)])).unwrap()
    };
    let by_name = import("a", &["--csv-key", "id", "--csv-value", "name"]);
    assert_eq!(by_name, "1\tBob\n2\tAnn, A.\n");
    assert_eq!(
        import("b", &["--csv-key", "1", "--csv-value", "2", "--header"]),
        by_name
    );
    assert_eq!(
        import("c", &["--csv-key", "id"]),
        "1\t{\"name\":\"Bob\",\"town\":\"\"}\n2\t{\"name\":\"Ann, A.\",\"town\":\"Ulm\"}\n"
    );
    let db = place.path("d");
    for (options, said) in [
        (&["--csv-key", "age"][..], "has no column age, but \"id\""),
        (
            &["--csv-key", "4", "--csv-value", "1"],
            "there is no column 4",
        ),
        (&["--csv-value", "id"], "--csv-key"),
        (&["--csv-key", "id", "--format", "tsv"], "csv only"),
        (&["--csv-key", "0"], "numbered from 1"),
        (&[], "--csv-key"),
    ] {
        let error = fail(&[&["import", text(&db), text(&people)], options].concat());
        assert!(error.contains(said), "{options:?}: {error}");
        assert!(!db.exists());
    }
}

#[test]
fn an_export_takes_some_records_from_either_end_with_or_without_values() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let fruit = place.write("fruit.tsv", "apple\t1\nbanana\t2\ncherry\t3\n");
    succeed(&["import", text(&db), text(&fruit)]);
    let export = |options: &[&str]| {
        let out = succeed(&[&["export", text(&db), "--format", "tsv"][..], options].concat());
        String::from_utf8(out).unwrap()
    };
    assert_eq!(export(&["--limit", "2"]), "apple\t1\nbanana\t2\n");
    assert_eq!(export(&["--reverse", "--limit", "1"]), "cherry\t3\n");
    assert_eq!(
        export(&["--reverse", "--keys-only", "--to", "c"]),
        "banana\napple\n"
    );
    assert_eq!(export(&["--limit", "0"]), "");
    let json = succeed(&[
        "export",
        text(&db),
        "--keys-only",
        "--format",
        "json",
        "--limit",
        "1",
    ]);
    assert_eq!(json, b"[\n  \"apple\"\n]\n");
    let error = fail(&[
        "export",
        text(&db),
        "--keys-only",
        "--typed",
        "--format",
        "json",
    ]);
    assert!(error.contains("--keys-only"), "{error}");
}
