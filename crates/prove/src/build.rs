//! Separate builds: the same crates under other compiler flags, in target directories beside the
//! usual one. Their tests run as processes and report how much they tried.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Find;

/// A build of the workspace with its own flags.
pub(crate) struct Build {
    /// The name of its target directory.
    pub name: &'static str,
    /// Compiler flags, added to those of the environment.
    pub flags: &'static str,
    /// Arguments of `cargo test` that choose what is built: packages, targets, features.
    pub what: &'static [&'static str],
    /// Environment of the build.
    pub environment: &'static [(&'static str, &'static str)],
}

/// The result and output of tests.
pub(crate) struct Said {
    /// Whether all passed.
    pub passed: bool,
    /// Standard output, then standard error.
    pub text: String,
}

impl Build {
    /// `cargo test` for this build; arguments after `--` go to the tests.
    fn cargo(&self) -> Command {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(root).join("target"), PathBuf::from)
            .join(self.name);
        let inherited = std::env::var("RUSTFLAGS").unwrap_or_default();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["test", "--release", "--locked", "--target-dir"])
            .arg(target)
            .args(self.what)
            .current_dir(root)
            .env("RUSTFLAGS", format!("{inherited} {}", self.flags))
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            // Fast to build. What debug builds assert, these assert too.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("CARGO_TERM_COLOR", "never")
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null());
        command
    }

    /// Builds the tests and returns their paths. A second call returns at once.
    pub(crate) fn tests(&self) -> Result<Vec<PathBuf>, Find> {
        let mut command = self.cargo();
        command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
        let output = command.output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(Find(format!(
                "{} does not build:\n{}",
                self.name,
                last(&text)
            )));
        }
        let lines = String::from_utf8_lossy(&output.stdout);
        let tests: Vec<PathBuf> = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|message| message["profile"]["test"] == true)
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .collect();
        match tests.is_empty() {
            true => Err(Find(format!("{} has no tests", self.name))),
            false => Ok(tests),
        }
    }
}

/// Runs tests and returns their output.
pub(crate) fn run(command: &mut Command) -> Result<Said, Find> {
    let output = command.stdin(Stdio::null()).output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    Ok(Said {
        passed: output.status.success(),
        text,
    })
}

/// The last lines of a text, which hold the failure.
pub(crate) fn last(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
