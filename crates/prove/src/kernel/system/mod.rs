//! Layer `system`: what the system does to a database besides killing it. Full disks, limits,
//! read-only places, other processes, forked children, little memory, mutilated files.

mod access;
mod beside;
mod files;
mod forks;
mod full;
mod limits;
mod memory;
mod runs;
mod store;

use std::path::Path;
use std::process::ExitCode;

use crate::Find;

/// Does a child's work of a case, if the arguments ask for it.
pub fn child(arguments: &[String]) -> Option<ExitCode> {
    limits::child(arguments)
        .or_else(|| memory::child(arguments))
        .or_else(|| forks::child(arguments))
        .or_else(|| runs::child(arguments))
        .or_else(|| beside::child(arguments))
}

/// A case: its name and its function, which returns how many things it tried.
type Case = (&'static str, fn(&Path) -> Result<u64, Find>);

/// The places and limits, once each.
const CASES: [Case; 11] = [
    ("a database that is open elsewhere", access::open_elsewhere),
    ("files that may not grow", limits::file_size),
    ("too few descriptors", limits::descriptors),
    ("a copy made while it is open", access::copied_while_open),
    ("a place that may not be written", access::read_only),
    ("a full ext4", full::ext4),
    ("a full XFS", full::xfs),
    ("children that were forked", forks::children),
    ("memory, with long keys", memory::long_keys),
    ("many short runs", runs::short_runs),
    ("a reader beside a writer", beside::views),
];

/// The number of units: the cases, then shares of the mutilated files of a closed and a killed
/// store in turn.
pub const UNITS: u64 = CASES.len() as u64 + 2 * files::SHARES;

/// Tries a case.
pub fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    if let Some((name, case)) = CASES.get(unit as usize) {
        return case(scratch).map_err(|find| Find(format!("{name}: {find}")));
    }
    let share = unit - CASES.len() as u64;
    let (store, tried) = match share % 2 {
        0 => ("closed", files::of_a_closed_store(scratch, share / 2)),
        _ => ("killed", files::of_a_killed_store(scratch, share / 2)),
    };
    tried.map_err(|find| Find(format!("files of a {store} store: {find}")))
}
