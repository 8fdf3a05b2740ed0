//! The payload of an expiring value: its deadline, then the value itself.
//!
//! ```text
//! deadline  6 bytes, little-endian: milliseconds since 1970
//! value     the rest
//! ```
//!
//! The log, memtables, blocks and runs of views have these bytes. A deadline is absolute. At its
//! deadline a value is expired.

use std::time::Duration;

use crate::{Error, Result};

/// Bytes of a deadline.
pub const DEADLINE_BYTES: usize = 6;
/// The latest deadline, in milliseconds since 1970: about the year 10,889.
pub const DEADLINE_MS_MAX: u64 = (1 << (8 * DEADLINE_BYTES)) - 1;

/// A time in whole milliseconds, of which a part counts as one. At most [`DEADLINE_MS_MAX`]. O(1).
#[must_use]
pub fn whole_ms(time: Duration) -> u64 {
    let ms = time.as_nanos().div_ceil(1_000_000);
    u64::try_from(ms).map_or(DEADLINE_MS_MAX, |ms| ms.min(DEADLINE_MS_MAX))
}

/// A time in milliseconds, without a part of one. At most [`DEADLINE_MS_MAX`]. O(1).
#[must_use]
pub fn whole_ms_down(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).map_or(DEADLINE_MS_MAX, |ms| ms.min(DEADLINE_MS_MAX))
}

/// The bytes of a deadline. A later one than [`DEADLINE_MS_MAX`] counts as that. O(1).
#[must_use]
pub fn deadline_bytes(deadline_ms: u64) -> [u8; DEADLINE_BYTES] {
    let [a, b, c, d, e, f, ..] = deadline_ms.min(DEADLINE_MS_MAX).to_le_bytes();
    [a, b, c, d, e, f]
}

/// The payload of a [`crate::Message::Expiring`]. O(value).
///
/// ```
/// use terrapin_base::expiry;
/// let payload = expiry::payload(1_800_000_000_000, b"value");
/// assert_eq!(expiry::split(&payload)?, (1_800_000_000_000, &b"value"[..]));
/// assert!(expiry::split(&payload[..5]).is_err());
/// # Ok::<(), terrapin_base::Error>(())
/// ```
#[must_use]
pub fn payload(deadline_ms: u64, value: &[u8]) -> Vec<u8> {
    [&deadline_bytes(deadline_ms)[..], value].concat()
}

/// The deadline and the value of a payload. O(1).
///
/// # Errors
///
/// [`crate::ErrorKind::Corrupt`] if the payload is too short for a deadline.
#[inline]
pub fn split(payload: &[u8]) -> Result<(u64, &[u8])> {
    let split = payload.split_first_chunk::<DEADLINE_BYTES>();
    let ([a, b, c, d, e, f], value) =
        split.ok_or_else(|| Error::corrupt("a deadline ends too early"))?;
    let deadline_ms = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]);
    Ok((deadline_ms, value))
}

/// As [`split`], for a payload that was checked when it came in. O(1).
#[inline]
pub(crate) fn split_or_expired(payload: &[u8]) -> (u64, &[u8]) {
    split(payload).unwrap_or_default()
}
