//! Fail the n-th call: in short workloads every call on the disk fails in turn, with `EIO` and with
//! `ENOSPC` (opens with `EMFILE` too), once and from then on, in a running database and in
//! recoveries (D10). What is checked:
//!
//! - An operation answers rightly, or with an error of a kind that fits the fault and whose text
//!   tells the call that failed. It never says that something is damaged or not there, never
//!   panics, and never hangs.
//! - A write that answered an error is not there; one that was to be synced may be there, and then
//!   stays or goes as a whole.
//! - Reads go on with right answers while calls fail, those excepted whose own call fails.
//! - Once calls succeed again writes resume, or they say that the database is poisoned. Only a
//!   fault that leaves open what is on the disk may poison it.
//! - After a crash, a power cut or a close, everything acknowledged is there, `verify` finds
//!   nothing, and a power cut right after the recovery changes nothing: what a failed sync has lost
//!   is not taken for durable because it can still be read.

mod recovery;
mod run;
mod workloads;

use std::path::Path;

use crate::{Find, Layer, Units};

/// The layers of this kind.
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
