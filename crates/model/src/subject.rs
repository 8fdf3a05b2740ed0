//! A store under test: it does operations and answers. The oracle is one, and so is every structure
//! that the conformance scripts cover.

use crate::operation::{Answer, Operation};
use crate::structures::Structures;

/// A store under test, empty at first.
pub trait Subject {
    /// The name in failures.
    fn name(&self) -> String;
    /// Key and value bytes of the largest write it accepts; scripts that need more are skipped.
    fn record_bytes_max(&self) -> usize;
    /// Whether it keeps keys in order. If not, it refuses ranges.
    fn keeps_order(&self) -> bool {
        true
    }
    /// The structures of its keyspaces, some of which refuse range deletes and pops.
    fn structures(&self) -> Structures {
        Structures::Leveled
    }
    /// Does one operation. A refusal is an answer too.
    fn apply(&mut self, operation: &Operation) -> Answer;
}
