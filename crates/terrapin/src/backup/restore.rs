//! Restores a backup into a new directory.
//!
//! The data file gets its name last, by one rename. A restore that is killed before leaves no
//! database, and the next one begins anew. The file `restoring-data` marks such a directory.

use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Env, Error, ErrorKind, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions, RealDisk};
use terrapin_pages::DATA_FILE;
use terrapin_wal::is_log_file;

use crate::backup::pages::PIECE_BYTES;
use crate::backup::target::Target;
use crate::open::directory::open_directory;

/// The data file of a restore that is under way.
const UNFINISHED: &str = "restoring-data";
/// Zeros of this many bytes, at their multiples, stay holes.
const HOLE_BYTES: usize = 64 << 10;

/// Makes a database from the backup in the directory `backup`, in a directory `path` that is empty
/// or does not exist. The backup stays as it is. An open of the database replays the log of the
/// backup.
///
/// Where the file system can, both share the blocks of the data file. Otherwise the call copies
/// all bytes.
///
/// Errors: `NotFound` if there is no whole backup; `AlreadyExists` if `path` has a database;
/// `NotADatabase` if it has other files; `Locked` while a backup into that directory runs;
/// `Corrupt` for a damaged manifest; `NoSpace`. A restore that failed or was killed may be
/// repeated.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let base = std::env::temp_dir().join(format!("terrapin-doc-restore-{}", std::process::id()));
/// let database = terrapin::Database::open(base.join("database"))?;
/// database.default_keyspace().put("apple", "sweet")?;
/// database.backup(base.join("backup"))?;
/// terrapin::backup::restore(base.join("backup"), base.join("copy"))?;
/// let copy = terrapin::Database::open(base.join("copy"))?;
/// assert_eq!(copy.default_keyspace().get("apple")?.unwrap(), "sweet");
/// # let _ = std::fs::remove_dir_all(base);
/// # Ok(()) }
/// ```
pub fn restore(backup: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
    let env = Env::threads();
    let backup = backup.as_ref();
    let backup = open_directory(&env, backup, false).map_err(|error| match error.kind() {
        ErrorKind::DatabaseNotFound => {
            let message = "there is no backup: the directory does not exist";
            Error::new(ErrorKind::NotFound, message).with("directory", backup.display())
        }
        _ => error,
    })?;
    let path: Arc<dyn Disk> = Arc::new(RealDisk::open(env, path.as_ref(), true)?);
    restore_on(&backup, &path)
}

/// Restores a backup on disks of the caller, for tests on simulated disks.
#[doc(hidden)]
pub fn restore_on(backup: &Arc<dyn Disk>, disk: &Arc<dyn Disk>) -> Result<()> {
    let target = Target::to_read(backup)?;
    let Some(set) = target.present() else {
        return Err(Error::internal("a backup without a manifest"));
    };
    refuse_others(disk)?;
    let create = |name: &str| {
        let options = OpenOptions {
            create_new: true,
            write: true,
            direct: true,
            ..OpenOptions::default()
        };
        disk.open(name, options)
    };
    // The mark comes first and goes last.
    let data = create(UNFINISHED)?;
    disk.sync_directory()?;
    for name in set.list()? {
        if name != DATA_FILE {
            copy_file(&*set, &name, &*create(&name)?)?;
        }
    }
    copy_file(&*set, DATA_FILE, &*data)?;
    drop(data);
    if !mutant::active("restore-names-not-durable") {
        disk.sync_directory()?;
    }
    disk.rename(UNFINISHED, DATA_FILE)?;
    disk.sync_directory()
}

/// Refuses a directory that is not empty, except for what a killed restore left. Removes that.
fn refuse_others(disk: &Arc<dyn Disk>) -> Result<()> {
    let names = disk.list()?;
    let is_unfinished = names.iter().any(|name| name == UNFINISHED);
    let is_log = |name: &String| is_log_file(name);
    if names.iter().any(|name| name == DATA_FILE) || (!is_unfinished && names.iter().any(is_log)) {
        let error = Error::new(ErrorKind::AlreadyExists, "there is a database already");
        return Err(error.with("directory", disk.describe()));
    }
    let passes = |name: &String| {
        is_log(name) || name == UNFINISHED || name == "lost+found" || name.starts_with('.')
    };
    if let Some(name) = names.iter().find(|name| !passes(name)) {
        let message =
            "the directory has other files; a restored database needs a directory of its own";
        return Err(Error::new(ErrorKind::NotADatabase, message)
            .with("directory", disk.describe())
            .with("first of them", name));
    }
    for name in names.iter().filter(|name| is_log(name)) {
        disk.remove(name)?;
    }
    // The mark goes last.
    disk.sync_directory()?;
    match is_unfinished {
        true => disk.remove(UNFINISHED),
        false => Ok(()),
    }
}

/// Copies a file, durably. Zeros stay holes.
fn copy_file(from: &dyn Disk, name: &str, to: &dyn File) -> Result<()> {
    let options = OpenOptions {
        direct: true,
        ..OpenOptions::default()
    };
    let from = from.open(name, options)?;
    if to.share_content(&*from)? {
        return to.sync();
    }
    let bytes = from.bytes()?;
    to.set_bytes(bytes)?;
    let mut buffer = AlignedBuf::new();
    let mut at = 0;
    while at < bytes {
        let count = PIECE_BYTES.min(bytes - at);
        buffer.resize(count as usize, 0);
        from.read_at(&mut buffer, at)?;
        for (index, piece) in buffer.chunks(HOLE_BYTES).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                to.write_at(piece, at + (index * HOLE_BYTES) as u64)?;
            }
        }
        at += count;
    }
    to.sync()
}
