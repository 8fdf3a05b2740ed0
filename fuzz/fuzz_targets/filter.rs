//! See `prove::fuzz::targets::filter`.
#![no_main]

terrapin_fuzz::target!("filter");
