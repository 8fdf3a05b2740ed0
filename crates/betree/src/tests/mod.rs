//! Tests of reads on random trees that are put together without merges, so that every rule of
//! [`crate::node`] matters. The trees have dead parts, groups with more messages than their
//! segments, separators that are no keys, empty levels, and many deletes.

mod cursor;
mod damage;
mod figures;
mod grown;
mod lookups;
mod scans;
mod seeks;
mod store;
