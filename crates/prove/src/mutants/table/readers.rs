//! The mutants of readers beside a writer.

use super::{Mutant, checks};
use crate::mutants::script::Script;

/// Kills all mutants with which a reader sees what the writer made of its space.
const BESIDE: Script = Script::Check(
    "readers beside a writer that goes on at each call",
    checks::readers::beside,
);
/// What these mutants break.
const PROMISE: &str = "a reader beside a writer sees one moment, or is overtaken";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "reader-slot-not-tested-again",
        does: "a reader that took a slot does not test the header again",
        file: "crates/disk/src/readers.rs",
        breaks: PROMISE,
        script: Script::Check("a slot of an old generation", checks::readers::slots),
    },
    Mutant {
        name: "revoked-reader-goes-on",
        does: "a reader does not test its slot after a read",
        file: "crates/disk/src/readers.rs",
        breaks: PROMISE,
        script: BESIDE,
    },
    Mutant {
        name: "open-keeps-old-readers",
        does: "a writer that opens keeps the slots of all readers",
        file: "crates/disk/src/readers.rs",
        breaks: PROMISE,
        script: BESIDE,
    },
    Mutant {
        name: "commit-ignores-readers",
        does: "a commit takes no slot as a pin",
        file: "crates/terrapin/src/engine/readers.rs",
        breaks: PROMISE,
        script: BESIDE,
    },
    Mutant {
        name: "readers-seen-after-the-freeing",
        does: "a commit looks at the slots after it freed pages",
        file: "crates/terrapin/src/checkpoint/job/install.rs",
        breaks: PROMISE,
        script: BESIDE,
    },
    Mutant {
        name: "log-trimmed-under-a-reader",
        does: "a commit trims the log that a reader copies",
        file: "crates/terrapin/src/checkpoint/job/install.rs",
        breaks: PROMISE,
        script: BESIDE,
    },
    Mutant {
        name: "short-disk-keeps-readers",
        does: "a writer that is short of space keeps what readers see",
        file: "crates/terrapin/src/disk_space/room.rs",
        breaks: "a full disk accepts deletes (D10)",
        script: Script::Check("a reader on a full disk", checks::readers::full_disk),
    },
];
