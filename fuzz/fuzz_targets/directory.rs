//! See `prove::fuzz::targets::directory`.
#![no_main]

terrapin_fuzz::target!("directory");
