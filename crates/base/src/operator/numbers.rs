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

/// What a sequence of additions does to a counter: the meaning of an operand.
trait Additions: Copy {
    /// The meaning of an operand: a user's, or a combined one.
    fn decode(operand: &[u8]) -> Result<Self>;
    /// Appends the operand with this meaning.
    fn encode(self, out: &mut Vec<u8>);
    /// These additions, and then the newer ones.
    fn then(self, newer: Self) -> Self;
    /// What they make of a counter.
    fn of(self, counter: i64) -> Result<i64>;
}

/// Declares the operator of a kind of additions.
macro_rules! adds {
    ($(#[$doc:meta])* $operator:ident, $name:literal, $additions:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $operator;

        impl MergeOperator for $operator {
            fn name(&self) -> &str {
                $name
            }

            fn apply(
                &self,
                _key: &[u8],
                existing: Option<&[u8]>,
                operand: &[u8],
                out: &mut Vec<u8>,
            ) -> Result<Outcome> {
                let counter = existing.map_or(Ok(0), |value| number(value, "value"))?;
                let sum = <$additions>::decode(operand)?.of(counter)?;
                out.extend_from_slice(&sum.to_le_bytes());
                Ok(Outcome::Value)
            }

            fn combine(
                &self,
                _key: &[u8],
                older: &[u8],
                newer: &[u8],
                out: &mut Vec<u8>,
            ) -> Result<bool> {
                let (older, newer) = (<$additions>::decode(older)?, <$additions>::decode(newer)?);
                older.then(newer).encode(out);
                Ok(true)
            }

            fn check(&self, _key: &[u8], operand: &[u8]) -> Result<()> {
                number(operand, "operand").map(|_| ())
            }
        }
    };
}

adds! {
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
    AddI64, "add-i64", Wrapping
}

adds! {
    /// `saturating-add-i64`: adds, and stays at the greatest or least i64 instead of passing it.
    SaturatingAddI64, "saturating-add-i64", Clamped
}

adds! {
    /// `checked-add-i64`: adds, and fails where one of the additions passes the limits of an i64.
    /// The key's reads fail from then on, until a put or delete replaces it.
    CheckedAddI64, "checked-add-i64", Partial
}

/// Additions that wrap around: their sum is all that counts.
#[derive(Clone, Copy)]
struct Wrapping(i64);

impl Additions for Wrapping {
    fn decode(operand: &[u8]) -> Result<Self> {
        number(operand, "operand").map(Wrapping)
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn then(self, newer: Self) -> Self {
        Wrapping(self.0.wrapping_add(newer.0))
    }

    fn of(self, counter: i64) -> Result<i64> {
        Ok(counter.wrapping_add(self.0))
    }
}

/// Saturating additions: they add `sum`, then keep the result between `least` and `greatest`.
#[derive(Clone, Copy)]
struct Clamped {
    sum: i128,
    least: i64,
    greatest: i64,
}

impl Clamped {
    fn clamped(self, counter: i64) -> i64 {
        let sum = i128::from(counter).saturating_add(self.sum);
        let clamped = sum.clamp(self.least.into(), self.greatest.into());
        // Between two i64.
        clamped as i64
    }
}

impl Additions for Clamped {
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

    fn then(self, newer: Self) -> Self {
        Clamped {
            sum: self.sum.saturating_add(newer.sum),
            least: newer.clamped(self.least),
            greatest: newer.clamped(self.greatest),
        }
    }

    fn of(self, counter: i64) -> Result<i64> {
        Ok(self.clamped(counter))
    }
}

fn as_u128(bytes: &[u8]) -> u128 {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(all)
}

/// Checked additions: no partial sum may leave the range.
#[derive(Clone, Copy)]
struct Partial {
    sum: i128,
    /// The least and the greatest partial sum, the empty one included.
    least: i128,
    greatest: i128,
}

impl Additions for Partial {
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

    fn then(self, newer: Self) -> Self {
        let with = |sum: i128| self.sum.saturating_add(sum);
        Partial {
            sum: with(newer.sum),
            least: self.least.min(with(newer.least)),
            greatest: self.greatest.max(with(newer.greatest)),
        }
    }

    fn of(self, counter: i64) -> Result<i64> {
        let reached = |sum: i128| i64::try_from(i128::from(counter).saturating_add(sum)).ok();
        let sum = reached(self.least)
            .and(reached(self.greatest))
            .and(reached(self.sum));
        sum.ok_or_else(|| {
            Error::invalid("the sum passes the limits of an i64").with("value", counter)
        })
    }
}
