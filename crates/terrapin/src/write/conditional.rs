//! Conditional writes: a write that depends on what its writer read.
//!
//! A conditional write takes no lock while it reads, waits or runs the user's code:
//!
//! 1. It has the log keep what records touch ([`terrapin_wal::Touch`]).
//! 2. It reads at a bound B: every record below B is in what it reads.
//! 3. It appends only if no record at or above B touches what it has read. The log tests the last
//!    records under the append lock, so no record can come between the test and the append. More
//!    records are copied and tested without the lock first.
//! 4. If a record hits, or the log no longer has what records touched, it begins again with 1.
//!
//! A clear or drop changes the keyspace's collection number under the append lock. The append
//! compares that number under the same lock.
//!
//! Conditional writes are logged: an unlogged one could survive a crash that loses what it read.

use std::borrow::Cow;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Error, KeyspaceId, Lsn, Message, Result, Slice, mutant};
use terrapin_recordcache::Collection;
use terrapin_wal::{Append, Appended, Copied, From, Log, Reach, Touch, Touched};

use crate::engine::core::Core;
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::log_record::format::{BATCH, DELETE, Head, PUT};
use crate::log_record::{Operation, check_sizes};
use crate::pacing::patience::Patience;
use crate::read::newest;
use crate::types::condition::{Conflict, ConflictCause, Requirement, Version};
use crate::types::options::Durability;
use crate::write::{PreparedBatch, enter, wants_seal};

/// Attempts of a conditional write. Each failed one means that another writer wrote in between.
const ATTEMPTS_MAX: u32 = 10_000;

/// What a conditional write does about the value that it read.
pub(crate) enum Decision<'a, R> {
    /// It writes, and then returns this.
    Write(New<'a>, R),
    /// It writes nothing, and returns this.
    Leave(R),
}

/// The new state of a key.
pub(crate) enum New<'a> {
    /// It has this value.
    Put(Cow<'a, [u8]>),
    /// It has no value.
    Delete,
}

impl<'a> New<'a> {
    /// The state with this value, or with none.
    pub fn of(value: Option<&'a [u8]>) -> Self {
        value.map_or(New::Delete, |value| New::Put(Cow::Borrowed(value)))
    }

    pub fn message(&self) -> Message<'_> {
        match self {
            New::Put(value) => Message::Put(value),
            New::Delete => Message::Delete,
        }
    }
}

/// What a conditional write has read, as the log's records tell whether it changed.
pub(crate) enum Footprint<'a> {
    /// One key.
    Key(Touch),
    /// The keys of a keyspace up to a key, that one included.
    UpTo(KeyspaceId, &'a [u8]),
    /// The keys of a keyspace from a key on, that one included.
    From(KeyspaceId, &'a [u8]),
    /// The keys of a batch's conditions.
    Required(&'a [Required]),
}

impl Footprint<'_> {
    /// Whether a record may have changed what was read.
    fn is_hit_by(&self, entry: &Touched) -> bool {
        let touch = &entry.touch;
        let same = |id: KeyspaceId| match touch.reach {
            Reach::All => Some(true),
            Reach::Keyspace => Some(touch.keyspace == id),
            Reach::Key if touch.keyspace == id => None,
            Reach::Key => Some(false),
        };
        // A key whose first bytes equal those of the end may be on either side of it.
        match self {
            Footprint::Key(own) => same(own.keyspace).unwrap_or(own.hash == touch.hash),
            Footprint::UpTo(id, end) => same(*id).unwrap_or_else(|| touch.head <= head(end)),
            Footprint::From(id, end) => same(*id).unwrap_or_else(|| touch.head >= head(end)),
            Footprint::Required(all) => all
                .iter()
                .any(|required| same(required.keyspace.id).unwrap_or(required.hash == touch.hash)),
        }
    }
}

/// The first bytes of a key, as an entry of the log has them.
fn head(key: &[u8]) -> [u8; terrapin_wal::TOUCH_HEAD_BYTES] {
    Touch::key(KeyspaceId(0), key, 0).head
}

/// A condition of a batch on one key.
#[derive(Clone)]
pub(crate) struct Required {
    pub keyspace: Arc<KeyspaceShared>,
    pub key: Box<[u8]>,
    pub hash: u64,
    pub asks: Requirement,
}

/// A keyspace and its collection number when it was read.
pub(crate) type Collected = (KeyspaceId, Collection);

/// Refuses conditional writes that are not logged.
pub(crate) fn check_durability(durability: Durability) -> Result<()> {
    match durability {
        Durability::None => Err(Error::invalid(
            "a conditional write needs the log: use another durability than Durability::None",
        )),
        _ => Ok(()),
    }
}

impl Core {
    /// Reads a key, decides, and writes if nothing changed the key meanwhile; else it tries again.
    pub fn write_if<'a, R>(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        durability: Durability,
        mut decide: impl FnMut(Option<Slice>) -> Result<Decision<'a, R>>,
    ) -> Result<R> {
        check_durability(durability)?;
        check_sizes(key, Message::Delete)?;
        let timer = self.counters.put_timer(&self.env);
        let log = self.log()?;
        let touch = Touch::key(shared.id, key, hash64(key));
        let mut patience = Patience::default();
        for _ in 0..ATTEMPTS_MAX {
            self.env.breathe();
            log.watch_a_while();
            let epoch = self.records.epoch();
            let observed = self.observe()?;
            let before = observed.before;
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            let collected = [(shared.id, keyspace.collection)];
            let value = newest(self, epoch, keyspace, before, key)?;
            drop(observed);
            let (new, result) = match decide(value)? {
                Decision::Leave(result) => return Ok(result),
                Decision::Write(new, result) => (new, result),
            };
            let read = Read {
                before,
                footprint: Footprint::Key(touch),
                collected: &collected,
            };
            let written =
                self.write_one_read(shared, key, new.message(), durability, &read, &mut patience)?;
            if written {
                self.counters.put_done(&self.env, timer);
                return Ok(result);
            }
        }
        Err(busy(shared, key).error())
    }

    /// Writes one put or delete if nothing changed what was read. Returns whether it did.
    pub fn write_one_read(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        message: Message<'_>,
        durability: Durability,
        read: &Read<'_>,
        patience: &mut Patience,
    ) -> Result<bool> {
        check_sizes(key, message)?;
        let log = self.log()?;
        let value = message.value().unwrap_or_default();
        let bytes = (key.len() + value.len()) as u64;
        let frees = message.is_delete();
        let looks = self.admit(shared, bytes, frees, patience)?.looks;
        let head = match message {
            Message::Put(_) => Head::put(shared.id, key.len()),
            Message::Delete => Head::delete(shared.id),
        };
        let pieces = [head.bytes(), key, value];
        let record = match message {
            Message::Put(_) => (PUT, &pieces[..]),
            Message::Delete => (DELETE, &pieces[..2]),
        };
        let touches = [Touch::key(shared.id, key, hash64(key))];
        let Some(appended) = self.append_read(log, record, &touches, frees, read, patience)? else {
            return Ok(false);
        };
        let full = {
            let state = self.state.load();
            let operation = Operation {
                offset: 0,
                keyspace: shared.id,
                key,
                message,
            };
            enter(
                self,
                &state,
                &operation,
                appended.lsn..appended.end,
                durability,
            );
            log.publish(&appended);
            looks && wants_seal(&state, shared.id)
        };
        self.count_one(shared, message, bytes);
        self.after_write(log, &appended, full, (durability, frees), patience)?;
        Ok(true)
    }

    /// Appends the record of a batch whose conditions hold, or fails with the condition that does
    /// not.
    pub(super) fn append_required(
        &self,
        log: &Log,
        batch: PreparedBatch<'_>,
        touches: &[Touch],
        patience: &mut Patience,
    ) -> Result<Appended> {
        let PreparedBatch {
            payload,
            frees,
            required,
            ..
        } = batch;
        let mut collected = Vec::new();
        for _ in 0..ATTEMPTS_MAX {
            self.env.breathe();
            log.watch_a_while();
            let before = self.look_at_required(required, &mut collected)?;
            let read = Read {
                before,
                footprint: Footprint::Required(required),
                collected: &collected,
            };
            let record = (BATCH, &[payload][..]);
            if let Some(appended) =
                self.append_read(log, record, touches, frees, &read, patience)?
            {
                return Ok(appended);
            }
        }
        let first = required.first();
        Err(first.map_or_else(
            || Error::internal("a batch without conditions waited for them"),
            |required| busy(&required.keyspace, &required.key).error(),
        ))
    }

    /// Checks conditions that nothing is written under.
    pub(super) fn check_required(&self, required: &[Required]) -> Result<()> {
        match required.is_empty() {
            true => Ok(()),
            false => self.look_at_required(required, &mut Vec::new()).map(|_| ()),
        }
    }

    /// Checks conditions as of one moment, and returns the bound of that moment.
    fn look_at_required(
        &self,
        required: &[Required],
        collected: &mut Vec<Collected>,
    ) -> Result<Lsn> {
        collected.clear();
        let epoch = self.records.epoch();
        let observed = self.observe()?;
        let before = observed.before;
        for required in required {
            let shared = &required.keyspace;
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            collected.push((shared.id, keyspace.collection));
            let key = &required.key;
            if let Requirement::Version(version) = &required.asks {
                if !self.is_unchanged(keyspace, key, version, before)? {
                    return Err(conflict(shared, key, ConflictCause::Changed).error());
                }
                continue;
            }
            let value = newest(self, epoch, keyspace, before, key)?;
            let holds = match &required.asks {
                Requirement::Absent => value.is_none(),
                Requirement::Present => value.is_some(),
                Requirement::Equals(wanted) => value.as_deref() == Some(wanted),
                Requirement::Version(_) => true,
            };
            if !holds {
                return Err(conflict(shared, key, ConflictCause::Value(value)).error());
            }
        }
        Ok(before)
    }

    /// The version of a key that a read with this bound saw.
    pub fn version_of(&self, keyspace: &KeyspaceState, before: Lsn) -> Version {
        Version {
            incarnation: self.log.as_ref().map(Log::incarnation),
            collection: keyspace.collection,
            before,
        }
    }

    /// Whether no record from the version's bound to `before` changed the key, as the memtables
    /// tell. False too if the memtables no longer tell.
    pub fn is_unchanged(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        version: &Version,
        before: Lsn,
    ) -> Result<bool> {
        let log = self.log()?;
        let oldest = keyspace
            .sealed
            .as_ref()
            .map_or(&keyspace.active, |s| &s.records);
        let is_known = version.incarnation == Some(log.incarnation())
            && version.collection == keyspace.collection
            && (oldest.start <= version.before || mutant::active("version-outlives-its-memtable"));
        let newest = keyspace
            .memtables()
            .find_map(|memtable| memtable.memtable.get_versioned(key, before));
        Ok(is_known && newest.is_none_or(|(lsn, _)| lsn < version.before))
    }

    /// Appends a record if nothing changed what was read; waits for room in the log.
    fn append_read(
        &self,
        log: &Log,
        record: (u8, &[&[u8]]),
        touches: &[Touch],
        frees: bool,
        read: &Read<'_>,
        patience: &mut Patience,
    ) -> Result<Option<Appended>> {
        let hits = |entry: &Touched| read.footprint.is_hit_by(entry);
        let mut from = From::Lsn(read.before);
        let mut attempt = || {
            loop {
                let is_same = || {
                    let state = self.state.load();
                    let mut all = read.collected.iter();
                    all.all(|(id, collection)| {
                        let keyspace = state.keyspaces.get(*id);
                        keyspace.is_some_and(|keyspace| keyspace.collection == *collection)
                    })
                };
                let appended = log.try_append_unless(record, touches, from, hits, is_same)?;
                if appended.is_some() || !is_same() {
                    return Ok(appended);
                }
                match tested(log, from, hits) {
                    Some(next) if next != from => from = next,
                    _ => return Ok(None),
                }
            }
        };
        match attempt() {
            Ok(Some(Append::Done(appended))) => Ok(Some(appended)),
            Ok(None) => Ok(None),
            other => self.append_when(log, frees, other, patience, attempt),
        }
    }
}

/// What a conditional write has read.
pub(crate) struct Read<'a> {
    /// The reader saw each record below this LSN.
    pub before: Lsn,
    /// The keys that it read.
    pub footprint: Footprint<'a>,
    /// The keyspaces that it read.
    pub collected: &'a [Collected],
}

/// Tests what the records from a place on touched, without the append lock. Returns the place
/// behind them, or `None` if one hits or if the log does not know them all.
fn tested(log: &Log, mut from: From, hits: impl Fn(&Touched) -> bool) -> Option<From> {
    let mut entries = Vec::new();
    loop {
        entries.clear();
        let copied = log.touched_since(from, &mut entries);
        if entries.iter().any(&hits) {
            return None;
        }
        match copied {
            Copied::All(next) => return Some(next),
            Copied::Some(next) => from = next,
            Copied::Lost => return None,
        }
    }
}

/// What a write with a condition that does not hold returns.
pub(crate) fn conflict(shared: &KeyspaceShared, key: &[u8], cause: ConflictCause) -> Conflict {
    Conflict {
        keyspace: shared.name.clone(),
        key: key.into(),
        cause,
    }
}

fn busy(shared: &KeyspaceShared, key: &[u8]) -> Conflict {
    conflict(shared, key, ConflictCause::Busy)
}
