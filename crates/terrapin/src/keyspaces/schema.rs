//! Creating, dropping and clearing keyspaces, and changing their options. Each change is a log
//! record (D7): the engine appends it, installs it into the state, and publishes it. Replay applies
//! the records with the same functions. They are idempotent, since a checkpoint's catalog may
//! already hold the effect of a record above its LSN.

use std::sync::Arc;

use terrapin_base::{Condition, Error, ErrorKind, KeyspaceId, Lsn, Result, mutant};
use terrapin_memtable::Memtable;
use terrapin_structure::{Estimate, Structure};
use terrapin_wal::{Append, Appended, From, Log, Reach, Touched};

use crate::engine::core::{Core, Install};
use crate::engine::state::{KeyspaceShared, KeyspaceState, LoggedMemtable, State};
use crate::log_record::Schema;
use crate::log_record::format::check_name;
use crate::pacing::patience::Patience;
use crate::types::key_form::KeyHash;
use crate::types::options::{CheckpointDistance, KeyspaceOptions};

/// Attempts to change the merge operator of an empty keyspace beside other writers.
const OPERATOR_ATTEMPTS: u32 = 1000;

/// The keyspace that every database has.
pub(crate) const DEFAULT_KEYSPACE: &str = "default";

/// The result of one attempt to change the schema under the `install` lock.
pub(crate) enum Attempt {
    /// The change is in the log and in the state, and must be published. The caller drops the
    /// previous state, if it was replaced, after publishing. That state may be the last to hold
    /// memtables, so dropping it takes long. Until the change is published, every reader and later
    /// writer waits.
    Done(Appended, Arc<KeyspaceShared>, Option<Arc<State>>),
    /// The ring is full. The attempt changed nothing.
    Full(Condition),
}

/// The keyspace of this name. Fails with `KeyspaceNotFound` if there is none.
pub(crate) fn find(core: &Core, name: &str) -> Result<Arc<KeyspaceShared>> {
    core.find_keyspace(name)?
        .ok_or_else(|| no_such_keyspace(name))
}

/// The keyspace of this name, created if there is none. A read-only database creates none, so the
/// call fails with `KeyspaceNotFound`.
pub(crate) fn find_or_create(core: &Core, name: &str) -> Result<Arc<KeyspaceShared>> {
    loop {
        if let Some(shared) = core.find_keyspace(name)? {
            return Ok(shared);
        }
        if core.log.is_none() {
            return Err(no_such_keyspace(name));
        }
        match core.create_keyspace(name, KeyspaceOptions::default()) {
            // Another thread created it in between.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
}

fn no_such_keyspace(name: &str) -> Error {
    Error::new(ErrorKind::KeyspaceNotFound, "there is no such keyspace").with("keyspace", name)
}

impl Core {
    /// The keyspace of this name, if it exists.
    pub fn find_keyspace(&self, name: &str) -> Result<Option<Arc<KeyspaceShared>>> {
        let install = self.install.lock();
        // Checked under the lock, under which a close empties the state.
        self.health.check_open()?;
        Ok(self.named(&install, name))
    }

    fn named(&self, install: &Install, name: &str) -> Option<Arc<KeyspaceShared>> {
        let id = *install.names.get(name)?;
        self.state
            .load()
            .keyspaces
            .get(id)
            .map(|k| k.shared.clone())
    }

    /// Creates a keyspace. Fails with `AlreadyExists` if the name is taken.
    pub fn create_keyspace(
        &self,
        name: &str,
        options: KeyspaceOptions,
    ) -> Result<Arc<KeyspaceShared>> {
        check_name(name)?;
        self.settings
            .check_keyspace(&options, self.budget.limit())?;
        let options = options.with_hash(|| KeyHash::seeded(self.env.random()));
        let structure = self.structures.get(options.structure.id());
        let structure = structure.map_err(|error| error.with("keyspace", name))?;
        self.change(false, |log, install| {
            if install.names.contains_key(name) {
                return Err(
                    Error::new(ErrorKind::AlreadyExists, "the keyspace exists already")
                        .with("keyspace", name),
                );
            }
            if install.next_id == u32::MAX {
                return Err(Error::new(
                    ErrorKind::TooLarge,
                    "no keyspace number is left: export the database and import it into a new one",
                ));
            }
            let id = KeyspaceId(install.next_id);
            let (kind, payload) = Schema::Create {
                id,
                name: name.into(),
                options,
            }
            .encode();
            let appended = match log.try_append(kind, &[&payload])? {
                Append::Done(appended) => appended,
                Append::Full(condition) => return Ok(Attempt::Full(condition)),
            };
            let shared = self.apply_create(install, (id, name), options, structure, appended.lsn);
            Ok(Attempt::Done(appended, shared, None))
        })
    }

    /// Drops a keyspace.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        if name == DEFAULT_KEYSPACE {
            return Err(Error::invalid(
                "the default keyspace cannot be dropped; clear it instead",
            ));
        }
        let mut had_pages = false;
        let changed = self.change(true, |log, install| {
            let id = self.named(install, name).map(|shared| shared.id);
            let has_pages = id.is_some_and(|id| self.may_have_pages(id));
            let attempt = self.try_drop(log, install, name)?;
            had_pages = has_pages && matches!(attempt, Attempt::Done(..));
            Ok(attempt)
        });
        // Also if the change happened and its sync failed.
        self.ask_for_space(had_pages);
        changed.map(drop)
    }

    /// Appends the record of a drop, and removes the keyspace from the state.
    pub fn try_drop(&self, log: &Log, install: &mut Install, name: &str) -> Result<Attempt> {
        let shared = self.named(install, name).ok_or_else(|| {
            Error::new(ErrorKind::KeyspaceNotFound, "there is no such keyspace")
                .with("keyspace", name)
        })?;
        let change = match mutant::active("drop-not-logged") {
            true => Schema::SetOptions(shared.id, KeyspaceOptions::default()),
            false => Schema::Drop(shared.id),
        };
        let (kind, payload) = change.encode();
        let appended = match log.try_append(kind, &[&payload])? {
            Append::Done(appended) => appended,
            Append::Full(condition) => return Ok(Attempt::Full(condition)),
        };
        let replaced = self.apply_drop(install, shared.id, appended.lsn);
        Ok(Attempt::Done(appended, shared, replaced))
    }

    /// Removes all records of a keyspace.
    pub fn clear_keyspace(&self, shared: &Arc<KeyspaceShared>) -> Result<()> {
        let mut had_pages = false;
        let changed = self.change(true, |log, install| {
            let has_pages = self.may_have_pages(shared.id);
            let attempt = self.try_clear(log, install, shared)?;
            had_pages = has_pages && matches!(attempt, Attempt::Done(..));
            Ok(attempt)
        });
        self.ask_for_space(had_pages);
        changed.map(drop)
    }

    /// Appends the record of a clear and empties the keyspace, in one step under the log's append
    /// lock. Every later write therefore enters the new memtable. An earlier write enters the old
    /// memtable, or none if its writer loads the state only now. A checkpoint that was frozen in
    /// between handles the latter case (`checkpoint::job`).
    pub fn try_clear(
        &self,
        log: &Log,
        install: &mut Install,
        shared: &Arc<KeyspaceShared>,
    ) -> Result<Attempt> {
        let state = self.state.load_full();
        if state.keyspaces.get(shared.id).is_none() {
            return Err(self.dropped().with("keyspace", &shared.name));
        }
        let (kind, payload) = Schema::Clear(shared.id).encode();
        let memtable = self.new_memtable();
        let mut replaced = None;
        let appended = log.try_append_with(kind, &[&payload], |lsn| {
            replaced = self.install_cleared(&state, shared.id, lsn, memtable);
        })?;
        match appended {
            Append::Done(appended) => {
                install.changed.insert(shared.id);
                self.after_unseal(&state, shared.id);
                Ok(Attempt::Done(appended, shared.clone(), replaced))
            }
            Append::Full(condition) => Ok(Attempt::Full(condition)),
        }
    }

    /// The options that were set for a keyspace.
    pub fn keyspace_options(&self, shared: &KeyspaceShared) -> Result<KeyspaceOptions> {
        self.health.check_open()?;
        let state = self.state.load();
        let keyspace = state.keyspaces.get(shared.id);
        let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
        Ok(keyspace.options)
    }

    /// Changes a keyspace's options: `change` gets those of this moment and returns the next.
    pub fn set_keyspace_options(
        &self,
        shared: &Arc<KeyspaceShared>,
        change: &dyn Fn(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        self.change_options(shared, change)?;
        // A lower χ seals memtables at once. A higher χ costs nothing, and lets writers with a full
        // memtable continue.
        self.seal_full();
        self.schedule.released();
        Ok(())
    }

    fn change_options(
        &self,
        shared: &Arc<KeyspaceShared>,
        change: &dyn Fn(KeyspaceOptions) -> KeyspaceOptions,
    ) -> Result<()> {
        self.change(false, |log, install| {
            let before = self.keyspace_options(shared)?;
            let options = change(before).key_hash(before.key_hash);
            let structure = self.structures.of_change(&before, &options);
            let structure = structure.map_err(|error| error.with("keyspace", &shared.name))?;
            self.settings
                .check_keyspace(&options, self.budget.limit())?;
            let (kind, payload) = Schema::SetOptions(shared.id, options).encode();
            let appended = match before.merge_operator == options.merge_operator {
                true => log.try_append(kind, &[&payload])?,
                false => self.append_to_empty(log, shared, (kind, &payload))?,
            };
            let appended = match appended {
                Append::Done(appended) => appended,
                Append::Full(condition) => return Ok(Attempt::Full(condition)),
            };
            self.apply_options(install, shared.id, (options, structure));
            Ok(Attempt::Done(appended, shared.clone(), None))
        })
        .map(drop)
    }

    /// Appends the record of another merge operator, which a keyspace gets only while it has no
    /// records. No write comes between the look at the keyspace and the record.
    fn append_to_empty(
        &self,
        log: &Log,
        shared: &KeyspaceShared,
        (kind, payload): (u8, &[u8]),
    ) -> Result<Append> {
        for _ in 0..OPERATOR_ATTEMPTS {
            log.watch_a_while();
            log.wait_until_published();
            let observed = self.observe_apart()?;
            let keyspace = observed.state.keyspaces.get(shared.id);
            let keyspace = keyspace.ok_or_else(|| self.dropped().with("keyspace", &shared.name))?;
            let is_empty = keyspace.version.root() == keyspace.structure.empty().root();
            if keyspace.is_written() || !is_empty {
                let message = "the merge operator of a keyspace can change only while the keyspace \
                               has no records: clear it first, or create another one";
                return Err(Error::invalid(message).with("keyspace", &shared.name));
            }
            let hits = |entry: &Touched| {
                entry.touch.reach == Reach::All || entry.touch.keyspace == shared.id
            };
            let from = From::Lsn(observed.before);
            // The caller holds `install`, so no ingest comes in between.
            let record = (kind, &[payload][..]);
            if let Some(appended) = log.try_append_unless(record, &[], from, hits, || true)? {
                return Ok(appended);
            }
        }
        let message = "others write to the database all the time: the operator was not changed";
        Err(Error::new(ErrorKind::Conflict, message).with("keyspace", &shared.name))
    }

    /// Runs one change under the `install` lock, publishes its record, and syncs the log if the
    /// database's durability says so. `frees` says that the change frees space. Such a change
    /// passes on a full disk, as deletes do (D10).
    fn change(
        &self,
        frees: bool,
        mut attempt: impl FnMut(&Log, &mut Install) -> Result<Attempt>,
    ) -> Result<Arc<KeyspaceShared>> {
        self.env.breathe();
        let log = self.log()?;
        self.health.check_open()?;
        if let Some(error) = log.failed() {
            return Err(error);
        }
        let mut patience = Patience::default();
        let since = patience.since_ns(&self.env);
        let deadline = patience.until_ns(&self.env, self.settings.stall_limit_ns);
        match frees {
            // The change goes on in any case, since clears and drops may be the only way to make
            // room.
            true => self.let_the_log_be_trimmed(0, &mut patience).map(drop)?,
            false => self.check_room()?,
        }
        loop {
            let mut install = self.install.lock();
            self.health.check_open()?;
            let condition = match attempt(log, &mut install) {
                Ok(Attempt::Done(appended, shared, replaced)) => {
                    log.publish(&appended);
                    // The removed keyspace may have been a written one. The others share its
                    // memory.
                    if replaced.is_some() {
                        drop(replaced);
                        self.plan_memory(&install);
                    }
                    drop(install);
                    let how = (self.settings.durability, frees);
                    self.after_write(log, &appended, false, how, &mut patience)?;
                    return Ok(shared);
                }
                Ok(Attempt::Full(condition)) => {
                    drop(install);
                    condition
                }
                Err(error) => {
                    drop(install);
                    self.wait_for_log_space(log, error, frees, deadline)?
                }
            };
            let condition = condition.until(deadline);
            let is_known = self.marks.log.holds(log.drained().0);
            if !is_known {
                self.env.wait(&condition)?;
            }
            if (is_known && !condition.holds()) || self.env.now_ns() >= deadline {
                return Err(self.log_is_slow(log, since));
            }
        }
    }

    /// Whether a keyspace has a tree, or will soon get one. The caller holds `install`.
    pub fn may_have_pages(&self, id: KeyspaceId) -> bool {
        let state = self.state.load();
        state.keyspaces.get(id).is_some_and(|keyspace| {
            let is_empty = keyspace.version.root() == keyspace.structure.empty().root();
            keyspace.sealed.is_some() || !is_empty
        })
    }

    /// Asks for a checkpoint, which frees the pages of dropped and cleared trees, if `had_pages`.
    /// Seals no memtable for that. Frequent clears of one keyspace would otherwise make all
    /// memtables small.
    pub fn ask_for_space(&self, had_pages: bool) {
        if had_pages {
            self.schedule.let_tree_go();
        }
    }

    /// Installs a new keyspace, unless it exists. `structure` is that of the options.
    pub fn apply_create(
        &self,
        install: &mut Install,
        (id, name): (KeyspaceId, &str),
        options: KeyspaceOptions,
        structure: &Arc<dyn Structure>,
        lsn: Lsn,
    ) -> Arc<KeyspaceShared> {
        install.next_id = install.next_id.max(id.0.saturating_add(1));
        let current = self.state.load_full();
        if let Some(keyspace) = current.keyspaces.get(id) {
            return keyspace.shared.clone();
        }
        // The first write sets the memtable's limit.
        let unit = self.settings.merge.group_bytes;
        self.keep_reserve(structure.reserve_groups());
        let named = (name, &options);
        let shared = KeyspaceShared::new(
            id,
            named,
            unit,
            (&self.tree_sizes, &self.budget, &self.store),
        );
        shared.tree_size.set(Estimate::default());
        let mut keyspaces = current.keyspaces.clone();
        keyspaces.insert(Arc::new(KeyspaceState {
            id,
            shared: shared.clone(),
            collection: self.new_collection(),
            options,
            operator: self.settings.operator_of(&options),
            active: LoggedMemtable::new(lsn, self.new_memtable()),
            sealed: None,
            structure: structure.clone(),
            version: structure.empty(),
            spilled: None,
        }));
        install.names.insert(name.into(), id);
        install.changed.insert(id);
        self.replace_state(State {
            generation: current.generation,
            pin: current.pin.clone(),
            floor: current.floor,
            keyspaces,
        });
        shared
    }

    /// Removes a keyspace from the state, if it exists. Returns the previous state.
    pub fn apply_drop(
        &self,
        install: &mut Install,
        id: KeyspaceId,
        lsn: Lsn,
    ) -> Option<Arc<State>> {
        let current = self.state.load_full();
        let keyspace = current.keyspaces.get(id)?;
        install.names.remove(&keyspace.shared.name);
        install.changed.insert(id);
        keyspace.shared.tree_size.leave();
        self.give_large_up(keyspace);
        let mut keyspaces = current.keyspaces.clone();
        keyspaces.remove(id);
        let last = self.replace_state(State {
            generation: current.generation,
            pin: current.pin.clone(),
            floor: Lsn(current.floor.0.max(lsn.0 + 1)),
            keyspaces,
        });
        self.after_unseal(&current, id);
        Some(last)
    }

    /// Empties a keyspace at an LSN, if it exists.
    pub fn apply_clear(&self, install: &mut Install, id: KeyspaceId, lsn: Lsn) {
        let current = self.state.load_full();
        if current.keyspaces.get(id).is_some() {
            install.changed.insert(id);
            self.install_cleared(&current, id, lsn, self.new_memtable());
            self.after_unseal(&current, id);
        }
    }

    fn install_cleared(
        &self,
        current: &State,
        id: KeyspaceId,
        lsn: Lsn,
        memtable: Memtable,
    ) -> Option<Arc<State>> {
        let keyspace = current.keyspaces.get(id)?;
        self.give_large_up(keyspace);
        let mut next = (**keyspace).clone();
        if !mutant::active("clear-keeps-active-memtable") {
            next.active = LoggedMemtable::new(lsn, memtable);
        }
        next.sealed = None;
        next.version = next.structure.empty();
        // No memtable holds the effect of a clear. Records that were cached before must therefore
        // not match the state after it.
        next.collection = self.new_collection();
        next.shared.tree_size.cleared();
        let mut keyspaces = current.keyspaces.clone();
        keyspaces.insert(Arc::new(next));
        let last = self.replace_state(State {
            generation: current.generation,
            pin: current.pin.clone(),
            floor: Lsn(current.floor.0.max(lsn.0 + 1)),
            keyspaces,
        });
        Some(last)
    }

    /// Leaves the large pages of a keyspace's memtables to the next checkpoint.
    fn give_large_up(&self, keyspace: &KeyspaceState) {
        for memtable in keyspace.memtables() {
            self.orphans.take_over(&memtable.large);
        }
    }

    /// Notes that a clear or drop removed a sealed memtable from the state.
    fn after_unseal(&self, before: &State, id: KeyspaceId) {
        if before.keyspaces.get(id).is_some_and(|k| k.sealed.is_some()) {
            self.schedule.unsealed(1);
        }
        self.schedule.released();
    }

    /// Sets the options of a keyspace, if it exists. The structure of the options goes on with the
    /// keyspace's tree.
    pub fn apply_options(
        &self,
        install: &mut Install,
        id: KeyspaceId,
        (options, structure): (KeyspaceOptions, &Arc<dyn Structure>),
    ) {
        let current = self.state.load_full();
        let Some(keyspace) = current.keyspaces.get(id) else {
            return;
        };
        self.keep_reserve(structure.reserve_groups());
        let mut next = (**keyspace).clone();
        next.options = options;
        next.shared.follow(&next.options);
        if !mutant::active("changed-structure-waits-for-open") {
            next.structure = structure.clone();
        }
        next.operator = self.settings.operator_of(&next.options);
        self.set_limits(&next, &self.plan_in_force());
        install.changed.insert(id);
        let mut keyspaces = current.keyspaces.clone();
        keyspaces.insert(Arc::new(next));
        self.replace_state(State {
            generation: current.generation,
            pin: current.pin.clone(),
            floor: current.floor,
            keyspaces,
        });
    }

    /// Sets χ of every keyspace, also of those with a χ of their own. None restores the value with
    /// which the database was opened.
    pub fn set_distance_of_all(&self, distance: Option<CheckpointDistance>) -> Result<()> {
        self.health.check_open()?;
        let change = |options: KeyspaceOptions| options.checkpoint_distance(distance);
        let distance = distance.unwrap_or(self.settings.checkpoint_distance);
        self.settings
            .check_distance(distance, self.budget.limit())?;
        let all: Vec<_> = self
            .state
            .load()
            .keyspaces
            .iter()
            .map(|k| k.shared.clone())
            .collect();
        for shared in all {
            match self.change_options(&shared, &change) {
                Err(error) if error.kind() == ErrorKind::KeyspaceNotFound => {}
                outcome => outcome?,
            }
        }
        // Last: if setting χ of the existing keyspaces fails, new keyspaces must not get it either.
        let mut install = self.install.lock();
        install.checkpoint_distance = distance;
        self.plan_memory(&install);
        drop(install);
        self.seal_full();
        self.schedule.released();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrapin_base::Env;
    use terrapin_disk::SimDisk;

    use super::*;
    use crate::types::options::Options;

    #[test]
    fn a_clear_frees_memtables_after_its_publication() {
        let options = Options::small();
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let database = options.open_on(env, disk.handle()).unwrap();
        sim.set_breathing(false);
        let (keyspace, other) = (database.keyspace("k").unwrap(), database.default_keyspace());
        for number in 0..100u64 {
            other.put(number.to_be_bytes(), [7; 50]).unwrap();
        }
        keyspace.put("a", "1").unwrap();
        database.checkpoint().unwrap();
        for number in 0..100u64 {
            assert!(other.get(number.to_be_bytes()).unwrap().is_some());
        }
        assert!(keyspace.get("a").unwrap().is_some());
        keyspace.put("a", "2").unwrap();
        let core = database.core();
        let records = core.records.counts().records;
        assert!(records > 0);
        let memtables = Arc::downgrade(
            &core
                .state
                .load()
                .keyspaces
                .get(keyspace.id())
                .unwrap()
                .active,
        );
        let log = core.log().unwrap();
        let mut install = core.install.lock();
        let cleared = core.try_clear(log, &mut install, &keyspace.shared);
        let Attempt::Done(appended, _, replaced) = cleared.unwrap() else {
            panic!("the ring is full");
        };
        assert!(memtables.upgrade().is_some());
        log.publish(&appended);
        drop(replaced);
        assert!(memtables.upgrade().is_none());
        drop(install);
        assert_eq!(keyspace.get("a").unwrap(), None);

        // Cached records of other keyspaces stay. Cached records of this one no longer match it.
        assert_eq!(core.records.counts().records, records);
        let hits = core.counters.record_hits.get();
        for number in 0..100u64 {
            assert!(other.get(number.to_be_bytes()).unwrap().is_some());
        }
        assert!(core.counters.record_hits.get() > hits);
        keyspace.put("b", "3").unwrap();
        database.checkpoint().unwrap();
        sim.settle();
        assert_eq!(keyspace.get("a").unwrap(), None);
        assert_eq!(keyspace.multi_get(&["a"]).unwrap(), [None]);
        database.close().unwrap();
    }

    #[test]
    fn a_distance_that_could_not_be_set_for_all_does_not_apply_to_new_keyspaces() {
        let (env, sim) = Env::simulated(1);
        let disk = SimDisk::new(1);
        let options = Options::small();
        let database = options.open_on(env.clone(), disk.handle()).unwrap();
        let wanted = CheckpointDistance::Fixed(3);
        database.set_checkpoint_distance(wanted).unwrap();
        let later = database.keyspace("later").unwrap();
        assert_eq!(later.checkpoint_distance(), 3);
        database.close().unwrap();
        sim.settle();
        let database = options.read_only(true).open_on(env, disk.handle()).unwrap();
        let of_new_ones = || database.core().install.lock().checkpoint_distance;
        let before = of_new_ones();
        assert_ne!(before, wanted);
        database.set_checkpoint_distance(wanted).unwrap_err();
        assert_eq!(of_new_ones(), before);
        database.close().unwrap();
    }
}
