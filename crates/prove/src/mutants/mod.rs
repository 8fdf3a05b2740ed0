//! Deliberate breakages of the engine, each of which a script must notice: the tests test.
//!
//! All breakages are in one build of their own, behind `--cfg terrapin_mutants`, and are chosen by
//! number at run time ([`terrapin_base::mutant`]); [`TABLE`] lists them. A unit of the layer builds
//! that once, with little optimisation and without debug assertions, and runs itself there as a
//! process of one mutant: the script must fail with it, and the case that failed must pass without
//! it. A mutant that survives means that a test is missing, or that the engine has a line that it
//! does not need.

mod checks;
#[cfg(terrapin_mutants)]
mod run;
mod script;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use crate::{Find, Layer, Units};

pub use script::Script;
pub use table::{Mutant, TABLE};

/// What a process of one mutant is started with, before number and directory.
const CHILD: &str = "mutant";
/// How the process ends when the mutant was noticed.
const NOTICED: u8 = 0;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![Layer {
        name: "mutants",
        counts: "mutants killed",
        ci: TABLE.len() as u64,
        full: TABLE.len() as u64,
        units: Units::Fixed(TABLE.len() as u64),
        alone: false,
        unit: killed,
    }]
}

/// Does the work of the process of one mutant when the arguments say that this is one.
#[must_use]
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, name, number, scratch] = arguments else {
        return None;
    };
    if name != CHILD {
        return None;
    }
    Some(in_child(number, Path::new(scratch)))
}

#[cfg(terrapin_mutants)]
fn in_child(number: &str, scratch: &Path) -> ExitCode {
    run::child(number, scratch)
}

#[cfg(not(terrapin_mutants))]
fn in_child(number: &str, _scratch: &Path) -> ExitCode {
    eprintln!("mutant {number} is not in this build: it lacks --cfg terrapin_mutants");
    ExitCode::FAILURE
}

/// Unit `n` kills the `n`-th mutant of the table.
fn killed(unit: u64, scratch: &Path) -> Result<u64, Find> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let mutant = usize::try_from(unit).ok().and_then(|at| TABLE.get(at));
    let mutant = mutant.ok_or_else(|| Find(format!("there is no mutant at {unit}")))?;
    let program = BUILT
        .get_or_init(build)
        .as_ref()
        .map_err(|e| Find(e.clone()))?;
    let output = Command::new(program)
        .arg(CHILD)
        .arg(mutant.number.to_string())
        .arg(scratch)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.trim();
    if output.status.code() == Some(NOTICED.into()) {
        println!("mutant {}, {}: {said}", mutant.number, mutant.name);
        return Ok(1);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let ended = output.status;
    Err(Find(format!(
        "mutant {} ({}, in {}) must be noticed: it breaks \"{}\". Its process ended with {ended} and said: {said} {}\n  \
         again: prove --layer mutants --unit {unit}",
        mutant.number,
        mutant.name,
        mutant.place,
        mutant.breaks,
        errors.trim()
    )))
}

/// Builds this program with the breakages in it, beside where it lies, and says where that is.
fn build() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let this = env::current_exe().map_err(|e| format!("where this program lies: {e}"))?;
    let target = this
        .ancestors()
        .find(|directory| directory.join("CACHEDIR.TAG").exists())
        .map_or_else(|| manifest.join("../../target"), Path::to_path_buf)
        .join("mutants");
    fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--bin", "prove", "--manifest-path"])
        .arg(manifest.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", format!("{flags} --cfg terrapin_mutants"))
        // As a release does it: an assertion that users do not run must not be what notices.
        .env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false")
        .env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run cargo to build the mutants: {e}"))?;
    if output.status.success() {
        return Ok(target.join("debug").join("prove"));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("the mutants do not build: {}", errors.trim()))
}
