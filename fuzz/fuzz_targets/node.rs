//! See `prove::fuzz::targets::node`.
#![no_main]

terrapin_fuzz::target!("node");
