//! What slows writers down, as data. [`forecast`] expects the end of the merge under way, and
//! [`pace`] derives the pace of writers. [`yielding`] orders writers on a processor. [`patience`]
//! limits the total wait of one call. [`replay`] bounds what the next
//! open may have to replay. This folder does not know the engine. `write` lets writers
//! wait.

pub mod forecast;
pub mod pace;
pub mod patience;
pub mod replay;
pub mod yielding;
