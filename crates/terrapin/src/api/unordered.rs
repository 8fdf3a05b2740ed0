//! [`Unordered`]: all records of a keyspace, in the order in which it stores them. Hashed keyspaces
//! have no other way to be read as a whole.

use std::ops::{Bound, RangeBounds};

use terrapin_base::{Error, Result, Slice};
use terrapin_structure::{KeyBounds, MergeOptions};

use crate::api::keyspace::Keyspace;
use crate::api::snapshot::Snapshot;
use crate::api::streamed::Streamed;
use crate::read::iter::{Range, RecordAndDeadline};
use crate::read::sorted::{Sorted, Sorter};
use crate::types::key_form::KeyForm;
use crate::types::key_range::KeyRange;

/// All records of a keyspace as of one moment, each once, in no order that means anything: `Item =
/// Result<(key, value)>`. [`Keyspace::unordered`] makes it.
///
/// Errors, memory and the life of a view are as for a [`Range`]. The only item of a keyspace whose
/// structure cannot list its records is `Err` of the kind `Unsupported`.
pub struct Unordered {
    range: Range,
    form: KeyForm,
    /// The stored key of the last record from the front, once there is one.
    last: Option<Vec<u8>>,
    /// A stored key was no key of the keyspace: no record comes after that error.
    is_over: bool,
}

/// A place in the records of a keyspace, behind one record: [`Unordered::position`]. It stays valid
/// for the life of the keyspace, across checkpoints and opens, also in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(Vec<u8>);

/// Bytes of a position in front of the stored key: the function and the seed of the key's hash.
const HEAD_BYTES: usize = 9;

impl Position {
    /// The bytes of the position, to be stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A position from its bytes. [`Unordered::after`] checks them.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Position(bytes.to_vec())
    }

    fn of(form: KeyForm, stored: &[u8]) -> Self {
        Position([&head(form), stored].concat())
    }

    fn stored_key(&self, form: KeyForm) -> Result<&[u8]> {
        let stored = self.0.strip_prefix(&head(form));
        stored
            .filter(|stored| form.is_sound(stored))
            .ok_or_else(|| Error::invalid("the position is of another keyspace, or damaged"))
    }
}

fn head(form: KeyForm) -> [u8; HEAD_BYTES] {
    let mut head = [u8::MAX; HEAD_BYTES];
    if let KeyForm::Hashed(hash) = form {
        let (function, seed) = hash.numbers();
        head[0] = function as u8;
        head[1..].copy_from_slice(&seed.to_le_bytes());
    }
    head
}

impl Keyspace {
    /// All records as of now, each once, in the order in which the keyspace stores them. A hashed
    /// keyspace stores them by hash. Later writes do not show.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-unordered-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{KeyspaceOptions, StructureKind};
    /// let options = KeyspaceOptions::new().structure(StructureKind::Hashed);
    /// let sessions = database.create_keyspace("sessions", options)?;
    /// sessions.put("b2d1", "Ann")?;
    /// sessions.put("77fe", "Bob")?;
    /// let mut records = sessions.unordered();
    /// let first = records.next().transpose()?.unwrap();
    /// let position = records.position().unwrap();
    /// // Later, also in another process:
    /// let second = sessions.unordered().after(&position).next().transpose()?.unwrap();
    /// assert_ne!(first, second);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("iter", "scan", "iterate"))]
    pub fn unordered(&self) -> Unordered {
        let all = (Bound::Unbounded, Bound::Unbounded);
        Unordered::new(self.stored_range(all), self.shared.form)
    }
}

impl Keyspace {
    /// The records of a range of keys as of now, in the order of keys, of a keyspace that has no
    /// order. Reads all records of the keyspace, sorts those of the range, and then returns.
    ///
    /// The sort collects up to `memory_bytes` bytes at once, which it charges to the memory budget.
    /// If the range holds more, it writes them to the disk as sorted parts, which the iterator
    /// merges. The space is free again once the iterator is dropped. Each part then takes some
    /// blocks of memory, so choose `memory_bytes` of at least a thousandth of the range.
    ///
    /// Errors: `NoSpace`; those of [`Keyspace::get`].
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-sorted-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{KeyspaceOptions, StructureKind};
    /// let options = KeyspaceOptions::new().structure(StructureKind::Hashed);
    /// let sessions = database.create_keyspace("sessions", options)?;
    /// for name in ["cid", "ann", "bob"] {
    ///     sessions.put(name, "1")?;
    /// }
    /// let names = sessions.sorted("b".., 16 << 20)?.map(|record| Ok(record?.0));
    /// let names: Vec<_> = names.collect::<terrapin::Result<_>>()?;
    /// assert_eq!(names, ["bob", "cid"]);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn sorted(&self, range: impl KeyRange, memory_bytes: u64) -> Result<Sorted> {
        let options = self.core().keyspace_options(&self.shared)?;
        let options = self.core().settings.merge_of(&options, false);
        sort(
            self,
            self.unordered(),
            range.bounds(),
            (options, memory_bytes),
        )
    }
}

fn sort(
    keyspace: &Keyspace,
    mut records: Unordered,
    bounds: KeyBounds<'_>,
    (options, memory_bytes): (MergeOptions, u64),
) -> Result<Sorted> {
    let mut sorter = Sorter::new(&keyspace.owner, options, memory_bytes);
    while let Some((key, value)) = records.next_ref()? {
        if RangeBounds::<[u8]>::contains(&bounds, key) {
            sorter.add(key, value)?;
        }
    }
    sorter.finish()
}

impl Snapshot {
    /// The records of a range of keys in the order of keys: see [`Keyspace::sorted`].
    pub fn sorted(
        &self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        memory_bytes: u64,
    ) -> Result<Sorted> {
        let settings = &keyspace.core().settings;
        // The snapshot may be older than a drop of the keyspace.
        let options = keyspace.options().unwrap_or_default();
        let options = settings.merge_of(&options, false);
        let records = self.unordered(keyspace);
        sort(keyspace, records, range.bounds(), (options, memory_bytes))
    }

    /// All records of a keyspace, each once: see [`Keyspace::unordered`].
    pub fn unordered(&self, keyspace: &Keyspace) -> Unordered {
        let all = (Bound::Unbounded, Bound::Unbounded);
        Unordered::new(self.stored_range(keyspace, all), keyspace.shared.form)
    }
}

impl Unordered {
    fn new(range: Range, form: KeyForm) -> Self {
        Unordered {
            range,
            form,
            last: None,
            is_over: false,
        }
    }

    /// At most `records` records.
    #[must_use]
    pub fn limit(mut self, records: usize) -> Self {
        self.range = self.range.limit(records);
        self
    }

    /// The records behind a position. A position of another keyspace makes the only item
    /// `InvalidArgument`. A hash orders a keyspace and its copies equally, but not a keyspace into
    /// which the records were imported.
    #[must_use]
    pub fn after(mut self, position: &Position) -> Self {
        match position.stored_key(self.form) {
            Ok(key) => {
                self.last = Some(key.to_vec());
                self.range = self.range.after(key);
            }
            Err(error) => self.range = self.range.failed(error),
        }
        self
    }

    /// The position behind the last record that the front returned, or behind the position where
    /// the records begin. `None` before the first record.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let last = self.last.as_deref()?;
        Some(Position::of(self.form, last))
    }

    /// The records from here on, of which large values are read in pieces: see
    /// [`Range::streamed`].
    pub fn streamed(self) -> Streamed {
        Streamed::new(self.range, self.form)
    }

    /// The next record, borrowed until the next call: see [`Range::next_ref`].
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_over {
            return Ok(None);
        }
        let Some((key, value)) = self.range.next_ref()? else {
            return Ok(None);
        };
        let given = given(self.form, key).inspect_err(|_| self.is_over = true)?;
        note(&mut self.last, key);
        Ok(Some((given, value)))
    }

    /// The next record and its deadline, if its value has one: see [`Range::next_with_deadline`].
    pub fn next_with_deadline(&mut self) -> Result<Option<RecordAndDeadline<'_>>> {
        if self.is_over {
            return Ok(None);
        }
        let Some((key, value, deadline)) = self.range.next_with_deadline()? else {
            return Ok(None);
        };
        let given = given(self.form, key).inspect_err(|_| self.is_over = true)?;
        note(&mut self.last, key);
        Ok(Some((given, value, deadline)))
    }

    fn shown(&mut self, record: Result<(Slice, Slice)>) -> Result<(Slice, Slice)> {
        let (key, value) = record?;
        given(self.form, &key).inspect_err(|_| self.is_over = true)?;
        Ok((key.sub(self.form.prefix_bytes()..key.len()), value))
    }
}

fn note(last: &mut Option<Vec<u8>>, key: &[u8]) {
    let last = last.get_or_insert_default();
    last.clear();
    last.extend_from_slice(key);
}

/// The user's key of a stored key.
pub(super) fn given(form: KeyForm, stored: &[u8]) -> Result<&[u8]> {
    let given = stored.get(form.prefix_bytes()..);
    given.ok_or_else(|| Error::corrupt("a key of a hashed keyspace has no hash"))
}

impl Iterator for Unordered {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let record = self.range.next()?;
        if let Ok((key, _)) = &record {
            note(&mut self.last, key);
        }
        Some(self.shown(record))
    }
}

impl DoubleEndedIterator for Unordered {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let record = self.range.next_back()?;
        Some(self.shown(record))
    }
}

impl std::iter::FusedIterator for Unordered {}

impl std::fmt::Debug for Unordered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unordered")
            .field("range", &self.range)
            .finish()
    }
}
