//! Planning, as data and pure functions. For memory: the workload ([`workload`]), the sizes of
//! trees ([`tree_size`]), the plan ([`plan`]), and the division of cache memory ([`cache_split`]).
//! For the disk: whether it has room for writes ([`disk_state`]).
//!
//! This folder does not know the engine. `memory` and `disk_space` gather the facts and do what was
//! decided.

pub mod cache_split;
pub mod disk_state;
pub mod location_share;
pub mod plan;
pub mod tree_size;
pub mod workload;
