//! `terrapin bench range-delete`: half of the records go by one range; see
//! [`terrapin_bench::measure_range_delete`].

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::measure_range_delete;

use super::Form;
use super::driven::{Driven, Fresh};
use crate::arguments;

/// Arguments of `bench range-delete`.
#[derive(Args)]
pub(super) struct RangeDelete {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Times that everything is measured, each with a database of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl RangeDelete {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        let turns = (self.turns, &self.fresh, "range-delete");
        self.form
            .say_turns(turns, ("load", self.records), |place, seen| {
                measure_range_delete(&config, &options, self.memory, place, seen)
            })
    }
}
