//! The one hook of the commit protocol's mutants: wrong protocols in place of
//! [`PROTOCOL`](super::commit::PROTOCOL). Builds without mutants always take the right one.

use terrapin_base::mutant;

use super::commit::Step::{AskForLog, AwaitLog, Sync, WriteSlot};
use super::commit::{PROTOCOL, Step};

/// The steps of a commit.
pub(super) fn steps() -> &'static [Step] {
    if mutant::active("commit-without-page-sync") {
        return &PROTOCOL[1..];
    }
    if mutant::active("commit-slot-before-page-sync") {
        return &[
            WriteSlot(0),
            Sync,
            AskForLog,
            AwaitLog,
            WriteSlot(0),
            Sync,
            WriteSlot(1),
            Sync,
        ];
    }
    if mutant::active("commit-without-log-sync") {
        return &[Sync, WriteSlot(0), Sync, WriteSlot(1), Sync];
    }
    if mutant::active("commit-without-first-slot-sync") {
        return &[Sync, AskForLog, AwaitLog, WriteSlot(0), WriteSlot(1), Sync];
    }
    if mutant::active("commit-durable-before-first-slot-sync") {
        return &PROTOCOL[..4];
    }
    if mutant::active("commit-without-second-slot") {
        return &PROTOCOL[..5];
    }
    if mutant::active("commit-without-second-slot-sync") {
        return &PROTOCOL[..6];
    }
    PROTOCOL
}
