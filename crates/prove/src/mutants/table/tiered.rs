//! The mutants of tiered buffers.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const LOADS: Script = Script::Check("tiered buffers under all loads", checks::tiered::loads);
const DAMAGE: Script = Script::Check("damage in tiered buffers", checks::tiered::damage);
const IDLE: Script = Script::Check("idle tiered buffers", checks::tiered::idle);
const MAPLETS: Script = Script::Check("maplets over many runs", checks::tiered::maplets);
/// What most of these mutants break.
const DENIES: &str = "a maplet denies no key of a group that it names";
const NEWEST: &str = "for each key, what is newer lies above what is older";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "sink-looks-at-ends-only",
        does: "a segment sinks past levels that have something between its ends",
        file: "crates/betree/src/merge/stack.rs",
        breaks: NEWEST,
        script: LOADS,
    },
    Mutant {
        name: "append-looks-at-memtable-only",
        does: "leaves are written behind a leaf although a run from above has an earlier key",
        file: "crates/betree/src/merge/stack.rs",
        breaks: NEWEST,
        script: LOADS,
    },
    Mutant {
        name: "stack-forgets-older-runs",
        does: "runs that become one with what comes in are left out",
        file: "crates/betree/src/merge/stack.rs",
        breaks: "no record is lost",
        script: LOADS,
    },
    Mutant {
        name: "flush-passes-older-runs",
        does: "what comes in goes down past older runs of its pivot",
        file: "crates/betree/src/merge/descend.rs",
        breaks: NEWEST,
        script: LOADS,
    },
    Mutant {
        name: "split-keeps-bounds-of-segments",
        does: "both halves of a node keep the bounds of a segment that they share",
        file: "crates/betree/src/merge/nodes.rs",
        breaks: "a node's segments lie within its range",
        script: LOADS,
    },
    Mutant {
        name: "stacks-waste-without-bound",
        does: "overwritten records in runs take any space",
        file: "crates/betree/src/tiered.rs",
        breaks: "a keyspace keeps its bound of space",
        script: IDLE,
    },
    Mutant {
        name: "damaged-runs-are-merged",
        does: "merges read runs that are known to be damaged",
        file: "crates/betree/src/merge/stack.rs",
        breaks: "damage in a run stops nothing that does not need it",
        script: DAMAGE,
    },
    Mutant {
        name: "second-try-merges-runs",
        does: "the second try of a merge that met damage merges runs, too",
        file: "crates/betree/src/merge/stack.rs",
        breaks: "damage in a run keeps no memtable from being durable",
        script: DAMAGE,
    },
    Mutant {
        name: "idle-trees-keep-waste",
        does: "nothing frees waste while nobody writes",
        file: "crates/terrapin/src/disk_space/reclaim.rs",
        breaks: "waste is given back when a database is idle",
        script: IDLE,
    },
    Mutant {
        name: "changed-structure-waits-for-open",
        does: "a change of the structure counts from the next open only",
        file: "crates/terrapin/src/keyspaces/schema.rs",
        breaks: "a changed structure counts from the next checkpoint on",
        script: IDLE,
    },
    Mutant {
        name: "maplet-values-one-off",
        does: "a value of a maplet is taken for that of the next group",
        file: "crates/betree/src/maplet.rs",
        breaks: DENIES,
        script: MAPLETS,
    },
    Mutant {
        name: "maplet-cuts-fingerprints",
        does: "a maplet made of an older one loses the last bit of its fingerprints",
        file: "crates/filter/src/maplet.rs",
        breaks: DENIES,
        script: MAPLETS,
    },
    Mutant {
        name: "maplet-leaves-a-run-out",
        does: "a maplet names groups whose keys it does not have",
        file: "crates/betree/src/merge/map.rs",
        breaks: DENIES,
        script: MAPLETS,
    },
];
