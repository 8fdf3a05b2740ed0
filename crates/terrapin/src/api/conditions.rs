//! Writes of a keyspace that depend on its state: insert if absent, compare and swap, update, take.

use std::borrow::Cow;

use terrapin_base::{Result, Slice};

use crate::api::keyspace::Keyspace;
use crate::engine::clock::{Ends, Moment};
use crate::pacing::patience::Patience;
use crate::read::newest_apart;
use crate::transaction::repeat::pop;
use crate::types::condition::{Conflict, ConflictCause, Version};
use crate::write::conditional::{ATTEMPTS_MAX, Decision, New, busy, check_durability, conflict};
use crate::write::lasting::default_deadline;

/// The outcome of a conditional write: done, or the condition does not hold.
type Outcome = Result<Result<(), Conflict>>;

impl Keyspace {
    /// Sets a key's value if the key has none. Returns the value that the key has instead, or
    /// `None` if the value was set.
    ///
    /// Uses the durability of the database, which must not be
    /// [`Durability::None`](crate::Durability::None). Costs a get and a put. A value that the call
    /// reads has at most a quarter of the memory ([`Keyspace::get`]); [`crate::Batch::require`] has
    /// conditions on longer ones. Errors: those of
    /// [`Keyspace::get`] and [`Keyspace::put`]; `InvalidArgument` for that durability; `Conflict`
    /// if other writers change the key between each of 10,000 attempts.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-insert-absent-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// assert!(fruit.insert_if_absent("apple", "sweet")?.is_none());
    /// assert_eq!(fruit.insert_if_absent("apple", "sour")?.unwrap(), "sweet");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("put_if_absent", "setnx", "try_insert"))]
    pub fn insert_if_absent(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Slice>> {
        let new = value.as_ref();
        self.write_if(key.as_ref(), |value| {
            Ok(match value {
                None => Decision::Write(self.state_of(Some(new.into())), None),
                Some(there) => Decision::Leave(Some(there.clone())),
            })
        })
    }

    /// Changes a key from one value to another; `None` is no value. The inner error says that the
    /// key has another value than `expected`, and which.
    ///
    /// Durability, cost and errors as for [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-swap-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// assert!(fruit.compare_and_swap("apple", Some(b"sweet"), Some(b"sour"))?.is_ok());
    /// assert!(fruit.compare_and_swap("apple", Some(b"sweet"), None)?.is_err());
    /// assert_eq!(fruit.get("apple")?.unwrap(), "sour");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("cas", "compare_exchange", "replace"))]
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Outcome {
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        self.write_stored_if(key, |value| {
            Ok(match value.as_deref() == expected {
                true => Decision::Write(self.state_of(new.map(Into::into)), Ok(())),
                false => {
                    let cause = ConflictCause::Value(value.clone());
                    Decision::Leave(Err(conflict(&self.shared, key, cause)))
                }
            })
        })
    }

    /// The value of a key, and the key's version for [`Keyspace::compare_version_and_swap`]. A key
    /// without a value has a version, too. Cost and errors as for [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-versioned-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// let (value, version) = fruit.get_versioned("apple")?;
    /// assert!(value.is_none());
    /// assert!(fruit.compare_version_and_swap("apple", &version, Some(b"sweet"))?.is_ok());
    /// // The key has changed since.
    /// assert!(fruit.compare_version_and_swap("apple", &version, Some(b"sour"))?.is_err());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn get_versioned(&self, key: impl AsRef<[u8]>) -> Result<(Option<Slice>, Version)> {
        let core = self.core();
        core.env.breathe();
        let epoch = core.records.epoch();
        let mut buffer = None;
        let key = self.shared.form.stored(key.as_ref(), &mut buffer);
        self.observed(|keyspace, at| {
            core.counters.gets.add(1);
            keyspace.shared.counters.looked_up(1);
            let ends = Ends::default();
            let at = Moment {
                ends: Some(&ends),
                ..at
            };
            let value = newest_apart(core, epoch, keyspace, at, key)?;
            Ok((value, core.version_of(keyspace, at, &ends)))
        })
    }

    /// Changes a key if nobody wrote it since a version of it was read, not even its old value
    /// again. `None` is no value.
    ///
    /// The inner error also says that too much time has passed: a [`Version`] lasts until the
    /// keyspace's memtable is merged. Read the key again then. Durability, cost and errors as for
    /// [`Keyspace::insert_if_absent`].
    pub fn compare_version_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        version: &Version,
        new: Option<&[u8]>,
    ) -> Outcome {
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        let core = self.core();
        let durability = core.settings.durability;
        check_durability(durability)?;
        let (log, new) = (core.log()?, self.state_of(new.map(Into::into)));
        let new = core.written(&self.shared, key, new)?;
        let mut patience = Patience::default();
        for attempt in 0..ATTEMPTS_MAX {
            core.begin_attempt(log, attempt)?;
            let ends = Ends::default();
            let (unchanged, collection, before) = self.observed(|keyspace, at| {
                let at = Moment {
                    ends: Some(&ends),
                    ..at
                };
                let unchanged = core.is_unchanged(keyspace, key, version, at)?;
                Ok((unchanged, keyspace.collection, at.before))
            })?;
            if !unchanged {
                let conflict = conflict(&self.shared, key, ConflictCause::Changed);
                return Ok(Err(conflict));
            }
            let shared = &self.shared;
            let read = (before, &[(shared.id, collection)][..], &ends);
            if core.write_one_read(shared, key, &new, durability, read, &mut patience)? {
                return Ok(Ok(()));
            }
        }
        Ok(Err(busy(&self.shared, key)))
    }

    /// Changes a key to what a function makes of its value; `None` is no value. Returns the new
    /// value. The function runs again if another writer changed the value meanwhile. It must not
    /// write the key itself. No lock is held while it runs, so it may take long.
    ///
    /// Durability, cost and errors as for [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-update-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let hits = database.keyspace("hits")?;
    /// let count = |value: Option<&[u8]>| {
    ///     let count = value.and_then(|v| v.try_into().ok()).map_or(0, u64::from_le_bytes);
    ///     Some((count + 1).to_le_bytes().to_vec())
    /// };
    /// hits.update("home", count)?;
    /// hits.update("home", count)?;
    /// assert_eq!(hits.get("home")?.unwrap(), 2u64.to_le_bytes());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("modify", "fetch_and_update", "read_modify_write"))]
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut update: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        self.write_if(key.as_ref(), |value| {
            let new = update(value.as_deref());
            Ok(match (&new, value) {
                (None, None) => Decision::Leave(None),
                (Some(value), _) => Decision::Write(self.state_of(Some(value.clone().into())), new),
                (None, Some(_)) => Decision::Write(New::Delete, None),
            })
        })
    }

    /// Removes a key and returns its value. Of several callers, one gets it.
    ///
    /// Durability, cost and errors as for [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-take-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// assert_eq!(fruit.take("apple")?.unwrap(), "sweet");
    /// assert!(fruit.take("apple")?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("get_and_delete", "pop", "remove"))]
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.write_if(key.as_ref(), |value| {
            Ok(match value {
                None => Decision::Leave(None),
                Some(_) => Decision::Write(New::Delete, value.clone()),
            })
        })
    }

    /// Removes the record with the smallest key and returns it: the front of a queue. Of several
    /// callers, each gets another record. Writes behind that record do not disturb it.
    ///
    /// It is a transaction ([`crate::Transaction`]) that begins again after a conflict, at most
    /// 10,000 times.
    ///
    /// Like [`Keyspace::first`], the call passes each deleted key before the record until deletes
    /// are merged. Durability and errors as for [`Keyspace::insert_if_absent`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-pop-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let queue = database.keyspace("queue")?;
    /// queue.put("1", "wash")?;
    /// queue.put("2", "cook")?;
    /// assert_eq!(queue.pop_first()?.unwrap(), ("1".into(), "wash".into()));
    /// assert_eq!(queue.pop_last()?.unwrap(), ("2".into(), "cook".into()));
    /// assert!(queue.pop_first()?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(Slice, Slice)>> {
        self.has_order()?;
        pop(self.owners.get(&self.owner), &self.shared, false)
    }

    /// Removes the record with the largest key and returns it, as [`Keyspace::pop_first`].
    pub fn pop_last(&self) -> Result<Option<(Slice, Slice)>> {
        self.has_order()?;
        pop(self.owners.get(&self.owner), &self.shared, true)
    }

    /// What a key has after a write. A value lasts as long as the keyspace's options say.
    fn state_of<'a>(&self, value: Option<Cow<'a, [u8]>>) -> New<'a> {
        match value {
            None => New::Delete,
            Some(value) => New::Put(value, default_deadline(self.core(), &self.shared)),
        }
    }

    fn write_if<'a, R>(
        &self,
        key: &[u8],
        decide: impl FnMut(&Option<Slice>) -> Result<Decision<'a, R>>,
    ) -> Result<R> {
        let mut buffer = None;
        let key = self.shared.form.written(key, &mut buffer)?;
        self.write_stored_if(key, decide)
    }

    /// Reads a stored key, decides, and writes.
    fn write_stored_if<'a, R>(
        &self,
        key: &[u8],
        decide: impl FnMut(&Option<Slice>) -> Result<Decision<'a, R>>,
    ) -> Result<R> {
        let core = self.core();
        let durability = core.settings.durability;
        core.write_if(&self.shared, key, durability, decide)
    }
}
