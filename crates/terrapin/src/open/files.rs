//! The data file and the log of a database: creating them, opening them, and the checks of one
//! against the other.

use std::sync::Arc;

use terrapin_base::{Budget, Env, Error, ErrorKind, Generation, Lsn, Result, mutant};
use terrapin_disk::Disk;
use terrapin_pages::{DATA_FILE, PageStore, Presence, StoreOptions, Superblock};
use terrapin_wal::{Log, LogOptions, Recovery, is_log_file};

use crate::keyspaces::catalog::Catalog;
use crate::types::options::settings::{RESERVE_GROUPS_MIN, Settings};

/// The error for a missing or unfinished data file. A log proves that a data file existed, unless
/// another process has just created both.
pub(crate) fn absent(disk: &Arc<dyn Disk>) -> Result<Error> {
    let error = match has_log(disk)? && PageStore::presence(disk)? != Presence::Present {
        true => data_file_is_lost(),
        false => Error::new(ErrorKind::DatabaseNotFound, "there is no database"),
    };
    Ok(error.with("directory", disk.describe()))
}

/// Reads the log that belongs to a data file, from an LSN on. Every data file has a log, so a
/// missing log was lost.
pub(crate) fn scan_log(
    env: &Env,
    disk: &Arc<dyn Disk>,
    options: LogOptions,
    needed_from: Lsn,
) -> Result<Recovery> {
    Recovery::scan(env, disk, options, needed_from).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::corrupt("the log is missing, but there is a data file")
            .with("file", "log-*")
            .with("directory", disk.describe()),
        _ => error,
    })
}

/// Whether a directory has a file of a database's log.
pub(crate) fn has_log(disk: &Arc<dyn Disk>) -> Result<bool> {
    Ok(disk.list()?.iter().any(|name| is_log_file(name)))
}

fn data_file_is_lost() -> Error {
    Error::corrupt("the data file is missing or empty, but there is a log").with("file", DATA_FILE)
}

/// The error for a creation that was interrupted before the log existed.
pub(crate) fn never_was(disk: &Arc<dyn Disk>) -> Error {
    let message = "there is no database: its creation was interrupted";
    Error::new(ErrorKind::DatabaseNotFound, message).with("directory", disk.describe())
}

/// The files that an open found or made.
pub(super) struct Files {
    pub(super) store: Arc<PageStore>,
    pub(super) superblock: Superblock,
    /// A log that this open has just created.
    pub(super) log: Option<Log>,
}

fn store_options(settings: &Settings, budget: &Arc<Budget>) -> StoreOptions {
    StoreOptions {
        budget: budget.clone(),
        reserve_bytes: settings.reserve_bytes(RESERVE_GROUPS_MIN),
        system_cache: settings.system_cache,
    }
}

/// Draws the branch of a new life. No life has branch 0.
pub(super) fn draw_branch(env: &Env) -> u64 {
    env.random().max(1)
}

/// Options of the log that belongs to a superblock. `branch` is that of the new life, if one
/// begins.
pub(crate) fn log_options(settings: &Settings, superblock: &Superblock, branch: u64) -> LogOptions {
    LogOptions {
        ring_bytes: settings.ring_bytes,
        segment_bytes: settings.segment_bytes,
        sync_interval_ns: settings.sync_interval_ns,
        database_id: superblock.database_id,
        branch,
        known_branches: superblock.branches(),
    }
}

/// Checks the log against what the data file says about it.
pub(crate) fn check_log(
    found: &Recovery,
    superblock: &Superblock,
    catalog: &Catalog,
) -> Result<()> {
    // Every applied LSN was synced before a superblock led to it (D3). If the log ended below one,
    // that tree would be ahead of the others. It would ignore later writes as already applied.
    // The same holds for a clear or drop that discarded records which no tree holds.
    let needed = match mutant::active("log-end-checked-against-applied-only") {
        true => catalog.applied,
        false => catalog.through,
    };
    if found.end() < needed {
        return Err(found
            .corrupt_at_end("the log ends before records that the last checkpoint relies on")
            .with("synced through", catalog.through));
    }
    // A life of the log is durable before any superblock names it. If the log were behind, its next
    // life would not be new.
    if found.incarnation() < superblock.incarnation {
        return Err(found
            .corrupt_at_end("the log is of an earlier life than the superblock")
            .with("log's life", found.incarnation())
            .with("superblock's life", superblock.incarnation));
    }
    Ok(())
}

impl Files {
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        settings: &Settings,
        budget: &Arc<Budget>,
        beside: Option<Generation>,
    ) -> Result<Files> {
        let options = store_options(settings, budget);
        let (store, superblock) = match beside {
            Some(generation) => PageStore::open_beside_writer(disk, options, generation)?,
            None => PageStore::open(
                disk,
                options,
                settings.read_only && !mutant::active("read-only-opens-for-writing"),
            )?,
        };
        check_blocks(&store, settings)?;
        Ok(Files {
            store,
            superblock,
            log: None,
        })
    }

    /// Begins a life with this branch. The superblock that was found may not have been durable. It
    /// is durable afterwards (D2).
    pub(super) fn begin_branch(&mut self, branch: u64, log_branch: u64) -> Result<()> {
        let incarnation = self.superblock.incarnation;
        self.superblock = self.store.begin_branch(incarnation, branch, log_branch)?;
        Ok(())
    }

    pub(super) fn create(
        env: &Env,
        disk: &Arc<dyn Disk>,
        settings: &Settings,
        budget: &Arc<Budget>,
    ) -> Result<Files> {
        let database_id = env.random() | 1;
        // A log without its data file is a damaged database. It is no place for a new one.
        let options = LogOptions::new(database_id);
        Log::check_absent(env, disk, options).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => data_file_is_lost().with("directory", disk.describe()),
            _ => error,
        })?;
        let store = PageStore::create(disk, store_options(settings, budget), database_id)?;
        check_blocks(&store, settings)?;
        let superblock = store.superblock();
        let mut files = Files {
            store,
            superblock,
            log: None,
        };
        files.create_log(env, disk, settings)?;
        Ok(files)
    }

    /// The second half of a creation: the log, then superblocks that name it.
    pub(super) fn create_log(
        &mut self,
        env: &Env,
        disk: &Arc<dyn Disk>,
        settings: &Settings,
    ) -> Result<()> {
        let branch = draw_branch(env);
        let log = Log::create(env, disk, log_options(settings, &self.superblock, branch))?;
        let incarnation = log.incarnation();
        self.superblock = self.store.begin_branch(incarnation, branch, branch)?;
        self.log = Some(log);
        Ok(())
    }
}

/// Checks that blocks of the tree are at least one unit of the data file long, since merges refuse
/// smaller ones. The device on which the file was created determined the unit.
fn check_blocks(store: &PageStore, settings: &Settings) -> Result<()> {
    if settings.read_only || settings.merge.block_bytes >= store.unit() {
        return Ok(());
    }
    Err(
        Error::invalid("the requested block size is smaller than a unit of the data file")
            .with("block bytes", settings.merge.block_bytes)
            .with("smallest", store.unit()),
    )
}
