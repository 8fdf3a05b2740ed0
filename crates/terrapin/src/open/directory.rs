//! The directory of a database: opening it, and the refusal to create a database among other files.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Env, Error, ErrorKind, Result};
use terrapin_disk::{Disk, RealDisk};
use terrapin_pages::{DATA_FILE, UNFINISHED_FILE};
use terrapin_wal::is_log_file;

use crate::engine::readers::READERS_FILE;

/// Opens the directory of a database. Fails with [`ErrorKind::DatabaseNotFound`] if it does not
/// exist and `create` is false.
pub(crate) fn open_directory(env: &Env, path: &Path, create: bool) -> Result<Arc<dyn Disk>> {
    match RealDisk::open(env.clone(), path, create) {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(
            ErrorKind::DatabaseNotFound,
            "there is no database: the directory does not exist",
        )
        .with("directory", path.display())),
        Err(error) => Err(error),
    }
}

/// Refuses to create a database in a directory of other files, so that a mistyped path does no
/// harm.
pub(super) fn refuse_foreign(path: &Path) -> Result<()> {
    // If the directory cannot be listed, the open fails with the reason.
    let Ok(entries) = std::fs::read_dir(path) else {
        return Ok(());
    };
    let names = entries.filter_map(std::io::Result::ok);
    let names: BTreeSet<OsString> = names.map(|entry| entry.file_name()).collect();
    // Hidden files, and files of a fresh file system, do not count.
    let passes = |name: &str| {
        is_log_file(name)
            || [UNFINISHED_FILE, READERS_FILE, "lost+found"].contains(&name)
            || name.starts_with('.')
    };
    let foreign = |name: &&OsString| !name.to_str().is_some_and(passes);
    let Some(name) = names.iter().find(foreign) else {
        return Ok(());
    };
    if names.contains(OsStr::new(DATA_FILE)) {
        return Ok(());
    }
    let message = "the directory holds other files and no Terrapin database; a new database needs a directory of its own";
    Err(Error::new(ErrorKind::NotADatabase, message)
        .with("directory", path.display())
        .with("first of them", name.display()))
}
