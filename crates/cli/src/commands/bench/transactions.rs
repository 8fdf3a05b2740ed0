//! `terrapin bench transactions`: puts, compare-and-swaps and transactions by turns; see
//! [`terrapin_bench::measure_transactions`].

use clap::Args;
use terrapin_base::Result;
use terrapin_bench::{TransactionsReport, measure_transactions};

use super::driven::{Driven, Fresh};
use super::{Form, with_bar};
use crate::arguments;

/// Arguments of `bench transactions`.
#[derive(Args)]
pub(super) struct Transactions {
    /// Records to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::whole::<u64>)]
    records: u64,
    /// Operations of each kind in a turn
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = arguments::at_least_one::<u64>)]
    operations: u64,
    /// Times that everything is measured
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

impl Transactions {
    /// Runs the suite.
    pub(super) fn run(&self) -> Result<()> {
        let config = self.driven.config(self.records)?;
        let options = self.fresh.options(self.memory);
        self.form.say_head::<TransactionsReport>()?;
        let place = self.fresh.place("transactions")?;
        let work = (self.memory, self.operations, self.turns);
        with_bar("transactions", self.records, |seen| {
            let mut say = |report: &TransactionsReport| self.form.say(report);
            measure_transactions(&config, &options, work, place.path(), seen, &mut say)
        })
    }
}
