//! `verify` checks a database byte by byte and writes nothing. It checks superblocks, the catalog,
//! and every node, block and invariant of every tree. It also checks that no space has two owners
//! and that the log can be replayed. A torn tail of the log is sound. A damaged superblock slot is
//! a finding even if the other slot serves, although a power cut during its write can leave the
//! same.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{
    Budget, Env, Error, ErrorKind, Generation, Incarnation, KeyspaceId, Lsn, Result,
};
use terrapin_disk::Disk;
use terrapin_pages::{PageStore, PageUse, Presence, StoreOptions, Superblock};
use terrapin_wal::{LogOptions, Record, Recovery};

pub use terrapin_structure::Finding;
use terrapin_structure::{Direction, StructureId, Version};

use crate::engine::gate::Gate;
use crate::engine::structures::Structures;
use crate::log_record::format::{NOW, UNLOGGED, read_now};
use crate::log_record::{Operations, Schema};
use crate::open::base::Base;
use crate::open::beside::{Alone, Entered, Place, Tries, enter};
use crate::open::directory::open_directory;
use crate::open::files::{absent, check_log, has_log, log_options, never_was, scan_log};
use crate::open::large::{LoggedLarge, Sought};
use crate::open::page_uses::PageUses;
use crate::open::recovery::{check_change, check_created};
use crate::types::key_form::KeyForm;
use crate::types::options::Options;
use crate::types::structures::{StructureMaker, StructureParts};

/// Options of a verification.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Memory for caches, in bytes.
    pub memory: u64,
    /// The number of findings after which the check stops, at least 1.
    pub findings_max: usize,
    further_structures: Vec<StructureMaker>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            memory: 64 << 20,
            findings_max: 1000,
            further_structures: Vec::new(),
        }
    }
}

impl VerifyOptions {
    /// The default options.
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

    /// The number of findings after which the check stops ([`VerifyReport::stopped`]). 0 counts as
    /// 1. Default 1000.
    #[must_use]
    pub fn findings_max(mut self, findings: usize) -> Self {
        self.findings_max = findings;
        self
    }

    /// Registers a structure besides those of a release, for tests, as
    /// [`Options::structure_for_tests`] does.
    #[doc(hidden)]
    #[must_use]
    pub fn structure_for_tests(mut self, maker: StructureMaker) -> Self {
        self.further_structures.push(maker);
        self
    }

    fn structures(&self, store: &Arc<PageStore>, budget: &Arc<Budget>) -> Result<Structures> {
        let parts = StructureParts {
            store,
            budget,
            fanout: None,
        };
        Structures::new(&parts, &self.further_structures)
    }
}

/// What was checked, and what was found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "the report, not an error, names damage: check `is_sound`"]
pub struct VerifyReport {
    /// Damage with its place. Empty when the database is sound.
    pub findings: Vec<Finding>,
    /// True if not everything was checked: the findings reached their limit, or damage hides the
    /// rest.
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
    /// Whether another process writes the database, so that the check covers one moment of it.
    pub beside_writer: bool,
}

impl VerifyReport {
    /// Whether there are no findings.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Verifies the database in a directory. Damage and missing files are findings.
///
/// Fails if the database cannot be checked: it does not exist, is no database, may not be read, or
/// has a newer or an older format. It also fails if this build lacks the compression, or if this
/// process runs short of a resource. Writers are locked out meanwhile.
///
/// If another process writes the database, the check covers the newest checkpoint and the log
/// behind it, beside the writer ([`Options::open_reader`]). It fails with `Overtaken` if the writer
/// takes the space of that checkpoint. Damage of the other superblock slot is not seen then.
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

/// Verifies the database on a disk of the caller, for tests on simulated disks.
#[doc(hidden)]
pub fn verify_on(env: Env, disk: Arc<dyn Disk>, options: &VerifyOptions) -> Result<VerifyReport> {
    let mut tries = Tries::new(&env);
    loop {
        let place = match enter(&disk, Alone::ExcludesWriters) {
            Ok(Entered::Beside(place)) => place,
            // The check itself says what prevents it.
            Ok(Entered::Alone) => return verify_at(env, disk, options, None),
            Err(error) if error.kind() != ErrorKind::Overtaken => {
                return verify_at(env, disk, options, None);
            }
            Err(error) => {
                tries.again(&env, error)?;
                continue;
            }
        };
        let gate = Gate::beside(disk.clone(), place.slot.clone());
        let checked = verify_at(env.clone(), gate, options, Some(&place));
        match place.slot.check().and(checked) {
            // A log whose files change names may look damaged once.
            Ok(report) if !report.is_sound() => {
                let error = Error::corrupt("the check beside a writer found damage");
                if tries.again(&env, error).is_err() {
                    return Ok(report);
                }
            }
            Err(error) => tries.again(&env, error)?,
            checked => return checked,
        }
    }
}

/// Verifies the database on a disk, beside a writer if the caller has a place there.
fn verify_at(
    env: Env,
    disk: Arc<dyn Disk>,
    options: &VerifyOptions,
    beside: Option<&Place>,
) -> Result<VerifyReport> {
    let mut report = VerifyReport {
        beside_writer: beside.is_some(),
        ..VerifyReport::default()
    };
    let budget = Budget::new(options.memory);
    let store_options = StoreOptions {
        budget: budget.clone(),
        reserve_bytes: 0,
        system_cache: false,
    };
    match PageStore::presence(&disk) {
        Ok(Presence::Present) => {}
        Ok(_) => return report.end("data file", absent(&disk)?),
        // The directory lists the file, but it cannot be opened.
        Err(error) if error.kind() == ErrorKind::NotFound && has_log(&disk)? => {
            let lost = Error::corrupt("the data file is missing, but there is a log");
            return report.end("data file", lost.with("directory", disk.describe()));
        }
        Err(error) => return report.end("data file", error),
    }
    let opened = match beside {
        Some(place) => PageStore::open_beside_writer(&disk, store_options, place.generation()),
        None => PageStore::open(&disk, store_options, true),
    };
    let (store, superblock) = match opened {
        Ok(opened) => opened,
        // A log beside the file proves that this was a database.
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
            format!(
                "{error}; the other slot is used, and the next open for writing repairs this one"
            ),
        ));
    }
    let structures = options.structures(&store, &budget)?;
    let base = match Base::read(&store, &superblock, structures, StructureId::LEVELED) {
        Ok(base) => base,
        Err(error) => return report.end("catalog", error),
    };
    let mut pages = PageUses::new(&store);
    if let Err(error) = base.catalog.pages().try_for_each(|page| pages.add(page)) {
        report.damage("catalog", error)?;
    }
    let mut logged = Vec::new();
    if let Some(place) = beside {
        // The writer trims no log until this is over.
        logged = verify_log(
            env.clone(),
            (&disk, &*store),
            &base,
            &superblock,
            options,
            true,
            &mut report,
        )?;
        place.slot.log_is_copied()?;
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
        let is_sound = findings.is_empty() && outcome.is_ok();
        report.findings.append(&mut findings);
        if let Err(error) = outcome {
            report.damage(&place(), error)?;
        }
        // A second check would report the same damage again.
        if is_sound && let Err(error) = check_order_keys(&**tree, stored.options.key_form()) {
            report.damage(&place(), error)?;
        }
        if report.is_full(options) {
            return Ok(report);
        }
        match tree.stats() {
            Ok(stats) => {
                report.groups += stats.figure("groups").unwrap_or(0);
                report.nodes += stats.figure("nodes").unwrap_or(0);
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
    if beside.is_none() {
        let files = (&disk, &*store);
        logged = verify_log(env, files, &base, &superblock, options, false, &mut report)?;
    }
    let uses = &mut pages.into_iter();
    if let Err(error) = store.rebuild_with(uses, &logged, superblock.generation, true) {
        report.damage("space", error)?;
    }
    Ok(report)
}

/// Checks that each stored key of a hashed keyspace begins with the hash of the user's key. Reads
/// every record of such a keyspace.
fn check_order_keys(tree: &dyn Version, form: KeyForm) -> Result<()> {
    let (true, Some(ordered)) = (form.is_hashed(), tree.ordered()) else {
        return Ok(());
    };
    let mut scan = ordered.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward)?;
    while let Some((key, _)) = scan.next()? {
        if !form.is_sound(key) {
            return Err(Error::corrupt("a record does not have the hash of its key")
                .with("key bytes", key.len()));
        }
    }
    Ok(())
}

/// Checks all that the trees reach, blocks included, if the data file is a copy of one that was
/// open. Some pages of such a copy may be older or newer than the superblock. Reads every page of a
/// copy. Reads nothing if the last life wrote this file or closed the database.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] with the first damaged place, or the error that prevents the check.
pub(crate) fn check_copy(store: &PageStore, base: &Base, large: &LoggedLarge) -> Result<()> {
    if store.superblock().closed || !store.is_copy() {
        return Ok(());
    }
    tracing::info!(
        "the data file is a copy and was not closed; all pages are checked before it is served"
    );
    let damaged = || {
        let message = "this directory looks like a copy of a database that was open while it was copied, and the copy is damaged: close the database, then copy it again";
        Error::corrupt(message)
    };
    for stored in &base.stored {
        let Some(tree) = base.catalog.tree(stored.id) else {
            continue;
        };
        let mut first = None;
        tree.verify(&mut |finding| {
            first.get_or_insert(finding);
        })?;
        if let Some(finding) = first {
            return Err(damaged()
                .with("keyspace", &stored.name)
                .with("damaged", finding.place)
                .with("how", finding.message));
        }
    }
    large.check_pieces(store, &mut |error| match error.is_of_data() {
        true => Err(damaged().with("damaged", error)),
        false => Err(error),
    })
}

/// What the newest superblock leads to. For tests on simulated disks that check the order of writes
/// (D1 to D3).
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The generation of the superblock's checkpoint.
    pub generation: Generation,
    /// Whether a log exists. A database that is being created has none at first.
    pub has_log: bool,
    /// The database's id, which its log has, too.
    pub database_id: u64,
    /// The branches that the log may have.
    pub branches: [u64; 2],
    /// The byte ranges of the trees' pages in the data file, in no order, without whole extents of
    /// dead values: these may be holes.
    pub extents: Vec<Range<u64>>,
    /// The log is needed from this LSN on.
    pub log_from: Lsn,
    /// Some tree holds the log's records up to this LSN.
    pub log_through: Lsn,
}

/// Walks the trees of the database on a disk of the caller. `None` if there is no valid superblock.
/// For tests on simulated disks.
#[doc(hidden)]
pub fn reach_on(disk: Arc<dyn Disk>, options: &VerifyOptions) -> Result<Option<Reach>> {
    let budget = Budget::new(options.memory);
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
    let structures = options.structures(&store, &budget)?;
    let base = Base::read(&store, &superblock, structures, StructureId::LEVELED)?;
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
    let mut unread = Vec::new();
    base.catalog
        .unread_extents(&mut |extent| unread.push(extent.offset..extent.end()))?;
    let extents = without(extents, unread);
    Ok(Some(Reach {
        generation: superblock.generation,
        has_log: superblock.incarnation != Incarnation(0),
        database_id: superblock.database_id,
        branches: superblock.branches(),
        extents,
        log_from: base.catalog.durable_through(),
        log_through: base.catalog.through,
    }))
}

/// Ranges without the parts of them that `holes` name.
fn without(ranges: Vec<Range<u64>>, mut holes: Vec<Range<u64>>) -> Vec<Range<u64>> {
    holes.sort_unstable_by_key(|hole| hole.start);
    let mut kept = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut start = range.start;
        let first = holes.partition_point(|hole| hole.end <= range.start);
        for hole in holes[first..]
            .iter()
            .take_while(|hole| hole.start < range.end)
        {
            if start < hole.start {
                kept.push(start..hole.start);
            }
            start = start.max(hole.end);
        }
        if start < range.end {
            kept.push(start..range.end);
        }
    }
    kept
}

/// Checks that the log on a disk of the caller is sound and holds what a superblock needs from an
/// LSN on. Returns the log's end. For tests on simulated disks.
#[doc(hidden)]
pub fn log_end_on(env: &Env, disk: &Arc<dyn Disk>, reach: &Reach, from: Lsn) -> Result<Lsn> {
    let options = LogOptions {
        database_id: reach.database_id,
        known_branches: reach.branches,
        ..LogOptions::new(0)
    };
    Recovery::scan(env, disk, options, from).map(|found| found.end())
}

/// The set of keyspaces at an LSN of the log.
struct Keyspaces<'a> {
    names: BTreeMap<Box<str>, KeyspaceId>,
    /// For each keyspace, the LSN from which a replay applies operations.
    replayed_from: BTreeMap<KeyspaceId, Lsn>,
    by_id: BTreeMap<KeyspaceId, Box<str>>,
    next_id: u32,
    structures: &'a Structures,
    /// The catalog holds all changes below this LSN.
    schema_from: Lsn,
}

impl<'a> Keyspaces<'a> {
    /// The keyspaces of the last checkpoint.
    fn of(base: &'a Base) -> Self {
        let names = base.stored.iter().map(|k| (k.name.clone(), k.id));
        let applied = |id| base.catalog.applied_of(id).unwrap_or(base.catalog.applied);
        Keyspaces {
            replayed_from: base.stored.iter().map(|k| (k.id, applied(k.id))).collect(),
            by_id: names.clone().map(|(name, id)| (id, name)).collect(),
            names: names.collect(),
            next_id: base.catalog.next_id,
            structures: &base.structures,
            schema_from: base.catalog.applied,
        }
    }

    /// Checks whether a record can come next, as replay does. Returns the number of its operations
    /// that replay would apply.
    fn check(&mut self, record: &Record<'_>) -> Result<u64> {
        match record.kind {
            UNLOGGED => return Ok(0),
            NOW => return read_now(record.payload).map(|_| 0),
            _ => {}
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
        let change = Schema::decode(record.kind, record.payload, &|id| {
            self.by_id.get(&id).cloned()
        })?;
        if record.lsn < self.schema_from {
            return Ok(0);
        }
        check_change(&change, &self.names, self.next_id)?;
        match change {
            Schema::Create { id, name, options } if id.0 == self.next_id => {
                let structure = self.structures.get(options.structure.id());
                structure.map_err(|error| error.with("keyspace", &name))?;
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
    (disk, store): (&Arc<dyn Disk>, &PageStore),
    base: &Base,
    superblock: &Superblock,
    options: &VerifyOptions,
    is_beside: bool,
    report: &mut VerifyReport,
) -> Result<Vec<PageUse>> {
    let settings = Options::new().settle()?;
    let log = log_options(&settings, superblock, 0);
    let needed_from = base.catalog.durable_through();
    let scanned = match is_beside {
        true => Recovery::scan_beside_writer(&env, disk, log, needed_from),
        false => scan_log(&env, disk, log, needed_from),
    };
    let mut large = LoggedLarge::default();
    let mut replay = match scanned {
        Ok(mut recovery) => {
            match LoggedLarge::find(&mut recovery, base, store, Sought::of_open(is_beside)) {
                Ok(found) => {
                    if !is_beside {
                        let name = "a large value that the log names";
                        found.check_pieces(store, &mut |error| report.damage(name, error))?;
                    }
                    large = found;
                }
                Err(error) => report.damage("log", error)?,
            }
            if let Err(error) = check_log(&recovery, superblock, &base.catalog) {
                report.damage("log", error)?;
            }
            recovery.read_only()
        }
        Err(error) => {
            report.stop("log", error)?;
            return Ok(large.pages);
        }
    };
    let mut keyspaces = Keyspaces::of(base);
    loop {
        if report.is_full(options) {
            return Ok(large.pages);
        }
        match replay.next() {
            Ok(None) => return Ok(large.pages),
            Ok(Some(record)) => match keyspaces.check(&record) {
                Ok(applied) => report.log_operations += applied,
                Err(error) => report.damage(&format!("log record at LSN {}", record.lsn), error)?,
            },
            Err(error) => {
                report.stop("log", error)?;
                return Ok(large.pages);
            }
        }
    }
}

impl VerifyReport {
    /// The number of further findings that fit.
    fn room(&self, options: &VerifyOptions) -> usize {
        let most = options.findings_max.max(1);
        most.saturating_sub(self.findings.len())
    }

    /// Whether the number of findings has reached its limit. If so, marks the report as stopped.
    fn is_full(&mut self, options: &VerifyOptions) -> bool {
        self.stopped = self.room(options) == 0;
        self.stopped
    }

    /// Records damage, like [`VerifyReport::damage`], that prevents checking what follows it.
    fn stop(&mut self, place: &str, error: Error) -> Result<()> {
        self.damage(place, error)?;
        self.stopped = true;
        Ok(())
    }

    /// Records damage that prevents all further checks, and returns the report.
    fn end(mut self, place: &str, error: Error) -> Result<VerifyReport> {
        self.stop(place, error)?;
        Ok(self)
    }

    /// Adds damage as a finding. Returns every other error, such as a lack of resources, to the
    /// caller.
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
