//! Copies of a directory. Two copies of one closed store go on separately, and files and blocks of
//! one replace the other's. A store is also copied piece by piece while it is written, checkpointed
//! and closed.
//!
//! `verify` and opens, for reading or writing, must refuse another copy's data file or log. Another
//! copy's block must count as damage. A copy of an open store must be refused, or hold a prefix of
//! the commits with everything synced before, in which every record reads right; an open that dies
//! must not change that.

use std::collections::BTreeMap;

use terrapin::verify::verify_on;
use terrapin::{Database, ErrorKind};
use terrapin_disk::SimDisk;
use terrapin_model::{Random, Structures};

use super::salvage::salvaged;
use super::store::{Plan, Tally};
use crate::Find;
use crate::process::Process;

/// Places tried in each pair of copies.
const PLACES: usize = 24;
/// Keys that are written over and over.
const KEYS: u64 = 300;

/// A file that does not grow is copied in about this many pieces at most.
const PIECES_MAX: usize = 64;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    let scrambled = (number % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    scrambled.to_be_bytes().to_vec()
}

/// The value of the put with this number, marked by its copy. Values of both copies have equal
/// lengths; some are longer than an extent.
fn value(number: u64, whose: u8) -> Vec<u8> {
    let bytes = match number % 8 {
        5 => 600 + number * 37 % 8000,
        _ => 24 + number % 97,
    };
    let mut value = vec![whose; bytes as usize];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The content of a database after this many puts.
fn content(puts: u64, whose: u8) -> Map {
    (0..puts).map(|n| (key(n), value(n, whose))).collect()
}

fn read(database: &Database) -> terrapin::Result<Map> {
    let keyspace = database.default_keyspace();
    let records = keyspace.unordered();
    records
        .map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect()
}

/// The certain records of a salvage; none if it is refused.
fn certain(plan: &Plan, disk: &SimDisk) -> Result<Map, String> {
    match salvaged(&plan.configuration, disk)? {
        Some(salvaged) => salvaged.records("default"),
        None => Ok(Map::new()),
    }
}

impl Process {
    /// Whether `verify` finds nothing.
    fn is_sound(&self) -> Result<bool, String> {
        let report = verify_on(
            self.env.clone(),
            self.disk.handle(),
            &Structures::verify_options(),
        );
        let report = report.map_err(|error| format!("verify: {error}"))?;
        Ok(report.is_sound())
    }
}

/// Tries both kinds with a plan's configuration.
pub(super) fn copies(plan: &Plan, tally: &mut Tally) -> Result<(), Find> {
    let mut random = Random::new(plan.seed ^ 0x636f_7079);
    for closed in [true, false] {
        Pair::new(plan, closed, &mut random)?.mix(plan, &mut random, tally)?;
    }
    for number in 0..4 {
        let mut random = random.fork();
        let copied = Live::copied(plan, number, &mut random)?;
        tally.attempt(&copied.text.clone(), || copied.examine(plan, &mut random));
    }
    Ok(())
}

/// Two copies of a store that went on separately; both were closed, or killed.
struct Pair {
    text: String,
    /// The number of puts of both, and of those before they separated.
    puts: [u64; 2],
    /// The fewest puts that a copy holds if a block of its data file is another's. Large values
    /// that no sync covers are there, and the first that is damaged ends the log.
    puts_min: u64,
    disks: [SimDisk; 2],
}

impl Pair {
    fn new(plan: &Plan, closed: bool, random: &mut Random) -> Result<Self, Find> {
        let disk = SimDisk::new(plan.seed);
        let puts = [200 + random.below(400), 900 + random.below(500)];
        let checkpoint = puts[0] + random.below(puts[1] - puts[0]);
        let live = |disk: &SimDisk, seed: u64, whose: u8, range: std::ops::Range<u64>| {
            let process = Process::new(seed, disk.clone());
            let database = process.open(&plan.configuration.options())?;
            let keyspace = database.default_keyspace();
            for number in range {
                keyspace.put(key(number), value(number, whose))?;
                if number == checkpoint {
                    database.checkpoint()?;
                }
            }
            drop(keyspace);
            match closed || whose == b'-' {
                true => drop(database.close()?),
                false => process.kill(Some(database)),
            }
            Ok::<(), Find>(())
        };
        live(&disk, random.bits(), b'-', 0..puts[0])?;
        let lives = 1 + random.below(2);
        let disks = [disk.fork(), disk.fork()];
        for (disk, whose) in disks.iter().zip(*b"ab") {
            for life in 0..lives {
                let from = if life == 0 { puts[0] } else { puts[1] - 20 };
                live(disk, random.bits(), whose, from..puts[1])?;
            }
        }
        // The recovery of a second life has synced all of the first, and its puts change nothing.
        let may_end = plan.data_may_end_log() && !closed && lives == 1;
        Ok(Pair {
            text: format!("two copies, closed: {closed}, lives: {lives}"),
            puts,
            puts_min: if may_end { checkpoint + 1 } else { puts[1] },
            disks,
        })
    }

    /// What the first of them holds after so many puts.
    fn content(&self, puts: u64) -> Map {
        let mut all = content(self.puts[0], b'-');
        all.extend((self.puts[0]..puts).map(|n| (key(n), value(n, b'a'))));
        all
    }

    /// Whether records are of the first one after the same number of puts, at least `puts_min`.
    /// All of them are there, or some.
    fn holds(&self, records: &Map, puts_min: u64, all: bool) -> bool {
        (puts_min..=self.puts[1]).rev().any(|puts| {
            let content = self.content(puts);
            match all {
                true => *records == content,
                false => records.iter().all(|(k, v)| content.get(k) == Some(v)),
            }
        })
    }

    fn mix(&self, plan: &Plan, random: &mut Random, tally: &mut Tally) -> Result<(), Find> {
        let [ours, theirs] = &self.disks;
        for name in theirs.fork().handle().list()? {
            let Some(file) = theirs.content(&name).filter(|_| !name.starts_with("spare")) else {
                continue;
            };
            let fault = format!("{}: {name} is the other's", self.text);
            tally.attempt(&fault, || {
                let disk = ours.fork();
                disk.plant(&name, &file);
                let process = Process::new(plan.seed, disk);
                match name.as_str() {
                    // Like an empty ring: after a kill, records that no segment has are gone.
                    "ring" => self.examine(plan, process, None),
                    // Nothing depends on the table of readers. A file more takes no other's place.
                    name if name == "readers" || ours.content(name).is_none() => {
                        self.examine(plan, process, Some(self.puts[1]))
                    }
                    _ => self.refused(plan, process),
                }
            });
        }
        let content = |disk: &SimDisk| disk.content("data").unwrap_or_default();
        let (mine, other) = (content(ours), content(theirs));
        for _ in 0..PLACES {
            let bytes = *random.pick(&[512, 4096, 16_384]);
            let at = 8192 + random.index((mine.len().saturating_sub(8192) / bytes).max(1)) * bytes;
            let (Some(old), Some(new)) = (mine.get(at..at + bytes), other.get(at..at + bytes))
            else {
                continue;
            };
            if old == new {
                continue;
            }
            let fault = format!("{}: {bytes} bytes at {at} are the other's", self.text);
            tally.attempt(&fault, || {
                let disk = ours.fork();
                for (index, (old, new)) in old.iter().zip(new).enumerate() {
                    disk.corrupt("data", (at + index) as u64, old ^ new);
                }
                self.examine(plan, Process::new(plan.seed, disk), Some(self.puts_min))
            });
        }
        Ok(())
    }

    /// The mixture is refused in every way.
    fn refused(&self, plan: &Plan, process: Process) -> Result<bool, String> {
        if process.is_sound()? {
            return Err("verify finds nothing".to_owned());
        }
        if !certain(plan, &process.disk)?.is_empty() {
            return Err("salvage of a mixture has certain records".to_owned());
        }
        for read_only in [true, false] {
            match process.open(&plan.configuration.options().read_only(read_only)) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let text = error.to_string();
                    if !text.contains("another copy of this database") {
                        return Err(format!("the open says only {text}"));
                    }
                }
                Err(error) => return Err(format!("the open: {error}")),
                Ok(_) => return Err(format!("it opens (read only: {read_only})")),
            }
        }
        Ok(true)
    }

    /// Checks that the mixture is noticed where it matters. Without the fewest puts that it must
    /// hold, any records of the first copy are right.
    fn examine(
        &self,
        plan: &Plan,
        process: Process,
        puts_min: Option<u64>,
    ) -> Result<bool, String> {
        let is_right = |records: &Map, all| match puts_min {
            Some(puts_min) => self.holds(records, puts_min, all),
            None => records.values().all(|value| value.last() != Some(&b'b')),
        };
        let sound = process.is_sound()?;
        if !is_right(&certain(plan, &process.disk)?, false) {
            return Err("salvage has certain records of the other".to_owned());
        }
        let outcome = process.open(&plan.configuration.options());
        match outcome.and_then(|database| read(&database)) {
            Ok(found) if is_right(&found, true) => Ok(!sound),
            Ok(_) => Err("records of the other answer".to_owned()),
            Err(error) if error.kind() == ErrorKind::Corrupt && !sound => Ok(true),
            Err(error) => Err(format!("verify finds nothing: {sound}; and then {error}")),
        }
    }
}

/// A copy made while its store was open, at least at its beginning.
struct Live {
    text: String,
    disk: SimDisk,
    /// Puts synced before the copy began.
    synced: u64,
    /// Puts acknowledged when the copy ended.
    puts: u64,
}

impl Live {
    /// Copies each file from its beginning in pieces, between which the store works.
    fn copied(plan: &Plan, number: u64, random: &mut Random) -> Result<Self, Find> {
        let process = Process::new(random.bits(), SimDisk::new(plan.seed));
        let mut database = Some(process.open(&plan.configuration.options())?);
        let mut puts = 0;
        let mut write = |count: u64, database: &Option<Database>| {
            for _ in 0..count {
                if let Some(database) = database {
                    let keyspace = database.default_keyspace();
                    keyspace.put(key(puts), value(puts, b'-'))?;
                    puts += 1;
                }
            }
            Ok::<u64, Find>(puts)
        };
        let written = write(KEYS + random.below(600), &database)?;
        let mut synced = 0;
        if let Some(database) = database.as_ref().filter(|_| random.one_in(2)) {
            database.flush()?;
            synced = written;
        }
        write(random.below(30), &database)?;
        let pace = 1 + random.below(30);
        // Few puts and many checkpoints: pages replace others, and the log that the copy needs is
        // still there.
        let checkpoints = random.below(3) > 0;
        let mut left = match random.below(3) {
            0 => random.below(150),
            _ => u64::MAX,
        };
        let mut names = process.disk.fork().handle().list()?;
        match random.below(3) {
            0 => {}
            1 => names.reverse(),
            _ => names.sort_by_key(|name| name != "data"),
        }
        let copy = SimDisk::new(plan.seed ^ number.wrapping_add(1).rotate_right(8));
        for name in &names {
            let mut copied: Vec<u8> = Vec::new();
            while let Some(content) = process.disk.content(name) {
                let piece = 512 << random.below(if checkpoints { 5 } else { 8 });
                // The store must not grow faster than it is copied.
                let piece = piece.max(content.len() / PIECES_MAX / 512 * 512);
                let end = (copied.len() + piece).min(content.len());
                if copied.len() >= end {
                    break;
                }
                copied.extend_from_slice(&content[copied.len()..end]);
                match &database {
                    Some(open) if checkpoints => {
                        write(random.below(3), &database)?;
                        if name == "data" {
                            open.checkpoint()?;
                        }
                    }
                    _ => drop(write(random.below(pace), &database)?),
                }
                for _ in 0..random.below(pace) {
                    process.sim.step();
                }
                left = left.saturating_sub(1);
                if left == 0
                    && let Some(database) = database.take()
                {
                    database.close()?;
                }
            }
            if !copied.is_empty() {
                copy.plant(name, &copied);
            }
        }
        let puts = write(0, &database)?;
        let how = if database.is_some() {
            "open"
        } else {
            "closed meanwhile"
        };
        process.kill(database);
        Ok(Live {
            text: format!("live copy {number} of a store that was {how}"),
            disk: copy,
            synced,
            puts,
        })
    }

    /// Opens the copy: after a death in the open, read-only, for writing, and once more. Returns
    /// whether it was refused.
    fn examine(&self, plan: &Plan, random: &mut Random) -> Result<bool, String> {
        let process = Process::new(plan.seed ^ 7, self.disk.clone());
        process.disk.die_at_call(1 + random.below(60));
        let first = process.open(&plan.configuration.options());
        process.disk.die_at_call(u64::MAX);
        process.kill(first.ok());
        let salvaged = certain(plan, &process.disk)?;
        let number = |value: &Vec<u8>| {
            let bytes = value.first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(bytes) + 1
        };
        let puts = salvaged.values().map(number).max().unwrap_or(0);
        let prefix = content(puts, b'-');
        let other = salvaged
            .iter()
            .find(|(key, value)| prefix.get(*key) != Some(*value));
        if let Some((key, value)) = other {
            let (found, right) = (number(value), prefix.get(key).map(number));
            return Err(format!(
                "salvage: put {found} is certain, and the newest of {puts} is {right:?}"
            ));
        }
        let mut refused = None;
        for read_only in [true, false, false] {
            let was_refused = refused;
            match process.open(&plan.configuration.options().read_only(read_only)) {
                Err(error) if error.kind() == ErrorKind::Corrupt => refused = Some(true),
                Err(error) => return Err(format!("the open: {error}")),
                Ok(database) => {
                    let found = read(&database)
                        .map_err(|error| format!("it opens, and a read says {error}"))?;
                    let puts = found.values().map(number).max().unwrap_or(0);
                    if puts > self.puts || found != content(puts, b'-') {
                        return Err(format!("it holds no prefix ({puts} puts)"));
                    }
                    if puts < self.synced {
                        let synced = self.synced;
                        return Err(format!("it holds {puts} puts, and {synced} were synced"));
                    }
                    refused = Some(false);
                    process.kill(Some(database));
                }
            }
            if was_refused.is_some_and(|was| Some(was) != refused) {
                return Err(format!("refused: {was_refused:?}, then: {refused:?}"));
            }
        }
        Ok(refused == Some(true))
    }
}
