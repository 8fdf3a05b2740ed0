//! Terrapin as a [`Subject`]: a database on a simulated disk, driven by one seed, that can crash at
//! any call. For comparison, [`Simulated::threaded`] gives the same with real threads, on that disk
//! or a real one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use terrapin::verify::verify_on;
use terrapin::{
    Batch, CheckpointDistance, Compression, Database, Keyspace, KeyspaceOptions, Position, Range,
    Requirement, Snapshot, SpaceAmplification, StructureId, StructureKind, Unordered, prefix_range,
};
use terrapin_base::checksum::hash64;
use terrapin_base::{Condition, Env, Error, ErrorKind, Result, Sim, Slice};
use terrapin_disk::sim::{CrashMode, Moment, Watching};
use terrapin_disk::{Disk, RealDisk, SimDisk};

use crate::conditional::{Conditional, updated};
use crate::configuration::{Configuration, Deadlines};
use crate::operation::{Answer, Change, Durability, Operation, Read, Record, Reopen, Span, What};
use crate::oracle::{State, walked};
use crate::pattern::Pattern;
use crate::step::TxStep;
use crate::structures::Structures;
use crate::subject::Subject;
use crate::transaction::transact;

/// Steps of background work that count as endless.
const STEPS_MAX: u64 = 2_000_000;
/// The most real milliseconds of one [`Operation::Pass`].
const PASS_MS_MAX: u64 = 2;

/// A database on a simulated disk. The same seed, configuration and operations give the same calls
/// on the disk.
pub struct Simulated {
    name: String,
    configuration: Configuration,
    /// The current options: [`Reopen`] may vary them.
    current: Configuration,
    seed: u64,
    lives: u64,
    disk: SimDisk,
    sim: Sim,
    /// The environment of the simulated life.
    env: Option<Env>,
    /// Whether real threads do the background work; the seed then decides nothing.
    threaded: bool,
    /// The directory of a real disk, instead of the simulated one.
    directory: Option<PathBuf>,
    // Handles drop in any order, but before the database that they keep open.
    ranges: BTreeMap<String, Opened>,
    snapshots: BTreeMap<String, (Snapshot, Handles)>,
    handles: Handles,
    database: Option<Database>,
    /// How often the structures of keyspaces changed.
    changes: u64,
}

/// What a delete writes that is a value whose deadline comes at once ([`Deadlines::Near`]).
const DEAD: &[u8] = b"a deleted value";
const NEAR: Duration = Duration::from_millis(1);
/// The simulated time after which that deadline has come.
const NEAR_PAST_NS: u64 = 2_000_000;

/// The time to live of keyspaces whose values get a deadline that no run reaches.
const LONG: Duration = Duration::from_secs(5_000_000_000);

/// A deadline that no run reaches.
fn never() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000_000)
}

fn is_full(written: &Result<()>) -> bool {
    matches!(written, Err(error) if error.kind() == ErrorKind::NoSpace)
}

type Handles = BTreeMap<String, Keyspace>;

impl Simulated {
    /// A new database on a new disk.
    pub fn new(name: impl Into<String>, seed: u64, configuration: Configuration) -> Result<Self> {
        let mut subject = Self::closed(name, seed, configuration, SimDisk::new(seed));
        subject.open()?;
        Ok(subject)
    }

    /// The database on a disk, or one that [`Simulated::open`] will create there.
    #[must_use]
    pub fn closed(
        name: impl Into<String>,
        seed: u64,
        configuration: Configuration,
        disk: SimDisk,
    ) -> Self {
        let (_, sim) = Env::simulated(seed);
        Simulated {
            name: name.into(),
            current: configuration.clone(),
            configuration,
            seed,
            lives: 0,
            disk,
            sim,
            env: None,
            threaded: false,
            directory: None,
            ranges: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            handles: Handles::new(),
            database: None,
            changes: 0,
        }
    }

    /// A new database with real threads for background work, in a directory or on a simulated disk.
    /// It does not crash.
    pub fn threaded(
        name: impl Into<String>,
        configuration: Configuration,
        directory: Option<PathBuf>,
    ) -> Result<Self> {
        let mut subject = Simulated {
            threaded: true,
            directory,
            ..Self::closed(name, 0, configuration, SimDisk::new(0))
        };
        subject.open()?;
        Ok(subject)
    }

    /// The disk, to place faults and crashes on.
    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The control of background work.
    #[must_use]
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The open database; an error after a crash.
    pub fn database(&self) -> Result<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Closed, "the database is not open"))
    }

    /// Later opens use these options, as [`Configuration::varied`] returns them.
    pub fn open_with(&mut self, configuration: Configuration) {
        self.current = configuration;
    }

    /// The configuration it was created with.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// A clock and jobs for another life.
    fn environment(&mut self) -> Env {
        self.lives += 1;
        if self.threaded {
            return Env::threads();
        }
        // The wall clock goes on, past the deadlines of deletes of the last life. A store on the
        // disk of another one's death is later by a minute for each call of that disk.
        let wall_ms = self.env.as_ref().map(|env| env.wall_ms() + 10);
        let (env, sim) = Env::simulated(
            self.seed
                .wrapping_add(self.lives.wrapping_mul(0x2545_f491_4f6c_dd1d)),
        );
        let others_ms = || env.wall_ms() + self.disk.io_count() * 60_000;
        sim.set_wall_ms(wall_ms.unwrap_or_else(others_ms));
        self.sim = sim;
        self.env = Some(env.clone());
        env
    }

    /// The disk, for a life in that environment.
    fn handle(&self, env: &Env) -> Result<Arc<dyn Disk>> {
        Ok(match &self.directory {
            Some(directory) => Arc::new(RealDisk::open(env.clone(), directory, true)?),
            None => self.disk.handle(),
        })
    }

    /// Opens the database on the disk or creates one. After a crash, this recovers it.
    pub fn open(&mut self) -> Result<()> {
        let env = self.environment();
        let disk = self.handle(&env)?;
        self.database = Some(self.current.options().open_on(env, disk)?);
        Ok(())
    }

    /// Kills the process here. With `power`, unsynced data is lost too. [`Simulated::open`]
    /// recovers.
    pub fn crash(&mut self, power: Option<CrashMode>) {
        self.disk.crash_process();
        self.sim.kill();
        self.let_go();
        if let Some(mode) = power {
            self.disk.crash_power(mode);
        }
    }

    /// Drops the database and every handle on it, without closing.
    pub fn let_go(&mut self) {
        self.ranges.clear();
        self.snapshots.clear();
        self.handles.clear();
        self.database = None;
    }

    /// Verifies the files of the closed or crashed database. Returns what is wrong with them.
    pub fn verify(&mut self) -> Result<Vec<String>> {
        let env = self.environment();
        let changes = Changes::of(&self.disk);
        let disk = self.handle(&env)?;
        let report = verify_on(env, disk, &Structures::verify_options())?;
        let mut findings: Vec<String> = report
            .findings
            .iter()
            .map(|f| format!("{}: {}", f.place, f.message))
            .collect();
        if changes.count() > 0 {
            findings.push("verify wrote to the disk (D11)".to_owned());
        }
        Ok(findings)
    }

    /// All records of the database, read by scans.
    pub fn state(&mut self) -> Result<State> {
        state_of(self.database()?)
    }

    fn keyspace(&mut self, name: &str) -> Result<Keyspace> {
        if let Some(handle) = self.handles.get(name) {
            return Ok(handle.clone());
        }
        let handle = self.database()?.open_keyspace(name)?;
        self.handles.insert(name.to_owned(), handle.clone());
        Ok(handle)
    }

    fn write(
        &mut self,
        keyspace: &str,
        key: &Pattern,
        value: Option<&Pattern>,
        durability: Durability,
    ) -> Result<Answer> {
        let keyspace = self.keyspace(keyspace)?;
        let written = match (value, durability) {
            (Some(value), None) if self.is_far(&value.bytes()) => {
                Some(keyspace.put_expiring(key.bytes(), value.bytes(), never()))
            }
            (None, None) if self.is_near(&key.bytes()) => {
                let written = keyspace.put_with_ttl(key.bytes(), DEAD, NEAR);
                self.sim.advance_ns(NEAR_PAST_NS);
                // A delete finds room where a put does not.
                Some(written).filter(|written| !is_full(written))
            }
            _ => None,
        };
        if let Some(written) = written {
            return written.map(|()| Answer::Done);
        }
        match (value, durability) {
            (Some(value), None) => keyspace.put(key.bytes(), value.bytes()),
            (Some(value), Some(durability)) => {
                keyspace.put_with(key.bytes(), value.bytes(), durability)
            }
            (None, None) => keyspace.delete(key.bytes()),
            (None, Some(durability)) => keyspace.delete_with(key.bytes(), durability),
        }?;
        Ok(Answer::Done)
    }

    fn own_options(&self, name: &str) -> KeyspaceOptions {
        own_options(name, self.configuration.deadlines)
    }

    /// Whether the store writes this value with a deadline that never comes.
    fn is_far(&self, value: &[u8]) -> bool {
        self.current.deadlines != Deadlines::None && hash64(value).is_multiple_of(2)
    }

    /// Whether the store deletes a key by a value whose deadline comes at once.
    fn is_near(&self, key: &[u8]) -> bool {
        let passes = self.current.deadlines == Deadlines::Near && !self.threaded;
        passes && (hash64(key) ^ self.sim.steps()).is_multiple_of(2)
    }

    fn erase(&mut self, name: &str, span: &Span, durability: Durability) -> Result<Answer> {
        let keyspace = self.keyspace(name)?;
        match (span, durability) {
            (Span::Prefix(prefix), None) => keyspace.delete_prefix(prefix.bytes()),
            (Span::Prefix(prefix), Some(durability)) => {
                keyspace.delete_range_with(prefix_range(prefix.bytes()), durability)
            }
            (Span::Between(lower, upper), None) => {
                keyspace.delete_range((bytes_of(lower), bytes_of(upper)))
            }
            (Span::Between(lower, upper), Some(durability)) => {
                keyspace.delete_range_with((bytes_of(lower), bytes_of(upper)), durability)
            }
        }?;
        Ok(Answer::Done)
    }

    fn batch(
        &mut self,
        required: &[Change],
        changes: &[Change],
        durability: Durability,
    ) -> Result<Answer> {
        let mut batch: Batch = self.database()?.batch();
        for required in required {
            let keyspace = self.keyspace(&required.keyspace)?;
            let Some((key, value)) = required.record() else {
                return Ok(Answer::Broken("a condition is on a key".to_owned()));
            };
            let asks = match value {
                Some(value) => Requirement::equals(value.bytes()),
                None => Requirement::Absent,
            };
            batch.require(&keyspace, key.bytes(), asks);
        }
        let has_puts = changes.iter().any(|c| matches!(c.what, What::Put(..)));
        let mut is_near = false;
        for change in changes {
            let keyspace = self.keyspace(&change.keyspace)?;
            match &change.what {
                What::Put(key, value) if self.is_far(&value.bytes()) => {
                    batch.put_expiring(&keyspace, key.bytes(), value.bytes(), never());
                }
                What::Put(key, value) => batch.put(&keyspace, key.bytes(), value.bytes()),
                // A batch of deletes finds room where another one does not.
                What::Delete(key) if has_puts && self.is_near(&key.bytes()) => {
                    batch.put_with_ttl(&keyspace, key.bytes(), DEAD, NEAR);
                    is_near = true;
                }
                What::Delete(key) => batch.delete(&keyspace, key.bytes()),
                What::Merge(key, operand) => {
                    batch.merge(&keyspace, key.bytes(), operand.bytes());
                }
                What::Erase(Span::Prefix(prefix)) => {
                    batch.delete_prefix(&keyspace, prefix.bytes());
                }
                What::Erase(Span::Between(lower, upper)) => {
                    batch.delete_range(&keyspace, (bytes_of(lower), bytes_of(upper)));
                }
            }
        }
        let database = self.database()?;
        let written = match durability {
            None => database.write(batch),
            Some(durability) => database.write_with(batch, durability),
        };
        if is_near {
            self.sim.advance_ns(NEAR_PAST_NS);
        }
        written.map(|()| Answer::Done)
    }

    fn read(&mut self, snapshot: Option<&str>, name: &str, read: &Read) -> Result<Answer> {
        let structures = self.configuration.structures;
        let source = match snapshot {
            None => Source {
                structures,
                snapshot: None,
                keyspace: self.keyspace(name)?,
            },
            Some(snapshot) => {
                let Some((taken, handles)) = self.snapshots.get(snapshot) else {
                    return Ok(Answer::Broken(format!("there is no snapshot {snapshot}")));
                };
                let (taken, handle) = (taken.clone(), handles.get(name).cloned());
                // A keyspace younger than the snapshot is not in the snapshot, which says so.
                let keyspace = handle.map_or_else(|| self.keyspace(name), Ok)?;
                Source {
                    structures,
                    snapshot: Some(taken),
                    keyspace,
                }
            }
        };
        if matches!(read, Read::Open(..) | Read::Range(..)) {
            // An empty range never checks that its keyspace exists.
            source.count()?;
        }
        if !self.configuration.structures.keep_order()
            && matches!(read, Read::Open(..) | Read::Range(..))
        {
            // A range without records is refused too, but only its first record tells.
            source.keyspace.first()?;
        }
        if let Read::Open(range, span) = read {
            let opened = match source.is_sorted_here() {
                true => Opened::Sorted(source.sorted(span)?.into()),
                false => Opened::Range(Box::new(source.span(span))),
            };
            self.ranges.insert(range.clone(), opened);
            return Ok(Answer::Done);
        }
        source.read(read)
    }

    fn take_snapshot(&mut self, name: &str) -> Result<Answer> {
        let database = self.database()?.clone();
        let names: Vec<String> = database.keyspaces()?.into_iter().map(|k| k.name).collect();
        let handles = names
            .into_iter()
            .map(|name| Ok((name.clone(), self.keyspace(&name)?)))
            .collect::<Result<_>>()?;
        self.snapshots
            .insert(name.to_owned(), (database.snapshot()?, handles));
        Ok(Answer::Done)
    }

    fn drop_keyspace(&mut self, name: &str) -> Result<Answer> {
        self.database()?.drop_keyspace(name)?;
        if let Some(old) = self.handles.remove(name) {
            let outcomes = [
                old.get("key").map(drop),
                old.put("key", "value"),
                old.clear(),
            ];
            if !outcomes
                .iter()
                .all(|o| matches!(o, Err(e) if e.kind() == ErrorKind::KeyspaceNotFound))
            {
                return Ok(Answer::Broken(format!(
                    "a handle on a dropped keyspace says {outcomes:?}"
                )));
            }
        }
        Ok(Answer::Done)
    }

    fn reopen(&mut self, how: Reopen) -> Result<Answer> {
        let database = self.database()?.clone();
        if how.dropped {
            drop(database);
            self.let_go();
        } else {
            database.close()?;
            for (snapshot, handles) in self.snapshots.values() {
                for keyspace in handles.values() {
                    let (newest, old) = (keyspace.get("key"), snapshot.get(keyspace, "key"));
                    let is_closed = |outcome: &Result<Option<Slice>>| matches!(outcome, Err(e) if e.kind() == ErrorKind::Closed);
                    if !is_closed(&newest) || !is_closed(&old) {
                        return Ok(Answer::Broken(format!(
                            "a closed database answers {newest:?} and {old:?}"
                        )));
                    }
                }
            }
            drop(database);
            self.let_go();
        }
        if how.vary != 0 {
            self.current = self.configuration.varied(how.vary);
        }
        if !how.inspected {
            self.open()?;
        } else if let Some(broken) = self.inspect_and_open()? {
            return Ok(Answer::Broken(broken));
        }
        let replayed = self.database()?.metrics().replayed_records;
        if !how.dropped && replayed > 0 {
            return Ok(Answer::Broken(format!(
                "{replayed} records were replayed after a clean close"
            )));
        }
        Ok(Answer::Done)
    }

    /// Verifies the closed database, reads all of it through a read-only open, opens it, and reads
    /// it again.
    fn inspect_and_open(&mut self) -> Result<Option<String>> {
        let findings = self.verify()?;
        if !findings.is_empty() {
            return Ok(Some(format!("verify finds: {}", findings.join("; "))));
        }
        let env = self.environment();
        let disk = self.handle(&env)?;
        let changes = Changes::of(&self.disk);
        // In order, whatever the store answers.
        let inspected = Configuration {
            structures: self.current.structures.in_order(),
            ..self.current.clone()
        };
        let options = inspected.options().read_only(true);
        let seen = match options.open_on(env, disk) {
            Ok(database) => {
                let seen = state_of(&database)?;
                let refused = database.default_keyspace().put("key", "value");
                if !matches!(&refused, Err(e) if e.kind() == ErrorKind::ReadOnly) {
                    return Ok(Some(format!(
                        "a read-only database takes a write: {refused:?}"
                    )));
                }
                database.close()?;
                Some(seen)
            }
            // A log that does not fit in memory is refused (D11).
            Err(error) if error.kind() == ErrorKind::OutOfMemory => None,
            Err(error) => return Err(error),
        };
        if changes.count() > 0 {
            return Ok(Some("a read-only open wrote to the disk (D11)".to_owned()));
        }
        self.open()?;
        if !self.keeps_order() {
            return Ok(None);
        }
        let opened = self.state()?;
        Ok(seen.filter(|seen| *seen != opened).map(|seen| {
            format!(
                "read-only differs from read-write: {}",
                seen.difference(&opened)
            )
        }))
    }

    fn pass(&mut self, ms: u64) -> Result<Answer> {
        if self.threaded {
            let env = Env::threads();
            let end = env.now_ns() + ms.min(PASS_MS_MAX) * 1_000_000;
            env.wait(&Condition::delay_until(end))?;
            return Ok(Answer::Done);
        }
        self.sim.advance_ns(ms.saturating_mul(1_000_000));
        for _ in 0..STEPS_MAX {
            if !self.sim.step() {
                return Ok(self.at_rest());
            }
        }
        Ok(Answer::Broken("background work does not end".to_owned()))
    }

    /// Nothing is in progress: no merge holds memory.
    fn at_rest(&self) -> Answer {
        let memory = self.database.as_ref().map(|d| d.metrics().memory);
        match memory.filter(|memory| memory.merge_bytes > 0) {
            Some(memory) => Answer::Broken(format!(
                "{} bytes of the budget are held for merges, and none is under way",
                memory.merge_bytes
            )),
            None => Answer::Done,
        }
    }

    fn act(&mut self, operation: &Operation) -> Result<Answer> {
        match operation {
            Operation::Put {
                keyspace,
                key,
                value,
                durability,
            } => self.write(keyspace, key, Some(value), *durability),
            Operation::Delete {
                keyspace,
                key,
                durability,
            } => self.write(keyspace, key, None, *durability),
            Operation::Merge {
                keyspace,
                key,
                operand,
                durability,
            } => {
                let keyspace = self.keyspace(keyspace)?;
                match durability {
                    None => keyspace.merge(key.bytes(), operand.bytes()),
                    Some(durability) => {
                        keyspace.merge_with(key.bytes(), operand.bytes(), *durability)
                    }
                }?;
                Ok(Answer::Done)
            }
            Operation::Erase {
                keyspace,
                span,
                durability,
            } => self.erase(keyspace, span, *durability),
            Operation::Batch {
                changes,
                durability,
            } => self.batch(&[], changes, *durability),
            Operation::Conditional { keyspace, how } => conditional(&self.keyspace(keyspace)?, how),
            Operation::Ingest { keyspace, records } => {
                let record = |(key, value): &(Pattern, Pattern)| (key.bytes(), value.bytes());
                self.keyspace(keyspace)?
                    .ingest(records.iter().map(record))?;
                Ok(Answer::Done)
            }
            Operation::Guarded {
                required,
                changes,
                durability,
            } => self.batch(required, changes, *durability),
            Operation::Transact {
                snapshot,
                steps,
                durability,
            } => {
                let how = (*snapshot, *durability);
                let database = self.database()?.clone();
                let structures = self.configuration.structures;
                for name in steps.iter().filter_map(TxStep::needs_order) {
                    // Before another writer of the steps writes.
                    if structures.refuse_spans(name)
                        && let Ok(keyspace) = self.keyspace(name)
                    {
                        database.transaction()?.first(&keyspace)?;
                    }
                }
                transact(&database, &mut |name| self.keyspace(name), how, steps)
            }
            Operation::Read {
                snapshot,
                keyspace,
                read,
            } => self.read(snapshot.as_deref(), keyspace, read),
            Operation::Next { range, count, back } => match self.ranges.get_mut(range) {
                Some(Opened::Sorted(records)) => {
                    let next = || match *back {
                        true => records.pop_back(),
                        false => records.pop_front(),
                    };
                    let taken = std::iter::from_fn(next).take(*count).collect();
                    Ok(Answer::Records(taken))
                }
                Some(Opened::Range(range)) => {
                    let mut range = ByTurns { range, taken: 0 };
                    let next = || match *back {
                        true => range.next_back(),
                        false => range.next(),
                    };
                    std::iter::from_fn(next)
                        .take(*count)
                        .collect::<Result<_>>()
                        .map(Answer::Records)
                }
                None => Ok(Answer::Broken(format!("there is no open range {range}"))),
            },
            Operation::Shut { range } => {
                self.ranges.remove(range);
                Ok(Answer::Done)
            }
            Operation::Snapshot { name } => self.take_snapshot(name),
            Operation::Release { name } => {
                self.snapshots.remove(name);
                Ok(Answer::Done)
            }
            Operation::Create { keyspace } => {
                let structure = self.configuration.structures.of(keyspace);
                let options = self.own_options(keyspace).structure(structure);
                let handle = self.database()?.create_keyspace(keyspace, options)?;
                self.handles.insert(keyspace.clone(), handle);
                Ok(Answer::Done)
            }
            Operation::Drop { keyspace } => self.drop_keyspace(keyspace),
            Operation::Clear { keyspace } => {
                self.keyspace(keyspace)?.clear().map(|()| Answer::Done)
            }
            Operation::Keyspaces => {
                let listed = self.database()?.keyspaces()?;
                for keyspace in &listed {
                    let options = keyspace.options.checkpoint_distance(None).key_hash(None);
                    let structures = self.configuration.structures;
                    let structure = match options.structure {
                        own if structures.allow(&keyspace.name, own) => own,
                        _ => structures.of(&keyspace.name).into(),
                    };
                    let own = self.own_options(&keyspace.name).structure(structure);
                    if options != own && options != KeyspaceOptions::new().structure(structure) {
                        let broken = format!("{}: {options:?}, not {own:?}", keyspace.name);
                        return Ok(Answer::Broken(broken));
                    }
                }
                let mut names: Vec<_> = listed.into_iter().map(|k| k.name).collect();
                names.sort();
                Ok(Answer::Names(names))
            }
            Operation::Checkpoint => {
                self.database()?.checkpoint()?;
                self.change_structures()
            }
            Operation::Flush => self.database()?.flush().map(|()| Answer::Done),
            Operation::Chi { distance } => {
                match tuned(self.database()?.set_checkpoint_distance(dial(*distance)))? {
                    Answer::Done => self.change_structures(),
                    answer => Ok(answer),
                }
            }
            Operation::Dial { keyspace, distance } => tuned(
                self.keyspace(keyspace)?
                    .set_checkpoint_distance(dial(*distance)),
            ),
            Operation::Memory { kib } => tuned(self.database()?.set_memory(kib << 10)),
            Operation::Reopen(how) => self.reopen(*how),
            Operation::Pass { ms } => self.pass(*ms),
        }
    }
}

impl Simulated {
    /// Changes the structures of keyspaces, where they change.
    fn change_structures(&mut self) -> Result<Answer> {
        self.changes += 1;
        let structures = self.configuration.structures;
        for info in self.database()?.keyspaces()? {
            let Some(next) = structures.after(&info.name, self.changes) else {
                continue;
            };
            let options = info.options.structure(next);
            let keyspace = self.database()?.open_keyspace(&info.name)?;
            match keyspace.set_options(options) {
                // On a full disk, or with a χ that the memory holds no more, the keyspace stays as
                // it is.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::OutOfMemory) => {}
                outcome => outcome?,
            }
        }
        Ok(Answer::Done)
    }
}

/// The options of a keyspace that is created under a name. Those of many names follow the database.
fn own_options(name: &str, deadlines: Deadlines) -> KeyspaceOptions {
    let hash = hash64(name.as_bytes());
    let options = match deadlines != Deadlines::None && (hash / 4).is_multiple_of(2) {
        true => KeyspaceOptions::new().ttl(LONG),
        false => KeyspaceOptions::new(),
    };
    match hash % 4 {
        0 => options.compression(Compression::Lz4).filter_bits(7),
        1 => options
            .compression(Compression::None)
            .filter_bits(0)
            .space_amplification(SpaceAmplification::Unbounded),
        2 => options
            .filter_bits(20)
            .space_amplification(SpaceAmplification::from(1.1)),
        _ => options,
    }
}

fn dial(distance: Option<u32>) -> CheckpointDistance {
    distance.map_or(CheckpointDistance::Auto, CheckpointDistance::Fixed)
}

/// A batch that is too large is refused and changes nothing. The oracle does not know the limit.
fn tuned(outcome: Result<()>) -> Result<Answer> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(Answer::Done),
        outcome => outcome.map(|()| Answer::Done),
    }
}

fn own(record: Result<(Slice, Slice)>) -> Result<Record> {
    record.map(|(key, value)| (key.to_vec(), value.to_vec()))
}

fn state_of(database: &Database) -> Result<State> {
    let mut all = Vec::new();
    for info in database.keyspaces()? {
        let keyspace = database.open_keyspace(&info.name)?;
        let records = match is_hashed(&keyspace)? {
            true => sorted(|| keyspace.unordered())?,
            false => keyspace.iter().map(own).collect::<Result<Vec<_>>>()?,
        };
        all.push((info.name, records));
    }
    Ok(State::of(all))
}

/// Counts changes on a disk: writes, sizes, allocations, holes, names (D11).
struct Changes {
    count: Arc<AtomicU64>,
    _watching: Watching,
}

impl Changes {
    fn of(disk: &SimDisk) -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let watching = disk.watch(Box::new(move |_, call| {
            if call.changes() && call.moment == Moment::Before {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        Changes {
            count,
            _watching: watching,
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A range whose records are sometimes borrowed and sometimes shared.
struct ByTurns<'a> {
    range: &'a mut Range,
    taken: usize,
}

impl ByTurns<'_> {
    fn borrows(&mut self) -> bool {
        self.taken += 1;
        self.taken % 15 < 10
    }
}

fn copied(record: Result<Option<(&[u8], &[u8])>>) -> Option<Result<Record>> {
    let copy = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
    record.map(|record| record.map(copy)).transpose()
}

impl Iterator for ByTurns<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.borrows() {
            true => copied(self.range.next_ref()),
            false => self.range.next().map(own),
        }
    }
}

impl DoubleEndedIterator for ByTurns<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self.borrows() {
            true => copied(self.range.next_back_ref()),
            false => self.range.next_back().map(own),
        }
    }
}

/// An open range of a subject.
enum Opened {
    Range(Box<Range>),
    /// The rest of a span of a hashed keyspace, in order.
    Sorted(VecDeque<Record>),
}

/// Whether a keyspace is hashed.
fn is_hashed(keyspace: &Keyspace) -> Result<bool> {
    Ok(keyspace.options()?.structure == StructureKind::Hashed)
}

/// All records of a hashed keyspace, in order. Reads them twice: from the front, resumed behind a
/// position, and from both ends.
fn sorted(unordered: impl Fn() -> Unordered) -> Result<Vec<Record>> {
    let mut resumed = Vec::new();
    let mut records = unordered();
    while let Some(record) = match resumed.len() % 3 {
        0 => records.next().map(own),
        _ => copied(records.next_ref()),
    } {
        resumed.push(record?);
        if resumed.len() % 40 == 7
            && let Some(position) = records.position()
        {
            let stored = Position::from_bytes(position.as_bytes());
            records = unordered().after(&stored);
        }
    }
    let (mut both, mut records) = (Vec::new(), unordered());
    while let Some(record) = match both.len() % 3 {
        0 => records.next_back(),
        _ => records.next(),
    } {
        both.push(own(record)?);
    }
    resumed.sort();
    both.sort();
    match resumed == both {
        true => Ok(both),
        false => Err(Error::internal("a resumed walk has other records")
            .with("resumed", resumed.len())
            .with("from both ends", both.len())),
    }
}

/// The source of a read.
struct Source {
    structures: Structures,
    snapshot: Option<Snapshot>,
    keyspace: Keyspace,
}

impl Source {
    /// Whether the subject sorts the records, since the store has no ranges of them.
    fn is_sorted_here(&self) -> bool {
        let structures = self.structures;
        structures.keep_order() && structures.of(self.keyspace.name()) == StructureId::HASHED
    }

    /// The records of a span of a hashed keyspace.
    fn sorted(&self, span: &Span) -> Result<Vec<Record>> {
        let records = sorted(|| match &self.snapshot {
            Some(snapshot) => snapshot.unordered(&self.keyspace),
            None => self.keyspace.unordered(),
        })?;
        let map = State::of([(String::new(), records)]);
        Ok(map.select("", span))
    }

    fn count(&self) -> Result<u64> {
        match &self.snapshot {
            Some(snapshot) => snapshot.approximate_count(&self.keyspace),
            None => self.keyspace.approximate_count(),
        }
    }

    fn span(&self, span: &Span) -> Range {
        match (span, &self.snapshot) {
            (Span::Between(lower, upper), Some(snapshot)) => {
                snapshot.range(&self.keyspace, (bytes_of(lower), bytes_of(upper)))
            }
            (Span::Between(lower, upper), None) => {
                self.keyspace.range((bytes_of(lower), bytes_of(upper)))
            }
            (Span::Prefix(prefix), Some(snapshot)) => {
                snapshot.prefix(&self.keyspace, prefix.bytes())
            }
            (Span::Prefix(prefix), None) => self.keyspace.prefix(prefix.bytes()),
        }
    }

    fn read(&self, read: &Read) -> Result<Answer> {
        let keyspace = &self.keyspace;
        let is_sorted_here = self.is_sorted_here();
        let value = |value: Option<Slice>| value.map(|v| v.to_vec());
        let one = |record: Option<(Slice, Slice)>| {
            Answer::Records(
                record
                    .map(|(k, v)| (k.to_vec(), v.to_vec()))
                    .into_iter()
                    .collect(),
            )
        };
        Ok(match (read, &self.snapshot) {
            (Read::Get(key), None) => Answer::Value(value(keyspace.get(key.bytes())?)),
            (Read::Get(key), Some(s)) => Answer::Value(value(s.get(keyspace, key.bytes())?)),
            (Read::Contains(key), None) => Answer::Flag(keyspace.contains(key.bytes())?),
            (Read::Contains(key), Some(s)) => Answer::Flag(s.contains(keyspace, key.bytes())?),
            (Read::MultiGet(keys), source) => {
                let keys: Vec<Vec<u8>> = keys.iter().map(Pattern::bytes).collect();
                let values = match source {
                    None => keyspace.multi_get(&keys)?,
                    Some(s) => s.multi_get(keyspace, &keys)?,
                };
                Answer::Values(values.into_iter().map(value).collect())
            }
            (Read::First | Read::Last, _) if is_sorted_here => {
                let mut records = self.sorted(&Span::Prefix(Pattern::literal(b"")))?;
                if *read == Read::Last {
                    records.reverse();
                }
                records.truncate(1);
                Answer::Records(records)
            }
            (Read::Range(span, walk, limit), _) if is_sorted_here => {
                let mut records = self.sorted(span)?.into_iter();
                Answer::Records(walked(&mut records, *walk, limit.unwrap_or(usize::MAX)))
            }
            (Read::First, None) => one(keyspace.first()?),
            (Read::First, Some(s)) => one(s.first(keyspace)?),
            (Read::Last, None) => one(keyspace.last()?),
            (Read::Last, Some(s)) => one(s.last(keyspace)?),
            (Read::Count, _) => Answer::About(self.count()?),
            (Read::Range(span, walk, limit), _) => {
                let range = &mut self.span(span);
                let mut range = ByTurns { range, taken: 0 };
                let records = walked(&mut range, *walk, limit.unwrap_or(usize::MAX));
                Answer::Records(records.into_iter().collect::<Result<_>>()?)
            }
            (Read::Open(..), _) => Answer::Done,
        })
    }
}

/// Does a conditional write. A second thread is missing, so a read and the swap of what it read
/// agree, unless a merge ended the life of the version between them.
fn conditional(keyspace: &Keyspace, how: &Conditional) -> Result<Answer> {
    let value = |value: Option<Slice>| Answer::Value(value.map(|value| value.to_vec()));
    Ok(match how {
        Conditional::Insert(key, new) => {
            value(keyspace.insert_if_absent(key.bytes(), new.bytes())?)
        }
        Conditional::Swap { key, expected, new } => {
            let bytes = |value: &Option<Pattern>| value.as_ref().map(Pattern::bytes);
            let (expected, new) = (bytes(expected), bytes(new));
            let swapped =
                keyspace.compare_and_swap(key.bytes(), expected.as_deref(), new.as_deref())?;
            Answer::Flag(swapped.is_ok())
        }
        Conditional::Replace(key, new) => {
            let (key, new) = (key.bytes(), new.bytes());
            let (there, version) = keyspace.get_versioned(&key)?;
            if hash64(&new).is_multiple_of(2)
                && keyspace
                    .compare_version_and_swap(&key, &version, Some(&new))?
                    .is_ok()
            {
                return Ok(value(there));
            }
            match keyspace.compare_and_swap(&key, there.as_deref(), Some(&new))? {
                Ok(()) => value(there),
                Err(conflict) => Answer::Broken(format!("nobody else writes, and {conflict}")),
            }
        }
        Conditional::Update(key, front) => {
            let front = front.bytes();
            let new = keyspace.update(key.bytes(), |value| Some(updated(value, &front)))?;
            Answer::Value(new)
        }
        Conditional::Take(key) => value(keyspace.take(key.bytes())?),
        Conditional::Pop { last } => {
            let record = match last {
                true => keyspace.pop_last()?,
                false => keyspace.pop_first()?,
            };
            let bytes = |(key, value): (Slice, Slice)| (key.to_vec(), value.to_vec());
            Answer::Records(record.map(bytes).into_iter().collect())
        }
    })
}

impl Subject for Simulated {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn record_bytes_max(&self) -> usize {
        self.configuration.record_bytes_max()
    }

    fn keeps_order(&self) -> bool {
        self.configuration.structures.keep_order()
    }

    fn structures(&self) -> Structures {
        self.configuration.structures
    }

    fn apply(&mut self, operation: &Operation) -> Answer {
        self.act(operation)
            .unwrap_or_else(|error| Answer::Failed(error.kind(), error.to_string()))
    }
}

/// The bytes of a bound.
fn bytes_of(bound: &Bound<Pattern>) -> Bound<Vec<u8>> {
    bound.as_ref().map(Pattern::bytes)
}
