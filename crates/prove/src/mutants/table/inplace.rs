//! The mutants of the page-grouped tree.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const DAMAGE: Script = Script::Check(
    "damage in a page-grouped tree",
    checks::tiered::damage_in_place,
);

const OVERWRITING: Script = Script::Check(
    "overwriting in a page-grouped tree",
    checks::inplace::overwriting,
);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "merge-misses-oldest-waiting-group",
        does: "a leaf's merge leaves out the oldest group that waits for it",
        file: "crates/inplace/src/task.rs",
        breaks: "a leaf that is merged takes in all that waits for it",
        script: OVERWRITING,
    },
    Mutant {
        name: "deletes-vanish-while-they-wait",
        does: "groups that wait have no deletes",
        file: "crates/inplace/src/task.rs",
        breaks: "a deleted key does not return",
        script: Script::Conformance,
    },
    Mutant {
        name: "newest-waiting-group-asked-last",
        does: "a get asks the groups that wait from the oldest to the newest",
        file: "crates/inplace/src/get.rs",
        breaks: "a get sees the newest published write",
        script: OVERWRITING,
    },
    Mutant {
        name: "joined-groups-take-one-more-along",
        does: "joining groups drops the next older one, too",
        file: "crates/inplace/src/assemble.rs",
        breaks: "a version has all records that were merged into it",
        script: Script::Conformance,
    },
    Mutant {
        name: "damaged-leaves-are-merged",
        does: "merges read segments and groups that are known to be damaged",
        file: "crates/inplace/src/plan.rs",
        breaks: "damage in a leaf stops nothing that does not need it",
        script: DAMAGE,
    },
    Mutant {
        name: "second-try-merges-leaves",
        does: "the second try of a merge that met damage merges leaves, too",
        file: "crates/inplace/src/plan.rs",
        breaks: "damage in a leaf keeps no memtable from being durable",
        script: DAMAGE,
    },
    Mutant {
        name: "map-bound-belongs-left",
        does: "a key that is a bound of the map is looked for in the leaf before it",
        file: "crates/inplace/src/format.rs",
        breaks: "leaves partition the keys",
        script: OVERWRITING,
    },
];
