//! The mutants of separated values.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const SPACE: Script = Script::Check("the asked space of values", checks::values::space);

const MAP: Script = Script::Check("the map of values alone", checks::values::map);

const RESIZED: Script = Script::Check("the map of values resized", checks::values::resized);

const PUNCHED: Script = Script::Check("dead values that become holes", checks::values::punched);

const ORDERED: Script = Script::Check("order that ranges pay for", checks::values::ordered);

const COMPARED: Script = Script::Check(
    "a place that belongs to another key",
    checks::values::compared,
);

const COLLECTED: Script = Script::Check("values that are collected", checks::values::collected);

const LOCATED: Script = Script::Check("values that the map names", checks::values::located);

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "hidden-values-take-no-room",
        does: "values that messages in buffers supersede count as seen when pages are collected",
        file: "crates/valuelog/src/separate/collecting.rs",
        breaks: "separated values keep to the asked space",
        script: SPACE,
    },
    Mutant {
        name: "swept-keys-stay-located",
        does: "a merge leaves the keys of its memtable in the map of values",
        file: "crates/terrapin/src/engine/locations.rs",
        breaks: "a get returns the newest value",
        script: LOCATED,
    },
    Mutant {
        name: "located-beside-its-match",
        does: "an entry of the map enters beside one that a lookup takes for it",
        file: "crates/valuemap/src/shard.rs",
        breaks: "M1: what a lookup finds of a key is its newest version",
        script: MAP,
    },
    Mutant {
        name: "ambiguous-entries-stay",
        does: "an entry whose bits name two buckets of a resized map moves into the first of them",
        file: "crates/valuemap/src/entry.rs",
        breaks: "M1: what a lookup finds of a key is its newest version",
        script: RESIZED,
    },
    Mutant {
        name: "place-enters-after-a-sweep",
        does: "a place that a reader learned before a sweep enters the map after it",
        file: "crates/valuemap/src/map.rs",
        breaks: "M1: what a lookup finds of a key is its newest version",
        script: MAP,
    },
    Mutant {
        name: "copy-leaves-a-live-record-out",
        does: "collecting leaves a live value out of its copy",
        file: "crates/valuelog/src/page/read.rs",
        breaks: "D14: a record leaves its page only if it is dead",
        script: COLLECTED,
    },
    Mutant {
        name: "copies-take-dead-values-along",
        does: "collecting copies dead values as live ones",
        file: "crates/valuelog/src/separate/collecting.rs",
        breaks: "D13: tree, table and dead places agree",
        script: COLLECTED,
    },
    Mutant {
        name: "holes-before-both-slots",
        does: "values that die in a checkpoint become holes before its superblock",
        file: "crates/valuelog/src/separate/collecting.rs",
        breaks: "D14: a hole is made only of what no superblock reaches",
        script: PUNCHED,
    },
    Mutant {
        name: "pins-keep-no-parts-of-pages",
        does: "dead values become holes although a snapshot reads them",
        file: "crates/pages/src/space/live.rs",
        breaks: "D14: a hole is made only of what no view sees",
        script: PUNCHED,
    },
    Mutant {
        name: "located-keys-are-not-compared",
        does: "a record that the map names counts without a look at its key",
        file: "crates/valuelog/src/page/read.rs",
        breaks: "M3: what the map says is compared with the record's key",
        script: COMPARED,
    },
    Mutant {
        name: "page-indexes-are-reused-at-once",
        does: "an index of the map means another page while entries still name it",
        file: "crates/valuemap/src/map.rs",
        breaks: "M2: an index means one page while any entry has it",
        script: MAP,
    },
    Mutant {
        name: "ended-pages-answer",
        does: "the map answers by pages that the reader's state does not have",
        file: "crates/valuemap/src/pages.rs",
        breaks: "a reader follows the map only to pages of its state",
        script: MAP,
    },
    Mutant {
        name: "order-is-never-paid",
        does: "ranges never bring order about",
        file: "crates/terrapin/src/checkpoint/compaction.rs",
        breaks: "ranges get the order that they have paid for",
        script: ORDERED,
    },
];
