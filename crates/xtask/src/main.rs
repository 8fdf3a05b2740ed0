//! `cargo xtask check`: every check that needs no root, one after the other. It stops at the first
//! failure. `.ci/run` runs these and, as root, the layers of proof.

use std::env;
use std::process::{Command, ExitCode};

/// A check: its name, and the arguments of `cargo`.
struct Check {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Whether rustdoc's warnings are errors.
    is_documentation: bool,
}

const fn check(name: &'static str, arguments: &'static [&'static str]) -> Check {
    Check {
        name,
        arguments,
        is_documentation: false,
    }
}

const CHECKS: &[Check] = &[
    check("format", &["fmt", "--all", "--check"]),
    check(
        "lints",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
    ),
    Check {
        name: "documents",
        arguments: &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
        is_documentation: true,
    },
    // `prove` has the layers of proof, whose tests take minutes.
    check(
        "tests",
        &[
            "test",
            "--workspace",
            "--exclude",
            "prove",
            "--locked",
            "--quiet",
        ],
    ),
];

const USAGE: &str = "usage: cargo xtask check    runs every check that needs no root";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("check"), None) => check_all(),
        (None | Some("help" | "--help" | "-h"), None) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("xtask: no such task\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn check_all() -> ExitCode {
    for check in CHECKS {
        println!("=== {}: cargo {}", check.name, check.arguments.join(" "));
        let mut cargo = cargo(check.arguments);
        if check.is_documentation {
            cargo.env("RUSTDOCFLAGS", "-Dwarnings");
        }
        if !succeeds(&mut cargo) {
            eprintln!("xtask: {} failed", check.name);
            return ExitCode::FAILURE;
        }
    }
    licences()
}

/// Licences and advisories by `cargo deny`, which is not built here. Without it,
/// `crates/model/tests/licences.rs` still checks the licences.
fn licences() -> ExitCode {
    let mut version = cargo(&["deny", "--version"]);
    let is_installed = version.output().is_ok_and(|output| output.status.success());
    if !is_installed {
        println!("=== advisories: skipped; `cargo install --locked cargo-deny` adds them");
        return ExitCode::SUCCESS;
    }
    println!("=== advisories: cargo deny check");
    match succeeds(&mut cargo(&["deny", "check"])) {
        true => ExitCode::SUCCESS,
        false => {
            eprintln!("xtask: cargo deny failed");
            ExitCode::FAILURE
        }
    }
}

fn cargo(arguments: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.args(arguments);
    cargo
}

fn succeeds(cargo: &mut Command) -> bool {
    match cargo.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("xtask: cannot run cargo: {error}");
            false
        }
    }
}
