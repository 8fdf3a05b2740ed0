//! Reads of the newest published state: two memtables at most, then the tree. No lock, and no
//! allocation but the value's. A view may have runs in the place of memtables.

pub mod chunk;
pub mod estimate;
pub mod iter;
pub mod run;

use std::sync::Arc;

use terrapin_base::{Error, Lsn, Message, Result, Slice, checksum::hash64, mutant};
use terrapin_memtable::Memtable;
use terrapin_recordcache::Epoch;

use crate::engine::core::Core;

use crate::api::keyspace::Keyspace;
use crate::engine::state::KeyspaceState;
use crate::engine::view::ViewHandle;
use crate::read::estimate::Estimate;
use crate::read::iter::Range;
use crate::read::run::{Answer, Run, Spilled};
use crate::types::key_range::{KeyRange, OwnedBounds, owned, prefix_range};

impl Keyspace {
    /// Why it is not in the state.
    #[cold]
    fn dropped(&self) -> Error {
        self.core().dropped().with("keyspace", self.name())
    }

    /// Reads this keyspace as of the newest published write.
    #[inline]
    fn observed<R>(&self, read: impl FnOnce(&KeyspaceState, Lsn) -> Result<R>) -> Result<R> {
        let observed = self.core().observe()?;
        let keyspace = observed.state.keyspaces.get(self.shared.id);
        read(keyspace.ok_or_else(|| self.dropped())?, observed.before).map_err(|e| self.named(e))
    }

    #[cold]
    fn named(&self, error: Error) -> Error {
        error.with("keyspace", self.name())
    }

    /// The value of a key, as of the newest published write. It is a copy, but for some long ones
    /// (half of a block of more than a 4096th of the memory, 1 to 32 KiB): they share that cached
    /// block, and keep it in memory while you hold them. Costs two memtable lookups at most and, in
    /// a store far beyond its memory, one device read. Errors: `Corrupt`, `Io`, `Unsupported`
    /// (compression that this build lacks), `Closed`, and `KeyspaceNotFound` when the keyspace was
    /// dropped; never "no value" in their place.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-get-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "sweet");
    /// assert!(fruit.get("pear")?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("find", "lookup"))]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        let core = self.core();
        core.env.breathe();
        let timer = core.counters.get_timer(&core.env);
        let epoch = core.records.epoch();
        self.observed(|keyspace, before| {
            let value = newest(core, epoch, keyspace, before, key.as_ref());
            core.counters.gets.add(1);
            keyspace.shared.counters.looked_up(1);
            core.counters.get_done(&core.env, timer);
            value
        })
    }

    /// Whether a key has a value. Costs what [`Keyspace::get`] does, less the copy.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-contains-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// assert!(fruit.contains("apple")? && !fruit.contains("pear")?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("contains_key", "has", "exists"))]
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let core = self.core();
        core.env.breathe();
        let epoch = core.records.epoch();
        self.observed(|keyspace, before| {
            core.counters.gets.add(1);
            keyspace.shared.counters.looked_up(1);
            let key = key.as_ref();
            if let Some(message) = in_memtables(keyspace, before, key) {
                return Ok(message.value().is_some());
            }
            let hash = hash64(key);
            if core.records.contains(epoch, keyspace.collection, key, hash) {
                core.counters.record_hits.add(1);
                return Ok(true);
            }
            keyspace.version.contains(key, hash)
        })
    }

    /// The values of many keys, all as of one moment, in the order of `keys`. What is not cached is
    /// read from the device in parallel.
    ///
    /// Errors: those of [`Keyspace::get`], of whichever key; then there is no value of any.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-multi-get-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// let tastes = fruit.multi_get(&["pear", "apple"])?;
    /// assert!(tastes[0].is_none());
    /// assert_eq!(tastes[1].as_ref().unwrap(), "sweet");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("get_many", "mget"))]
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        let core = self.core();
        core.env.breathe();
        let epoch = core.records.epoch();
        self.observed(|keyspace, before| {
            core.counters.gets.add(keys.len() as u64);
            keyspace.shared.counters.looked_up(keys.len() as u64);
            let cached = |key: &[u8], hash| {
                let value = core.records.get(epoch, keyspace.collection, key, hash);
                core.counters.record_hits.add(u64::from(value.is_some()));
                value
            };
            let keep = |key: &[u8], hash, value: Option<&Slice>| {
                core.missed_records();
                if let Some(value) = value {
                    core.keep(epoch, keyspace.collection, key, hash, value);
                }
            };
            multi_get(keyspace, before, keys, cached, keep)
        })
    }

    /// The record with the smallest key. As a range does, it goes over deleted keys before it that
    /// are not merged yet, one by one: who takes records from the front goes on with
    /// [`Range::after`] the last one. Errors: as [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-first-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("pear", "sweet")?;
    /// fruit.put("apple", "sour")?;
    /// let (name, _) = fruit.first()?.unwrap();
    /// assert_eq!(name, "apple");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("first_key_value", "min"))]
    pub fn first(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().limit(1).next().transpose()
    }

    /// The record with the largest key; as [`Keyspace::first`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-last-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("pear", "sweet")?;
    /// fruit.put("apple", "sour")?;
    /// let (name, _) = fruit.last()?.unwrap();
    /// assert_eq!(name, "pear");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("last_key_value", "max"))]
    pub fn last(&self) -> Result<Option<(Slice, Slice)>> {
        self.iter().limit(1).next_back().transpose()
    }

    /// Whether there is no record. Exact, unlike [`Keyspace::approximate_count`] of 0: it looks for
    /// the first record, and costs what [`Keyspace::first`] does. Errors: as [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-is-empty-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// assert!(fruit.is_empty()?);
    /// fruit.put("apple", "sweet")?;
    /// assert!(!fruit.is_empty()?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        let first = self.iter().limit(1).keys().next().transpose()?;
        Ok(first.is_none())
    }

    /// About how many records there are. Reads no record: a key that was overwritten and not yet
    /// merged down to its leaf counts once for each place that holds it, and a delete takes one
    /// away whether or not there was a record. Exact bounds are not promised. That is
    /// [`Keyspace::approximate`] of everything.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-count-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// assert_eq!(fruit.approximate_count()?, 1);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("len", "count"))]
    pub fn approximate_count(&self) -> Result<u64> {
        self.observed(estimate::count)
    }

    /// About how many records a range of keys holds, and how many bytes: for plans, progress and
    /// cutting work into parts.
    ///
    /// *Accuracy:* in the tree, the range's ends are told up to a block of some kilobytes in the
    /// leaf and in each buffer that they cut; what lies between is known, or reckoned from some of
    /// it where that is many nodes. In memtables, up to some hundred records are counted; of more,
    /// samples are taken, within some per cent as a rule, and further off where a few of thousands
    /// of prefixes hold nearly all keys. A key counts once for each place that it is in until these
    /// are merged: twice when it was overwritten, or when its delete has left the memtable (in
    /// there, it takes one away). So what is mostly overwritten or deleted seems larger than it is.
    /// An inverted range has exactly nothing.
    ///
    /// *Cost:* no record is read, only nodes and indexes, which are mostly cached, and of the nodes
    /// inside a large range a few. Some hundred microseconds where memtables hold hundreds of
    /// thousands of the range's records, and less otherwise.
    ///
    /// Errors: as [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-approximate-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let estimate = fruit.approximate("b"..)?;
    /// assert_eq!((estimate.records, estimate.bytes), (2, 22));
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("estimate", "approximate_size"))]
    pub fn approximate(&self, range: impl KeyRange) -> Result<Estimate> {
        self.observed(|keyspace, before| estimate::estimate(keyspace, before, range.bounds()))
    }

    /// The records of a range of keys, in order, from either end, as of now: later writes do not
    /// show. [`KeyRange`] says what a range may be written as; one whose end lies before its start
    /// is empty. What fails, the beginning included, is an item: see [`Range`].
    ///
    /// The first key from `k` on is `range(k..).limit(1).next()`, the last up to `k`
    /// `range(..=k).limit(1).next_back()`.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-range-{}", std::process::id()));
    /// let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// for record in fruit.range("b"..) {
    ///     let (name, taste) = record?;
    ///     assert!(name != "apple" && taste == "sweet");
    /// }
    /// let (last, _) = fruit.range(..).next_back().transpose()?.unwrap();
    /// assert_eq!(last, "cherry");
    /// let some: Vec<_> = fruit.range("apple"..="banana").collect::<terrapin::Result<_>>()?;
    /// assert_eq!(some.len(), 2);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("scan", "cursor", "iterator", "seek"))]
    pub fn range(&self, range: impl KeyRange) -> Range {
        self.range_of(owned(&range))
    }

    /// The records whose keys begin with `prefix`, in order, from either end.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-prefix-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// for name in ["apple/green", "apple/red", "pear"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let apples: Vec<_> = fruit.prefix("apple/").keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(apples, ["apple/green", "apple/red"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("scan_prefix", "starts_with"))]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.range_of(prefix_range(prefix.as_ref()))
    }

    /// All records, in order, from either end.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-iter-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.put("lemon", "sour")?;
    /// for record in fruit.iter().rev() {
    ///     let (name, taste) = record?;
    ///     println!("{name:?} is {taste:?}");
    /// }
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> Range {
        self.prefix(b"")
    }

    fn range_of(&self, bounds: OwnedBounds) -> Range {
        let id = self.shared.id;
        self.shared.counters.range_begins();
        let owner = self.owners.get(&self.owner);
        Range::new(ViewHandle::of_keyspace(owner, id), id, bounds)
    }
}

/// All records, in key order: [`Keyspace::iter`].
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-into-iter-{}", std::process::id()));
/// # let database = terrapin::Database::open(&directory)?;
/// let fruit = database.keyspace("fruit")?;
/// fruit.put("apple", "sweet")?;
/// for record in &fruit {
///     let (name, taste) = record?;
///     assert!(name == "apple" && taste == "sweet");
/// }
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
impl IntoIterator for &Keyspace {
    type Item = Result<(Slice, Slice)>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}

/// The memtables that may hold records below `before`, newest first.
#[inline]
pub(crate) fn memtables(keyspace: &KeyspaceState, before: Lsn) -> [Option<&Memtable>; 2] {
    let active = &keyspace.active;
    let active =
        (active.start < before && !active.memtable.is_empty()).then_some(&*active.memtable);
    let sealed = keyspace.sealed.as_ref().map(|s| &s.records);
    let sealed = sealed
        .filter(|w| w.start < before && !w.memtable.is_empty())
        .map(|w| &*w.memtable);
    let sealed = sealed.filter(|_| !mutant::active("reads-skip-sealed-memtable"));
    [active, sealed]
}

/// What the memtables say of a key, if anything. They remember that it was read.
#[inline]
pub(crate) fn in_memtables<'a>(
    keyspace: &'a KeyspaceState,
    before: Lsn,
    key: &[u8],
) -> Option<Message<'a>> {
    memtables(keyspace, before)
        .into_iter()
        .flatten()
        .find_map(|memtable| memtable.read(key, before))
}

/// Whether the memtables say nothing of a key. They do not remember that it was asked for: no user
/// did.
pub(crate) fn are_memtables_silent(keyspace: &KeyspaceState, before: Lsn, key: &[u8]) -> bool {
    let mut memtables = memtables(keyspace, before).into_iter().flatten();
    memtables.all(|memtable| memtable.get(key, before).is_none())
}

/// What a view's keyspace has above its tree, newest first: the memtables that may hold records
/// below `before`, or the runs that took their places.
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

/// One of what a view's keyspace has above its tree.
pub(crate) enum Layer<'a> {
    /// It is in memory yet.
    Memtable(&'a Memtable),
    /// It was written.
    Run(&'a Arc<Run>),
}

/// What memtables and runs of a view say of a key, if anything.
fn in_layers(
    keyspace: &KeyspaceState,
    spilled: &Spilled,
    before: Lsn,
    key: &[u8],
    hash: u64,
) -> Result<Answer> {
    for layer in layers(keyspace, spilled, before).into_iter().flatten() {
        let answer = match layer {
            Layer::Memtable(memtable) => memtable
                .read(key, before)
                .map(|message| message.value().map(Slice::copy)),
            Layer::Run(run) => run.get(key, hash, before)?,
        };
        if answer.is_some() {
            return Ok(answer);
        }
    }
    Ok(None)
}

#[inline]
pub(crate) fn get(keyspace: &KeyspaceState, before: Lsn, key: &[u8]) -> Result<Option<Slice>> {
    if let Some(spilled) = &keyspace.spilled {
        let hash = hash64(key);
        return match in_layers(keyspace, spilled, before, key, hash)? {
            Some(value) => Ok(value),
            None => keyspace.version.get(key, hash),
        };
    }
    match in_memtables(keyspace, before, key) {
        Some(message) => Ok(message.value().map(Slice::copy)),
        None => keyspace.version.get(key, hash64(key)),
    }
}

/// As [`get`], by way of the cached records; what the tree says is kept there.
#[inline]
fn newest(
    core: &Core,
    epoch: Epoch,
    keyspace: &KeyspaceState,
    before: Lsn,
    key: &[u8],
) -> Result<Option<Slice>> {
    if let Some(message) = in_memtables(keyspace, before, key) {
        return Ok(message.value().map(Slice::copy));
    }
    let hash = hash64(key);
    if let Some(value) = core.records.get(epoch, keyspace.collection, key, hash) {
        core.counters.record_hits.add(1);
        return Ok(Some(value));
    }
    core.missed_records();
    let value = keyspace.version.get(key, hash)?;
    if let Some(value) = &value {
        core.keep(epoch, keyspace.collection, key, hash, value);
    }
    Ok(value)
}

pub(crate) fn contains(keyspace: &KeyspaceState, before: Lsn, key: &[u8]) -> Result<bool> {
    if let Some(spilled) = &keyspace.spilled {
        let hash = hash64(key);
        return match in_layers(keyspace, spilled, before, key, hash)? {
            Some(value) => Ok(value.is_some()),
            None => keyspace.version.contains(key, hash),
        };
    }
    match in_memtables(keyspace, before, key) {
        Some(message) => Ok(message.value().is_some()),
        None => keyspace.version.contains(key, hash64(key)),
    }
}

/// As [`get`] for each of `keys`. What memtables say nothing of `cached` is asked for, and what the
/// tree says of the others is told to `keep`.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    keyspace: &KeyspaceState,
    before: Lsn,
    keys: &[K],
    cached: impl Fn(&[u8], u64) -> Option<Slice>,
    keep: impl Fn(&[u8], u64, Option<&Slice>),
) -> Result<Vec<Option<Slice>>> {
    if let Some(spilled) = &keyspace.spilled {
        return multi_get_in_layers(keyspace, spilled, before, keys);
    }
    let mut values = vec![None; keys.len()];
    let mut below = Vec::with_capacity(keys.len());
    let mut places = Vec::with_capacity(keys.len());
    for (place, key) in keys.iter().enumerate() {
        let key = key.as_ref();
        match in_memtables(keyspace, before, key) {
            Some(message) => values[place] = message.value().map(Slice::copy),
            None => {
                let hash = hash64(key);
                values[place] = cached(key, hash);
                if values[place].is_none() {
                    below.push((key, hash));
                    places.push(place);
                }
            }
        }
    }
    if below.len() == keys.len() {
        keyspace.version.multi_get(&below, &mut values)?;
    } else if !below.is_empty() {
        let mut found = vec![None; below.len()];
        keyspace.version.multi_get(&below, &mut found)?;
        for (&place, value) in places.iter().zip(found) {
            values[place] = value;
        }
    }
    for (&place, (key, hash)) in places.iter().zip(below) {
        keep(key, hash, values[place].as_ref());
    }
    Ok(values)
}

/// As [`get`] for each of `keys`, of a view that has runs: layer by layer for all keys that none
/// above said anything of.
fn multi_get_in_layers<K: AsRef<[u8]>>(
    keyspace: &KeyspaceState,
    spilled: &Spilled,
    before: Lsn,
    keys: &[K],
) -> Result<Vec<Option<Slice>>> {
    let mut values = vec![None; keys.len()];
    let mut below: Vec<(&[u8], u64)> = Vec::with_capacity(keys.len());
    below.extend(keys.iter().map(|key| (key.as_ref(), hash64(key.as_ref()))));
    let mut places: Vec<usize> = (0..keys.len()).collect();
    for layer in layers(keyspace, spilled, before).into_iter().flatten() {
        let mut answers = vec![None; below.len()];
        match layer {
            Layer::Memtable(memtable) => {
                for (answer, (key, _)) in answers.iter_mut().zip(&below) {
                    let message = memtable.read(key, before);
                    *answer = message.map(|message| message.value().map(Slice::copy));
                }
            }
            Layer::Run(run) => run.multi_get(&below, before, &mut answers)?,
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
    let mut found = vec![None; below.len()];
    keyspace.version.multi_get(&below, &mut found)?;
    for (place, value) in places.into_iter().zip(found) {
        values[place] = value;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::options::Options;

    #[test]
    fn memtables_remember_what_users_read_and_not_what_the_warming_job_asks() {
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
    fn ranges_that_say_how_many_records_they_want_say_nothing_of_others() {
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
