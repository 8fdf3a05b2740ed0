//! The TurtleTree (layer 5): a Bε-tree whose node buffers are small level-tiered trees of page
//! groups (TurtleKV, §3), or stacks of sorted runs (SplinterDB, §2).
//!
//! Where to look:
//!
//! - `node` and `format` hold a node's parts, its invariants, and its bytes; `load` holds a node in
//!   memory.
//! - `version` has all operations on the tree of one checkpoint.
//! - `get` looks keys up; `scan` reads ranges; `walk`, `stream` and `cursor` read the blocks of
//!   page groups.
//! - `merge` writes the next version, as `plan` and `tiered` decide; `compact` chooses what to
//!   compact.
//! - `erasable` finds what a merge can give up of a range that it deletes.
//! - `estimate`, `stats` and `verify` estimate, measure and check a version.
//! - `leaf_filters` decides whether to ask the filters of leaves.
#![forbid(unsafe_code)]

mod compact;
mod erasable;
mod estimate;
mod format;
mod get;
mod leaf_filters;
mod load;
mod maplet;
mod merge;
mod node;
mod plan;
mod rescue;
mod scan;
mod stats;
mod tiered;
mod tree;
mod verify;
mod version;

pub use tree::{BeTree, BeTreeParams, Buffers};

#[cfg(test)]
mod tests;
