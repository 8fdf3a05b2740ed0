//! `terrapin verify`: checks everything and writes nothing. Exit 0: sound. 1: damaged or
//! incomplete, each finding with its place. 2: the check failed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrapin::salvage::damaged_ranges;
use terrapin::verify::{self, VerifyOptions, VerifyReport};
use terrapin_base::Result;

use super::salvage::{code, print};
use crate::bytes::{counted, human};
use crate::{arguments, output, own_files};

/// Arguments of `verify`.
#[derive(Args)]
pub struct Verify {
    /// Directory of the database
    #[arg(value_name = "DB")]
    path: PathBuf,
    /// Memory for caches
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    /// Print one JSON object
    #[arg(long, conflicts_with = "ranges")]
    json: bool,
    /// Print instead the ranges of keys of which records may be lost, as salvage finds them
    #[arg(long)]
    ranges: bool,
}

impl Verify {
    /// Runs the command.
    pub fn run(&self) -> ExitCode {
        if self.ranges {
            return self.ranges();
        }
        let options = VerifyOptions::new().memory(self.memory);
        let verified =
            own_files::refuse_std(&self.path).and_then(|()| verify::verify(&self.path, &options));
        let report = match verified {
            Ok(report) => report,
            Err(error) => {
                output::complain(&error);
                return ExitCode::from(output::FAILED);
            }
        };
        match self.print(&report) {
            Err(error) if !output::is_reader_gone(&error) => {
                output::complain(&error);
                ExitCode::from(output::FAILED)
            }
            _ if report.is_sound() => ExitCode::SUCCESS,
            _ => ExitCode::from(output::NO),
        }
    }

    /// Prints the ranges of keys that damage concerns.
    fn ranges(&self) -> ExitCode {
        let found = own_files::refuse_std(&self.path).and_then(|()| damaged_ranges(&self.path));
        match found.and_then(|report| print(&report).map(|()| code(&report))) {
            Ok(code) => code,
            Err(error) => {
                output::complain(&error);
                ExitCode::from(output::FAILED)
            }
        }
    }

    fn print(&self, report: &VerifyReport) -> Result<()> {
        if self.json {
            let findings: Vec<_> = report
                .findings
                .iter()
                .map(|f| json!({ "place": f.place, "message": f.message }))
                .collect();
            return output::say(json!({
                "sound": report.is_sound(),
                "findings": findings,
                "stopped": report.stopped,
                "keyspaces": report.keyspaces,
                "groups": report.groups,
                "nodes": report.nodes,
                "page_bytes": report.page_bytes,
                "leaf_records": report.leaf_records,
                "buffered_records": report.buffered_records,
                "log_operations": report.log_operations,
                "beside_writer": report.beside_writer,
            }));
        }
        if report.beside_writer {
            output::notice("another process writes the database; this is what it held just now");
        }
        for finding in &report.findings {
            output::say(finding)?;
        }
        output::say(summary(report))
    }
}

/// Whether the database is sound, what was checked, and what was not.
fn summary(report: &VerifyReport) -> String {
    let checked = format!(
        "{}, {} and {} in {}; {} in leaves, {} on the way to them, {} in the log to replay",
        counted(report.keyspaces, "keyspace"),
        counted(report.groups, "page group"),
        counted(report.nodes, "node"),
        human(report.page_bytes),
        counted(report.leaf_records, "record"),
        counted(report.buffered_records, "change"),
        counted(report.log_operations, "operation"),
    );
    if report.is_sound() {
        return format!("sound: {checked}");
    }
    let findings = counted(report.findings.len() as u64, "finding");
    let rest = match report.stopped {
        true => "; not everything was checked",
        false => "",
    };
    format!("damaged: {findings} in {checked}{rest}")
}

#[cfg(test)]
mod tests {
    use terrapin::verify::Finding;

    use super::*;

    #[test]
    fn the_summary_uses_the_singular_and_lists_unchecked_parts() {
        let mut report = VerifyReport::default();
        report.keyspaces = 1;
        report.nodes = 2;
        assert_eq!(
            summary(&report),
            "sound: 1 keyspace, 0 page groups and 2 nodes in 0 bytes; 0 records in leaves, 0 changes on the way to them, 0 operations in the log to replay"
        );
        report.findings.push(Finding::new("log", "no record"));
        let said = summary(&report);
        assert!(
            said.starts_with("damaged: 1 finding in 1 keyspace, ") && !said.contains("checked"),
            "{said}"
        );
        report.findings.push(Finding::new("log", "no record"));
        report.stopped = true;
        let said = summary(&report);
        assert!(said.starts_with("damaged: 2 findings "), "{said}");
        assert!(said.ends_with("; not everything was checked"), "{said}");
    }
}
