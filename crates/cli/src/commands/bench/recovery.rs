//! `terrapin bench recovery`: what an open costs after a process died with its writes in the log
//! only. Another process of this program loads the records and ends without closing the database.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use terrapin::StructureKind;
use terrapin_base::{Error, Result};
use terrapin_bench::{OpenReport, measure_open};

use super::driven::{Driven, Fresh};
use super::{Form, load, stored, with_bar};
use crate::arguments;

/// Arguments of `bench recovery`.
#[derive(Args)]
pub(super) struct Recovery {
    /// Records to write. Those that no checkpoint merged are replayed: give memory for as many
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Gets after each open
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = arguments::whole::<u64>)]
    gets: u64,
    /// Times that everything is measured, each with a database of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// Operations after the load, half of them updates and half gets, zipfian
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = arguments::whole::<u64>)]
    operations: u64,
    /// The structure of the records' keyspace: leveled, tiered, inplace or hashed
    #[arg(long, value_name = "NAME", default_value = "leveled", value_parser = arguments::structure)]
    structure: StructureKind,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = arguments::size)]
    memory: u64,
    /// Recovery target in seconds: the longest replay that the killed process allows
    #[arg(long, value_name = "SECONDS", value_parser = arguments::time)]
    recovery_target: Option<Duration>,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
    /// Load the records into this directory and end without a close
    #[arg(long, value_name = "DIR", hide = true)]
    die_in: Option<PathBuf>,
}

impl Recovery {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let options = options.recovery_target(self.recovery_target);
        if let Some(directory) = &self.die_in {
            let database = options.open(directory)?;
            let store = stored(&database, self.structure, self.memory)?;
            load(
                &config,
                &store,
                self.operations,
                directory,
                &Default::default(),
            )?;
            // Nothing is dropped: the database is left as a killed process leaves it.
            std::process::exit(0);
        }
        self.form.say_head::<OpenReport>()?;
        for _ in 0..self.turns {
            let place = self.fresh.place("recovery")?;
            with_bar("load", self.records, |_| self.load_and_die(place.path()))?;
            self.form.say(&measure_open(
                &config,
                (&options, self.structure),
                self.gets,
                place.path(),
            )?)?;
        }
        Ok(())
    }

    /// Runs this command once more, in a process that loads and dies.
    fn load_and_die(&self, directory: &std::path::Path) -> Result<()> {
        let failed = |error| Error::io("cannot run the process that loads the records", error);
        let program = std::env::current_exe().map_err(failed)?;
        let status = Command::new(program)
            .args(std::env::args_os().skip(1))
            .arg("--die-in")
            .arg(directory)
            .status()
            .map_err(failed)?;
        match status.success() {
            true => Ok(()),
            false => {
                Err(Error::invalid("the process that loads the records failed")
                    .with("status", status))
            }
        }
    }
}
