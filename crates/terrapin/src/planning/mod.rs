//! Memory planning, as data and pure functions: the workload ([`workload`]), the sizes of trees
//! ([`tree_size`]), the plan ([`plan`]), and the division of cache memory ([`cache_split`]). This
//! folder does not know the engine. `memory` gathers the facts and applies the plan.

pub mod cache_split;
pub mod plan;
pub mod tree_size;
pub mod workload;
