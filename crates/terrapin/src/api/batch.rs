//! [`Batch`]: writes to any keyspaces that become visible and durable together or not at all (D7).
//! A batch encodes its operations as the payload of a log record. Writing it copies them once.

use std::fmt;
use std::sync::Arc;

use terrapin_base::checksum::hash64;
use terrapin_base::{Error, KeyspaceId, Message, Result};
use terrapin_valuelog::large::OwnedLarge;

use crate::api::keyspace::Keyspace;
use crate::log_record::format::{put_large, put_operation, put_range_delete};
use crate::log_record::{check_bounds, check_sizes};
use crate::types::condition::Requirement;
use crate::types::key_form::OrderKey;
use crate::types::key_range::{KeyRange, half_open, prefix_range};
use crate::write::conditional::Required;
use crate::write::large::LastingValue;
use crate::write::lasting::LastingPut;
use crate::write::{Asks, PreparedBatch};

/// Puts, deletes, range deletes and merges that are written as one, in their order. Of several
/// operations on a key, the last one wins. A merge applies to what the operations before it leave.
///
/// A value of more than 256 KiB is written when it is added, into a page of its own, and the batch
/// has its handle. Such a batch can be written once. If it never is, its pages are given back.
///
/// A batch has at most [`crate::Database::batch_bytes_max`] bytes (about a quarter of the log's
/// ring). The write of a larger one fails with [`TooLarge`](crate::ErrorKind::TooLarge). An invalid
/// operation (a key too long, a keyspace of another database) makes the whole batch invalid.
/// [`Batch::error`] returns its error at once, and the write returns it without any effect.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let name = format!("terrapin-doc-batch-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// let database = terrapin::Database::open(&directory)?;
/// let (users, by_name) = (database.keyspace("users")?, database.keyspace("by name")?);
/// let mut batch = database.batch();
/// batch.put(&users, "1", "Ann");
/// batch.put(&by_name, "Ann", "1");
/// batch.delete(&by_name, "Bob");
/// database.write(&batch)?; // all operations or none
/// batch.clear(); // without it, another write would repeat the operations
/// assert_eq!(by_name.get("Ann")?.unwrap(), "1");
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias("transaction", "write batch"))]
pub struct Batch {
    payload: Vec<u8>,
    operations: usize,
    puts: usize,
    has_ranges: bool,
    merges: usize,
    /// The keyspace of the last operation.
    keyspace: Option<KeyspaceId>,
    /// Whether the operations have more than one keyspace.
    spreads: bool,
    required: Vec<Required>,
    /// The large values among the puts.
    large: Vec<Arc<OwnedLarge>>,
    database: u64,
    failure: Option<Error>,
}

impl Batch {
    pub(crate) fn new(database: u64) -> Self {
        Batch {
            payload: Vec::new(),
            operations: 0,
            puts: 0,
            has_ranges: false,
            merges: 0,
            keyspace: None,
            spreads: false,
            required: Vec::new(),
            large: Vec::new(),
            database,
            failure: None,
        }
    }

    /// Adds a put.
    #[doc(alias("insert", "set"))]
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let put = LastingPut::by_default(keyspace.core(), &keyspace.shared, value.as_ref());
        self.add_put(keyspace, key.as_ref(), put);
    }

    /// Adds a put. A large value is written into its page.
    pub(super) fn add_put(&mut self, keyspace: &Keyspace, key: &[u8], put: LastingPut<'_>) {
        match put.large(keyspace.core(), key) {
            Some(value) => self.add_large(keyspace, key, value),
            None => put.with(|message| self.add(keyspace, key, message)),
        }
    }

    /// Writes a large value into its page, and adds the put of its handle.
    #[cold]
    fn add_large(&mut self, keyspace: &Keyspace, key: &[u8], value: LastingValue<'_>) {
        if self.failure.is_some() {
            return;
        }
        let written = || {
            self.check_owner(keyspace)?;
            let mut buffer = None;
            let key = keyspace.shared.form.written(key, &mut buffer)?;
            let large = keyspace.core().write_large(&keyspace.shared, key, value)?;
            Ok((Box::<[u8]>::from(key), large))
        };
        let (key, large) = match written() {
            Ok(written) => written,
            Err(error) => {
                let error: Error = error;
                self.failure = Some(error.with("operation", self.operations));
                return;
            }
        };
        self.touch(keyspace);
        self.operations += 1;
        self.puts += 1;
        put_large(&mut self.payload, keyspace.id(), &key, large.large());
        self.large.push(Arc::new(large));
    }

    /// Adds a delete. Deleting a missing key is no error.
    #[doc(alias("remove", "del", "erase"))]
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.add(keyspace, key.as_ref(), Message::Delete);
    }

    /// Adds a range delete: it removes all keys of the range that are there when the batch is
    /// written, and those that earlier operations of the batch put. Later operations of the batch
    /// are not affected. An empty range adds nothing. Costs and limits as for
    /// [`Keyspace::delete_range`].
    ///
    /// With [`Durability::None`](crate::Durability::None), a batch of several operations with a
    /// range delete among them is written to the log all the same.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-batch-range-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// fruit.put("apple", "sweet")?;
    /// let mut batch = database.batch();
    /// batch.delete_range(&fruit, "a".."c");
    /// batch.put(&fruit, "banana", "sweet");
    /// database.write(&batch)?;
    /// assert!(!fruit.contains("apple")? && fruit.contains("banana")?);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("remove_range", "erase_range"))]
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) {
        if self.failure.is_some() {
            return;
        }
        let bounds = range.bounds();
        let checked = self
            .check_owner(keyspace)
            .and_then(|()| check_bounds(bounds))
            .and_then(|()| keyspace.deletes_ranges());
        if let Err(error) = checked {
            self.failure = Some(error.with("operation", self.operations));
            return;
        }
        self.touch(keyspace);
        let (lo, hi) = half_open(bounds);
        if hi.as_ref().is_some_and(|hi| *hi <= lo) {
            return;
        }
        self.has_ranges = true;
        self.operations += 1;
        put_range_delete(&mut self.payload, keyspace.id(), &lo, hi.as_deref());
    }

    /// Adds a range delete of all keys that begin with a prefix: see [`Batch::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) {
        self.delete_range(keyspace, prefix_range(prefix));
    }

    /// Adds a merge ([`Keyspace::merge`]). A batch of several operations with a merge among them is
    /// written to the log even with [`Durability::None`](crate::Durability::None).
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-batch-merge-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let options = terrapin::KeyspaceOptions::new().merge_operator("append");
    /// let log = database.create_keyspace("log", options)?;
    /// let mut batch = database.batch();
    /// batch.put(&log, "day", "sunny");
    /// batch.merge(&log, "day", ", then rain");
    /// batch.merge(&log, "day", ", then snow");
    /// database.write(&batch)?;
    /// assert_eq!(log.get("day")?.unwrap(), "sunny, then rain, then snow");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("update", "add", "increment"))]
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.add(keyspace, key.as_ref(), Message::Merge(operand.as_ref()));
    }

    /// Adds a condition: the write happens only if it holds, for all operations or for none. A
    /// write whose condition does not hold fails with [`Conflict`](crate::ErrorKind::Conflict) and
    /// names the key. Conditions are about the state before the batch; its own operations do not
    /// count. A batch of conditions alone checks them as of one moment.
    ///
    /// Writes of [`Durability::None`](crate::Durability::None) take no conditions.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-require-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{ErrorKind, Requirement};
    /// let (users, by_name) = (database.keyspace("users")?, database.keyspace("by name")?);
    /// let mut batch = database.batch();
    /// batch.require(&by_name, "Ann", Requirement::Absent);
    /// batch.put(&users, "1", "Ann");
    /// batch.put(&by_name, "Ann", "1");
    /// database.write(&batch)?;
    /// let again = database.write(&batch).unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::Conflict);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("condition", "guard", "compare"))]
    pub fn require(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, asks: Requirement) {
        if self.failure.is_some() {
            return;
        }
        let mut buffer = None;
        let key = match self.stored(keyspace, key.as_ref(), Message::Delete, &mut buffer) {
            Ok(key) => key,
            Err(error) => {
                self.failure = Some(error.with("requirement", self.required.len()));
                return;
            }
        };
        self.required.push(Required {
            keyspace: keyspace.shared.clone(),
            key: key.into(),
            hash: hash64(key),
            asks,
        });
    }

    pub(super) fn add(&mut self, keyspace: &Keyspace, key: &[u8], message: Message<'_>) {
        if self.failure.is_some() {
            return;
        }
        let mut buffer = None;
        let key = match self.stored(keyspace, key, message, &mut buffer) {
            Ok(key) => key,
            Err(error) => {
                self.failure = Some(error.with("operation", self.operations));
                return;
            }
        };
        self.touch(keyspace);
        self.operations += 1;
        self.puts += usize::from(matches!(message, Message::Put(_) | Message::Expiring(_)));
        self.merges += usize::from(message.has_operands());
        put_operation(&mut self.payload, keyspace.id(), key, message);
    }

    /// Notes the keyspace of an operation.
    fn touch(&mut self, keyspace: &Keyspace) {
        let id = keyspace.id();
        self.spreads |= self.keyspace.is_some_and(|k| k != id);
        self.keyspace = Some(id);
    }

    /// Checks a message, and returns the stored form of its key.
    fn stored<'a>(
        &self,
        keyspace: &Keyspace,
        key: &'a [u8],
        message: Message<'_>,
        buffer: &'a mut Option<OrderKey>,
    ) -> Result<&'a [u8]> {
        self.check_owner(keyspace)?;
        let key = keyspace.shared.form.written(key, buffer)?;
        check(keyspace, key, message)?;
        Ok(key)
    }

    fn check_owner(&self, keyspace: &Keyspace) -> Result<()> {
        match keyspace.owner.number == self.database {
            true => Ok(()),
            false => Err(Error::invalid("the keyspace belongs to another database")
                .with("keyspace", keyspace.name())),
        }
    }

    /// The error of the first invalid operation, which a write of the batch returns. After it, the
    /// batch ignores further operations.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations
    }

    /// Whether no operation and no condition was added, not even an invalid one
    /// ([`Batch::error`]).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations == 0 && self.required.is_empty() && self.failure.is_none()
    }

    /// Bytes of the batch in the log. The limit is [`crate::Database::batch_bytes_max`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Removes all operations, conditions and the error, and keeps the memory for the next use.
    pub fn clear(&mut self) {
        self.payload.clear();
        *self = Batch {
            payload: std::mem::take(&mut self.payload),
            ..Batch::new(self.database)
        };
    }

    /// The input of a write. Fails if an operation is invalid.
    pub(crate) fn prepared(&self) -> Result<PreparedBatch<'_>> {
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(PreparedBatch {
                payload: &self.payload,
                operations: self.operations,
                frees: self.puts + self.merges == 0,
                has_ranges: self.has_ranges,
                only_keyspace: self.keyspace.filter(|_| !self.spreads),
                asks: match self.required.is_empty() {
                    true => Asks::Nothing,
                    false => Asks::Required(&self.required),
                },
                large: &self.large,
            }),
        }
    }

    pub(crate) fn database(&self) -> u64 {
        self.database
    }
}

/// Checks sizes and operands of a message of a stored key.
fn check(keyspace: &Keyspace, key: &[u8], message: Message<'_>) -> Result<()> {
    check_sizes(key, message)?;
    match message {
        Message::Merge(operand) => {
            let core = keyspace.core();
            core.check_operand(&keyspace.shared, key, operand)
        }
        Message::Put(_)
        | Message::Delete
        | Message::Stack(_)
        | Message::Separated(_)
        | Message::Expiring(_) => Ok(()),
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("operations", &self.operations)
            .field("bytes", &self.payload.len())
            .field("error", &self.failure)
            .finish_non_exhaustive()
    }
}
