//! See `prove::fuzz::targets::group`.
#![no_main]

terrapin_fuzz::target!("block");
