//! Puts the commit of the engine under test into the binary, and whether the engine or this crate
//! was edited since. A result then says what it measured.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../../crates");
    println!("cargo:rerun-if-changed=src");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // An unpacked archive has no commit.
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let edited = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "../../crates",
        ".",
    ])
    .is_some_and(|changes| !changes.is_empty());
    let mark = if edited { "+edits" } else { "" };
    println!("cargo:rustc-env=TERRAPIN_COMMIT={commit}{mark}");
}
