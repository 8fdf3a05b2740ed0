//! Checking a database byte by byte without writing anything: superblocks, catalog, every node,
//! block and invariant of every tree, that no two things own the same space, and that the log can
//! be replayed. A torn tail of the log is sound; a damaged superblock slot is told even where the
//! other serves, though a power cut in the middle of its write can leave the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{
    Budget, Env, Error, ErrorKind, Generation, Incarnation, KeyspaceId, Lsn, Result, mutant,
};
use terrapin_disk::Disk;
use terrapin_pages::{PageStore, Presence, StoreOptions, Superblock};
use terrapin_wal::{LogOptions, Record, Recovery};

pub use terrapin_structure::Finding;

use crate::log_record::format::UNLOGGED;
use crate::log_record::{Operations, Schema};
use crate::open::page_uses::PageUses;
use crate::open::recovery::{check_change, check_created};
use crate::open::{
    Base, absent, check_log, has_log, log_options, never_was, open_directory, scan_log,
};
use crate::types::options::Options;

/// How to verify.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Memory for caches, in bytes.
    pub memory: u64,
    /// Findings after which it stops, at least 1.
    pub findings_max: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            memory: 64 << 20,
            findings_max: 1000,
        }
    }
}

impl VerifyOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory for caches, in bytes. Default 64 MiB.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Findings after which it stops ([`VerifyReport::stopped`]); 0 is taken for 1. Default 1000.
    #[must_use]
    pub fn findings_max(mut self, findings: usize) -> Self {
        self.findings_max = findings;
        self
    }
}

/// What was checked and found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "damage is told by the report, not by an error: ask `is_sound`"]
pub struct VerifyReport {
    /// What is wrong, with its place; empty when the database is sound.
    pub findings: Vec<Finding>,
    /// Not everything was checked: there were as many findings as it takes at most, or what leads
    /// to the rest is damaged.
    pub stopped: bool,
    /// Keyspaces checked.
    pub keyspaces: u64,
    /// Page groups checked: leaves and buffer segments.
    pub groups: u64,
    /// Nodes checked.
    pub nodes: u64,
    /// Bytes of pages checked.
    pub page_bytes: u64,
    /// Records in leaves.
    pub leaf_records: u64,
    /// Messages in buffers.
    pub buffered_records: u64,
    /// Operations in the log that no tree holds yet and the next open replays: puts, deletes, and
    /// changes of keyspaces.
    pub log_operations: u64,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Verifies the database in a directory. An error means that it could not be checked: it is not
/// there, not a database, of a newer or an older format, may not be read, or is compressed in a way
/// that this build lacks; or this process ran short of something on the way. Damage and missing
/// files are findings. It keeps writers out meanwhile, and is `Locked` while somebody has the
/// database open for writing, as a read-only open is ([`Options::read_only`]).
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-verify-{}", std::process::id()));
/// # terrapin::Database::open(&directory)?.close()?;
/// use terrapin::verify::{VerifyOptions, verify};
/// let report = verify(&directory, &VerifyOptions::new())?;
/// for finding in &report.findings {
///     eprintln!("{finding}");
/// }
/// assert!(report.is_sound());
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
pub fn verify(path: impl AsRef<Path>, options: &VerifyOptions) -> Result<VerifyReport> {
    let env = Env::threads();
    let disk = open_directory(&env, path.as_ref(), false)?;
    verify_on(env, disk, options)
}

/// Verifies the database on a disk of the caller's: for tests on simulated disks.
#[doc(hidden)]
pub fn verify_on(env: Env, disk: Arc<dyn Disk>, options: &VerifyOptions) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let budget = Budget::new(options.memory);
    let store_options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 0,
        system_cache: false,
    };
    match PageStore::presence(&disk) {
        Ok(Presence::Present) => {}
        Ok(_) => return report.end("data file", absent(&disk)?),
        // It is listed, and leads nowhere.
        Err(error) if error.kind() == ErrorKind::NotFound && has_log(&disk)? => {
            let lost = Error::corrupt("the data file is missing, but there is a log");
            return report.end("data file", lost.with("directory", disk.describe()));
        }
        Err(error) => return report.end("data file", error),
    }
    let (store, superblock) = match PageStore::open(&disk, store_options, true) {
        Ok(opened) => opened,
        // A log beside it says that this was a database.
        Err(error) if error.kind() == ErrorKind::NotADatabase && has_log(&disk)? => {
            let lost = Error::corrupt("no superblock is left, but there is a log");
            return report.end("superblock", lost.with("directory", disk.describe()));
        }
        Err(error) => return report.end("superblock", error),
    };
    if superblock.incarnation == Incarnation(0) {
        return Err(never_was(&disk));
    }
    if let Some((slot, error)) = store.damaged_slot() {
        report.findings.push(Finding::new(
            format!("superblock slot {slot}"),
            format!("{error}; the other one is used, and the next open for writing mends it"),
        ));
    }
    let base = match Base::read(&store, &superblock, &budget, None) {
        Ok(base) => base,
        Err(error) => return report.end("catalog", error),
    };
    let mut pages = PageUses::new(&store);
    if let Err(error) = base.catalog.pages().try_for_each(|page| pages.add(page)) {
        report.damage("catalog", error)?;
    }
    for stored in &base.stored {
        if report.is_full(options) {
            return Ok(report);
        }
        report.keyspaces += 1;
        let Some(tree) = base.catalog.tree(stored.id) else {
            continue;
        };
        let place = || format!("keyspace {:?}", stored.name);
        let mut findings = Vec::new();
        let room = report.room(options);
        let outcome = tree.verify(&mut |finding| {
            if findings.len() < room {
                let place = format!("{}: {}", place(), finding.place);
                findings.push(Finding::new(place, finding.message));
            }
        });
        report.findings.append(&mut findings);
        if let Err(error) = outcome {
            report.damage(&place(), error)?;
        }
        // What is damaged there would be told again.
        if report.is_full(options) {
            return Ok(report);
        }
        match tree.stats() {
            Ok(stats) => {
                report.groups += stats.groups;
                report.nodes += stats.nodes;
                report.page_bytes += stats.page_bytes;
                report.leaf_records += stats.leaf_records;
                report.buffered_records += stats.buffered_records;
            }
            Err(error) => report.damage(&place(), error)?,
        }
        let walked = tree.pages(&mut |page| pages.add(page));
        if let Err(error) = walked {
            report.damage(&place(), error)?;
        }
        if report.is_full(options) {
            return Ok(report);
        }
    }
    if let Err(error) = store.rebuild(&mut pages.into_iter(), superblock.generation) {
        report.damage("space", error)?;
    }
    verify_log(env, &disk, &base, &superblock, options, &mut report)?;
    Ok(report)
}

/// Checks all that the trees reach, blocks included, where the data file is a copy of one that was
/// open: some of its pages may be older or newer than the superblock. Reads every page; nothing
/// where the file is the one that the last life wrote, or was closed.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] with the first damaged place; what keeps one from looking.
pub(crate) fn check_copy(store: &PageStore, base: &Base) -> Result<()> {
    if store.superblock().closed || !store.is_copy() || mutant::active("open-copy-unchecked") {
        return Ok(());
    }
    tracing::info!(
        "the data file is a copy and was not closed; all pages are checked before it is served"
    );
    for stored in &base.stored {
        let Some(tree) = base.catalog.tree(stored.id) else {
            continue;
        };
        let mut first = None;
        tree.verify(&mut |finding| {
            first.get_or_insert(finding);
        })?;
        if let Some(finding) = first {
            let message = "this directory looks like a copy of a database that was open meanwhile, and the copy is damaged: close the database, then copy it again";
            return Err(Error::corrupt(message)
                .with("keyspace", &stored.name)
                .with("damaged", finding.place)
                .with("how", finding.message));
        }
    }
    Ok(())
}

/// What the newest superblock leads to, for tests on simulated disks that watch the order in which
/// things are written (D1 to D3).
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The checkpoint that it is the root of.
    pub generation: Generation,
    /// Whether there is a log already: a database that is being created has none at first.
    pub has_log: bool,
    /// Its name, which its log bears too.
    pub database_id: u64,
    /// The branches that its log may have.
    pub branches: [u64; 2],
    /// Where in the data file its pages lie, in no order.
    pub extents: Vec<Range<u64>>,
    /// What of the log is needed begins here.
    pub log_from: Lsn,
    /// What of the log is in some tree ends here.
    pub log_through: Lsn,
}

/// Walks the trees of the database on a disk of the caller's; `None` when there is no valid
/// superblock. For tests on simulated disks.
#[doc(hidden)]
pub fn reach_on(disk: Arc<dyn Disk>) -> Result<Option<Reach>> {
    let budget = Budget::new(VerifyOptions::default().memory);
    let store_options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 0,
        system_cache: false,
    };
    let (store, superblock) = match PageStore::open(&disk, store_options, true) {
        Ok(opened) => opened,
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotADatabase) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let base = Base::read(&store, &superblock, &budget, None)?;
    let mut extents = Vec::new();
    let unread = base.catalog.all_pages(&mut |page| {
        let extent = page
            .extent()
            .ok_or_else(|| Error::corrupt("a page lies nowhere").with("page", page.id))?;
        extents.push(extent.offset..extent.end());
        Ok(())
    })?;
    if let Some((_, error)) = unread {
        return Err(error);
    }
    Ok(Some(Reach {
        generation: superblock.generation,
        has_log: superblock.incarnation != Incarnation(0),
        database_id: superblock.database_id,
        branches: superblock.branches(),
        extents,
        log_from: base.catalog.durable_through(),
        log_through: base.catalog.applied_through(),
    }))
}

/// Checks that the log on a disk of the caller's is sound and holds what a superblock needs of it
/// from an LSN on; says where it ends. For tests on simulated disks.
#[doc(hidden)]
pub fn log_end_on(env: &Env, disk: &Arc<dyn Disk>, reach: &Reach, from: Lsn) -> Result<Lsn> {
    let options = LogOptions {
        database_id: reach.database_id,
        known_branches: reach.branches,
        ..LogOptions::new(0)
    };
    Recovery::scan(env, disk, options, from).map(|found| found.end())
}

/// The keyspaces there are at a place in the log.
struct Keyspaces {
    names: BTreeMap<Box<str>, KeyspaceId>,
    /// For each of them, the LSN from which on a replay applies operations.
    replayed_from: BTreeMap<KeyspaceId, Lsn>,
    by_id: BTreeMap<KeyspaceId, Box<str>>,
    next_id: u32,
    /// What the log says of them below is known from the catalog.
    schema_from: Lsn,
}

impl Keyspaces {
    /// As a checkpoint knew them.
    fn of(base: &Base) -> Self {
        let names = base.stored.iter().map(|k| (k.name.clone(), k.id));
        let applied = |id| base.catalog.applied_of(id).unwrap_or(base.catalog.applied);
        Keyspaces {
            replayed_from: base.stored.iter().map(|k| (k.id, applied(k.id))).collect(),
            by_id: names.clone().map(|(name, id)| (id, name)).collect(),
            names: names.collect(),
            next_id: base.catalog.next_id,
            schema_from: base.catalog.applied,
        }
    }

    /// Whether a record can come next, as a replay will ask; how many of its operations the replay
    /// will apply.
    fn check(&mut self, record: &Record<'_>) -> Result<u64> {
        if record.kind == UNLOGGED {
            return Ok(0);
        }
        if let Some(operations) = Operations::decode(record.kind, record.payload) {
            let mut applied = 0;
            for operation in operations {
                let keyspace = operation?.keyspace;
                check_created(keyspace, self.next_id)?;
                let from = self.replayed_from.get(&keyspace);
                applied += u64::from(from.is_some_and(|&from| record.lsn >= from));
            }
            return Ok(applied);
        }
        let change = Schema::decode(record.kind, record.payload)?;
        if record.lsn < self.schema_from {
            return Ok(0);
        }
        check_change(&change, &self.names, self.next_id)?;
        match change {
            Schema::Create { id, name, .. } if id.0 == self.next_id => {
                self.next_id += 1;
                let name: Box<str> = name.into();
                self.by_id.insert(id, name.clone());
                self.names.insert(name, id);
                self.replayed_from.insert(id, record.lsn);
            }
            Schema::Drop(gone) => {
                if let Some(name) = self.by_id.remove(&gone) {
                    self.names.remove(&name);
                }
                self.replayed_from.remove(&gone);
            }
            _ => {}
        }
        Ok(1)
    }
}

fn verify_log(
    env: Env,
    disk: &Arc<dyn Disk>,
    base: &Base,
    superblock: &Superblock,
    options: &VerifyOptions,
    report: &mut VerifyReport,
) -> Result<()> {
    let settings = Options::new().settle()?;
    let log = log_options(&settings, superblock, 0);
    let needed_from = base.catalog.durable_through();
    let scanned = scan_log(&env, disk, log, needed_from);
    let mut replay = match scanned {
        Ok(recovery) => {
            if let Err(error) = check_log(&recovery, superblock, &base.catalog) {
                report.damage("log", error)?;
            }
            recovery.read_only()
        }
        Err(error) => return report.stop("log", error),
    };
    let mut keyspaces = Keyspaces::of(base);
    loop {
        if report.is_full(options) {
            return Ok(());
        }
        match replay.next() {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => match keyspaces.check(&record) {
                Ok(applied) => report.log_operations += applied,
                Err(error) => report.damage(&format!("log record at LSN {}", record.lsn), error)?,
            },
            Err(error) => return report.stop("log", error),
        }
    }
}

impl VerifyReport {
    /// How many findings more there may be.
    fn room(&self, options: &VerifyOptions) -> usize {
        let most = options.findings_max.max(1);
        most.saturating_sub(self.findings.len())
    }

    /// Whether there may be no other finding: then it stops.
    fn is_full(&mut self, options: &VerifyOptions) -> bool {
        self.stopped = self.room(options) == 0;
        self.stopped
    }

    /// As [`VerifyReport::damage`], where what lies behind cannot be checked.
    fn stop(&mut self, place: &str, error: Error) -> Result<()> {
        self.damage(place, error)?;
        self.stopped = true;
        Ok(())
    }

    /// The same, where nothing else can be checked.
    fn end(mut self, place: &str, error: Error) -> Result<VerifyReport> {
        self.stop(place, error)?;
        Ok(self)
    }

    /// Damage is a finding; whatever keeps one from looking is an error: also what this process or
    /// the system is short of.
    fn damage(&mut self, place: &str, error: Error) -> Result<()> {
        match error.is_of_data() {
            true => {
                self.findings.push(Finding::new(place, error.to_string()));
                Ok(())
            }
            false => Err(error),
        }
    }
}
