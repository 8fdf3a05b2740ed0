//! What slows writers down, as data: the expected end of the merge under way ([`forecast`]), the
//! pace for writers ([`pace`]), the order of writers on a processor ([`yielding`]), and the longest
//! wait of one call ([`patience`]). This folder does not know the engine. `write` lets writers
//! wait.

pub mod forecast;
pub mod pace;
pub mod patience;
pub mod yielding;
