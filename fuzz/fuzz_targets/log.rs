//! See `prove::fuzz::targets::log`.
#![no_main]

terrapin_fuzz::target!("log");
