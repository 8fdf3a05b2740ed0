//! Puts of large values: the value is written into a page of its own first, then the log and the
//! memtable get its handle (decision 0074). What can fail or wait comes before the log's record.

use std::sync::Arc;

use terrapin_base::{Error, ErrorKind, KEY_BYTES_MAX, Message, Result, expiry};
use terrapin_valuelog::large::{LargeWriter, OwnedLarge};

use crate::engine::core::Core;
use crate::engine::state::KeyspaceShared;
use crate::log_record::format::put_large;
use crate::types::options::Durability;
use crate::write::{Asks, PreparedBatch};

/// A value, and its deadline in milliseconds since 1970, if it has one.
pub(crate) type LastingValue<'a> = (&'a [u8], Option<u64>);

impl Core {
    /// Begins to write a large value of a stored key.
    ///
    /// # Errors
    ///
    /// `TooLarge`; `KeyspaceNotFound`; `NoSpace`; `ReadOnly`; `Poisoned`; `Closed`; those of the
    /// device.
    pub fn begin_large(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        length: u64,
    ) -> Result<LargeWriter> {
        self.health.check_open()?;
        self.log()?;
        if key.len() > KEY_BYTES_MAX {
            let message = "the key is longer than the limit";
            return Err(Error::new(ErrorKind::TooLarge, message)
                .with("bytes", key.len())
                .with("limit", KEY_BYTES_MAX));
        }
        let state = self.state.load();
        if state.keyspaces.get(shared.id).is_none() {
            return Err(self.dropped().with("keyspace", &shared.name));
        }
        // Every later view pins this generation or a later one.
        LargeWriter::begin(&self.store, &self.budget, key, length, state.generation)
    }

    /// Whether a put of a value writes it into a page of its own: it is too long for a record.
    #[inline]
    pub fn is_large(&self, key_bytes: usize, value_bytes: usize) -> bool {
        key_bytes.saturating_add(value_bytes) > self.settings.inline_bytes
            && self.is_too_long(key_bytes, value_bytes)
    }

    #[cold]
    fn is_too_long(&self, key_bytes: usize, value_bytes: usize) -> bool {
        match self.settings.fits_record(key_bytes, value_bytes) {
            true => value_bytes > self.settings.large_above,
            // A long key is an error of its own.
            false => key_bytes <= KEY_BYTES_MAX,
        }
    }

    /// Writes a large value of a stored key into its page. The caller puts it.
    ///
    /// # Errors
    ///
    /// Those of [`Core::begin_large`].
    pub fn write_large(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        (value, deadline_ms): LastingValue<'_>,
    ) -> Result<OwnedLarge> {
        let mut writer = self.begin_large(shared, key, value.len() as u64)?;
        writer.write(value)?;
        writer.finish(deadline_ms)
    }

    /// The value of a put, and its deadline, if it goes into a page of its own.
    #[inline]
    pub fn large_of<'a>(&self, key: &[u8], message: Message<'a>) -> Option<LastingValue<'a>> {
        let (value, deadline_ms) = match message {
            Message::Put(value) => (value, None),
            Message::Expiring(payload) => {
                let (deadline_ms, value) = expiry::split(payload).ok()?;
                (value, Some(deadline_ms))
            }
            Message::Delete | Message::Merge(_) | Message::Stack(_) | Message::Separated(_) => {
                return None;
            }
        };
        let is_large = self.is_large(key.len(), value.len());
        is_large.then_some((value, deadline_ms))
    }

    /// Puts a long value of a stored key.
    ///
    /// # Errors
    ///
    /// Those of [`Core::begin_large`] and of writes.
    #[cold]
    #[inline(never)]
    pub fn put_long(
        &self,
        shared: &Arc<KeyspaceShared>,
        key: &[u8],
        value: LastingValue<'_>,
        durability: Durability,
    ) -> Result<()> {
        let large = self.write_large(shared, key, value)?;
        self.put_written(shared, key, large, durability)
    }

    /// Puts a large value of a stored key that was written.
    ///
    /// # Errors
    ///
    /// Those of writes. Its page is given back then, unless the log has the record.
    pub fn put_written(
        &self,
        shared: &KeyspaceShared,
        key: &[u8],
        large: OwnedLarge,
        durability: Durability,
    ) -> Result<()> {
        let mut payload = Vec::with_capacity(key.len() + 64);
        put_large(&mut payload, shared.id, key, large.large());
        self.write_batch(
            PreparedBatch {
                payload: &payload,
                operations: 1,
                frees: false,
                has_ranges: false,
                only_keyspace: Some(shared.id),
                asks: Asks::Nothing,
                large: &[Arc::new(large)],
            },
            durability,
        )
    }
}
