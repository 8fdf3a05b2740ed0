//! Snapshots: views that users hold.

use std::ops::Bound;
use std::sync::Arc;

use terrapin_base::{Error, Lsn, Result, Slice, mutant};

use crate::api::database::Database;
use crate::api::keyspace::Keyspace;
use crate::engine::clock::Moment;
use crate::engine::state::KeyspaceState;
use crate::engine::view::ViewHandle;
use crate::read;
use crate::read::estimate::{self, Estimate};
use crate::read::iter::Range;
use crate::types::key_range::{KeyRange, OwnedBounds, owned, prefix_range};
use crate::types::sought::all_as_given;

/// The whole database as of one moment. Taking a snapshot is O(1), whatever the database's size.
///
/// Any number of snapshots may be held. Later writes bound their cost on disk: pages that
/// checkpoints replace stay, and each write that held snapshots see is written once more for all of
/// them. A snapshot keeps no memtable in memory for more than about a second, unless the disk is
/// full. A read of an old snapshot asks up to two filters more than a read of the keyspace.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("terrapin-doc-snapshot-{}", std::process::id()));
/// # let database = terrapin::Database::open(&directory)?;
/// # let fruit = database.keyspace("fruit")?;
/// fruit.put("apple", "sweet")?;
/// let snapshot = database.snapshot()?;
/// fruit.put("apple", "sour")?;
/// assert_eq!(snapshot.get(&fruit, "apple")?.unwrap(), "sweet");
/// assert_eq!(fruit.get("apple")?.unwrap(), "sour");
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<ViewHandle>,
}

impl Database {
    /// A snapshot of all keyspaces at one moment, with every write published so far. O(1). Errors:
    /// `Closed`.
    #[doc(alias("read_transaction", "begin_read", "view"))]
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.owner.core.env.breathe();
        Ok(Snapshot {
            handle: ViewHandle::new(&self.owner)?,
        })
    }
}

impl Snapshot {
    /// The LSN of the snapshot, the end of a log record: it has every write with a smaller LSN, and
    /// no other.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.handle.view().before
    }

    pub(super) fn with<R>(
        &self,
        keyspace: &Keyspace,
        read: impl FnOnce(&KeyspaceState, Moment<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check(keyspace)?;
        let core = self.handle.core();
        core.env.breathe();
        core.health.check_open()?;
        let held = self.handle.view().held()?;
        let mut at = self.handle.view().moment();
        if mutant::active("snapshot-reads-newest") {
            at.before = Lsn(u64::MAX);
        }
        held.keyspace(keyspace.id())
            .and_then(|keyspace| read(keyspace, at))
            .map_err(|error| error.with("keyspace", keyspace.name()))
    }

    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        if self.handle.owner().number == keyspace.owner.number {
            return Ok(());
        }
        Err(
            Error::invalid("the keyspace belongs to another open database than the snapshot")
                .with("keyspace", keyspace.name()),
        )
    }

    /// The value that a key had. The record cache has newest records only, so the read uses cached
    /// blocks. Errors as for [`Keyspace::get`]; `KeyspaceNotFound` if the keyspace did not exist.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Slice>> {
        self.handle.core().counters.gets.add(1);
        keyspace.shared.counters.looked_up(1);
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.with(keyspace, |k, at| read::get(k, at, key))
    }

    /// Whether a key had a value.
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.handle.core().counters.gets.add(1);
        keyspace.shared.counters.looked_up(1);
        let mut buffer = None;
        let key = keyspace.shared.form.stored(key.as_ref(), &mut buffer);
        self.with(keyspace, |k, at| read::contains(k, at, key))
    }

    /// The values that many keys had, in the order of `keys`.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Result<Vec<Option<Slice>>> {
        self.handle.core().counters.gets.add(keys.len() as u64);
        keyspace.shared.counters.looked_up(keys.len() as u64);
        self.with(keyspace, |k, at| {
            match keyspace.shared.form.all_stored(keys) {
                None => read::multi_get(k, at, &all_as_given(keys), &()),
                Some(keys) => read::multi_get(k, at, &keys, &()),
            }
        })
    }

    /// The record with the smallest key.
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.iter(keyspace).limit(1).next().transpose()
    }

    /// The record with the largest key.
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Slice, Slice)>> {
        self.iter(keyspace).limit(1).next_back().transpose()
    }

    /// The estimated number of records; see [`Keyspace::approximate_count`].
    pub fn approximate_count(&self, keyspace: &Keyspace) -> Result<u64> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.with(keyspace, |k, at| {
            Ok(estimate::estimate_in_view(k, at.before, all)?.records)
        })
    }

    /// The estimated number of records and bytes in a range of keys; see [`Keyspace::approximate`].
    pub fn approximate(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Estimate> {
        self.with(keyspace, |k, at| {
            keyspace.has_order()?;
            estimate::estimate_in_view(k, at.before, range.bounds())
        })
    }

    /// The records of a range of keys, in order, from either end; see [`Keyspace::range`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-snapshot-range-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// let snapshot = database.snapshot()?;
    /// fruit.put("pear", "sweet")?;
    /// assert_eq!(snapshot.range(&fruit, "a".."z").count(), 1);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Range {
        self.range_of(keyspace, owned(&range))
    }

    /// The records whose keys begin with `prefix`, in order, from either end.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.range_of(keyspace, prefix_range(prefix.as_ref()))
    }

    fn range_of(&self, keyspace: &Keyspace, bounds: OwnedBounds) -> Range {
        match keyspace.has_order() {
            Ok(()) => self.stored_range(keyspace, bounds),
            Err(error) => Range::new(Err(error), keyspace.id(), bounds),
        }
    }

    /// A range of stored keys.
    pub(crate) fn stored_range(&self, keyspace: &Keyspace, bounds: OwnedBounds) -> Range {
        keyspace.shared.counters.range_begins();
        let handle = self.check(keyspace).map(|()| self.handle.clone());
        Range::new(handle, keyspace.id(), bounds)
    }

    /// All records, in order, from either end.
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.prefix(keyspace, b"")
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("lsn", &self.lsn())
            .finish()
    }
}
