//! Records the compiler and target of this binary, since they decide how many instructions it
//! takes.

use std::env;
use std::process::Command;

/// Variables that change generated code past Cargo.toml.
const OVERRIDES: [&str; 4] = [
    "CARGO_PROFILE_RELEASE_LTO",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL",
    "CARGO_PROFILE_RELEASE_PANIC",
];

fn main() {
    let get = |name: &str| env::var(name).unwrap_or_default();
    let version = Command::new(get("RUSTC")).arg("--version").output();
    let version = version.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    let mut profile = get("PROFILE");
    for name in OVERRIDES {
        println!("cargo::rerun-if-env-changed={name}");
        if let Ok(value) = env::var(name) {
            profile += &format!(" {name}={value}");
        }
    }
    let flags = get("CARGO_ENCODED_RUSTFLAGS").replace('\u{1f}', " ");
    if !flags.is_empty() {
        profile += &format!(" RUSTFLAGS={flags}");
    }
    println!("cargo::rustc-env=COUNTS_RUSTC={version}");
    println!("cargo::rustc-env=COUNTS_TARGET={}", get("TARGET"));
    println!("cargo::rustc-env=COUNTS_PROFILE={profile}");
}
