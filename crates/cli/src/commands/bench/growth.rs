//! `terrapin bench growth`: the cost of a loaded record as the data grows
//! ([`terrapin_bench::measure_growth`]).

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::{GrowthReport, measure_growth};

use super::driven::{Driven, Fresh};
use super::{Form, with_bar};
use crate::arguments;

/// Arguments of `bench growth`.
#[derive(Args)]
pub(super) struct Growth {
    /// Records to load, each number into a database of its own
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "1000000,4000000,16000000",
        value_parser = arguments::whole::<u64>
    )]
    records: Vec<u64>,
    #[command(flatten)]
    driven: Driven,
    /// Memory budget, the same for all
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = arguments::size)]
    memory: u64,
    #[command(flatten)]
    fresh: Fresh,
    #[command(flatten)]
    form: Form,
}

impl Growth {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<()> {
        let options = self.fresh.options(self.memory);
        let configs = self
            .records
            .iter()
            .map(|&records| self.driven.config(records));
        let configs = configs.collect::<Result<Vec<_>>>()?;
        self.form.say_head::<GrowthReport>()?;
        for config in &configs {
            let place = self.fresh.place("growth")?;
            let report = with_bar("growth", config.records, |seen| {
                measure_growth(config, &options, place.path(), seen)
            })?;
            self.form.say(&report)?;
        }
        Ok(())
    }
}
