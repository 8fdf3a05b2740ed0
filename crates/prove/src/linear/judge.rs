//! Asks the judge, a Go program that each process builds once, beside the units' directories.
//! Without Go there is no verdict, and that is an error.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, process};

use super::history::History;
use crate::Find;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/linearize");
/// The longest search; an undecided history is no proof.
const TIMEOUT: &str = "60s";

/// Whether a history is linearizable. A find shows the shortest wrong part and the place of the
/// whole history. `scratch` takes files meanwhile.
pub fn judge(history: &History, scratch: &Path) -> Result<(), Find> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let judge = BUILT
        .get_or_init(|| build(scratch.parent().unwrap_or(scratch)))
        .as_ref()
        .map_err(|e| Find(e.clone()))?;
    let file = scratch.join("history.jsonl");
    fs::write(&file, history.lines())?;
    let output = Command::new(judge)
        .args(["-timeout", TIMEOUT])
        .arg(&file)
        .output()
        .map_err(|e| Find(format!("{}: {e}", judge.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let kept = env::temp_dir().join(format!(
        "prove-history-{}-{:016x}.jsonl",
        process::id(),
        terrapin_base::checksum::hash64(history.lines().as_bytes())
    ));
    let place = match fs::copy(&file, &kept) {
        Ok(_) => kept.display().to_string(),
        Err(error) => format!("nowhere: {error}"),
    };
    Err(Find(format!(
        "{}{}The whole history is in {place}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    )))
}

/// Go caches the build, so only the first process waits for it.
fn build(directory: &Path) -> Result<PathBuf, String> {
    // The program is built in another directory than this one.
    let directory =
        fs::canonicalize(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let place = directory.join("linearize");
    let output = Command::new("go")
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&place)
        .arg(".")
        .current_dir(SOURCE)
        .output()
        .map_err(|e| format!("the judge of histories is built with go, which does not run: {e}"))?;
    if output.status.success() {
        return Ok(place);
    }
    Err(format!(
        "the judge of histories does not build: {}",
        String::from_utf8_lossy(&output.stderr)
    ))
}
