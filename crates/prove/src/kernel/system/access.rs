//! Read-only places, and databases that another process has open: a clear error, no change, and
//! reads work where they can (D9, D11). A copy made while a process writes opens with what had been
//! synced before, or is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use terrapin::verify::{VerifyOptions, verify};
use terrapin::{Error, ErrorKind};

use super::store::{Store, refuses_files, small};
use crate::Find;
use crate::kernel::file_system::{FileSystem, Kind, run};
use crate::kernel::judge::{Content, Survives, judge};
use crate::kernel::life::{Moment, copy, keep, live};
use crate::kernel::plan::Story;

const STEPS: u32 = 400;

/// A read-only file system, and a directory without write permission.
pub fn read_only(scratch: &Path) -> Result<u64, Find> {
    let system = FileSystem::new(Kind::Ext4, scratch, 32 << 20)?;
    let mut cases = 0;
    for closed in [true, false] {
        let directory = system.path().join(format!("database-{closed}"));
        let live = system.path().join(format!("live-{closed}"));
        let mut store = Store::new(&live, &small(), 3)?;
        store.write(STEPS)?;
        if closed {
            store.database().close()?;
        }
        store.copy_at_rest(&directory)?;
        let reads = |how: &str| -> Result<(), Find> {
            let refused = |error: &Error| {
                matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnly
                )
            };
            match small().options().open(&directory) {
                Err(error) if refused(&error) => {}
                Err(error) => return Err(Find(format!("{how}, an open for writing: {error}"))),
                Ok(_) => return Err(Find(format!("{how} it opens for writing"))),
            }
            let nowhere = system.path().join("nowhere");
            match small().options().open(&nowhere) {
                Err(error) if refused(&error) => {}
                // Only this directory is closed to changes.
                Ok(database) if how == "unchangeable" => {
                    // Its jobs create files.
                    drop(database);
                    fs::remove_dir_all(&nowhere)?;
                }
                Err(error) => return Err(Find(format!("{how}, a creation: {error}"))),
                Ok(_) => return Err(Find(format!("{how} a database is created"))),
            }
            let database = small()
                .options()
                .read_only(true)
                .open(&directory)
                .map_err(|error| Find(format!("{how}, an open for reading: {error}")))?;
            let content = Content::read(&database)?;
            store.tale().check(&content, Survives::Acknowledged)?;
            let report = verify(&directory, &VerifyOptions::default())?;
            if report.is_sound() {
                return Ok(());
            }
            Err(Find(format!("{how} verify finds {:?}", report.findings)))
        };
        // A file system with files open for writing cannot become read-only.
        let tale = store.tale();
        if closed {
            system.remount("ro")?;
            let outcome = reads("read-only");
            system.remount("rw")?;
            outcome?;
        }
        run(Command::new("chattr").args(["-R", "+i"]).arg(&directory))?;
        let outcome = reads("unchangeable");
        run(Command::new("chattr").args(["-R", "-i"]).arg(&directory))?;
        outcome?;
        let database = small().options().open(&directory)?;
        tale.check(&Content::read(&database)?, Survives::Acknowledged)?;
        database.close()?;
        cases += if closed { 3 } else { 2 };
    }
    Ok(cases)
}

/// One process has the database open; another one tries.
pub fn open_elsewhere(scratch: &Path) -> Result<u64, Find> {
    let directory = scratch.join("database");
    let story = Story::new(11);
    let options = story.configuration(0).options();
    let attempt = |read_only: bool| {
        let opened = options.clone().read_only(read_only).open(&directory);
        expect_locked(opened.map(drop), "an open beside another process")
    };
    let moment = Moment::Writing(Duration::from_millis(50));
    let stderr = scratch.join("stderr");
    let acknowledged = live(&directory, 11, 0, moment, &stderr, || {
        thread::scope(|scope| {
            let tries = [
                scope.spawn(|| attempt(false)),
                scope.spawn(|| attempt(true)),
                scope.spawn(|| {
                    // It reads beside the writer.
                    let report = verify(&directory, &VerifyOptions::default())?;
                    if report.is_sound() {
                        return Ok(());
                    }
                    let found = report.findings;
                    Err(Find(format!("verify beside a writer finds {found:?}")))
                }),
            ];
            tries.into_iter().try_for_each(|tried| {
                tried
                    .join()
                    .unwrap_or_else(|_| Err(Find("an open panicked".to_owned())))
            })
        })
    })?;
    let database = options.open(&directory)?;
    let content = Content::read(&database)?;
    judge(
        &story,
        0,
        &Content::default(),
        &acknowledged,
        &content,
        Survives::Acknowledged,
    )?;
    let again = options.open(&directory);
    expect_locked(again.map(drop), "a second open in one process")?;
    Ok(4)
}

fn expect_locked(outcome: terrapin::Result<()>, what: &str) -> Result<(), Find> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Locked => Ok(()),
        Err(error) => Err(Find(format!("{what}: {error}"))),
        Ok(()) => Err(Find(format!("{what} succeeds"))),
    }
}

/// The directory is copied file by file while a process writes.
pub fn copied_while_open(scratch: &Path) -> Result<u64, Find> {
    let mut cases = 0;
    for seed in 20..28 {
        let directory = scratch.join("database");
        let stderr = scratch.join("stderr");
        let story = Story::new(seed);
        let moment = Moment::Writing(Duration::from_millis(40 * (seed - 19)));
        let orders: [(&str, Order); 3] = [
            ("as listed", |_| 0),
            ("data first", |name| i32::from(name != "data")),
            ("data last", |name| i32::from(name == "data")),
        ];
        let copies: Vec<_> = orders
            .iter()
            .enumerate()
            .map(|(number, _)| scratch.join(format!("copy-{number}")))
            .collect();
        let acknowledged = live(&directory, seed, 0, moment, &stderr, || {
            for ((_, order), to) in orders.iter().zip(&copies) {
                copy_in_order(&directory, to, *order)?;
            }
            Ok(())
        })?;
        for ((name, _), place) in orders.iter().zip(&copies) {
            let kept = scratch.join("kept");
            let _ = fs::remove_dir_all(&kept);
            copy(place, &kept)?;
            let outcome = copied(&story, place, |content| {
                let nothing = Content::default();
                judge(
                    &story,
                    0,
                    &nothing,
                    &acknowledged,
                    content,
                    Survives::Synced,
                )
            });
            outcome.map_err(|find| {
                let find = Find(format!("seed {seed}, copied {name}: {find}"));
                keep(&kept, "system", seed, find)
            })?;
            fs::remove_dir_all(place)?;
            cases += 1;
        }
        fs::remove_dir_all(&directory)?;
    }
    Ok(cases)
}

type Order = fn(&str) -> i32;

/// Files that have gone when their turn comes are left out.
fn copy_in_order(from: &Path, to: &PathBuf, order: Order) -> Result<(), Find> {
    fs::create_dir_all(to)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(from)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_by_key(|name| order(name));
    for name in names {
        match fs::copy(from.join(&name), to.join(&name)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copied(
    story: &Story,
    place: &Path,
    judged: impl Fn(&Content) -> Result<(), Find>,
) -> Result<(), Find> {
    let database = match story.configuration(1).options().open(place) {
        Ok(database) => database,
        Err(error) if refuses_files(&error) => return Ok(()),
        Err(error) => return Err(Find(format!("the open: {error}"))),
    };
    // A copy that opened is whole.
    match Content::try_read(&database)? {
        Ok(content) => judged(&content),
        Err(error) => Err(Find(format!("the copy opens, and a read says: {error}"))),
    }
}
