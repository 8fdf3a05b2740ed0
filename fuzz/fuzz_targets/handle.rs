//! See `prove::fuzz::values::handle`.
#![no_main]

terrapin_fuzz::target!("handle");
