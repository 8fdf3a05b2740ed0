//! `terrapin bench absent`: gets of keys that are not there beside gets of keys that are; see
//! [`terrapin_bench::measure_absent`].

use clap::Args;
use terrapin::{KeyspaceOptions, StructureKind};
use terrapin_base::Result;
use terrapin_bench::measure_absent;

use super::Form;
use super::driven::{Driven, Fresh};
use crate::arguments;

/// Arguments of `bench absent`.
#[derive(Args)]
pub(super) struct Absent {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Gets of each kind
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = arguments::at_least_one::<u64>)]
    gets: u64,
    /// Times that everything is measured, each with a database of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// The structure of the records' keyspace: leveled, tiered, inplace or hashed
    #[arg(long, value_name = "NAME", default_value = "leveled", value_parser = arguments::structure)]
    structure: StructureKind,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Absent {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let keyspace = KeyspaceOptions::new().structure(self.structure);
        let (turns, bar) = (
            (self.turns, &self.fresh, "absent"),
            ("absent", self.records),
        );
        self.form.say_turns(turns, bar, |place, seen| {
            let stored = (&options, &keyspace);
            measure_absent(&config, stored, self.memory, self.gets, place, seen)
        })
    }
}
