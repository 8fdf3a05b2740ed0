//! What a store under test offers: it does operations and answers. The oracle is one too, and so is
//! every further structure that the conformance scripts are to run against.

use crate::operation::{Answer, Operation};

/// A store under test, empty at first.
pub trait Subject {
    /// What failures call it.
    fn name(&self) -> String;
    /// Key and value bytes of the largest write that it takes; scripts that need more are skipped.
    fn record_bytes_max(&self) -> usize;
    /// Does one operation. What the store refuses is an answer, too.
    fn apply(&mut self, operation: &Operation) -> Answer;
}
