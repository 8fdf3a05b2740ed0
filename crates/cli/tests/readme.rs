//! The README's examples for the shell work as they stand.

mod common;

use std::path::Path;
use std::process::Command;

use common::{TestDirectory, succeed, text};

#[test]
fn the_shell_examples_of_the_readme_work_as_they_stand() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("\n## From the shell\n").nth(1).unwrap();
    let block = section.split("```sh\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    // The first installs the command; benchmarks take their time.
    let is_run = |line: &&str| !line.starts_with("cargo ") && !line.starts_with("terrapin bench ");
    let script: Vec<&str> = block.lines().filter(is_run).collect();
    assert!(script.len() > 10, "{script:?}");

    let place = TestDirectory::new();
    let bin = Path::new(env!("CARGO_BIN_EXE_terrapin")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path =
        std::env::join_paths(std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path)));
    let mut shell = Command::new("sh");
    shell
        .args(["-e", "-c", &script.join("\n")])
        .env("PATH", path.unwrap());
    let output = shell.current_dir(&place).output().unwrap();
    let (out, complaint) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(
        output.status.success() && complaint.is_empty(),
        "{complaint}"
    );
    assert!(out.starts_with("slowturtle\tslow\n"), "{out}");
    let people = place.path("people.db");
    assert_eq!(succeed(&["scan", text(&people)]), b"7\tAnn\n8\tBob\n");
}
