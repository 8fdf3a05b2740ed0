//! `terrapin bench ingest`: a sorted ingest beside a load; see [`terrapin_bench::measure_ingest`].

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::measure_ingest;

use super::Form;
use super::driven::{Driven, Fresh};
use crate::arguments;

/// Arguments of `bench ingest`.
#[derive(Args)]
pub(super) struct Ingest {
    /// Records to load, and to ingest
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Times that everything is measured, each with databases of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Ingest {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let (turns, bar) = (
            (self.turns, &self.fresh, "ingest"),
            ("ingest", 3 * self.records),
        );
        self.form.say_turns(turns, bar, |place, seen| {
            measure_ingest(&config, &options, self.memory, place, seen)
        })
    }
}
