//! Salvage: what a damaged database still holds, in a new one.
//!
//! Each sound block of a tree gives its records, then the log gives its own. A record counts if no
//! sound newer place says otherwise. If a damaged newer place could have said otherwise, the record
//! goes to a keyspace of its own: `NAME.uncertain`. So no deleted record returns among the certain
//! ones. Messages of a key come oldest first, so a later one replaces what an earlier one left in
//! either keyspace. Values with operands of merges are uncertain: their base may be lost. Large
//! values are copied piece by piece, so they may have any length. Each piece is checked, and the
//! copy has checksums of its own.

mod sink;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrapin_base::{
    Budget, Env, Error, ErrorKind, Generation, Incarnation, KeyspaceId, Lsn, Message, Result,
    handle_deadline_ms, mutant,
};
use terrapin_disk::Disk;
use terrapin_pages::{PageStore, PageUse, StoreOptions};
use terrapin_structure::Rescued;
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::{LargeRef, LargeValues};
use terrapin_wal::{Record, Recovery, Replay};

use crate::api::database::Database;
use crate::api::keyspace::Keyspace;
use crate::engine::gate::Gate;
use crate::engine::structures::Structures;
use crate::log_record::format::{NOW, UNLOGGED};
use crate::log_record::{Change, Operations, Schema};
use crate::open::base::Base;
use crate::open::beside::{Alone, Entered, Tries, enter};
use crate::open::directory::open_directory;
use crate::open::files::{check_log, log_options, never_was, scan_log};
use crate::open::large::{LoggedLarge, Sought};
use crate::types::options::Options;
use crate::types::options::settings::Settings;
use crate::types::structures::StructureParts;
use sink::{Large, Sink};

/// What the keyspace of uncertain records is called, behind the name of the keyspace.
pub const UNCERTAIN: &str = ".uncertain";
/// The share of the memory budget that caches of the damaged database get.
const MEMORY_SHARE: u64 = 8;

/// A range of keys of which records may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedRange {
    /// The keyspace.
    pub keyspace: String,
    /// The least key that may be lost.
    pub from: Vec<u8>,
    /// All lost keys are below this one. None is the end of all keys.
    pub to: Option<Vec<u8>>,
    /// What is damaged.
    pub cause: String,
}

/// What a salvage found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the report, not an error, names what is lost"]
pub struct SalvageReport {
    /// Ranges of keys of which records may be lost, in no order.
    pub damaged: Vec<DamagedRange>,
    /// Why the end of the log is lost. Each record is uncertain then: a lost one may be newer.
    pub log: Option<String>,
    /// Messages of trees and log that count: records and deletes.
    pub certain: u64,
    /// Messages that a damaged place may have replaced.
    pub uncertain: u64,
}

impl SalvageReport {
    /// Whether nothing is lost.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.log.is_none()
    }

    /// Gives a message of a stored key to its keyspace, and counts it.
    fn take(
        &mut self,
        sink: &Sink,
        key: &[u8],
        message: Message<'_>,
        is_certain: bool,
    ) -> Result<()> {
        match sink.take(key, message, is_certain, &self.damaged)? {
            true => self.certain += 1,
            false => self.uncertain += 1,
        }
        Ok(())
    }

    /// Copies a large value of a stored key to its keyspace. What is damaged is lost, as is what
    /// the device cannot read. All other errors are the salvage's.
    fn take_large(
        &mut self,
        sink: &Sink,
        key: &[u8],
        large: &Large<'_>,
        is_certain: bool,
    ) -> Result<()> {
        match sink.take_large(key, large, is_certain)? {
            None if is_certain => self.certain += 1,
            None => self.uncertain += 1,
            Some(cause) => self.loses_value(sink, key, &cause)?,
        }
        Ok(())
    }

    /// The newest message so far of a stored key has a value that is lost.
    fn loses_value(&mut self, sink: &Sink, key: &[u8], cause: &Error) -> Result<()> {
        self.damaged.push(DamagedRange {
            keyspace: sink.name.clone(),
            from: key.to_vec(),
            to: Some([key, &[0]].concat()),
            cause: cause.to_string(),
        });
        sink.doubt(key)
    }
}

/// Copies what the damaged database in the directory `old` still holds into a new one in the
/// directory `new`, and returns what is lost. Writes nothing in `old`.
///
/// A record goes to `NAME.uncertain` if a damaged place may have had a newer one of its key. Below
/// an unreadable node nothing is found. Keyspaces keep their names and options.
///
/// Errors: `Corrupt` if no superblock or no catalog can be read; `AlreadyExists` if `new` has a
/// database; those of opening `old` for reading, such as `Locked`; those of writing `new`.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let base = std::env::temp_dir().join(format!("terrapin-doc-salvage-{}", std::process::id()));
/// # terrapin::Database::open(base.join("old"))?.close()?;
/// let report = terrapin::salvage::salvage(base.join("old"), base.join("new"))?;
/// for range in &report.damaged {
///     println!("{}: keys from {:?} to {:?}: {}", range.keyspace, range.from, range.to, range.cause);
/// }
/// assert!(report.is_whole());
/// # let _ = std::fs::remove_dir_all(base);
/// # Ok(()) }
/// ```
pub fn salvage(old: impl AsRef<Path>, new: impl AsRef<Path>) -> Result<SalvageReport> {
    let env = Env::threads();
    let disk = open_directory(&env, old.as_ref(), false)?;
    // The damaged database is read before the new one exists.
    let options = Options::new();
    let found = Damaged::open(&env, &disk, &options)?;
    let database = Options::new().error_if_exists(true).open(new)?;
    let report = found.salvage(&database)?;
    database.checkpoint()?;
    database.close()?;
    Ok(report)
}

/// Salvages a database on disks of the caller, for tests on simulated disks. `options` are those
/// of the damaged database.
#[doc(hidden)]
pub fn salvage_on(
    env: &Env,
    old: &Arc<dyn Disk>,
    options: &Options,
    database: &Database,
) -> Result<SalvageReport> {
    Damaged::open(env, old, options)?.salvage(database)
}

/// The ranges of keys of which a damaged database lost records, and whether its log is damaged.
/// Reads everything and writes nothing. Where another process has the database open for writing,
/// this looks at the moment of the call. Errors are those of [`salvage`], and `Overtaken` if the
/// writer makes checkpoints faster than this reads, for 5 s.
pub fn damaged_ranges(path: impl AsRef<Path>) -> Result<SalvageReport> {
    let env = Env::threads();
    let disk = open_directory(&env, path.as_ref(), false)?;
    damaged_ranges_on(&env, &disk, &Options::new())
}

/// [`damaged_ranges`] on a disk of the caller, for tests on simulated disks.
#[doc(hidden)]
pub fn damaged_ranges_on(
    env: &Env,
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<SalvageReport> {
    let alone = || Damaged::open(env, disk, options)?.run(None);
    let mut tries = Tries::new(env);
    loop {
        let place = match enter(disk, Alone::ExcludesWriters) {
            Ok(Entered::Beside(place)) => place,
            Ok(Entered::Alone) => return alone(),
            // The salvage itself says what prevents it.
            Err(error) if error.kind() != ErrorKind::Overtaken => return alone(),
            Err(error) => {
                tries.again(env, error)?;
                continue;
            }
        };
        let gate: Arc<dyn Disk> = Gate::beside(disk.clone(), place.slot.clone());
        let found = Damaged::open_at(env, &gate, options, Some(place.generation()))
            .and_then(|found| found.run(None));
        match place.slot.check().and(found) {
            // A log whose files change names may look damaged once.
            Ok(report) if report.log.is_some() => {
                let error = Error::corrupt("the log beside a writer looks damaged");
                if tries.again(env, error).is_err() {
                    return Ok(report);
                }
            }
            Err(error) => tries.again(env, error)?,
            found => return found,
        }
    }
}

/// A damaged database, open for reading.
struct Damaged {
    store: Arc<PageStore>,
    base: Base,
    replay: Option<Replay>,
    log: Option<Error>,
}

impl Damaged {
    fn open(env: &Env, disk: &Arc<dyn Disk>, options: &Options) -> Result<Damaged> {
        Self::open_at(env, disk, options, None)
    }

    /// Opens a database, beside a writer if a generation is given.
    fn open_at(
        env: &Env,
        disk: &Arc<dyn Disk>,
        options: &Options,
        beside: Option<Generation>,
    ) -> Result<Damaged> {
        let settings: Settings = options.settle()?;
        let budget = Budget::new(settings.memory / MEMORY_SHARE);
        let store_options = StoreOptions {
            budget: budget.clone(),
            reserve_bytes: 0,
            system_cache: false,
        };
        let (store, superblock) = match beside {
            Some(generation) => PageStore::open_beside_writer(disk, store_options, generation)?,
            None => PageStore::open(disk, store_options, true)?,
        };
        if superblock.incarnation == Incarnation(0) {
            return Err(never_was(disk));
        }
        let parts = StructureParts {
            store: &store,
            budget: &budget,
            fanout: None,
        };
        let structures = Structures::new(&parts, &settings.further_structures)?;
        let base = Base::read(&store, &superblock, structures, settings.default_structure)?;
        let needed_from = base.catalog.durable_through();
        let log = || log_options(&settings, &superblock, 0);
        let scanned = match beside {
            Some(_) => Recovery::scan_beside_writer(env, disk, log(), needed_from),
            None => scan_log(env, disk, log(), needed_from),
        };
        let scanned = scanned.and_then(|mut found| {
            // The log ends where it ends for an open.
            if beside.is_none() {
                LoggedLarge::find(&mut found, &base, &store, Sought::Salvage)?;
            }
            check_log(&found, &superblock, &base.catalog)?;
            Ok(found)
        });
        let (replay, log) = match scanned {
            Ok(found) => (Some(found.read_only()), None),
            Err(error) if error.is_of_data() || error.kind() == ErrorKind::NotFound => {
                // The sound records in front of the damage.
                let all = Lsn(u64::MAX);
                let found = Recovery::scan_running(env, disk, log(), needed_from, Lsn(0), all);
                (found.ok().map(Recovery::read_only), Some(error))
            }
            Err(error) => return Err(error),
        };
        Ok(Damaged {
            store,
            base,
            replay,
            log,
        })
    }

    fn salvage(self, database: &Database) -> Result<SalvageReport> {
        self.run(Some(database))
    }

    /// Gives everything to the new database, or only looks for damage.
    fn run(mut self, database: Option<&Database>) -> Result<SalvageReport> {
        let mut report = SalvageReport {
            log: self.log.as_ref().map(Error::to_string),
            ..SalvageReport::default()
        };
        let is_log_sound = self.log.is_none() || mutant::active("salvage-trusts-damaged-log");
        let values = LargeValues::new(&self.store);
        let mut keyspaces = BTreeMap::new();
        for stored in &self.base.stored {
            let mut sink = Sink::new(database, &stored.name, stored.options)?;
            let applied = self.base.catalog.applied_of(stored.id);
            sink.from = applied.unwrap_or(self.base.catalog.applied);
            if let Some(tree) = self.base.catalog.tree(stored.id) {
                let mut counting = Counting {
                    values: &values,
                    sink: &sink,
                    report: &mut report,
                    is_log_sound,
                };
                match tree.rescue(&mut counting) {
                    Err(error) if error.kind() == ErrorKind::Unsupported => {
                        counting.lost(&[], None, &error)?;
                    }
                    rescued => rescued?,
                }
            }
            keyspaces.insert(stored.id, sink);
        }
        let mut log = LogSalvage {
            values,
            database,
            keyspaces,
            next_id: self.base.catalog.next_id,
            schema_from: self.base.catalog.applied,
            is_log_sound,
        };
        while let Some(replay) = &mut self.replay {
            match replay.next() {
                Ok(Some(record)) => log.apply(&record, &mut report)?,
                Ok(None) => break,
                Err(error) if error.is_of_data() => {
                    report.log.get_or_insert(error.to_string());
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        for sink in log.keyspaces.values() {
            if let (Some(uncertain), Some(database)) = (&sink.uncertain, database)
                && uncertain.is_empty()?
            {
                database.drop_keyspace(uncertain.name())?;
            }
        }
        Ok(report)
    }
}

/// Gives the messages of a tree to a sink, and notes its damage.
struct Counting<'a> {
    values: &'a LargeValues,
    sink: &'a Sink,
    report: &'a mut SalvageReport,
    is_log_sound: bool,
}

impl Rescued for Counting<'_> {
    fn message(&mut self, key: &[u8], message: Message<'_>, is_certain: bool) -> Result<()> {
        let is_certain = is_certain && self.is_log_sound;
        self.report.take(self.sink, key, message, is_certain)
    }

    fn lost(&mut self, from: &[u8], to: Option<&[u8]>, cause: &Error) -> Result<()> {
        self.report.damaged.push(DamagedRange {
            keyspace: self.sink.name.clone(),
            from: from.to_vec(),
            to: to.map(<[u8]>::to_vec),
            cause: cause.to_string(),
        });
        Ok(())
    }

    fn lost_value(&mut self, key: &[u8], cause: &Error) -> Result<()> {
        self.report.loses_value(self.sink, key, cause)
    }

    fn large_value(
        &mut self,
        key: &[u8],
        (page, handle): (&PageUse, &[u8]),
        is_certain: bool,
    ) -> Result<()> {
        let large = Large {
            values: self.values,
            page,
            handle: Handle::decode(handle)?,
            checksum: None,
            deadline_ms: handle_deadline_ms(handle),
        };
        let is_certain = is_certain && self.is_log_sound;
        self.report.take_large(self.sink, key, &large, is_certain)
    }
}

/// The replay of the log's sound records.
struct LogSalvage<'a> {
    values: LargeValues,
    database: Option<&'a Database>,
    keyspaces: BTreeMap<KeyspaceId, Sink>,
    next_id: u32,
    schema_from: Lsn,
    is_log_sound: bool,
}

impl LogSalvage<'_> {
    fn apply(&mut self, record: &Record<'_>, report: &mut SalvageReport) -> Result<()> {
        if matches!(record.kind, UNLOGGED | NOW) {
            return Ok(());
        }
        if let Some(operations) = Operations::decode(record.kind, record.payload) {
            for operation in operations {
                let operation = operation?;
                let Some(sink) = self.keyspaces.get(&operation.keyspace) else {
                    continue;
                };
                if record.lsn < sink.from {
                    continue;
                }
                match operation.change {
                    Change::Message(key, message) => {
                        report.take(sink, key, message, self.is_log_sound)?;
                    }
                    Change::Large(key, bytes) => {
                        let (named, _) = LargeRef::decode(bytes)?;
                        let large = Large {
                            values: &self.values,
                            page: &named.page,
                            handle: named.handle(),
                            checksum: Some(named.checksum),
                            deadline_ms: named.deadline_ms,
                        };
                        report.take_large(sink, key, &large, self.is_log_sound)?;
                    }
                    Change::DeleteRange(from, to) => {
                        let to = to.map_or(Bound::Unbounded, Bound::Excluded);
                        for keyspace in sink.both() {
                            keyspace.delete_range((Bound::Included(from), to))?;
                        }
                    }
                }
            }
            return Ok(());
        }
        let keyspaces = &self.keyspaces;
        let name_of = |id| Some(keyspaces.get(&id)?.name.clone().into_boxed_str());
        let change = Schema::decode(record.kind, record.payload, &name_of)?;
        if record.lsn < self.schema_from {
            return Ok(());
        }
        match change {
            Schema::Create { id, name, options } if id.0 >= self.next_id => {
                self.next_id = id.0 + 1;
                let mut sink = Sink::new(self.database, &name, options)?;
                sink.from = record.lsn;
                self.keyspaces.insert(id, sink);
            }
            Schema::Drop(id) => {
                if let (Some(sink), Some(database)) = (self.keyspaces.remove(&id), self.database) {
                    for keyspace in sink.both() {
                        database.drop_keyspace(keyspace.name())?;
                    }
                }
            }
            Schema::Clear(id) => {
                if let Some(sink) = self.keyspaces.get(&id) {
                    sink.both().try_for_each(Keyspace::clear)?;
                }
            }
            Schema::Create { .. } | Schema::SetOptions(..) => {}
        }
        Ok(())
    }
}
