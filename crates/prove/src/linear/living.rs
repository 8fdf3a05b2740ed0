//! Histories of clients in this process. Between two of them the store may be closed or dropped and
//! opened with other options. On a simulated disk the process or the power may fail during one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use terrapin::{Database, Durability};
use terrapin_base::Env;
use terrapin_disk::SimDisk;
use terrapin_disk::sim::CrashMode;
use terrapin_model::{Configuration, Random};

use super::clients::{Choice, Client, ClientKeyspaces, KEYS, Recorder, pause};
use super::history::{History, Kind, Operation};
use super::judge::judge;
use crate::Find;

/// Histories of a unit.
const ROUNDS: u64 = 6;

/// How long a write waits for a simulated disk.
const STALL_LIMIT: Duration = Duration::from_secs(3);
/// The client that reads all keys at the end.
const LAST: usize = 99;

/// The store's place.
pub(super) enum StoreKind {
    /// In a directory of the real file system.
    Directory,
    /// On a simulated disk, with real threads.
    Simulated,
}

/// The order of events, and whether the process is dead to its clients.
#[derive(Default)]
struct Clock {
    time: AtomicU64,
    dead: AtomicBool,
}

impl Clock {
    fn next(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }
}

/// Records one client's operations in memory.
struct Memory<'a> {
    clock: &'a Clock,
    client: usize,
    operations: Vec<Operation>,
    under_way: Option<Operation>,
}

impl<'a> Memory<'a> {
    fn new(clock: &'a Clock, client: usize) -> Self {
        Memory {
            clock,
            client,
            operations: Vec::new(),
            under_way: None,
        }
    }

    fn begin(&mut self, kind: Kind, values: Vec<(usize, u64)>) {
        self.under_way = Some(Operation {
            client: self.client,
            call: self.clock.next(),
            answer: 0,
            kind,
            values,
            saw: Vec::new(),
        });
    }

    fn end(&mut self, change: impl FnOnce(&mut Operation)) -> Result<(), Find> {
        if self.clock.dead.load(Ordering::SeqCst) {
            return Err(Find("an answer of a dead process".to_owned()));
        }
        if let Some(mut operation) = self.under_way.take() {
            change(&mut operation);
            operation.answer = self.clock.next();
            self.operations.push(operation);
        }
        Ok(())
    }

    /// The operations; a write without an answer stays open until `death`.
    fn ended(mut self, death: u64) -> Vec<Operation> {
        if let Some(mut operation) = self.under_way.take()
            && let Some(kind) = operation.kind.interrupted()
        {
            operation.kind = kind;
            operation.answer = death;
            self.operations.push(operation);
        }
        self.operations
    }
}

impl Recorder for Memory<'_> {
    fn writes(&mut self, values: &[(usize, u64)]) {
        self.begin(Kind::Write, values.to_vec());
    }

    fn reads(&mut self, keys: &[usize]) {
        self.begin(Kind::Read, keys.iter().map(|&key| (key, 0)).collect());
    }

    fn answered(&mut self, seen: &[u64]) -> Result<(), Find> {
        self.end(|operation| {
            for (slot, value) in operation.values.iter_mut().zip(seen) {
                slot.1 = *value;
            }
        })
    }

    fn changes(&mut self, saw: &[(usize, u64)], values: &[(usize, u64)]) {
        self.begin(Kind::Write, values.to_vec());
        if let Some(operation) = &mut self.under_way {
            operation.saw = saw.to_vec();
        }
    }

    fn pops(&mut self, keys: &[usize]) {
        self.begin(Kind::Pop, keys.iter().map(|&key| (key, 0)).collect());
    }

    fn popped(&mut self, saw: &[(usize, u64)], key: usize) -> Result<(), Find> {
        self.end(|operation| {
            operation.kind = Kind::Write;
            operation.saw = saw.to_vec();
            operation.values = vec![(key, 0)];
        })
    }

    fn changed(&mut self, saw: &[(usize, u64)]) -> Result<(), Find> {
        self.end(|operation| operation.saw = saw.to_vec())
    }

    fn unchanged(&mut self, seen: &[(usize, u64)]) -> Result<(), Find> {
        self.end(|operation| {
            operation.kind = Kind::Read;
            operation.saw.clear();
            operation.values = seen.to_vec();
        })
    }
}

/// One store through its lives.
struct Run<'a> {
    random: Random,
    env: Env,
    configuration: Configuration,
    current: Configuration,
    scratch: &'a Path,
    disk: Option<SimDisk>,
    /// Whether some writes are not in the log.
    unlogged: bool,
    /// Whether one of the keyspaces is hashed.
    hashed: bool,
    database: Option<Database>,
}

pub(super) fn unit(unit: u64, scratch: &Path, place: StoreKind) -> Result<u64, Find> {
    let mut random = Random::new(unit);
    let configuration = Configuration::random(&mut random).without_refusals();
    let mut run = Run {
        env: Env::threads(),
        current: configuration.clone(),
        configuration,
        scratch,
        disk: matches!(place, StoreKind::Simulated).then(|| SimDisk::new(random.bits())),
        unlogged: random.one_in(2),
        hashed: random.one_in(2),
        random,
        database: None,
    };
    run.rounds()
        .map_err(|find| Find(format!("{find}\n  {}", run.current)))
}

impl Run<'_> {
    fn open(&mut self) -> Result<(), Find> {
        // Close the open database first.
        self.database = None;
        let options = self.current.options();
        self.database = Some(match &self.disk {
            // Merges fail again and again on the disk of a dead process. Its writers wait this long
            // for them.
            Some(disk) => options
                .stall_limit(STALL_LIMIT)
                .open_on(Env::threads(), disk.handle())?,
            None => options.open(self.scratch.join("db"))?,
        });
        Ok(())
    }

    fn keys(&self) -> Result<ClientKeyspaces, Find> {
        match &self.database {
            Some(database) => ClientKeyspaces::new(database, self.hashed),
            None => Err(Find("the database is not open".to_owned())),
        }
    }

    fn rounds(&mut self) -> Result<u64, Find> {
        self.open()?;
        let mut start = vec![0; KEYS];
        for round in 0..ROUNDS {
            start = self.round(round, start)?;
        }
        Ok(ROUNDS)
    }

    /// Runs one history and returns the values at its end.
    fn round(&mut self, round: u64, start: Vec<u64>) -> Result<Vec<u64>, Find> {
        let clock = Clock::default();
        let mut history = History::new(start);
        let crash = self.disk.is_some() && self.random.one_in(2);
        let power = (crash && self.random.one_in(2)).then(|| *self.random.pick(&CrashMode::ALL));
        let choice = match power {
            Some(_) => Choice::SyncedWrites,
            None if self.unlogged && !crash => Choice::All,
            None => Choice::Logged,
        };
        if let (true, Some(database)) = (crash, &self.database) {
            // Everything written so far should survive. If all of it is logged, one synced write
            // ensures that for everything before it.
            match self.unlogged {
                true => database.flush()?,
                false => database
                    .default_keyspace()
                    .put_with("sync", "", Durability::Sync)?,
            }
        }
        let done = self.clients(&clock, round, choice, crash)?;
        let death = clock.next();
        clock.dead.store(false, Ordering::SeqCst);
        let ended = done.into_iter().flat_map(|client| client.ended(death));
        history.operations.extend(ended);
        if crash {
            self.database = None;
            if let (Some(disk), Some(mode)) = (&self.disk, power) {
                disk.crash_power(mode);
            }
            self.open()?;
        } else if self.random.one_in(2) {
            self.reopen()?;
        }
        let mut last = Memory::new(&clock, LAST);
        let values = self.keys()?.read_all(&mut last)?;
        history.operations.extend(last.ended(0));
        judge(&history, self.scratch)?;
        Ok(values)
    }

    /// Closes or drops the database and opens it with other options.
    fn reopen(&mut self) -> Result<(), Find> {
        if let Some(database) = self.database.take() {
            if self.random.one_in(2) {
                database.close()?;
            } else if self.unlogged {
                database.flush()?;
            }
        }
        self.current = self.configuration.varied(self.random.bits());
        self.open()
    }

    /// Lets clients work, and with `crash` die meanwhile.
    fn clients<'c>(
        &mut self,
        clock: &'c Clock,
        round: u64,
        choice: Choice,
        crash: bool,
    ) -> Result<Vec<Memory<'c>>, Find> {
        let keys = self.keys()?;
        let (env, random) = (&self.env, &mut self.random);
        let operations = 30 + random.below(90);
        let clients: Vec<Client> = (0..2 + random.below(4))
            .map(|client| Client {
                random: random.fork(),
                value: (round * 100 + client + 1) * 10_000,
                operations,
                choice,
            })
            .collect();
        let (others, memory) = (random.fork(), self.current.memory_bytes);
        let life_us = random.scaled(30_000);
        let stop = AtomicBool::new(false);
        let keys = &keys;
        let unless_dead = |outcome: Result<(), Find>| match outcome {
            Err(_) if clock.dead.load(Ordering::SeqCst) => Ok(()),
            outcome => outcome,
        };
        thread::scope(|scope| {
            let workers: Vec<_> = clients
                .into_iter()
                .enumerate()
                .map(|(number, client)| {
                    scope.spawn(move || {
                        let mut memory = Memory::new(clock, number);
                        unless_dead(keys.run(env, client, &mut memory)).map(|()| memory)
                    })
                })
                .collect();
            let stop = &stop;
            let disturber =
                scope.spawn(move || unless_dead(keys.disturb(env, others, stop, memory)));
            if let (true, Some(disk)) = (crash, &self.disk) {
                pause(env, life_us)?;
                clock.dead.store(true, Ordering::SeqCst);
                disk.crash_process();
            }
            let done: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
            stop.store(true, Ordering::Relaxed);
            let disturbed = disturber.join();
            let panicked = || Find("a client panicked".to_owned());
            disturbed.map_err(|_| panicked())??;
            done.into_iter()
                .map(|client| client.map_err(|_| panicked())?)
                .collect()
        })
    }
}
