//! The mutants of separated values.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const SPACE: Script = Script::Check("the asked space of values", checks::values::space);

const LOCATED: Script = Script::Check("values that the map names", checks::values::located);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hidden-values-take-no-room",
        does: "values that messages in buffers supersede count as seen when pages are collected",
        file: "crates/valuelog/src/separate/collecting.rs",
        breaks: "separated values keep to the asked space",
        script: SPACE,
    },
    Mutant {
        name: "swept-keys-stay-located",
        does: "a merge leaves the keys of its memtable in the map of values",
        file: "crates/terrapin/src/engine/locations.rs",
        breaks: "a get returns the newest value",
        script: LOCATED,
    },
];
