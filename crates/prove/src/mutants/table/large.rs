//! The mutants of large values.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const CRASHES: Script = Script::Crash {
    seeds: 150,
    operations: 400,
};

const RUNS: Script = Script::Random {
    seeds: 80,
    operations: 400,
};

const POWER_CUTS: Script = Script::Check("large values and power cuts", checks::large::power_cuts);

const CLAIMED: Script = Script::Check("large values whose sync failed", checks::large::claimed);

const FAILED: Script = Script::Check(
    "a failed checkpoint with large values",
    checks::large::failed_checkpoint,
);

const LEAKS: Script = Script::Check("space of large values", checks::large::space);

const COMPARED: Script = Script::Check(
    "a commit that compares large values",
    checks::large::compared,
);

const FOLDED: Script = Script::Check("large values of views", checks::large::folded);

const COPIED: Script = Script::Check("copies of large values", checks::large::copied);

const INGESTED: Script = Script::Check("ingests of large values", checks::large::ingested);

const DEADLINES: Script = Script::Check("large values with deadlines", checks::large::deadlines);

/// A mutant that breaks the end of a large value at its deadline.
const fn ends(name: &'static str, does: &'static str, file: &'static str) -> Mutant {
    Mutant {
        name,
        does,
        file,
        breaks: "a large value ends at its deadline, and its space is free then",
        script: DEADLINES,
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "large-values-unsynced-before-log",
        does: "a sync of the log does not sync the large values that it names",
        file: "crates/pages/src/store/large.rs",
        breaks: "D16: no part of the log is synced before its large values",
        script: POWER_CUTS,
    },
    Mutant {
        name: "large-values-unchecked-at-open",
        does: "an open takes a record although its large value is not whole",
        file: "crates/terrapin/src/open/large.rs",
        breaks: "D16: the log ends at the first record whose large value is not whole",
        script: CRASHES,
    },
    Mutant {
        name: "recovery-claims-large-values",
        does: "a recovery syncs records, and does not write their large values again",
        file: "crates/terrapin/src/open/large.rs",
        breaks: "D16: no part of the log is synced before its large values",
        script: CLAIMED,
    },
    Mutant {
        name: "rewritten-large-values-unsynced",
        does: "a recovery syncs records before the large values that it wrote again",
        file: "crates/terrapin/src/open/large.rs",
        breaks: "D16: no part of the log is synced before its large values",
        script: CLAIMED,
    },
    Mutant {
        name: "large-pages-of-the-log-are-free",
        does: "an open gives the pages away that only records of the log name",
        file: "crates/terrapin/src/open/large.rs",
        breaks: "D17: pages that accepted records name are in use",
        script: CRASHES,
    },
    Mutant {
        name: "applied-records-name-large-pages",
        does: "an open takes the pages of records that a checkpoint has merged for used ones",
        file: "crates/terrapin/src/open/large.rs",
        breaks: "D17: only records at or above the applied LSN count",
        script: CRASHES,
    },
    Mutant {
        name: "folds-take-large-pages",
        does: "a run for views gives the large pages of its memtable back",
        file: "crates/terrapin/src/checkpoint/run_writer.rs",
        breaks: "a large page is its memtable's until a commit, and private merges report no drops",
        script: FOLDED,
    },
    Mutant {
        name: "large-copies-are-not-checked",
        does: "a read of a large value does not look at the checksums of its pieces",
        file: "crates/valuelog/src/large/read.rs",
        breaks: "damage is never copied: copies make checksums anew",
        script: COPIED,
    },
    Mutant {
        name: "salvage-takes-errors-for-loss",
        does: "a salvage takes any error of a large value for its loss",
        file: "crates/terrapin/src/salvage/sink.rs",
        breaks: "a salvage tells what is damaged, and fails for all other reasons",
        script: COPIED,
    },
    Mutant {
        name: "ingest-forgets-large-pages",
        does: "the tree of an ingest has the handles of large values, and not their pages",
        file: "crates/valuelog/src/separate/ingest.rs",
        breaks: "an ingest is there whole or not at all",
        script: INGESTED,
    },
    Mutant {
        name: "failed-checkpoint-frees-large-pages",
        does: "a checkpoint that fails frees the pages that it adopted",
        file: "crates/pages/src/store/mod.rs",
        breaks: "a large page is its memtable's until a commit",
        script: FAILED,
    },
    Mutant {
        name: "large-pages-are-born-late",
        does: "pins of views do not cover large pages",
        file: "crates/pages/src/store/large.rs",
        breaks: "a view keeps what it saw in a memtable",
        script: RUNS,
    },
    Mutant {
        name: "given-up-large-pages-stay",
        does: "writers, batches and transactions that end without a record keep their pages",
        file: "crates/pages/src/store/large.rs",
        breaks: "what was not put takes no space",
        script: LEAKS,
    },
    Mutant {
        name: "overwritten-large-pages-stay",
        does: "a commit releases no large pages of versions that ended in a memtable",
        file: "crates/terrapin/src/engine/large.rs",
        breaks: "what was overwritten takes no space",
        script: LEAKS,
    },
    Mutant {
        name: "parts-of-large-values-are-off",
        does: "a range of bytes begins an extent too early, behind the first one",
        file: "crates/valuelog/src/large/read.rs",
        breaks: "a range of bytes has the bytes that were asked for",
        script: COMPARED,
    },
    Mutant {
        name: "commit-takes-large-values-for-equal",
        does: "a commit that compares values takes all large ones for equal",
        file: "crates/terrapin/src/write/unchanged.rs",
        breaks: "a commit depends on what its transaction read",
        script: COMPARED,
    },
    Mutant {
        name: "own-large-values-are-not-there",
        does: "a transaction does not see the large values that it wrote",
        file: "crates/terrapin/src/transaction/writes.rs",
        breaks: "a transaction reads its own writes",
        script: Script::Conformance,
    },
    ends(
        "expiring-large-value-is-cached",
        "the record cache takes a large value with a deadline",
        "crates/terrapin/src/read/resolve.rs",
    ),
    ends(
        "replay-forgets-large-deadlines",
        "a replay of large values with deadlines does not begin to judge deadlines",
        "crates/terrapin/src/log_record/format.rs",
    ),
    ends(
        "renewed-large-values-keep-their-deadline",
        "a touch puts a large value without its new deadline",
        "crates/terrapin/src/write/renew.rs",
    ),
    ends(
        "expired-large-values-stay",
        "a merge that drops an expired large value keeps its page",
        "crates/structure/src/k_way.rs",
    ),
    ends(
        "operands-outlive-a-large-base",
        "a merge keeps the page of an expired large value under its operands",
        "crates/structure/src/values.rs",
    ),
];
