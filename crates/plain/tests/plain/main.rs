//! The plain structure by itself: compared with a map, damaged, hostile, and killed at each step.

mod damage;
mod kind;
mod merges;
#[path = "../../../structure/tests/trials/mod.rs"]
mod trials;
