//! `terrapin help COMMAND`: the same text as `terrapin COMMAND --help`.

use std::process::ExitCode;

use clap::Args;
use terrapin_base::{Error, Result};

use crate::usage;

/// Arguments of `help`.
#[derive(Args)]
pub struct Help {
    /// Command to explain [default: all]
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,
}

impl Help {
    /// See the head of this file; commands are looked for below those of `parents`.
    pub fn run(&self, parents: &[&str]) -> Result<ExitCode> {
        let root = usage::command();
        let names = parents
            .iter()
            .copied()
            .chain(self.path.iter().map(String::as_str));
        let mut command = &root;
        for name in names.clone() {
            command = command.find_subcommand(name).ok_or_else(|| {
                Error::invalid("there is no such command: `terrapin help` lists all")
                    .with("command", name)
            })?;
        }
        let asked = ["terrapin"].into_iter().chain(names).chain(["--help"]);
        match usage::command().try_get_matches_from(asked) {
            Err(help) => Ok(usage::printed(help.print())),
            Ok(_) => Err(Error::internal("--help is no help")),
        }
    }
}
