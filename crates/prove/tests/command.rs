//! The command refuses nonsense in one line, and lists the ledger's entries.

use std::path::PathBuf;
use std::process::{Command, Output};

use prove::{Layer, Units, layers};

fn prove(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prove"));
    command.args(arguments).output().unwrap()
}

/// The text of a refusal.
fn refused(arguments: &[&str]) -> String {
    let output = prove(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// A layer with a fixed number of units.
fn fixed() -> (Layer, u64) {
    let found = layers().into_iter().find_map(|layer| match layer.units {
        Units::Fixed(count) => Some((layer, count)),
        Units::Seeds => None,
    });
    found.unwrap()
}

#[test]
fn wrong_command_lines_are_refused() {
    for minutes in ["-1", "0", "NaN", "inf", "1e300", "soon"] {
        let said = refused(&["--minutes", minutes]);
        assert!(said.contains("minutes are a number"), "{minutes}: {said}");
    }
    let all = layers();
    let without: Vec<&str> = all.iter().flat_map(|l| ["--without", l.name]).collect();
    assert!(refused(&without).contains("no layer to try"));
    assert!(refused(&[&without[..], &["--minutes", "1"]].concat()).contains("no layer to try"));
    let (layer, count) = fixed();
    let (name, unit) = (layer.name, count.to_string());
    let said = refused(&["--layer", name, "--unit", &unit]);
    assert!(said.contains(&format!("no unit {count}")), "{said}");
}

#[test]
fn the_list_shows_finds() {
    let (layer, count) = fixed();
    let name = format!("prove-ledger-{}.tsv", std::process::id());
    let ledger: PathBuf = std::env::temp_dir().join(name);
    let lines = format!(
        "layer\tcommit\tfirst\tlast\tcounted\tfinds\tseconds\n{}\tc1\t0\t{}\t5\t2\t1.0\n",
        layer.name,
        count - 1
    );
    std::fs::write(&ledger, lines).unwrap();
    let output = prove(&["--list", "--ledger", ledger.to_str().unwrap()]);
    std::fs::remove_file(&ledger).unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let with_finds: Vec<&str> = list.lines().filter(|l| l.ends_with(", 2 finds")).collect();
    assert_eq!(with_finds.len(), 1, "{list}");
    assert!(with_finds[0].starts_with(layer.name), "{list}");
}
