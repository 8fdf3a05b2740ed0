//! Handles: what a tree keeps in place of a separated value.

use terrapin_base::codec::{Reader, put_varint};
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{Error, ErrorKind, LARGE_VALUE_BYTES_MAX, Result, VALUE_BYTES_MAX};

use crate::PLACES_MAX;
use crate::large::LARGE_BIRTHS;

/// Names one version of one key's value for ever: a move of the value changes no handle (D12).
///
/// ```
/// use terrapin_valuelog::Handle;
/// let handle = Handle { birth: 300, place: 7, value_bytes: 4096 };
/// let mut bytes = Vec::new();
/// handle.encode(&mut bytes);
/// assert_eq!(bytes.len(), 5);
/// assert_eq!(Handle::decode(&bytes)?, handle);
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// The birth that the value belongs to. Births of a database are numbered.
    pub birth: u64,
    /// Where the value's record began in the page of its birth, in steps of
    /// [`PLACE_BYTES`](crate::PLACE_BYTES).
    pub place: u32,
    /// Length of the value in bytes, decompressed.
    pub value_bytes: u32,
}

impl Handle {
    /// Most bytes of an encoded handle.
    pub const BYTES_MAX: usize = 10 + 7 + 5;

    /// Appends the handle: three varints, usually 8 to 9 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.birth);
        put_varint(out, u64::from(self.place));
        put_varint(out, u64::from(self.value_bytes));
    }

    /// Whether the value is in a page of its own, whose id is the birth ([`crate::large`]).
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.birth >= LARGE_BIRTHS
    }

    /// Appends the handle of a large value, whose second varint is its deadline, or 0.
    pub fn encode_large(&self, deadline_ms: Option<u64>, out: &mut Vec<u8>) {
        put_varint(out, self.birth);
        put_varint(
            out,
            deadline_ms.map_or(0, |ms| ms.clamp(1, DEADLINE_MS_MAX)),
        );
        put_varint(out, u64::from(self.value_bytes));
    }

    /// Decodes a handle that fills `bytes`, without the deadline of a large value.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] if the bytes are not exactly one possible handle.
    pub fn decode(bytes: &[u8]) -> Result<Handle> {
        let mut reader = Reader::new("value handle", bytes);
        let birth = reader.varint()?;
        let place = reader.varint()?;
        let value_bytes = reader.varint()?;
        if reader.remaining() > 0 {
            return Err(reader.corrupt("bytes behind the handle"));
        }
        let is_possible = match birth >= LARGE_BIRTHS {
            true => place <= DEADLINE_MS_MAX && value_bytes <= LARGE_VALUE_BYTES_MAX,
            false => place < u64::from(PLACES_MAX) && value_bytes <= VALUE_BYTES_MAX as u64,
        };
        if !is_possible {
            return Err(reader.corrupt("impossible handle"));
        }
        Ok(Handle {
            birth,
            // Of a large value it is the deadline, which [`handle_deadline_ms`] finds.
            place: if birth >= LARGE_BIRTHS {
                0
            } else {
                place as u32
            },
            value_bytes: value_bytes as u32,
        })
    }
}

/// The error for a handle that leads nowhere.
pub(crate) fn dangling(handle: Handle) -> Error {
    Error::corrupt("a handle names a value that its page does not have")
        .with("birth", handle.birth)
        .with("place", handle.place)
}

/// Checks the length of a value, in bytes, that operands apply to. An operator takes and makes
/// values of at most 256 KiB.
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Unsupported`].
pub fn check_operands(value_bytes: usize) -> Result<()> {
    if value_bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = "merge operands apply to a value that is longer than what an operator makes: put \
                   or delete the key, or read the value with a snapshot from before";
    Err(Error::new(ErrorKind::Unsupported, message)
        .with("bytes", value_bytes)
        .with("limit", VALUE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use terrapin_base::{handle_deadline_ms, handle_value_bytes};

    use super::*;

    #[test]
    fn handles_round_trip_and_other_bytes_are_refused() {
        for handle in [
            Handle {
                birth: 0,
                place: 0,
                value_bytes: 0,
            },
            Handle {
                birth: LARGE_BIRTHS - 1,
                place: PLACES_MAX - 1,
                value_bytes: VALUE_BYTES_MAX as u32,
            },
            Handle {
                birth: u64::MAX,
                place: 0,
                value_bytes: LARGE_VALUE_BYTES_MAX as u32,
            },
            Handle {
                birth: 1 << 39,
                place: 12_345,
                value_bytes: 4096,
            },
        ] {
            let mut bytes = Vec::new();
            handle.encode(&mut bytes);
            assert!(bytes.len() <= Handle::BYTES_MAX);
            assert_eq!(Handle::decode(&bytes).unwrap(), handle);
            for end in 0..bytes.len() {
                assert!(Handle::decode(&bytes[..end]).is_err());
            }
            bytes.push(0);
            assert!(Handle::decode(&bytes).is_err());
        }
        let mut far = Vec::new();
        Handle {
            birth: 1,
            place: PLACES_MAX,
            value_bytes: 1,
        }
        .encode(&mut far);
        assert!(Handle::decode(&far).is_err());
        let mut long = Vec::new();
        Handle {
            birth: 1,
            place: 1,
            value_bytes: VALUE_BYTES_MAX as u32 + 1,
        }
        .encode(&mut long);
        assert!(Handle::decode(&long).is_err());
        let mut large = Vec::new();
        let handle = Handle {
            birth: LARGE_BIRTHS,
            place: 0,
            value_bytes: LARGE_VALUE_BYTES_MAX as u32 + 1,
        };
        handle.encode(&mut large);
        assert!(Handle::decode(&large).is_err());
        let handle = Handle {
            value_bytes: 1,
            ..handle
        };
        for deadline_ms in [None, Some(1), Some(DEADLINE_MS_MAX)] {
            large.clear();
            handle.encode_large(deadline_ms, &mut large);
            assert_eq!(Handle::decode(&large).unwrap(), handle);
            assert_eq!(handle_deadline_ms(&large), deadline_ms);
            assert_eq!(handle_value_bytes(&large), 1);
        }
        large.clear();
        put_varint(&mut large, LARGE_BIRTHS);
        put_varint(&mut large, DEADLINE_MS_MAX + 1);
        put_varint(&mut large, 1);
        assert!(Handle::decode(&large).is_err());
    }
}
