//! A reader process beside a writer process that overwrites, deletes, checkpoints, and so frees and
//! reuses space. Each view of the reader is that after one batch of the writer, in all keyspaces.

use std::env;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use terrapin::{Database, ErrorKind, Keyspace, Options, Result};
use terrapin_base::Env;

use crate::Find;
use crate::kernel::child::pause;
use crate::kernel::judge::sound;

/// The first argument of the writer; the directory follows.
const WRITER: &str = "--kernel-writer-beside";
/// Seconds that a reader looks, if this is set; else 3 s.
const SECONDS: &str = "PROVE_READER_SECONDS";
const KEYSPACES: [&str; 2] = ["ordered", "separated"];
/// The batch `n` writes the records of the slot `n % SLOTS`.
const SLOTS: u64 = 64;
const RECORDS: u64 = 24;

fn options() -> Options {
    Options::new()
        .memory(4 << 20)
        .group_bytes(16 << 10)
        .ring_bytes(256 << 10)
        .log_segment_bytes(256 << 10)
        .log_bytes_max(2 << 20)
}

fn key(slot: u64, record: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&slot.to_be_bytes());
    key[8..].copy_from_slice(&record.to_be_bytes());
    key
}

/// The value of a batch's record: the batch, then bytes that follow from both.
fn value(batch: u64, record: u64) -> Vec<u8> {
    let bytes = 40 + (batch * 31 + record * 7) % 900;
    let seed = batch.wrapping_mul(0x9e37_79b9).wrapping_add(record);
    let rest = (0..bytes).map(|at| (seed.wrapping_add(at) >> (at % 8)) as u8);
    batch.to_le_bytes().into_iter().chain(rest).collect()
}

/// Whether a batch deletes its slot's last records.
fn deletes(batch: u64) -> bool {
    (batch / SLOTS).is_multiple_of(3)
}

/// Writes until it is killed, if the arguments ask for it.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, role, directory] = arguments else {
        return None;
    };
    (role == WRITER).then(|| match write(Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn write(directory: &Path) -> Result<()> {
    let database = options().open(directory)?;
    let keyspaces = keyspaces(&database)?;
    for number in 0.. {
        let mut batch = database.batch();
        let slot = number % SLOTS;
        for keyspace in &keyspaces {
            for record in 0..RECORDS {
                batch.put(keyspace, key(slot, record), value(number, record));
            }
            if deletes(number) {
                batch.delete_range(keyspace, key(slot, RECORDS / 2)..key(slot + 1, 0));
            }
        }
        database.write(&batch)?;
    }
    Ok(())
}

fn keyspaces(database: &Database) -> Result<Vec<Keyspace>> {
    let names = KEYSPACES.iter();
    names.map(|name| database.keyspace(name)).collect()
}

struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A writer, and a reader that looks at one view after the other.
pub fn views(scratch: &Path) -> std::result::Result<u64, Find> {
    let directory = scratch.join("database");
    let database = options().open(&directory)?;
    database.create_keyspace(KEYSPACES[0], terrapin::KeyspaceOptions::new())?;
    let separated = terrapin::KeyspaceOptions::new().separate_from(512);
    database.create_keyspace(KEYSPACES[1], separated)?;
    database.close()?;
    let mut command = Command::new(env::current_exe()?);
    let command = command.arg(WRITER).arg(&directory).stdin(Stdio::null());
    let writer = Writer(command.stderr(Stdio::piped()).spawn()?);
    let seconds: Option<u64> = env::var(SECONDS).ok().and_then(|s| s.parse().ok());
    let clock = Env::threads();
    let end = clock.now_ns() + seconds.unwrap_or(3) * 1_000_000_000;
    let (mut reader, mut views, mut newest) = (None, 0, 0);
    while clock.now_ns() < end || views < 20 {
        let opened = match reader.take() {
            // A reader holds all of the log that no checkpoint covers in its memory.
            None => options().memory(32 << 20).open_reader(&directory),
            Some(reader) => Database::refresh(&reader),
        };
        let database = match opened {
            Ok(database) => database,
            // The writer checkpoints faster than the reader opens.
            Err(error) if error.kind() == ErrorKind::Overtaken => continue,
            Err(error) => return Err(Find(format!("a reader after {views} views: {error}"))),
        };
        match look(&database) {
            Ok(Ok(batch)) if batch >= newest => newest = batch,
            Ok(Ok(batch)) => {
                return Err(Find(format!("batch {batch} is seen after {newest}")));
            }
            Ok(Err(what)) => return Err(Find(format!("view {views}: {what}"))),
            Err(error) if error.kind() == ErrorKind::Overtaken => continue,
            Err(error) => return Err(Find(format!("view {views}: {error}"))),
        }
        views += 1;
        reader = Some(database);
        pause(1_000_000);
    }
    drop(reader);
    drop(writer);
    sound(&directory, "after the writer's death", false)?;
    match newest {
        0..SLOTS => Err(Find(format!("the writer came to batch {newest} only"))),
        _ => Ok(views),
    }
}

/// The newest batch of a view, 0 if there is none. The inner error says how the view is mixed.
fn look(database: &Database) -> Result<std::result::Result<u64, String>> {
    let keyspaces = keyspaces(database)?;
    // Before all slots are there, the newest batch is the number of slots, less one.
    let mut newest = None;
    let mut firsts = Vec::new();
    for slot in 0..SLOTS {
        let first = keyspaces[0].get(key(slot, 0))?;
        let batch = first.map(|value| number_of(&value));
        newest = newest.max(batch);
        firsts.push(batch);
    }
    let Some(newest) = newest else {
        return Ok(Ok(0));
    };
    for (slot, batch) in (0..SLOTS).zip(firsts) {
        let behind = (newest % SLOTS + SLOTS - slot) % SLOTS;
        let wanted = newest.checked_sub(behind);
        if batch != wanted {
            let what = format!("slot {slot} has batch {batch:?}, not {wanted:?}, of {newest}");
            return Ok(Err(what));
        }
        let Some(batch) = batch else { continue };
        let records = match deletes(batch) {
            true => RECORDS / 2,
            false => RECORDS,
        };
        for (keyspace, name) in keyspaces.iter().zip(KEYSPACES) {
            let mut found = 0;
            for record in keyspace.range(key(slot, 0)..key(slot + 1, 0)) {
                let (own, bytes) = record?;
                if own[..] != key(slot, found) || bytes[..] != value(batch, found) {
                    let of = number_of(&bytes);
                    return Ok(Err(format!(
                        "keyspace {name}, slot {slot}, record {found}: of batch {of}, not {batch}"
                    )));
                }
                found += 1;
            }
            if found != records {
                return Ok(Err(format!(
                    "keyspace {name}, slot {slot}: {found} records, not {records}, of batch {batch}"
                )));
            }
        }
    }
    Ok(Ok(newest))
}

fn number_of(value: &[u8]) -> u64 {
    value
        .first_chunk::<8>()
        .map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}
