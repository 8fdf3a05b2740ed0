//! The TurtleTree (layer 4): a Bε+-tree whose node buffers are small level-tiered trees of page
//! groups (TurtleKV §3).
#![forbid(unsafe_code)]

mod bounds;
mod compact;
mod cursor;
mod estimate;
mod format;
mod get;
mod leaf_filters;
mod load;
mod merge;
mod node;
mod plan;
mod scan;
mod stats;
mod stream;
mod tree;
mod verify;
mod version;
mod walk;

pub use tree::{BeTree, BeTreeParams};

#[cfg(test)]
mod tests;
