//! The expected answers of a store: maps in memory, and the order of the commits.
//!
//! The oracle answers every [`Operation`] and keeps the changes since everything was last known to
//! be durable. After a crash it finds which prefix of them a recovered store holds
//! ([`Oracle::recovered`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{
    ErrorKind, KEY_BYTES_MAX, LARGE_VALUE_BYTES_MAX, VALUE_BYTES_MAX, checksum::hash64,
};

use crate::conditional::{Conditional, updated};
use crate::operation::{Answer, Change, Durability, Operation, Read, Record, Span, Walk, What};
use crate::pattern::Pattern;
use crate::random::Random;
use crate::step::TxStep;
use crate::structures::Structures;
use crate::subject::Subject;
use crate::tail::Tail;
use crate::transaction::Imagined;

/// A keyspace's records.
pub type Map = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// Every keyspace with its records. A clone shares maps until one side changes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    keyspaces: BTreeMap<String, Arc<Map>>,
}

/// Keyspace, key, and the value, or none for a delete.
type Committed = (String, Vec<u8>, Option<Arc<[u8]>>);

/// A committed change: a crash keeps or loses it as one.
#[derive(Clone, Debug)]
enum Commit {
    Records(Vec<Committed>),
    Create(String),
    Drop(String),
    Clear(String),
}

/// How far a crash may set a store back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// The process died: every acknowledged logged change is there.
    Acknowledged,
    /// The power failed: every change acknowledged as durable is there.
    Durable,
    /// The power failed and the log's end was damaged. Every change acknowledged as durable before
    /// the last such one is there.
    Marked,
}

/// The commits in order, starting from a durable state.
#[derive(Clone, Debug, Default)]
struct History {
    base: State,
    commits: Vec<Arc<Commit>>,
    /// The number of acknowledged changes: all, or all but the one during which the process died.
    acknowledged: usize,
    /// The number of durable changes.
    durable: usize,
    /// The number that was durable before.
    marked: usize,
}

#[derive(Clone, Debug)]
struct OpenRange {
    records: std::collections::VecDeque<Record>,
}

/// The oracle. A clone knows the same and then develops separately.
#[derive(Clone, Debug)]
pub struct Oracle {
    state: State,
    snapshots: BTreeMap<String, State>,
    ranges: BTreeMap<String, OpenRange>,
    logged: History,
    /// Changes to [`UNLOGGED`], which are not in the log: their order is a history of its own.
    unlogged: History,
    /// The durability of writes that name none.
    default_is_sync: bool,
    holds_unlogged: bool,
    keeps_order: bool,
    structures: Structures,
}

/// The only keyspace that crash tests write to without the log. They write to it with the log only
/// when everything before is durable.
pub const UNLOGGED: &str = "bulk";

impl State {
    /// The records of a span of a keyspace, in order. None if there is no such keyspace.
    #[must_use]
    pub fn select(&self, keyspace: &str, span: &Span) -> Vec<Record> {
        let map = self.keyspaces.get(keyspace);
        map.map_or_else(Vec::new, |map| select(map, span))
    }

    /// The state of a new database: the default keyspace, empty.
    #[must_use]
    pub fn new() -> Self {
        State {
            keyspaces: BTreeMap::from([("default".to_owned(), Arc::default())]),
        }
    }

    /// A state of these keyspaces.
    #[must_use]
    pub fn of(keyspaces: impl IntoIterator<Item = (String, Vec<Record>)>) -> Self {
        let map = |records: Vec<Record>| {
            records
                .into_iter()
                .map(|(k, v)| (k, v.into()))
                .collect::<Map>()
        };
        State {
            keyspaces: keyspaces
                .into_iter()
                .map(|(name, records)| (name, Arc::new(map(records))))
                .collect(),
        }
    }

    /// The keyspaces by name.
    #[must_use]
    pub fn keyspaces(&self) -> &BTreeMap<String, Arc<Map>> {
        &self.keyspaces
    }

    /// How many records there are in all.
    #[must_use]
    pub fn records(&self) -> usize {
        self.keyspaces.values().map(|map| map.len()).sum()
    }

    fn apply(&mut self, commit: &Commit, fingerprint: &mut u64) {
        match commit {
            Commit::Records(changes) => {
                for (keyspace, key, value) in changes {
                    let Some(map) = self.keyspaces.get_mut(keyspace) else {
                        continue;
                    };
                    let map = Arc::make_mut(map);
                    let before = match value {
                        Some(value) => {
                            *fingerprint =
                                fingerprint.wrapping_add(record_hash(keyspace, key, value));
                            map.insert(key.clone(), value.clone())
                        }
                        None => map.remove(key),
                    };
                    if let Some(before) = before {
                        *fingerprint =
                            fingerprint.wrapping_sub(record_hash(keyspace, key, &before));
                    }
                }
            }
            Commit::Create(name) => {
                self.keyspaces.insert(name.clone(), Arc::default());
                *fingerprint = self.fingerprint();
            }
            Commit::Drop(name) => {
                self.keyspaces.remove(name);
                *fingerprint = self.fingerprint();
            }
            Commit::Clear(name) => {
                if let Some(map) = self.keyspaces.get_mut(name) {
                    *map = Arc::default();
                }
                *fingerprint = self.fingerprint();
            }
        }
    }

    /// A number that equal states share and that different states practically never share.
    fn fingerprint(&self) -> u64 {
        let mut sum = 0u64;
        for (name, map) in &self.keyspaces {
            sum = sum.wrapping_add(hash64(name.as_bytes()));
            for (key, value) in map.iter() {
                sum = sum.wrapping_add(record_hash(name, key, value));
            }
        }
        sum
    }

    /// A state without the unlogged keyspace, or with nothing else.
    fn part(&self, unlogged: bool) -> State {
        let chosen = self
            .keyspaces
            .iter()
            .filter(|(name, _)| (*name == UNLOGGED) == unlogged);
        State {
            keyspaces: chosen
                .map(|(name, map)| (name.clone(), map.clone()))
                .collect(),
        }
    }

    /// The difference between two states, in one line.
    #[must_use]
    pub fn difference(&self, expected: &State) -> String {
        let names = |s: &State| s.keyspaces.keys().cloned().collect::<BTreeSet<_>>();
        if names(self) != names(expected) {
            return format!(
                "keyspaces {:?}, expected {:?}",
                names(self),
                names(expected)
            );
        }
        let (mut differ, mut first) = (0, None);
        for (name, map) in &self.keyspaces {
            let other = &expected.keyspaces[name];
            let keys: BTreeSet<_> = map.keys().chain(other.keys()).collect();
            for key in keys {
                if map.get(key) != other.get(key) {
                    differ += 1;
                    first.get_or_insert_with(|| {
                        let show = |v: Option<&Arc<[u8]>>| {
                            Answer::Value(v.map(|v| v.to_vec())).to_string()
                        };
                        let key = Pattern::literal(key);
                        format!(
                            "@{name} {key}: {}, expected {}",
                            show(map.get(&key.bytes())),
                            show(other.get(&key.bytes()))
                        )
                    });
                }
            }
        }
        first.map_or("no difference".to_owned(), |first| {
            format!("{differ} records differ, the first: {first}")
        })
    }
}

fn record_hash(keyspace: &str, key: &[u8], value: &[u8]) -> u64 {
    let mut bytes = Vec::with_capacity(keyspace.len() + key.len() + value.len() + 16);
    bytes.extend_from_slice(&(keyspace.len() as u64).to_le_bytes());
    bytes.extend_from_slice(keyspace.as_bytes());
    bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    hash64(&bytes)
}

impl History {
    /// All changes are durable.
    fn synced(&mut self) {
        if self.durable < self.commits.len() {
            self.marked = self.durable;
            self.durable = self.commits.len();
        }
    }

    fn marks(&self) -> [usize; 3] {
        [self.acknowledged, self.durable, self.marked]
    }

    fn restore(&mut self, marks: [usize; 3]) {
        [self.acknowledged, self.durable, self.marked] = marks;
    }

    fn restart(&mut self, base: State) {
        *self = History {
            base,
            ..History::default()
        };
    }

    /// Finds which prefix `actual` is, between the required number of commits and all of them.
    fn find(&self, actual: &State, survives: Survives) -> Result<usize, String> {
        let least = match survives {
            Survives::Acknowledged => self.acknowledged,
            Survives::Durable => self.durable,
            Survives::Marked => self.marked,
        };
        let wanted = actual.fingerprint();
        let mut state = self.base.clone();
        let mut fingerprint = state.fingerprint();
        let mut too_early = None;
        let mut nearest = None;
        for count in 0..=self.commits.len() {
            if count > 0 {
                state.apply(&self.commits[count - 1], &mut fingerprint);
            }
            if fingerprint == wanted && state == *actual {
                if count >= least {
                    return Ok(count);
                }
                too_early = Some(count);
            }
            if count == least {
                nearest = Some(actual.difference(&state));
            }
        }
        let all = self.commits.len();
        Err(match too_early {
            Some(count) => format!(
                "the state is that after {count} of {all} commits, at least {least} had to survive"
            ),
            None => format!(
                "the state is no prefix of the {all} commits ({least} had to survive); from the state after {least}: {}; from the state after all: {}",
                nearest.unwrap_or_default(),
                actual.difference(&state)
            ),
        })
    }
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new()
    }
}

impl Oracle {
    /// The oracle of a new database.
    #[must_use]
    pub fn new() -> Self {
        let state = State::new();
        let history = |unlogged| History {
            base: state.part(unlogged),
            ..History::default()
        };
        Oracle {
            logged: history(false),
            unlogged: history(true),
            state,
            snapshots: BTreeMap::new(),
            ranges: BTreeMap::new(),
            default_is_sync: false,
            holds_unlogged: false,
            keeps_order: true,
            structures: Structures::Leveled,
        }
    }

    /// Says whether the store answers ranges. If not, it refuses them.
    #[must_use]
    pub fn with_order(mut self, keeps_order: bool) -> Self {
        self.keeps_order = keeps_order;
        self
    }

    /// Says which structures the store's keyspaces have: some refuse range deletes and pops.
    #[must_use]
    pub fn with_structures(mut self, structures: Structures) -> Self {
        self.structures = structures;
        self
    }

    /// Whether range deletes and pops of a keyspace are refused.
    fn refuses_spans(&self, keyspace: &str) -> bool {
        !self.keeps_order || self.structures.refuse_spans(keyspace)
    }

    /// Says whether writes that name no durability are synced.
    #[must_use]
    pub fn with_default(mut self, durability: terrapin::Durability) -> Self {
        self.default_is_sync = durability == terrapin::Durability::Sync;
        self
    }

    /// The newest state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Changes since everything was last durable.
    #[must_use]
    pub fn commits(&self) -> usize {
        self.logged.commits.len() + self.unlogged.commits.len()
    }

    /// Whether some writes would be lost without a close: unlogged ones.
    #[must_use]
    pub fn holds_unlogged(&self) -> bool {
        self.holds_unlogged
    }

    /// The process died during the last operation: its changes may be there or not.
    pub fn last_was_in_flight(&mut self, before: InFlight) {
        self.logged.restore(before.logged);
        self.unlogged.restore(before.unlogged);
    }

    /// An ingest failed with `Poisoned`: it is not visible, and the next open may find it. No write
    /// succeeds before that open.
    pub fn may_be_found(&mut self, ingest: &Operation) {
        let (state, before) = (self.state.clone(), self.in_flight());
        self.apply(ingest);
        self.last_was_in_flight(before);
        self.state = state;
    }

    /// What a transaction may leave that ends with an error before it commits: the first writes of
    /// the other writers among its steps are done, at least one. Nothing of other operations.
    #[must_use]
    pub fn after_writers_beside(&self, operation: &Operation) -> Vec<Oracle> {
        let Operation::Transact { steps, .. } = operation else {
            return Vec::new();
        };
        let (mut next, mut all) = (self.clone(), Vec::new());
        for step in steps {
            if let TxStep::Beside(change) = step {
                let written = next.write(std::slice::from_ref(change), None);
                if !matches!(written, Answer::Done) {
                    break;
                }
                all.push(next.clone());
            }
        }
        all
    }

    /// To be called before an operation during which the process may die.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            logged: self.logged.marks(),
            unlogged: self.unlogged.marks(),
        }
    }

    /// Takes over the content of a recovered store, if it is allowed: exactly a prefix of the
    /// commits, with everything that had to survive. Snapshots and open ranges are gone.
    pub fn recovered(&mut self, actual: &State, survives: Survives) -> Result<(), String> {
        self.logged.find(&actual.part(false), survives)?;
        // Unlogged writes survive only by checkpoints, however the process ended.
        self.unlogged
            .find(&actual.part(true), Survives::Durable)
            .map_err(|e| format!("{e} (keyspace {UNLOGGED})"))?;
        self.state = actual.clone();
        self.settled();
        Ok(())
    }

    /// Everything is durable, and there are no handles.
    fn settled(&mut self) {
        self.snapshots.clear();
        self.ranges.clear();
        self.holds_unlogged = false;
        self.logged.restart(self.state.part(false));
        self.unlogged.restart(self.state.part(true));
    }

    /// Whether a write waits for a sync before it returns.
    #[must_use]
    pub fn is_synced(&self, write: &Operation) -> bool {
        match write {
            Operation::Put { durability, .. }
            | Operation::Delete { durability, .. }
            | Operation::Merge { durability, .. }
            | Operation::Erase { durability, .. }
            | Operation::Batch { durability, .. }
            | Operation::Guarded { durability, .. }
            | Operation::Transact { durability, .. } => self.is_sync(*durability),
            Operation::Create { .. }
            | Operation::Drop { .. }
            | Operation::Clear { .. }
            | Operation::Conditional { .. } => self.default_is_sync,
            Operation::Ingest { .. } => true,
            _ => false,
        }
    }

    fn is_sync(&self, durability: Durability) -> bool {
        durability.map_or(self.default_is_sync, |d| d == terrapin::Durability::Sync)
    }

    fn commit(&mut self, commit: Commit, durability: Durability) {
        let synced = self.is_sync(durability);
        self.holds_unlogged |= durability == Some(terrapin::Durability::None);
        self.state.apply(&commit, &mut 0);
        let is_unlogged = match &commit {
            Commit::Records(changes) => changes.iter().any(|(keyspace, ..)| keyspace == UNLOGGED),
            Commit::Create(name) | Commit::Drop(name) | Commit::Clear(name) => name == UNLOGGED,
        };
        let history = if is_unlogged {
            &mut self.unlogged
        } else {
            &mut self.logged
        };
        history.commits.push(Arc::new(commit));
        history.acknowledged = history.commits.len();
        if synced {
            history.synced();
        }
    }

    fn all_durable(&mut self) {
        self.holds_unlogged = false;
        for history in [&mut self.logged, &mut self.unlogged] {
            history.synced();
        }
    }

    fn write(&mut self, changes: &[Change], durability: Durability) -> Answer {
        if let Some(missing) = changes
            .iter()
            .find(|c| !self.state.keyspaces.contains_key(&c.keyspace))
        {
            return failed(ErrorKind::KeyspaceNotFound, &missing.keyspace);
        }
        let refused = changes.iter().find_map(|change| match &change.what {
            _ if is_too_large(change, LARGE_VALUE_BYTES_MAX) => {
                Some(failed(ErrorKind::TooLarge, "key or value"))
            }
            What::Erase(_) if self.refuses_spans(&change.keyspace) => {
                Some(failed(ErrorKind::Unsupported, "no order"))
            }
            _ => None,
        });
        if let Some(refused) = refused {
            return refused;
        }
        let several = changes
            .windows(2)
            .any(|pair| pair[0].keyspace != pair[1].keyspace);
        if durability == Some(terrapin::Durability::None) && several {
            return failed(ErrorKind::InvalidArgument, "several keyspaces");
        }
        if !changes.is_empty() {
            let records = self.records_of(changes);
            self.commit(Commit::Records(records), durability);
        }
        Answer::Done
    }

    fn ingest(&mut self, keyspace: &str, records: &[(Pattern, Pattern)]) -> Answer {
        if !self.state.keyspaces.contains_key(keyspace) {
            return failed(ErrorKind::KeyspaceNotFound, keyspace);
        }
        if self.structures.is_hashed(keyspace) && !records.is_empty() {
            return failed(ErrorKind::Unsupported, "no order");
        }
        let mut taken: Vec<Committed> = Vec::with_capacity(records.len());
        for (key, value) in records {
            if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                return failed(ErrorKind::TooLarge, "key or value");
            }
            let key = key.bytes();
            if taken.last().is_some_and(|(_, last, _)| *last >= key) {
                return failed(ErrorKind::InvalidArgument, "keys out of order");
            }
            taken.push((keyspace.to_owned(), key, Some(value.bytes().into())));
        }
        if !taken.is_empty() {
            // It is in a durable tree, and the log is synced as far as it was before.
            let synced = Some(terrapin::Durability::Sync);
            self.commit(Commit::Records(taken), synced);
        }
        Answer::Done
    }

    fn conditional(&mut self, keyspace: &str, how: &Conditional) -> Answer {
        let Some(map) = self.state.keyspaces.get(keyspace).cloned() else {
            return failed(ErrorKind::KeyspaceNotFound, keyspace);
        };
        let there = |key: &Pattern| map.get(&key.bytes()).map(|value| value.to_vec());
        let value = |value: &Pattern| Some(value.bytes());
        // The key, its next value, and the answer.
        let (key, next, answer) = match how {
            Conditional::Insert(key, new) => match there(key) {
                None => (key.bytes(), value(new), Answer::Value(None)),
                there => return Answer::Value(there),
            },
            Conditional::Swap { key, expected, new } => {
                if there(key) != expected.as_ref().and_then(value) {
                    return Answer::Flag(false);
                }
                (
                    key.bytes(),
                    new.as_ref().and_then(value),
                    Answer::Flag(true),
                )
            }
            Conditional::Replace(key, new) => (key.bytes(), value(new), Answer::Value(there(key))),
            Conditional::Update(key, front) => {
                let new = updated(there(key).as_deref(), &front.bytes());
                (key.bytes(), Some(new.clone()), Answer::Value(Some(new)))
            }
            Conditional::Take(key) => match there(key) {
                None => return Answer::Value(None),
                there => (key.bytes(), None, Answer::Value(there)),
            },
            Conditional::Pop { .. } if self.refuses_spans(keyspace) => {
                return failed(ErrorKind::Unsupported, "no order");
            }
            Conditional::Pop { last } => {
                let record = match last {
                    true => map.last_key_value(),
                    false => map.first_key_value(),
                };
                let Some((key, value)) = record else {
                    return Answer::Records(Vec::new());
                };
                let answer = Answer::Records(vec![(key.clone(), value.to_vec())]);
                (key.clone(), None, answer)
            }
        };
        let change = (keyspace.to_owned(), key, next.map(Arc::from));
        self.commit(Commit::Records(vec![change]), None);
        answer
    }

    fn guarded(
        &mut self,
        required: &[Change],
        changes: &[Change],
        durability: Durability,
    ) -> Answer {
        for required in required {
            let Some(map) = self.state.keyspaces.get(&required.keyspace) else {
                return failed(ErrorKind::KeyspaceNotFound, &required.keyspace);
            };
            let Some((key, value)) = required.record() else {
                return Answer::Broken("a condition is on a key".to_owned());
            };
            let wanted = value.map(Pattern::bytes);
            let there = map.get(&key.bytes()).map(|value| value.to_vec());
            let is_missing = |c: &Change| !self.state.keyspaces.contains_key(&c.keyspace);
            if there != wanted && !changes.iter().any(is_missing) {
                return failed(ErrorKind::Conflict, "a required value");
            }
        }
        self.write(changes, durability)
    }

    fn transact(&mut self, snapshot: bool, steps: &[TxStep], durability: Durability) -> Answer {
        if durability == Some(terrapin::Durability::None) {
            return failed(ErrorKind::InvalidArgument, "a transaction needs the log");
        }
        let before = self.clone();
        let mut tx = Imagined::new(&self.state, snapshot);
        // Before any other writer of the steps writes.
        let mut spans = steps.iter().filter_map(TxStep::needs_order);
        let is_there = |keyspace: &str| self.state.keyspaces.contains_key(keyspace);
        if spans.any(|keyspace| is_there(keyspace) && self.structures.refuse_spans(keyspace)) {
            return failed(ErrorKind::Unsupported, "no order");
        }
        let mut beside = Vec::new();
        for step in steps {
            let keyspace = match step {
                TxStep::Get(keyspace, _) | TxStep::GetForUpdate(keyspace, _) => Some(keyspace),
                TxStep::Range { keyspace, .. } => Some(keyspace),
                _ => step.change().map(|change| &change.keyspace),
            };
            if let Some(missing) = keyspace.filter(|k| !self.state.keyspaces.contains_key(*k)) {
                return failed(ErrorKind::KeyspaceNotFound, missing);
            }
            if !self.keeps_order && step.needs_order().is_some() {
                return failed(ErrorKind::Unsupported, "no order");
            }
            match step {
                TxStep::Change(change) if is_too_large(change, LARGE_VALUE_BYTES_MAX) => {
                    return failed(ErrorKind::TooLarge, "key or value");
                }
                TxStep::Change(change) => tx.change(change),
                TxStep::Get(keyspace, key) => tx.get(keyspace, key, false),
                TxStep::GetForUpdate(keyspace, key) => tx.get(keyspace, key, true),
                TxStep::Range {
                    keyspace,
                    span,
                    back,
                    limit,
                } => tx.range(keyspace, span, *back, *limit),
                TxStep::Save => tx.save(),
                TxStep::Undo(number) => {
                    if !tx.undo(*number) {
                        return Answer::Broken(format!("there is no place {number}"));
                    }
                }
                TxStep::Beside(change) => {
                    let written = self.write(std::slice::from_ref(change), None);
                    if !matches!(written, Answer::Done) {
                        return written;
                    }
                    beside.push(change);
                }
                TxStep::Checkpoint => self.all_durable(),
            }
        }
        let is_conflict = match tx.has_changes() {
            false => Some(false),
            true => tx.conflicts(&beside, &self.state),
        };
        let Some(is_conflict) = is_conflict else {
            *self = before;
            return Answer::Broken("the outcome depends on merges".to_owned());
        };
        let (changes, answer) = tx.end(!is_conflict);
        if !is_conflict {
            self.write(&changes, durability);
        }
        answer
    }

    /// Changes as puts and deletes of keys. A merge puts what it makes. An erase deletes the keys
    /// that are there, and those that earlier changes put.
    fn records_of(&self, changes: &[Change]) -> Vec<Committed> {
        let mut records: Vec<Committed> = Vec::new();
        for change in changes {
            let name = &change.keyspace;
            match &change.what {
                What::Put(key, value) => {
                    records.push((name.clone(), key.bytes(), Some(value.bytes().into())));
                }
                What::Delete(key) => records.push((name.clone(), key.bytes(), None)),
                What::Merge(key, operand) => {
                    let key = key.bytes();
                    let same = |record: &&Committed| record.0 == *name && record.1 == key;
                    let there = match records.iter().rev().find(same) {
                        Some((.., value)) => value.clone(),
                        None => self
                            .state
                            .keyspaces
                            .get(name)
                            .and_then(|m| m.get(&key).cloned()),
                    };
                    let value = Tail::of(&there.unwrap_or_default(), &operand.bytes());
                    records.push((name.clone(), key, Some(value.into())));
                }
                What::Erase(span) => {
                    let mut map = self.state.keyspaces.get(name).cloned().unwrap_or_default();
                    let own = |record: &&Committed| record.0 == *name;
                    for (_, key, value) in records.iter().filter(own) {
                        let map = Arc::make_mut(&mut map);
                        match value {
                            Some(value) => map.insert(key.clone(), value.clone()),
                            None => map.remove(key),
                        };
                    }
                    let erased = select(&map, span).into_iter();
                    records.extend(erased.map(|(key, _)| (name.clone(), key, None)));
                }
            }
        }
        records
    }

    fn read(&mut self, snapshot: Option<&str>, keyspace: &str, read: &Read) -> Answer {
        let state = match snapshot {
            None => &self.state,
            Some(name) => match self.snapshots.get(name) {
                Some(state) => state,
                None => return Answer::Broken(format!("there is no snapshot {name}")),
            },
        };
        let Some(map) = state.keyspaces.get(keyspace) else {
            return failed(ErrorKind::KeyspaceNotFound, keyspace);
        };
        let needs_order = match read {
            Read::Get(_) | Read::Contains(_) | Read::MultiGet(_) | Read::Count => false,
            Read::First | Read::Last | Read::Range(..) | Read::Open(..) => true,
        };
        if needs_order && !self.keeps_order {
            return failed(ErrorKind::Unsupported, "no order");
        }
        let value = |key: &Pattern| map.get(&key.bytes()).map(|v| v.to_vec());
        let record = |r: Option<(&Vec<u8>, &Arc<[u8]>)>| {
            Answer::Records(
                r.map(|(k, v)| (k.clone(), v.to_vec()))
                    .into_iter()
                    .collect(),
            )
        };
        match read {
            Read::Get(key) => Answer::Value(value(key)),
            Read::Contains(key) => Answer::Flag(value(key).is_some()),
            Read::MultiGet(keys) => Answer::Values(keys.iter().map(value).collect()),
            Read::First => record(map.first_key_value()),
            Read::Last => record(map.last_key_value()),
            Read::Count => Answer::About(map.len() as u64),
            Read::Range(span, walk, limit) => {
                let mut found = select(map, span).into_iter();
                Answer::Records(walked(&mut found, *walk, limit.unwrap_or(usize::MAX)))
            }
            Read::Open(name, span) => {
                let records = select(map, span).into();
                self.ranges.insert(name.clone(), OpenRange { records });
                Answer::Done
            }
        }
    }
}

/// The acknowledged and the durable state before an operation.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    logged: [usize; 3],
    unlogged: [usize; 3],
}

/// Whether a change is refused where puts take values of up to `put_bytes_max` bytes.
fn is_too_large(change: &Change, put_bytes_max: u64) -> bool {
    match &change.what {
        What::Put(key, value) => key.len() > KEY_BYTES_MAX || value.len() as u64 > put_bytes_max,
        What::Merge(key, operand) => key.len() > KEY_BYTES_MAX || operand.len() > VALUE_BYTES_MAX,
        What::Delete(key) => key.len() > KEY_BYTES_MAX,
        What::Erase(span) => span.keys().any(|key| key.len() > KEY_BYTES_MAX),
    }
}

fn failed(kind: ErrorKind, what: &str) -> Answer {
    Answer::Failed(kind, what.to_owned())
}

/// The records of a span, in order. Bounds that cross select nothing.
fn select(map: &Map, span: &Span) -> Vec<Record> {
    let own = |(key, value): (&Vec<u8>, &Arc<[u8]>)| (key.clone(), value.to_vec());
    match span {
        Span::Prefix(prefix) => {
            let prefix = prefix.bytes();
            let from = (Bound::Included(prefix.clone()), Bound::Unbounded);
            let all = map.range::<Vec<u8>, _>(from);
            all.take_while(|(key, _)| key.starts_with(&prefix))
                .map(own)
                .collect()
        }
        Span::Between(lower, upper) => {
            let bytes = |bound: &Bound<Pattern>| bound.as_ref().map(Pattern::bytes);
            let (lower, upper) = (bytes(lower), bytes(upper));
            let crossed = match (&lower, &upper) {
                (Bound::Excluded(a), Bound::Excluded(b)) => a >= b,
                (
                    Bound::Included(a) | Bound::Excluded(a),
                    Bound::Included(b) | Bound::Excluded(b),
                ) => a > b,
                _ => false,
            };
            if crossed {
                return Vec::new();
            }
            map.range::<Vec<u8>, _>((lower, upper)).map(own).collect()
        }
    }
}

/// Consumes a range in the walk's order, until its ends meet or `limit` is reached.
pub(crate) fn walked<T>(
    range: &mut dyn DoubleEndedIterator<Item = T>,
    walk: Walk,
    limit: usize,
) -> Vec<T> {
    let mut out = Vec::new();
    let mut random = Random::new(if let Walk::Ends(seed) = walk { seed } else { 0 });
    while out.len() < limit {
        let back = match walk {
            Walk::Forward => false,
            Walk::Backward => true,
            Walk::Ends(_) => random.one_in(2),
        };
        match if back {
            range.next_back()
        } else {
            range.next()
        } {
            Some(item) => out.push(item),
            None => break,
        }
    }
    out
}

impl Subject for Oracle {
    fn name(&self) -> String {
        "oracle".to_owned()
    }

    fn record_bytes_max(&self) -> usize {
        usize::MAX
    }

    fn apply(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Put {
                keyspace,
                key,
                value,
                durability,
            } => {
                let change = Change::of(keyspace, key.clone(), Some(value.clone()));
                self.write(&[change], *durability)
            }
            Operation::Delete {
                keyspace,
                key,
                durability,
            } => {
                let change = Change::of(keyspace, key.clone(), None);
                self.write(&[change], *durability)
            }
            Operation::Merge {
                keyspace,
                key,
                operand,
                durability,
            } => {
                let change = Change {
                    keyspace: keyspace.clone(),
                    what: What::Merge(key.clone(), operand.clone()),
                };
                self.write(&[change], *durability)
            }
            Operation::Erase {
                keyspace,
                span,
                durability,
            } => {
                let change = Change {
                    keyspace: keyspace.clone(),
                    what: What::Erase(span.clone()),
                };
                self.write(&[change], *durability)
            }
            Operation::Batch {
                changes,
                durability,
            } => self.write(changes, *durability),
            Operation::Conditional { keyspace, how } => self.conditional(keyspace, how),
            Operation::Ingest { keyspace, records } => self.ingest(keyspace, records),
            Operation::Guarded {
                required,
                changes,
                durability,
            } => self.guarded(required, changes, *durability),
            Operation::Transact {
                snapshot,
                steps,
                durability,
            } => self.transact(*snapshot, steps, *durability),
            Operation::Read {
                snapshot,
                keyspace,
                read,
            } => self.read(snapshot.as_deref(), keyspace, read),
            Operation::Next { range, count, back } => match self.ranges.get_mut(range) {
                Some(open) => {
                    let next = || {
                        if *back {
                            open.records.pop_back()
                        } else {
                            open.records.pop_front()
                        }
                    };
                    Answer::Records(std::iter::from_fn(next).take(*count).collect())
                }
                None => Answer::Broken(format!("there is no open range {range}")),
            },
            Operation::Shut { range } => {
                self.ranges.remove(range);
                Answer::Done
            }
            Operation::Snapshot { name } => {
                self.snapshots.insert(name.clone(), self.state.clone());
                Answer::Done
            }
            Operation::Release { name } => {
                self.snapshots.remove(name);
                Answer::Done
            }
            Operation::Create { keyspace } if keyspace.is_empty() => {
                failed(ErrorKind::InvalidArgument, "a name of no bytes")
            }
            Operation::Create { keyspace } => {
                if self.state.keyspaces.contains_key(keyspace) {
                    return failed(ErrorKind::AlreadyExists, keyspace);
                }
                self.commit(Commit::Create(keyspace.clone()), None);
                Answer::Done
            }
            Operation::Drop { keyspace } if keyspace == "default" => {
                failed(ErrorKind::InvalidArgument, keyspace)
            }
            Operation::Drop { keyspace } | Operation::Clear { keyspace } => {
                if !self.state.keyspaces.contains_key(keyspace) {
                    return failed(ErrorKind::KeyspaceNotFound, keyspace);
                }
                let commit = match operation {
                    Operation::Drop { .. } => Commit::Drop(keyspace.clone()),
                    _ => Commit::Clear(keyspace.clone()),
                };
                self.commit(commit, None);
                Answer::Done
            }
            Operation::Keyspaces => Answer::Names(self.state.keyspaces.keys().cloned().collect()),
            Operation::Checkpoint | Operation::Flush => {
                self.all_durable();
                Answer::Done
            }
            Operation::Reopen(_) => {
                self.settled();
                Answer::Done
            }
            Operation::Chi { distance: Some(0) } => {
                failed(ErrorKind::InvalidArgument, "a checkpoint distance of 0")
            }
            Operation::Dial { keyspace, .. } if !self.state.keyspaces.contains_key(keyspace) => {
                failed(ErrorKind::KeyspaceNotFound, keyspace)
            }
            Operation::Dial {
                distance: Some(0), ..
            } => failed(ErrorKind::InvalidArgument, "a checkpoint distance of 0"),
            Operation::Chi { .. }
            | Operation::Dial { .. }
            | Operation::Memory { .. }
            | Operation::Pass { .. } => Answer::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(oracle: &mut Oracle, key: &str, durability: Durability) {
        let (key, value) = (Pattern::literal(key), Pattern::literal("v"));
        let keyspace = "default".to_owned();
        assert!(matches!(
            oracle.apply(&Operation::Put {
                keyspace,
                key,
                value,
                durability
            }),
            Answer::Done
        ));
    }

    fn holds(keys: &[&str]) -> State {
        let records = keys
            .iter()
            .map(|k| (k.as_bytes().to_vec(), b"v".to_vec()))
            .collect();
        State::of([("default".to_owned(), records)])
    }

    #[test]
    fn only_prefixes_that_hold_what_was_acknowledged_are_accepted() {
        let fresh = || {
            let mut oracle = Oracle::new();
            put(&mut oracle, "a", Some(terrapin::Durability::Sync));
            put(&mut oracle, "b", None);
            put(&mut oracle, "c", None);
            oracle
        };
        for (survives, keys, ok) in [
            (Survives::Durable, &["a"][..], true),
            (Survives::Durable, &["a", "b"], true),
            (Survives::Durable, &[], false),
            (Survives::Durable, &["a", "c"], false),
            (Survives::Acknowledged, &["a", "b"], false),
            (Survives::Acknowledged, &["a", "b", "c"], true),
            (Survives::Acknowledged, &["a", "b", "c", "d"], false),
        ] {
            assert_eq!(
                fresh().recovered(&holds(keys), survives).is_ok(),
                ok,
                "{keys:?} {survives:?}"
            );
        }
        // The write during which the process died may be there or not.
        for keys in [&["a", "b", "c"][..], &["a", "b", "c", "d"]] {
            let mut oracle = fresh();
            let before = oracle.in_flight();
            put(&mut oracle, "d", None);
            oracle.last_was_in_flight(before);
            assert!(
                oracle
                    .recovered(&holds(keys), Survives::Acknowledged)
                    .is_ok()
            );
            assert_eq!(*oracle.state(), holds(keys));
        }
    }

    #[test]
    fn a_batch_is_there_whole_or_not_at_all() {
        let mut oracle = Oracle::new();
        let change = |key: &str| {
            Change::of(
                "default",
                Pattern::literal(key),
                Some(Pattern::literal("v")),
            )
        };
        oracle.apply(&Operation::Batch {
            changes: vec![change("a"), change("b")],
            durability: None,
        });
        let error = oracle
            .recovered(&holds(&["a"]), Survives::Durable)
            .unwrap_err();
        assert!(error.contains("no prefix"), "{error}");
        assert!(
            oracle
                .recovered(&holds(&["a", "b"]), Survives::Durable)
                .is_ok()
        );
    }
}
