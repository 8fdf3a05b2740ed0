//! Merge operators: how a store applies an update that its writer did not read first.
//!
//! A merge message holds an operand. The value of a key is its newest put with all newer operands
//! applied, oldest first. An operator says how: [`MergeOperator::apply`] makes the next value of a
//! value and an operand, and [`MergeOperator::combine`] makes one operand of two.
//!
//! Operators are associative: applying `a` and then `b` gives what applying `combine(a, b)` gives.
//! The store chooses when it combines and when it applies, and an operator cannot tell.

mod bytes;
mod fold;
mod named;
mod numbers;
mod stack;

use crate::Result;

pub use bytes::{Append, BitOr, Max, Min};
pub use fold::Fold;
pub use named::Operator;
pub use numbers::{AddI64, CheckedAddI64, SaturatingAddI64};
pub use stack::{STACK_BYTES_MAX, Stack, StackBase};

/// What an operator made of a value and an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key has the value that the operator wrote.
    Value,
    /// The key has no value.
    Nothing,
}

/// An associative update of a value (RocksDB calls it a merge operator, SplinterDB an update).
///
/// An implementation is deterministic and depends on its arguments only. A database stores the
/// operator's name with the keyspace, and refuses merges if no operator of this name is registered.
///
/// A failing operator never stops a checkpoint: the store keeps value and operands side by side.
/// Only reads of the key fail, until a later put or delete replaces all of them.
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// use terrapin::{MergeOperator, Outcome, Result};
///
/// /// Keeps the longest value.
/// struct Longest;
/// impl MergeOperator for Longest {
///     fn name(&self) -> &str {
///         "longest"
///     }
///     fn apply(
///         &self,
///         _key: &[u8],
///         existing: Option<&[u8]>,
///         operand: &[u8],
///         out: &mut Vec<u8>,
///     ) -> Result<Outcome> {
///         let existing = existing.unwrap_or_default();
///         out.extend_from_slice(if operand.len() > existing.len() { operand } else { existing });
///         Ok(Outcome::Value)
///     }
///     fn combine(
///         &self,
///         key: &[u8],
///         older: &[u8],
///         newer: &[u8],
///         out: &mut Vec<u8>,
///     ) -> Result<bool> {
///         self.apply(key, Some(older), newer, out).map(|_| true)
///     }
/// }
/// let mut out = Vec::new();
/// Longest.apply(b"key", Some(b"turtle"), b"fox", &mut out)?;
/// assert_eq!(out, b"turtle");
/// # Ok::<(), terrapin::Error>(())
/// ```
pub trait MergeOperator: Send + Sync {
    /// The name that keyspaces store: 1 to 64 bytes.
    fn name(&self) -> &str;

    /// Appends the value that the operand makes of the existing value to `out`, which is empty.
    /// `existing` is `None` if the key has no value.
    ///
    /// # Errors
    ///
    /// Any error means that the operand does not apply to this value. Reads of the key return it.
    fn apply(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome>;

    /// Appends the operand that does what `older` and then `newer` do to `out`, which is empty.
    /// Returns false to keep both operands; what `out` holds then does not count. The default
    /// keeps both.
    ///
    /// # Errors
    ///
    /// An error means the same as false. The operands' [`MergeOperator::apply`] tells the reader.
    fn combine(&self, key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let _ = (key, older, newer, out);
        Ok(false)
    }

    /// Checks an operand before a merge with it is logged. The default accepts everything.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidArgument`] if no value takes this operand.
    fn check(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        let _ = (key, operand);
        Ok(())
    }
}

/// The operator of this name that every database has: `add-i64`, `saturating-add-i64`,
/// `checked-add-i64`, `max`, `min`, `append` or `bit-or`.
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// assert_eq!(terrapin::built_in_operator("add-i64").unwrap().name(), "add-i64");
/// assert!(terrapin::built_in_operator("subtract").is_none());
/// ```
#[must_use]
pub fn built_in_operator(name: &str) -> Option<&'static dyn MergeOperator> {
    const ALL: [&dyn MergeOperator; 7] = [
        &AddI64,
        &SaturatingAddI64,
        &CheckedAddI64,
        &Max,
        &Min,
        &Append,
        &BitOr,
    ];
    ALL.into_iter().find(|operator| operator.name() == name)
}

#[cfg(test)]
mod tests;
