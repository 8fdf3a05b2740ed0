//! Sorted ingest: records in key order become a part of a keyspace's tree without the log and
//! without a memtable.
//!
//! 1. *Merge*. A checkpoint merges what the keyspace's memtables hold.
//! 2. *Hold*. From now on no checkpoint changes the tree ([`crate::engine::ingests`]). Writers go
//!    on in the memtables. What they write is newer than the ingest, before and after a crash: the
//!    log keeps it, since the keyspace's applied LSN stays where it is.
//! 3. *Build*. The caller's thread writes the pages of the next tree. After each group it looks
//!    whether the ingest may go on.
//! 4. *Graft*. A checkpoint makes the tree durable, and then visible (`job::graft`). It changes the
//!    keyspace's collection under the log's append lock, so that no cached record and no
//!    conditional write takes the old tree for the new one.
//!
//! An error, a panic of the caller's iterator, or a close of the database gives the pages back and
//! ends the hold. After a crash the trees do not name the pages, so they are free. That holds for
//! the pages of large values, too, which the ingest writes like a put: the log does not name them,
//! and the tree adopts them with the graft.
//!
//! For a structure that does not take in sorted records ([`Structure::ingests`]), and for a
//! keyspace with separated values, the records become a tree of their own, which a merge then
//! brings into the keyspace's. That writes them twice, and needs the room for both.
//!
//! [`Structure::ingests`]: terrapin_structure::Structure::ingests

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{
    Condition, Error, ErrorKind, KeyspaceId, Message, MessageKind, Result, mutant,
};
use terrapin_pages::Pin;
use terrapin_structure::{
    Direction, Erased, Estimate, Found, Ingest, MergeInput, MergeOptions, MergeStep, Merged,
    MessageCursor, Scan, Structure, Version,
};
use terrapin_valuelog::Handle;
use terrapin_valuelog::large::{LargeRef, LargeWriter, OwnedLarge};

use crate::checkpoint::job::graft::{cleared, is_of};
use crate::checkpoint::request::checkpoint_through;
use crate::disk_space::room;
use crate::engine::core::Core;
use crate::engine::health::closed;
use crate::engine::ingests::{Grafted, Hold, Outcome, Ready};
use crate::engine::running_merge::guarded;
use crate::engine::state::KeyspaceShared;
use crate::log_record::check_sizes;
use crate::write::large::LastingValue;

/// Rest of a caller that waits for the checkpoint under way, in nanoseconds, in case it missed the
/// signal.
const WAIT_NS: u64 = 100_000_000;

/// An ingest under way. Dropping it gives back what it wrote.
pub(crate) struct Ingesting {
    core: Arc<Core>,
    shared: Arc<KeyspaceShared>,
    hold: Held,
    base: Base,
    options: MergeOptions,
    builder: Box<dyn Ingest>,
    /// For a structure that takes in no sorted records: that structure.
    merges_into: Option<Arc<dyn Structure>>,
    /// Large values that were written. Dropping them gives their pages back.
    large: Vec<OwnedLarge>,
    /// The last key.
    last: Vec<u8>,
    records: u64,
    bytes: u64,
    /// Key and value bytes until the next look.
    until_look: u64,
}

/// The tree that an ingest builds upon, and what keeps its pages.
struct Base {
    version: Arc<dyn Version>,
    pin: Option<Pin>,
}

/// A hold on a keyspace.
struct Held {
    core: Arc<Core>,
    keyspace: KeyspaceId,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.core.ingests.release(self.keyspace, self.number) {
            // Memtables of the keyspace may have waited.
            self.core.schedule.end_rest();
        }
    }
}

impl Ingesting {
    /// Merges what was written before, and takes hold of the keyspace.
    pub fn begin(core: &Arc<Core>, shared: &Arc<KeyspaceShared>) -> Result<Self> {
        core.env.breathe();
        core.health.check_open()?;
        let log = core.log()?;
        if let Some(error) = log.failed() {
            return Err(error);
        }
        core.check_room()?;
        // Before the checkpoint, which would wait for the other ingest, perhaps of this thread.
        if core.ingests.holds(shared.id) {
            return Err(another(shared));
        }
        let is_written = {
            let observed = core.observe_apart()?;
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| core.dropped().with("keyspace", &shared.name))?;
            keyspace.is_written()
        };
        if is_written && !mutant::active("ingest-skips-first-merge") {
            checkpoint_through(core, log.end())?;
        }
        let hold = take_hold(core, shared)?;
        let state = core.state.load_full();
        let keyspace = state.keyspaces.get(shared.id);
        let keyspace = keyspace.ok_or_else(|| core.dropped().with("keyspace", &shared.name))?;
        let options = core.merge_of(&keyspace.options, false);
        let base = Base {
            version: keyspace.version.clone(),
            pin: state.pin.clone(),
        };
        let structure = &keyspace.structure;
        let (builder, merges_into) = match begin(structure, &base.version, &options)? {
            Some(builder) => (builder, None),
            None => {
                let other = core.structures.of_ingests();
                let whole = MergeOptions {
                    separate_from: None,
                    ..options.clone()
                };
                let builder = begin(other, &other.empty(), &whole)?;
                let builder = builder
                    .ok_or_else(|| Error::internal("no structure takes in sorted records"))?;
                (builder, Some(structure.clone()))
            }
        };
        Ok(Ingesting {
            core: core.clone(),
            shared: shared.clone(),
            hold,
            base,
            until_look: options.group_bytes,
            options,
            builder,
            merges_into,
            large: Vec::new(),
            last: Vec::new(),
            records: 0,
            bytes: 0,
        })
    }

    /// Takes in a record. Its key is above all before.
    #[inline]
    pub fn add(&mut self, key: &[u8], message: Message<'_>) -> Result<()> {
        if let Some(value) = self.core.large_of(key, message) {
            return self.add_long(key, value);
        }
        check_sizes(key, message).map_err(|error| error.with("position", self.records))?;
        self.check_order(key)?;
        self.builder.add(key, message)?;
        self.count(key, message.value_bytes() as u64)
    }

    #[cold]
    fn add_long(&mut self, key: &[u8], (value, deadline_ms): LastingValue<'_>) -> Result<()> {
        let mut writer = self.begin_large(key, value.len() as u64)?;
        writer.write(value)?;
        self.add_written(key, writer.finish(deadline_ms)?)
    }

    /// Begins to write the large value of a record, whose key is above all before. Its page is not
    /// in the log: until the tree is durable, it is free after a crash.
    pub fn begin_large(&self, key: &[u8], length: u64) -> Result<LargeWriter> {
        self.check_order(key)?;
        let begun = self.core.begin_large(&self.shared, key, length);
        begun.map_err(|error| error.with("position", self.records))
    }

    /// Takes in a record whose large value was written.
    pub fn add_written(&mut self, key: &[u8], large: OwnedLarge) -> Result<()> {
        let LargeRef {
            length,
            deadline_ms,
            ..
        } = *large.large();
        let mut handle = Vec::with_capacity(Handle::BYTES_MAX);
        large
            .large()
            .handle()
            .encode_large(deadline_ms, &mut handle);
        self.large.push(large);
        self.builder.add(key, Message::Separated(&handle))?;
        self.count(key, length)
    }

    #[inline]
    fn check_order(&self, key: &[u8]) -> Result<()> {
        match self.records > 0 && *key <= *self.last && !mutant::active("ingest-takes-any-order") {
            true => Err(self.out_of_order(key)),
            false => Ok(()),
        }
    }

    /// Counts a record that was taken in.
    #[inline]
    fn count(&mut self, key: &[u8], value_bytes: u64) -> Result<()> {
        self.last.clear();
        self.last.extend_from_slice(key);
        self.records += 1;
        let bytes = key.len() as u64 + value_bytes;
        self.bytes += bytes;
        match self.until_look.checked_sub(bytes) {
            Some(left) => self.until_look = left,
            None => {
                self.look()?;
                self.until_look = self.options.group_bytes;
            }
        }
        Ok(())
    }

    /// What the keyspace's records share.
    pub fn shared(&self) -> &KeyspaceShared {
        &self.shared
    }

    /// The core of the database.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Number of records taken in so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Makes the records durable and visible. Returns their number.
    pub fn finish(mut self) -> Result<u64> {
        self.look()?;
        let Self { builder, large, .. } = self;
        let merged = guarded(|| builder.finish())?;
        let (core, shared) = (self.core, self.shared);
        let has_handles = !large.is_empty();
        let merged = match &self.merges_into {
            None => merged,
            Some(structure) => {
                let totals = Estimate {
                    records: self.records,
                    bytes: self.bytes,
                };
                merge(
                    &core,
                    structure,
                    &self.base.version,
                    (merged, has_handles),
                    totals,
                    &self.options,
                )?
            }
        };
        let outcome = Arc::<Outcome>::default();
        let ready = Ready {
            keyspace: shared.id,
            base: self.base.version,
            version: merged.version,
            changes: merged.changes,
            large,
            records: self.records,
            outcome: outcome.clone(),
        };
        if let Some(ready) = core.ingests.hand_over(ready) {
            core.store.abandon(ready.changes);
            return Err(closed());
        }
        // Ends a rest, too.
        core.schedule.end_rest();
        match wait_for(&core, &outcome)? {
            Grafted::Visible => {}
            Grafted::Failed(error) => return Err(error.with("keyspace", &shared.name)),
            Grafted::Overtaken => {
                // The clear or drop holds after a crash, too, once it is in the log.
                let log = core.log()?;
                log.sync(log.end())?;
                let state = core.state.load();
                let keyspace = state.keyspaces.get(shared.id);
                return Err(keyspace.map_or_else(
                    || core.dropped().with("keyspace", &shared.name),
                    |keyspace| cleared(keyspace),
                ));
            }
        }
        drop(self.hold);
        core.counters.ingested_records.add(self.records);
        core.counters.user_bytes_written.add(self.bytes);
        shared.counters.ingested(self.bytes);
        Ok(self.records)
    }

    /// Checks after each group that the ingest may go on, and lets go of pages that it no longer
    /// needs.
    #[cold]
    fn look(&mut self) -> Result<()> {
        let core = &*self.core;
        core.env.breathe();
        core.health.check_open()?;
        if let Some(error) = core.log()?.failed() {
            return Err(error);
        }
        let state = core.state.load();
        let keyspace = state.keyspaces.get(self.shared.id);
        let keyspace =
            keyspace.ok_or_else(|| core.dropped().with("keyspace", &self.shared.name))?;
        if !is_of(keyspace, &self.base.version) {
            return Err(cleared(keyspace));
        }
        // The newest generation has all pages of the tree. An older one would keep what others
        // free.
        self.base.pin.clone_from(&state.pin);
        drop(state);
        match room::has_room_for_ingest(core) {
            true => Ok(()),
            false => Err(room::no_room(core).with("records taken in", self.records)),
        }
    }

    #[cold]
    fn out_of_order(&self, key: &[u8]) -> Error {
        let message = match *key == *self.last {
            true => "an ingest got a key twice: give each key once, or use puts",
            false => "an ingest got a key below the key before it: sort the records, or use puts",
        };
        Error::invalid(message)
            .with("position", self.records)
            .with("key", key.escape_ascii())
            .with("key before it", self.last.escape_ascii())
    }
}

fn begin(
    structure: &Arc<dyn Structure>,
    base: &Arc<dyn Version>,
    options: &MergeOptions,
) -> Result<Option<Box<dyn Ingest>>> {
    match structure.ingests() {
        Some(ingests) => guarded(|| ingests.begin_ingest(base, options)),
        None => Ok(None),
    }
}

fn another(shared: &KeyspaceShared) -> Error {
    let message = "another ingest into the keyspace is under way: wait for its end";
    Error::new(ErrorKind::Conflict, message).with("keyspace", &shared.name)
}

/// Takes hold of a keyspace, once no checkpoint changes its tree.
fn take_hold(core: &Arc<Core>, shared: &KeyspaceShared) -> Result<Held> {
    let keyspace = shared.id;
    loop {
        core.health.check_open()?;
        match core.ingests.hold(keyspace) {
            Hold::Taken(number) => {
                return Ok(Held {
                    core: core.clone(),
                    keyspace,
                    number,
                });
            }
            Hold::Other => return Err(another(shared)),
            Hold::Closed => return Err(closed()),
            Hold::Later => {}
        }
        let (ingests, schedule) = (core.ingests.clone(), core.schedule.clone());
        let is_over = move || !ingests.is_merging(keyspace) || schedule.is_stopping();
        let condition = Condition::new(core.schedule.progress(), is_over);
        core.env
            .wait(&condition.until(core.env.now_ns() + WAIT_NS))?;
    }
}

/// Waits for what becomes of a tree.
fn wait_for(core: &Core, outcome: &Arc<Outcome>) -> Result<Grafted> {
    loop {
        let failures = core.schedule.failures();
        if let Some(grafted) = outcome.get() {
            return Ok(grafted);
        }
        let failed = core.log()?.failed();
        let is_over = core.schedule.is_stopping() || failed.is_some();
        if is_over {
            // The job that would take it has ended, or waits for the end.
            if let Some(ready) = core.ingests.take_back(outcome) {
                core.store.abandon(ready.changes);
                return Err(failed.unwrap_or_else(closed));
            }
            if let Some(grafted) = outcome.get() {
                return Ok(grafted);
            }
            if core.schedule.is_stopping() {
                return Err(failed.unwrap_or_else(closed));
            }
        }
        let (schedule, known) = (core.schedule.clone(), outcome.clone());
        let has_news = move || {
            known.get().is_some() || schedule.failures() != failures || schedule.is_stopping()
        };
        core.env
            .wait(&Condition::new(core.schedule.progress(), has_news))?;
    }
}

/// Merges a tree of records into the tree of a structure that takes in no sorted records.
fn merge(
    core: &Core,
    structure: &Arc<dyn Structure>,
    base: &Arc<dyn Version>,
    (records, has_handles): (Merged, bool),
    totals: Estimate,
    options: &MergeOptions,
) -> Result<Merged> {
    // Freed at the end of this function.
    let _pages = core.store.private(records.changes);
    let input = Arc::new(Records {
        version: records.version,
        totals,
        has_handles,
    });
    let merge = guarded(|| structure.begin_merge(base, input, options))?;
    let merged = loop {
        match guarded(|| merge.step()) {
            Ok(MergeStep::Again) => core.env.breathe(),
            Ok(MergeStep::Pending(condition)) => drop(core.env.wait(&condition)?),
            Ok(MergeStep::Done) => break guarded(|| merge.finish()),
            Err(error) => break Err(error),
        }
    };
    merged.inspect_err(|_| merge.abandon())
}

/// A tree of records as the input of a merge.
struct Records {
    version: Arc<dyn Version>,
    totals: Estimate,
    /// Some are handles of large values.
    has_handles: bool,
}

/// A cursor over a tree's records. The record is copied, since a scan lends it for one call.
struct RecordCursor {
    scan: Box<dyn Scan>,
    version: Arc<dyn Version>,
    key: Vec<u8>,
    kind: MessageKind,
    payload: Vec<u8>,
    is_at_end: bool,
}

impl MergeInput for Records {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let ordered = self.version.ordered();
        let ordered =
            ordered.ok_or_else(|| Error::internal("the tree of an ingest keeps no order"))?;
        let bounds = (
            lo.map_or(Bound::Unbounded, Bound::Included),
            hi.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let mut cursor = RecordCursor {
            scan: ordered.scan(bounds, Direction::Forward)?,
            version: self.version.clone(),
            key: Vec::new(),
            kind: MessageKind::Put,
            payload: Vec::new(),
            is_at_end: false,
        };
        cursor.advance()?;
        Ok(Box::new(cursor))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        if lo.is_none() && hi.is_none() {
            return self.totals;
        }
        let bounds = (
            lo.map_or(Bound::Unbounded, Bound::Included),
            hi.map_or(Bound::Unbounded, Bound::Excluded),
        );
        let part = self.version.ordered().map(|all| all.estimate(bounds));
        part.and_then(Result::ok).unwrap_or_default()
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    fn has_handles(&self) -> bool {
        self.has_handles
    }
}

impl MessageCursor for RecordCursor {
    fn key(&self) -> Option<&[u8]> {
        (!self.is_at_end).then_some(&self.key[..])
    }

    fn message(&self) -> Message<'_> {
        Message::of(self.kind, &self.payload)
    }

    fn advance(&mut self) -> Result<()> {
        match self.scan.next()? {
            Some((key, value)) => {
                self.key.clear();
                self.key.extend_from_slice(key);
                self.payload.clear();
                self.payload.extend_from_slice(value);
            }
            None => {
                self.is_at_end = true;
                return Ok(());
            }
        }
        self.kind = MessageKind::Put;
        // The scan shows nothing of a value with a deadline, and of a large one.
        if self.payload.is_empty() {
            let hash = hash64(&self.key);
            let found = match self.version.stored_values() {
                Some(values) => values.get_unread(&self.key, hash)?,
                None => self.version.get(&self.key, hash)?,
            };
            let (kind, payload) = match &found {
                Found::Expiring(payload) => (MessageKind::Expiring, payload),
                Found::Handle(handle) => (MessageKind::Separated, handle),
                Found::Nothing | Found::Value(_) | Found::Operands(_) => return Ok(()),
            };
            self.kind = kind;
            self.payload.extend_from_slice(payload);
        }
        Ok(())
    }
}
