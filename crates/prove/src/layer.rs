//! A layer is one way of looking for faults. Its units are numbered, and a number is all that a
//! unit needs to be tried again.

use std::fmt;
use std::path::Path;

/// A breach that a unit found: what was promised, what came instead, and how to see it again.
#[derive(Clone, Debug)]
pub struct Find(pub String);

impl fmt::Display for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Find {
    fn from(error: E) -> Self {
        Find(error.to_string())
    }
}

/// How many units there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Without end: a unit's number is its seed.
    Seeds,
    /// So many, from 0. When all have been tried, the full amount is reached.
    Fixed(u64),
}

/// One way of looking for faults.
pub struct Layer {
    /// What the command line and the ledger call it.
    pub name: &'static str,
    /// What its units count, in the plural: `crash points`.
    pub counts: &'static str,
    /// How many of them CI tries at least.
    pub ci: u64,
    /// How many of them the full amount is at least.
    pub full: u64,
    /// Of which there are so many.
    pub units: Units,
    /// Whether only one unit may run at a time in this process: because of global state, or of a
    /// device.
    pub alone: bool,
    /// Tries one unit and says how many it counted. It may use the directory, which is empty and
    /// its own, for files.
    pub unit: fn(unit: u64, scratch: &Path) -> Result<u64, Find>,
}
