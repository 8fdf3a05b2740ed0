//! [`Tail`]: the merge operator of the model's keyspaces.

use terrapin::{MergeOperator, Outcome, Result};
use terrapin_base::checksum::hash64;

/// Most bytes of a value that a merge made.
const BYTES_MAX: usize = 64;

/// Appends the operand, and keeps the last 64 bytes. A lost, doubled or misplaced operand shows in
/// them. It declines to combine the operands of one key in four, so that they stay side by side.
pub struct Tail;

impl Tail {
    /// Its name.
    pub const NAME: &'static str = "tail";

    /// What an operand makes of a value.
    #[must_use]
    pub fn of(value: &[u8], operand: &[u8]) -> Vec<u8> {
        let mut all = [value, operand].concat();
        all.drain(..all.len().saturating_sub(BYTES_MAX));
        all
    }
}

impl MergeOperator for Tail {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn apply(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        out.extend_from_slice(&Self::of(existing.unwrap_or_default(), operand));
        Ok(Outcome::Value)
    }

    fn combine(&self, key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        out.extend_from_slice(&Self::of(older, newer));
        Ok(!hash64(key).is_multiple_of(4))
    }
}
