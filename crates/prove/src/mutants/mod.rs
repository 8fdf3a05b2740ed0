//! The layer `mutants`: deliberate breakages of the engine, each of which a script must notice.
//!
//! All mutants are in one build of their own, behind `--cfg terrapin_mutants`. A process chooses
//! one by its name ([`terrapin_base::mutant`]). The [`table()`] says of each what it breaks and
//! which script must notice it. A unit of the layer makes that build once, with little optimisation
//! and without debug assertions, and starts it as a process of one mutant. A case of the script
//! must fail there with the mutant and pass without it. A mutant that survives means that a test is
//! missing, or that the engine does not need the line.

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
pub use table::{COUNT, Mutant, table};

/// The name of the layer.
pub const LAYER: &str = "mutants";
/// The first argument of a process of one mutant; the mutant's name and a directory follow.
const CHILD: &str = "mutant";
/// The exit status of a process whose script noticed the mutant.
const NOTICED: u8 = 0;

/// The layers of this kind.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![Layer {
        name: LAYER,
        counts: "mutants killed",
        ci: COUNT as u64,
        full: COUNT as u64,
        units: Units::Fixed(COUNT as u64),
        alone: false,
        unit: killed,
    }]
}

/// The unit of the layer that tries the mutant of this name, if there is one.
#[must_use]
pub fn unit_of(name: &str) -> Option<u64> {
    let index = table().position(|mutant| mutant.name == name)?;
    u64::try_from(index).ok()
}

/// Runs one mutant if the arguments say that this process is for one; `None` otherwise.
#[must_use]
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, command, name, scratch] = arguments else {
        return None;
    };
    if command != CHILD {
        return None;
    }
    Some(in_child(name, Path::new(scratch)))
}

#[cfg(terrapin_mutants)]
fn in_child(name: &str, scratch: &Path) -> ExitCode {
    run::child(name, scratch)
}

#[cfg(not(terrapin_mutants))]
fn in_child(name: &str, _scratch: &Path) -> ExitCode {
    eprintln!("mutant {name} is not in this build: build with --cfg terrapin_mutants");
    ExitCode::FAILURE
}

/// Unit `n` kills the `n`-th mutant of the table.
fn killed(unit: u64, scratch: &Path) -> Result<u64, Find> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let mutant = usize::try_from(unit).ok().and_then(|at| table().nth(at));
    let mutant = mutant.ok_or_else(|| Find(format!("there is no mutant at {unit}")))?;
    let program = BUILT
        .get_or_init(build)
        .as_ref()
        .map_err(|e| Find(e.clone()))?;
    let output = Command::new(program)
        .arg(CHILD)
        .arg(mutant.name)
        .arg(scratch)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let said = said.trim();
    if output.status.code() == Some(NOTICED.into()) {
        println!("mutant {}: {said}", mutant.name);
        return Ok(1);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let ended = output.status;
    Err(Find(format!(
        "mutant {} in {} was not noticed: {}. It breaks \"{}\". Its process ended with {ended} and \
         said: {said} {}\n  again: prove --layer mutants --unit {}",
        mutant.name,
        mutant.file,
        mutant.does,
        mutant.breaks,
        errors.trim(),
        mutant.name
    )))
}

/// Builds this program with all mutants into `mutants/` of its target directory; returns its path.
fn build() -> Result<PathBuf, String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let this = env::current_exe().map_err(|e| format!("the path of this program: {e}"))?;
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
        // As in a release: an assertion that users do not run must not notice a mutant.
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
