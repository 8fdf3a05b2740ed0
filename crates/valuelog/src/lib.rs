//! The value log (layer 4): pages of values that are kept out of the trees, and the table that
//! finds them (Wayfinder, SiMoD '24, §2).
//!
//! A checkpoint writes the long values of a sealed memtable in key order into a *value page*. This
//! output is a *birth*, and has a number. The tree keeps a [`Handle`] in place of each value:
//! birth, place, length. The [`ValueTable`] says which page has the values of a birth now.
//!
//! # Invariants
//!
//! - **D12.** A handle names one version of one key for ever. A move changes neither a record's
//!   identity nor its checksum.
//! - **D13.** Trees and tables of a superblock are of one checkpoint: each handle resolves.
//! - A record's identity is the page that it was born in, and its place there. Page ids are never
//!   used twice, so a stale record is never taken for another.
//!
//! # How it differs from the paper
//!
//! The paper keeps a key without an address in the tree, and the address in a map that must be
//! complete. It scans all value files after a crash. Here the handle is in the tree and the table
//! is durable, so snapshots and recovery need no map. Value pages are pages of the data file, with
//! its checksums, its space and its commits.
#![forbid(unsafe_code)]

pub mod collect;
mod handle;
pub mod large;
pub mod page;
mod record;
mod separate;
mod table;
mod write;

pub use handle::{Handle, check_operands};
pub use separate::Separating;
pub use table::{LEAF_BYTES_MAX, PartRef, TableEdit, TableRef, ValueTable};

/// Records begin at multiples of this many bytes.
pub const PLACE_BYTES: usize = 32;
/// Places of a page are below this: 16 MiB of records.
pub const PLACES_MAX: u32 = 1 << 19;
/// Largest target of a value page in bytes. A page may have as much again of a part that begins
/// before the target, and one more record.
pub const TARGET_BYTES_MAX: u32 = 7 << 20;
/// Most bytes of a value page, with directory and footer.
pub const PAGE_BYTES_MAX: u64 = 32 << 20;
