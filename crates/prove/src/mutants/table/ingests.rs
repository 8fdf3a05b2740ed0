//! The mutants of sorted ingests.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const INGESTS: Script = Script::Check("sorted ingests", checks::ingests::ingests);
/// What most of these mutants break.
const PROMISE: &str = "an ingest is newer than all before it, older than what others write \
                       meanwhile, and there whole or not at all";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "ingest-keeps-collection",
        does: "records that were cached before an ingest match after it",
        file: "crates/terrapin/src/checkpoint/job/install.rs",
        breaks: PROMISE,
        script: INGESTS,
    },
    Mutant {
        name: "conditional-append-ignores-collection",
        does: "a conditional append does not test whether an ingest came in between",
        file: "crates/terrapin/src/write/conditional.rs",
        breaks: "a conditional write happens only if nothing changed what it read",
        script: INGESTS,
    },
    Mutant {
        name: "checkpoint-merges-beneath-ingest",
        does: "checkpoints change the tree that an ingest builds upon",
        file: "crates/terrapin/src/checkpoint/job/freeze.rs",
        breaks: PROMISE,
        script: INGESTS,
    },
    Mutant {
        name: "ingest-grafts-onto-another-tree",
        does: "an ingest goes on although its keyspace was cleared",
        file: "crates/terrapin/src/checkpoint/job/graft.rs",
        breaks: PROMISE,
        script: INGESTS,
    },
    Mutant {
        name: "ingest-skips-first-merge",
        does: "memtables from before an ingest stay above it",
        file: "crates/terrapin/src/checkpoint/ingest.rs",
        breaks: PROMISE,
        script: INGESTS,
    },
    Mutant {
        name: "ingest-takes-any-order",
        does: "an ingest takes keys out of order",
        file: "crates/terrapin/src/checkpoint/ingest.rs",
        breaks: "keys out of order are refused",
        script: INGESTS,
    },
    Mutant {
        name: "ingest-leaves-buffers-above",
        does: "an ingest puts records below older messages of buffers",
        file: "crates/betree/src/merge/ingest.rs",
        breaks: PROMISE,
        script: INGESTS,
    },
    Mutant {
        name: "dropped-ingest-keeps-pages",
        does: "an ingest that failed does not give its pages back",
        file: "crates/betree/src/merge/ingest.rs",
        breaks: "nothing of an ingest that failed stays",
        script: INGESTS,
    },
];
