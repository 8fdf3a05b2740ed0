//! Trials of the contract of structures: what each of them must pass by itself, compared with a
//! map, damaged, and killed at each step. A structure's test includes this module and has a module
//! `kind` with a constant `KIND`.
#![allow(dead_code)] // each structure uses its part

use std::sync::Arc;

use terrapin_base::Budget;
use terrapin_pages::{PageStore, PageUse};
use terrapin_structure::{Estimate, Structure};

pub mod damage;
mod kills;
pub mod merges;
pub mod scans;
pub mod world;

use world::{Random, World};

/// A structure under trial.
pub struct Kind {
    pub structure: fn(&Arc<PageStore>, &Arc<Budget>) -> Arc<dyn Structure>,
    pub group_bytes: u64,
    pub filter_bits: u32,
    /// Each merge asks for its whole input, leaves nothing in buffers, and makes one sorted run.
    pub merges_whole: bool,
    /// The stored form of a key.
    pub stored: fn(Vec<u8>) -> Vec<u8>,
    /// A stored key of a random message.
    pub key: fn(&mut Random) -> Vec<u8>,
    /// Whether a world has grown enough for most tests.
    pub is_grown: fn(&World) -> bool,
    /// Checks what is special about a version, whose pages are given.
    pub check: fn(&World, &[PageUse]),
    /// Device reads that a call of `fill` for one record may take.
    pub fill_reads_max: u64,
    /// Checks the estimate of everything.
    pub check_estimate: fn(&World, Estimate),
    /// An estimate of a range is wrong by fewer records than this.
    pub estimate_error_max: usize,
    /// Messages of a merge that the reserve of these worlds holds.
    pub reserve_messages: usize,
}
