//! See `prove::fuzz::targets::tiered`.
#![no_main]

terrapin_fuzz::target!("tiered");
