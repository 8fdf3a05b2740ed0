//! The mutants of separated values.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const SPACE: Script = Script::Check("the asked space of values", checks::values::space);

pub(super) const MUTANTS: &[Mutant] = &[Mutant {
    name: "hidden-values-take-no-room",
    does: "values that messages in buffers supersede count as seen when pages are collected",
    file: "crates/valuelog/src/separate/collecting.rs",
    breaks: "separated values keep to the asked space",
    script: SPACE,
}];
