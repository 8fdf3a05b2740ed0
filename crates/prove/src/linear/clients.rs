//! A client: one random operation after another on a few keys in two keyspaces, each reported to a
//! recorder before and after. One more thread, the [`disturb`]er, meanwhile writes other keys,
//! checkpoints, changes options and holds snapshots. So memtables are sealed and trees change under
//! the clients.

use std::sync::atomic::{AtomicBool, Ordering};

use terrapin::{
    CheckpointDistance, ConflictCause, Database, Durability, Isolation, Keyspace, KeyspaceOptions,
    Requirement, StructureKind, TransactionOptions,
};
use terrapin_base::checksum::hash64;

use terrapin_base::{Condition, Env, ErrorKind, Slice};
use terrapin_model::{Pattern, Random};

use crate::Find;

/// Keys by number: three in one keyspace, three in another, and the last two in a queue.
pub(super) const KEYS: usize = 8;
const EACH: usize = 3;
const OTHER: &str = "other";
const QUEUE: &str = "queue";

/// The recorder of a client's operations.
pub(super) trait Recorder {
    /// A write of these keys begins.
    fn writes(&mut self, values: &[(usize, u64)]);
    /// A read of these keys begins.
    fn reads(&mut self, keys: &[usize]);
    /// The operation ended; a read saw these values. An error ends the client's part.
    fn answered(&mut self, seen: &[u64]) -> Result<(), Find>;
    /// A conditional write begins. It happens only if `saw` holds. What is not known before the
    /// answer is not in `saw`.
    fn changes(&mut self, saw: &[(usize, u64)], values: &[(usize, u64)]);
    /// A pop of the first of these keys that has a value begins.
    fn pops(&mut self, keys: &[usize]);
    /// The pop removed this key, and saw these values up to it.
    fn popped(&mut self, saw: &[(usize, u64)], key: usize) -> Result<(), Find>;
    /// The conditional write happened, and `saw` held.
    fn changed(&mut self, saw: &[(usize, u64)]) -> Result<(), Find>;
    /// The conditional write did not happen. It saw these values, if any.
    fn unchanged(&mut self, seen: &[(usize, u64)]) -> Result<(), Find>;
}

/// The keyspaces that hold the keys.
#[derive(Clone)]
pub(super) struct ClientKeyspaces {
    database: Database,
    keyspaces: [Keyspace; 3],
    /// The keyspaces that have an order: one number for each, of itself or of one that has.
    ordered: [usize; 3],
}

/// The operations of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Every logged operation.
    Logged,
    /// Everything.
    All,
    /// Synced writes only, and no reads: a value read before its sync may be lost.
    SyncedWrites,
}

/// One client's part.
pub(super) struct Client {
    pub random: Random,
    /// The first number of the values.
    pub value: u64,
    pub operations: u64,
    pub choice: Choice,
}

fn name(key: usize) -> String {
    format!("key/{key}")
}

fn value(number: u64) -> Vec<u8> {
    let bytes = (hash64(&number.to_le_bytes()) % 900) as usize;
    let tag = format!("{number}.").into_bytes();
    let bytes = bytes.max(tag.len());
    Pattern::Repeated(tag, bytes).bytes()
}

/// The number of a read value; anything but a whole value is a find.
fn number(read: Option<&[u8]>) -> Result<u64, Find> {
    let Some(bytes) = read else { return Ok(0) };
    let digits = bytes.split(|&b| b == b'.').next().unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .filter(|&number| value(number) == bytes)
        .ok_or_else(|| {
            Find(format!(
                "a value that no client wrote: {}",
                String::from_utf8_lossy(bytes)
            ))
        })
}

fn seen(read: Option<Slice>) -> Result<u64, Find> {
    number(read.as_deref())
}

/// Waits; other threads run meanwhile.
pub(super) fn pause(env: &Env, us: u64) -> Result<(), Find> {
    env.wait(&Condition::delay_until(env.now_ns() + us * 1000))?;
    Ok(())
}

impl ClientKeyspaces {
    /// The keyspaces of a database, created if necessary. `hashed`: whether the second one is then
    /// hashed.
    pub fn new(database: &Database, hashed: bool) -> Result<Self, Find> {
        let keyspace = |name, options| match database.create_keyspace(name, options) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => database.open_keyspace(name),
            outcome => outcome,
        };
        let plain = KeyspaceOptions::default();
        let options = match hashed {
            true => plain.structure(StructureKind::Hashed),
            false => plain,
        };
        let other = keyspace(OTHER, options)?;
        let is_ordered = other.options()?.structure != StructureKind::Hashed;
        Ok(ClientKeyspaces {
            database: database.clone(),
            keyspaces: [database.default_keyspace(), other, keyspace(QUEUE, plain)?],
            ordered: [0, usize::from(is_ordered), 2],
        })
    }

    fn of(&self, key: usize) -> &Keyspace {
        &self.keyspaces[key / EACH]
    }

    /// Reads every key as of one moment.
    pub fn read_all(&self, recorder: &mut dyn Recorder) -> Result<Vec<u64>, Find> {
        let keys: Vec<usize> = (0..KEYS).collect();
        recorder.reads(&keys);
        let values = self.snapshot(&keys)?;
        recorder.answered(&values)?;
        Ok(values)
    }

    fn snapshot(&self, keys: &[usize]) -> Result<Vec<u64>, Find> {
        let snapshot = self.database.snapshot()?;
        keys.iter()
            .map(|&key| seen(snapshot.get(self.of(key), name(key))?))
            .collect()
    }

    fn scan(&self, half: usize, back: bool) -> Result<Vec<u64>, Find> {
        let mut values = vec![0; EACH];
        let keyspace = &self.keyspaces[half];
        let mut take = |record: terrapin_base::Result<(Slice, Slice)>| {
            let (key, value) = record?;
            let at = (0..EACH).find(|at| name(half * EACH + at).as_bytes() == &key[..]);
            let at = at.ok_or_else(|| Find(format!("a key that no client wrote: {key:?}")))?;
            values[at] = number(Some(&value))?;
            Ok::<(), Find>(())
        };
        if self.ordered[half] != half {
            let is_own = |record: &terrapin_base::Result<(Slice, Slice)>| {
                let key = record.as_ref().map(|(key, _)| key.starts_with(b"key/"));
                key.unwrap_or(true)
            };
            let mut all = keyspace.unordered().filter(is_own);
            all.try_for_each(&mut take)?;
        } else if back {
            keyspace.prefix("key/").rev().try_for_each(&mut take)?;
        } else {
            keyspace.prefix("key/").try_for_each(&mut take)?;
        }
        Ok(values)
    }

    /// Does a client's part. A failure is a find.
    pub fn run(
        &self,
        env: &Env,
        mut client: Client,
        recorder: &mut dyn Recorder,
    ) -> Result<(), Find> {
        for _ in 0..client.operations {
            if client.random.one_in(4) {
                pause(env, client.random.scaled(400))?;
            }
            let reads = client.choice != Choice::SyncedWrites && client.random.one_in(2);
            if reads {
                self.read(&mut client.random, recorder)?;
            } else if client.random.one_in(3) {
                self.write_if(&mut client, recorder)?;
            } else {
                self.write(&mut client, recorder)?;
            }
        }
        Ok(())
    }

    fn read(&self, random: &mut Random, recorder: &mut dyn Recorder) -> Result<(), Find> {
        let half = random.index(2);
        let here = half * EACH..(half + 1) * EACH;
        match random.below(6) {
            0 | 1 => {
                let key = random.index(KEYS);
                recorder.reads(&[key]);
                let value = seen(self.of(key).get(name(key))?)?;
                recorder.answered(&[value])
            }
            2 => {
                let keys: Vec<usize> = here.collect();
                recorder.reads(&keys);
                let names: Vec<String> = keys.iter().map(|&key| name(key)).collect();
                let values = self.keyspaces[half].multi_get(&names)?;
                let values: Vec<u64> = values.into_iter().map(seen).collect::<Result<_, _>>()?;
                recorder.answered(&values)
            }
            3 => {
                let keys: Vec<usize> = here.collect();
                recorder.reads(&keys);
                recorder.answered(&self.scan(half, random.one_in(2))?)
            }
            _ => {
                let count = 1 + random.index(KEYS);
                let keys = &random.shuffled(KEYS)[..count];
                recorder.reads(keys);
                recorder.answered(&self.snapshot(keys)?)
            }
        }
    }

    fn write(&self, client: &mut Client, recorder: &mut dyn Recorder) -> Result<(), Find> {
        let durability = match (client.choice, client.random.below(12)) {
            (Choice::SyncedWrites, _) | (_, 0) => Durability::Sync,
            (Choice::All, 1) => Durability::None,
            _ => Durability::Process,
        };
        let random = &mut client.random;
        let mut fresh = |random: &mut Random| {
            client.value += 1;
            if random.one_in(5) { 0 } else { client.value }
        };
        match random.below(9) {
            0..4 => {
                let key = random.index(KEYS);
                let number = fresh(random);
                recorder.writes(&[(key, number)]);
                match number {
                    0 => self.of(key).delete_with(name(key), durability)?,
                    _ => self
                        .of(key)
                        .put_with(name(key), value(number), durability)?,
                }
            }
            // It has no durability of its own.
            4 if client.choice != Choice::SyncedWrites => {
                let half = random.index(2);
                let all: Vec<_> = (half * EACH..(half + 1) * EACH)
                    .map(|key| (key, 0))
                    .collect();
                recorder.writes(&all);
                self.keyspaces[half].clear()?;
            }
            5 => {
                let half = self.ordered[random.index(2)];
                let from = half * EACH + random.index(EACH);
                let to = (from + random.index(EACH)).min((half + 1) * EACH - 1);
                let all: Vec<_> = (from..=to).map(|key| (key, 0)).collect();
                recorder.writes(&all);
                let range = name(from)..=name(to);
                self.keyspaces[half].delete_range_with(range, durability)?;
            }
            _ => {
                // Without the log, a batch has only one keyspace.
                let end = if durability == Durability::None {
                    EACH
                } else {
                    KEYS
                };
                let count = 2 + random.index(end - 1);
                let changes: Vec<(usize, u64)> = (0..count)
                    .map(|_| (random.index(end), fresh(random)))
                    .collect();
                let mut batch = self.database.batch();
                for &(key, number) in &changes {
                    match number {
                        0 => batch.delete(self.of(key), name(key)),
                        _ => batch.put(self.of(key), name(key), value(number)),
                    }
                }
                recorder.writes(&changes);
                self.database.write_with(batch, durability)?;
            }
        }
        recorder.answered(&[])
    }

    /// A conditional write with the durability of the database, or a batch with conditions.
    fn write_if(&self, client: &mut Client, recorder: &mut dyn Recorder) -> Result<(), Find> {
        let random = &mut client.random;
        client.value += 1;
        let new = client.value;
        let kind = match client.choice {
            Choice::SyncedWrites => 4 + 4 * random.below(2),
            _ => random.below(11),
        };
        match kind {
            6 => return self.pop(random, recorder),
            7.. => return self.transact(client, recorder),
            _ => {}
        }
        let key = random.index(KEYS);
        let (keyspace, bytes) = (self.of(key), name(key));
        match kind {
            0 => {
                recorder.changes(&[(key, 0)], &[(key, new)]);
                match seen(keyspace.insert_if_absent(bytes, value(new))?)? {
                    0 => recorder.changed(&[(key, 0)]),
                    there => recorder.unchanged(&[(key, there)]),
                }
            }
            1 => {
                recorder.changes(&[], &[(key, 0)]);
                match seen(keyspace.take(bytes)?)? {
                    0 => recorder.unchanged(&[(key, 0)]),
                    there => recorder.changed(&[(key, there)]),
                }
            }
            2 => {
                recorder.changes(&[], &[(key, new)]);
                let mut last = Ok(0);
                keyspace.update(bytes, |there| {
                    last = number(there);
                    Some(value(new))
                })?;
                recorder.changed(&[(key, last?)])
            }
            3 => {
                // By version: it may be void without a change.
                let (there, version) = keyspace.get_versioned(&bytes)?;
                let saw = [(key, seen(there)?)];
                recorder.changes(&saw, &[(key, new)]);
                let new = value(new);
                match keyspace.compare_version_and_swap(bytes, &version, Some(&new))? {
                    Ok(()) => recorder.changed(&saw),
                    Err(_) => recorder.unchanged(&[]),
                }
            }
            4 => {
                let count = 2 + random.index(KEYS - 1);
                let keys = random.shuffled(KEYS)[..count].to_vec();
                let there = self.snapshot(&keys)?;
                let saw: Vec<_> = keys.iter().copied().zip(there).collect();
                let changes = [(keys[0], new), (keys[1], 0)];
                let mut batch = self.database.batch();
                for &(key, there) in &saw {
                    let asks = match there {
                        0 => Requirement::Absent,
                        there => Requirement::equals(value(there)),
                    };
                    batch.require(self.of(key), name(key), asks);
                }
                batch.put(self.of(keys[0]), name(keys[0]), value(new));
                batch.delete(self.of(keys[1]), name(keys[1]));
                recorder.changes(&saw, &changes);
                let durability = match client.choice {
                    Choice::SyncedWrites => Durability::Sync,
                    _ => Durability::Process,
                };
                match self.database.write_with(batch, durability) {
                    Ok(()) => recorder.changed(&saw),
                    Err(error) if error.kind() == ErrorKind::Conflict => recorder.unchanged(&[]),
                    Err(error) => Err(error.into()),
                }
            }
            _ => {
                let there = seen(keyspace.get(&bytes)?)?;
                let new = if random.one_in(3) { 0 } else { new };
                recorder.changes(&[(key, there)], &[(key, new)]);
                let of = |number| (number != 0).then(|| value(number));
                let (expected, new) = (of(there), of(new));
                match keyspace.compare_and_swap(bytes, expected.as_deref(), new.as_deref())? {
                    Ok(()) => recorder.changed(&[(key, there)]),
                    Err(conflict) => match conflict.cause {
                        ConflictCause::Value(there) => recorder.unchanged(&[(key, seen(there)?)]),
                        other => Err(Find(format!("a swap of values met {other:?}"))),
                    },
                }
            }
        }
    }

    /// Takes a record from the queue.
    fn pop(&self, random: &mut Random, recorder: &mut dyn Recorder) -> Result<(), Find> {
        let (back, queue) = (random.one_in(2), &self.keyspaces[2]);
        let mut keys: Vec<usize> = (2 * EACH..KEYS).collect();
        if back {
            keys.reverse();
        }
        recorder.pops(&keys);
        let popped = match back {
            true => queue.pop_last()?,
            false => queue.pop_first()?,
        };
        let mut saw = Vec::new();
        let Some((popped, value)) = popped else {
            saw.extend(keys.iter().map(|&key| (key, 0)));
            return recorder.unchanged(&saw);
        };
        for key in keys {
            if name(key).as_bytes() == &popped[..] {
                saw.push((key, number(Some(&value))?));
                return recorder.popped(&saw, key);
            }
            saw.push((key, 0));
        }
        Err(Find(format!(
            "a popped key that no client wrote: {popped:?}"
        )))
    }

    /// A transaction that reads keys or a range, and writes some. It changes what it writes if, at
    /// the moment of its commit, what it depends on is as it saw it. What it read is of one earlier
    /// moment.
    fn transact(&self, client: &mut Client, recorder: &mut dyn Recorder) -> Result<(), Find> {
        let random = &mut client.random;
        let is_snapshot = random.one_in(3);
        let mut options = TransactionOptions::new();
        if is_snapshot {
            options = options.isolation(Isolation::Snapshot);
        }
        if client.choice == Choice::SyncedWrites {
            options = options.durability(Durability::Sync);
        }
        let part = self.ordered[random.index(3)];
        let here: Vec<usize> = (part * EACH..KEYS.min((part + 1) * EACH)).collect();
        // What it saw, and whether it depends on that.
        let mut saw: Vec<(usize, u64)>;
        let mut depends = !is_snapshot;
        let mut tx;
        // A read by itself is judged only if no power fails.
        let is_judged = client.choice != Choice::SyncedWrites;
        match random.below(4) {
            0 => {
                // One end of a range: it depends on the keys up to the record that it took.
                let back = random.one_in(2);
                tx = self.database.transaction_with(&options)?;
                let mut range = tx.prefix(&self.keyspaces[part], "key/");
                let record = match back {
                    true => range.next_back(),
                    false => range.next(),
                };
                let record = record.transpose()?;
                let mut keys = here.clone();
                if back {
                    keys.reverse();
                }
                saw = Vec::new();
                for key in keys {
                    let found = record
                        .as_ref()
                        .filter(|(found, _)| found[..] == *name(key).as_bytes());
                    saw.push((key, number(found.map(|(_, value)| &value[..]))?));
                    if found.is_some() {
                        break;
                    }
                }
            }
            1 => {
                if is_judged {
                    recorder.reads(&here);
                }
                tx = self.database.transaction_with(&options)?;
                let records: Result<Vec<_>, _> = tx.prefix(&self.keyspaces[part], "key/").collect();
                let records = records?;
                saw = Vec::new();
                for &key in &here {
                    let found = records
                        .iter()
                        .find(|(found, _)| found[..] == *name(key).as_bytes());
                    saw.push((key, number(found.map(|(_, value)| &value[..]))?));
                }
                if is_judged {
                    recorder.answered(&saw.iter().map(|(_, value)| *value).collect::<Vec<_>>())?;
                }
            }
            _ => {
                let count = 1 + random.index(KEYS);
                let keys = random.shuffled(KEYS)[..count].to_vec();
                let for_update = random.one_in(2);
                depends |= for_update;
                if is_judged {
                    recorder.reads(&keys);
                }
                tx = self.database.transaction_with(&options)?;
                saw = Vec::new();
                for key in keys {
                    let value = match for_update {
                        true => tx.get_for_update(self.of(key), name(key))?,
                        false => tx.get(self.of(key), name(key))?,
                    };
                    saw.push((key, seen(value)?));
                }
                if is_judged {
                    recorder.answered(&saw.iter().map(|(_, value)| *value).collect::<Vec<_>>())?;
                }
            }
        }
        let mut changes = Vec::new();
        if random.one_in(6) {
            tx.delete_prefix(&self.keyspaces[part], "key/")?;
            changes.extend(here.iter().map(|&key| (key, 0)));
        }
        for _ in 0..1 + random.index(3) {
            let key = random.index(KEYS);
            client.value += 1;
            let new = if random.one_in(4) { 0 } else { client.value };
            match new {
                0 => tx.delete(self.of(key), name(key))?,
                _ => tx.put(self.of(key), name(key), value(new))?,
            }
            changes.push((key, new));
            let own = seen(tx.get(self.of(key), name(key))?)?;
            if own != new {
                return Err(Find(format!("a transaction wrote {new} and reads {own}")));
            }
        }
        if !depends {
            saw.retain(|(key, _)| changes.iter().any(|(written, _)| written == key));
        }
        if random.one_in(2) {
            pause(&Env::threads(), random.scaled(400))?;
        }
        recorder.changes(&saw, &changes);
        match tx.commit()? {
            Ok(_) => recorder.changed(&saw),
            Err(_) => recorder.unchanged(&[]),
        }
    }

    /// Does other things with the database until it is stopped.
    pub fn disturb(
        &self,
        env: &Env,
        mut random: Random,
        stop: &AtomicBool,
        memory: u64,
    ) -> Result<(), Find> {
        let mut held = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let half = random.index(2);
            let keyspace = &self.keyspaces[half];
            match random.below(16) {
                0 => self.database.checkpoint()?,
                1 => self.database.flush()?,
                2 => affordable(keyspace.set_checkpoint_distance(dial(&mut random)))?,
                3 => affordable(self.database.set_checkpoint_distance(dial(&mut random)))?,
                4 => affordable(self.database.set_memory(memory + random.below(memory)))?,
                5 if held.len() < 3 => {
                    let snapshot = self.database.snapshot()?;
                    held.push(snapshot.iter(&self.keyspaces[self.ordered[half]]));
                }
                5 => drop(held.swap_remove(random.index(held.len()))),
                6 | 7 => {
                    if let Some(range) = held.last_mut() {
                        let count = random.scaled(200) as usize;
                        range.take(count).try_for_each(|record| record.map(drop))?;
                    }
                }
                _ => {
                    for _ in 0..random.scaled(60) {
                        let side = *random.pick(&["a", "l", "z"]);
                        let key = format!("{side}{}", random.below(2000));
                        match random.one_in(4) {
                            true => keyspace.delete(key)?,
                            false => keyspace.put(key, value(random.below(1000)))?,
                        }
                    }
                }
            }
            if random.one_in(3) {
                pause(env, random.scaled(500))?;
            }
        }
        Ok(())
    }
}

fn dial(random: &mut Random) -> CheckpointDistance {
    match random.scaled(9) {
        9 => CheckpointDistance::Auto,
        distance => CheckpointDistance::Fixed(distance as u32),
    }
}

/// A batch that does not fit in memory is refused and changes nothing.
fn affordable(outcome: terrapin_base::Result<()>) -> Result<(), Find> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Ok(()),
        outcome => Ok(outcome?),
    }
}
