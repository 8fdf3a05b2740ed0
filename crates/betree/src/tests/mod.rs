//! Tests of reading on trees that are put together by hand, at random, so that every rule of
//! [`crate::node`] shows: dead parts, groups with more in them than their segment has, separators
//! that are no keys, empty levels, deletes everywhere. They need no merge.

mod cursor;
mod damage;
mod figures;
mod grown;
mod lookups;
mod scans;
mod store;
