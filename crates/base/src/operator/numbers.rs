//! Built-in operators that add to counters. A counter is an i64 in 8 bytes, little-endian; no
//! value counts as 0.
//!
//! Addition that stops at a limit is not associative on its own: 1 − 1 reaches the limit on the way
//! if the value is the greatest one, and −0 does not. So a combined operand remembers more than its
//! sum. A user's operand is 8 bytes; a combined one is longer.

use super::{MergeOperator, Outcome};
use crate::{Error, Result};

fn number(bytes: &[u8], what: &'static str) -> Result<i64> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| {
        Error::invalid("a counter and what is added to it have 8 bytes")
            .with("what", what)
            .with("bytes", bytes.len())
    })?;
    Ok(i64::from_le_bytes(bytes))
}

/// The value of a counter.
fn counter(existing: Option<&[u8]>) -> Result<i64> {
    existing.map_or(Ok(0), |value| number(value, "value"))
}

/// `add-i64`: adds, and wraps around at the limits of an i64.
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// use terrapin::{AddI64, MergeOperator};
/// let mut out = Vec::new();
/// AddI64.apply(b"hits", None, &5i64.to_le_bytes(), &mut out)?;
/// assert_eq!(out, 5i64.to_le_bytes());
/// # Ok::<(), terrapin::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AddI64;

impl MergeOperator for AddI64 {
    fn name(&self) -> &str {
        "add-i64"
    }

    fn apply(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        let sum = counter(existing)?.wrapping_add(number(operand, "operand")?);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(Outcome::Value)
    }

    fn combine(&self, _key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let sum = number(older, "operand")?.wrapping_add(number(newer, "operand")?);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(true)
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<()> {
        number(operand, "operand").map(|_| ())
    }
}

/// `saturating-add-i64`: adds, and stays at the greatest or least i64 instead of passing it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaturatingAddI64;

/// What a sequence of saturating additions does to a value: adds `sum`, then keeps the result
/// between `least` and `greatest`.
#[derive(Clone, Copy)]
struct Clamped {
    sum: i128,
    least: i64,
    greatest: i64,
}

impl Clamped {
    fn decode(operand: &[u8]) -> Result<Self> {
        if let Ok(bytes) = <[u8; 32]>::try_from(operand) {
            let [sum, limits]: [u128; 2] = [&bytes[..16], &bytes[16..]].map(as_u128);
            let (least, greatest) = (limits as u64 as i64, (limits >> 64) as u64 as i64);
            return match least <= greatest {
                true => Ok(Clamped {
                    sum: sum as i128,
                    least,
                    greatest,
                }),
                false => Err(Error::invalid("the operand's limits are out of order")),
            };
        }
        Ok(Clamped {
            sum: number(operand, "operand")?.into(),
            least: i64::MIN,
            greatest: i64::MAX,
        })
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sum.to_le_bytes());
        out.extend_from_slice(&self.least.to_le_bytes());
        out.extend_from_slice(&self.greatest.to_le_bytes());
    }

    fn of(self, value: i64) -> i64 {
        let sum = i128::from(value).saturating_add(self.sum);
        let clamped = sum.clamp(self.least.into(), self.greatest.into());
        // Between two i64.
        clamped as i64
    }
}

fn as_u128(bytes: &[u8]) -> u128 {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(all)
}

impl MergeOperator for SaturatingAddI64 {
    fn name(&self) -> &str {
        "saturating-add-i64"
    }

    fn apply(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        let sum = Clamped::decode(operand)?.of(counter(existing)?);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(Outcome::Value)
    }

    fn combine(&self, _key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let (older, newer) = (Clamped::decode(older)?, Clamped::decode(newer)?);
        let both = Clamped {
            sum: older.sum.saturating_add(newer.sum),
            least: newer.of(older.least),
            greatest: newer.of(older.greatest),
        };
        both.encode(out);
        Ok(true)
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<()> {
        number(operand, "operand").map(|_| ())
    }
}

/// `checked-add-i64`: adds, and fails where one of the additions passes the limits of an i64. The
/// key's reads fail from then on, until a put or delete replaces it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckedAddI64;

/// What a sequence of checked additions needs of a value: no partial sum leaves the range.
#[derive(Clone, Copy)]
struct Partial {
    sum: i128,
    /// The least and the greatest partial sum, the empty one included.
    least: i128,
    greatest: i128,
}

impl Partial {
    fn decode(operand: &[u8]) -> Result<Self> {
        if let Ok(bytes) = <[u8; 48]>::try_from(operand) {
            let part = |at: usize| as_u128(&bytes[at..at + 16]) as i128;
            let partial = Partial {
                sum: part(0),
                least: part(16),
                greatest: part(32),
            };
            let ordered =
                partial.least <= partial.sum.min(0) && partial.greatest >= partial.sum.max(0);
            return match ordered {
                true => Ok(partial),
                false => Err(Error::invalid(
                    "the operand's partial sums are out of order",
                )),
            };
        }
        let sum = i128::from(number(operand, "operand")?);
        Ok(Partial {
            sum,
            least: sum.min(0),
            greatest: sum.max(0),
        })
    }

    fn encode(self, out: &mut Vec<u8>) {
        for part in [self.sum, self.least, self.greatest] {
            out.extend_from_slice(&part.to_le_bytes());
        }
    }
}

impl MergeOperator for CheckedAddI64 {
    fn name(&self) -> &str {
        "checked-add-i64"
    }

    fn apply(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        let value = counter(existing)?;
        let partial = Partial::decode(operand)?;
        let reached = |sum: i128| i64::try_from(i128::from(value).saturating_add(sum)).ok();
        let sum = reached(partial.least)
            .and(reached(partial.greatest))
            .and(reached(partial.sum));
        let sum = sum.ok_or_else(|| {
            Error::invalid("the sum passes the limits of an i64").with("value", value)
        })?;
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(Outcome::Value)
    }

    fn combine(&self, _key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let (older, newer) = (Partial::decode(older)?, Partial::decode(newer)?);
        let then = |sum: i128| older.sum.saturating_add(sum);
        let both = Partial {
            sum: then(newer.sum),
            least: older.least.min(then(newer.least)),
            greatest: older.greatest.max(then(newer.greatest)),
        };
        both.encode(out);
        Ok(true)
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<()> {
        number(operand, "operand").map(|_| ())
    }
}
