//! See `prove::fuzz::ranges::ranges`.
#![no_main]

terrapin_fuzz::target!("ranges");
