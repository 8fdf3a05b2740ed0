//! Backups: copies of an open database in a directory of their own.
//!
//! A backup has the pages of one generation, and the log from the least applied LSN of that
//! generation's keyspaces on. An open of the restored copy replays that log, as after a crash. The
//! log reaches at least the LSN through which the generation's checkpoint synced it. So batches
//! across keyspaces are whole, whatever their trees hold.
//!
//! | what | file |
//! | --- | --- |
//! | the directory of a backup, its manifest and lock | `target.rs`, `format.rs` |
//! | which pages the last backup has; copies of pages | `pages.rs` |
//! | restoring | `restore.rs` |
//! | the log's part | `wal/src/closed_copy.rs` |
//! | what a backup keeps from reuse, and how it loses that on a full disk | `engine/backups.rs` |

mod format;
mod pages;
mod restore;
mod target;

use std::path::Path;
use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, Lsn, Result, mutant};
use terrapin_disk::{AlignedBuf, Disk, File, OpenOptions, RealDisk};
use terrapin_pages::{DATA_FILE, HeldPage, Superblock};
use terrapin_structure::StructureId;
use terrapin_wal::Recovery;

use crate::api::database::Database;
use crate::backup::format::Manifest;
use crate::backup::pages::{Copied, PageCopy, PageList, Present, Step};
use crate::backup::target::Target;
use crate::disk_space::room;
use crate::engine::backups::BackupPin;
use crate::engine::core::Core;
use crate::keyspaces::catalog::Catalog;
use crate::keyspaces::catalog::format::Stored;
use crate::open::base::Base;
use crate::open::files::log_options;
use crate::open::large::hold_logged;
use crate::open::verify::{VerifyOptions, verify_on};

pub use restore::{restore, restore_on};

/// How long a backup rests beside other work, in times of what it takes to copy a piece.
const REST_TIMES: u64 = 6;

/// Options of a backup.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BackupOptions {
    /// Whether every byte of the new backup is checked before it takes the place of the last one.
    pub verify: bool,
}

impl BackupOptions {
    /// The default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks every byte of the new backup before it takes the place of the last one. A damaged
    /// page is then an error, and the last backup stays. Default false.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }
}

/// What a backup did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Pages in the backup.
    pub pages: u64,
    /// Bytes of pages that were read from the database.
    pub copied_bytes: u64,
    /// Bytes of pages that the last backup in the directory had already.
    pub kept_bytes: u64,
    /// Bytes of the log in the backup.
    pub log_bytes: u64,
}

/// # Backups
impl Database {
    /// Copies the database into a directory of its own, while reads and writes go on. The backup
    /// has every write that returned before the call, and perhaps later ones; writes of
    /// [`Durability::None`](crate::Durability::None) as of the last checkpoint.
    ///
    /// If the directory has a backup of this database, only pages that changed since are read. The
    /// last backup stays in force until the new one is whole and durable. So the directory needs
    /// room for both, less what they share on a file system that can share blocks. A killed backup
    /// leaves the last one. [`restore`] makes a database from a backup.
    ///
    /// The call rests while other threads use the database, so that they keep most of their speed.
    /// It keeps freed space from reuse until it returns. If the database's disk becomes full, the
    /// backup fails, and that space is free again.
    ///
    /// Errors: `NotADatabase` if the directory has other files; `InvalidArgument` if it has the
    /// backup of another database; `Locked` if it is in use; `NoSpace` if a disk is full; `Corrupt`
    /// for a damaged node, or with [`BackupOptions::verify`] for any damage; `Closed`.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let base = std::env::temp_dir().join(format!("terrapin-doc-backup-{}", std::process::id()));
    /// # let database = terrapin::Database::open(base.join("database"))?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// database.backup(base.join("backup"))?; // everything
    /// fruit.put("pear", "soft")?;
    /// let report = database.backup(base.join("backup"))?; // what changed since
    /// println!("{} bytes copied, {} kept", report.copied_bytes, report.kept_bytes);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(base);
    /// # Ok(()) }
    /// ```
    #[doc(alias("copy", "dump", "hot_backup", "checkpoint"))]
    pub fn backup(&self, target: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(target, &BackupOptions::new())
    }

    /// Copies the database like [`Database::backup`], with options.
    pub fn backup_with(
        &self,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<BackupReport> {
        let env = self.core().env.clone();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(env, target.as_ref(), true)?);
        self.backup_on(disk, options)
    }

    /// Copies the database to a disk of the caller, for tests on simulated disks.
    #[doc(hidden)]
    pub fn backup_on(
        &self,
        target: Arc<dyn Disk>,
        options: &BackupOptions,
    ) -> Result<BackupReport> {
        back_up(self.core(), &target, options)
    }
}

fn back_up(core: &Core, disk: &Arc<dyn Disk>, options: &BackupOptions) -> Result<BackupReport> {
    core.env.breathe();
    core.health.check_open()?;
    refuse_on_full_disk(core)?;
    let mut target = Target::to_write(disk, core.store.superblock().database_id)?;
    let set = target.next_set()?;
    let copied = copy(core, &target, &target.set(set), options);
    let done = copied.and_then(|(superblock, report)| {
        target.commit(Manifest {
            set,
            database_id: superblock.database_id,
            generation: superblock.generation,
        })?;
        Ok(report)
    });
    if done.is_err()
        && let Err(error) = target.remove_others()
    {
        tracing::debug!(%error, "files of a failed backup stay until the next one");
    }
    done
}

/// A backup under way.
struct Run<'a> {
    core: &'a Core,
    pin: Arc<BackupPin>,
    /// What the database had done when the backup last looked.
    seen: u64,
}

/// Copies log and pages into the files of an empty set.
fn copy(
    core: &Core,
    target: &Target,
    set: &Arc<dyn Disk>,
    options: &BackupOptions,
) -> Result<(Superblock, BackupReport)> {
    // Before the pin: a later checkpoint's trim would take records that this generation needs.
    let held = core.log.as_ref().map(|log| log.hold_trims());
    let (superblock, pin) = core.store.pin_newest();
    let pin = core.backups.register(pin);
    let mut run = Run { core, pin, seen: 0 };
    let copied = run.copy(target, set, &superblock, held);
    let pages_and_bytes = match copied {
        // What a read found in space that was given up says nothing.
        Err(error) if error.is_of_data() => {
            run.check()?;
            return Err(error);
        }
        copied => copied?,
    };
    drop(run);
    let (pages, copied, log_bytes) = pages_and_bytes;
    if options.verify {
        let mut options = VerifyOptions::new().memory((core.budget.limit() / 16).max(8 << 20));
        for maker in &core.settings.further_structures {
            options = options.structure_for_tests(*maker);
        }
        let report = verify_on(core.env.clone(), set.clone(), &options)?;
        if let Some(finding) = report.findings.first() {
            let message = "the new backup is damaged, so the last one stays: `terrapin verify` tells whether the database is";
            return Err(Error::corrupt(message)
                .with("place", &finding.place)
                .with("finding", &finding.message));
        }
    }
    let report = BackupReport {
        pages,
        copied_bytes: copied.source_bytes,
        kept_bytes: copied.kept_bytes,
        log_bytes,
    };
    Ok((superblock, report))
}

impl Run<'_> {
    fn copy(
        &mut self,
        target: &Target,
        set: &Arc<dyn Disk>,
        superblock: &Superblock,
        held: Option<terrapin_wal::HeldTrims>,
    ) -> Result<(u64, Copied, u64)> {
        let core = self.core;
        let (catalog, stored) = Base::read_catalog(
            &core.store,
            superblock,
            &core.structures,
            StructureId::LEVELED,
        )?;
        let (log_bytes, large) = self.copy_log(set, superblock, (&catalog, &stored))?;
        if let Some(held) = held {
            drop(held);
            // Does what was held back.
            core.log()?.trim(Lsn(0))?;
        }
        let logged: Vec<_> = large.iter().map(|held| *held.page()).collect();
        let pages = PageList::of(&core.store, &catalog, &logged, &core.budget)?;
        let present = self.present(target)?;
        let file = create(set, DATA_FILE)?;
        let env = core.env.clone();
        let copied = PageCopy {
            store: &core.store,
            lives: catalog.lives(),
            pages: &pages,
            present: present.as_ref(),
        }
        .copy(&*file, &|| env.now_ns(), &mut |step| match step {
            Step::Read(bytes) => {
                core.counters.backup_bytes.add(bytes);
                self.check()
            }
            Step::Written { began_ns } => self.rest(began_ns),
        })?;
        // The copy equals the file as nobody will write it again. So its home need not match.
        let closed = Superblock {
            closed: true,
            ..*superblock
        };
        let slots: AlignedBuf = closed.slots();
        file.write_at(&slots, 0)?;
        if !mutant::active("backup-pages-not-durable") {
            file.sync()?;
        }
        Ok((pages.len() as u64, copied, log_bytes))
    }

    /// Copies the log from the least applied LSN of the keyspaces to its end. Returns its bytes,
    /// and the pages of the large values that it names.
    fn copy_log(
        &mut self,
        set: &Arc<dyn Disk>,
        superblock: &Superblock,
        (catalog, stored): (&Catalog, &[Stored]),
    ) -> Result<(u64, Vec<HeldPage>)> {
        let core = self.core;
        let options = log_options(&core.settings, superblock, superblock.branch);
        let from = match mutant::active("backup-log-from-catalog-lsn") {
            true => catalog.applied,
            false => catalog.durable_through(),
        };
        let mut found = match &core.log {
            Some(log) => {
                log.sync(log.end())?;
                let synced = match mutant::active("backup-log-ends-at-applied") {
                    true => catalog.applied,
                    false => log.synced(),
                };
                let through = catalog.through.min(synced);
                Recovery::scan_running(&core.env, &core.disk, options, from, through, synced)?
            }
            None => Recovery::scan(&core.env, &core.disk, options, from)?,
        };
        let large = hold_logged(&mut found, (catalog, stored), &core.store)?;
        let bytes = found.copy_closed(&mut |name| create(set, name), &mut || self.check())?;
        Ok((bytes, large))
    }

    /// The last backup, unless there is none. A damaged one is no source.
    fn present(&self, target: &Target) -> Result<Option<Present>> {
        let Some(disk) = target.present() else {
            return Ok(None);
        };
        let further = &self.core.settings.further_structures;
        match Present::read(&disk, &self.core.budget, further) {
            Ok(present) => Ok(Some(present)),
            Err(error) if error.is_of_data() || error.kind() == ErrorKind::NotFound => {
                tracing::warn!(%error, "the last backup is damaged; the new one copies everything");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the backup may go on.
    fn check(&self) -> Result<()> {
        let core = self.core;
        core.env.breathe();
        core.health.check_open()?;
        if !self.pin.holds() {
            return Err(no_room(core));
        }
        refuse_on_full_disk(core)
    }

    /// Rests for some times what the last piece took, if other threads use the database.
    fn rest(&mut self, began_ns: u64) -> Result<()> {
        let core = self.core;
        let counters = &core.counters;
        let log = core.log.as_ref().map_or(0, |log| log.tail().0);
        let seen = log + counters.tree_gets.get() + counters.scans.get();
        let is_busy = std::mem::replace(&mut self.seen, seen) != seen;
        let now_ns = core.env.now_ns();
        let took_ns = now_ns.saturating_sub(began_ns);
        if is_busy && took_ns > 0 {
            let rested_ns = now_ns.saturating_add(REST_TIMES * took_ns);
            let rested = Condition::delay_until(rested_ns);
            core.env.wait(&rested)?;
        }
        Ok(())
    }
}

fn create(set: &Arc<dyn Disk>, name: &str) -> Result<Arc<dyn File>> {
    let options = OpenOptions {
        create_new: true,
        write: true,
        direct: true,
        ..OpenOptions::default()
    };
    set.open(name, options)
}

fn refuse_on_full_disk(core: &Core) -> Result<()> {
    match core.schedule.disk_is_full() {
        true => Err(no_room(core)),
        false => Ok(()),
    }
}

fn no_room(core: &Core) -> Error {
    let full = room::what_is_full(core);
    let message = "the backup was given up, so that deletes free space: it keeps freed pages";
    Error::new(ErrorKind::NoSpace, message)
        .with("why", full)
        .with("what to do", "free space, then back up again")
}
