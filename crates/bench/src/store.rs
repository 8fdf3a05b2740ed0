//! What the driver needs of a store: one small trait, so that other engines can be driven by the same code.

use terrapin::{Database, Durability, Keyspace};
use terrapin_base::Result;

/// Takes a scan's records, one key and value after the other; its error ends the scan.
pub type Show<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// A store under test; its methods are called from many threads at once.
pub trait Store: Send + Sync {
    /// Copies the value of a key into `out`; `false` if there is none.
    fn read(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;
    /// Sets a key's value, new or not.
    fn write(&self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Shows up to `count` records from the first key at or behind `start` on, in order.
    fn scan(&self, start: &[u8], count: usize, show: Show<'_>) -> Result<()>;
    /// Brings everything written so far into its final place, durably.
    fn settle(&self) -> Result<()>;
    /// χ in force; 0 where there is no such thing.
    fn chi(&self) -> u32;
    /// The memory budget in bytes.
    fn memory_bytes(&self) -> u64;
}

/// Terrapin, through its public API.
pub struct TerrapinStore {
    database: Database,
    keyspace: Keyspace,
    durability: Durability,
    memory_bytes: u64,
}

impl TerrapinStore {
    /// Drives the default keyspace of a database that was opened with so much memory.
    #[must_use]
    pub fn new(database: Database, durability: Durability, memory_bytes: u64) -> Self {
        let keyspace = database.default_keyspace();
        TerrapinStore {
            database,
            keyspace,
            durability,
            memory_bytes,
        }
    }
}

impl Store for TerrapinStore {
    fn read(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let Some(value) = self.keyspace.get(key)? else {
            return Ok(false);
        };
        out.extend_from_slice(&value);
        Ok(true)
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.keyspace.put_with(key, value, self.durability)
    }

    fn scan(&self, start: &[u8], count: usize, show: Show<'_>) -> Result<()> {
        for record in self.keyspace.range(start..).take(count) {
            let (key, value) = record?;
            show(&key, &value)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.database.checkpoint()?;
        self.database.flush()
    }

    fn chi(&self) -> u32 {
        self.keyspace.checkpoint_distance()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}
