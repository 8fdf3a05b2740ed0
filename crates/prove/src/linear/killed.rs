//! Histories across `kill -9`: clients of a child process report through a pipe, the child is
//! killed at a random moment, and another one continues with the same store. The pipe keeps the
//! order of events: a call is in it before it begins, an answer after it ended.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{env, io, thread};

use terrapin::verify::verify;
use terrapin_base::Env;
use terrapin_model::{Configuration, Random, Structures};

use super::clients::{Choice, Client, ClientKeyspaces, KEYS, Recorder, pause};
use super::history::{History, Kind, Operation};
use super::judge::judge;
use crate::Find;

/// The first argument of a child.
const CHILD: &str = "linear-child";
/// The child's message when its clients have done enough.
const IDLE: &str = "idle";
/// The signal that ends a child.
const SIGKILL: i32 = 9;
/// The first number of a life's values.
const LIFE: u64 = 1_000_000;
/// The most operations of one client in one life: the judge takes no more at once.
const OPERATIONS_MAX: u64 = 60;
/// The client that reads all keys at the end.
const LAST: usize = 99;

/// Does the work of a child process of this layer, if the arguments ask for it.
#[must_use]
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    let [_, kind, directory, unit, life] = arguments else {
        return None;
    };
    if kind != CHILD {
        return None;
    }
    let (Ok(unit), Ok(life)) = (unit.parse(), life.parse()) else {
        return Some(ExitCode::from(2));
    };
    Some(match work(Path::new(directory), unit, life) {
        Ok(()) => ExitCode::SUCCESS,
        Err(find) => {
            fail(&find);
            ExitCode::FAILURE
        }
    })
}

/// Options of a life; they change each time.
fn configuration(unit: u64, life: u64) -> Configuration {
    let first = Configuration::random(&mut Random::new(unit)).without_refusals();
    match life {
        0 => first,
        life => first.varied(unit.wrapping_mul(1000) + life),
    }
}

/// Runs clients until they are killed or have done enough; then waits to be killed.
fn work(directory: &Path, unit: u64, life: u64) -> Result<(), Find> {
    let configuration = configuration(unit, life);
    let mut random = Random::new(unit.wrapping_mul(1000) + life);
    let env = Env::threads();
    // Lives alternate between direct reads and the page cache.
    let options = configuration.options().system_cache(life % 2 == 1);
    let database = options.open(directory)?;
    let place = &ClientKeyspaces::new(&database, unit.is_multiple_of(2))?;
    let env = &env;
    let clients: Vec<Client> = (0..2 + random.below(3))
        .map(|client| Client {
            random: random.fork(),
            value: (life + 1) * LIFE + client * 10_000,
            operations: OPERATIONS_MAX,
            choice: Choice::Logged,
        })
        .collect();
    let never = &AtomicBool::new(false);
    let busy = &AtomicUsize::new(clients.len());
    thread::scope(|scope| {
        for (number, client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let mut pipe = Pipe { client: number };
                let run = AssertUnwindSafe(|| place.run(env, client, &mut pipe));
                let failure = match catch_unwind(run) {
                    Ok(Ok(())) => None,
                    Ok(Err(find)) => Some(find),
                    Err(_) => Some(Find("a client panicked".to_owned())),
                };
                if let Some(find) = failure {
                    fail(&find);
                }
                if busy.fetch_sub(1, Ordering::Relaxed) == 1 {
                    tell(IDLE);
                }
            });
        }
        place.disturb(env, random, never, configuration.memory_bytes)
    })
}

fn fail(find: &Find) {
    tell(&format!("failed {}", find.0.replace('\n', " ")));
}

/// Writes one line in one write. If the parent is gone, nothing more is needed.
fn tell(line: &str) {
    let _ = io::stdout()
        .lock()
        .write_all(format!("{line}\n").as_bytes());
}

/// Reports one client's events through the pipe.
struct Pipe {
    client: usize,
}

impl Recorder for Pipe {
    fn writes(&mut self, values: &[(usize, u64)]) {
        tell(&format!("write {} {}", self.client, pairs(values)));
    }

    fn reads(&mut self, keys: &[usize]) {
        let keys: Vec<String> = keys.iter().map(|k| format!("{k}=0")).collect();
        tell(&format!("read {} {}", self.client, keys.join(" ")));
    }

    fn answered(&mut self, seen: &[u64]) -> Result<(), Find> {
        let seen: Vec<String> = seen.iter().map(u64::to_string).collect();
        tell(&format!("answer {} {}", self.client, seen.join(" ")));
        Ok(())
    }

    fn changes(&mut self, saw: &[(usize, u64)], values: &[(usize, u64)]) {
        let (client, saw, values) = (self.client, pairs(saw), pairs(values));
        tell(&format!("change {client} {values} if {saw}"));
    }

    fn pops(&mut self, keys: &[usize]) {
        let keys: Vec<_> = keys.iter().map(|&key| (key, 0)).collect();
        tell(&format!("pop {} {}", self.client, pairs(&keys)));
    }

    fn popped(&mut self, saw: &[(usize, u64)], key: usize) -> Result<(), Find> {
        tell(&format!("popped {} {key}=0 if {}", self.client, pairs(saw)));
        Ok(())
    }

    fn changed(&mut self, saw: &[(usize, u64)]) -> Result<(), Find> {
        tell(&format!("changed {} {}", self.client, pairs(saw)));
        Ok(())
    }

    fn unchanged(&mut self, seen: &[(usize, u64)]) -> Result<(), Find> {
        tell(&format!("unchanged {} {}", self.client, pairs(seen)));
        Ok(())
    }
}

/// Keys with their values, as words.
fn pairs(values: &[(usize, u64)]) -> String {
    let words: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
    words.join(" ")
}

/// Reads what [`pairs`] wrote.
fn parse_pairs<'a>(words: impl Iterator<Item = &'a str>) -> Option<Vec<(usize, u64)>> {
    words
        .map(|word| {
            let (key, value) = word.split_once('=')?;
            Some((key.parse().ok()?, value.parse().ok()?))
        })
        .collect()
}

/// The other end of the pipe: it turns events into operations.
struct Listener {
    time: u64,
    history: History,
    under_way: Vec<Operation>,
    /// The child waits for its death.
    idle: bool,
}

impl Listener {
    fn next(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn hear(&mut self, line: &str) -> Result<(), Find> {
        if line == IDLE {
            self.idle = true;
            return Ok(());
        }
        let strange = || Find(format!("a child says {line}"));
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let (Some(verb), Some(client)) = (words.next(), words.next()) else {
            return Err(strange());
        };
        let kind = match verb {
            "write" | "change" => Kind::Write,
            "read" => Kind::Read,
            "pop" => Kind::Pop,
            "popped" => {
                let values = parse_pairs(words.by_ref().take_while(|word| *word != "if"));
                let saw = parse_pairs(words).ok_or_else(strange)?;
                let client = client.parse()?;
                let values = values.ok_or_else(strange)?;
                return self.popped(client, values, saw).ok_or_else(strange);
            }
            "answer" => return self.answer(client.parse()?, words).ok_or_else(strange),
            "changed" | "unchanged" => {
                let pairs = parse_pairs(words).ok_or_else(strange)?;
                let ended = self.end(client.parse()?, verb == "changed", pairs);
                return ended.ok_or_else(strange);
            }
            _ => return Err(strange()),
        };
        let values = parse_pairs(words.by_ref().take_while(|word| *word != "if"));
        let values = values.ok_or_else(strange)?;
        let saw = parse_pairs(words).ok_or_else(strange)?;
        let call = self.next();
        self.under_way.push(Operation {
            client: client.parse()?,
            call,
            answer: 0,
            kind,
            values,
            saw,
        });
        Ok(())
    }

    /// A pop removed a key.
    fn popped(
        &mut self,
        client: usize,
        values: Vec<(usize, u64)>,
        saw: Vec<(usize, u64)>,
    ) -> Option<()> {
        let at = self.under_way.iter().position(|o| o.client == client)?;
        let mut operation = self.under_way.swap_remove(at);
        operation.kind = Kind::Write;
        (operation.values, operation.saw) = (values, saw);
        operation.answer = self.next();
        self.history.operations.push(operation);
        Some(())
    }

    /// A conditional write has its answer.
    fn end(&mut self, client: usize, done: bool, pairs: Vec<(usize, u64)>) -> Option<()> {
        let at = self.under_way.iter().position(|o| o.client == client)?;
        let mut operation = self.under_way.swap_remove(at);
        match done {
            true => operation.saw = pairs,
            false => {
                operation.kind = Kind::Read;
                operation.saw.clear();
                operation.values = pairs;
            }
        }
        operation.answer = self.next();
        self.history.operations.push(operation);
        Some(())
    }

    fn answer<'a>(&mut self, client: usize, seen: impl Iterator<Item = &'a str>) -> Option<()> {
        let at = self.under_way.iter().position(|o| o.client == client)?;
        let mut operation = self.under_way.swap_remove(at);
        if operation.kind == Kind::Read {
            let seen: Vec<u64> = seen.map(str::parse).collect::<Result<_, _>>().ok()?;
            if seen.len() != operation.values.len() {
                return None;
            }
            for (slot, value) in operation.values.iter_mut().zip(seen) {
                slot.1 = value;
            }
        }
        operation.answer = self.next();
        self.history.operations.push(operation);
        Some(())
    }

    /// The process is dead: open writes took effect by now or never, and open reads have no answer.
    fn death(&mut self) {
        let death = self.next();
        self.idle = false;
        for mut operation in std::mem::take(&mut self.under_way) {
            if let Some(kind) = operation.kind.interrupted() {
                operation.kind = kind;
                operation.answer = death;
                self.history.operations.push(operation);
            }
        }
    }
}

pub(super) fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    let directory = scratch.join("db");
    let mut random = Random::new(!unit);
    let mut listener = Listener {
        time: 0,
        history: History::new(vec![0; KEYS]),
        under_way: Vec::new(),
        idle: false,
    };
    let lives = 2 + random.below(3);
    for life in 0..lives {
        live(&directory, unit, life, &mut random, &mut listener)?;
        // Before the first operation there may be half a database, and the next open creates a new
        // one.
        if random.one_in(3) && !listener.history.operations.is_empty() {
            check_files(&directory)?;
        }
    }
    let database = configuration(unit, lives).options().open(&directory)?;
    let mut last = Last(&mut listener);
    ClientKeyspaces::new(&database, false)?.read_all(&mut last)?;
    database.close()?;
    drop(database);
    check_files(&directory)?;
    judge(&listener.history, scratch)?;
    Ok(1)
}

/// The last read of all keys, from this process.
struct Last<'a>(&'a mut Listener);

impl Recorder for Last<'_> {
    fn writes(&mut self, _values: &[(usize, u64)]) {}

    fn changes(&mut self, _saw: &[(usize, u64)], _values: &[(usize, u64)]) {}

    fn pops(&mut self, _keys: &[usize]) {}

    fn popped(&mut self, _saw: &[(usize, u64)], _key: usize) -> Result<(), Find> {
        Ok(())
    }

    fn changed(&mut self, _saw: &[(usize, u64)]) -> Result<(), Find> {
        Ok(())
    }

    fn unchanged(&mut self, _seen: &[(usize, u64)]) -> Result<(), Find> {
        Ok(())
    }

    fn reads(&mut self, keys: &[usize]) {
        let call = self.0.next();
        self.0.under_way.push(Operation {
            client: LAST,
            call,
            answer: 0,
            kind: Kind::Read,
            values: keys.iter().map(|&key| (key, 0)).collect(),
            saw: Vec::new(),
        });
    }

    fn answered(&mut self, seen: &[u64]) -> Result<(), Find> {
        let seen: Vec<String> = seen.iter().map(u64::to_string).collect();
        self.0
            .answer(LAST, seen.iter().map(String::as_str))
            .ok_or_else(|| Find("the last read has no answer".to_owned()))
    }
}

/// One life of a child: it is killed after this many events, or some time later, perhaps while it
/// still opens the store.
fn live(
    directory: &Path,
    unit: u64,
    life: u64,
    random: &mut Random,
    listener: &mut Listener,
) -> Result<(), Find> {
    let env = Env::threads();
    let mut child = Command::new(env::current_exe()?)
        .arg(CHILD)
        .arg(directory)
        .args([unit.to_string(), life.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let Some(pipe) = child.stdout.take() else {
        return Err(Find("a child without a pipe".to_owned()));
    };
    let mut lines = BufReader::new(pipe).lines();
    // A fifth of the lives end before the first event, most of them during the open.
    let events = if random.one_in(5) {
        0
    } else {
        random.scaled(300)
    };
    let mut heard = Ok(());
    for line in lines.by_ref().take(events as usize) {
        heard = line
            .map_err(Find::from)
            .and_then(|line| listener.hear(&line));
        if heard.is_err() || listener.idle {
            break;
        }
    }
    pause(&env, random.scaled(5000))?;
    child.kill()?;
    for line in lines {
        heard = heard.and_then(|()| listener.hear(&line?));
    }
    let status = child.wait()?;
    listener.death();
    heard?;
    match status.signal() {
        Some(SIGKILL) => Ok(()),
        _ => Err(Find(format!("a child ended by itself: {status}"))),
    }
}

/// Checks that a killed process left a sound store.
fn check_files(directory: &Path) -> Result<(), Find> {
    let report = verify(directory, &Structures::verify_options())?;
    let findings: Vec<String> = report
        .findings
        .iter()
        .map(|f| format!("{}: {}", f.place, f.message))
        .collect();
    if findings.is_empty() {
        return Ok(());
    }
    Err(Find(format!("verify finds: {}", findings.join("; "))))
}
