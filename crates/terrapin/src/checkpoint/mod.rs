//! Checkpoints merge sealed memtables into their trees and make the new roots durable (D2).
//!
//! One coordinator job ([`job`]) runs one checkpoint ([`outcome`]) at a time:
//!
//! - It freezes the database at an LSN and waits until every record below it is in its memtable.
//! - It merges the sealed memtables, with as many workers ([`merges`]) as there are background
//!   threads. A merge reads a memtable through [`input`].
//! - It writes the catalog and commits ([`commit`], which follows D2).
//!
//! The rest of the engine sees requests and progress in [`crate::engine::schedule`].

pub(crate) mod commit;
mod commit_mutants;
pub(crate) mod compaction;
mod covered;
mod damage;
mod drain;
pub(crate) mod expiry;
pub(crate) mod fold;
mod gather;
mod habits;
mod held;
pub(crate) mod ingest;
pub(crate) mod input;
pub(crate) mod job;
pub(crate) mod merges;
mod outcome;
mod portion;
pub(crate) mod request;
mod rest;
mod run_writer;
mod spill;
