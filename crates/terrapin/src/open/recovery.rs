//! Replay puts the log's records into the memtables again, while checkpoints already run. A
//! keyspace takes records from its applied LSN on, where its memtable starts. The set of keyspaces
//! takes changes from the catalog's applied LSN on (D7).

use std::collections::BTreeMap;

use terrapin_base::sync::Ordering;

use terrapin_base::{
    Budget, Condition, Error, ErrorKind, KeyspaceId, Lsn, Purpose, Result, mutant,
};
use terrapin_structure::StructureId;
use terrapin_wal::{Record, Replay};

use crate::engine::core::{Core, Install};
use crate::engine::events;
use crate::log_record::format::{NOW, UNLOGGED, read_now};
use crate::log_record::{Operations, Schema};
use crate::types::options::Durability;
use crate::write::enter;

/// The error for a log that does not fit into memory (D11). The memory that the rest of the log
/// takes is estimated from the part that was replayed.
fn does_not_fit(budget: &Budget, replayed: u64, length: u64) -> Error {
    let used = u128::from(budget.used(Purpose::Memtable));
    let needed = used * u128::from(length.max(replayed)) / u128::from(replayed.max(1));
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    Error::new(
        ErrorKind::OutOfMemory,
        "the log does not fit into the memory budget, and a read-only open cannot checkpoint it: open it for writing, as `terrapin checkpoint` does",
    )
    .with("memory", budget.limit())
    .with(
        "memory needed, about",
        (needed / 8).saturating_mul(10).saturating_add(1 << 20),
    )
}

/// Replays everything. The database then serves calls.
pub(crate) fn replay(core: &Core, mut replay: Replay, schema_from: Lsn) -> Result<()> {
    // Keyspaces whose memtables the last record filled. That record went to no others.
    let mut filled = Vec::new();
    let mut unmerged = Vec::new();
    // Set when a tree with pages was dropped or cleared.
    let mut had_pages = false;
    let (from, end) = (replay.from(), replay.end());
    let began_ns = core.env.now_ns();
    events::replay_begins(from, end);
    while let Some(record) = replay.next()? {
        make_room(core, &filled, &mut unmerged)?;
        filled.clear();
        let full = {
            let mut install = core.install.lock();
            had_pages |= apply(core, &mut install, &record, schema_from, &mut filled)
                .map_err(|e| e.with("record at LSN", record.lsn))?;
            install.replay = Some(record.end);
            core.counters.replayed_records.add(1);
            let state = core.state.load();
            filled.retain(|id| state.keyspaces.get(*id).is_some_and(|k| k.is_full()));
            let mut full = filled.iter().filter_map(|id| state.keyspaces.get(*id));
            full.any(|k| k.sealed.is_none())
        };
        core.env.breathe();
        if core.log.is_none() {
            core.replayed.store(record.end.0, Ordering::Release);
            if core.budget.used(Purpose::Memtable) > core.budget.limit() / 10 * 9 {
                let replayed = record.end.0.saturating_sub(from.0);
                let length = end.0.saturating_sub(from.0);
                return Err(does_not_fit(&core.budget, replayed, length));
            }
        } else if full {
            core.seal_full();
        }
    }
    let end = replay.position();
    events::replay_ended(core, from, end, began_ns);
    let mut install = core.install.lock();
    install.replay = None;
    core.replayed.fetch_max(end.0, Ordering::AcqRel);
    let took_ns = core.env.now_ns().saturating_sub(began_ns);
    core.replay_bound
        .begin(end.0.saturating_sub(from.0), took_ns);
    core.plan_memory(&install);
    core.ask_for_space(had_pages);
    let (kept, durable) = (core.replay_bytes(), core.schedule.durable_through());
    if core.replay_bound.asks(kept, durable) {
        core.schedule.work().notify();
    }
    Ok(())
}

/// Waits while one of these keyspaces has a full memtable and a sealed one that is still being
/// merged, or while memtable memory is short. If the sealed memtable cannot be merged, this call
/// adds the keyspace to `unmerged`. The keyspace's active memtable then takes what memory there is.
fn make_room(core: &Core, full: &[KeyspaceId], unmerged: &mut Vec<KeyspaceId>) -> Result<()> {
    let Some(log) = &core.log else {
        return Ok(());
    };
    // Number of consecutive failed checkpoints that let no memtable go. The first may have begun
    // before this replay's memtable was sealed.
    let mut failed = 0;
    loop {
        // Read before the log's failure. A later failure ends the wait, and an earlier one ends it
        // here.
        let failures = core.schedule.failures();
        let releases = core.schedule.releases();
        let committed = core.counters.checkpoints.get();
        let short = core.memtables_are_large() && core.memtable_memory_is_short();
        let waiting: Vec<KeyspaceId> = {
            let state = core.state.load();
            let full = full.iter().filter_map(|id| state.keyspaces.get(*id));
            full.filter(|k| k.sealed.is_some() && k.is_full())
                .map(|k| k.id)
                .filter(|id| !unmerged.contains(id))
                .collect()
        };
        if waiting.is_empty() && !short {
            return Ok(());
        }
        if short && core.schedule.releasing_count() == 0 {
            core.seal_largest();
            if core.schedule.sealed_count() == 0 {
                return Ok(());
            }
            if waiting.is_empty() && goes_on_beside_others(core) {
                return Ok(());
            }
        }
        if let Some(error) = log.failed() {
            return Err(error.with("while", "replaying the log"));
        }
        let schedule = core.schedule.clone();
        core.env
            .wait(&Condition::new(core.schedule.progress(), move || {
                schedule.releases() != releases || schedule.failures() != failures
            }))?;
        // A checkpoint counts as failed even if the disk was said to have room in between.
        if core.counters.checkpoints.get() != committed {
            failed = 0;
        } else if core.schedule.failures() != failures {
            failed += 1;
        }
        if failed > 1
            && let Some(error) = core.schedule.last_error()
        {
            if short && !goes_on_beside_others(core) {
                return Err(error.with("while", "replaying the log"));
            }
            unmerged.extend(waiting);
            return Ok(());
        }
    }
}

/// Whether memtables that cannot be merged hold the short memory. Replay then goes on beside them,
/// as writers did.
fn goes_on_beside_others(core: &Core) -> bool {
    core.schedule.releasing_count() == 0
        && core.budget.used(Purpose::Memtable) <= core.budget.limit() / 10 * 11
}

/// Checks that a keyspace was ever created, given the next keyspace's number.
pub(crate) fn check_created(id: KeyspaceId, next_id: u32) -> Result<()> {
    if id.0 < next_id {
        return Ok(());
    }
    Err(
        Error::corrupt("a record names a keyspace that was never created")
            .with("keyspace number", id),
    )
}

/// Checks whether a change of the set of keyspaces can come next in a log, given the keyspaces
/// before it.
pub(crate) fn check_change(
    change: &Schema,
    names: &BTreeMap<Box<str>, KeyspaceId>,
    next_id: u32,
) -> Result<()> {
    match change {
        Schema::Create { id, .. } if id.0 > next_id => {
            Err(Error::corrupt("keyspace numbers are missing from the log")
                .with("keyspace number", id))
        }
        // The next keyspace needs a number, too, so no keyspace gets the last one.
        Schema::Create {
            id: KeyspaceId(u32::MAX),
            ..
        } => Err(
            Error::corrupt("a keyspace is created with a number that no keyspace may have")
                .with("keyspace number", u32::MAX),
        ),
        Schema::Create { id, name, .. } if id.0 == next_id && names.contains_key(&**name) => {
            let message = "a keyspace is created under the name of an existing one";
            Err(Error::corrupt(message).with("keyspace", name))
        }
        Schema::Create { .. } => Ok(()),
        Schema::Drop(KeyspaceId::DEFAULT) => Err(Error::corrupt("the default keyspace is dropped")),
        Schema::Drop(id) | Schema::Clear(id) | Schema::SetOptions(id, _) => {
            check_created(*id, next_id)
        }
    }
}

/// Applies one record and adds the keyspaces whose operations it has. Returns whether it removed a
/// tree with pages.
fn apply(
    core: &Core,
    install: &mut Install,
    record: &Record<'_>,
    schema_from: Lsn,
    touched: &mut Vec<KeyspaceId>,
) -> Result<bool> {
    match record.kind {
        UNLOGGED => return Ok(false),
        NOW => {
            let now_ms = read_now(record.payload)?;
            if !mutant::active("replay-forgets-now") {
                core.clock.raise(now_ms);
            }
            return Ok(false);
        }
        _ => {}
    }
    if let Some(operations) = Operations::decode(record.kind, record.payload) {
        let state = core.state.load();
        let mut first = None;
        for operation in operations {
            let operation = operation?;
            if mutant::active("replay-first-keyspace-of-batch")
                && *first.get_or_insert(operation.keyspace) != operation.keyspace
            {
                break;
            }
            check_created(operation.keyspace, install.next_id)?;
            // A dropped keyspace ignores its operations. Below the applied LSN, no memtable takes
            // the write.
            let place = record.lsn..record.end;
            if operation.change.has_deadline() {
                core.clock.begin(&core.env);
            }
            enter(core, &state, &operation, place, Durability::Process);
            if touched.last() != Some(&operation.keyspace) {
                touched.push(operation.keyspace);
            }
        }
        return Ok(false);
    }
    let change = {
        let state = core.state.load();
        let name_of = |id| Some(state.keyspaces.get(id)?.shared.name.clone());
        Schema::decode(record.kind, record.payload, &name_of)?
    };
    if record.lsn < schema_from && !mutant::active("schema-changes-replayed-twice") {
        return Ok(false);
    }
    check_change(&change, &install.names, install.next_id)?;
    let had_pages = match &change {
        Schema::Drop(id) | Schema::Clear(id) => core.may_have_pages(*id),
        Schema::Create { .. } | Schema::SetOptions(..) => false,
    };
    match change {
        Schema::Create { id, name, options } => {
            // A checkpoint's catalog may list it already, or a later record drops it.
            if id.0 == install.next_id {
                let number = match mutant::active("replayed-create-forgets-structure") {
                    true => StructureId::LEVELED,
                    false => options.structure.id(),
                };
                let structure = core.structures.get(number);
                let structure = structure.map_err(|error| error.with("keyspace", &name))?;
                core.apply_create(install, (id, &name), options, structure, record.lsn);
            }
        }
        Schema::Drop(id) => drop(core.apply_drop(install, id, record.lsn)),
        Schema::Clear(id) => core.apply_clear(install, id, record.lsn),
        Schema::SetOptions(id, options) => {
            if let Some(keyspace) = core.state.load().keyspaces.get(id) {
                let name = &keyspace.shared.name;
                let structure = core.structures.of_change(&keyspace.options, &options);
                let structure = structure.map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => error.with("keyspace", name),
                    _ => Error::corrupt("a record changes a keyspace to an impossible structure")
                        .with("keyspace", name)
                        .with("cause", error),
                })?;
                core.apply_options(install, id, (options, structure));
            }
        }
    }
    Ok(had_pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_record::format::{BATCH, PUT};
    use crate::memory::seal::tests::LOOKS;
    use crate::open::verify::{VerifyOptions, verify_on};
    use crate::{Database, KeyspaceOptions, Options};
    use terrapin_base::{Env, Sim};
    use terrapin_disk::SimDisk;
    use terrapin_wal::Append;

    /// Replay used to visit all memtables twice for every record.
    #[test]
    fn replay_of_a_record_visits_only_its_own_keyspaces() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let options = Options::small().memory(64 << 20).log_bytes_max(8 << 20);
        let open = || options.open_on(env.clone(), disk.handle()).unwrap();
        let database = open();
        let keyspaces: Vec<_> = (0..300)
            .map(|i| database.keyspace(&format!("keyspace {i}")).unwrap())
            .collect();
        database.checkpoint().unwrap();
        let records = 3000;
        for i in 0..records {
            let keyspace = &keyspaces[i % keyspaces.len()];
            keyspace.put(i.to_be_bytes(), "").unwrap();
        }
        sim.kill();
        disk.crash_process();
        drop((keyspaces, database));
        sim.kill();
        let before = LOOKS.get();
        let database = open();
        let looks = LOOKS.get() - before;
        assert!(database.metrics().replayed_records >= records as u64);
        assert!(looks < 2 * records as u64, "{looks} for {records} records");
        let last = database.keyspace("keyspace 299").unwrap();
        assert_eq!(last.iter().count(), 10);
        database.close().unwrap();
    }

    /// After a logged drop of the default keyspace, the database could never be opened again. Other
    /// impossible changes did nothing, or made two keyspaces of one name.
    #[test]
    fn replay_refuses_impossible_keyspaces() {
        let (taken, unknown) = (KeyspaceId(1), KeyspaceId(7));
        let options = KeyspaceOptions::default();
        let create = |id, name: &str| Schema::Create {
            id,
            name: name.into(),
            options,
        };
        for (change, is_refused) in [
            (create(KeyspaceId(2), "new"), false),
            (create(KeyspaceId(2), "taken"), true),
            (create(unknown, "new"), true),
            (Schema::Drop(taken), false),
            (Schema::Drop(KeyspaceId::DEFAULT), true),
            (Schema::Drop(unknown), true),
            (Schema::Clear(KeyspaceId::DEFAULT), false),
            (Schema::Clear(unknown), true),
            (Schema::SetOptions(taken, options), false),
            (Schema::SetOptions(unknown, options), true),
        ] {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let database = Options::small()
                .open_on(env.clone(), disk.handle())
                .unwrap();
            let keyspace = database.keyspace("taken").unwrap();
            assert_eq!(keyspace.id(), taken);
            drop(keyspace);
            let (kind, payload) = change.encode();
            die_with(database, (kind, &payload), &sim, &disk);
            check_refused(env, &disk, is_refused);
        }
    }

    /// `verify` used to panic here: no number follows the last one.
    #[test]
    fn replay_refuses_a_keyspace_of_the_last_number() {
        for (id, is_refused) in [(u32::MAX - 1, false), (u32::MAX, true)] {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let options = Options::small();
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            database.core().install.lock().next_id = id;
            database.default_keyspace().put("a", "1").unwrap();
            database.checkpoint().unwrap();
            let create = Schema::Create {
                id: KeyspaceId(id),
                name: "last".into(),
                options: KeyspaceOptions::default(),
            };
            let (kind, payload) = create.encode();
            die_with(database, (kind, &payload), &sim, &disk);
            check_refused(env, &disk, is_refused);
        }
    }

    /// The versions of a key in the active memtable of the default keyspace, newest first.
    fn versions(database: &Database, key: &str) -> Vec<(u64, Option<Vec<u8>>)> {
        let state = database.core().state.load();
        let keyspace = state.keyspaces.get(KeyspaceId::DEFAULT).unwrap();
        let mut cursor = keyspace.active.memtable.cursor(Lsn(0), Lsn(u64::MAX));
        cursor.seek(key.as_bytes());
        assert_eq!(cursor.key(), Some(key.as_bytes()));
        let versions = cursor.versions();
        versions
            .map(|(lsn, message)| (lsn.0, message.put_value().map(<[u8]>::to_vec)))
            .collect()
    }

    /// All operations of a batch had the LSN of their record, so only one of two merges of a key
    /// could have counted.
    #[test]
    fn each_logged_operation_has_an_lsn_of_its_own_and_a_replay_gives_the_same() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let options = Options::small();
        let open = || options.open_on(env.clone(), disk.handle()).unwrap();
        let database = open();
        let keyspace = database.default_keyspace();
        let log = database.core().log().unwrap().clone();
        let start = log.tail().0;
        let mut batch = database.batch();
        batch.put(&keyspace, "a", "1");
        batch.put(&keyspace, "b", "2");
        batch.put(&keyspace, "a", "3");
        batch.delete(&keyspace, "b");
        database.write(&batch).unwrap();
        let end = log.tail().0;
        assert_eq!(database.core().visible(), Lsn(end));
        keyspace.put("a", "4").unwrap();
        let both = |database: &Database| (versions(database, "a"), versions(database, "b"));
        let put = |lsn: u64, value: &str| (lsn, Some(value.as_bytes().to_vec()));
        // A put of one byte each takes six: kind, keyspace, length, key, length, value.
        let expected = (
            vec![put(end, "4"), put(start + 12, "3"), put(start, "1")],
            vec![(start + 18, None), put(start + 6, "2")],
        );
        assert_eq!(both(&database), expected);
        assert!(start + 18 < end);
        sim.kill();
        disk.crash_process();
        drop((keyspace, database, log));
        sim.kill();
        let database = open();
        assert_eq!(both(&database), expected);

        // The log has no payload of these, and the last one in front.
        let mut batch = database.batch();
        batch.put(&database.default_keyspace(), "c", "1");
        batch.delete(&database.default_keyspace(), "c");
        let start = database.core().log().unwrap().tail().0;
        database.write_with(&batch, Durability::None).unwrap();
        assert_eq!(versions(&database, "c"), [(start, None), put(start, "1")]);
        database.close().unwrap();
    }

    /// Operations that a later version writes were read as a keyspace number, or not at all.
    #[test]
    fn operations_of_later_versions_are_refused_by_name() {
        for (kind, payload, name) in [
            (BATCH, &[0x83][..], "delete range with a deadline"),
            (BATCH, &[0x84], "put large with a deadline"),
            (BATCH, &[0x81, 0, 0, 0, 0, 0, 0], "delete with a deadline"),
            (PUT + 5, &[0, 1], "set structure"),
            (0x80 | (PUT + 2), &[0], "merge with a deadline"),
        ] {
            let (env, sim) = Env::simulated(1);
            let disk = SimDisk::new(1);
            let options = Options::small();
            let database = options.open_on(env.clone(), disk.handle()).unwrap();
            die_with(database, (kind, payload), &sim, &disk);
            let verified = verify_on(env.clone(), disk.handle(), &VerifyOptions::new());
            let opened = options.open_on(env, disk.handle());
            for error in [
                verified.map(drop).unwrap_err(),
                opened.map(drop).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
                let named = format!("operation kind {name}");
                assert!(error.to_string().contains(&named), "{error}");
            }
        }
    }

    /// Writes a record to the log, then ends the process.
    fn die_with(database: Database, (kind, payload): (u8, &[u8]), sim: &Sim, disk: &SimDisk) {
        let log = database.core().log().unwrap();
        match log.try_append(kind, &[payload]).unwrap() {
            Append::Done(appended) => log.publish(&appended),
            Append::Full(_) => panic!("the ring is full"),
        }
        sim.kill();
        disk.crash_process();
        drop(database);
        sim.kill();
    }

    fn check_refused(env: Env, disk: &SimDisk, is_refused: bool) {
        let report = verify_on(env.clone(), disk.handle(), &VerifyOptions::new()).unwrap();
        assert_eq!(report.is_sound(), !is_refused, "{:?}", report.findings);
        let opened = Options::small().open_on(env, disk.handle());
        let refused = opened.err().map(|error| error.kind());
        assert_eq!(refused, is_refused.then_some(ErrorKind::Corrupt));
    }
}
