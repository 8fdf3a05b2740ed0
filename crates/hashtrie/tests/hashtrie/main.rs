//! The lazy-trie by itself: compared with a map, damaged, hostile, and killed at each step.

mod damage;
mod kills;
mod merges;
mod scans;
mod world;
