//! See `prove::fuzz::targets::trie`.
#![no_main]

terrapin_fuzz::target!("trie");
