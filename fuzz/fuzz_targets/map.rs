//! See `prove::fuzz::targets::map`.
#![no_main]

terrapin_fuzz::target!("map");
