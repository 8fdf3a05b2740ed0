//! See `prove::fuzz::targets::catalog`.
#![no_main]

terrapin_fuzz::target!("catalog");
