//! See `prove::fuzz::targets::maplet`.
#![no_main]

terrapin_fuzz::target!("maplet");
