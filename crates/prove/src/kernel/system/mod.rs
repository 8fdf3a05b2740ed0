//! What the system does to a database besides killing it: full disks, limits, read-only places, other processes, mutilated files.

mod files;
mod store;

use std::path::Path;

use crate::Find;

/// A case: what it is called, and how it is tried. It says how many things it tried.
type Case = (&'static str, fn(&Path) -> Result<u64, Find>);

const CASES: [Case; 2] = [
    ("files of a closed store", files::of_a_closed_store),
    ("files of a killed store", files::of_a_killed_store),
];

/// How many units there are.
pub const UNITS: u64 = CASES.len() as u64;

/// Tries a case.
pub fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    let (name, case) = CASES
        .get(unit as usize)
        .ok_or_else(|| Find(format!("there is no case {unit}")))?;
    case(scratch).map_err(|find| Find(format!("{name}: {find}")))
}
