//! Doubles and scenes that tests place among the engine's parts. No release build has them.

pub mod late;
#[cfg(test)]
pub(crate) mod unreadable;
