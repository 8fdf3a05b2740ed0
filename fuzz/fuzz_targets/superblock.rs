//! See `prove::fuzz::targets::superblock`.
#![no_main]

terrapin_fuzz::target!("superblock");
