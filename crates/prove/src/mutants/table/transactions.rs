//! The mutants of transactions.

use super::{Mutant, checks};
use crate::mutants::script::Script;

const CONFLICTS: Script = Script::Check(
    "what a transaction depends on changes before it commits",
    checks::transactions::conflicts,
);
const OWN_WRITES: Script = Script::Check(
    "what a transaction sees of its own writes",
    checks::transactions::own_writes,
);
const FOOTPRINT: &str = "crates/terrapin/src/write/footprint.rs";
const LOOK: &str = "crates/terrapin/src/write/unchanged.rs";
const TRANSACTION: &str = "crates/terrapin/src/transaction/mod.rs";
/// What most of these mutants break.
const PROMISE: &str = "a transaction commits only if nothing it depends on has changed";

/// A mutant that commits what must not commit.
const fn commits(name: &'static str, does: &'static str, file: &'static str) -> Mutant {
    Mutant {
        name,
        does,
        file,
        breaks: PROMISE,
        script: CONFLICTS,
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    commits(
        "transaction-forgets-reads",
        "a commit does not test the keys that the transaction read",
        FOOTPRINT,
    ),
    commits(
        "transaction-forgets-ranges",
        "a commit does not test the ranges that the transaction read",
        FOOTPRINT,
    ),
    commits(
        "whole-range-ends-at-its-last-record",
        "a range that has ended covers nothing behind its last record",
        FOOTPRINT,
    ),
    commits(
        "transaction-forgets-its-writes",
        "a commit does not test the keys that the transaction wrote",
        TRANSACTION,
    ),
    commits(
        "get-for-update-is-forgotten",
        "a snapshot transaction does not depend on what it read for update",
        TRANSACTION,
    ),
    commits(
        "look-sees-no-change",
        "a commit takes what the log does not tell for unchanged",
        LOOK,
    ),
    commits(
        "look-compares-no-values",
        "a commit takes values for unchanged if the memtables that would tell were merged",
        LOOK,
    ),
    Mutant {
        name: "look-skips-sealed-memtable",
        does: "a commit looks for phantoms in the active memtable only",
        file: LOOK,
        breaks: PROMISE,
        script: Script::Check(
            "a phantom in a sealed memtable",
            checks::transactions::sealed_phantoms,
        ),
    },
    Mutant {
        name: "rollback-keeps-writes",
        does: "a rollback to a savepoint takes nothing back",
        file: TRANSACTION,
        breaks: "a rollback takes back all writes since its savepoint",
        script: OWN_WRITES,
    },
    Mutant {
        name: "own-range-delete-hides-nothing",
        does: "a transaction's range shows records that it deleted by a range",
        file: "crates/terrapin/src/transaction/range.rs",
        breaks: "a transaction sees its own writes",
        script: OWN_WRITES,
    },
    Mutant {
        name: "own-operands-forget-view",
        does: "a transaction applies its own operands to nothing instead of what its view has",
        file: "crates/terrapin/src/transaction/mod.rs",
        breaks: "a transaction sees its own writes",
        script: Script::Conformance,
    },
];
