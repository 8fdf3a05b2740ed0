//! What the engine writes into the log: operations on records, and changes of the set of keyspaces.

pub(crate) mod format;

pub(crate) use format::{Change, Operation, Operations, Schema};

use std::ops::Bound;

use terrapin_base::{Error, ErrorKind, KEY_BYTES_MAX, Message, Result, VALUE_BYTES_MAX, expiry};
use terrapin_structure::KeyBounds;

/// Checks a key and a message against the limits of keys and values.
#[inline]
pub(crate) fn check_sizes(key: &[u8], message: Message<'_>) -> Result<()> {
    let value_bytes = message.value_bytes();
    if key.len() <= KEY_BYTES_MAX && value_bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    // The limit is that of the value without its deadline.
    match message {
        Message::Expiring(payload)
            if key.len() <= KEY_BYTES_MAX && expiry::split(payload)?.1.len() <= VALUE_BYTES_MAX =>
        {
            Ok(())
        }
        _ => Err(too_large(key.len(), value_bytes)),
    }
}

/// Checks the bounds of a range delete against the limit of keys.
pub(crate) fn check_bounds((lower, upper): KeyBounds<'_>) -> Result<()> {
    let bytes = |bound| match bound {
        Bound::Included(key) | Bound::Excluded(key) => <[u8]>::len(key),
        Bound::Unbounded => 0,
    };
    let bytes = bytes(lower).max(bytes(upper));
    match bytes <= KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::TooLarge,
            "a bound of a range delete is longer than a key may be: shorten the bound",
        )
        .with("bytes", bytes)
        .with("limit", KEY_BYTES_MAX)),
    }
}

#[cold]
fn too_large(key_bytes: usize, value_bytes: usize) -> Error {
    let (message, bytes, limit) = if key_bytes > KEY_BYTES_MAX {
        (
            "the key is longer than the limit: use a hash as the key, and store the whole key in the value",
            key_bytes,
            KEY_BYTES_MAX,
        )
    } else {
        (
            "the value is longer than the limit of records: put, a batch or writer of a keyspace \
             without merge operator and time to live take up to 1 GiB, or split it over several keys",
            value_bytes,
            VALUE_BYTES_MAX,
        )
    };
    Error::new(ErrorKind::TooLarge, message)
        .with("bytes", bytes)
        .with("limit", limit)
}
