//! What several structures need to read, merge and write sorted runs of page groups (layer 4). A
//! structure decides which runs there are and where they end. This crate moves their records.
//!
//! - `bounds` has the arithmetic on bounds of key ranges.
//! - `walk` reads the blocks of a group in order and reads ahead; `stream` reads ahead across
//!   groups, for long scans.
//! - `lookup` finds keys in blocks that a structure names, of many keys together.
//! - `cursor` reads the records of a group; `run` describes sorted runs and merges them.
//! - `tasks` merges leaves that do not depend on one another, on several threads.
//! - `writing` writes a merge as page groups.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod cursor;
pub mod lookup;
pub mod run;
pub mod stream;
pub mod tasks;
pub mod walk;
pub mod writing;
