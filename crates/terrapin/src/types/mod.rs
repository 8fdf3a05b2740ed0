//! What users hand in and get back: options, ranges of keys, integer keys, what a close left.

pub mod closed;
pub mod condition;
pub mod integer_key;
pub mod key_form;
pub mod key_range;
pub mod options;
pub mod sought;
pub mod structure_kind;
pub mod structures;
pub mod transaction;
