//! `terrapin salvage`: copies what a damaged database still holds into a new one. Exit 0: all of
//! it; 1: something is lost, and each range of keys is named; 2: failed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use terrapin::salvage::{SalvageReport, salvage};
use terrapin_base::Result;

use crate::bytes::{counted, show};
use crate::output;

/// Arguments of `salvage`.
#[derive(Args)]
pub struct Salvage {
    /// Directory of the damaged database, which stays as it is
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// Directory of the new database
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

impl Salvage {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode> {
        let report = salvage(&self.old, &self.new)?;
        print(&report)?;
        output::say(format!(
            "copied {}, and {} that may be out of date",
            counted(report.certain, "change"),
            report.uncertain,
        ))?;
        Ok(code(&report))
    }
}

/// Prints each damaged range of keys.
pub fn print(report: &SalvageReport) -> Result<()> {
    for range in &report.damaged {
        let to = match &range.to {
            Some(to) => format!("below {}", show(to)),
            None => "to the end".to_owned(),
        };
        let (keyspace, from, cause) = (&range.keyspace, show(&range.from), &range.cause);
        output::say(format!("{keyspace}: keys from {from} {to}: {cause}"))?;
    }
    match &report.log {
        Some(cause) => output::say(format!("log: newer records are lost: {cause}")),
        None => Ok(()),
    }
}

/// The exit code for a report.
#[must_use]
pub fn code(report: &SalvageReport) -> ExitCode {
    match report.is_whole() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(output::NO),
    }
}
