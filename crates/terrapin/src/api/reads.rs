//! Reads of a keyspace's newest state: gets, ranges, estimates.

use std::ops::Bound;

use terrapin_base::{Error, Result, Slice};

use crate::api::keyspace::Keyspace;
use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::engine::view::ViewHandle;
use crate::read::estimate::{self, Estimate};
use crate::read::iter::Range;
use crate::read::{in_memtables, is_there, may_be_in_memtables, newest, newest_of_many, resolve};
use crate::types::key_form::{KeyForm, KeyHash};
use crate::types::key_range::{KeyRange, OwnedBounds, owned, prefix_range};
use crate::types::sought::{AsGiven, Sought, SoughtStored, all_as_given};

impl Keyspace {
    /// The error for a keyspace that is not in the state.
    #[cold]
    pub(crate) fn dropped(&self) -> Error {
        self.core().dropped().with("keyspace", self.name())
    }

    /// Reads this keyspace as of the newest published write.
    #[inline]
    pub(crate) fn observed<R>(
        &self,
        read: impl FnOnce(&KeyspaceState, Moment<'static>) -> Result<R>,
    ) -> Result<R> {
        let observed = self.core().observe()?;
        let keyspace = observed.state.keyspaces.get(self.shared.id);
        let keyspace = keyspace.ok_or_else(|| self.dropped())?;
        read(keyspace, observed.moment(None)).map_err(|e| self.named(e))
    }

    #[cold]
    fn named(&self, error: Error) -> Error {
        error.with("keyspace", self.name())
    }

    /// The value of a key, as of the newest published write.
    ///
    /// The value is a copy, except some long ones. A value of at least half a cached block shares
    /// that block if the block is longer than a 4096th of the memory (a bound of 1 to 32 KiB). It
    /// keeps the block in memory while you hold the value.
    ///
    /// Costs at most two memtable lookups and, in a database much larger than its memory, one
    /// device read. Errors: `Corrupt`; `Io`; `Unsupported` (compression that this build lacks);
    /// `Closed`; `KeyspaceNotFound` if the keyspace was dropped. An error never reads as "no
    /// value".
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
        match &self.shared.form {
            KeyForm::AsGiven => self.get_sought(&AsGiven(key.as_ref())),
            KeyForm::Hashed(hash) => self.get_hashed(hash, key.as_ref()),
        }
    }

    /// [`Keyspace::get`] of a hashed keyspace, out of line: an order key on the stack costs every
    /// get.
    #[inline(never)]
    fn get_hashed(&self, hash: &KeyHash, key: &[u8]) -> Result<Option<Slice>> {
        self.get_sought(&hash.sought(key))
    }

    #[inline(always)]
    fn get_sought(&self, key: &impl Sought) -> Result<Option<Slice>> {
        let core = self.core();
        core.env.breathe();
        let timer = core.counters.get_timer(&core.env);
        let epoch = core.records.epoch();
        let observed = core.observe()?;
        let Some(keyspace) = observed.state.keyspaces.get(self.shared.id) else {
            return Err(self.dropped());
        };
        let value = newest(core, epoch, keyspace, observed.moment(None), key);
        core.counters.gets.add(1);
        keyspace.shared.counters.looked_up(1);
        core.counters.get_done(&core.env, timer);
        value.map_err(|error| self.named(error))
    }

    /// Whether a key has a value. Costs as much as [`Keyspace::get`] without the copy. Errors as
    /// for [`Keyspace::get`].
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
        match &self.shared.form {
            KeyForm::AsGiven => self.contains_sought(&AsGiven(key.as_ref())),
            KeyForm::Hashed(hash) => self.contains_sought(&hash.sought(key.as_ref())),
        }
    }

    fn contains_sought(&self, key: &impl Sought) -> Result<bool> {
        let core = self.core();
        core.env.breathe();
        let epoch = core.records.epoch();
        self.observed(|keyspace, at| {
            core.counters.gets.add(1);
            keyspace.shared.counters.looked_up(1);
            let mut buffer = None;
            if may_be_in_memtables(keyspace, at.before) {
                let stored = key.stored(&mut buffer);
                if let Some(message) = in_memtables(keyspace, at.before, stored) {
                    return is_there(keyspace, at, stored, message);
                }
            }
            let (cached, hash) = (key.in_caches(), key.cache_hash());
            let collection = keyspace.collection;
            if core.records.contains(epoch, collection, cached, hash) {
                core.counters.record_hits.add(1);
                return Ok(true);
            }
            let stored = key.stored(&mut buffer);
            resolve::contains(keyspace, at, stored, key.hash_of(stored, hash))
        })
    }

    /// The values of many keys, all as of one moment, in the order of `keys`. Reads the blocks that
    /// are not cached in parallel.
    ///
    /// Errors: those of [`Keyspace::get`]. An error of one key is the error of the call.
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
        match self.shared.form.all_stored(keys) {
            None => self.multi_get_sought(&all_as_given(keys)),
            Some(keys) => self.multi_get_sought(&keys),
        }
    }

    fn multi_get_sought<K: SoughtStored>(&self, keys: &[K]) -> Result<Vec<Option<Slice>>> {
        let core = self.core();
        core.env.breathe();
        let epoch = core.records.epoch();
        self.observed(|keyspace, at| {
            core.counters.gets.add(keys.len() as u64);
            keyspace.shared.counters.looked_up(keys.len() as u64);
            newest_of_many(core, epoch, keyspace, at, keys)
        })
    }

    /// The record with the smallest key. Like a range, the call passes each deleted key before that
    /// record, until deletes are merged. To take records from the front repeatedly, use
    /// [`Range::after`] with the last key. Errors as for [`Keyspace::get`].
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

    /// The record with the largest key. Cost and errors as for [`Keyspace::first`].
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

    /// Whether the keyspace has no record. Exact, unlike an [`Keyspace::approximate_count`] of 0.
    /// The call looks for the first record. Cost and errors as for [`Keyspace::first`].
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
        // The first value may be too large to be returned.
        let all = self.stored_range((Bound::Unbounded, Bound::Unbounded));
        Ok(all.limit(1).keys().next().transpose()?.is_none())
    }

    /// The estimated number of records: [`Keyspace::approximate`] of all keys. It works with every
    /// structure, since it needs no order of keys. The call reads no record and promises no bounds
    /// of its error. An overwritten key counts once for each memtable and level that has it, until
    /// they are merged. A delete subtracts one, whether its key existed or not.
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
        self.observed(|keyspace, at| estimate::count(keyspace, at.before))
    }

    /// The estimated number of records and bytes in a range of keys. Use it for plans, for
    /// progress, and to divide work into parts.
    ///
    /// *Accuracy in trees:* each end of the range is known to within a block of some kilobytes, in
    /// the leaf and in each buffer. The rest is exact, or estimated from a few nodes if the range
    /// spans many. *In memtables:* up to some hundred records are counted. More are sampled, mostly
    /// to within a few per cent, and less well if a few of thousands of prefixes hold nearly all
    /// keys. A key counts once for each place that holds it until these are merged. An overwritten
    /// key counts twice, and so does a deleted key once its delete has left the memtable. So an
    /// overwritten or deleted range seems larger than it is. An inverted range has exactly nothing.
    ///
    /// *Cost:* the call reads nodes and indexes, which are mostly cached, and no records. It takes
    /// some hundred microseconds if memtables hold hundreds of thousands of the range's records,
    /// and less otherwise.
    ///
    /// Errors: as [`Keyspace::get`]; `Unsupported` if the keyspace's structure keeps no order of
    /// keys.
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
        self.observed(|keyspace, at| {
            self.has_order()?;
            estimate::estimate(keyspace, at.before, range.bounds())
        })
    }

    /// The records of a range of keys as of now, in order, from either end. The range does not show
    /// later writes. [`KeyRange`] lists the types of ranges. A range whose end is before its start
    /// is empty. An error is an item, also an error of the beginning: see [`Range`].
    ///
    /// The first key at or after `k` is `range(k..).limit(1).next()`. The last key at or before `k`
    /// is `range(..=k).limit(1).next_back()`.
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
        match self.has_order() {
            Ok(()) => self.stored_range(bounds),
            Err(error) => Range::new(Err(error), self.shared.id, bounds),
        }
    }

    /// A range of stored keys.
    pub(crate) fn stored_range(&self, bounds: OwnedBounds) -> Range {
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
