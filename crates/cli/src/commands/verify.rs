//! `terrapin verify`: everything is checked, nothing is written. Exit 0: sound; 1: damaged, each finding with its place; 2: it
//! cannot be opened.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use terrapin::verify::{self, VerifyOptions, VerifyReport};
use terrapin_base::Result;

use crate::bytes::{human, thousands};
use crate::{arguments, output};

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
    #[arg(long)]
    json: bool,
}

impl Verify {
    /// See the head of this file.
    pub fn run(&self) -> ExitCode {
        let options = VerifyOptions::new().memory(self.memory);
        let report = match verify::verify(&self.path, &options) {
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
                "log_records": report.log_records,
            }));
        }
        for finding in &report.findings {
            output::say(finding)?;
        }
        let checked = format!(
            "{} keyspaces, {} page groups and {} nodes in {}, {} records in leaves, {} in buffers, {} in the log to replay",
            thousands(report.keyspaces),
            thousands(report.groups),
            thousands(report.nodes),
            human(report.page_bytes),
            thousands(report.leaf_records),
            thousands(report.buffered_records),
            thousands(report.log_records),
        );
        if report.is_sound() {
            output::say(format_args!("sound: {checked}"))
        } else {
            let rest = match report.stopped {
                true => "; it stopped there, and the rest was not checked",
                false => "",
            };
            output::say(format_args!(
                "damaged: {} findings in {checked}{rest}",
                report.findings.len()
            ))
        }
    }
}
