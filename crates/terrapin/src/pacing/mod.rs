//! What slows writers down, as data: when the merge under way ends ([`forecast`]), which pace that
//! leaves to writers ([`pace`]), whose turn it is on a processor ([`yielding`]), and how long one
//! call may wait in all ([`patience`]). Nothing here knows the engine. `write` lets writers wait.

pub mod forecast;
pub mod pace;
pub mod patience;
pub mod yielding;
