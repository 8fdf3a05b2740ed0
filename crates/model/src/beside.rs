//! Random runs of readers beside a writer, on one simulated disk.
//!
//! The writer goes on before each call of a reader: it writes, checkpoints, frees and reuses space
//! while the reader opens, copies the log, and reads. Record number s has the key s mod 150 and
//! says s in its value. So a view shows how far it goes, and every other record of it must be that
//! of the same moment.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use terrapin::verify::{VerifyOptions, verify_on};
use terrapin::{CheckpointDistance, Database, Durability, ErrorKind, Options, Result};
use terrapin_base::sync::Mutex;
use terrapin_base::{Env, Error};
use terrapin_disk::{Disk, DiskThrough, File, FileThrough, OpenOptions, SimDisk};

use crate::random::Random;

const KEYS: u64 = 150;
const READERS_FILE: &str = "readers";

/// What a run did, to see that it tried what it should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BesideRun {
    /// Views of readers that were compared.
    pub views: u64,
    /// Views that the writer overtook.
    pub overtaken: u64,
    /// Verifications beside the writer.
    pub verified: u64,
}

fn options() -> Options {
    Options::new()
        .memory(1 << 20)
        .ring_bytes(64 << 10)
        .log_segment_bytes(64 << 10)
        .log_bytes_max(512 << 10)
        .group_bytes(1 << 10)
        .block_bytes(512)
        .fanout(4)
        .checkpoint_distance(CheckpointDistance::Fixed(4))
        .background_threads(1)
}

fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(20 + (number * 37 % 180) as usize, number as u8);
    value
}

/// The writer, and what it has acknowledged.
struct Writer {
    database: Option<Database>,
    random: Random,
    written: u64,
    /// How often it goes on at a call: once in this number.
    rarity: u64,
}

impl Writer {
    fn put(&mut self) -> Result<()> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let number = self.written;
        let durability = match self.random.below(8) {
            0 => Durability::Sync,
            _ => Durability::Process,
        };
        let key = (number % KEYS).to_be_bytes();
        let keyspace = database.default_keyspace();
        keyspace.put_with(key, value(number), durability)?;
        self.written += 1;
        Ok(())
    }

    fn go_on(&mut self) -> Result<()> {
        let Some(database) = self.database.clone() else {
            return Ok(());
        };
        if self.random.below(self.rarity) > 0 {
            return Ok(());
        }
        match self.random.below(6) {
            0 => database.checkpoint(),
            1 => database.flush(),
            _ => (0..self.random.below(30)).try_for_each(|_| self.put()),
        }
    }
}

/// A disk whose calls first let the writer go on.
struct Meddled {
    disk: Arc<dyn Disk>,
    writer: Arc<Mutex<Writer>>,
}

impl DiskThrough for Meddled {
    fn behind(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, name: &str, options: OpenOptions) -> Result<Arc<dyn File>> {
        self.writer.lock().go_on()?;
        let file = self.disk.open(name, options)?;
        Ok(Arc::new(MeddledFile {
            file,
            writer: self.writer.clone(),
        }))
    }
}

struct MeddledFile {
    file: Arc<dyn File>,
    writer: Arc<Mutex<Writer>>,
}

impl FileThrough for MeddledFile {
    const FLIES: bool = false;

    fn behind(&self) -> &dyn File {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.writer.lock().go_on()?;
        self.file.read_at(buffer, offset)
    }
}

fn wrong(what: String) -> Error {
    Error::internal(what)
}

/// Reads a whole view. Returns the number of its newest record plus one. The view must be that of
/// one moment.
fn view(database: &Database) -> Result<u64> {
    let keyspace = database.default_keyspace();
    let mut found = vec![None; KEYS as usize];
    for record in &keyspace {
        let (key, value) = record?;
        let at = u64::from_be_bytes(key[..].try_into().unwrap_or([0xff; 8]));
        let number = u64::from_le_bytes(value[..8].try_into().unwrap_or_default());
        let place = found.get_mut(at as usize);
        let place = place.ok_or_else(|| wrong(format!("the key {key:?}")))?;
        if value[..] != self::value(number)[..] || number % KEYS != at {
            return Err(wrong(format!("the record {number} at key {at}: {value:?}")));
        }
        *place = Some(number);
    }
    let end = found.iter().flatten().max().map_or(0, |newest| newest + 1);
    for at in 0..KEYS {
        let newest = (0..end).rev().take(KEYS as usize).find(|n| n % KEYS == at);
        if found[at as usize] != newest {
            let got = found[at as usize];
            return Err(wrong(format!(
                "a mixed view: key {at} has {got:?} instead of {newest:?} in a view up to {end}"
            )));
        }
        let one = keyspace.get(at.to_be_bytes())?;
        if one.as_deref() != newest.map(value).as_deref() {
            return Err(wrong(format!("a get of key {at} differs from the range")));
        }
    }
    Ok(end)
}

struct Reader {
    database: Database,
    /// What was acknowledged before it opened.
    at_least: u64,
    /// Writers that opened since.
    writers: u64,
    seen: Cell<Option<u64>>,
}

/// Runs a writer with readers beside it. An error says what a reader saw that it must not.
pub fn beside_run(seed: u64, steps: u64) -> Result<BesideRun, String> {
    run(seed, steps).map_err(|error| format!("seed {seed}: {error}"))
}

fn run(seed: u64, steps: u64) -> Result<BesideRun> {
    let (env, sim) = Env::simulated(seed);
    let disk = SimDisk::new(seed);
    let mut random = Random::new(seed);
    let rarity = [2, 8, 60][random.below(3) as usize];
    let age =
        [Duration::from_nanos(1), Duration::from_secs(3600)][usize::from(!seed.is_multiple_of(4))];
    let options = options().reader_age_max(age);
    let open = || options.open_on(env.clone(), disk.handle());
    let writer = Arc::new(Mutex::new(Writer {
        database: Some(open()?),
        random: Random::new(seed ^ 1),
        written: 0,
        rarity,
    }));
    let meddled: Arc<dyn Disk> = Arc::new(Meddled {
        disk: disk.handle(),
        writer: writer.clone(),
    });
    let mut ran = BesideRun::default();
    let mut readers: Vec<Rc<RefCell<Reader>>> = Vec::new();
    let mut writers = 0;
    for _ in 0..steps {
        match random.below(12) {
            0..=3 => {
                let mut writer = writer.lock();
                (0..random.below(120)).try_for_each(|_| writer.put())?;
            }
            4 => {
                let database = writer.lock().database.clone();
                database.map_or(Ok(()), |database| database.checkpoint())?;
            }
            5 | 6 if readers.len() < 5 => {
                let at_least = writer.lock().written;
                // A writer that never rests may overtake each open.
                let opened = options.open_reader_on(env.clone(), meddled.clone());
                if let Some(database) = unless_overtaken(opened, &mut ran)? {
                    readers.push(Rc::new(RefCell::new(Reader {
                        database,
                        at_least,
                        writers,
                        seen: Cell::new(None),
                    })));
                }
            }
            7..=9 if !readers.is_empty() => {
                let at = random.below(readers.len() as u64) as usize;
                let reader = readers[at].clone();
                let is_old = age < Duration::from_secs(1);
                let reader_ref = reader.borrow();
                let may_be_overtaken = is_old || reader_ref.writers != writers;
                match view(&reader_ref.database) {
                    Ok(end) => {
                        ran.views += 1;
                        let before = reader_ref.seen.replace(Some(end));
                        if end < reader_ref.at_least || before.is_some_and(|b| b != end) {
                            let least = reader_ref.at_least;
                            return Err(wrong(format!(
                                "a view up to {end}, before {before:?}, opened after {least}"
                            )));
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Overtaken && may_be_overtaken => {
                        ran.overtaken += 1;
                    }
                    Err(error) => return Err(error),
                }
                drop(reader_ref);
                if random.below(2) == 0 {
                    readers.swap_remove(at);
                } else if random.below(2) == 0 {
                    let at_least = writer.lock().written;
                    let refreshed = reader.borrow().database.refresh();
                    if let Some(database) = unless_overtaken(refreshed, &mut ran)? {
                        *reader.borrow_mut() = Reader {
                            database,
                            at_least,
                            writers,
                            seen: Cell::new(None),
                        };
                    }
                }
            }
            10 => {
                let report = verify_on(env.clone(), meddled.clone(), &VerifyOptions::new());
                if let Some(report) = unless_overtaken(report, &mut ran)? {
                    ran.verified += 1;
                    if !report.is_sound() {
                        return Err(wrong(format!("verify found {:?}", report.findings)));
                    }
                }
            }
            11 if random.below(4) == 0 => {
                let database = writer.lock().database.take();
                if random.below(2) == 0
                    && let Some(database) = &database
                {
                    database.close()?;
                }
                drop(database);
                if random.below(2) == 0 {
                    let at_least = writer.lock().written;
                    let database = options.open_reader_on(env.clone(), meddled.clone())?;
                    readers.push(Rc::new(RefCell::new(Reader {
                        database,
                        at_least,
                        writers: writers + 1,
                        seen: Cell::new(None),
                    })));
                }
                writer.lock().database = Some(open()?);
                writers += 1;
            }
            _ => {}
        }
    }
    // A process that dies leaves words without locks.
    sim.kill();
    disk.crash_process();
    readers.clear();
    drop((writer.lock().database.take(), meddled));
    sim.kill();
    let writer_again = open()?;
    let table = disk.handle().open_readers(READERS_FILE, false)?;
    if !table.taken().is_empty() {
        return Err(wrong("a slot of a dead process is taken".to_owned()));
    }
    writer_again.close()?;
    Ok(ran)
}

/// The outcome, or none if the writer was faster for 5 s.
fn unless_overtaken<T>(outcome: Result<T>, ran: &mut BesideRun) -> Result<Option<T>> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::Overtaken => {
            ran.overtaken += 1;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
