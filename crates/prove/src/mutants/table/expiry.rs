//! The mutants of deadlines.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const DEADLINES: Script = Script::Check(
    "values end at their deadlines and never come back",
    checks::expiry::deadlines,
);

/// A mutant that shows a value after its deadline.
const fn shows(name: &'static str, does: &'static str, file: &'static str) -> Mutant {
    Mutant {
        name,
        does,
        file,
        breaks: "a key has no value from its deadline on",
        script: DEADLINES,
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    shows(
        "read-shows-expired",
        "a read takes every value for a live one",
        "crates/terrapin/src/engine/clock.rs",
    ),
    shows(
        "now-goes-back",
        "now follows the wall clock when that is set back",
        "crates/terrapin/src/engine/clock.rs",
    ),
    shows(
        "replay-forgets-now",
        "a replay ignores the records of now",
        "crates/terrapin/src/open/recovery.rs",
    ),
    shows(
        "catalog-forgets-now",
        "a checkpoint does not store the last now",
        "crates/terrapin/src/checkpoint/job.rs",
    ),
    shows(
        "merge-drops-expired-above-leaves",
        "a merge drops values with a deadline in buffers, where they hide older ones",
        "crates/structure/src/k_way.rs",
    ),
    shows(
        "expiring-record-is-cached",
        "the record cache takes a value with a deadline",
        "crates/terrapin/src/read/resolve.rs",
    ),
    shows(
        "keyspace-forgets-ttl",
        "a put takes no notice of its keyspace's time to live",
        "crates/terrapin/src/engine/state.rs",
    ),
    Mutant {
        name: "idle-trees-keep-expired",
        does: "a compaction rewrites nothing because of expired records",
        file: "crates/pages/src/group/deadlines.rs",
        breaks: "the space of expired records is free a minute after their deadlines",
        script: DEADLINES,
    },
    Mutant {
        name: "little-expired-stays",
        does: "a tree of which less than a quarter has expired is never compacted for it",
        file: "crates/terrapin/src/checkpoint/expiry.rs",
        breaks: "the space of expired records is free a minute after their deadlines",
        script: DEADLINES,
    },
    Mutant {
        name: "range-forgets-deadlines",
        does: "a range shows values with a deadline as if they had none",
        file: "crates/structure/src/batch.rs",
        breaks: "an export keeps the deadlines of values",
        script: DEADLINES,
    },
    Mutant {
        name: "writer-forgets-deadline-that-it-read",
        does: "a conditional write does not test the deadline of what it read",
        file: "crates/terrapin/src/engine/clock.rs",
        breaks: "a write that depends on a value fails once another view saw it expired",
        script: DEADLINES,
    },
    Mutant {
        name: "now-goes-on-before-publication",
        does: "a conditional write lets now go on once its record is appended",
        file: "crates/terrapin/src/write/conditional.rs",
        breaks: "a view that sees a value expired sees the writes that depend on it",
        script: Script::Check(
            "a view between append and publication",
            checks::expiry::between,
        ),
    },
];
