//! A process that forks beside its open database. The child has copies of all descriptors. It stops
//! no write of its parent, keeps no lock after the parent's close, and opens what the parent closed
//! before the fork (D9).

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use terrapin::{Error, ErrorKind};
use terrapin_disk::Forked;

use super::store::{Store, Tale, small};
use crate::Find;
use crate::kernel::judge::{Content, Survives, sound};

const SEED: u64 = 11;
/// Steps that fill many log files.
const STEPS: u32 = 1500;

/// The first argument of the forking process; its directory follows.
const FORKING: &str = "--kernel-forking";

/// Forks in a separate process (this binary): a child may open no database while another thread of
/// its parent has one open, and other units run beside this one.
pub fn children(scratch: &Path) -> Result<u64, Find> {
    let output = Command::new(std::env::current_exe()?)
        .arg(FORKING)
        .arg(scratch)
        .output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Find(format!("{}: {}", output.status, said.trim())))
}

/// Does the work of the forking process, if the arguments ask for it. The number of cases goes to
/// standard output.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, role, directory] = arguments else {
        return None;
    };
    if role != FORKING {
        return None;
    }
    Some(match fork(Path::new(directory)) {
        Ok(cases) => {
            println!("{cases}");
            ExitCode::SUCCESS
        }
        Err(find) => {
            eprintln!("{find}");
            ExitCode::FAILURE
        }
    })
}

/// Children that do nothing, one that opens what its parent has open, and one that opens what its
/// parent closed.
fn fork(scratch: &Path) -> Result<u64, Find> {
    let directory = scratch.join("live");
    let options = small().options().stall_limit(Duration::from_secs(5));
    let mut store = Store::open(&directory, &options, Tale::of(SEED, 0))?;
    let mut idle = Vec::new();
    for _ in 0..3 {
        store.write(STEPS)?;
        idle.push(Forked::idle()?);
    }
    store.write(STEPS)?;
    let refused = |error: Error| error.kind() == ErrorKind::Unsupported;
    let child = Forked::run(|| {
        let opened = options.open(&directory);
        u8::from(!opened.is_err_and(refused))
    });
    if child?.ended()? != Some(0) {
        return Err(Find("a child of an open database opens it".to_owned()));
    }
    let mut store = store.reopened(&options)?;
    store.write(STEPS)?;
    let tale = store.tale();
    store.database().close()?;
    let holds_all = || -> Result<bool, Find> {
        let store = Store::open(&directory, &options, Tale::of(SEED, store.steps()))?;
        let content = Content::read(store.database())?;
        store.database().close()?;
        Ok(tale.check(&content, Survives::Acknowledged).is_ok())
    };
    let child = Forked::run(|| {
        let outcome = holds_all();
        if let Err(Find(why)) = &outcome {
            eprintln!("a child of a closed database: {why}");
        }
        u8::from(!outcome.unwrap_or(false))
    });
    match child?.ended()? {
        Some(0) => {}
        Some(_) => {
            return Err(Find(
                "a child finds not all that its parent closed".to_owned(),
            ));
        }
        None => {
            return Err(Find(
                "a child died that opened what its parent closed".to_owned(),
            ));
        }
    }
    if !holds_all()? {
        return Err(Find("not all is there behind a child".to_owned()));
    }
    drop(idle);
    sound(&directory, "behind children", false)?;
    Ok(3)
}
