//! The lazy-trie over hashes (layer 5), after CedrusDB. Its keys are order keys: 40 bits of hash,
//! then the user's key.
//!
//! A trie of fan-out 2^r leads to leaves. A leaf is a chain of runs in hash order, newest first.
//! The oldest run is the base, which has no deletes. A checkpoint appends one run to each leaf and
//! reads nothing. A leaf is rewritten into one base when much of it is hidden, and split when it is
//! large.
//!
//! Invariants:
//!
//! - H1: a live key is in the leaf to which the digits of its prefix lead, and nowhere else.
//! - H2: of a leaf's runs, the newest that has a message of a key decides.
//! - H3: a leaf's table names every run that has a record of a prefix.
//! - H4: slots are unique in a chain. A table belongs to the newest run's list, which is new
//!   whenever the chain changes.
//! - H6: only a rewrite of all runs of a leaf drops deletes.
//!
//! - `digits` divides the space of hashes.
//! - `format` has the bytes of nodes and of the root, `list` those of a run's list of hashes.
//! - `table` says which runs of a leaf may hold a key; `node` loads nodes and builds tables.
//! - `get`, `scan`, `contract` read; `plan` decides what a merge does with each leaf, `task` does
//!   it, `assemble` writes the nodes, and `merge` runs them. `compact` rewrites without input.
//! - `verify` and `rescue` read what may be damaged; `stats` counts.
#![forbid(unsafe_code)]

mod assemble;
mod compact;
mod contract;
mod digits;
mod format;
mod get;
mod list;
mod merge;
mod node;
mod plan;
mod rescue;
mod scan;
mod stats;
mod structure;
mod table;
mod task;
mod verify;
mod version;

pub use digits::Fanout;
pub use structure::{HashTrie, HashTrieParams};
