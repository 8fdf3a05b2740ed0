//! Layer `failed-calls`: in short workloads every call on the disk fails in turn. It fails with
//! `EIO` and `ENOSPC` (opens with `EMFILE` too), once and from then on, in a running database and
//! in recoveries (D10). The checks:
//!
//! - An operation gives the right answer, or an error whose kind fits the fault and whose text
//!   names the failed call. It never reports damage or a missing record, never panics, and never
//!   hangs.
//! - A write that returned an error is not there. One that was to be synced may be there, and then
//!   stays or goes as a whole.
//! - Reads give right answers while calls fail, except reads whose own call fails.
//! - Once calls succeed again, writes resume, or they say that the database is poisoned. Only a
//!   fault that leaves the disk's content open may poison it.
//! - After a crash, a power cut or a close, everything acknowledged is there and `verify` finds
//!   nothing. A power cut right after the recovery changes nothing: data of a failed sync is not
//!   taken for durable because it can be read.

mod recovery;
mod run;
mod workloads;

use std::path::Path;

use crate::{Find, Layer, Units};

/// The layers of this module.
#[must_use]
pub fn layers() -> Vec<Layer> {
    vec![Layer {
        name: "failed-calls",
        counts: "failed calls",
        ci: 10_000,
        full: 33_000,
        units: Units::Fixed(workloads::WORKLOADS.len() as u64),
        alone: false,
        unit,
    }]
}

/// Fails every call of a workload, then every call of recoveries from its crashes.
fn unit(number: u64, _scratch: &Path) -> Result<u64, Find> {
    let index = usize::try_from(number)?;
    let workload = workloads::WORKLOADS
        .get(index)
        .ok_or_else(|| Find(format!("there is no workload {number}")))?;
    let operations = workload.operations()?;
    let mut tally = run::Tally::default();
    run::every_call(workload, &operations, &mut tally)?;
    recovery::every_call(workload, &operations, &mut tally)?;
    tally.outcome()
}
