//! Reads of one state of a keyspace: at most two memtables, then the tree. In an old view, runs
//! replace memtables. A read takes no lock and allocates only the value.

pub mod chunk;
pub mod cover;
pub mod estimate;
pub mod iter;
pub mod large;
pub mod resolve;
pub mod sorted;

use std::cell::LazyCell;
use std::sync::Arc;

use terrapin_base::{
    Fold, Lsn, Message, Result, Slice, checksum::hash64, expiry, handle_deadline_ms, mutant,
};
use terrapin_memtable::{Memtable, ValueOrFold};
use terrapin_recordcache::{Collection, Epoch};
use terrapin_structure::Found;

use crate::engine::clock::{Ends, Moment};
use crate::engine::core::Core;
use crate::engine::locations::Locations;
use crate::engine::state::KeyspaceState;
use crate::run::{Run, Spilled};
use crate::types::key_form::KeyForm;
use crate::types::sought::{AsGiven, Sought, SoughtStored, StoredKey};

/// The memtables that may hold records below `before`, newest first.
#[inline]
pub(crate) fn memtables(keyspace: &KeyspaceState, before: Lsn) -> [Option<&Memtable>; 2] {
    [active_of(keyspace, before), sealed_of(keyspace, before)]
}

/// The active memtable, if it may hold records below `before`.
#[inline(always)]
fn active_of(keyspace: &KeyspaceState, before: Lsn) -> Option<&Memtable> {
    let active = &keyspace.active;
    (active.start < before && !active.memtable.is_empty()).then_some(&*active.memtable)
}

/// The sealed memtable, if there is one that may hold records below `before`.
#[inline(always)]
fn sealed_of(keyspace: &KeyspaceState, before: Lsn) -> Option<&Memtable> {
    let sealed = &keyspace.sealed.as_ref()?.records;
    let is_asked = sealed.start < before && !sealed.memtable.is_empty();
    (is_asked && !mutant::active("reads-skip-sealed-memtable")).then_some(&*sealed.memtable)
}

/// The newest message of the memtables for a key, range deletes included. The memtable remembers
/// that the key was read.
#[inline(always)] // each lookup
pub(crate) fn in_memtables<'a>(
    keyspace: &'a KeyspaceState,
    before: Lsn,
    key: &[u8],
) -> Option<Message<'a>> {
    if let Some(active) = active_of(keyspace, before)
        && let Some(message) = active.read(key, before)
    {
        return Some(message);
    }
    sealed_of(keyspace, before)?.read(key, before)
}

/// Whether a memtable may have a message for some key.
#[inline(always)]
pub(crate) fn may_be_in_memtables(keyspace: &KeyspaceState, before: Lsn) -> bool {
    active_of(keyspace, before).is_some() || sealed_of(keyspace, before).is_some()
}

/// Whether the memtables have no message for a key. Does not count as a read, since no user asked.
pub(crate) fn are_memtables_silent(keyspace: &KeyspaceState, before: Lsn, key: &[u8]) -> bool {
    let mut memtables = memtables(keyspace, before).into_iter().flatten();
    memtables.all(|memtable| memtable.get(key, before).is_none())
}

/// The layers above the tree of a view's keyspace, newest first: the memtables that may hold
/// records below `before`, or the runs that replaced them.
pub(crate) fn layers<'a>(
    keyspace: &'a KeyspaceState,
    spilled: &'a Spilled,
    before: Lsn,
) -> [Option<Layer<'a>>; 2] {
    let [active, sealed] = memtables(keyspace, before);
    let layer = |memtable: Option<&'a Memtable>, run: &'a Option<Arc<Run>>| match run {
        Some(run) => Some(Layer::Run(run)),
        None => memtable.map(Layer::Memtable),
    };
    let newer = layer(active, &spilled.active);
    let older = layer(sealed, &spilled.sealed);
    match mutant::active("older-run-of-view-wins") {
        true => [older, newer],
        false => [newer, older],
    }
}

/// One layer above the tree of a view's keyspace.
pub(crate) enum Layer<'a> {
    /// A memtable.
    Memtable(&'a Memtable),
    /// The run that replaced a memtable.
    Run(&'a Arc<Run>),
}

/// The answer of a view's memtables and runs for a key, if they have one.
fn in_layers(
    keyspace: &KeyspaceState,
    spilled: &Spilled,
    at: Moment<'_>,
    key: &[u8],
    hash: u64,
) -> Result<Option<Option<Slice>>> {
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        let answer = match &layer {
            Layer::Memtable(memtable) => match memtable.read(key, at.before) {
                Some(message) => Some(answer(keyspace, at, key, message)?),
                None => None,
            },
            Layer::Run(run) => match run.get(key, hash, at.before)? {
                Some(found) => Some(answer(keyspace, at, key, found.message())?),
                None => None,
            },
        };
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

/// The value of a key whose newest message above the tree is this one. Operands are folded with all
/// older messages of the key.
#[inline]
fn answer(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    message: Message<'_>,
) -> Result<Option<Slice>> {
    match message {
        Message::Put(value) => Ok(Some(Slice::copy(value))),
        Message::Delete => Ok(None),
        Message::Separated(handle) => match is_live_handle(at, handle) {
            true => resolve::large(keyspace, key, handle).map(Some),
            false => Ok(None),
        },
        Message::Merge(_) | Message::Stack(_) => folded(keyspace, at, key),
        Message::Expiring(payload) => resolve::live(at, payload),
    }
}

/// Whether the value of a handle has no deadline, or one that has not come.
#[inline]
pub(crate) fn is_live_handle(at: Moment<'_>, handle: &[u8]) -> bool {
    handle_deadline_ms(handle).is_none_or(|deadline_ms| at.is_live(deadline_ms))
}

/// The value of a key that has operands above the tree. Asks no record cache, and adds nothing to
/// it: the cache holds what the tree says, and a value with the operands applied would get them
/// again.
#[cold]
pub(crate) fn folded(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
) -> Result<Option<Slice>> {
    let (mut fold, hash) = (Fold::default(), LazyCell::new(|| hash64(key)));
    let nothing = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&nothing);
    let basis = basis_of(keyspace);
    // What the newest memtable said, if nothing is newer.
    let mut newest = None;
    let (mut is_based, mut is_first) = (false, true);
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        is_based = match layer {
            Layer::Memtable(memtable) => {
                match memtable.value_or_fold(key, at.before, basis, &mut fold)? {
                    Some(ValueOrFold::Value(value)) if is_first => {
                        return Ok(value.put_value().map(Slice::copy));
                    }
                    Some(ValueOrFold::Value(value)) => {
                        newest = None;
                        fold.push(value)?
                    }
                    Some(ValueOrFold::Fold(folded)) => {
                        newest = is_first.then_some((memtable, folded));
                        is_first = false;
                        folded.is_based
                    }
                    None => false,
                }
            }
            Layer::Run(run) => match run.get(key, *hash, at.before)? {
                Some(found) => {
                    is_first = false;
                    fold.push(found.message())?
                }
                None => false,
            },
        };
        if is_based || mutant::active("fold-skips-sealed-memtable") {
            break;
        }
    }
    if !is_based {
        resolve::push(&mut fold, key, keyspace.version.get(key, *hash)?)?;
    }
    // A deadline gives views of different moments different values.
    let lasts = at.now_ms == 0 && fold.deadline_ms().is_none();
    let read = |handle: &[u8]| resolve::large(keyspace, key, handle);
    resolve::read_base(&read, at, &mut fold)?;
    let value = fold.value(&keyspace.operator, key, |deadline_ms| {
        at.is_live(deadline_ms)
    })?;
    if let Some((memtable, folded)) = newest
        && lasts
        && basis.is_some()
    {
        memtable.remember(folded, basis, value.map_or(Message::Delete, Message::Put));
    }
    Ok(value.map(Slice::copy))
}

/// Adds all messages of a key to a fold, newest first, and applies no operand to another.
pub(crate) fn messages(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    fold: &mut Fold,
) -> Result<()> {
    let nothing = Spilled::default();
    let spilled = keyspace.spilled.as_deref().unwrap_or(&nothing);
    let hash = hash64(key);
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        let is_based = match layer {
            Layer::Memtable(memtable) => {
                let folded = memtable.fold(key, at.before, None, fold)?;
                folded.is_some_and(|folded| folded.is_based)
            }
            Layer::Run(run) => match run.get(key, hash, at.before)? {
                Some(found) => fold.push(found.message())?,
                None => false,
            },
        };
        if is_based {
            return Ok(());
        }
    }
    resolve::push(fold, key, keyspace.version.get(key, hash)?)
}

/// The basis of values that a memtable remembers: they hold as long as nothing but later writes
/// changes what is below. An ingest, a clear or a drop changes the collection.
fn basis_of(keyspace: &KeyspaceState) -> Option<u32> {
    let Collection(number) = keyspace.collection;
    (number != u32::MAX).then_some(number)
}

/// The value of a key, without the record cache.
#[inline]
pub(crate) fn get(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<Option<Slice>> {
    if let Some(spilled) = &keyspace.spilled {
        let hash = hash64(key);
        return match in_layers(keyspace, spilled, at, key, hash)? {
            Some(value) => Ok(value),
            None => resolve::get(keyspace, at, key, hash),
        };
    }
    match in_memtables(keyspace, at.before, key) {
        Some(message) => answer(keyspace, at, key, message),
        None => resolve::get(keyspace, at, key, hash64(key)),
    }
}

/// [`newest`], out of line: for callers whose own copy would keep the compiler from inlining it in
/// gets.
#[inline(never)]
pub(crate) fn newest_apart(
    core: &Core,
    epoch: Epoch,
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
) -> Result<Option<Slice>> {
    match keyspace.shared.form {
        KeyForm::AsGiven => newest(core, epoch, keyspace, at, &AsGiven(key)),
        form => newest_hashed(core, epoch, keyspace, at, &StoredKey { form, key }),
    }
}

/// [`newest`] of a hashed keyspace, out of line.
#[inline(never)]
fn newest_hashed(
    core: &Core,
    epoch: Epoch,
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &StoredKey<'_>,
) -> Result<Option<Slice>> {
    newest(core, epoch, keyspace, at, key)
}

/// The value of a key in the newest state. Asks the record cache before the tree, and adds the
/// tree's value to it. Only rare answers need the moment whole, so it is taken apart for them: it
/// then stays in registers.
#[inline(always)]
pub(crate) fn newest<K: Sought>(
    core: &Core,
    epoch: Epoch,
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &K,
) -> Result<Option<Slice>> {
    let (before, rest) = (at.before, (at.now_ms, at.ends));
    let mut buffer = None;
    if K::IS_STORED || may_be_in_memtables(keyspace, before) {
        let stored = key.stored(&mut buffer);
        if let Some(message) = in_memtables(keyspace, before, stored) {
            return match message {
                Message::Put(value) => Ok(Some(Slice::copy(value))),
                message => answer_apart(keyspace, before, rest, stored, message),
            };
        }
    }
    let cached = (key.in_caches(), key.cache_hash());
    let collection = keyspace.collection;
    if let Some(value) = core.records.get(epoch, collection, cached.0, cached.1) {
        core.counters.record_hits.add(1);
        return Ok(Some(value));
    }
    core.missed_records();
    let stored = key.stored(&mut buffer);
    let stored = (stored, key.hash_of(stored, cached.1));
    if let Some(locations) = core.locations.get() {
        let places = (epoch, keyspace);
        return located(core, locations, places, before, rest, stored, cached);
    }
    match keyspace.version.get(stored.0, stored.1)? {
        Found::Nothing => Ok(None),
        Found::Value(value) => {
            core.keep(epoch, collection, cached.0, cached.1, &value);
            Ok(Some(value))
        }
        found => {
            let (value, lasts) = resolved_apart(keyspace, before, rest, stored.0, found)?;
            if lasts && let Some(value) = &value {
                core.keep(epoch, collection, cached.0, cached.1, value);
            }
            Ok(value)
        }
    }
}

/// What a memtable answers that is not a put, out of line.
#[inline(never)]
fn answer_apart(
    keyspace: &KeyspaceState,
    before: Lsn,
    rest: (u64, Option<&Ends>),
    key: &[u8],
    message: Message<'_>,
) -> Result<Option<Slice>> {
    let at = Moment::of(before, rest);
    answer(keyspace, at, key, message)
}

/// The value of what a tree found that is not a plain value, and whether it
/// [lasts](resolve::lasts), out of line.
#[inline(never)]
fn resolved_apart(
    keyspace: &KeyspaceState,
    before: Lsn,
    rest: (u64, Option<&Ends>),
    key: &[u8],
    found: Found,
) -> Result<(Option<Slice>, bool)> {
    let lasts = resolve::lasts(&found);
    let at = Moment::of(before, rest);
    Ok((resolve::value(keyspace, at, key, found)?, lasts))
}

/// The value of a key that neither memtables nor cached records have, where keyspaces have
/// separated values. Asks the map of values before the tree, and adds what the tree says to it. The
/// key comes as it is stored and as the record cache has it.
#[inline(never)]
fn located(
    core: &Core,
    locations: &Locations,
    (epoch, keyspace): (Epoch, &KeyspaceState),
    before: Lsn,
    rest: (u64, Option<&Ends>),
    (key, hash): (&[u8], u64),
    cached: (&[u8], u64),
) -> Result<Option<Slice>> {
    let at = Moment::of(before, rest);
    let collection = keyspace.collection;
    let values = keyspace.version.stored_values();
    if let Some(values) = values
        && let Some(value) = locations.get(collection, values, key, hash)
    {
        core.keep(epoch, collection, cached.0, cached.1, &value);
        return Ok(Some(value));
    }
    let found = match values {
        Some(values) => {
            // In this order: no sweep began between the reader's epoch, which came before its
            // state, and the map's epoch, which the fill compares.
            let filled_at = locations.epoch();
            let is_current = core.records.is_still(epoch);
            let (found, place) = values.get_located(key, hash)?;
            if let Some(place) = place.filter(|_| is_current)
                && locations.fill((collection, values.moment()), hash, &place, filled_at)
            {
                core.store.reclaim_signal().notify();
            }
            found
        }
        None => keyspace.version.get(key, hash)?,
    };
    let lasts = resolve::lasts(&found);
    let value = resolve::value(keyspace, at, key, found)?;
    if lasts && let Some(value) = &value {
        core.keep(epoch, collection, cached.0, cached.1, value);
    }
    Ok(value)
}

/// Whether a key has a value whose newest message above the tree is this one.
#[inline]
pub(crate) fn is_there(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    key: &[u8],
    message: Message<'_>,
) -> Result<bool> {
    match message {
        Message::Put(_) => Ok(true),
        Message::Delete => Ok(false),
        Message::Separated(handle) => Ok(is_live_handle(at, handle)),
        Message::Merge(_) | Message::Stack(_) => Ok(folded(keyspace, at, key)?.is_some()),
        Message::Expiring(payload) => Ok(at.is_live(expiry::split(payload)?.0)),
    }
}

/// Whether a key has a value.
pub(crate) fn contains(keyspace: &KeyspaceState, at: Moment<'_>, key: &[u8]) -> Result<bool> {
    if let Some(spilled) = &keyspace.spilled {
        let hash = hash64(key);
        return match in_layers(keyspace, spilled, at, key, hash)? {
            Some(value) => Ok(value.is_some()),
            None => resolve::contains(keyspace, at, key, hash),
        };
    }
    match in_memtables(keyspace, at.before, key) {
        Some(message) => is_there(keyspace, at, key, message),
        None => resolve::contains(keyspace, at, key, hash64(key)),
    }
}

/// Keys whose records are prefetched together. More of them would push each other out of the
/// processor's nearest cache.
const PREFETCHED_KEYS: usize = 32;

/// What [`multi_get`] asks between memtables and tree, and what it tells it.
pub(crate) trait Between {
    /// Prefetches what lookups of keys with these hashes need.
    fn prefetch(&self, _hashes: &[u64]) {}
    /// The cached value of a key that the memtables do not have. Keys and hashes are those of the
    /// record cache.
    fn cached(&self, _key: &[u8], _hash: u64) -> Option<Slice> {
        None
    }
    /// Receives the tree's answer for a key that is not cached, unless a deadline ends it.
    fn keep(&self, _key: &[u8], _hash: u64, _value: Option<&Slice>) {}
}

/// Nothing is between: for views, which no cache serves.
impl Between for () {}

/// The values of several keys.
pub(crate) fn multi_get<K: SoughtStored>(
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    keys: &[K],
    between: &impl Between,
) -> Result<Vec<Option<Slice>>> {
    if let Some(spilled) = &keyspace.spilled {
        return multi_get_in_layers(keyspace, spilled, at, keys);
    }
    let mut values = vec![None; keys.len()];
    let mut below = Vec::with_capacity(keys.len());
    let mut places = Vec::with_capacity(keys.len());
    for (part, keys) in keys.chunks(PREFETCHED_KEYS).enumerate() {
        let mut hashes = [0; PREFETCHED_KEYS];
        let hashes = &mut hashes[..keys.len()];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.cache_hash();
        }
        between.prefetch(hashes);
        for (at_part, (key, &hash)) in keys.iter().zip(&*hashes).enumerate() {
            let place = part * PREFETCHED_KEYS + at_part;
            if let Some(message) = in_memtables(keyspace, at.before, key.bytes()) {
                values[place] = answer(keyspace, at, key.bytes(), message)?;
                continue;
            }
            values[place] = between.cached(key.in_caches(), hash);
            if values[place].is_none() {
                below.push((key.bytes(), key.hash_of(key.bytes(), hash)));
                places.push((place, hash));
            }
        }
    }
    if !below.is_empty() {
        let found = resolve::multi_get(keyspace, at, &below)?;
        for (&(place, hash), found) in places.iter().zip(found) {
            let (value, lasts) = found?;
            let key = keys[place].in_caches();
            between.keep(key, hash, value.as_ref().filter(|_| lasts));
            values[place] = value;
        }
    }
    Ok(values)
}

/// The record cache, between the memtables and the tree of the newest state.
struct Records<'s> {
    core: &'s Core,
    epoch: Epoch,
    collection: Collection,
}

impl Between for Records<'_> {
    fn prefetch(&self, hashes: &[u64]) {
        let records = &self.core.records;
        records.prefetch(self.collection, hashes.iter().copied());
    }

    fn cached(&self, key: &[u8], hash: u64) -> Option<Slice> {
        let records = &self.core.records;
        let value = records.get(self.epoch, self.collection, key, hash);
        let hits = u64::from(value.is_some());
        self.core.counters.record_hits.add(hits);
        value
    }

    fn keep(&self, key: &[u8], hash: u64, value: Option<&Slice>) {
        self.core.missed_records();
        if let Some(value) = value {
            self.core
                .keep(self.epoch, self.collection, key, hash, value);
        }
    }
}

/// The values of several keys in the newest state. Asks the record cache before the tree, and adds
/// the tree's values to it.
pub(crate) fn newest_of_many<K: SoughtStored>(
    core: &Core,
    epoch: Epoch,
    keyspace: &KeyspaceState,
    at: Moment<'_>,
    keys: &[K],
) -> Result<Vec<Option<Slice>>> {
    let records = Records {
        core,
        epoch,
        collection: keyspace.collection,
    };
    multi_get(keyspace, at, keys, &records)
}

/// The values of several keys in a view that has runs. Asks one layer after another for all keys
/// that no newer layer answered.
fn multi_get_in_layers<K: SoughtStored>(
    keyspace: &KeyspaceState,
    spilled: &Spilled,
    at: Moment<'_>,
    keys: &[K],
) -> Result<Vec<Option<Slice>>> {
    let mut values = vec![None; keys.len()];
    let mut below: Vec<(&[u8], u64)> = Vec::with_capacity(keys.len());
    below.extend(keys.iter().map(|key| (key.bytes(), hash64(key.bytes()))));
    let mut places: Vec<usize> = (0..keys.len()).collect();
    for layer in layers(keyspace, spilled, at.before).into_iter().flatten() {
        let mut answers = vec![None; below.len()];
        match layer {
            Layer::Memtable(memtable) => {
                for (out, (key, _)) in answers.iter_mut().zip(&below) {
                    if let Some(message) = memtable.read(key, at.before) {
                        *out = Some(answer(keyspace, at, key, message)?);
                    }
                }
            }
            Layer::Run(run) => {
                let found = run.multi_get(&below, at.before)?;
                for ((out, (key, _)), found) in answers.iter_mut().zip(&below).zip(found) {
                    if let Some(found) = found {
                        *out = Some(answer(keyspace, at, key, found.message())?);
                    }
                }
            }
        }
        let mut is_open = Vec::with_capacity(answers.len());
        for (&place, answer) in places.iter().zip(answers) {
            is_open.push(answer.is_none());
            if let Some(value) = answer {
                values[place] = value;
            }
        }
        let mut open = is_open.iter();
        below.retain(|_| open.next() == Some(&true));
        let mut open = is_open.iter();
        places.retain(|_| open.next() == Some(&true));
    }
    let found = resolve::multi_get(keyspace, at, &below)?;
    for (place, found) in places.into_iter().zip(found) {
        values[place] = found?.0;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    #[test]
    fn memtables_remember_the_reads_of_users_and_not_those_of_the_warm_up() {
        let (database, _sim) = Options::small().open_simulated();
        database.default_keyspace().put("a", "1").unwrap();
        let observed = database.core().observe().unwrap();
        let keyspace = observed.state.keyspaces.iter().next().unwrap();
        let before = observed.before;
        let was_read = || {
            let mut cursor = keyspace.active.memtable.cursor(Lsn(0), before);
            cursor.seek_first();
            cursor.was_read()
        };
        assert!(are_memtables_silent(keyspace, before, b"b"));
        assert!(!are_memtables_silent(keyspace, before, b"a"));
        assert!(!was_read());
        assert!(in_memtables(keyspace, before, b"a").is_some());
        assert!(was_read());
    }

    #[test]
    fn ranges_with_a_limit_do_not_change_the_expected_length_of_others() {
        let (database, _sim) = Options::small().open_simulated();
        let keyspace = database.default_keyspace();
        for n in 0..100_u8 {
            keyspace.put([n], "1").unwrap();
        }
        let expected = || keyspace.shared.range_length.expected().mean;
        for _ in 0..100 {
            assert_eq!(keyspace.iter().limit(90).count(), 90);
        }
        assert_eq!(expected(), 0);
        for _ in 0..100 {
            assert_eq!(keyspace.iter().take(40).count(), 40);
        }
        assert!((39..=40).contains(&expected()));
        database.close().unwrap();
    }
}
