//! Built-in operators on byte strings.

use super::{MergeOperator, Outcome};
use crate::Result;

/// Declares an operator whose operands combine as they apply to a value, and apply to no value by
/// becoming it.
macro_rules! symmetric {
    ($(#[$doc:meta])* $operator:ident, $name:literal, $join:expr) => {
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
                let join: fn(&[u8], &[u8], &mut Vec<u8>) = $join;
                match existing {
                    Some(existing) => join(existing, operand, out),
                    None => out.extend_from_slice(operand),
                }
                Ok(Outcome::Value)
            }

            fn combine(
                &self,
                key: &[u8],
                older: &[u8],
                newer: &[u8],
                out: &mut Vec<u8>,
            ) -> Result<bool> {
                self.apply(key, Some(older), newer, out).map(|_| true)
            }
        }
    };
}

symmetric! {
    /// `max`: keeps the greater of two byte strings. Numbers compare as such if they are
    /// big-endian, unsigned and of one length.
    Max, "max", |existing, operand, out| out.extend_from_slice(existing.max(operand))
}

symmetric! {
    /// `min`: keeps the smaller of two byte strings, as [`Max`] compares them.
    Min, "min", |existing, operand, out| out.extend_from_slice(existing.min(operand))
}

symmetric! {
    /// `append`: appends the operand to the value.
    Append, "append", |existing, operand, out| {
        out.reserve_exact(existing.len() + operand.len());
        out.extend_from_slice(existing);
        out.extend_from_slice(operand);
    }
}

symmetric! {
    /// `bit-or`: sets each bit that the value or the operand has. The shorter string counts as
    /// ending in zeros, so the result is as long as the longer one.
    BitOr, "bit-or", |existing, operand, out| {
        let (longer, shorter) = match existing.len() >= operand.len() {
            true => (existing, operand),
            false => (operand, existing),
        };
        out.extend_from_slice(longer);
        for (bits, more) in out.iter_mut().zip(shorter) {
            *bits |= more;
        }
    }
}
