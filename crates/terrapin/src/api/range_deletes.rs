//! Range deletes of a keyspace. Each is a batch of one operation.

use terrapin_base::Result;

use crate::api::batch::Batch;
use crate::api::keyspace::Keyspace;
use crate::types::key_range::{KeyRange, prefix_range};
use crate::types::options::Durability;

impl Keyspace {
    /// Removes all keys of a range in one step. Durability and errors as for [`Keyspace::put`], and
    /// `Unsupported` if the keyspace's structure keeps no order of keys. An empty range does
    /// nothing.
    ///
    /// The call writes one record to the log, whatever the number of keys. Existing snapshots and
    /// ranges keep the keys. The next checkpoint frees the space; a range that hides as much as a
    /// full memtable starts one. The bounds may be as long as keys.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-delete-range-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// fruit.delete_range("apple".."cherry")?;
    /// let left: Vec<_> = fruit.iter().keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(left, ["cherry"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("remove_range", "erase_range", "delete_many"))]
    pub fn delete_range(&self, range: impl KeyRange) -> Result<()> {
        self.delete_range_with(range, self.core().settings.durability)
    }

    /// Removes all keys of a range with the given durability: see [`Keyspace::delete_range`].
    pub fn delete_range_with(&self, range: impl KeyRange, durability: Durability) -> Result<()> {
        let mut batch = Batch::new(self.owner.number);
        batch.delete_range(self, range);
        self.core().write_batch(batch.prepared()?, durability)
    }

    /// Removes all keys that begin with a prefix: see [`Keyspace::delete_range`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-delete-prefix-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// for name in ["apple/green", "apple/red", "banana"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// fruit.delete_prefix("apple/")?;
    /// let left: Vec<_> = fruit.iter().keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(left, ["banana"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.delete_range(prefix_range(prefix))
    }
}
