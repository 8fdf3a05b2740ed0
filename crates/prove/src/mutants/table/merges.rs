//! The mutants of merges.

use super::{Mutant, RANDOM, Script};
use crate::mutants::checks;

/// The promise that they break.
const PROMISE: &str = "each operand counts exactly once, in order";

const COUNTERS: Script = Script::Check("counters that are merged", checks::merges::counters);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "failing-operands-are-dropped",
        does: "a merge of a tree drops the operands that their operator refuses",
        file: "crates/base/src/operator/fold.rs",
        breaks: PROMISE,
        script: Script::Check(
            "an operator that fails, and what heals it",
            checks::merges::failing_operator,
        ),
    },
    Mutant {
        name: "operands-are-merged-in-slices",
        does: "a memtable with operands is merged in slices on a full disk",
        file: "crates/terrapin/src/checkpoint/outcome.rs",
        breaks: PROMISE,
        script: Script::Check("operands on a full disk", checks::merges::on_a_full_disk),
    },
    Mutant {
        name: "operands-combine-newest-first",
        does: "operands are combined in the wrong order",
        file: "crates/base/src/operator/fold.rs",
        breaks: PROMISE,
        script: Script::Conformance,
    },
    Mutant {
        name: "merge-forgets-older-operands",
        does: "a merge of runs keeps the newest run's operands alone",
        file: "crates/structure/src/k_way.rs",
        breaks: PROMISE,
        script: Script::Conformance,
    },
    Mutant {
        name: "get-takes-newest-operand",
        does: "a get of the tree gathers the newest operands alone",
        file: "crates/betree/src/get.rs",
        breaks: PROMISE,
        script: RANDOM,
    },
    Mutant {
        name: "fold-skips-sealed-memtable",
        does: "a read that meets operands in the active memtable skips the sealed one",
        file: "crates/terrapin/src/read/mod.rs",
        breaks: PROMISE,
        script: RANDOM,
    },
    Mutant {
        name: "run-keeps-newest-operand",
        does: "a run of held views keeps the newest operand of each moment alone",
        file: "crates/terrapin/src/run/chain.rs",
        breaks: PROMISE,
        script: Script::Conformance,
    },
    Mutant {
        name: "operands-ignore-range-deletes",
        does: "operands are applied to what an older range delete of the memtable hides",
        file: "crates/memtable/src/leaf.rs",
        breaks: "a deleted key stays deleted",
        script: Script::Conformance,
    },
    Mutant {
        name: "operands-leave-cached-value",
        does: "a merge leaves the cached values of keys that it brings operands for",
        file: "crates/terrapin/src/checkpoint/input.rs",
        breaks: PROMISE,
        script: COUNTERS,
    },
    Mutant {
        name: "operands-below-memo-count-again",
        does: "a fold that used what the memtable remembers goes on to older operands",
        file: "crates/memtable/src/leaf.rs",
        breaks: PROMISE,
        script: Script::Conformance,
    },
    Mutant {
        name: "memo-of-another-tree-counts",
        does: "a value that the memtable remembers from before an ingest counts after it",
        file: "crates/memtable/src/leaf.rs",
        breaks: PROMISE,
        script: Script::Check(
            "an ingest beside reads of merged keys",
            checks::merges::ingest,
        ),
    },
];
