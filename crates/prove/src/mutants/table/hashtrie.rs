//! The mutants of the lazy-trie.

use super::{Mutant, RANDOM, Script, checks};

const OVERWRITING: Script =
    Script::Check("overwriting in a lazy-trie", checks::hashtrie::overwriting);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "table-misses-last-record",
        does: "a table that gets a new run misses the run's last record",
        file: "crates/hashtrie/src/table.rs",
        breaks: "a leaf's table names every run that has a record of a prefix",
        script: RANDOM,
    },
    Mutant {
        name: "oldest-run-asked-first",
        does: "a get asks the runs of a leaf from the oldest to the newest",
        file: "crates/hashtrie/src/get.rs",
        breaks: "a get sees the newest published write",
        script: Script::Conformance,
    },
    Mutant {
        name: "leaf-left-out-by-estimate",
        does: "a merge leaves out leaves for which it expects few records",
        file: "crates/hashtrie/src/plan.rs",
        breaks: "a version has all records that were merged into it",
        script: RANDOM,
    },
    Mutant {
        name: "rewrite-leaves-oldest-run-out",
        does: "a rewrite of a leaf of several runs leaves the oldest one out",
        file: "crates/hashtrie/src/plan.rs",
        breaks: "a version has all records that were merged into it",
        script: RANDOM,
    },
    Mutant {
        name: "join-drops-deletes",
        does: "runs that are joined lose their deletes, although older runs stay",
        file: "crates/hashtrie/src/task.rs",
        breaks: "a deleted key does not return",
        script: Script::Conformance,
    },
    Mutant {
        name: "table-names-run-before",
        does: "a table that gets a new run names the run before for its records",
        file: "crates/hashtrie/src/task.rs",
        breaks: "a leaf's table names every run that has a record of a prefix",
        script: OVERWRITING,
    },
    Mutant {
        name: "split-sends-middle-digit-left",
        does: "a split sends the records of the middle digit to the leaf on its left",
        file: "crates/hashtrie/src/plan.rs",
        breaks: "a record is in the leaf that its hash leads to, and nowhere else",
        script: OVERWRITING,
    },
    Mutant {
        name: "hidden-bytes-not-counted",
        does: "the runs of a leaf do not say how many older bytes they hide",
        file: "crates/hashtrie/src/task.rs",
        breaks: "no more bytes are hidden than the accepted space amplification allows",
        script: OVERWRITING,
    },
];
