//! How the memory budget is spent: when memtables are sealed, what caches and memtables share, and
//! what is read in or prefaulted ahead of its use.

pub mod cache_split;
pub mod fit;
pub mod overwriting;
pub mod prefault;
pub mod seal;
pub mod warm_up;
