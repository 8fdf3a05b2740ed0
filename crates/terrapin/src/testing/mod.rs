//! Test doubles, and scenes that tests arrange among the engine's parts. No release build contains
//! them.

pub mod between;
pub mod late;
#[cfg(test)]
pub(crate) mod unreadable;
