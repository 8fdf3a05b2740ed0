//! The handle on one keyspace: its writes and options. Its reads are in `api::reads`.

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, KeyspaceId, Message, Result, Shares, mutant};

use crate::engine::core::Core;
use crate::engine::owner::Owner;
use crate::engine::state::{KeyspaceShared, KeyspaceState};
use crate::types::key_form::KeyForm;
use crate::types::options::{CheckpointDistance, Durability, KeyspaceOptions};
use crate::write::lasting::LastingPut;

/// A named, ordered map of byte strings: a handle that is cheap to clone and usable from any
/// thread. Handles keep the database open, and may be dropped in any order. Keys are ordered as
/// unsigned bytes. A hashed keyspace ([`StructureKind::Hashed`](crate::StructureKind::Hashed)) has
/// no order of keys.
#[doc(alias("column family", "tree", "table", "partition", "bucket", "map"))]
pub struct Keyspace {
    pub(crate) owner: Arc<Owner>,
    pub(crate) shared: Arc<KeyspaceShared>,
    /// The owner again, for ranges.
    pub(crate) owners: Shares<Owner>,
}

impl Clone for Keyspace {
    fn clone(&self) -> Self {
        Keyspace::of(&self.owner, self.shared.clone())
    }
}

impl Keyspace {
    /// A handle.
    pub(crate) fn of(owner: &Arc<Owner>, shared: Arc<KeyspaceShared>) -> Self {
        Keyspace {
            owner: owner.clone(),
            shared,
            owners: Shares::default(),
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.owner.core
    }

    /// Checks the name of a keyspace: 1 to 255 bytes of UTF-8 without control characters. Errors:
    /// `InvalidArgument`.
    pub fn check_name(name: &str) -> Result<()> {
        crate::log_record::format::check_name(name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its number, never used again in this database.
    #[must_use]
    pub fn id(&self) -> KeyspaceId {
        self.shared.id
    }

    /// Sets a key's value, with the durability of the database
    /// ([`Options::durability`](crate::Options::durability)).
    ///
    /// Errors: `TooLarge`; `KeyspaceNotFound` if the keyspace was dropped; `Stalled`; `NoSpace`;
    /// `Io` and `PermissionDenied` if the system gives the log no file; `Poisoned`; `ReadOnly`;
    /// `Closed`. After an error the write has no effect, with one exception. A write of
    /// [`Durability::Sync`] whose sync fails is visible, and whether it survives is unknown.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-put-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.put("apple", "sour")?; // replaces the value
    /// assert_eq!(fruit.get("apple")?.unwrap(), "sour");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("insert", "set", "upsert", "write", "store"))]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.core().settings.durability)
    }

    /// Sets a key's value with the given durability. Errors as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-put-with-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// use terrapin::Durability;
    /// // Returns once the write is on stable storage. Waiting writers share a sync.
    /// fruit.put_with("apple", "sweet", Durability::Sync)?;
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        match self.shared.form {
            KeyForm::AsGiven if self.shared.ttl_ms() == 0 => {
                self.core().put(&self.shared, key, value, durability)
            }
            _ => self.put_apart(key, value, durability),
        }
    }

    /// [`Keyspace::put_with`] of a hashed keyspace, or of one with a default time to live, out of
    /// line: an order key on the stack costs every put.
    #[inline(never)]
    fn put_apart(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let mut buffer = None;
        let key = self.shared.form.written(key, &mut buffer)?;
        let core = self.core();
        LastingPut::by_default(core, &self.shared, value).write(core, &self.shared, key, durability)
    }

    /// Removes a key. A missing key is no error. Durability and errors as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-delete-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.delete("apple")?;
    /// fruit.delete("apple")?; // nothing to delete is no error
    /// assert!(fruit.get("apple")?.is_none());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("remove", "del", "erase"))]
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.core().settings.durability)
    }

    /// Removes a key with the given durability. Errors as for [`Keyspace::put`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        self.core()
            .write_one(&self.shared, key, Message::Delete, durability)
    }

    /// Fails with `Unsupported` if keys have no order for users.
    pub(crate) fn has_order(&self) -> Result<()> {
        match self.shared.form.is_hashed() && !mutant::active("hashed-range-in-hash-order") {
            false => Ok(()),
            true => Err(self.has_no_order()),
        }
    }

    #[cold]
    fn has_no_order(&self) -> Error {
        let message = "the keyspace is hashed, so its keys have no order: read all records with \
                       unordered or sorted, or use a keyspace of the structure leveled";
        Error::new(ErrorKind::Unsupported, message).with("keyspace", self.name())
    }

    /// Whether the keyspace's structure allows range deletes. A missing keyspace is another error,
    /// which the write reports.
    pub(crate) fn deletes_ranges(&self) -> Result<()> {
        let state = self.core().state.load();
        let keyspace = state.keyspaces.get(self.shared.id);
        let is_ordered = |keyspace: &Arc<KeyspaceState>| keyspace.ordered().is_ok();
        if self.has_order().is_ok() && keyspace.is_none_or(is_ordered) {
            return Ok(());
        }
        let message = "the keyspace's structure keeps no order of keys, so it has no range deletes: \
                       delete keys one by one (unordered reads all of them), or all with clear";
        Err(Error::new(ErrorKind::Unsupported, message).with("keyspace", self.name()))
    }

    /// Applies an operand to a key's value by the keyspace's merge operator
    /// ([`KeyspaceOptions::merge_operator`]), without reading the value first. The next read sees
    /// the result. Merges of several writers all count, in some order.
    ///
    /// Reads of the key return the error of the operator if it does not apply an operand, until a
    /// put or a delete replaces the key's operands.
    ///
    /// Durability and errors as for [`Keyspace::put`]; also `InvalidArgument` without an operator,
    /// and for an operand that the operator refuses; `Operator` if the operator is not registered.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-merge-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let options = terrapin::KeyspaceOptions::new().merge_operator("add-i64");
    /// let hits = database.create_keyspace("hits", options)?;
    /// hits.merge("home", 1i64.to_le_bytes())?;
    /// hits.merge("home", 2i64.to_le_bytes())?;
    /// assert_eq!(hits.get("home")?.unwrap(), 3i64.to_le_bytes());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("increment", "add", "append", "upsert"))]
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, self.core().settings.durability)
    }

    /// Applies an operand with the given durability. Errors as for [`Keyspace::merge`].
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        let (core, operand) = (self.core(), operand.as_ref());
        let mut buffer = None;
        let key = self.shared.form.written(key.as_ref(), &mut buffer)?;
        core.check_operand(&self.shared, key, operand)?;
        core.write_one(&self.shared, key, Message::Merge(operand), durability)
    }

    /// Removes all records in one step, whatever their number. Existing snapshots keep them. The
    /// next checkpoint frees the space. Errors as for [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-clear-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.clear()?;
    /// assert!(fruit.is_empty()?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("truncate", "delete_all", "remove_all"))]
    pub fn clear(&self) -> Result<()> {
        self.core().clear_keyspace(&self.shared)
    }

    /// χ in force: the number of units of [`Options::group_bytes`](crate::Options::group_bytes)
    /// that the keyspace's memtable collects before the engine merges it.
    #[must_use]
    pub fn checkpoint_distance(&self) -> u32 {
        self.core().distance_in_force(&self.shared)
    }

    /// Sets the keyspace's χ, for this and later opens of the database. With `None` the keyspace
    /// has the χ of the database ([`crate::Options::checkpoint_distance`]).
    ///
    /// Raising χ is free. Lowering it seals a memtable that holds more than the new χ, and merges
    /// it in the background. An open with too little memory uses the largest χ that fits
    /// ([`Keyspace::checkpoint_distance`]) and keeps the stored one. Errors: `OutOfMemory` with the
    /// largest χ that the memory budget holds; otherwise as [`Keyspace::put`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-keyspace-chi-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// use terrapin::CheckpointDistance;
    /// fruit.set_checkpoint_distance(CheckpointDistance::Fixed(4))?;
    /// assert_eq!(fruit.checkpoint_distance(), 4);
    /// fruit.set_checkpoint_distance(None)?; // the database's χ again
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn set_checkpoint_distance(
        &self,
        distance: impl Into<Option<CheckpointDistance>>,
    ) -> Result<()> {
        let distance = distance.into();
        let change = |options: KeyspaceOptions| options.checkpoint_distance(distance);
        self.core().set_keyspace_options(&self.shared, &change)
    }

    /// The options that were set for the keyspace. `None` in a field means that the keyspace
    /// follows the database. Errors: `KeyspaceNotFound` if it was dropped; `Closed`.
    pub fn options(&self) -> Result<KeyspaceOptions> {
        self.core().keyspace_options(&self.shared)
    }

    /// Sets all options of the keyspace, for this and later opens of the database. To change one
    /// option, start from [`Keyspace::options`]. [`KeyspaceOptions`] says when each option takes
    /// effect.
    ///
    /// Errors: `InvalidArgument` for a value out of its bounds, with the bounds, and for a
    /// structure to which the keyspace cannot change; `Unsupported` for a compression or a
    /// structure that this build lacks; otherwise as [`Keyspace::set_checkpoint_distance`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-set-options-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// use terrapin::Compression;
    /// fruit.set_options(fruit.options()?.compression(Compression::Lz4).filter_bits(8))?;
    /// assert_eq!(fruit.options()?.filter_bits, Some(8));
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn set_options(&self, options: KeyspaceOptions) -> Result<()> {
        self.core().set_keyspace_options(&self.shared, &|_| options)
    }
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace")
            .field("id", &self.id())
            .field("name", &self.name())
            .finish()
    }
}
