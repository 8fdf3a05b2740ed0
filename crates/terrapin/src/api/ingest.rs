//! Sorted ingest: a keyspace takes in records that come in the order of their keys.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use terrapin_base::{Error, Message, Result, expiry};
use terrapin_valuelog::large::PIECE_BYTES;

use crate::api::keyspace::Keyspace;
use crate::checkpoint::ingest::Ingesting;
use crate::engine::owner::Owner;
use crate::write::lasting::{deadline_of, default_deadline};

impl Keyspace {
    /// Takes in records in ascending order of their keys, each key once. Returns their number.
    ///
    /// The records go to the data file directly, without the log and without a memtable. That
    /// writes each about once, where a load writes it three times. They become durable and visible
    /// together, when the call returns. A record replaces an older one of its key. The call also
    /// writes the leaves again that have keys among the records.
    ///
    /// Other threads may read and write the keyspace meanwhile. Snapshots that exist when the call
    /// returns do not show the records. Writes to the keyspace that begin after the first record
    /// was taken are newer than the ingest, and win. They wait in memory and in the log for its
    /// end. So a long ingest into a keyspace with many other writes makes these wait, and then fail
    /// with `Stalled`. `checkpoint` and `flush` may wait for the ingest, too: the iterator must not
    /// call them. One ingest at a time goes into a keyspace.
    ///
    /// The ingest holds one group of [`Options::group_bytes`](crate::Options::group_bytes) in
    /// memory, and some hundred bytes for each group of the last thousand, and for each large value
    /// ([`Keyspace::writer`]). O(records), and O(records) of the leaves that it writes again. Large
    /// values are written once; [`Ingest::add_from`] streams one.
    ///
    /// # Errors
    ///
    /// After an error nothing of the ingest stays, and its space is free again; so too after a
    /// crash. `InvalidArgument` for a key that is not above the key before it, with the position of
    /// the record (from 0) and both keys. `TooLarge`. `Conflict` if another ingest into the
    /// keyspace is under way, and if the keyspace was cleared meanwhile. `KeyspaceNotFound` if it
    /// was dropped. `NoSpace` before memtables lack room. `Io`, `Poisoned`, `ReadOnly`, `Closed`.
    /// After `Poisoned` the next open may find the records.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-ingest-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// # let fruit = database.keyspace("fruit")?;
    /// let records = (0..1000u32).map(|number| (number.to_be_bytes(), "sweet"));
    /// assert_eq!(fruit.ingest(records)?, 1000);
    /// assert_eq!(fruit.get(7u32.to_be_bytes())?.unwrap(), "sweet");
    /// assert!(fruit.ingest([("b", "1"), ("a", "2")]).is_err());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("bulk_load", "load", "import", "append", "sst"))]
    pub fn ingest<I, K, V>(&self, records: I) -> Result<u64>
    where
        I: IntoIterator<Item = (K, V)>,
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let core = &self.owner.core;
        core.health.check_open()?;
        core.log()?;
        let mut records = records.into_iter();
        let Some((key, value)) = records.next() else {
            return Ok(0);
        };
        self.has_order()?;
        let mut ingest = self.begin_ingest()?;
        ingest.add(key, value)?;
        for (key, value) in records {
            ingest.add(key, value)?;
        }
        ingest.finish()
    }

    /// Begins an ingest whose records come one by one, as [`Keyspace::ingest`] takes them.
    pub fn begin_ingest(&self) -> Result<Ingest> {
        self.has_order()?;
        Ok(Ingest {
            ingesting: Ingesting::begin(&self.owner.core, &self.shared)?,
            _owner: self.owner.clone(),
        })
    }
}

/// An ingest under way ([`Keyspace::begin_ingest`]). Dropped before [`Ingest::finish`], it leaves
/// nothing.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let name = format!("terrapin-doc-begin-ingest-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let database = terrapin::Database::open(&directory)?;
/// # let fruit = database.keyspace("fruit")?;
/// let mut ingest = fruit.begin_ingest()?;
/// for line in ["apple=sweet", "lemon=sour"] {
///     let Some((key, value)) = line.split_once('=') else { break };
///     ingest.add(key, value)?;
/// }
/// assert!(fruit.is_empty()?); // not visible yet
/// assert_eq!(ingest.finish()?, 2);
/// assert_eq!(fruit.get("lemon")?.unwrap(), "sour");
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[must_use = "a dropped ingest leaves nothing"]
pub struct Ingest {
    ingesting: Ingesting,
    /// Keeps the database open.
    _owner: Arc<Owner>,
}

impl Ingest {
    /// Takes in a record. Its key is above all keys before. Errors: those of [`Keyspace::ingest`];
    /// the ingest can only be dropped then.
    #[inline]
    pub fn add(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let value = value.as_ref();
        match default_deadline(self.ingesting.core(), self.ingesting.shared()) {
            None => self.ingesting.add(key.as_ref(), Message::Put(value)),
            Some(deadline_ms) => {
                let payload = expiry::payload(deadline_ms, value);
                let message = Message::Expiring(&payload);
                self.ingesting.add(key.as_ref(), message)
            }
        }
    }

    /// Takes in a record whose value lasts until a deadline, which counts in milliseconds
    /// ([`Keyspace::put_expiring`]). A record whose deadline has come replaces an older one of its
    /// key, too. Errors as for [`Ingest::add`].
    pub fn add_expiring(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        deadline: SystemTime,
    ) -> Result<()> {
        // From now on the database has deadlines.
        let core = self.ingesting.core();
        core.clock.begin(&core.env);
        let payload = expiry::payload(deadline_of(deadline), value.as_ref());
        let message = Message::Expiring(&payload);
        self.ingesting.add(key.as_ref(), message)
    }

    /// Takes in a record whose value is the next `length` bytes of `value`, at most 1 GiB
    /// ([`LARGE_VALUE_BYTES_MAX`](crate::LARGE_VALUE_BYTES_MAX)). Memory holds 1 MiB of it. The
    /// value lasts until a deadline, or as long as the keyspace says.
    ///
    /// Errors: those of [`Ingest::add`]; `Io` if `value` fails; `InvalidArgument` if it ends early.
    pub fn add_from(
        &mut self,
        key: impl AsRef<[u8]>,
        length: u64,
        value: &mut dyn io::Read,
        deadline: Option<SystemTime>,
    ) -> Result<()> {
        let (key, core) = (key.as_ref(), self.ingesting.core());
        let value_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let piece_bytes = value_bytes.min(PIECE_BYTES as usize);
        let mut piece = vec![0; piece_bytes];
        if !core.is_large(key.len(), value_bytes) {
            piece.resize(value_bytes, 0);
            value.read_exact(&mut piece).map_err(unread)?;
            return match deadline {
                None => self.add(key, piece),
                Some(deadline) => self.add_expiring(key, piece, deadline),
            };
        }
        let deadline_ms = match deadline {
            None => default_deadline(core, self.ingesting.shared()),
            Some(deadline) => {
                core.clock.begin(&core.env);
                Some(deadline_of(deadline))
            }
        };
        let mut writer = self.ingesting.begin_large(key, length)?;
        while writer.missing() > 0 {
            let bytes = writer.missing().min(piece_bytes as u64) as usize;
            value.read_exact(&mut piece[..bytes]).map_err(unread)?;
            writer.write(&piece[..bytes])?;
        }
        let written = writer.finish(deadline_ms)?;
        self.ingesting.add_written(key, written)
    }

    /// Makes the records durable and visible together. Returns their number. Errors: those of
    /// [`Keyspace::ingest`].
    pub fn finish(self) -> Result<u64> {
        self.ingesting.finish()
    }
}

/// The error of a value that cannot be read whole.
fn unread(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::invalid("the value has fewer bytes than it was said to have")
        }
        _ => Error::io("cannot read the value", error),
    }
}

impl std::fmt::Debug for Ingest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingest")
            .field("records", &self.ingesting.records())
            .finish()
    }
}
