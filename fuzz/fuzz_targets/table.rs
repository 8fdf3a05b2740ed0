//! See `prove::fuzz::values::table`.
#![no_main]

terrapin_fuzz::target!("table");
