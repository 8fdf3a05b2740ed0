//! See `prove::fuzz::large::put_large`.
#![no_main]

terrapin_fuzz::target!("put-large");
