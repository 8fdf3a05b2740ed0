//! The mutants of tiered buffers.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const OPERANDS: Script = Script::Check("operands in tiered buffers", checks::tiered::operands);
const TAIL: Script = Script::Check("the last key again", checks::tiered::tail);
const HEAPS: Script = Script::Check("what a pivot may hold", checks::tiered::heaps);
const LOADS: Script = Script::Check("tiered buffers under all loads", checks::tiered::loads);
const DAMAGE: Script = Script::Check("damage in tiered buffers", checks::tiered::damage);
const IDLE: Script = Script::Check("idle tiered buffers", checks::tiered::idle);
const MAPLETS: Script = Script::Check("maplets over many runs", checks::tiered::maplets);
const WIDE_MAPLETS: Script = Script::Check(
    "maplets over more than 32 runs",
    checks::tiered::wide_maplets,
);
const WAY_BACK: Script = Script::Check("leveled after tiered", checks::tiered::way_back);
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
        name: "stack-forgets-what-comes-in",
        does: "what comes in for a pivot whose runs are merged is left out",
        file: "crates/betree/src/merge/stack.rs",
        breaks: "no record is lost",
        script: LOADS,
    },
    Mutant {
        name: "split-shares-without-reference",
        does: "the halves of a node share a segment that counts as one reference",
        file: "crates/betree/src/merge/nodes.rs",
        breaks: "D4: space is free when nothing refers to it",
        script: LOADS,
    },
    Mutant {
        name: "node-applies-operands",
        does: "a merge within a node applies operands as if nothing older were below",
        file: "crates/betree/src/merge/write.rs",
        breaks: "each operand counts exactly once, in order",
        script: OPERANDS,
    },
    Mutant {
        name: "append-takes-last-key",
        does: "leaves are written behind a leaf although what comes in has its last key",
        file: "crates/runs/src/run.rs",
        breaks: NEWEST,
        script: TAIL,
    },
    Mutant {
        name: "stacks-hold-any-bytes",
        does: "a pivot holds more than one flush may write on a full disk",
        file: "crates/betree/src/tiered.rs",
        breaks: "D10: a delete has room on a full disk",
        script: HEAPS,
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
        name: "maplet-bits-wrap-at-32",
        does: "a maplet's answer has 32 bits, and the 33rd group counts as the first",
        file: "crates/filter/src/maplet.rs",
        breaks: DENIES,
        script: WIDE_MAPLETS,
    },
    Mutant {
        name: "maplet-takes-new-groups-for-old",
        does: "a group that a maplet does not name counts as one that it names",
        file: "crates/betree/src/maplet.rs",
        breaks: DENIES,
        script: MAPLETS,
    },
    Mutant {
        name: "node-refuses-33rd-level",
        does: "the number of levels has a hard limit: a node of more than 32 cannot be written",
        file: "crates/betree/src/format.rs",
        breaks: "no number of runs makes a checkpoint fail",
        script: HEAPS,
    },
    Mutant {
        name: "leveled-keeps-many-runs",
        does: "a node with many runs is planned as a leveled one at once",
        file: "crates/betree/src/merge/stack.rs",
        breaks: "a change to leveled buffers ends, and rewrites little at once",
        script: WAY_BACK,
    },
    Mutant {
        name: "maplet-leaves-a-run-out",
        does: "a maplet names groups whose keys it does not have",
        file: "crates/betree/src/merge/map.rs",
        breaks: DENIES,
        script: MAPLETS,
    },
];
