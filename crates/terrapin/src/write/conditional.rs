//! Conditional writes: a write that depends on what its writer read.
//!
//! A conditional write takes no lock while it reads, waits or runs the user's code:
//!
//! 1. It has the log keep what records touch ([`terrapin_wal::Touch`]).
//! 2. It reads at a bound B: every record below B is in what it reads.
//! 3. It appends only if no record at or above B touches what it has read. The log tests the last
//!    records under the append lock, so no record can come between the test and the append. More
//!    records are copied and tested without the lock first.
//! 4. If a record hits, or the log no longer has what records touched, it begins again with 1. It
//!    first waits until the records that were in the way are published, so that it reads them.
//!
//! A clear, a drop and a batch of more than 64 operations touch everything.
//!
//! An ingest leaves no record. So the append also tests, under the same lock, that the keyspaces
//! have the collections that they had.
//!
//! A value that was read and has a deadline may expire meanwhile. So the append also tests, under
//! the same lock, that no view had a now at or after that deadline. It holds now until the record
//! is published ([`crate::engine::clock`]).
//!
//! A value that was decided upon is compared with the one that the next attempt reads. The user's
//! function runs again only if they differ, so a slow function and fast other writers both go on.
//!
//! Conditional writes are logged: an unlogged one has no place in the order that a crash keeps.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Error, ErrorKind, KeyspaceId, Lsn, Message, Result, Slice, expiry, mutant};
use terrapin_recordcache::Collection;
use terrapin_valuelog::large::OwnedLarge;
use terrapin_wal::{Append, Appended, Copied, From, Log, Reach, Touch, Touched};

use crate::engine::clock::{Ends, Hold, Moment};
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::log_record::format::{BATCH, put_large};
use crate::log_record::{Operations, check_sizes};
use crate::pacing::patience::Patience;
use crate::read::large::is_equal;
use crate::read::newest_apart;
use crate::types::condition::{Conflict, ConflictCause, Requirement, Version};
use crate::types::options::Durability;
use crate::write::{enter, head_of, record_of, wants_seal};

/// Attempts of a conditional write. Each failed one means that another writer wrote in between.
pub(crate) const ATTEMPTS_MAX: u32 = 10_000;

/// A value that was read, and its deadline in milliseconds since 1970.
type Read = (Option<Slice>, Option<u64>);

/// A record that was appended, and now, which is held if the writer read a deadline.
pub(super) type AppendedRead<'a> = (Appended, Option<Hold<'a>>);

/// What a conditional write does about the value that it read.
pub(crate) enum Decision<'a, R> {
    /// It writes, and then returns this.
    Write(New<'a>, R),
    /// It writes nothing, and returns this.
    Leave(R),
}

/// The new state of a key.
pub(crate) enum New<'a> {
    /// It has this value, until a deadline in milliseconds since 1970 if there is one.
    Put(Cow<'a, [u8]>, Option<u64>),
    /// It has this large value, which was written.
    Large(Arc<OwnedLarge>),
    /// It has no value.
    Delete,
}

/// Whether a record may have changed one of these keys, which are in order.
fn hits_keys(keys: &[(KeyspaceId, u64)], entry: &Touched) -> bool {
    let touch = &entry.touch;
    touch.reach == Reach::All || keys.binary_search(&(touch.keyspace, touch.hash)).is_ok()
}

/// A keyspace and the collection that it had for a reader. An ingest changes the collection and
/// leaves no record.
pub(crate) type Seen = (KeyspaceId, Collection);

/// A condition of a batch on one key.
#[derive(Clone)]
pub(crate) struct Required {
    pub keyspace: Arc<KeyspaceShared>,
    pub key: Box<[u8]>,
    pub hash: u64,
    pub asks: Requirement,
}

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
    /// Begins an attempt of a conditional write, before it reads. The attempt after a failed one
    /// first waits for what was in the way.
    pub fn begin_attempt(&self, log: &Log, attempt: u32) -> Result<()> {
        // First: a forked child must not ask for the log's lock, which nobody there may release.
        self.health.check_open()?;
        self.env.breathe();
        log.watch_a_while();
        if attempt > 0 {
            log.wait_until_published();
        }
        Ok(())
    }

    /// Reads a key, decides by its value, and writes if nothing changed the key meanwhile; else it
    /// tries again.
    pub fn write_if<'a, R>(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        durability: Durability,
        mut decide: impl FnMut(&Option<Slice>) -> Result<Decision<'a, R>>,
    ) -> Result<R> {
        check_durability(durability)?;
        check_sizes(key, Message::Delete)?;
        let timer = self.counters.put_timer(&self.env);
        let log = self.log()?;
        let mut patience = Patience::default();
        let mut last: Option<(Read, New<'a>, R)> = None;
        for attempt in 0..ATTEMPTS_MAX {
            self.begin_attempt(log, attempt)?;
            let epoch = self.records.epoch();
            let observed = self.observe_apart()?;
            let (before, ends) = (observed.before, Ends::default());
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            let at = observed.moment(Some(&ends));
            let value = newest_apart(self, epoch, keyspace, at, key)?;
            let seen = [(shared.id, keyspace.collection)];
            drop(observed);
            let read = (value, ends.first());
            let (read_last, new, result) = match last.take().filter(|(last, ..)| *last == read) {
                Some(decided) => decided,
                None => match decide(&read.0)? {
                    Decision::Leave(result) => return Ok(result),
                    Decision::Write(new, result) => (read, self.written(shared, key, new)?, result),
                },
            };
            let read = (before, &seen[..], &ends);
            let written =
                self.write_one_read(shared, key, &new, durability, read, &mut patience)?;
            if written {
                self.counters.put_done(&self.env, timer);
                return Ok(result);
            }
            last = Some((read_last, new, result));
        }
        Err(busy(shared, key).error())
    }

    /// Writes a value into a page of its own if it is large. All attempts of a write put that page.
    pub fn written<'a>(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        new: New<'a>,
    ) -> Result<New<'a>> {
        match &new {
            New::Put(value, deadline_ms) if self.is_large(key.len(), value.len()) => {
                let large = self.write_large(shared, key, (value, *deadline_ms))?;
                Ok(New::Large(Arc::new(large)))
            }
            New::Put(..) | New::Large(_) | New::Delete => Ok(new),
        }
    }

    /// Writes one put or delete if no record from `before` on touched the key, no ingest came since
    /// it was `seen`, and no deadline of what was read has come. Returns whether it did.
    pub fn write_one_read(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        new: &New<'_>,
        durability: Durability,
        read: (Lsn, &[Seen], &Ends),
        patience: &mut Patience,
    ) -> Result<bool> {
        let (before, seen, ends) = read;
        let payload;
        let message = match new {
            New::Put(value, None) => Message::Put(value),
            New::Put(value, Some(deadline_ms)) => {
                payload = expiry::payload(*deadline_ms, value);
                Message::Expiring(&payload)
            }
            New::Delete => Message::Delete,
            New::Large(large) => {
                return self.write_large_read(shared, (key, large), durability, read, patience);
            }
        };
        check_sizes(key, message)?;
        let log = self.log()?;
        let value = message.payload();
        let bytes = (key.len() + value.len()) as u64;
        let frees = message.is_delete();
        let looks = self.admit_apart(shared, bytes, frees, patience)?.looks;
        let head = head_of(shared.id, key, message);
        let pieces = [head.bytes(), key, value];
        let record = record_of(message, &pieces);
        let touches = [Touch::key(shared.id, key, hash64(key))];
        let keys = [(shared.id, touches[0].hash)];
        let record = (record.0, record.1, &touches[..]);
        let hits = |entry: &Touched| hits_keys(&keys, entry);
        let mut from = From::Lsn(before);
        let read = (&mut from, &hits, (seen, ends));
        let Some((appended, hold)) = self.append_read(log, record, frees, read, patience)? else {
            return Ok(false);
        };
        let full = {
            let state = self.state.load();
            let one = (&**shared, key, message);
            self.enter_one(log, &state, one, &appended, (durability, looks))
        };
        drop(hold);
        self.count_one(shared, message, bytes - shared.form.prefix_bytes() as u64);
        self.after_write(log, &appended, full, (durability, frees), patience)?;
        Ok(true)
    }

    /// [`Core::write_one_read`] of a large value, which has a page already.
    #[cold]
    fn write_large_read(
        &self,
        shared: &Arc<KeyspaceShared>,
        (key, large): (&[u8], &OwnedLarge),
        durability: Durability,
        (before, seen, ends): (Lsn, &[Seen], &Ends),
        patience: &mut Patience,
    ) -> Result<bool> {
        let log = self.log()?;
        let mut payload = Vec::with_capacity(key.len() + 64);
        put_large(&mut payload, shared.id, key, large.large());
        self.admit_apart(shared, payload.len() as u64, false, patience)?;
        let touches = [Touch::key(shared.id, key, hash64(key))];
        let keys = [(shared.id, touches[0].hash)];
        let hits = |entry: &Touched| hits_keys(&keys, entry);
        let mut from = From::Lsn(before);
        let read = (&mut from, &hits, (seen, ends));
        let record: (u8, &[&[u8]], &[Touch]) = (BATCH, &[&payload], &touches);
        let Some((appended, hold)) = self.append_read(log, record, false, read, patience)? else {
            return Ok(false);
        };
        // The record names the page: the memtable owns it from here on.
        large.give();
        let full = {
            let state = self.state.load();
            let operations = Operations::decode(BATCH, &payload).into_iter().flatten();
            for operation in operations.flatten() {
                let record = appended.lsn..appended.end;
                enter(self, &state, &operation, record, durability);
            }
            log.publish(&appended);
            wants_seal(&state, shared.id)
        };
        drop(hold);
        let bytes = (key.len() - shared.form.prefix_bytes()) as u64 + large.large().length;
        self.counters.puts.add(1);
        self.counters.user_bytes_written.add(bytes);
        shared.counters.wrote(true, bytes);
        self.after_write(log, &appended, full, (durability, false), patience)?;
        Ok(true)
    }

    /// Appends the record of a batch whose conditions hold, or fails with the condition that does
    /// not.
    pub(super) fn append_required(
        &self,
        log: &Log,
        record: (u8, &[&[u8]], &[Touch]),
        frees: bool,
        required: &[Required],
        patience: &mut Patience,
    ) -> Result<AppendedRead<'_>> {
        let keys = required.iter().map(|r| (r.keyspace.id, r.hash));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable();
        for attempt in 0..ATTEMPTS_MAX {
            self.begin_attempt(log, attempt)?;
            let (before, seen, ends) = self.look_at_required(required)?;
            let mut from = From::Lsn(before);
            let hits = |entry: &Touched| hits_keys(&keys, entry);
            let read = (&mut from, &hits, (&seen[..], &ends));
            if let Some(appended) = self.append_read(log, record, frees, read, patience)? {
                return Ok(appended);
            }
        }
        let first = required.first();
        Err(first.map_or_else(
            || Error::internal("a batch without conditions waited for them"),
            |required| busy(&required.keyspace, &required.key).error(),
        ))
    }

    /// Checks conditions as of one moment. Returns the bound of that moment, the collections of the
    /// keyspaces, and until when the values are live.
    pub(super) fn look_at_required(&self, required: &[Required]) -> Result<(Lsn, Vec<Seen>, Ends)> {
        let epoch = self.records.epoch();
        let observed = self.observe_apart()?;
        let ends = Ends::default();
        let at = observed.moment(Some(&ends));
        let mut seen = Vec::with_capacity(required.len());
        for required in required {
            let shared = &required.keyspace;
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            seen.push((shared.id, keyspace.collection));
            let key = &required.key;
            if let Requirement::Version(version) = &required.asks {
                if !self.is_unchanged(keyspace, key, version, at)? {
                    return Err(conflict(shared, key, ConflictCause::Changed).error());
                }
                continue;
            }
            let value = match newest_apart(self, epoch, keyspace, at, key) {
                // It is too long for memory, and it is there.
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    let holds = match &required.asks {
                        Requirement::Present | Requirement::Version(_) => true,
                        Requirement::Absent => false,
                        Requirement::Equals(wanted) => is_equal(keyspace, at, key, wanted)?,
                    };
                    match holds {
                        true => continue,
                        false => return Err(conflict(shared, key, ConflictCause::Large).error()),
                    }
                }
                value => value?,
            };
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
        Ok((at.before, seen, ends))
    }

    /// The version of a key that a read of this moment saw, and until when its value is live.
    pub fn version_of(&self, keyspace: &KeyspaceState, at: Moment<'_>, ends: &Ends) -> Version {
        Version {
            life: self.log.as_ref().map(Log::life_id),
            collection: keyspace.collection,
            before: at.before,
            deadline_ms: ends.first(),
        }
    }

    /// Whether no record from the version's bound to that of a moment changed the key, as the
    /// memtables tell, and its value has not expired. False too if the memtables no longer tell.
    pub fn is_unchanged(
        &self,
        keyspace: &KeyspaceState,
        key: &[u8],
        version: &Version,
        at: Moment<'_>,
    ) -> Result<bool> {
        let life = self.log()?.life_id();
        let oldest = keyspace
            .sealed
            .as_ref()
            .map_or(&keyspace.active, |s| &s.records);
        let is_known = version.life == Some(life)
            && version.collection == keyspace.collection
            && (oldest.start <= version.before || mutant::active("version-outlives-its-memtable"));
        let newest = keyspace
            .memtables()
            .find_map(|memtable| memtable.memtable.get_versioned(key, at.before));
        let is_live = version
            .deadline_ms
            .is_none_or(|deadline| at.is_live(deadline));
        Ok(is_known && is_live && newest.is_none_or(|(lsn, _)| lsn < version.before))
    }

    /// Appends a record if no record from `from` on `hits`, and if the keyspaces have the
    /// collections that were `seen`, and if nothing that was read has ended; waits for room in the
    /// log. If it does not append, the log does not tell what a record from `from` on touched, or
    /// that record hits, or an ingest came, or a deadline. Now is held, if a deadline was read,
    /// until the caller drops what it gets. The caller publishes the record before.
    pub(super) fn append_read(
        &self,
        log: &Log,
        (kind, payload, touches): (u8, &[&[u8]], &[Touch]),
        frees: bool,
        (from, hits, (seen, ends)): (&mut From, &impl Fn(&Touched) -> bool, (&[Seen], &Ends)),
        patience: &mut Patience,
    ) -> Result<Option<AppendedRead<'_>>> {
        let held = Cell::new(None);
        let holds = || {
            let state = self.state.load();
            let is_same = |(id, collection): &Seen| {
                let keyspace = state.keyspaces.get(*id);
                keyspace.is_some_and(|keyspace| keyspace.collection == *collection)
            };
            let is_same =
                seen.iter().all(is_same) || mutant::active("conditional-append-ignores-collection");
            is_same
                && ends.first().is_none_or(|first_ms| {
                    let hold = self.clock.hold(&self.env, first_ms);
                    let is_held = hold.is_some();
                    held.set(hold);
                    is_held
                })
        };
        let mut attempt = || {
            loop {
                let record = (kind, payload);
                let appended = log.try_append_unless(record, touches, *from, hits, holds);
                if !matches!(appended, Ok(Some(Append::Done(_)))) {
                    // Nobody holds now over a wait.
                    drop(held.take());
                }
                let appended = appended?;
                if appended.is_some() {
                    return Ok(appended);
                }
                match tested(log, *from, hits) {
                    Some(next) if next != *from => *from = next,
                    _ => return Ok(None),
                }
            }
        };
        let appended = match attempt() {
            Ok(Some(Append::Done(appended))) => Some(appended),
            Ok(None) => None,
            other => self.append_when(log, frees, other, patience, attempt)?,
        };
        let hold = held.take();
        let hold = hold.filter(|_| !mutant::active("now-goes-on-before-publication"));
        Ok(appended.map(|appended| (appended, hold)))
    }
}

/// Tests what the records from a place on touched, without the append lock. Returns the place
/// behind them, or `None` if one hits or if the log does not know them all.
fn tested(log: &Log, mut from: From, hits: &impl Fn(&Touched) -> bool) -> Option<From> {
    let mut entries = Vec::new();
    loop {
        entries.clear();
        let copied = log.touched_since(from, &mut entries);
        if entries.iter().any(hits) {
            return None;
        }
        match copied {
            Copied::All(next) => return Some(next),
            Copied::Some(next) => from = next,
            Copied::Lost => return None,
        }
    }
}

/// What a write with a condition on a stored key that does not hold returns.
pub(crate) fn conflict(shared: &KeyspaceShared, key: &[u8], cause: ConflictCause) -> Conflict {
    Conflict {
        keyspace: shared.name.clone(),
        key: shared.form.given(key).into(),
        cause,
    }
}

pub(crate) fn busy(shared: &KeyspaceShared, key: &[u8]) -> Conflict {
    conflict(shared, key, ConflictCause::Busy)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use terrapin_base::{Env, Purpose};
    use terrapin_disk::SimDisk;

    use super::*;
    use crate::log_record::format::UNLOGGED;
    use crate::types::options::Options;

    #[test]
    fn no_view_sees_a_value_expired_before_the_write_that_depends_on_it() {
        crate::testing::between::check().unwrap();
    }

    /// A writer that loses its processor between append and publication is in the way of others
    /// for long. They wait for it, and do not give up after some attempts.
    #[test]
    fn attempts_wait_for_a_record_that_is_not_published() {
        let disk = SimDisk::new(1);
        let options = Options::small();
        let database = options.open_on(Env::threads(), disk.handle()).unwrap();
        let keyspace = database.default_keyspace();
        for key in ["a", "b", "c", "d"] {
            keyspace.put(key, "1").unwrap();
        }
        let (_, version) = keyspace.get_versioned("b").unwrap();
        let log = database.core().log().unwrap();
        // It touches everything.
        let Append::Done(appended) = log.try_append(UNLOGGED, &[]).unwrap() else {
            panic!("the log is full");
        };
        thread::scope(|scope| {
            let swap = scope.spawn(|| keyspace.compare_and_swap("a", Some(b"1"), None));
            let by_version = scope.spawn(|| keyspace.compare_version_and_swap("b", &version, None));
            let pop = scope.spawn(|| keyspace.pop_last());
            let batch = scope.spawn(|| {
                let mut batch = database.batch();
                batch.require(&keyspace, "c", crate::Requirement::Present);
                batch.delete(&keyspace, "c");
                database.write(&batch)
            });
            // Time for more attempts than a write makes. A short wait can only hide a fault.
            let wait = Duration::from_millis(100).as_nanos() as u64;
            let core = database.core();
            let pause = terrapin_base::Condition::delay_until(core.env.now_ns() + wait);
            core.env.wait(&pause).unwrap();
            log.publish(&appended);
            assert!(swap.join().unwrap().unwrap().is_ok());
            assert!(by_version.join().unwrap().unwrap().is_ok());
            assert_eq!(pop.join().unwrap().unwrap().unwrap().0, "d");
            batch.join().unwrap().unwrap();
        });
        assert!(keyspace.is_empty().unwrap());
        database.close().unwrap();
    }

    #[test]
    fn what_records_touch_is_charged_to_the_budget() {
        let (database, _sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        let budget = database.core().budget.clone();
        keyspace.put("a", "1").unwrap();
        let before = budget.used(Purpose::Log);
        keyspace.take("a").unwrap();
        keyspace.take("a").unwrap();
        let taken = budget.used(Purpose::Log) - before;
        assert!((48 << 10..=768 << 10).contains(&taken), "{taken}");
        assert!(taken <= (budget.limit() / 64).max(48 << 10), "{taken}");
        database.close().unwrap();
        assert!(keyspace.take("a").is_err());
        assert!(budget.used(Purpose::Log) < before);
    }
}
