//! Opening and creating a database. An open reads the log's tail and the nodes of the trees, but
//! not their leaves. Its steps:
//!
//! superblock → catalog → roots → the log's prefix → the branch of the new life, durable → free
//! space from a walk over the nodes (D4) → a new incarnation of the log, durable → replay → serve.
//!
//! *Branches.* Each open for writing draws a random number, the branch of the life. The superblock
//! names it before anything else uses it: log segments, their records, and ids of pages. The
//! superblock also names the branch of the log that the open found. Wherever an open dies, the log
//! that belongs to a superblock therefore has one of its two branches. Files of another copy of the
//! database drew other numbers, so they have neither.
//!
//! *Copies.* The superblock names the file that it was written to. An open may find it in another
//! file, and not closed. Then the data file is a copy of an open database, or a crash image that
//! was moved. The open checks all pages that the trees reach before it serves calls. Only then does
//! it write that the database is in this file.
//!
//! *Creation.* A new database exists once a superblock names an incarnation other than 0. The
//! creation writes that superblock after the log exists. An open makes anew whatever an interrupted
//! creation left.

pub(crate) mod base;
pub(crate) mod beside;
pub mod closing;
pub(crate) mod directory;
pub(crate) mod files;
pub(crate) mod large;
pub mod page_uses;
pub mod recovery;
mod start;
pub mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrapin_base::{Budget, Env, Error, ErrorKind, Generation, Incarnation, Result};
use terrapin_disk::Disk;
use terrapin_pages::{PageStore, Presence};
use terrapin_recordcache::RecordCache;
use terrapin_wal::Recovery;

use crate::api::database::Database;
use crate::engine::events;
use crate::engine::gate::Gate;
use crate::engine::readers::Readers;
use crate::engine::structures::Structures;
use crate::open::base::Base;
use crate::open::directory::{open_directory, refuse_foreign};
use crate::open::files::{Files, absent, check_log, draw_branch, log_options, never_was, scan_log};
use crate::open::large::{LoggedLarge, Sought};
use crate::open::start::{Start, start};
use crate::open::verify::check_copy;
use crate::types::options::Options;
use crate::types::options::settings::Settings;
use crate::types::structures::StructureParts;

/// # Opening
impl Options {
    /// Opens the database in a directory. Errors:
    ///
    /// - [`ErrorKind::InvalidArgument`]: options contradict each other or are out of bounds.
    /// - [`ErrorKind::OutOfMemory`]: the budget cannot hold the requested χ, or a log that is to be
    ///   replayed for reading only; or the system refuses addresses for so much memory.
    /// - [`ErrorKind::Locked`]: the database is open elsewhere. Fails at once if this process has
    ///   it open, and after 5 s if another process has.
    /// - [`ErrorKind::DatabaseNotFound`], [`ErrorKind::AlreadyExists`]: as
    ///   [`Options::create_if_missing`] and [`Options::error_if_exists`] say.
    /// - [`ErrorKind::NotADatabase`]: the directory, or the data file, holds something else. The
    ///   open creates nothing there.
    /// - [`ErrorKind::NewerFormat`]: a newer Terrapin wrote the database.
    /// - [`ErrorKind::Unsupported`]: an older Terrapin wrote it in a format that this one does not
    ///   read; or this build lacks the compression, or the structure of a keyspace; or the database
    ///   was opened for writing 16,777,215 times, which is the limit. In the last case, export it
    ///   and import it into a new one.
    /// - [`ErrorKind::Corrupt`], with file and place.
    /// - [`ErrorKind::NoSpace`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Io`]: the error of
    ///   the system. `Io` also if the system starts no thread.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Database> {
        open_path(self, path.as_ref())
    }

    /// Opens the database on a disk and in an environment of the caller, such as simulated ones.
    /// For tests. Fails as [`Options::open`] does.
    #[doc(hidden)]
    pub fn open_on(&self, env: Env, disk: Arc<dyn Disk>) -> Result<Database> {
        open_on(self, env, disk)
    }

    /// Opens a new database on a simulated disk. Returns the simulation, too, with its clock and
    /// jobs.
    #[cfg(test)]
    pub(crate) fn open_simulated(&self) -> (crate::Database, terrapin_base::Sim) {
        let (env, sim) = Env::simulated(1);
        let disk = terrapin_disk::SimDisk::new(1).handle();
        (self.open_on(env, disk).unwrap(), sim)
    }
}

/// Opens the database of a directory.
pub(crate) fn open_path(options: &Options, path: &Path) -> Result<Database> {
    options.settle()?;
    if options.creates() {
        refuse_foreign(path)?;
    }
    let env = Env::threads();
    let disk = open_directory(&env, path, options.creates())?;
    open(options, env, disk, Some(path.to_path_buf()))
}

/// Opens a database on a disk of the caller.
pub(crate) fn open_on(options: &Options, env: Env, disk: Arc<dyn Disk>) -> Result<Database> {
    open(options, env, disk, None)
}

fn open(
    options: &Options,
    env: Env,
    disk: Arc<dyn Disk>,
    path: Option<PathBuf>,
) -> Result<Database> {
    open_at(options, env, Gate::new(disk), path, None)
}

/// Opens the database behind a gate. A reader beside a writer names the generation `at` that it
/// reads.
fn open_at(
    options: &Options,
    env: Env,
    gate: Arc<Gate>,
    path: Option<PathBuf>,
    at: Option<Generation>,
) -> Result<Database> {
    let settings = options.settle()?;
    let memory = settings.memory;
    let began_ns = env.now_ns();
    let directory = gate.describe();
    let _span = tracing::info_span!("open", directory).entered();
    let opened = open_gated(options, settings, env, &gate, (path, at)).map_err(|error| {
        gate.shut();
        match error.kind() {
            ErrorKind::NoSpace => advise_less_memory(error, memory),
            _ => error,
        }
    })?;
    events::opened(opened.core(), began_ns);
    Ok(opened)
}

/// The memory budget that [`advise_less_memory`] suggests: the smallest one that needs no other
/// option.
const SMALL_MEMORY_BYTES: u64 = 8 << 20;

/// Adds advice to an error of allocating the log's files, whose size follows from the memory
/// budget.
fn advise_less_memory(error: Error, memory: u64) -> Error {
    let advice = match memory > SMALL_MEMORY_BYTES {
        true => {
            "free space, or open with a smaller Options::memory (--memory 8MiB): \
             the files of the log are then smaller"
        }
        false => "free space",
    };
    error.with("memory", memory).with("what to do", advice)
}

fn open_gated(
    options: &Options,
    mut settings: Settings,
    env: Env,
    gate: &Arc<Gate>,
    (path, at): (Option<PathBuf>, Option<Generation>),
) -> Result<Database> {
    let disk: Arc<dyn Disk> = gate.clone();
    let budget = Budget::new(settings.memory);
    let mut present = PageStore::presence(&disk)? == Presence::Present;
    if !present && !options.creates() {
        return Err(absent(&disk)?);
    }
    let records = record_cache(&budget)?;
    let mut made = None;
    if !present {
        match Files::create(&env, &disk, &settings, &budget) {
            Ok(files) => made = Some(files),
            // The last write of a creation that was killed landed before this open got the lock
            // (D9). The database exists after all.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => present = true,
            Err(error) => return Err(error),
        }
    }
    let mut files = match made {
        Some(files) => files,
        None => {
            let files = Files::open(&disk, &settings, &budget, at)?;
            if files.superblock.incarnation != Incarnation(0) && options.refuses_existing() {
                let error = Error::new(ErrorKind::AlreadyExists, "there is a database already");
                return Err(error.with("directory", disk.describe()));
            }
            files
        }
    };
    let readers = match settings.read_only {
        true => Readers::default(),
        false => Readers::begin(
            &disk,
            files.superblock.database_id,
            files.superblock.generation,
        ),
    };
    if present && files.superblock.incarnation == Incarnation(0) {
        if !options.creates() {
            return Err(never_was(&disk));
        }
        files.create_log(&env, &disk, &settings)?;
    }
    let parts = StructureParts {
        store: &files.store,
        budget: &budget,
        fanout: settings.fanout,
    };
    let structures = Structures::new(&parts, &settings.further_structures)?;
    let mut base = Base::read(
        &files.store,
        &files.superblock,
        structures,
        settings.default_structure,
    )?;
    let mut lives = 1;
    let (log, replay) = match files.log.take() {
        Some(log) => {
            base.find_space(&files, &settings, &[])?;
            (Some(log), None)
        }
        None => {
            let branch = draw_branch(&env);
            let options = log_options(&settings, &files.superblock, branch);
            let needed_from = base.catalog.durable_through();
            let mut found = match at {
                None => scan_log(&env, &disk, options, needed_from)?,
                Some(_) => Recovery::scan_beside_writer(&env, &disk, options, needed_from)?,
            };
            let large = LoggedLarge::find(
                &mut found,
                &base,
                &files.store,
                Sought::of_open(at.is_some()),
            )?;
            if let Some(at) = at {
                large.check_still_newest(&disk, at)?;
            }
            check_log(&found, &files.superblock, &base.catalog)?;
            if at.is_none() {
                check_copy(&files.store, &base, &large)?;
            }
            lives = found.lives();
            if settings.read_only {
                base.find_space(&files, &settings, &large.pages)?;
                (None, Some(found.read_only()))
            } else {
                // The names that the scan saw may not be durable, and the superblock will rely on
                // them.
                disk.sync_directory()?;
                files.begin_branch(branch, found.branch())?;
                base.find_space(&files, &settings, &large.pages)?;
                large.make_durable(&files.store)?;
                let (log, replay) = found.begin()?;
                settings.set_segment_bytes(log.segment_bytes());
                (Some(log), Some(replay))
            }
        }
    };
    readers.admit(&files.store, files.superblock.generation, env.now_ns());
    start(Start {
        readers,
        settings,
        env,
        gate,
        path,
        budget,
        records,
        files,
        base,
        log,
        replay,
        lives,
    })
}

/// The record cache for a memory budget. Only this cache takes addresses for all of the memory at
/// once. If the system refuses them, the open fails here, and the process does not end later when
/// caches have grown.
fn record_cache(budget: &Arc<Budget>) -> Result<RecordCache> {
    // The model checker makes an object of every word.
    let bytes_max = match cfg!(terrapin_shuttle) {
        true => 64 << 10,
        false => budget.limit(),
    };
    let records = RecordCache::new(budget, bytes_max);
    if records.bytes_max() == 0 {
        let message = "the system refuses addresses for so much memory (see `ulimit -v`): open with less of it";
        return Err(Error::new(ErrorKind::OutOfMemory, message).with("memory", budget.limit()));
    }
    Ok(records)
}
