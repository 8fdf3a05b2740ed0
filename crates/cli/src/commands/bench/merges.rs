//! `terrapin bench merges`: merges beside puts, and gets of a key with many merges; see
//! [`terrapin_bench::measure_merges`].

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::{MergesReport, measure_merges};

use super::Form;
use super::driven::{Driven, Fresh};
use crate::arguments;

/// Arguments of `bench merges`.
#[derive(Args)]
pub(super) struct Merges {
    /// Counters in the keyspace
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Puts, and merges, in a turn
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = arguments::at_least_one::<u64>)]
    operations: u64,
    /// Merges of the counter that is read afterwards
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::at_least_one::<u64>)]
    chain: u64,
    /// Times that everything is measured, in one database
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = arguments::at_least_one::<u64>)]
    turns: u64,
    #[command(flatten)]
    driven: Driven,
    /// Memory budget
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Merges {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        self.form.say_head::<MergesReport>()?;
        let place = self.fresh.place("merges")?;
        let work = (self.operations, self.chain, self.turns);
        let mut say = |report: &MergesReport| self.form.say(report);
        measure_merges(&config, &options, work, place.path(), &mut say)
    }
}
