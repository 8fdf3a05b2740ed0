//! How the memory budget is shared (docs/MEMORY.md).
//!
//! | file | owns |
//! | --- | --- |
//! | `workload` | what users mostly do: counts and thresholds |
//! | `tree_size` | what the trees hold |
//! | `plan` | the pure function from facts to a plan |
//! | `apply` | gathering the facts, applying the plan |
//! | `seal` | when memtables are sealed |
//! | `cache_split` | the shares of cached records and cached blocks |
//! | `warm_up`, `prefault` | jobs that read the plan |

pub mod apply;
pub mod cache_split;
pub mod plan;
pub mod prefault;
pub mod seal;
pub mod tree_size;
pub mod warm_up;
pub mod workload;
