//! What the driver needs of a store: two small traits, so the same code drives other engines. The
//! driver is compiled for each store, so operations have no dynamic calls.

use std::time::Duration;

use terrapin::{
    Database, Durability, Keyspace, KeyspaceOptions, StructureKind, TransactionOptions,
};
use terrapin_base::{Error, ErrorKind, Result};

/// Time between two checks whether a compaction runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// A store under test, shared by all clients.
pub trait Store: Sync {
    /// The client of one thread.
    type Client<'a>: Client
    where
        Self: 'a;

    /// A new client for the calling thread.
    fn client(&self) -> Result<Self::Client<'_>>;

    /// Moves everything written so far durably into its final place.
    fn settle(&self) -> Result<()>;

    /// χ in force; 0 for a store without χ.
    fn chi(&self) -> u32 {
        0
    }

    /// The memory budget in bytes.
    fn memory_bytes(&self) -> u64;

    /// Bytes written to log files and to the data file since the store was opened; none where the
    /// store does not tell them apart.
    fn written(&self) -> Option<FileBytes> {
        None
    }

    /// What gets and ranges read since the store was opened; none where the store does not count.
    fn reads(&self) -> Option<ReadCounts> {
        None
    }
}

/// What gets and ranges of a store read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads of the data file, those of indexes and filters included.
    pub device_reads: u64,
    /// Gets that the map of separated values answered.
    pub location_hits: u64,
    /// Bytes of that map, as of now.
    pub location_bytes: u64,
}

impl ReadCounts {
    /// What was read since another reading. The map's bytes are those of now.
    #[must_use]
    pub fn since(self, before: ReadCounts) -> ReadCounts {
        ReadCounts {
            device_reads: self.device_reads.saturating_sub(before.device_reads),
            location_hits: self.location_hits.saturating_sub(before.location_hits),
            location_bytes: self.location_bytes,
        }
    }
}

/// Bytes that a store wrote to its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileBytes {
    /// To log files.
    pub log_bytes: u64,
    /// To the data file.
    pub data_bytes: u64,
}

impl FileBytes {
    /// What was written since another reading.
    #[must_use]
    pub fn since(self, before: FileBytes) -> FileBytes {
        FileBytes {
            log_bytes: self.log_bytes.saturating_sub(before.log_bytes),
            data_bytes: self.data_bytes.saturating_sub(before.data_bytes),
        }
    }
}

/// One thread's access to a store.
pub trait Client {
    /// Copies a key's value into `out`, which gets the value's length. Returns `false` if there is
    /// none.
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// Sets a key's value, new or not.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key.
    ///
    /// Errors: `Unsupported` from a store of which the benchmark deletes nothing.
    fn delete(&mut self, _key: &[u8]) -> Result<()> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "the benchmark deletes nothing from this store",
        ))
    }

    /// Reads as [`Client::read`] does, then writes.
    fn read_modify_write(&mut self, key: &[u8], out: &mut Vec<u8>, value: &[u8]) -> Result<bool> {
        let there = self.read(key, out)?;
        self.write(key, value)?;
        Ok(there)
    }

    /// Reads keys and sets some, in one serializable transaction that begins again after a
    /// conflict. `show` gets each key that was read, and its value.
    ///
    /// Errors: `Unsupported` from a store without transactions.
    fn transact(
        &mut self,
        _reads: &[Vec<u8>],
        _writes: &[(&[u8], Vec<u8>)],
        _show: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this store has no transactions",
        ))
    }

    /// Changes a key's value from one to another, in one atomic step. Returns `false`, and changes
    /// nothing, if the key has another value than `expected`.
    ///
    /// Errors: `Unsupported` from a store without conditional writes.
    fn swap(&mut self, _key: &[u8], _expected: &[u8], _new: &[u8]) -> Result<bool> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this store has no compare-and-swap",
        ))
    }

    /// Shows up to `count` records in order from the first key at or above `start`. An error of
    /// `show` ends the scan.
    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Whether the store has an order of keys. If not, it cannot scan.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Shows all records, in the order of their keys if there is one.
    fn all(&mut self, show: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        self.scan(&[0], usize::MAX, show)
    }
}

/// The keyspace that [`TerrapinStore::stored`] drives for this structure.
///
/// Errors: `KeyspaceNotFound` if there is none yet.
pub(crate) fn keyspace_of(database: &Database, structure: StructureKind) -> Result<Keyspace> {
    match structure {
        StructureKind::Leveled => Ok(database.default_keyspace()),
        other => database.open_keyspace(other.name()),
    }
}

/// Terrapin, through its public API.
pub struct TerrapinStore {
    database: Database,
    keyspace: Keyspace,
    is_ordered: bool,
    durability: Durability,
    memory_bytes: u64,
}

impl TerrapinStore {
    /// Drives the default keyspace of a database opened with this much memory.
    #[must_use]
    pub fn new(database: Database, durability: Durability, memory_bytes: u64) -> Self {
        let keyspace = database.default_keyspace();
        TerrapinStore {
            database,
            keyspace,
            is_ordered: true,
            durability,
            memory_bytes,
        }
    }

    /// Drives a keyspace with these stored options. A leveled one is the default keyspace. For
    /// another structure there is one of its own, which this creates if it is missing.
    ///
    /// Errors: those of creating a keyspace, and of changing its options.
    pub fn stored(self, options: KeyspaceOptions) -> Result<Self> {
        let structure = options.structure;
        if structure == StructureKind::Leveled {
            self.keyspace.set_options(options)?;
            return Ok(self);
        }
        let keyspace = match keyspace_of(&self.database, structure) {
            Err(error) if error.kind() == ErrorKind::KeyspaceNotFound => {
                self.database.create_keyspace(structure.name(), options)?
            }
            found => found?,
        };
        self.keyspace(keyspace)
    }

    /// Drives that keyspace of the database instead.
    ///
    /// Errors: `KeyspaceNotFound` if it was dropped.
    pub fn keyspace(mut self, keyspace: Keyspace) -> Result<Self> {
        self.is_ordered = keyspace.options()?.structure != StructureKind::Hashed;
        self.keyspace = keyspace;
        Ok(self)
    }
}

impl Store for TerrapinStore {
    type Client<'a> = &'a TerrapinStore;

    fn client(&self) -> Result<&TerrapinStore> {
        Ok(self)
    }

    fn settle(&self) -> Result<()> {
        self.database.checkpoint()?;
        // Compactions that ranges asked for belong to this phase, not to the next.
        while self.database.metrics().is_compacting {
            if let Some(error) = self.database.background_error() {
                return Err(error);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.database.flush()
    }

    fn chi(&self) -> u32 {
        self.keyspace.checkpoint_distance()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn written(&self) -> Option<FileBytes> {
        let metrics = self.database.metrics();
        Some(FileBytes {
            log_bytes: metrics.log_bytes_written,
            data_bytes: metrics.device_written.total(),
        })
    }

    fn reads(&self) -> Option<ReadCounts> {
        let metrics = self.database.metrics();
        let reads = metrics.device_reads;
        Some(ReadCounts {
            device_reads: reads.get_reads + reads.scan_reads + reads.meta_reads,
            location_hits: metrics.location_hits,
            location_bytes: metrics.location_bytes,
        })
    }
}

impl Client for &TerrapinStore {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let Some(value) = self.keyspace.get(key)? else {
            return Ok(false);
        };
        out.extend_from_slice(&value);
        Ok(true)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put_with(key, value, self.durability)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.keyspace.delete_with(key, self.durability)
    }

    fn transact(
        &mut self,
        reads: &[Vec<u8>],
        writes: &[(&[u8], Vec<u8>)],
        mut show: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let options = TransactionOptions::new().durability(self.durability);
        self.database.transact_with(&options, |tx| {
            for key in reads {
                show(key, tx.get(&self.keyspace, key)?.as_deref())?;
            }
            writes
                .iter()
                .try_for_each(|(key, value)| tx.put(&self.keyspace, key, value))
        })
    }

    /// With the durability of the database.
    fn swap(&mut self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<bool> {
        let outcome = self
            .keyspace
            .compare_and_swap(key, Some(expected), Some(new))?;
        Ok(outcome.is_ok())
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut range = self.keyspace.range(start..).limit(count);
        while let Some((key, value)) = range.next_ref()? {
            show(key, value)?;
        }
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    fn all(&mut self, mut show: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut all = self.keyspace.unordered();
        while let Some((key, value)) = all.next_ref()? {
            show(key, value)?;
        }
        Ok(())
    }
}
