//! The path of a write, in this order:
//!
//! 1. Do all waiting (`pressure`).
//! 2. Append the record to the log.
//! 3. Insert it into the memtable that owns its LSN.
//! 4. Publish it.
//!
//! Between the append and the publication, a write does not wait and cannot fail, because every
//! later write becomes visible only after it.

pub mod conditional;
pub mod footprint;
pub mod large;
pub mod lasting;
pub mod pressure;
pub mod renew;
pub mod unchanged;

use std::ops::Range;
use std::sync::Arc;
use terrapin_base::sync::Ordering;

use terrapin_base::checksum::hash64;
use terrapin_base::{
    Condition, Error, ErrorKind, Fold, KEY_BYTES_MAX, KeyspaceId, Lsn, Message, Result, Stack,
    StackBase, mutant,
};
use terrapin_valuelog::large::{LargeRef, OwnedLarge};
use terrapin_wal::{Append, Appended, Log, Touch};

use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::state::{KeyspaceShared, LoggedMemtable, State};
use crate::log_record::format::{BATCH, DELETE, EXPIRING_PUT, Head, MERGE, PUT, UNLOGGED};
use crate::log_record::{Change, Operation, Operations, check_sizes};
use crate::pacing::patience::Patience;
use crate::planning::disk_state::DiskState;
use crate::types::condition::Conflict;
use crate::types::options::Durability;
use crate::write::conditional::Required;
use crate::write::unchanged::Unchanged;

/// Time between two attempts of a delete to find room in the log of a full disk, in nanoseconds.
const LOG_SPACE_RETRY_NS: u64 = 20_000_000;
/// The error text of a write or schema change that found no room in the log's ring in time.
const LOG_IS_SLOW: &str = "the write was not done: the log's disk does not keep up";
/// Maximum bytes that a sync adds to the log after a record: it fills the block and writes a mark
/// into the next one.
const SYNC_BYTES: u64 = 8 << 10;

/// Checks that a record is not longer than the log allows. Unlogged records obey the same limit.
fn check_fits(log: &Log, bytes: usize, message: &'static str) -> Result<()> {
    match bytes as u64 <= log.record_bytes_max() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::TooLarge, message)
            .with("bytes", bytes)
            .with("limit", log.record_bytes_max())),
    }
}

/// The checked operations of a batch, ready to be written.
#[derive(Clone, Copy)]
pub(crate) struct PreparedBatch<'a> {
    /// The payload of the log record.
    pub payload: &'a [u8],
    /// Number of operations.
    pub operations: usize,
    /// Whether all operations are deletes, which free space.
    pub frees: bool,
    /// Whether a range delete is among them.
    pub has_ranges: bool,
    /// The only keyspace of the operations. None if the batch is empty or writes to several.
    pub only_keyspace: Option<KeyspaceId>,
    /// The conditions of the write.
    pub asks: Asks<'a>,
    /// The large values that the payload names.
    pub large: &'a [Arc<OwnedLarge>],
}

/// The conditions of a write.
#[derive(Clone, Copy)]
pub(crate) enum Asks<'a> {
    /// None.
    Nothing,
    /// These, of a batch.
    Required(&'a [Required]),
    /// What a transaction depends on has not changed.
    Unchanged(&'a Unchanged<'a>),
}

/// Kind and payload of a log record, and what it touches.
type Record<'a> = (u8, &'a [&'a [u8]], &'a [Touch]);

/// The head of the record of one operation.
#[inline(always)]
fn head_of(id: KeyspaceId, key: &[u8], message: Message<'_>) -> Head {
    match message {
        Message::Put(_)
        | Message::Merge(_)
        | Message::Stack(_)
        | Message::Separated(_)
        | Message::Expiring(_) => Head::put(id, key.len()),
        Message::Delete => Head::delete(id),
    }
}

/// Kind and payload of the record of one operation, of its head, key and value.
#[inline(always)]
fn record_of<'a>(message: Message<'_>, pieces: &'a [&'a [u8]; 3]) -> (u8, &'a [&'a [u8]]) {
    match message {
        Message::Put(_) => (PUT, &pieces[..]),
        Message::Delete => (DELETE, &pieces[..2]),
        Message::Merge(_) => (MERGE, &pieces[..]),
        Message::Expiring(_) => (EXPIRING_PUT, &pieces[..]),
        Message::Stack(_) | Message::Separated(_) => unreachable!("users write no such messages"),
    }
}

/// What a write of one key touches. Kept out of the path of writes that nobody asks.
#[cold]
#[inline(never)]
fn touch_of(id: KeyspaceId, key: &[u8]) -> [Touch; 1] {
    [Touch::key(id, key, hash64(key))]
}

/// What a batch touches, if anybody asks. A range delete may touch any key.
fn touches_of(log: &Log, payload: &[u8]) -> Vec<Touch> {
    if !log.is_watched() {
        return Vec::new();
    }
    let operations = Operations::decode(BATCH, payload).into_iter().flatten();
    operations
        .flatten()
        .map(|operation| match operation.change {
            Change::Message(key, _) => Touch::key(operation.keyspace, key, hash64(key)),
            Change::DeleteRange(lo, _) if mutant::active("range-delete-touches-one-key") => {
                Touch::key(operation.keyspace, lo, hash64(lo))
            }
            Change::DeleteRange(..) => Touch::ALL,
            Change::Large(key, _) => Touch::key(operation.keyspace, key, hash64(key)),
        })
        .collect()
}

impl Core {
    /// Checks that a keyspace's merge operator takes an operand of a stored key.
    pub fn check_operand(&self, shared: &KeyspaceShared, key: &[u8], operand: &[u8]) -> Result<()> {
        self.health.check_open()?;
        let state = self.state.load();
        let keyspace = state.keyspaces.get(shared.id);
        let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
        let checked = keyspace.operator.check(key, operand);
        checked.map_err(|error| error.with("keyspace", &shared.name))
    }

    /// Puts a stored key: [`Core::write_one`], compiled for the most frequent message.
    #[inline(never)]
    pub fn put(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.write_message(shared, key, Message::Put(value), durability)
    }

    /// Writes one message of a stored key. The operand of a merge was
    /// [checked](Core::check_operand).
    #[inline(never)]
    pub fn write_one(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        message: Message<'_>,
        durability: Durability,
    ) -> Result<()> {
        self.write_message(shared, key, message, durability)
    }

    #[inline(always)]
    fn write_message(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        message: Message<'_>,
        durability: Durability,
    ) -> Result<()> {
        let bytes = key.len() + message.value_bytes();
        if key.len() > KEY_BYTES_MAX || bytes > self.settings.inline_bytes {
            if let Some(value) = self.large_of(key, message) {
                return self.put_long(shared, key, value, durability);
            }
            check_sizes(key, message)?;
        }
        let timer = self.counters.put_timer(&self.env);
        self.env.breathe();
        let log = self.log()?;
        let value = message.payload();
        let frees = message.is_delete();
        let early =
            mutant::active("writer-takes-memtable-before-wait").then(|| self.state.load_full());
        let mut patience = Patience::default();
        let admitted = self.admit(shared, bytes as u64, frees, &mut patience)?;
        let head = head_of(shared.id, key, message);
        if durability == Durability::None {
            check_fits(
                log,
                head.bytes().len() + bytes,
                "the record is larger than a quarter of the log's ring: open with a larger ring (Options::ring_bytes)",
            )?;
        }
        let pieces = [head.bytes(), key, value];
        let (kind, payload) = match durability {
            Durability::None => (UNLOGGED, &pieces[..0]),
            _ => record_of(message, &pieces),
        };
        let touch;
        let touches: &[Touch] = match log.is_watched() {
            true => {
                touch = touch_of(shared.id, key);
                &touch
            }
            false => &[],
        };
        let mut loaded = admitted.state;
        let appended = match log.try_append_touching(kind, payload, touches) {
            Ok(Append::Done(appended)) => appended,
            other => {
                // A write that waits must not keep a state alive.
                loaded = None;
                let record = (kind, payload, touches);
                self.append_when_there_is_room(log, record, frees, other, &mut patience)?
            }
        };
        let full = {
            let state = match loaded {
                Some(loaded) => self.still_current(loaded),
                None => self.state.load(),
            };
            let state = early.as_deref().unwrap_or(&state);
            let one = (&**shared, key, message);
            self.enter_one(log, state, one, &appended, (durability, admitted.looks))
        };
        let prefix_bytes = shared.form.prefix_bytes();
        self.count_one(shared, message, (bytes - prefix_bytes) as u64);
        self.after_write(log, &appended, full, (durability, frees), &mut patience)?;
        self.counters.put_done(&self.env, timer);
        Ok(())
    }

    /// Enters a record of one operation into its memtable, and publishes it. Returns whether the
    /// memtable is due to be sealed, if the write `looks` (`Admitted::looks`).
    #[inline(always)]
    fn enter_one(
        &self,
        log: &Log,
        state: &State,
        (shared, key, message): (&KeyspaceShared, &[u8], Message<'_>),
        appended: &Appended,
        (durability, looks): (Durability, bool),
    ) -> bool {
        let operation = Operation {
            offset: 0,
            keyspace: shared.id,
            change: Change::Message(key, message),
        };
        let record = appended.lsn..appended.end;
        let is_long = enter(self, state, &operation, record, durability);
        log.publish(appended);
        if is_long {
            remember_operands(state, shared.id, key, appended);
        }
        looks && wants_seal(state, shared.id)
    }

    #[inline(always)]
    fn count_one(&self, shared: &KeyspaceShared, message: Message<'_>, bytes: u64) {
        match message {
            Message::Put(_)
            | Message::Merge(_)
            | Message::Stack(_)
            | Message::Separated(_)
            | Message::Expiring(_) => self.counters.puts.add(1),
            Message::Delete => self.counters.deletes.add(1),
        }
        self.counters.user_bytes_written.add(bytes);
        shared.counters.wrote(!message.is_delete(), bytes);
    }

    /// Writes a batch as a whole or not at all.
    pub fn write_batch(&self, batch: PreparedBatch<'_>, durability: Durability) -> Result<()> {
        match self.write_batch_if(batch, durability)? {
            Ok(_) => Ok(()),
            Err(conflict) => Err(conflict.error()),
        }
    }

    /// Writes a batch as a whole, and returns the end of its record. The inner error says that what
    /// the batch depends on has changed ([`Asks::Unchanged`]). Then nothing was written.
    pub fn write_batch_if(
        &self,
        batch: PreparedBatch<'_>,
        durability: Durability,
    ) -> Result<Result<Lsn, Conflict>> {
        let PreparedBatch {
            payload,
            operations,
            frees,
            has_ranges,
            only_keyspace,
            asks,
            large,
        } = batch;
        self.health.check_open()?;
        let log = self.log()?;
        let is_conditional = !matches!(asks, Asks::Nothing);
        if is_conditional {
            conditional::check_durability(durability)?;
        }
        if operations == 0 {
            let seen = match asks {
                Asks::Required(required) => self.look_at_required(required)?.0,
                Asks::Nothing => self.visible(),
                // A transaction that only read asks for nothing to be durable.
                Asks::Unchanged(_) => return Ok(Ok(self.visible())),
            };
            // A synced batch makes all earlier writes durable, also if it is empty: the delete of
            // an empty range is such a batch.
            if durability == Durability::Sync {
                log.sync(seen)?;
            }
            return Ok(Ok(seen));
        }
        if durability == Durability::None && only_keyspace.is_none() {
            return Err(Error::invalid(
                "a batch with Durability::None touches one keyspace: split it, or write it with another durability",
            ));
        }
        check_given(large)?;
        check_fits(
            log,
            payload.len(),
            "the batch is larger than a quarter of the log's ring: split it, or open with a larger ring (Options::ring_bytes)",
        )?;
        let timer = self.counters.put_timer(&self.env);
        self.env.breathe();
        let mut patience = Patience::default();
        let looks = self.admit_batch(batch, &mut patience)?;
        // An unlogged batch cannot be merged in slices, nor can an unlogged range delete. On a
        // nearly full disk, the merge may need slices (D10), so both go into the log there.
        let is_alone = operations == 1 && !has_ranges;
        // The operations of an unlogged record share one LSN, which does not tell whether a put
        // comes before or behind a range delete of its key.
        let needs_lsns = operations > 1 && has_ranges;
        let durability = match durability {
            Durability::None if needs_lsns => Durability::Process,
            Durability::None if !is_alone && self.schedule.disk() != DiskState::Ample => {
                Durability::Process
            }
            durability => durability,
        };
        if is_conditional {
            log.watch_a_while();
        }
        let touches = touches_of(log, payload);
        let touches = touches.as_slice();
        let (appended, hold) = match durability {
            Durability::None => {
                let record: Record<'_> = (UNLOGGED, &[], touches);
                (self.append(log, record, frees, &mut patience)?, None)
            }
            _ => {
                let record: Record<'_> = (BATCH, &[payload], touches);
                match asks {
                    Asks::Nothing => (self.append(log, record, frees, &mut patience)?, None),
                    Asks::Required(required) => {
                        self.append_required(log, record, frees, required, &mut patience)?
                    }
                    Asks::Unchanged(unchanged) => {
                        match self.append_unchanged(log, record, frees, unchanged, &mut patience)? {
                            Ok(appended) => appended,
                            Err(conflict) => return Ok(Err(conflict)),
                        }
                    }
                }
            }
        };
        // The record names them: the memtables own their pages from here on.
        large.iter().for_each(|large| large.give());
        let looks = looks || !large.is_empty();
        let (mut puts, mut deletes, mut bytes, mut full) = (0, 0, 0, false);
        let mut long = Vec::new();
        {
            let state = self.state.load();
            let mut last = None;
            if mutant::active("batch-published-before-memtables") {
                log.publish(&appended);
            }
            if durability == Durability::None && !is_alone {
                let keyspace = only_keyspace.and_then(|id| state.keyspaces.get(id));
                if let Some(memtable) = keyspace.and_then(|k| k.memtable_of(appended.lsn)) {
                    memtable.unlogged_batch.store(true, Ordering::Release);
                }
            }
            // The batch encoded checked operations into these bytes, so every one decodes.
            for operation in Operations::decode(BATCH, payload)
                .into_iter()
                .flatten()
                .flatten()
            {
                let record = appended.lsn..appended.end;
                if enter(self, &state, &operation, record, durability)
                    && let Change::Message(key, _) = operation.change
                {
                    long.push((operation.keyspace, key));
                }
                let (is_put, mut size) = counted(&operation.change);
                if let Some(keyspace) = state.keyspaces.get(operation.keyspace) {
                    size = size.saturating_sub(keyspace.shared.form.prefix_bytes());
                    let counters = &keyspace.shared.counters;
                    counters.wrote(is_put, size as u64);
                }
                puts += u64::from(is_put);
                deletes += u64::from(!is_put);
                bytes += size;
                if last != Some(operation.keyspace) {
                    full |= looks && last.is_some_and(|id| wants_seal(&state, id));
                    last = Some(operation.keyspace);
                }
            }
            log.publish(&appended);
            drop(hold);
            for (id, key) in long {
                remember_operands(&state, id, key, &appended);
            }
            full |= looks && last.is_some_and(|id| wants_seal(&state, id));
        }
        self.counters.puts.add(puts);
        self.counters.deletes.add(deletes);
        self.counters.batches.add(1);
        self.counters.user_bytes_written.add(bytes as u64);
        if has_ranges {
            // The coordinator looks what the range deletes hide.
            self.schedule.ask_for_seal();
        }
        self.after_write(log, &appended, full, (durability, frees), &mut patience)?;
        self.counters.put_done(&self.env, timer);
        Ok(Ok(appended.end))
    }

    /// Waits until every keyspace of a batch admits its operations. Fails before any effect if a
    /// keyspace was dropped. Returns whether a memtable may have become full (`Admitted::looks`).
    fn admit_batch(&self, batch: PreparedBatch<'_>, patience: &mut Patience) -> Result<bool> {
        let PreparedBatch { payload, frees, .. } = batch;
        let mut admit = |id: KeyspaceId, bytes: u64| {
            let shared = self
                .state
                .load()
                .keyspaces
                .get(id)
                .map(|k| k.shared.clone());
            match shared {
                Some(shared) => Ok(self.admit_apart(&shared, bytes, frees, patience)?.looks),
                None => Err(self.dropped().with("keyspace number", id)),
            }
        };
        if let Some(id) = batch.only_keyspace {
            return admit(id, payload.len() as u64);
        }
        let (mut last, mut bytes, mut looks) = (None, 0, false);
        for operation in Operations::decode(BATCH, payload).into_iter().flatten() {
            let operation = operation?;
            if let Some(id) = last.filter(|id| *id != operation.keyspace) {
                looks |= admit(id, bytes)?;
                bytes = 0;
            }
            last = Some(operation.keyspace);
            bytes += operation.change.bytes() as u64;
        }
        if let Some(id) = last {
            looks |= admit(id, bytes)?;
        }
        Ok(looks)
    }

    /// Appends a record, and waits for room in the ring. Fails with `Stalled` if there is no room
    /// in time. On a full disk it fails with `NoSpace`, except for a record that `frees` space:
    /// that record waits for the checkpoint that makes room.
    fn append(
        &self,
        log: &Log,
        record: Record<'_>,
        frees: bool,
        patience: &mut Patience,
    ) -> Result<Appended> {
        let (kind, payload, touches) = record;
        match log.try_append_touching(kind, payload, touches) {
            Ok(Append::Done(appended)) => Ok(appended),
            other => self.append_when_there_is_room(log, record, frees, other, patience),
        }
    }

    #[cold]
    fn append_when_there_is_room(
        &self,
        log: &Log,
        (kind, payload, touches): Record<'_>,
        frees: bool,
        last: Result<Append>,
        patience: &mut Patience,
    ) -> Result<Appended> {
        let again = || log.try_append_touching(kind, payload, touches).map(Some);
        let appended = self.append_when(log, frees, last.map(Some), patience, again)?;
        appended.ok_or_else(|| Error::internal("an append without a condition was not done"))
    }

    /// Goes on from the outcome of an append: waits for room, and tries again. Returns `None` when
    /// an append's condition does not hold.
    #[cold]
    fn append_when(
        &self,
        log: &Log,
        frees: bool,
        mut last: Result<Option<Append>>,
        patience: &mut Patience,
        mut again: impl FnMut() -> Result<Option<Append>>,
    ) -> Result<Option<Appended>> {
        let since = self.env.now_ns();
        let deadline = patience.until_ns(&self.env, self.settings.stall_limit_ns);
        loop {
            let condition = match last {
                Ok(Some(Append::Done(appended))) => {
                    let waited = self.env.now_ns() - since;
                    self.counters.write_wait_ns.add(waited);
                    self.counters.waits.log.record(waited);
                    return Ok(Some(appended));
                }
                Ok(Some(Append::Full(condition))) => condition,
                Ok(None) => return Ok(None),
                Err(error) => self.wait_for_log_space(log, error, frees, deadline)?,
            };
            // The condition lives until the next attempt. While it lives, other writers leave room
            // for this record.
            let condition = condition.until(deadline);
            if !self.marks.log.holds(log.drained().0) {
                let cause = "the log has no room";
                let _stalled = self.stalls.log.begin(&self.env, cause, None);
                self.env.wait(&condition)?;
            } else if !condition.holds() {
                return Err(self.log_is_slow(log, since));
            }
            if self.env.now_ns() >= deadline {
                return Err(self.log_is_slow(log, since));
            }
            self.health.check_open()?;
            last = again();
        }
    }

    /// The error of a record that waited for room in the log since `since` (nanoseconds), or that
    /// does not wait because another record waited in vain.
    pub fn log_is_slow(&self, log: &Log, since: u64) -> Error {
        self.marks.log.leave(log.drained().0);
        let waited = self.env.now_ns().saturating_sub(since);
        self.counters.writes_refused.add(1);
        self.counters.write_wait_ns.add(waited);
        self.counters.waits.log.record(waited);
        Error::new(ErrorKind::Stalled, LOG_IS_SLOW)
            .with("waited_ms", waited / 1_000_000)
            .with("limit_ms", self.settings.stall_limit_ns / 1_000_000)
    }

    /// Waits until the log is durable below an LSN. On a full disk it fails with `NoSpace`, except
    /// for a record that `frees` space.
    fn sync_log(
        &self,
        log: &Log,
        through: Lsn,
        frees: bool,
        patience: &mut Patience,
    ) -> Result<()> {
        loop {
            let condition = match log.sync(through) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let deadline = patience.until_ns(&self.env, self.settings.stall_limit_ns);
                    self.wait_for_log_space(log, error, frees, deadline)?
                }
            };
            self.env.wait(&condition)?;
        }
    }

    /// The condition to wait for after the log refused a record or a sync. Returns the error
    /// instead if the disk is not full, if the record frees no space, or after the deadline.
    pub fn wait_for_log_space(
        &self,
        log: &Log,
        error: Error,
        frees: bool,
        deadline: u64,
    ) -> Result<Condition> {
        if error.kind() != ErrorKind::NoSpace {
            return Err(error);
        }
        self.disk_is_full(log, &error);
        let drained = log.drained().0;
        if !frees || self.marks.log.holds(drained) {
            return Err(error);
        }
        if self.env.now_ns() >= deadline {
            self.marks.log.leave(drained);
            return Err(error);
        }
        Ok(self.log_space_may_be_back())
    }

    /// Holds when memtables have left the state, or when it is time to try again.
    fn log_space_may_be_back(&self) -> Condition {
        let (schedule, releases) = (self.schedule.clone(), self.schedule.releases());
        Condition::new(self.schedule.progress(), move || {
            schedule.releases() != releases
        })
        .until(self.env.now_ns() + LOG_SPACE_RETRY_NS)
    }

    /// The log cannot get a new file. The rest of its current file is for deletes and for the
    /// checkpoint that trims the log (D10).
    #[cold]
    fn disk_is_full(&self, log: &Log, cause: &Error) {
        if !self.schedule.disk_is_full() {
            tracing::warn!(error = %cause, "the log cannot grow");
            room::run_short(self, cause);
        }
        self.schedule.ask(log.end());
    }

    /// The work after the publication, which may wait: seals, requests to checkpoint, the sync.
    pub fn after_write(
        &self,
        log: &Log,
        appended: &Appended,
        full: bool,
        (durability, frees): (Durability, bool),
        patience: &mut Patience,
    ) -> Result<()> {
        if full {
            let start = self.env.now_ns();
            self.seal_full();
            room::watch(self);
            let seal = self.env.now_ns().saturating_sub(start);
            self.counters.waits.seal.record(seal);
        }
        if self.memtable_memory_is_short() && self.schedule.releasing_count() == 0 {
            self.seal_largest();
        }
        let durable = self.schedule.durable_through();
        let kept = appended.end.0.saturating_sub(durable.0);
        if kept > self.replay_bound.asks_above() {
            self.log_is_long(kept, durable);
        }
        let synced = if durability == Durability::Sync {
            SYNC_BYTES
        } else {
            0
        };
        // This happens a few times for each log file.
        if (appended.lsn.0 ^ (appended.end.0 + synced)) >> self.settings.log_check_shift != 0 {
            room::watch(self);
            // Memtables grow at the cost of caches. A cache would otherwise notice that only at its
            // next insert.
            if self.records.over_target() {
                self.store.reclaim_signal().notify();
            }
            if self.store.shrink_needed() {
                self.store.shrink();
            }
        }
        if self.schedule.disk_is_full() {
            // The write was a delete, and its merge makes room.
            self.schedule.work().notify();
        }
        if durability == Durability::Sync && !mutant::active("sync-write-without-wait") {
            let start = self.env.now_ns();
            self.sync_log(log, appended.end, frees, patience)?;
            self.counters.syncs.add(1);
            self.counters
                .sync_latency
                .record(self.env.now_ns().saturating_sub(start));
        }
        Ok(())
    }
}

/// Checks that no record names these large values yet: a page has one version of one key.
fn check_given(large: &[Arc<OwnedLarge>]) -> Result<()> {
    match large.iter().any(|large| large.is_given()) {
        false => Ok(()),
        true => Err(Error::invalid(
            "the batch was written before, and its large values are put once: make a new batch",
        )),
    }
}

/// Whether an operation is a put, and the bytes of its key and value.
fn counted(change: &Change<'_>) -> (bool, usize) {
    match change {
        Change::Message(_, message) => (!message.is_delete(), change.bytes()),
        Change::DeleteRange(..) => (false, change.bytes()),
        Change::Large(key, bytes) => {
            let length = LargeRef::decode(bytes).map_or(0, |(large, _)| large.length);
            (true, key.len() + length as usize)
        }
    }
}

/// Enters a large value into a memtable, which owns its page from then on. The next checkpoint
/// releases the page if the memtable was removed.
#[cold]
fn enter_large(core: &Core, memtable: Option<&LoggedMemtable>, key: &[u8], lsn: Lsn, bytes: &[u8]) {
    // Whoever made the operation checked these bytes.
    let Ok((large, handle)) = LargeRef::decode(bytes) else {
        return;
    };
    let id = large.page.id;
    match memtable.filter(|memtable| memtable.large.add(id, large.page.bytes)) {
        Some(memtable) => drop(
            memtable
                .memtable
                .insert(key, lsn, Message::Separated(handle)),
        ),
        None => core.orphans.add(id),
    }
}

/// Inserts an operation of a record into the memtable that owns the record. Does nothing if the
/// keyspace was dropped, or cleared at a later LSN.
///
/// A logged operation enters at its own LSN, and a replay gives it the same LSN again. An unlogged
/// record has no payload, so its operations enter at the record's LSN. Of two on one key, the later
/// one is in front.
#[inline(always)]
pub(crate) fn enter(
    core: &Core,
    state: &State,
    operation: &Operation<'_>,
    record: Range<Lsn>,
    durability: Durability,
) -> bool {
    let keyspace = state.keyspaces.get(operation.keyspace);
    let owner = keyspace.and_then(|keyspace| Some((keyspace, keyspace.memtable_of(record.start)?)));
    let Some((keyspace, memtable)) = owner else {
        if let Change::Large(key, bytes) = operation.change {
            enter_large(core, None, key, record.start, bytes);
        }
        return false;
    };
    if !memtable.noted.load(Ordering::Acquire) {
        core.written.note(keyspace.id, memtable);
        core.set_limits(keyspace, &core.plan_in_force());
    }
    let lsn = match durability {
        Durability::None => {
            if !memtable.unlogged.load(Ordering::Relaxed)
                && !mutant::active("flush-forgets-unlogged-memtables")
            {
                memtable.unlogged.store(true, Ordering::Release);
            }
            record.start
        }
        _ => operation.lsn(&record),
    };
    match operation.change {
        Change::Message(key, message) => memtable.memtable.insert(key, lsn, message),
        Change::DeleteRange(lo, hi) => {
            memtable.memtable.insert_range(lo, hi, lsn);
            false
        }
        Change::Large(key, bytes) => {
            enter_large(core, Some(memtable), key, lsn, bytes);
            false
        }
    }
}

/// Combines the operands of a key in the memtable that a published record went to, so that reads
/// and the merge need not fold all of them.
#[cold]
#[inline(never)]
fn remember_operands(state: &State, id: KeyspaceId, key: &[u8], record: &Appended) {
    let keyspace = state.keyspaces.get(id);
    let owner = keyspace.and_then(|k| Some((k, &k.memtable_of(record.lsn)?.memtable)));
    let Some((keyspace, memtable)) = owner else {
        return;
    };
    let mut fold = Fold::default();
    // A memtable holds no damaged stack.
    if let Ok(Some(folded)) = memtable.fold(key, record.end, None, &mut fold) {
        let message = fold.finish(&keyspace.operator, key, None);
        // Operands that were given up in a stack still are in the memtable.
        let is_lost = matches!(message, Message::Stack(bytes)
            if Stack::decode(bytes).is_ok_and(|stack| stack.base == StackBase::Lost));
        if !is_lost {
            memtable.remember(folded, None, message);
        }
    }
}

#[inline]
fn wants_seal(state: &State, id: KeyspaceId) -> bool {
    state
        .keyspaces
        .get(id)
        .is_some_and(|k| k.sealed.is_none() && k.is_due())
}
