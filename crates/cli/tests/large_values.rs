//! Values of any length through `export` and `import`.

mod common;

use common::{TestDirectory, fail, succeed, text};

const MIB: usize = 1 << 20;

/// Text with all that formats treat specially, and bytes if `binary`.
fn value(seed: usize, bytes: usize, binary: bool) -> Vec<u8> {
    let nasty = "é\"\\,\r\t\u{1}x".as_bytes();
    let mut value: Vec<u8> = (0..bytes)
        .map(|at| match (at / 64 + seed) % 5 {
            0 => nasty[at % nasty.len()],
            3 if binary => (at * 7 + at / 256 + seed) as u8,
            _ => b'a' + (at % 26) as u8,
        })
        .collect();
    if !binary {
        // No character may be cut.
        value = String::from_utf8_lossy(&value).into_owned().into_bytes();
    }
    value
}

/// Each format brings back values that exceed the memory, between short ones, in both kinds of
/// import.
#[test]
fn exports_and_imports_take_values_of_any_length() {
    let place = TestDirectory::new();
    let memory = ["--memory", "8MiB"];
    for (format, binary, hex) in [
        ("csv", true, false),
        ("tsv", false, false),
        ("json", false, false),
        ("jsonl", false, false),
        ("jsonl", true, true),
        ("tsv", true, true),
    ] {
        let name = format!("{format}-{hex}");
        let db = &place.path(&name);
        let values = [
            ("a", value(1, 300, binary)),
            ("b", value(2, 300 << 10, binary)),
            ("c", value(3, 3 * MIB + 5, binary)),
            ("d", value(4, 7, binary)),
            ("e", value(5, 2 * MIB + 1, binary)),
            ("f", value(6, MIB, binary)),
        ];
        for (key, value) in &values {
            let file = place.write("value", value);
            let all = ["put", text(db), key, "--file", text(&file)];
            succeed(&[&all[..], &memory].concat());
        }
        let extension = if hex { "hex" } else { format };
        let out = place.path(&format!("{name}.{extension}"));
        let mut export = vec!["export", text(db), text(&out), "--format", format];
        export.extend(memory);
        let mut flags = vec!["--format", format];
        if hex {
            export.push("--hex");
            flags.push("--hex");
        }
        succeed(&export);
        for sorted in [false, true] {
            let back = &place.path(&format!("{name}-back-{sorted}"));
            let mut import = vec!["import", text(back), text(&out)];
            import.extend(&flags);
            import.extend(memory);
            if sorted {
                import.push("--sorted");
            }
            succeed(&import);
            for (key, value) in &values {
                let found = place.path("found");
                succeed(&["get", text(back), key, "--output", text(&found)]);
                assert!(std::fs::read(&found).unwrap() == *value, "{name} {key}");
            }
            let keys = succeed(&["scan", text(back), "--keys-only"]);
            assert_eq!(keys, b"a\nb\nc\nd\ne\nf\n");
            succeed(&["verify", text(back)]);
        }
    }
    // No temporary file is left.
    let names = std::fs::read_dir(place.path(".")).unwrap();
    let is_left = |name: &str| name.starts_with("terrapin-temporary");
    assert!(
        !names
            .map(|entry| entry.unwrap().file_name())
            .any(|n| is_left(n.to_str().unwrap()))
    );
}

#[test]
fn a_format_that_cannot_carry_a_large_value_writes_nothing_of_it() {
    let place = TestDirectory::new();
    let db = &place.path("db");
    for (key, value) in [
        ("a", b"short".to_vec()),
        ("b", [vec![b'x'; MIB], vec![b'\n']].concat()),
        ("c", [vec![b'x'; MIB], vec![0xff]].concat()),
    ] {
        let file = place.write("value", value);
        succeed(&["put", text(db), key, "--file", text(&file)]);
    }
    let out = place.path("out.tsv");
    let error = fail(&["export", text(db), text(&out)]);
    assert!(
        error.contains("newline") && error.contains("\"b\""),
        "{error}"
    );
    assert!(!out.exists());
    let out = place.path("out.jsonl");
    let error = fail(&["export", text(db), text(&out)]);
    assert!(
        error.contains("UTF-8") && error.contains("\"c\""),
        "{error}"
    );
    let output = common::run(&["export", text(db), "-", "--format", "tsv"]);
    assert_eq!(output.stdout, b"a\tshort\n");
}

#[test]
fn deadlines_of_large_values_come_back() {
    let place = TestDirectory::new();
    let (db, back) = (&place.path("db"), &place.path("back"));
    let file = place.write("value", vec![b'x'; 2 * MIB]);
    let put = ["put", text(db), "k", "--file", text(&file), "--ttl", "5000"];
    succeed(&put);
    for (name, more) in [("out.csv", &["--deadlines"][..]), ("out.jsonl", &[])] {
        let out = place.path(name);
        succeed(&[&["export", text(db), text(&out)], more].concat());
        succeed(&[&["import", text(back), text(&out)], more].concat());
        let line = succeed(&["scan", text(back), "--json"]);
        assert!(
            line.windows(12).any(|part| part == b"\"expires_ms\""),
            "{name}"
        );
        succeed(&["delete", text(back), "k"]);
    }
    let error = fail(&["export", text(db), text(&place.path("plain.csv"))]);
    assert!(error.contains("--deadlines"), "{error}");
}

/// A malformed digit or a line that does not end, far behind its beginning.
#[test]
fn malformed_long_values_are_named_and_not_stored() {
    let place = TestDirectory::new();
    for (name, content, more) in [
        (
            "in.tsv",
            ["6b\t", &"61".repeat(MIB), "6\n"].concat(),
            "--hex",
        ),
        (
            "in.tsv",
            ["6b\t", &"61".repeat(MIB), "6g\n"].concat(),
            "--hex",
        ),
        (
            "in.csv",
            ["k,\"", &"x".repeat(2 * MIB)].concat(),
            "--header",
        ),
        (
            "in.csv",
            [&"x".repeat(2 * MIB), ",v\n"].concat(),
            "--deadlines",
        ),
        (
            "in.jsonl",
            [
                "{\"key\":\"k\",\"value\":\"",
                &"x".repeat(2 * MIB),
                "\u{1}\"}\n",
            ]
            .concat(),
            "--json",
        ),
    ] {
        let db = &place.path("db");
        let content = match more {
            "--header" => ["key,value\n", &content].concat(),
            _ => content,
        };
        let file = place.write(name, content);
        for sorted in [&[][..], &["--sorted"]] {
            let error = fail(&[&["import", text(db), text(&file), more], sorted].concat());
            assert!(
                error.contains("malformed line") || error.contains("limit"),
                "{error}"
            );
        }
        assert!(!db.exists());
    }
}
