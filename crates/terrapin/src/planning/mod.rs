//! How memory is planned, as data and pure functions: what users do ([`workload`]), what trees hold
//! ([`tree_size`]), the plan that follows ([`plan`]), and how caches share what is left
//! ([`cache_split`]). Nothing here knows the engine. `memory` gathers the facts and applies the
//! plan.

pub mod cache_split;
pub mod plan;
pub mod tree_size;
pub mod workload;
