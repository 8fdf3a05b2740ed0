//! The lazy-trie by itself: compared with a map, damaged, hostile, and killed at each step.

mod costs;
mod damage;
mod kind;
#[path = "../../../structure/tests/trials/leaves.rs"]
mod leaves;
mod merges;
#[path = "../../../structure/tests/trials/mod.rs"]
mod trials;
