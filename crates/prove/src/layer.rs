//! A layer is one way to look for faults. Its units are numbered, and the number alone repeats a
//! unit.

use std::fmt;
use std::path::Path;

/// A breach that a unit found: the promise, the result, and how to repeat it.
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

/// The number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Endless: a unit's number is its seed.
    Seeds,
    /// This many, from 0. The full amount is reached when all were tried.
    Fixed(u64),
}

/// One way to look for faults.
pub struct Layer {
    /// The name on the command line and in the ledger.
    pub name: &'static str,
    /// What units count, in the plural: `crash points`.
    pub counts: &'static str,
    /// The least count in CI.
    pub ci: u64,
    /// The least count of the full amount.
    pub full: u64,
    /// How many units there are.
    pub units: Units,
    /// Whether only one unit may run at a time in this process, because of global state or a
    /// device.
    pub alone: bool,
    /// Tries one unit and returns its count. It may put files into the empty directory, which is
    /// its own.
    pub unit: fn(unit: u64, scratch: &Path) -> Result<u64, Find>,
}
