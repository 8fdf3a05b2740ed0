//! See `prove::fuzz::values::value`.
#![no_main]

terrapin_fuzz::target!("value");
