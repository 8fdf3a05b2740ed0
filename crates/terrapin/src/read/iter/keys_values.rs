//! Ranges that yield keys only, or values only.

use terrapin_base::{Result, Slice};
use terrapin_structure::Direction;

use super::Range;
use crate::read::chunk::Chunk;

impl Range {
    /// The keys only, in order, from either end. The range copies no value, so a range over long
    /// values costs less. It reads the same blocks, since a value is beside its key.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-keys-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// for name in ["apple", "banana", "cherry"] {
    ///     fruit.put(name, "sweet")?;
    /// }
    /// let names: Vec<_> = fruit.range("b"..).keys().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(names, ["banana", "cherry"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn keys(mut self) -> Keys {
        self.keys_only = true;
        Keys(self)
    }

    /// The values only, in the order of their keys, from either end. The range reads and copies as
    /// much as for whole records.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-values-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// fruit.put("lemon", "sour")?;
    /// let tastes: Vec<_> = fruit.iter().values().collect::<terrapin::Result<_>>()?;
    /// assert_eq!(tastes, ["sweet", "sour"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn values(self) -> Values {
        Values(self)
    }
}

/// The keys of a range in order, from either end: `Item = Result<Slice>`. [`Range::keys`] makes it.
/// Slices share allocations as those of a [`Range`] do. The iterator ends after an error.
#[derive(Debug)]
pub struct Keys(Range);

impl Keys {
    /// The next key from the front, borrowed until the next call: see [`Range::next_ref`].
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_ref()?.map(|(key, _)| key))
    }

    /// The next key from the back, borrowed until the next call: see [`Range::next_back_ref`].
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_back_ref()?.map(|(key, _)| key))
    }
}

impl Iterator for Keys {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step(Direction::Forward, Chunk::key_slice)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.step(Direction::Backward, Chunk::key_slice)
    }
}

impl std::iter::FusedIterator for Keys {}

/// The values of a range in the order of their keys, from either end: `Item = Result<Slice>`.
/// [`Range::values`] makes it. Slices share allocations as those of a [`Range`] do. The iterator
/// ends after an error.
#[derive(Debug)]
pub struct Values(Range);

impl Values {
    /// The next value from the front, borrowed until the next call: see [`Range::next_ref`].
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_ref()?.map(|(_, value)| value))
    }

    /// The next value from the back, borrowed until the next call: see [`Range::next_back_ref`].
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<&[u8]>> {
        Ok(self.0.next_back_ref()?.map(|(_, value)| value))
    }
}

impl Iterator for Values {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(_, value)| value))
    }
}

impl DoubleEndedIterator for Values {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.0.next_back()?.map(|(_, value)| value))
    }
}

impl std::iter::FusedIterator for Values {}
