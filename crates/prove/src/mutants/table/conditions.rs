//! The mutants of conditional writes.

use super::{Mutant, checks};
use crate::mutants::script::Script;

/// Kills all mutants that lose what another writer did.
const WRITES_BETWEEN: Script = Script::Check(
    "a write between read and conditional write",
    checks::conditions::writes_between,
);
/// What these mutants break.
const PROMISE: &str = "a conditional write happens only if nothing changed what it read";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "watch-begins-at-the-tail",
        does: "a watch begins behind the filler of a sync, which is never published",
        file: "crates/wal/src/log/mod.rs",
        breaks: "the first condition on an idle database is decided",
        script: Script::Check(
            "a watch after a sync",
            checks::conditions::watch_after_a_sync,
        ),
    },
    Mutant {
        name: "condition-tests-no-late-entries",
        does: "a conditional append tests no records under the append lock",
        file: "crates/wal/src/log/recent.rs",
        breaks: PROMISE,
        script: WRITES_BETWEEN,
    },
    Mutant {
        name: "unknown-touches-are-none",
        does: "a record that does not say what it touches counts as touching nothing",
        file: "crates/wal/src/log/recent.rs",
        breaks: PROMISE,
        script: WRITES_BETWEEN,
    },
    Mutant {
        name: "lost-touches-are-none",
        does: "records whose touches were overwritten count as touching nothing",
        file: "crates/wal/src/log/recent.rs",
        breaks: PROMISE,
        script: WRITES_BETWEEN,
    },
    Mutant {
        name: "conditional-append-touches-nothing",
        does: "the record of a conditional write does not say what it touches",
        file: "crates/wal/src/log/mod.rs",
        breaks: PROMISE,
        script: WRITES_BETWEEN,
    },
    Mutant {
        name: "range-delete-touches-one-key",
        does: "the record of a range delete says that it touches its first key only",
        file: "crates/terrapin/src/write/mod.rs",
        breaks: PROMISE,
        script: WRITES_BETWEEN,
    },
    Mutant {
        name: "version-outlives-its-memtable",
        does: "a version holds after its keyspace's memtable was merged",
        file: "crates/terrapin/src/write/conditional.rs",
        breaks: "a version means that its key did not change since",
        script: Script::Check("a version across a merge", checks::conditions::old_versions),
    },
];
