//! The child process: it opens a directory, does the steps of its threads, and reports each after
//! it returned, until it is killed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

use terrapin::{CheckpointDistance, Database, Durability, Error, ErrorKind, Keyspace, Result};
use terrapin_base::{Condition, Env};
use terrapin_model::Random;

use crate::kernel::plan::{Change, GUEST, KEYSPACES, Step, Story, THREADS};
use crate::kernel::report::Record;
use crate::kernel::system;

/// The first argument of a child that writes; directory, seed and life follow.
pub const WRITER: &str = "--kernel-writer";

/// Does the work of a child process of this layer, if the arguments ask for it.
#[must_use]
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    match arguments {
        [_, role, directory, seed, life] if role == WRITER => {
            let (Ok(seed), Ok(life)) = (seed.parse(), life.parse()) else {
                return Some(ExitCode::from(2));
            };
            Some(write(Path::new(directory), &Story::new(seed), life))
        }
        _ => system::child(arguments),
    }
}

/// Waits.
pub fn pause(ns: u64) {
    let env = Env::threads();
    let delay = Condition::delay_until(env.now_ns().saturating_add(ns));
    // A delay of real threads cannot fail.
    let _ = env.wait(&delay);
}

fn write(directory: &Path, story: &Story, life: u64) -> ExitCode {
    let opened = story
        .configuration(life)
        .options()
        .open(directory)
        .and_then(|database| Handles::new(&database));
    let handles = match opened {
        Ok(handles) => handles,
        Err(error) => {
            failed("open", &error);
            return ExitCode::FAILURE;
        }
    };
    report(Record::Opened);
    let clock = AtomicU64::new(1);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (handles, clock, stopped) = (&handles, &clock, &stopped);
            scope.spawn(move || {
                let work = || handles.work(story, life, thread, clock, stopped);
                if let Err(error) = work() {
                    stopped.store(true, Ordering::Relaxed);
                    failed(&format!("thread {thread}"), &error);
                }
            });
        }
        let read = || handles.read(life, &stopped);
        if let Err(error) = read() {
            stopped.store(true, Ordering::Relaxed);
            failed("reads", &error);
        }
    });
    ExitCode::FAILURE
}

fn failed(what: &str, error: &Error) {
    eprintln!("{what}: {error}");
    report(Record::Failed);
}

/// The parent is gone, so this process may end.
fn report(record: Record) {
    let mut out = io::stdout().lock();
    if out
        .write_all(&record.encode())
        .and_then(|()| out.flush())
        .is_err()
    {
        std::process::exit(1);
    }
}

/// The database and the keyspaces of the steps.
pub struct Handles {
    database: Database,
    keyspaces: BTreeMap<&'static str, Keyspace>,
}

impl Handles {
    /// Creates missing keyspaces.
    pub fn new(database: &Database) -> Result<Self> {
        let mut keyspaces = BTreeMap::new();
        for name in KEYSPACES {
            keyspaces.insert(name, database.keyspace(name)?);
        }
        Ok(Handles {
            database: database.clone(),
            keyspaces,
        })
    }

    fn work(
        &self,
        story: &Story,
        life: u64,
        thread: usize,
        clock: &AtomicU64,
        stopped: &AtomicBool,
    ) -> Result<()> {
        let mut index = 0;
        while !stopped.load(Ordering::Relaxed) {
            let step = story.step(life, thread, index);
            let began = clock.fetch_add(1, Ordering::SeqCst);
            self.step(&step)?;
            let ended = clock.fetch_add(1, Ordering::SeqCst);
            report(Record::Done {
                thread: thread as u8,
                index,
                began,
                ended,
            });
            index += 1;
            if thread == 0 {
                pause(Random::new(u64::from(index)).scaled(20_000_000));
            }
        }
        Ok(())
    }

    fn keyspace(&self, name: &str) -> Result<&Keyspace> {
        self.keyspaces
            .get(name)
            .ok_or_else(|| Error::internal("a step in a keyspace that does not exist"))
    }

    /// Does a step.
    pub fn step(&self, step: &Step) -> Result<()> {
        match step {
            Step::Write(changes, sync) => {
                let durability = if *sync {
                    Durability::Sync
                } else {
                    Durability::Process
                };
                self.write(changes, durability)
            }
            Step::WriteGuest(change) => match self.database.open_keyspace(GUEST) {
                Ok(guest) => one(&guest, change, Durability::Process),
                Err(error) => absent_is_fine(error),
            },
            Step::Checkpoint => self.database.checkpoint(),
            Step::Flush => self.database.flush(),
            Step::Distance(name, chi) => self
                .keyspace(name)?
                .set_checkpoint_distance(CheckpointDistance::Fixed(*chi)),
            Step::CreateGuest => self.database.keyspace(GUEST).map(drop),
            Step::ClearGuest => match self.database.open_keyspace(GUEST) {
                Ok(guest) => guest.clear(),
                Err(error) => absent_is_fine(error),
            },
            Step::DropGuest => self.database.drop_keyspace(GUEST).or_else(absent_is_fine),
        }
    }

    fn write(&self, changes: &[Change], durability: Durability) -> Result<()> {
        if let [change] = changes {
            return one(self.keyspace(change.keyspace)?, change, durability);
        }
        let mut batch = self.database.batch();
        for change in changes {
            let keyspace = self.keyspace(change.keyspace)?;
            match &change.value {
                Some(value) => batch.put(keyspace, &change.key, value),
                None => batch.delete(keyspace, &change.key),
            }
        }
        self.database.write_with(&batch, durability)
    }

    /// Reads use views and caches meanwhile.
    fn read(&self, life: u64, stopped: &AtomicBool) -> Result<()> {
        let mut random = Random::new(life);
        while !stopped.load(Ordering::Relaxed) {
            let keyspace = self.keyspace(random.pick::<&str>(&KEYSPACES))?;
            let from = (random.bits() as u32).to_be_bytes();
            for record in keyspace
                .range(&from[..]..)
                .take(random.scaled(500) as usize)
            {
                record?;
            }
            keyspace.get(from)?;
            pause(random.scaled(5_000_000));
        }
        Ok(())
    }
}

fn one(keyspace: &Keyspace, change: &Change, durability: Durability) -> Result<()> {
    match &change.value {
        Some(value) => keyspace.put_with(&change.key, value, durability),
        None => keyspace.delete_with(&change.key, durability),
    }
}

fn absent_is_fine(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::KeyspaceNotFound {
        Ok(())
    } else {
        Err(error)
    }
}
